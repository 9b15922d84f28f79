/* The inside of the recorder: its ring, and what a dump is made of. */
#ifndef DD_OBSERVE_RECORDER_INTERNAL_H
#define DD_OBSERVE_RECORDER_INTERNAL_H

#include "core/list.h"
#include "core/lock.h"
#include "core/thread.h"
#include "observe/recorder.h"

#include <stdatomic.h>

#define RECORD_TENSOR_WORDS 18
#define ERRORS_KEPT 16
#define ALARMS_KEPT 8
#define THREADS_KNOWN 128 /* a power of two */
#define COMM_VERSION_MAX 32
#define NO_PEER INT32_MIN   /* of a collective */
#define WITHDRAWN INT32_MAX /* for its error: there was no such call */

/* What is known of a call from its beginning. Tensors are words: a head (tensor_head), and the dimensions of one; those of the
 * inputs, then those of the outputs. */
typedef struct record_body {
    const char *name;
    dd_recorder_group *group;
    uint32_t group_uid;
    uint32_t stack;
    int64_t created_ns;
    int64_t timeout_ns;
    uint64_t thread;       /* dd_thread_self() */
    uint64_t ncollectives; /* of the group, so far, with this one */
    uint64_t nmessages;
    uint32_t ninputs_left_out;
    uint32_t noutputs_left_out;
    uint8_t ninput_words;
    uint8_t noutput_words;
    bool is_p2p;
    bool is_in_place; /* the outputs are the inputs, and not written again */
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

/* One place of the ring. `owner` is twice the id of its record, plus one while somebody writes; whoever makes it odd may write. A reader
 * that finds the same even owner before and after has read one record: `words` change with the id alone, and the others
 * once, in the order error, peer, started, ended. */
typedef struct record_slot {
    _Alignas(64) _Atomic(uint64_t) owner;
    _Atomic(int64_t) started_ns; /* 0: not yet */
    _Atomic(int64_t) ended_ns;   /* 0: not yet */
    _Atomic(int32_t) code;       /* of its error; DD_OK */
    _Atomic(int32_t) peer;       /* NO_PEER: a collective */
    _Atomic(uint64_t) words[RECORD_WORDS];
} record_slot;

struct dd_record_form {
    record_body body;
};

/* A thread that has called something, by pthread_self. */
typedef struct known_thread {
    _Atomic(uint64_t) self; /* 0: free. Release: the name is there */
    char name[16];
} known_thread;

typedef struct kept_error {
    uint64_t record;
    dd_error error;
} kept_error;

struct dd_recorder {
    size_t capacity;        /* const */
    uint64_t mask;          /* const: of the ring, which has room for more than capacity */
    record_slot *ring;      /* NULL with capacity 0 */
    dd_call_sites *sites;   /* const; owned */
    _Atomic(uint64_t) last; /* the newest id */
    _Atomic(uint64_t) base; /* ids up to here are forgotten */
    known_thread threads[THREADS_KNOWN];
    dd_lock threads_mu; /* of those who add one; short */

    dd_lock groups_mu; /* held for as long as a dump takes; no writer of records wants it */
    /* guarded by groups_mu */
    dd_list groups; /* dd_recorder_group, in the order of their uids */
    uint32_t next_uid;
    char comm_version[COMM_VERSION_MAX];

    dd_lock errors_mu; /* short */
    kept_error errors[ERRORS_KEPT];
    size_t nerrors; /* ever */

    dd_lock alarms_mu; /* short */
    pthread_cond_t alarms_cond;
    /* guarded by alarms_mu */
    dd_alarm alarms[ALARMS_KEPT];
    size_t nalarms_raised;
    size_t nalarms_taken;
    void (*notify)(void *ctx); /* NULL: nobody */
    void *notify_ctx;
    bool is_closed;
};

struct dd_recorder_group {
    dd_recorder *recorder; /* const */
    dd_list link;
    uint32_t uid; /* const */
    atomic_uint refs;
    /* guarded by the recorder's groups_mu */
    dd_blob name;
    dd_blob desc;
    const char *kind;
    int rank;
    int size;
    int *global_ranks; /* owned; NULL: 0 to size - 1 */
    /* relaxed */
    _Atomic(uint64_t) ncollectives;
    _Atomic(uint64_t) nmessages;
    _Atomic(uint64_t) last_record;
    _Atomic(uint64_t) last_started; /* sequence numbers */
    _Atomic(uint64_t) last_completed;
    _Atomic(const char *) last_enqueued_name;
    _Atomic(const char *) last_started_name;
    _Atomic(const char *) last_completed_name;
    atomic_bool is_alarmed;
    /* guarded by the recorder's alarms_mu: of its name and rank, for alarms */
    char alarm_name[64];
    const char *alarm_kind;
    int alarm_rank;
};

/* ---- recorder_threads.c */

/* Makes sure that the calling thread has a name in dumps. */
void recorder_note_thread(dd_recorder *recorder, uint64_t self);
/* "" for one that is not known. */
void recorder_print_thread(dd_recorder *recorder, uint64_t self, char name[16]);

/* ---- recorder_groups.c */

/* Frees what has neither references nor records. */
void recorder_sweep_groups_locked(dd_recorder *recorder);
void recorder_destroy_groups(dd_recorder *recorder);

/* ---- snapshot.c: what a dump tells. Records are copied out of the way of those who write; groups stay as they are meanwhile */

typedef struct snapshot_group {
    dd_recorder_group *group;
    dd_recorder_status status;
    bool is_shown; /* it is open, or has entries */
    /* of its newest entry */
    uint64_t ncollectives;
    uint64_t number; /* among those of its kind */
    bool is_p2p;
    /* A message and a collective next to it have the same number, which torch's analyser takes for parts of one call: those of messages go
     * on where those of collectives end. */
    bool is_ambiguous;
} snapshot_group;

typedef struct snapshot_entry {
    uint64_t record;
    uint64_t number; /* from 0: since the last reset */
    const snapshot_group *of;
    const dd_error *error; /* NULL; what is not kept any more has its code alone */
    dd_status code;
    int64_t started_ns;
    int64_t ended_ns;
    int peer;
    record_body body;
} snapshot_entry;

typedef struct dd_snapshot {
    dd_recorder *recorder;
    snapshot_group *groups;
    size_t ngroups;
    snapshot_entry *entries; /* oldest first */
    size_t nentries;
    kept_error errors[ERRORS_KEPT];
    int64_t calendar_ns; /* plus monotonic time is time since the epoch */
} dd_snapshot;

/* Holds groups_mu until snapshot_fini. */
dd_status snapshot_take(dd_recorder *recorder, bool has_entries, bool is_active_only, dd_snapshot *snapshot,
                        dd_error *err) DD_MUST_CHECK;
void snapshot_fini(dd_snapshot *snapshot);
/* The tensors of one side, one after the other: `cursor` starts at 0 and is the function's. False: no more. */
typedef struct snapshot_tensor {
    dd_dtype dtype;
    bool is_stacked;
    uint32_t count;
    int ndim;
    const uint64_t *shape;
} snapshot_tensor;
bool snapshot_next_tensor(const record_body *body, bool is_output, size_t *cursor, snapshot_tensor *tensor);

#endif
