/* Which threads take signals. */
#ifndef DD_PYTHON_BASE_SIGNALS_H
#define DD_PYTHON_BASE_SIGNALS_H

#include <signal.h>

/* For threads of ours that wait in the core: Python handles signals on the main thread, and one that the kernel
 * gives to another does not wake it. No Python runs in between: what it starts would inherit the mask. */
void py_signals_hold(sigset_t *before);
void py_signals_release(const sigset_t *before);

#endif
