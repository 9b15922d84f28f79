#include "python/py_watch_gil.h"

#include "core/clock.h"
#include "core/mem.h"
#include "core/thread.h"
#include "python/py_gate.h"

#include <stdatomic.h>

struct py_gil_question {
    int64_t asked_ns;                /* const */
    atomic_int_fast64_t answered_ns; /* 0: not yet */
    atomic_int nowners;
};

static void
leave_question(py_gil_question *question)
{
    if (atomic_fetch_sub(&question->nowners, 1) == 1) {
        dd_mem_free(question);
    }
}

/* It only takes the GIL and gives it back. An interpreter that is ending counts as one that answers. */
static void *
take_gil(void *arg)
{
    py_gil_question *question = arg;
    py_gate_pass pass;
    bool is_in = py_gate_enter(&pass);
    atomic_store(&question->answered_ns, dd_clock_now_ns());
    if (is_in) {
        py_gate_leave(&pass);
    }
    leave_question(question);
    return NULL;
}

py_gil_question *
py_gil_ask(void)
{
    py_gil_question *question = dd_mem_zalloc(sizeof *question);
    pthread_t thread;
    if (question == NULL) {
        return NULL;
    }
    question->asked_ns = dd_clock_now_ns();
    atomic_init(&question->nowners, 2);
    if (dd_thread_start(&thread, "dldist-gil", take_gil, question, NULL) != DD_OK) {
        dd_mem_free(question);
        return NULL;
    }
    pthread_detach(thread);
    return question;
}

bool
py_gil_is_answered(py_gil_question *question, int64_t *waited_ns)
{
    int64_t answered_ns = atomic_load(&question->answered_ns);
    *waited_ns = (answered_ns != 0 ? answered_ns : dd_clock_now_ns()) - question->asked_ns;
    return answered_ns != 0;
}

void
py_gil_forget(py_gil_question *question)
{
    if (question != NULL) {
        leave_question(question);
    }
}
