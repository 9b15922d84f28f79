/* Recording a call's Python stack as a number.
 *
 * A frame is identified by its code object and its current instruction. Code objects that have been
 * seen are kept alive, so that their addresses are not reused. If a program creates more code
 * objects than the table holds, a stack ends at the first new one.
 *
 * A thread reads its own frames without the recorder's lock, which guards only the two tables. */
#include "core/mem.h"
#include "python/observe/recorder_internal.h"

#include <string.h>

#define CODE_BUCKETS 16384 /* must be a power of two */
#define MAX_CODES (CODE_BUCKETS / 2)
#define STACK_BITS 8 /* log2 of the number of recent stacks that are kept */
#define CODES_NBYTES (CODE_BUCKETS * sizeof(seen_code))
#define STACKS_NBYTES (((size_t)1 << STACK_BITS) * sizeof(seen_stack))

/* Look up an attribute of frames once, for use by every call. */
static bool
frame_field_find(PyObject *frame_type, const char *name, frame_field *field)
{
    field->descriptor = frame_type != NULL ? PyObject_GetAttrString(frame_type, name) : NULL;
    if (field->descriptor != NULL) {
        field->get = (descrgetfunc)PyType_GetSlot(Py_TYPE(field->descriptor), Py_tp_descr_get);
    }
    return field->descriptor != NULL;
}

static bool
find_fields(py_recorder *self)
{
    PyObject *types = PyImport_ImportModule("types");
    PyObject *frame_type = types != NULL ? PyObject_GetAttrString(types, "FrameType") : NULL;
    bool is_found = frame_field_find(frame_type, "f_back", &self->back) &&
                    frame_field_find(frame_type, "f_lasti", &self->instruction);
    Py_XDECREF(frame_type);
    Py_XDECREF(types);
    return is_found;
}

bool
py_recorder_init_stacks(py_recorder *self)
{
    if (self->max_frames <= 0) {
        return true;
    }
    if (!find_fields(self)) {
        return false;
    }
    self->codes = dd_mem_map(CODES_NBYTES);
    self->stacks = dd_mem_map(STACKS_NBYTES);
    return self->codes != NULL && self->stacks != NULL;
}

void
py_recorder_fini_stacks(py_recorder *self)
{
    Py_XDECREF(self->back.descriptor);
    Py_XDECREF(self->instruction.descriptor);
    dd_mem_unmap(self->codes, CODES_NBYTES);
    dd_mem_unmap(self->stacks, STACKS_NBYTES);
}

/* Return the code's entry, or for new code a free entry; the table always has a free entry. */
static seen_code *
find_code_locked(const py_recorder *self, const PyObject *code)
{
    size_t index = (size_t)(((uint64_t)(uintptr_t)code * UINT64_C(0x9E3779B97F4A7C15)) >> 40);
    for (;; index++) {
        seen_code *seen = &self->codes[index & (CODE_BUCKETS - 1)];
        if (seen->code == code || seen->code == NULL) {
            return seen;
        }
    }
}

/* Return the code's attribute as UTF-8, or "" if the attribute is not a str. The text is borrowed
 * from *object, which is set to a new reference or to NULL. */
static const char *
code_text(PyObject *code, const char *attribute, PyObject **object)
{
    *object = PyObject_GetAttrString(code, attribute);
    const char *text =
        *object != NULL && PyUnicode_Check(*object) ? PyUnicode_AsUTF8AndSize(*object, NULL) : NULL;
    PyErr_Clear();
    return text != NULL ? text : "";
}

typedef enum code_kind {
    CODE_SHOWN,
    CODE_HIDDEN,  /* code of the dldist package */
    CODE_UNKNOWN, /* code that is not in the table */
} code_kind;

static code_kind
kind_of(const seen_code *seen)
{
    return seen->code == NULL ? CODE_UNKNOWN : seen->is_hidden ? CODE_HIDDEN : CODE_SHOWN;
}

static code_kind
find_code_kind(py_recorder *self, const PyObject *code)
{
    return PY_LOCKED(&self->lock, kind_of(find_code_locked(self, code)));
}

