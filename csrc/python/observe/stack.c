/* Who called: the stack of Python, as numbers.
 *
 * A frame is known by its code object and the instruction it is at. Code objects that have been seen are kept, so that their addresses
 * stay theirs; in a program that makes more of them than fit, stacks end where a new one comes. */
#include "core/mem.h"
#include "python/observe/frames.h"

#include <dlfcn.h>
#include <string.h>

#define CODE_BUCKETS 16384 /* a power of two */
#define MAX_CODES (CODE_BUCKETS / 2)
#define STACK_BITS 8 /* of how many stacks are found without looking at all their code objects */
#define CODES_NBYTES (CODE_BUCKETS * sizeof(seen_code))
#define STACKS_NBYTES (((size_t)1 << STACK_BITS) * sizeof(seen_stack))

bool
py_recorder_init_stacks(py_recorder *self)
{
    /* A pointer to a function is written as one to an object: what POSIX says of dlsym. */
    *(void **)&self->get_back = dlsym(RTLD_DEFAULT, "PyFrame_GetBack");
    *(void **)&self->get_lasti = dlsym(RTLD_DEFAULT, "PyFrame_GetLasti");
    if (self->max_frames <= 0) {
        return true;
    }
    self->has_raw_frames = py_raw_frames_are_known(self);
    self->codes = dd_mem_map(CODES_NBYTES);
    self->stacks = dd_mem_map(STACKS_NBYTES);
    return self->codes != NULL && self->stacks != NULL;
}

void
py_recorder_fini_stacks(py_recorder *self)
{
    dd_mem_unmap(self->codes, CODES_NBYTES);
    dd_mem_unmap(self->stacks, STACKS_NBYTES);
}

/* The entry of the code, or the free one where it belongs. There is always one. */
static seen_code *
find_code(const py_recorder *self, const PyObject *code)
{
    size_t place = (size_t)(((uint64_t)(uintptr_t)code * UINT64_C(0x9E3779B97F4A7C15)) >> 40);
    for (;; place++) {
        seen_code *seen = &self->codes[place & (CODE_BUCKETS - 1)];
        if (seen->code == code || seen->code == NULL) {
            return seen;
        }
    }
}

/* UTF-8 (borrowed from *object, which is the caller's); "" when there is none. */
static const char *
text_of(PyObject *code, const char *attribute, PyObject **object)
{
    *object = PyObject_GetAttrString(code, attribute);
    const char *text =
        *object != NULL && PyUnicode_Check(*object) ? PyUnicode_AsUTF8AndSize(*object, NULL) : NULL;
    PyErr_Clear();
    return text != NULL ? text : "";
}

/* False: there is no room. */
static bool
add_code(py_recorder *self, seen_code *seen, PyObject *code)
{
    if (self->ncodes == MAX_CODES) {
        return false;
    }
    PyObject *object;
    const char *file = text_of(code, "co_filename", &object);
    seen->is_hidden = self->folder != NULL && strncmp(file, self->folder, self->folder_len) == 0;
    seen->code = Py_NewRef(code);
    self->ncodes++;
    Py_XDECREF(object);
    return true;
}

/* The frames of a thread, from the innermost on. They run for as long as we hold the GIL, and need no references. */
typedef struct frame_cursor {
    const py_raw_frame *raw; /* NULL: at the end */
    PyFrameObject *object;   /* the same, where raw frames are not known */
} frame_cursor;

static frame_cursor
innermost_frame(const py_recorder *self)
{
    if (self->has_raw_frames) {
        return (frame_cursor){.raw = py_raw_frame_current()};
    }
    return (frame_cursor){.object = PyEval_GetFrame()};
}

static bool
is_at_end(const frame_cursor *cursor)
{
    return cursor->raw == NULL && cursor->object == NULL;
}

static void
move_back(const py_recorder *self, frame_cursor *cursor)
{
    if (cursor->raw != NULL) {
        cursor->raw = cursor->raw->previous;
        return;
    }
    cursor->object = self->get_back != NULL ? self->get_back(cursor->object) : NULL;
    Py_XDECREF((PyObject *)cursor->object);
}

static dd_call_site_key
key_of(const py_recorder *self, const frame_cursor *cursor)
{
    if (cursor->raw != NULL) {
        return py_raw_frame_key(cursor->raw);
    }
    PyObject *code = (PyObject *)PyFrame_GetCode(cursor->object);
    Py_DECREF(code); /* its frame has it */
    return (dd_call_site_key){.code = (uintptr_t)code,
                              .instruction = self->get_lasti != NULL ? self->get_lasti(cursor->object)
                                                                     : PyFrame_GetLineNumber(cursor->object)};
}

/* Adds the frame, and tells whether it is one that is shown: 1, 0; -1: it cannot be known. */
static int
visit(py_recorder *self, seen_stack *stack, dd_call_site_key key)
{
    PyObject *code = (PyObject *)key.code;
    seen_code *seen = find_code(self, code);
    if (seen->code == NULL && !add_code(self, seen, code)) {
        return -1;
    }
    stack->keys[stack->nframes++] = key;
    return seen->is_hidden ? 0 : 1;
}

static void
walk_stack(py_recorder *self, frame_cursor cursor, seen_stack *stack)
{
    int nshown = 0;
    stack->nframes = 0;
    for (; !is_at_end(&cursor); move_back(self, &cursor)) {
        int shown = visit(self, stack, key_of(self, &cursor));
        nshown += shown;
        if (shown < 0 || nshown == self->max_frames || stack->nframes == DD_STACK_MAX_FRAMES) {
            break;
        }
    }
    stack->is_whole = is_at_end(&cursor);
}

