/* The ring. */
#include "observe/recorder_internal.h"

#include "core/lock.h"
#include "core/mem.h"
#include "core/thread.h"

#include <pthread.h>
#include <string.h>

#define LINE_NBYTES 64 /* of the cache */
#define MAX_CAPACITY ((size_t)1 << 24)
/* Of call sites: a program that runs through more is generating code. */
#define MAX_FRAMES 8192
#define MAX_STACKS 8192

_Static_assert(sizeof(record_body) % sizeof(uint64_t) == 0, "a body is a number of words");
_Static_assert(sizeof(record_slot) == 256, "a slot is four lines of the cache");

static size_t
ring_nbytes(const dd_recorder *recorder)
{
    return ((size_t)recorder->mask + 1) * sizeof *recorder->ring;
}

static dd_status
make_ring(dd_recorder *recorder, dd_error *err)
{
    size_t nslots = 1;
    while (nslots < recorder->capacity) {
        nslots *= 2;
    }
    recorder->mask = nslots - 1;
    recorder->ring = dd_mem_map(ring_nbytes(recorder));
    return recorder->ring != NULL ? DD_OK : dd_error_no_memory(err, ring_nbytes(recorder));
}

dd_status
dd_recorder_create(size_t capacity, dd_recorder **recorder, dd_error *err)
{
    dd_recorder *self = dd_mem_map(sizeof *self);
    if (self == NULL) {
        return dd_error_no_memory(err, sizeof *self);
    }
    self->capacity = capacity < MAX_CAPACITY ? capacity : MAX_CAPACITY;
    dd_list_init(&self->groups);
    dd_lock_init(&self->threads_mu, DD_LOCK_RECORDER_THREADS);
    dd_lock_init(&self->groups_mu, DD_LOCK_RECORDER_GROUPS);
    dd_lock_init(&self->errors_mu, DD_LOCK_RECORDER_ERRORS);
    dd_lock_init(&self->alarms_mu, DD_LOCK_RECORDER_ALARMS);
    dd_cond_init(&self->alarms_cond);
    dd_status status = dd_call_sites_create(MAX_FRAMES, MAX_STACKS, &self->sites, err);
    if (status == DD_OK && self->capacity > 0) {
        status = make_ring(self, err);
    }
    if (status != DD_OK) {
        dd_recorder_destroy(self);
        return status;
    }
    *recorder = self;
    return DD_OK;
}

void
dd_recorder_destroy(dd_recorder *recorder)
{
    if (recorder == NULL) {
        return;
    }
    recorder_destroy_groups(recorder);
    dd_call_sites_destroy(recorder->sites);
    dd_mem_unmap(recorder->ring, ring_nbytes(recorder));
    dd_cond_fini(&recorder->alarms_cond);
    dd_lock_fini(&recorder->alarms_mu);
    dd_lock_fini(&recorder->errors_mu);
    dd_lock_fini(&recorder->groups_mu);
    dd_lock_fini(&recorder->threads_mu);
    dd_mem_unmap(recorder, sizeof *recorder);
}

size_t
dd_recorder_capacity(const dd_recorder *recorder)
{
    return recorder->capacity;
}

dd_call_sites *
dd_recorder_call_sites(dd_recorder *recorder)
{
    return recorder->sites;
}

void
dd_recorder_reset(dd_recorder *recorder)
{
    atomic_store_explicit(&recorder->base, atomic_load_explicit(&recorder->last, memory_order_relaxed),
                          memory_order_relaxed);
    dd_lock_take(&recorder->groups_mu);
    recorder_sweep_groups_locked(recorder);
    dd_lock_release(&recorder->groups_mu);
}

/* ---- tensors into words */

/* True when it has found room. */
static bool
pack_tensor(const dd_record_tensor *tensor, uint64_t *words, size_t *used)
{
    size_t nwords = 1 + (size_t)tensor->ndim;
    if (*used + nwords > RECORD_TENSOR_WORDS) {
        return false;
    }
    tensor_head head = {.dtype = (uint8_t)tensor->dtype,
                        .ndim = (uint8_t)tensor->ndim,
                        .is_stacked = tensor->is_stacked,
                        .count = tensor->count > 0 ? tensor->count : 1};
    memcpy(&words[*used], &head, sizeof head);
    for (int i = 0; i < tensor->ndim; i++) {
        words[*used + 1 + (size_t)i] = (uint64_t)tensor->shape[i];
    }
    *used += nwords;
    return true;
}

