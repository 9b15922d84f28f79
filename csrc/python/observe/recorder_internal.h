#ifndef DD_PYTHON_OBSERVE_RECORDER_INTERNAL_H
#define DD_PYTHON_OBSERVE_RECORDER_INTERNAL_H

#include "python/observe/recorder.h"

/* A code object that was seen in a stack. */
typedef struct seen_code {
    PyObject *code; /* owned; its address is a key of the call sites; NULL if the entry is free */
    bool is_hidden; /* true if the code belongs to the dldist package */
} seen_code;

/* A recently seen stack: its frames, innermost first. */
typedef struct seen_stack {
    uint32_t stack; /* number in the core's table of call sites; 0 if the entry is free */
    uint16_t nframes;
    bool is_whole; /* true if the last frame is the outermost */
    dd_call_site_key keys[DD_STACK_MAX_FRAMES];
} seen_stack;

/* A descriptor of an attribute of frames. With the limited API, a frame's caller and instruction
 * can be read only by such attributes. */
typedef struct frame_field {
    PyObject *descriptor; /* owned: the attribute's descriptor */
    descrgetfunc get;     /* tp_descr_get of the descriptor's type */
} frame_field;

/* The recorder of a process. Never freed, because threads of the core may end works until the
 * process exits. */
struct py_recorder {
    uint64_t generation;   /* const: fork generation in which the recorder was created */
    dd_recorder *recorder; /* const: the core's recorder */
    int max_frames;        /* const: maximum frames of a recorded stack; 0 to record no stacks */
    /* const: the dldist package's folder, with a slash at the end; frames of its code are hidden */
    char *folder;
    size_t folder_len;
    frame_field back;        /* const: how to read f_back, the caller's frame */
    frame_field instruction; /* const: how to read f_lasti, the current instruction */
    py_lock lock;
    /* The fields below are guarded by `lock`. */
    seen_code *codes; /* hash table of code objects with the code's address as key */
    size_t ncodes;
    seen_stack *stacks; /* hash table of recent stacks with the two innermost frames as key */
};

/* Return this process's recorder, or the one inherited from its parent; NULL if there is none. */
static inline py_recorder *
py_recorder_current(const py_state *state)
{
    return PY_ONCE_GET(&state->recorder);
}

/* ---- observe/stack.c */

/* Create the tables and look up the attributes of frames. Return false on failure, without an
 * exception if the tables cannot be allocated. */
bool py_recorder_init_stacks(py_recorder *self);
/* Free the tables, if any. The recorder must have been zeroed or initialised. */
void py_recorder_fini_stacks(py_recorder *self);

#endif