static bool
is_key(dd_call_site_key a, dd_call_site_key b)
{
    return a.code == b.code && a.instruction == b.instruction;
}

/* The object of a frame of the stack; NULL: the interpreter does not show it (it is being entered). */
static PyFrameObject *
find_object(const py_recorder *self, const seen_stack *stack, size_t index)
{
    frame_cursor cursor = {.object = PyEval_GetFrame()};
    for (size_t i = 0; !is_at_end(&cursor) && i <= index; i++) {
        bool is_same = key_of(self, &cursor).code == stack->keys[i].code;
        if (i == index) {
            return is_same ? cursor.object : NULL;
        }
        if (is_same) {
            move_back(self, &cursor);
        }
    }
    return NULL;
}

/* Tells what the frames of a new stack are. */
static uint32_t
tell(py_recorder *self, const seen_stack *stack)
{
    dd_call_site frames[DD_STACK_MAX_FRAMES];
    PyObject *texts[2 * DD_STACK_MAX_FRAMES];
    for (size_t i = 0; i < stack->nframes; i++) {
        PyFrameObject *shown = find_object(self, stack, i);
        PyObject *code = (PyObject *)stack->keys[i].code;
        frames[i] = (dd_call_site){.function = text_of(code, "co_name", &texts[2 * i]),
                                   .file = text_of(code, "co_filename", &texts[2 * i + 1]),
                                   .line = shown != NULL ? PyFrame_GetLineNumber(shown) : 0,
                                   .is_hidden = shown == NULL || find_code(self, code)->is_hidden};
    }
    uint32_t added =
        dd_call_sites_add(dd_recorder_call_sites(self->recorder), stack->keys, frames, stack->nframes);
    for (size_t i = 0; i < 2 * (size_t)stack->nframes; i++) {
        Py_XDECREF(texts[i]);
    }
    return added;
}

static uint32_t
look_up(py_recorder *self, const seen_stack *stack)
{
    bool can_add;
    dd_call_sites *sites = dd_recorder_call_sites(self->recorder);
    uint32_t found = dd_call_sites_find(sites, stack->keys, stack->nframes, &can_add);
    return found == 0 && can_add ? tell(self, stack) : found;
}

/* Where a stack with these two innermost frames is kept: the one that came last. */
static seen_stack *
place_of(const py_recorder *self, dd_call_site_key inner, dd_call_site_key outer)
{
    uint64_t mixed = (uint64_t)inner.code + (uint64_t)(uint32_t)inner.instruction * 31 +
                     (uint64_t)outer.code * 5 + (uint64_t)(uint32_t)outer.instruction * 127;
    return &self->stacks[(mixed * UINT64_C(0x9E3779B97F4A7C15)) >> (64 - STACK_BITS)];
}

/* The frames are those of the stack, and end where it does. `is_raw` is constant where this is called: the loop of raw frames is a
 * few instructions a frame. */
static inline bool
is_stack_of(const py_recorder *self, const seen_stack *stack, frame_cursor cursor, bool is_raw)
{
    for (size_t i = 0; i < stack->nframes; i++) {
        if (is_at_end(&cursor) ||
            !is_key(stack->keys[i], is_raw ? py_raw_frame_key(cursor.raw) : key_of(self, &cursor))) {
            return false;
        }
        if (is_raw) {
            cursor.raw = cursor.raw->previous;
        } else {
            move_back(self, &cursor);
        }
    }
    return !stack->is_whole || is_at_end(&cursor);
}

/* The stack that was there last with these innermost frames, in its place. */
static seen_stack *
find_kept(const py_recorder *self, frame_cursor innermost, bool *is_same)
{
    if (innermost.raw != NULL) {
        const py_raw_frame *outer = innermost.raw->previous;
        dd_call_site_key inner_key = py_raw_frame_key(innermost.raw);
        seen_stack *kept = place_of(self, inner_key, outer != NULL ? py_raw_frame_key(outer) : inner_key);
        *is_same = kept->stack != 0 && is_stack_of(self, kept, innermost, true);
        return kept;
    }
    frame_cursor outer = innermost;
    dd_call_site_key inner_key = key_of(self, &innermost);
    move_back(self, &outer);
    seen_stack *kept = place_of(self, inner_key, is_at_end(&outer) ? inner_key : key_of(self, &outer));
    *is_same = kept->stack != 0 && is_stack_of(self, kept, innermost, false);
    return kept;
}

uint32_t
py_recorder_stack(py_state *state)
{
    py_recorder *self = state->recorder;
    if (self->max_frames <= 0) {
        return 0;
    }
    frame_cursor innermost = innermost_frame(self);
    if (is_at_end(&innermost)) {
        return 0;
    }
    bool is_same;
    seen_stack *kept = find_kept(self, innermost, &is_same);
    if (is_same) {
        return kept->stack;
    }
    /* Telling what a frame is may run Python, and another thread: the place is written at once. */
    seen_stack stack;
    walk_stack(self, innermost, &stack);
    stack.stack = stack.nframes > 0 ? look_up(self, &stack) : 0;
    if (stack.stack != 0) {
        *kept = stack;
    }
    return stack.stack;
}