/* Returns how many tensors found no room: once one has not, those after it neither. */
static uint32_t
pack_tensors(const dd_record_tensor *tensors, size_t ntensors, uint64_t *words, size_t *used)
{
    uint32_t nleft_out = 0;
    for (size_t i = 0; i < ntensors; i++) {
        if (nleft_out > 0 || !pack_tensor(&tensors[i], words, used)) {
            nleft_out += tensors[i].is_stacked || tensors[i].count == 0 ? 1 : tensors[i].count;
        }
    }
    return nleft_out;
}

static void
pack_call(const dd_record_call *call, record_body *body)
{
    size_t used = 0;
    body->name = call->name;
    body->stack = call->stack;
    body->created_ns = call->created_ns;
    body->timeout_ns = call->timeout_ns;
    body->is_p2p = call->is_p2p;
    body->ninputs_left_out =
        pack_tensors(call->inputs, call->ninputs, body->tensors, &used) + call->ninputs_more;
    body->ninput_words = (uint8_t)used;
    body->is_in_place = call->outputs == call->inputs && call->noutputs == call->ninputs;
    if (body->is_in_place) {
        body->noutputs_left_out = body->ninputs_left_out;
        body->noutput_words = 0;
        return;
    }
    body->noutputs_left_out =
        pack_tensors(call->outputs, call->noutputs, body->tensors, &used) + call->noutputs_more;
    body->noutput_words = (uint8_t)(used - body->ninput_words);
}

/* ---- slots */

static record_slot *
slot_of(const dd_recorder *recorder, uint64_t record)
{
    return &recorder->ring[record & recorder->mask];
}

/* Makes the owner odd, from that of an older record. False: a newer one is there already. */
static bool
take_slot(record_slot *slot, uint64_t record)
{
    uint64_t owner = atomic_load_explicit(&slot->owner, memory_order_relaxed);
    while (owner < 2 * record) {
        /* Whoever is writing an older one is about to be done: the writer may have lost its core. */
        uint64_t even = owner & ~UINT64_C(1);
        if (atomic_compare_exchange_weak_explicit(&slot->owner, &even, 2 * record + 1, memory_order_acquire,
                                                  memory_order_relaxed)) {
            return true;
        }
        owner = even;
    }
    return false;
}

/* The slot of a record that is still there, to be written; NULL: it has been overwritten. release_slot gives it back. */
static record_slot *
lock_record(const dd_recorder *recorder, uint64_t record)
{
    if (record == DD_NO_RECORD) {
        return NULL;
    }
    record_slot *slot = slot_of(recorder, record);
    uint64_t owner = 2 * record;
    while (!atomic_compare_exchange_weak_explicit(&slot->owner, &owner, 2 * record + 1, memory_order_acquire,
                                                  memory_order_relaxed)) {
        if ((owner | 1) != 2 * record + 1) {
            return NULL;
        }
        owner = 2 * record;
    }
    return slot;
}

static void
release_slot(record_slot *slot, uint64_t record)
{
    atomic_store_explicit(&slot->owner, 2 * record, memory_order_release);
}

/* One that has not been touched for a whole round: the lines that a call with a tensor or two writes. */
static void
prefetch_slot(const record_slot *slot)
{
    const char *lines = (const char *)slot;
    __builtin_prefetch(lines, 1);
    __builtin_prefetch(lines + LINE_NBYTES, 1);
    __builtin_prefetch(lines + 2 * LINE_NBYTES, 1);
}

/* Release, word by word: none of them is seen before the owner is odd. */
static void
store_body(record_slot *slot, const record_body *body)
{
    size_t used =
        offsetof(record_body, tensors) / sizeof(uint64_t) + body->ninput_words + body->noutput_words;
    const uint64_t *words = (const uint64_t *)(const void *)body;
    for (size_t i = 0; i < used; i++) {
        uint64_t word;
        memcpy(&word, &words[i], sizeof word);
        atomic_store_explicit(&slot->words[i], word, memory_order_release);
    }
}

