#ifndef DD_PYTHON_OBSERVE_RECORDER_INTERNAL_H
#define DD_PYTHON_OBSERVE_RECORDER_INTERNAL_H

#include "python/observe/recorder.h"

/* A code object that has been seen in a stack. */
typedef struct seen_code {
    PyObject *code; /* owned, because its address is a key of the call sites; NULL: free */
    bool is_hidden; /* it belongs to the package itself */
} seen_code;

/* A stack that was seen lately: its frames, innermost first. */
typedef struct seen_stack {
    uint32_t stack; /* its number in the call sites; 0: free */
    uint16_t nframes;
    bool is_whole; /* the last frame has no caller */
    dd_call_site_key keys[DD_STACK_MAX_FRAMES];
} seen_stack;

/* An attribute of frames. The limited API has no other way to get a frame's caller and its instruction. */
typedef struct frame_field {
    PyObject *descriptor; /* owned */
    descrgetfunc get;     /* of the descriptor's type */
} frame_field;

/* Never freed, because threads of the core may end works until the process ends. */
struct py_recorder {
    uint64_t generation;   /* const; of forks */
    dd_recorder *recorder; /* const */
    int max_frames;        /* const: how many frames of a stack are shown; 0: no stacks */
    char *folder;          /* const: the package's folder, with a slash at the end; its frames are hidden */
    size_t folder_len;
    frame_field back;        /* const; f_back */
    frame_field instruction; /* const; f_lasti */
    py_lock lock;
    /* guarded by the lock */
    seen_code *codes; /* hashed by address */
    size_t ncodes;
    seen_stack *stacks; /* hashed by their two innermost frames */
};

/* The recorder of this process or of its parent; NULL if there is none. */
static inline py_recorder *
py_recorder_current(const py_state *state)
{
    return PY_ONCE_GET(&state->recorder);
}

/* ---- observe/stack.c */

/* Makes the tables, and looks up the attributes of frames. False if memory runs out, or with an exception. */
bool py_recorder_init_stacks(py_recorder *self);
/* Accepts a recorder that has only been zeroed, too. */
void py_recorder_fini_stacks(py_recorder *self);

#endif
