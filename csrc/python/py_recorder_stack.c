/* Who called: the stack of Python, as numbers.
 *
 * A frame is known by its code object and the instruction it is at. Code objects that have been seen are kept, so that their addresses
 * stay theirs; in a program that makes more of them than fit, stacks end where a new one comes. */
#include "core/mem.h"
#include "python/py_recorder_internal.h"

#include <dlfcn.h>
#include <string.h>

#define CODE_BUCKETS 16384 /* a power of two */
#define MAX_CODES (CODE_BUCKETS / 2)

bool
py_recorder_init_stacks(py_recorder *self)
{
    /* A pointer to a function is written as one to an object: what POSIX says of dlsym. */
    *(void **)&self->get_back = dlsym(RTLD_DEFAULT, "PyFrame_GetBack");
    *(void **)&self->get_lasti = dlsym(RTLD_DEFAULT, "PyFrame_GetLasti");
    self->codes = self->max_frames > 0 ? dd_mem_zalloc(CODE_BUCKETS * sizeof *self->codes) : NULL;
    return self->max_frames <= 0 || self->codes != NULL;
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

/* One of the frames, which run as long as we hold the GIL: their addresses need no references. */
typedef struct stack_walk {
    size_t count;
    PyFrameObject *frames[DD_STACK_MAX_FRAMES];
    dd_frame_key keys[DD_STACK_MAX_FRAMES];
} stack_walk;

/* Notes the frame, and tells whether it is one that is shown: 1, 0; -1: it cannot be known. */
static int
visit(py_recorder *self, stack_walk *walk, PyFrameObject *frame)
{
    PyObject *code = (PyObject *)PyFrame_GetCode(frame);
    seen_code *seen = find_code(self, code);
    bool is_known = seen->code != NULL || add_code(self, seen, code);
    Py_DECREF(code);
    if (!is_known) {
        return -1;
    }
    walk->frames[walk->count] = frame;
    walk->keys[walk->count++] = (dd_frame_key){
        .code = (uintptr_t)code,
        .instruction = self->get_lasti != NULL ? self->get_lasti(frame) : PyFrame_GetLineNumber(frame)};
    return seen->is_hidden ? 0 : 1;
}

/* False: not even the innermost frame can be known again. */
static bool
walk_stack(py_recorder *self, stack_walk *walk)
{
    int nshown = 0;
    PyFrameObject *frame = PyEval_GetFrame();
    walk->count = 0;
    while (frame != NULL) {
        int shown = visit(self, walk, frame);
        nshown += shown;
        if (shown < 0 || nshown == self->max_frames || walk->count == DD_STACK_MAX_FRAMES ||
            self->get_back == NULL) {
            break;
        }
        frame = self->get_back(frame);
        Py_XDECREF((PyObject *)frame);
    }
    return walk->count > 0;
}

static bool
tell(py_recorder *self, const stack_walk *walk, size_t index)
{
    PyObject *code = (PyObject *)PyFrame_GetCode(walk->frames[index]);
    PyObject *function;
    PyObject *file;
    dd_frame frame = {.function = text_of(code, "co_name", &function),
                      .file = text_of(code, "co_filename", &file),
                      .line = PyFrame_GetLineNumber(walk->frames[index]),
                      .is_hidden = find_code(self, code)->is_hidden};
    bool is_told = dd_call_sites_tell(dd_recorder_call_sites(self->recorder), walk->keys[index], &frame);
    Py_XDECREF(function);
    Py_XDECREF(file);
    Py_DECREF(code);
    return is_told;
}

uint32_t
py_recorder_stack(py_state *state)
{
    py_recorder *self = state->recorder;
    stack_walk walk;
    if (self->max_frames <= 0 || !walk_stack(self, &walk)) {
        return 0;
    }
    dd_call_sites *sites = dd_recorder_call_sites(self->recorder);
    size_t unknown = 0;
    uint32_t stack = dd_call_sites_find(sites, walk.keys, walk.count, &unknown);
    while (stack == 0 && unknown < walk.count && tell(self, &walk, unknown)) {
        stack = dd_call_sites_find(sites, walk.keys, walk.count, &unknown);
    }
    return stack;
}
