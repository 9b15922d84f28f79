/* Signal masks of dldist's own threads. */
#ifndef DD_PYTHON_BASE_SIGNALS_H
#define DD_PYTHON_BASE_SIGNALS_H

#include <signal.h>

/* py_signals_hold blocks all signals on this thread, py_signals_release restores the mask. Used on
 * dldist's threads that wait in the core: a signal delivered to such a thread would not wake the
 * main thread, which handles signals. Python code must not run between the two calls, because
 * threads and processes that it starts would inherit the mask. */
void py_signals_hold(sigset_t *before);
void py_signals_release(const sigset_t *before);

#endif