/* A word of a slot that is ours, or whose record is known to be there still. */
static uint64_t
word_at(record_slot *slot, size_t offset)
{
    return atomic_load_explicit(&slot->words[offset / sizeof(uint64_t)], memory_order_relaxed);
}

static dd_recorder_group *
group_of(record_slot *slot)
{
    _Static_assert(sizeof(dd_recorder_group *) == sizeof(uint64_t), "a pointer is a word");
    uint64_t word = word_at(slot, offsetof(record_body, group));
    return (dd_recorder_group *)(uintptr_t)word; /* no address from a number: it was one before */
}

static uint64_t
sequence_of(record_slot *slot)
{
    return word_at(slot, offsetof(record_body, ncollectives));
}

static const char *
name_of(record_slot *slot)
{
    return (const char *)(uintptr_t)word_at(slot, offsetof(record_body, name));
}

static bool
is_p2p(record_slot *slot)
{
    return atomic_load_explicit(&slot->peer, memory_order_relaxed) != NO_PEER;
}

/* ---- the life of a record */

/* Without the bus: calls on a group follow one another. */
static uint64_t
count_one(_Atomic(uint64_t) *counter)
{
    uint64_t count = atomic_load_explicit(counter, memory_order_relaxed) + 1;
    atomic_store_explicit(counter, count, memory_order_relaxed);
    return count;
}

static void
count_call(dd_recorder_group *group, record_body *body)
{
    if (body->is_p2p) {
        body->nmessages = count_one(&group->nmessages);
        body->ncollectives = atomic_load_explicit(&group->ncollectives, memory_order_relaxed);
    } else {
        body->ncollectives = count_one(&group->ncollectives);
        body->nmessages = atomic_load_explicit(&group->nmessages, memory_order_relaxed);
        atomic_store_explicit(&group->last_enqueued_name, body->name, memory_order_relaxed);
    }
}

static void
note_started(dd_recorder_group *group, uint64_t sequence, const char *name)
{
    atomic_store_explicit(&group->last_started, sequence, memory_order_relaxed);
    atomic_store_explicit(&group->last_started_name, name, memory_order_relaxed);
}

/* Counts the call, and tells how far the group is. */
static void
count_begun(dd_recorder_group *group, record_body *body, bool is_started)
{
    count_call(group, body);
    if (is_started && !body->is_p2p) {
        note_started(group, body->ncollectives, body->name);
    }
}

/* A new record of a body that has been packed and counted. */
static uint64_t
write_record(dd_recorder_group *group, record_body *body, int64_t started_ns, int peer)
{
    dd_recorder *recorder = group->recorder;
    body->group = group;
    body->group_uid = group->uid;
    body->unused = 0;
    body->thread = (uint64_t)dd_thread_self();
    recorder_note_thread(recorder, body->thread);
    uint64_t record = atomic_fetch_add_explicit(&recorder->last, 1, memory_order_relaxed) + 1;
    atomic_store_explicit(&group->last_record, record, memory_order_relaxed);
    record_slot *slot = slot_of(recorder, record);
    if (take_slot(slot, record)) {
        prefetch_slot(slot_of(recorder, record + 1));
        atomic_store_explicit(&slot->started_ns, started_ns, memory_order_release);
        atomic_store_explicit(&slot->ended_ns, 0, memory_order_release);
        atomic_store_explicit(&slot->code, DD_OK, memory_order_release);
        atomic_store_explicit(&slot->peer, peer, memory_order_release);
        store_body(slot, body);
        release_slot(slot, record);
    }
    return record;
}

uint64_t
dd_recorder_begin(dd_recorder_group *group, const dd_record_call *call)
{
    record_body body;
    body.is_p2p = call->is_p2p;
    body.name = call->name;
    count_begun(group, &body, call->is_started);
    if (group->recorder->capacity == 0) {
        return DD_NO_RECORD;
    }
    pack_call(call, &body);
    return write_record(group, &body, call->is_started ? call->created_ns : 0,
                        call->is_p2p ? call->peer : NO_PEER);
}

