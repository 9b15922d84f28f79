#include "python/group/form.h"

#include "core/mem.h"
#include "python/base/error.h"

#include <string.h>

#define SLOT_BITS 4
#define SLOTS (1u << SLOT_BITS)
#define KEY_HEAD 4
#define KEY_WORDS 14 /* maximum words of a key: enough for tensors with ten dimensions in total */

/* The key of a form: calls with equal keys can use the same form. The key includes the method and
 * the root, which determine the sides. */
typedef struct form_key {
    size_t nwords;
    uint64_t words[KEY_WORDS];
} form_key;

/* The location of a block in a piece (one of the call's tensors). */
typedef struct form_block {
    size_t piece;
    size_t offset;
    size_t nbytes;
} form_block;

/* A slot of a group's forms. The group's lock guards `nusers`, and the whole slot while no call
 * uses the form; a form with users is const. */
struct py_form {
    form_key key; /* the key of the call; its nwords is 0 if the slot is free */
    dd_coll_form *core;
    int nusers; /* number of unfinished calls that use the form */
    size_t ninputs;
    size_t nblocks;
    form_block *blocks; /* owned: location of each block */
};

struct py_forms {
    py_form slots[SLOTS];
};

/* Compute the key of the call. Return false, without an exception, if the key is too long. */
static bool
fill_key(const py_group_call *call, form_key *key)
{
    const py_operands *operands = call->operands;
    uint64_t kinds = operands->npieces;
    size_t nwords = KEY_HEAD;
    for (size_t i = 0; i < operands->npieces; i++) {
        const dd_view *view = &operands->pieces[i].tensor.view;
        if (nwords + (size_t)view->ndim > KEY_WORDS) {
            return false;
        }
        kinds = kinds << 16 | (uint64_t)view->ndim << 8 | (uint64_t)view->dtype;
        for (int k = 0; k < view->ndim; k++) {
            key->words[nwords++] = (uint64_t)view->shape[k];
        }
    }
    key->words[0] = (uintptr_t)call->params;
    key->words[1] = (uint64_t)call->reduction.op << 32 | (uint32_t)call->root;
    memcpy(&key->words[2], &call->reduction.factor, sizeof key->words[2]);
    key->words[3] = kinds;
    key->nwords = nwords;
    return true;
}

static py_form *
form_slot(py_forms *forms, const form_key *key)
{
    uint64_t mixed = key->words[0] / 16;
    for (size_t i = 1; i < key->nwords; i++) {
        mixed = mixed * 31 + key->words[i];
    }
    return &forms->slots[mixed * UINT64_C(0x9E3779B97F4A7C15) >> (64 - SLOT_BITS)];
}

static bool
form_key_is_equal(const form_key *a, const form_key *b)
{
    for (size_t i = 0; i < b->nwords; i++) {
        if (a->words[i] != b->words[i]) {
            return false;
        }
    }
    return a->nwords == b->nwords;
}

/* Return true if the tensors are few, not split by sizes, not staged, of a dd_dtype, and do not
 * overlap. */
static bool
are_plain(const py_operands *operands)
{
    const py_piece *pieces = operands->pieces;
    if (operands->npieces > PY_INLINE_PIECES || operands->inputs.sizes != NULL ||
        operands->outputs.sizes != NULL) {
        return false;
    }
    for (size_t i = 0; i < operands->npieces; i++) {
        if (pieces[i].is_staged || pieces[i].nbytes == 0 || pieces[i].tensor.foreign_dtype != 0) {
            return false;
        }
    }
    return operands->npieces < 2 || pieces[0].flat + pieces[0].nbytes <= pieces[1].flat ||
           pieces[1].flat + pieces[1].nbytes <= pieces[0].flat;
}

/* Find the form with this key and count the caller as a user. Return NULL if there is no form. */
static py_form *
form_find_locked(py_forms *forms, const form_key *key)
{
    py_form *form = forms != NULL ? form_slot(forms, key) : NULL;
    if (form == NULL || !form_key_is_equal(&form->key, key)) {
        return NULL;
    }
    form->nusers++;
    return form;
}

