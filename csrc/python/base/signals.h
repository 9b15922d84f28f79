/* Which threads take signals. */
#ifndef DD_PYTHON_BASE_SIGNALS_H
#define DD_PYTHON_BASE_SIGNALS_H

#include <signal.h>

/* hold blocks all signals on this thread, release restores the mask. For our own threads that wait in the core:
 * Python handles signals on the main thread, and a signal that the kernel delivers to another thread does not wake
 * it. No Python code may run between the two: threads and processes that it starts would inherit the mask. */
void py_signals_hold(sigset_t *before);
void py_signals_release(const sigset_t *before);

#endif