dd_status
dd_record_form_create(const dd_record_call *call, dd_record_form **form, dd_error *err)
{
    dd_record_form *made = dd_mem_zalloc(sizeof *made);
    if (made == NULL) {
        return dd_error_no_memory(err, sizeof *made);
    }
    pack_call(call, &made->body);
    *form = made;
    return DD_OK;
}

void
dd_record_form_destroy(dd_record_form *form)
{
    dd_mem_free(form);
}

uint64_t
dd_recorder_begin_form(dd_recorder_group *group, const dd_record_form *form, uint32_t stack,
                       const dd_record_times *times)
{
    record_body body;
    size_t nwords = (size_t)form->body.ninput_words + form->body.noutput_words;
    memcpy(&body, &form->body, offsetof(record_body, tensors) + nwords * sizeof body.tensors[0]);
    count_begun(group, &body, times->is_started);
    if (group->recorder->capacity == 0) {
        return DD_NO_RECORD;
    }
    body.stack = stack;
    body.created_ns = times->created_ns;
    body.timeout_ns = times->timeout_ns;
    return write_record(group, &body, times->is_started ? times->created_ns : 0, NO_PEER);
}

void
dd_recorder_withdraw(dd_recorder *recorder, uint64_t record)
{
    record_slot *slot = lock_record(recorder, record);
    if (slot == NULL) {
        return;
    }
    dd_recorder_group *group = group_of(slot);
    _Atomic(uint64_t) *counter = is_p2p(slot) ? &group->nmessages : &group->ncollectives;
    atomic_fetch_sub_explicit(counter, 1, memory_order_relaxed);
    atomic_store_explicit(&slot->code, WITHDRAWN, memory_order_release);
    atomic_store_explicit(&slot->ended_ns, 1, memory_order_release);
    release_slot(slot, record);
}

void
dd_recorder_start(dd_recorder *recorder, uint64_t record, int64_t now_ns)
{
    record_slot *slot = lock_record(recorder, record);
    if (slot == NULL) {
        return;
    }
    bool is_first = atomic_load_explicit(&slot->started_ns, memory_order_relaxed) == 0 &&
                    atomic_load_explicit(&slot->ended_ns, memory_order_relaxed) == 0;
    if (is_first) {
        atomic_store_explicit(&slot->started_ns, now_ns, memory_order_release);
    }
    if (is_first && !is_p2p(slot)) {
        note_started(group_of(slot), sequence_of(slot), name_of(slot));
    }
    release_slot(slot, record);
}

void
dd_recorder_set_peer(dd_recorder *recorder, uint64_t record, int peer)
{
    record_slot *slot = lock_record(recorder, record);
    if (slot != NULL) {
        if (is_p2p(slot)) {
            atomic_store_explicit(&slot->peer, peer, memory_order_release);
        }
        release_slot(slot, record);
    }
}

/* Before the record tells that it has failed. */
static void
keep_error(dd_recorder *recorder, uint64_t record, const dd_error *error)
{
    dd_lock_take(&recorder->errors_mu);
    kept_error *kept = &recorder->errors[recorder->nerrors++ % ERRORS_KEPT];
    kept->record = record;
    kept->error = *error;
    dd_lock_release(&recorder->errors_mu);
}

void
dd_recorder_end(dd_recorder *recorder, uint64_t record, int64_t now_ns, const dd_error *error)
{
    record_slot *slot = lock_record(recorder, record);
    if (slot == NULL) {
        return;
    }
    if (atomic_load_explicit(&slot->ended_ns, memory_order_relaxed) == 0) {
        if (error != NULL) {
            keep_error(recorder, record, error);
            atomic_store_explicit(&slot->code, (int32_t)error->code, memory_order_release);
        } else if (!is_p2p(slot)) {
            dd_recorder_group *group = group_of(slot);
            atomic_store_explicit(&group->last_completed, sequence_of(slot), memory_order_relaxed);
            atomic_store_explicit(&group->last_completed_name, name_of(slot), memory_order_relaxed);
        }
        atomic_store_explicit(&slot->ended_ns, now_ns, memory_order_release);
    }
    release_slot(slot, record);
}
