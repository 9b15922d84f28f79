#include "python/observe/frames.h"

#define KNOWN_VERSION 0x030Bu /* 3.11, whatever its patch */
#define FRAMES_COMPARED 8

static bool
is_code_of(PyFrameObject *frame, const PyObject *expected)
{
    PyObject *code = (PyObject *)PyFrame_GetCode(frame);
    Py_DECREF(code); /* its frame has it */
    return code == expected;
}

bool
py_raw_frames_are_known(const py_recorder *self)
{
    if (Py_Version >> 16 != KNOWN_VERSION || self->get_back == NULL) {
        return false;
    }
    PyFrameObject *frame = PyEval_GetFrame();
    const py_raw_frame *raw = frame != NULL ? py_raw_frame_current() : NULL;
    for (int i = 0; i < FRAMES_COMPARED && frame != NULL; i++) {
        if (raw == NULL || raw->object != frame || !is_code_of(frame, raw->code)) {
            return false;
        }
        frame = self->get_back(frame);
        Py_XDECREF((PyObject *)frame);
        raw = raw->previous;
    }
    return raw != NULL || frame == NULL;
}
