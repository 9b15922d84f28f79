/* The interpreter's own frames, as they lie in its memory. Its API gives frame objects, and making one for a function that has just been
 * entered costs more than all the rest of a record. */
#ifndef DD_PYTHON_OBSERVE_FRAMES_H
#define DD_PYTHON_OBSERVE_FRAMES_H

#include "python/observe/recorder_internal.h"

/* As CPython 3.11 has it; other versions have others. */
typedef struct py_raw_frame {
    void *function[4]; /* it, and its names */
    PyObject *code;
    PyFrameObject *object; /* NULL: nobody has asked for it */
    struct py_raw_frame *previous;
    const char *instruction;
} py_raw_frame;

typedef struct py_raw_stack {
    unsigned char use_tracing;
    py_raw_frame *current;
} py_raw_stack;

typedef struct py_raw_thread {
    void *links[3];
    int counts[7];
    py_raw_stack *stack;
} py_raw_thread;

/* Whether this interpreter's frames are such: the version is the one we know, and what is read of the frames that run now is what its API
 * says of them. */
bool py_raw_frames_are_known(const py_recorder *self);

/* The caller's. Frames run, and stay, for as long as we hold the GIL. */
static inline const py_raw_frame *
py_raw_frame_current(void)
{
    const py_raw_thread *thread = (const py_raw_thread *)(const void *)PyThreadState_Get();
    return thread->stack->current;
}

/* By its instruction, a number within its code. */
static inline dd_call_site_key
py_raw_frame_key(const py_raw_frame *frame)
{
    uintptr_t code = (uintptr_t)frame->code;
    return (dd_call_site_key){.code = code, .instruction = (int32_t)((uintptr_t)frame->instruction - code)};
}

#endif
