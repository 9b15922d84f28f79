/* Whether the GIL can be had: asked on a thread of its own, which may never come back. */
#ifndef DD_PYTHON_PY_WATCH_GIL_H
#define DD_PYTHON_PY_WATCH_GIL_H

#include <stdbool.h>
#include <stdint.h>

typedef struct py_gil_question py_gil_question;

/* NULL when it cannot be asked. */
py_gil_question *py_gil_ask(void);
/* Whether it was had, and how long that took or has been waited for. */
bool py_gil_is_answered(py_gil_question *question, int64_t *waited_ns);
/* NULL is fine. */
void py_gil_forget(py_gil_question *question);

#endif
