/* Internals of the recorder: its ring, and the data that dumps read. */
#ifndef DD_OBSERVE_RECORDER_INTERNAL_H
#define DD_OBSERVE_RECORDER_INTERNAL_H

#include "core/list.h"
#include "core/lock.h"
#include "observe/recorder.h"

#include <stdatomic.h>

#define RECORD_TENSOR_WORDS 18
#define ERRORS_KEPT 16
#define ALARMS_KEPT 8
#define THREADS_KNOWN 128 /* a power of two */
#define THREAD_NAME_WORDS 2
#define COMM_VERSION_MAX 32
#define NO_PEER INT32_MIN   /* peer of a collective */
#define WITHDRAWN INT32_MAX /* instead of an error code: the call was withdrawn */

/* The data of a call that is known at its start. Tensors are words: a head (tensor_head) and the
 * dimensions; first the inputs, then the outputs. */
typedef struct record_body {
    const char *name;
    dd_recorder_group *group;
    uint32_t group_uid;
    uint32_t stack;
    int64_t created_ns;
    int64_t timeout_ns;
    uint64_t thread;       /* dd_thread_self() */
    uint64_t ncollectives; /* number of the group's collectives, including this one */
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

/* One slot of the ring. `owner` is twice the id of its record, plus one while the thread that made
 * it odd writes. A reader that finds the same even owner before and after has read one record:
 * `words` change only with the id, and the other fields once, in the order error, peer, started,
 * ended. */
typedef struct record_slot {
    _Alignas(64) _Atomic(uint64_t) owner;
    _Atomic(int64_t) started_ns; /* 0 if it has not started */
    _Atomic(int64_t) ended_ns;   /* 0 if it has not ended */
    _Atomic(int32_t) code;       /* of its error, or DD_OK */
    _Atomic(int32_t) peer;       /* NO_PEER for a collective */
    _Atomic(uint64_t) words[RECORD_WORDS];
} record_slot;

/* A thread that has made a call, by pthread_self. Its name is stored after `self`. */
typedef struct known_thread {
    _Atomic(uint64_t) self; /* 0 if the entry is free */
    _Atomic(uint64_t) name[THREAD_NAME_WORDS];
} known_thread;

typedef struct kept_error {
    uint64_t record;
    dd_error error;
} kept_error;

struct dd_recorder {
    size_t capacity;        /* const */
    uint64_t mask;          /* const: of the ring, which may have more slots than capacity */
    record_slot *ring;      /* const; NULL if the capacity is 0 */
    dd_call_sites *sites;   /* const; owned */
    _Atomic(uint64_t) last; /* the newest id */
    _Atomic(uint64_t) base; /* ids up to this one were reset */
    known_thread threads[THREADS_KNOWN];

    dd_lock mu; /* held only briefly */
    /* guarded by mu */
    dd_list groups; /* dd_recorder_group, in the order of their uids */
    uint32_t next_uid;
    char comm_version[COMM_VERSION_MAX];
    kept_error errors[ERRORS_KEPT];
    size_t nerrors; /* total number so far */
    dd_alarm alarms[ALARMS_KEPT];
    size_t nalarms_raised;
    size_t nalarms_taken;
    void (*notify)(void *ctx); /* may be NULL */
    void *notify_ctx;
};

/* A group's info, which never changes: a renamed group gets another one, and keeps this one for
 * threads that still read it. */
typedef struct group_info {
    struct group_info *older;
    dd_recorder_group_info is; /* its bytes and ranks are in the same block */
} group_info;

/* A collective of a group. Relaxed. */
typedef struct group_mark {
    _Atomic(uint64_t) number; /* 0 if there is none */
    _Atomic(const char *) name;
} group_mark;

struct dd_recorder_group {
    dd_recorder *recorder; /* const */
    dd_list link;          /* guarded by the recorder's mu */
    uint32_t uid;          /* const */
    atomic_uint refs;
    _Atomic(group_info *) info; /* release */
    atomic_bool is_alarmed;
    /* relaxed */
    _Atomic(uint64_t) nmessages;
    _Atomic(uint64_t) last_record;
    group_mark called; /* its number is the count of collectives */
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

/* Get a thread's name; "" if the thread is unknown. */
void recorder_print_thread(dd_recorder *recorder, uint64_t self,
                           char name[THREAD_NAME_WORDS * sizeof(uint64_t)]);

#endif