py_form *
py_form_acquire(py_group_call *call, dd_coll_args *args)
{
    form_key key;
    py_operands *operands = call->operands;
    if (!are_plain(operands) || !fill_key(call, &key)) {
        return NULL;
    }
    py_form *form = PY_LOCKED(&call->group->lock, form_find_locked(call->group->forms, &key));
    if (form == NULL) {
        return NULL;
    }
    if (!py_operands_reserve_blocks(operands, form->nblocks)) {
        py_form_release(call->group, form);
        return NULL;
    }
    for (size_t i = 0; i < form->nblocks; i++) {
        const form_block *block = &form->blocks[i];
        operands->blocks[i] =
            (dd_block){.data = operands->pieces[block->piece].flat + block->offset, .nbytes = block->nbytes};
    }
    args->inputs = operands->blocks;
    args->outputs = operands->blocks + form->ninputs;
    return form;
}

/* Describe the call's blocks in the form. Return false, without an exception, if a block is not in
 * a piece or memory ran out. */
static bool
find_blocks(const py_operands *operands, py_form *form)
{
    form->ninputs = operands->inputs.nblocks;
    form->nblocks = operands->inputs.nblocks + operands->outputs.nblocks;
    form->blocks = operands->is_staged ? NULL : dd_mem_alloc_array(form->nblocks + 1, sizeof *form->blocks);
    if (form->blocks == NULL) {
        return false;
    }
    for (size_t i = 0; i < form->nblocks; i++) {
        const py_side *side = i < form->ninputs ? &operands->inputs : &operands->outputs;
        size_t index = i < form->ninputs ? i : i - form->ninputs;
        size_t piece = side->first + (side->layout == PY_LAYOUT_EACH ? index : 0);
        const dd_block *block = &operands->blocks[i];
        size_t offset = (size_t)((const uint8_t *)block->data - operands->pieces[piece].flat);
        form->blocks[i] = (form_block){.piece = piece, .offset = offset, .nbytes = block->nbytes};
    }
    return true;
}

static void
form_fini(py_form *form)
{
    dd_coll_form_destroy(form->core);
    dd_mem_free(form->blocks);
}

/* Swap `made` with the form in the slot for the key of `made`, and return the slot. Return NULL if
 * the form in the slot has users or memory ran out. */
static py_form *
swap_slot_locked(py_group *group, py_form *made)
{
    if (group->forms == NULL) {
        group->forms = dd_mem_zalloc(sizeof *group->forms);
    }
    py_form *slot = group->forms != NULL ? form_slot(group->forms, &made->key) : NULL;
    if (slot == NULL || slot->nusers > 0) {
        return NULL;
    }
    py_form before = *slot;
    *slot = *made;
    *made = before;
    return slot;
}

py_form *
py_form_make(py_group_call *call, const dd_coll_args *args)
{
    py_form made = {.nusers = 1};
    if (!are_plain(call->operands) || !fill_key(call, &made.key) || !find_blocks(call->operands, &made)) {
        return NULL;
    }
    py_record record;
    dd_error err;
    /* py_record_collective may run Python code that uses the slots: choose the slot afterwards. */
    dd_record_call *record_call =
        py_record_collective(&record, call->group->state, args->coll, call->operands);
    dd_status status = dd_coll_form_create(call->group->group, args, record_call, &made.core, &err);
    bool is_made = py_error_check_of_group(call->group->state, status, &err);
    py_form *slot = is_made ? PY_LOCKED(&call->group->lock, swap_slot_locked(call->group, &made)) : NULL;
    form_fini(&made); /* free the replaced form, or the new form if it got no slot */
    return slot;
}

void
py_form_release(py_group *group, py_form *form)
{
    if (form != NULL) {
        py_lock_take(&group->lock);
        form->nusers--;
        py_lock_release(&group->lock);
    }
}

const dd_coll_form *
py_form_core(const py_form *form)
{
    return form != NULL ? form->core : NULL;
}

void
py_forms_destroy(py_forms *forms)
{
    for (size_t i = 0; forms != NULL && i < SLOTS; i++) {
        form_fini(&forms->slots[i]);
    }
    dd_mem_free(forms);
}
