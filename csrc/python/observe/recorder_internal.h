#ifndef DD_PYTHON_OBSERVE_RECORDER_INTERNAL_H
#define DD_PYTHON_OBSERVE_RECORDER_INTERNAL_H

#include "python/observe/recorder.h"

/* A code object that was seen in a stack. */
typedef struct seen_code {
    PyObject *code; /* owned, its address is a key of the call sites; NULL if free */
    bool is_hidden; /* belongs to the dldist package */
} seen_code;

/* A recently seen stack: its frames, innermost first. */
typedef struct seen_stack {
    uint32_t stack; /* number in the call sites; 0 if the entry is free */
    uint16_t nframes;
    bool is_whole; /* the last frame has no caller */
    dd_call_site_key keys[DD_STACK_MAX_FRAMES];
} seen_stack;

/* An attribute of frames: the limited API's only way to a frame's caller and instruction. */
typedef struct frame_field {
    PyObject *descriptor; /* owned */
    descrgetfunc get;     /* tp_descr_get of the descriptor's type */
} frame_field;

/* The recorder. Never freed, because threads of the core may end works until the process exits. */
struct py_recorder {
    uint64_t generation;   /* const; fork generation */
    dd_recorder *recorder; /* const */
    int max_frames;        /* const; number of frames shown of a stack; 0 for no stacks */
    char *folder;          /* const; the package's folder, with a slash; its frames are hidden */
    size_t folder_len;
    frame_field back;        /* const; f_back */
    frame_field instruction; /* const; f_lasti */
    py_lock lock;
    /* The fields below are guarded by `lock`. */
    seen_code *codes; /* hash table by address */
    size_t ncodes;
    seen_stack *stacks; /* hash table by the two innermost frames */
};

/* Return the recorder of this process or of its parent, or NULL if there is none. */
static inline py_recorder *
py_recorder_current(const py_state *state)
{
    return PY_ONCE_GET(&state->recorder);
}

/* ---- observe/stack.c */

/* Create the tables and look up frame attributes. False if out of memory or with an exception. */
bool py_recorder_init_stacks(py_recorder *self);
/* Free the tables. A recorder that has only been zeroed is valid. */
void py_recorder_fini_stacks(py_recorder *self);

#endif
