/* The ring of records, and the calls that write records. */
#include "observe/recorder_internal.h"

#include "core/lock.h"
#include "core/mem.h"
#include "core/system.h"
#include "core/thread.h"
#include "core/wait_policy.h"

#include <stdio.h>
#include <string.h>

#define LINE_NBYTES 64 /* bytes of a cache line */
#define MAX_CAPACITY ((size_t)1 << 24)
/* Maximum number of stacks in the table. A program with more call sites probably generates code. */
#define MAX_STACKS 8192
/* Attempts to lock a slot that another thread is writing: before sleeping; in all (about 1 ms). */
#define POLLING_ATTEMPTS 20
#define SLOT_ATTEMPTS 40

_Static_assert(sizeof(record_body) % sizeof(uint64_t) == 0, "a body is a number of words");
_Static_assert(sizeof(record_slot) == 256, "a slot is four lines of the cache");

struct dd_record_form {
    record_body body;
};

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
    dd_lock_init(&self->mu, DD_LOCK_RECORDER);
    dd_status status = dd_call_sites_create(MAX_STACKS, &self->sites, err);
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
    dd_lock_fini(&recorder->mu);
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
dd_recorder_set_comm_version(dd_recorder *recorder, const char *version)
{
    dd_lock_take(&recorder->mu);
    snprintf(recorder->comm_version, sizeof recorder->comm_version, "%s", version);
    dd_lock_release(&recorder->mu);
}

/* ---- thread names */

/* Find a thread's entry, or a free entry for it; NULL if the table is full. */
static known_thread *
find_thread(dd_recorder *recorder, uint64_t self)
{
    size_t index = (size_t)((self * UINT64_C(0x9E3779B97F4A7C15)) >> 32);
    for (size_t i = 0; i < THREADS_KNOWN; i++) {
        known_thread *thread = &recorder->threads[(index + i) & (THREADS_KNOWN - 1)];
        uint64_t found = atomic_load_explicit(&thread->self, memory_order_relaxed);
        if (found == self || found == 0) {
            return thread;
        }
    }
    return NULL;
}

/* Store the calling thread's name for dumps, if the table has space. */
static void
note_thread(dd_recorder *recorder, uint64_t self)
{
    known_thread *thread = find_thread(recorder, self);
    uint64_t name[THREAD_NAME_WORDS] = {0};
    uint64_t free = 0;
    while (thread != NULL && atomic_load_explicit(&thread->self, memory_order_relaxed) != self) {
        if (atomic_compare_exchange_strong(&thread->self, &free, self)) {
            dd_thread_own_name((char *)name, sizeof name);
            for (size_t i = 0; i < THREAD_NAME_WORDS; i++) {
                atomic_store_explicit(&thread->name[i], name[i], memory_order_relaxed);
            }
            return;
        }
        thread = find_thread(recorder, self);
        free = 0;
    }
}

void
recorder_print_thread(dd_recorder *recorder, uint64_t self, char name[THREAD_NAME_WORDS * sizeof(uint64_t)])
{
    known_thread *thread = find_thread(recorder, self);
    bool is_known = thread != NULL && atomic_load_explicit(&thread->self, memory_order_relaxed) == self;
    for (size_t i = 0; i < THREAD_NAME_WORDS; i++) {
        uint64_t word = is_known ? atomic_load_explicit(&thread->name[i], memory_order_relaxed) : 0;
        memcpy(name + i * sizeof word, &word, sizeof word);
    }
}

/* ---- packing of tensors */

/* Pack a tensor into words. Return false if the tensor does not fit. */
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

/* Pack tensors until one does not fit. Return the number of tensors that were left out. */
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
ring_slot_of(const dd_recorder *recorder, uint64_t record)
{
    return &recorder->ring[record & recorder->mask];
}

/* Wait for the thread that is writing the slot, which is nearly done but may be descheduled. After
 * some polls, sleep: a real-time thread that only polls could take the writer's core. */
static void
wait_for_writer(int attempt)
{
    static const struct timespec nap = {.tv_nsec = 50 * DD_NS_PER_US};
    if (attempt < POLLING_ATTEMPTS) {
        dd_spin_pause();
    } else {
        (void)dd_sys_nanosleep(&nap, NULL);
    }
}

/* Lock a slot by making `owner` odd. The slot must belong to the record or, if is_new, to an older
 * record. Return false if a newer record has the slot, or if another thread keeps writing for too
 * long; the change is then not recorded. */
static bool
take_slot(record_slot *slot, uint64_t record, bool is_new)
{
    uint64_t owner = atomic_load_explicit(&slot->owner, memory_order_relaxed);
    for (int attempt = 0; attempt < SLOT_ATTEMPTS; attempt++) {
        if ((owner & 1) != 0) {
            wait_for_writer(attempt);
        }
        owner &= ~UINT64_C(1);
        if (is_new ? owner >= 2 * record : owner != 2 * record) {
            return false;
        }
        if (atomic_compare_exchange_weak_explicit(&slot->owner, &owner, 2 * record + 1, memory_order_acquire,
                                                  memory_order_relaxed)) {
            return true;
        }
    }
    return false;
}

/* Lock a record's slot, which release_slot unlocks. NULL if take_slot fails. */
static record_slot *
lock_record(const dd_recorder *recorder, uint64_t record)
{
    record_slot *slot = record != DD_NO_RECORD ? ring_slot_of(recorder, record) : NULL;
    return slot != NULL && take_slot(slot, record, false) ? slot : NULL;
}

