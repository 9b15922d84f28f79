/* Operands on the host: copy into staging memory before an operation, and out of it afterwards. */
#include "python/call/operands.h"

#include <string.h>

typedef enum interleave_direction {
    INTERLEAVE,
    DEINTERLEAVE,
} interleave_direction;

static void
copy_interleaved(const py_operands *operands, const py_side *side, interleave_direction direction)
{
    uint8_t *interleaved = operands->interleaved;
    for (size_t k = 0; k < side->nblocks; k++) {
        for (size_t i = 0; i < side->npieces; i++) {
            const py_piece *piece = &operands->pieces[side->first + i];
            size_t nbytes = piece->nbytes / side->nblocks;
            if (nbytes == 0) {
                continue;
            }
            uint8_t *part = piece->flat + k * nbytes;
            memcpy(direction == INTERLEAVE ? interleaved : part, direction == INTERLEAVE ? part : interleaved,
                   nbytes);
            interleaved += nbytes;
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
    if (operands->inputs.layout == PY_LAYOUT_INTERLEAVED) {
        copy_interleaved(operands, &operands->inputs, INTERLEAVE);
    }
}

void
py_operands_unpack(py_operands *operands)
{
    if (!operands->is_staged) {
        return;
    }
    if (operands->outputs.layout == PY_LAYOUT_INTERLEAVED) {
        copy_interleaved(operands, &operands->outputs, DEINTERLEAVE);
    }
    for (size_t i = 0; i < operands->npieces; i++) {
        py_piece *piece = &operands->pieces[i];
        if (piece->is_staged && piece->is_output) {
            dd_view_unpack(&piece->tensor.view, piece->flat);
        }
    }
}