/* Add the code to the table unless another thread has. Return CODE_UNKNOWN if the table is full. */
static code_kind
add_code_locked(py_recorder *self, PyObject *code, bool is_hidden)
{
    seen_code *seen = find_code_locked(self, code);
    if (seen->code == NULL && self->ncodes < MAX_CODES) {
        *seen = (seen_code){.code = Py_NewRef(code), .is_hidden = is_hidden};
        self->ncodes++;
    }
    return kind_of(seen);
}

/* Return the kind of the code, and add new code to the table. Return CODE_UNKNOWN if the code is
 * new and the table is full. */
static code_kind
find_or_add_code(py_recorder *self, PyObject *code)
{
    code_kind kind = find_code_kind(self, code);
    if (kind != CODE_UNKNOWN) {
        return kind;
    }
    PyObject *object;
    const char *file = code_text(code, "co_filename", &object);
    bool is_hidden = self->folder != NULL && strncmp(file, self->folder, self->folder_len) == 0;
    Py_XDECREF(object);
    return PY_LOCKED(&self->lock, add_code_locked(self, code, is_hidden));
}

/* A running frame of this thread, and so without a reference; NULL after the outermost frame. */
typedef struct frame_cursor {
    PyFrameObject *frame;
    dd_call_site_key key;
} frame_cursor;

static PyObject *
frame_field_read(const frame_field *field, PyFrameObject *frame)
{
    return field->get(field->descriptor, (PyObject *)frame, (PyObject *)Py_TYPE((PyObject *)frame));
}

/* Return the index of the frame's instruction, or -1 without an exception if it is unknown. */
static int
read_instruction(const py_recorder *self, PyFrameObject *frame)
{
    PyObject *number = frame_field_read(&self->instruction, frame);
    long instruction = number != NULL ? PyLong_AsLong(number) : -1;
    if (instruction == -1) {
        PyErr_Clear();
    }
    Py_XDECREF(number);
    return (int)instruction;
}

static frame_cursor
cursor_at(const py_recorder *self, PyFrameObject *frame)
{
    if (frame == NULL) {
        return (frame_cursor){.frame = NULL};
    }
    PyObject *code = (PyObject *)PyFrame_GetCode(frame);
    Py_DECREF(code); /* the frame holds a reference to the code */
    return (frame_cursor){
        .frame = frame,
        .key = {.code = (uintptr_t)code, .instruction = read_instruction(self, frame)},
    };
}

static frame_cursor
caller_of(const py_recorder *self, frame_cursor cursor)
{
    PyObject *back = frame_field_read(&self->back, cursor.frame);
    Py_XDECREF(back); /* the running frame holds a reference to its caller's frame */
    if (back == NULL || back == Py_None) {
        PyErr_Clear(); /* if out of memory, CPython returns None with an exception */
        return (frame_cursor){.frame = NULL};
    }
    return cursor_at(self, (PyFrameObject *)back);
}

static void
walk_stack(py_recorder *self, frame_cursor cursor, seen_stack *stack, PyFrameObject **frames)
{
    int nshown = 0;
    stack->nframes = 0;
    for (; cursor.frame != NULL; cursor = caller_of(self, cursor)) {
        code_kind kind = find_or_add_code(self, (PyObject *)cursor.key.code);
        if (kind == CODE_UNKNOWN) {
            break; /* this code is new, and the table of code is full */
        }
        frames[stack->nframes] = cursor.frame;
        stack->keys[stack->nframes++] = cursor.key;
        nshown += kind == CODE_SHOWN ? 1 : 0;
        if (nshown == self->max_frames || stack->nframes == DD_STACK_MAX_FRAMES) {
            break;
        }
    }
    stack->is_whole = cursor.frame == NULL;
}

