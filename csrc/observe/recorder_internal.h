/* Internals of the recorder: the ring of records, and the data from which dumps are written. */
#ifndef DD_OBSERVE_RECORDER_INTERNAL_H
#define DD_OBSERVE_RECORDER_INTERNAL_H

#include "core/list.h"
#include "core/lock.h"
#include "observe/recorder.h"

#include <stdatomic.h>

#define RECORD_TENSOR_WORDS 18
#define ERRORS_MAX 16
#define ALARMS_MAX 8
#define THREADS_KNOWN 128 /* number of threads in the table; a power of two */
#define THREAD_NAME_WORDS 2
#define COMM_VERSION_MAX 32
#define NO_PEER INT32_MIN   /* `peer` of a collective */
#define WITHDRAWN INT32_MAX /* `code` of a call that was withdrawn */

/* The part of a record that is known when its call starts. `tensors` has for each tensor a word
 * with its head (tensor_head), and its dimensions: first all inputs, then all outputs. */
typedef struct record_body {
    const char *name;
    dd_recorder_group *group;
    uint32_t group_uid;
    uint32_t stack;
    int64_t created_ns;
    int64_t timeout_ns;
    uint64_t thread;       /* the calling thread, as returned by dd_thread_self() */
    uint64_t ncollectives; /* the group's number of collectives, including this call */
    uint64_t nmessages;
    uint32_t ninputs_left_out;
    uint32_t noutputs_left_out;
    uint8_t ninput_words;
    uint8_t noutput_words;
    bool is_p2p;
    bool is_in_place; /* the outputs are the inputs, and stored only once */
    uint32_t unused;
    uint64_t tensors[RECORD_TENSOR_WORDS];
} record_body;

#define RECORD_WORDS (sizeof(record_body) / sizeof(uint64_t))

typedef struct tensor_head {
    uint8_t dtype;
    uint8_t ndim;
    uint8_t is_stacked;
    uint8_t unused;
    uint32_t count;
} tensor_head;

/* One slot of the ring. `owner` is twice the id of the slot's record, plus one while a thread
 * writes the slot: making `owner` odd locks the slot. A reader that finds the same even `owner`
 * before and after its reads has read one record: `words` change only with the id, and every other
 * field changes once, in the order error, peer, started, ended. */
typedef struct record_slot {
    _Alignas(64) _Atomic(uint64_t) owner;
    _Atomic(int64_t) started_ns; /* 0 if the operation has not started */
    _Atomic(int64_t) ended_ns;   /* 0 if the operation has not ended */
    _Atomic(int32_t) code;       /* status of the operation's error, or DD_OK */
    _Atomic(int32_t) peer;       /* rank of the other side of a message; NO_PEER for a collective */
    _Atomic(uint64_t) words[RECORD_WORDS];
} record_slot;

/* A thread that has made a call. `self` is its pthread_self, which is stored before the name. */
typedef struct known_thread {
    _Atomic(uint64_t) self; /* 0 if this entry is free */
    _Atomic(uint64_t) name[THREAD_NAME_WORDS];
} known_thread;

typedef struct saved_error {
    uint64_t record;
    dd_error error;
} saved_error;

struct dd_recorder {
    size_t capacity;        /* const: maximum number of records that dumps show */
    uint64_t mask;          /* const: number of slots (may exceed the capacity), minus one */
    record_slot *ring;      /* const: the slots; NULL if the capacity is 0 */
    dd_call_sites *sites;   /* const: table of stacks; owned */
    _Atomic(uint64_t) last; /* id of the newest record */
    _Atomic(uint64_t) base; /* ids up to this one were dropped by a reset */
    known_thread threads[THREADS_KNOWN];

    dd_lock mu; /* held only briefly */
    /* The following fields are guarded by mu. */
    dd_list groups; /* dd_recorder_group entries, in the order of their uids */
    uint32_t next_uid;
    char comm_version[COMM_VERSION_MAX];
    saved_error errors[ERRORS_MAX];
    size_t nerrors; /* number of errors stored so far; the ring has the last ERRORS_MAX */
    dd_alarm alarms[ALARMS_MAX];
    size_t nalarms_raised;
    size_t nalarms_taken;
    void (*notify)(void *ctx); /* called for every alarm; may be NULL */
    void *notify_ctx;
};

/* A group's info, which never changes: renaming a group adds a new info and keeps the old one,
 * because threads may still be reading the latter. */
typedef struct group_info {
    struct group_info *older;
    dd_recorder_group_info is; /* its texts and ranks are in the same block of memory */
} group_info;

/* The number and the name of one collective of a group. Accesses are relaxed. */
typedef struct group_mark {
    _Atomic(uint64_t) number; /* 0 if there is no such collective */
    _Atomic(const char *) name;
} group_mark;

struct dd_recorder_group {
    dd_recorder *recorder; /* const */
    dd_list link;          /* entry in recorder->groups; guarded by the recorder's mu */
    uint32_t uid;          /* const */
    atomic_uint refs;
    _Atomic(group_info *) info; /* stored with release, loaded with acquire */
    atomic_bool is_alarmed;
    /* The following fields are accessed with relaxed order. */
    _Atomic(uint64_t) nmessages;
    _Atomic(uint64_t) last_record;
    group_mark called; /* last collective called; its number is the number of collectives */
    group_mark started;
    group_mark completed;
};

static inline const dd_recorder_group_info *
recorder_info_of(const dd_recorder_group *group)
{
    return &atomic_load_explicit(&group->info, memory_order_acquire)->is;
}

/* ---- recorder_groups.c */

void recorder_destroy_groups(dd_recorder *recorder);

/* ---- recorder.c */

/* Get the name of a thread; "" if the thread is unknown. */
void recorder_print_thread(dd_recorder *recorder, uint64_t self,
                           char name[THREAD_NAME_WORDS * sizeof(uint64_t)]);

#endif
