#ifndef DD_PYTHON_OBSERVE_RECORDER_INTERNAL_H
#define DD_PYTHON_OBSERVE_RECORDER_INTERNAL_H

#include "python/observe/recorder.h"

/* A code object that has been seen in a stack. */
typedef struct seen_code {
    PyObject *code; /* owned: its address is a key of the call sites. NULL: free */
    bool is_hidden; /* of the package itself */
} seen_code;

/* A stack that was found lately: its frames, innermost first. */
typedef struct seen_stack {
    uint32_t stack; /* of the call sites; 0: free */
    uint16_t nframes;
    bool is_whole; /* the last of them has no caller */
    dd_call_site_key keys[DD_STACK_MAX_FRAMES];
} seen_stack;

/* An attribute of frames. The limited API gives no other way to a frame's caller, and to where it is. */
typedef struct frame_field {
    PyObject *descriptor; /* owned */
    descrgetfunc get;     /* of its type */
} frame_field;

/* Never freed: threads of the core may end works until the process does. */
struct py_recorder {
    uint64_t generation;   /* const; of forks */
    dd_recorder *recorder; /* const */
    int max_frames;        /* const: shown ones of a stack; 0: no stacks */
    char *folder;          /* const: of the package, with a slash at its end; whose frames are hidden */
    size_t folder_len;
    frame_field back;        /* const; f_back */
    frame_field instruction; /* const; f_lasti */
    /* guarded by the GIL */
    seen_code *codes; /* by address */
    size_t ncodes;
    seen_stack *stacks; /* by innermost frame */
};

/* ---- observe/stack.c */

/* False without memory, or with an exception. */
bool py_recorder_init_stacks(py_recorder *self);
/* Of one that has been zeroed, too. */
void py_recorder_fini_stacks(py_recorder *self);

#endif