static void
release_slot(record_slot *slot, uint64_t record)
{
    atomic_store_explicit(&slot->owner, 2 * record, memory_order_release);
}

/* Prefetch the cache lines that a call with one or two tensors writes, because this slot was last
 * used a whole round of the ring ago. */
static void
prefetch_slot(const record_slot *slot)
{
    const char *lines = (const char *)slot;
    __builtin_prefetch(lines, 1);
    __builtin_prefetch(lines + LINE_NBYTES, 1);
    __builtin_prefetch(lines + 2 * LINE_NBYTES, 1);
}

/* Store a record's words, each with release, so that no word is visible before the odd `owner`. */
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

/* Read a word of a slot, which this thread must have locked or must know to have the record. */
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
    return (dd_recorder_group *)(uintptr_t)word; /* the word stores a pointer */
}

static bool
is_p2p(record_slot *slot)
{
    return atomic_load_explicit(&slot->peer, memory_order_relaxed) != NO_PEER;
}

/* ---- lifecycle of a record */

/* Increment a counter, without an atomic read-modify-write: calls on a group are serialised. */
static uint64_t
count_one(_Atomic(uint64_t) *counter)
{
    uint64_t count = atomic_load_explicit(counter, memory_order_relaxed) + 1;
    atomic_store_explicit(counter, count, memory_order_relaxed);
    return count;
}

static void
set_mark(group_mark *mark, uint64_t number, const char *name)
{
    atomic_store_explicit(&mark->number, number, memory_order_relaxed);
    atomic_store_explicit(&mark->name, name, memory_order_relaxed);
}

/* Record that a locked slot's collective has started or completed. Messages have no progress. */
static void
note_group_progress(record_slot *slot, bool is_completed)
{
    dd_recorder_group *group = group_of(slot);
    if (!is_p2p(slot)) {
        set_mark(is_completed ? &group->completed : &group->started,
                 word_at(slot, offsetof(record_body, ncollectives)),
                 (const char *)(uintptr_t)word_at(slot, offsetof(record_body, name)));
    }
}

/* Count a packed call, write its record, and return the record's id. */
static uint64_t
write_record(dd_recorder_group *group, record_body *body, int peer, const dd_record_times *times)
{
    dd_recorder *recorder = group->recorder;
    if (body->is_p2p) {
        body->nmessages = count_one(&group->nmessages);
        body->ncollectives = atomic_load_explicit(&group->called.number, memory_order_relaxed);
    } else {
        body->ncollectives = count_one(&group->called.number);
        body->nmessages = atomic_load_explicit(&group->nmessages, memory_order_relaxed);
        atomic_store_explicit(&group->called.name, body->name, memory_order_relaxed);
        if (times->is_started) {
            set_mark(&group->started, body->ncollectives, body->name);
        }
    }
    if (recorder->capacity == 0) {
        return DD_NO_RECORD;
    }
    body->group = group;
    body->group_uid = group->uid;
    body->unused = 0;
    body->created_ns = times->created_ns;
    body->timeout_ns = times->timeout_ns;
    body->thread = (uint64_t)dd_thread_self();
    note_thread(recorder, body->thread);
    uint64_t record = atomic_fetch_add_explicit(&recorder->last, 1, memory_order_relaxed) + 1;
    atomic_store_explicit(&group->last_record, record, memory_order_relaxed);
    record_slot *slot = ring_slot_of(recorder, record);
    if (take_slot(slot, record, true)) {
        prefetch_slot(ring_slot_of(recorder, record + 1));
        atomic_store_explicit(&slot->started_ns, times->is_started ? times->created_ns : 0,
                              memory_order_release);
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
    dd_record_times times = {
        .created_ns = call->created_ns, .timeout_ns = call->timeout_ns, .is_started = call->is_started};
    pack_call(call, &body);
    return write_record(group, &body, call->is_p2p ? call->peer : NO_PEER, &times);
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
    body.stack = stack;
    return write_record(group, &body, NO_PEER, times);
}

void
dd_recorder_withdraw(dd_recorder *recorder, uint64_t record)
{
    record_slot *slot = lock_record(recorder, record);
    if (slot == NULL) {
        return;
    }
    dd_recorder_group *group = group_of(slot);
    _Atomic(uint64_t) *counter = is_p2p(slot) ? &group->nmessages : &group->called.number;
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
    if (atomic_load_explicit(&slot->started_ns, memory_order_relaxed) == 0 &&
        atomic_load_explicit(&slot->ended_ns, memory_order_relaxed) == 0) {
        atomic_store_explicit(&slot->started_ns, now_ns, memory_order_release);
        note_group_progress(slot, false);
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

/* Store the error of a record. Must be called before the record is marked as failed. */
static void
save_error(dd_recorder *recorder, uint64_t record, const dd_error *error)
{
    dd_lock_take(&recorder->mu);
    saved_error *saved = &recorder->errors[recorder->nerrors++ % ERRORS_MAX];
    saved->record = record;
    saved->error = *error;
    dd_lock_release(&recorder->mu);
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
            save_error(recorder, record, error);
            atomic_store_explicit(&slot->code, (int32_t)error->code, memory_order_release);
        } else {
            note_group_progress(slot, true);
        }
        atomic_store_explicit(&slot->ended_ns, now_ns, memory_order_release);
    }
    release_slot(slot, record);
}