/* Add a new stack to the core's call sites, with functions, files and lines. Return its number. */
static uint32_t
add_stack(py_recorder *self, const seen_stack *stack, PyFrameObject *const *frames)
{
    dd_call_site sites[DD_STACK_MAX_FRAMES];
    PyObject *texts[2 * DD_STACK_MAX_FRAMES];
    for (size_t i = 0; i < stack->nframes; i++) {
        PyObject *code = (PyObject *)stack->keys[i].code;
        sites[i] = (dd_call_site){.function = code_text(code, "co_name", &texts[2 * i]),
                                  .file = code_text(code, "co_filename", &texts[2 * i + 1]),
                                  .line = PyFrame_GetLineNumber(frames[i]),
                                  .is_hidden = find_code_kind(self, code) == CODE_HIDDEN};
    }
    uint32_t added =
        dd_call_sites_add(dd_recorder_call_sites(self->recorder), stack->keys, sites, stack->nframes);
    for (size_t i = 0; i < 2 * (size_t)stack->nframes; i++) {
        Py_XDECREF(texts[i]);
    }
    return added;
}

static uint32_t
find_stack(py_recorder *self, const seen_stack *stack, PyFrameObject *const *frames)
{
    bool can_add;
    dd_call_sites *sites = dd_recorder_call_sites(self->recorder);
    uint32_t found = dd_call_sites_find(sites, stack->keys, stack->nframes, &can_add);
    return found == 0 && can_add ? add_stack(self, stack, frames) : found;
}

/* ---- recent stacks */

static bool
is_same_site(dd_call_site_key a, dd_call_site_key b)
{
    return a.code == b.code && a.instruction == b.instruction;
}

/* Return the entry for stacks with these two innermost frames, which holds the latest of them. */
static seen_stack *
seen_slot(const py_recorder *self, dd_call_site_key inner, dd_call_site_key outer)
{
    uint64_t mixed = (uint64_t)inner.code + (uint64_t)(uint32_t)inner.instruction * 31 +
                     (uint64_t)outer.code * 5 + (uint64_t)(uint32_t)outer.instruction * 127;
    return &self->stacks[(mixed * UINT64_C(0x9E3779B97F4A7C15)) >> (64 - STACK_BITS)];
}

/* Return true if `cursor` and its callers equal the frames of `stack` after the innermost. */
static bool
has_outer_frames(const py_recorder *self, const seen_stack *stack, frame_cursor cursor)
{
    for (size_t i = 1; i < stack->nframes; i++) {
        if (cursor.frame == NULL || !is_same_site(stack->keys[i], cursor.key)) {
            return false;
        }
        if (i + 1 < stack->nframes || stack->is_whole) {
            cursor = caller_of(self, cursor);
        }
    }
    return !stack->is_whole || cursor.frame == NULL;
}

/* Copy a recent stack from its entry, because reading frames may run Python code that replaces the
 * entry. Return false if the entry has another innermost frame. */
static bool
copy_cached_stack(py_recorder *self, const seen_stack *entry, dd_call_site_key inner, seen_stack *stack)
{
    py_lock_take(&self->lock);
    bool is_cached = entry->stack != 0 && is_same_site(entry->keys[0], inner);
    if (is_cached) {
        stack->stack = entry->stack;
        stack->nframes = entry->nframes;
        stack->is_whole = entry->is_whole;
        memcpy(stack->keys, entry->keys, entry->nframes * sizeof entry->keys[0]);
    }
    py_lock_release(&self->lock);
    return is_cached;
}

uint32_t
py_recorder_stack(py_state *state)
{
    py_recorder *self = py_recorder_current(state);
    frame_cursor inner = cursor_at(self, self->max_frames > 0 ? PyEval_GetFrame() : NULL);
    if (inner.frame == NULL) {
        return 0;
    }
    frame_cursor outer = caller_of(self, inner);
    seen_stack *entry = seen_slot(self, inner.key, outer.frame != NULL ? outer.key : inner.key);
    seen_stack stack;
    if (copy_cached_stack(self, entry, inner.key, &stack) && has_outer_frames(self, &stack, outer)) {
        return stack.stack;
    }
    PyFrameObject *frames[DD_STACK_MAX_FRAMES];
    walk_stack(self, inner, &stack, frames);
    stack.stack = stack.nframes > 0 ? find_stack(self, &stack, frames) : 0;
    if (stack.stack != 0) {
        py_lock_take(&self->lock);
        *entry = stack;
        py_lock_release(&self->lock);
    }
    return stack.stack;
}
