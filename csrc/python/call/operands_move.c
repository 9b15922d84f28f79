/* Operands on the host: copy into staging memory before an operation, and out of it afterwards. */
#include "python/call/operands.h"

#include <string.h>

typedef enum weave_direction {
    WEAVE,
    UNWEAVE,
} weave_direction;

static void
weave(const py_operands *operands, const py_side *side, weave_direction direction)
{
    uint8_t *woven = operands->woven;
    for (size_t k = 0; k < side->nblocks; k++) {
        for (size_t i = 0; i < side->npieces; i++) {
            const py_piece *piece = &operands->pieces[side->first + i];
            size_t nbytes = piece->nbytes / side->nblocks;
            if (nbytes == 0) {
                continue;
            }
            uint8_t *part = piece->flat + k * nbytes;
            memcpy(direction == WEAVE ? woven : part, direction == WEAVE ? part : woven, nbytes);
            woven += nbytes;
        }
    }
}

void
py_operands_pack(py_operands *operands)
{
    if (!operands->is_staged) {
        return;
    }
    for (size_t i = 0; i < operands->npieces; i++) {
        py_piece *piece = &operands->pieces[i];
        if (piece->is_staged && piece->is_input) {
            dd_view_pack(&piece->tensor.view, piece->flat);
        }
    }
    if (operands->inputs.layout == PY_LAYOUT_WOVEN) {
        weave(operands, &operands->inputs, WEAVE);
    }
}

void
py_operands_unpack(py_operands *operands)
{
    if (!operands->is_staged) {
        return;
    }
    if (operands->outputs.layout == PY_LAYOUT_WOVEN) {
        weave(operands, &operands->outputs, UNWEAVE);
    }
    for (size_t i = 0; i < operands->npieces; i++) {
        py_piece *piece = &operands->pieces[i];
        if (piece->is_staged && piece->is_output) {
            dd_view_unpack(&piece->tensor.view, piece->flat);
        }
    }
}
