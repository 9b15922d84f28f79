/* The flight recorder: the last operations of this process, whatever their backend, to find out why it hangs.
 *
 * A ring of records of a fixed size, written by the threads that call and complete operations, read by dumps. Writing
 * a record takes no memory, and no lock but for the message of a failure. A record is named by an id that is never used again: calls
 * about one that has been overwritten are ignored. Records keep times of the monotonic clock; dumps turn them into the calendar's. */
#ifndef DD_OBSERVE_RECORDER_H
#define DD_OBSERVE_RECORDER_H

#include "core/bytes.h"
#include "core/dtype.h"
#include "core/status.h"
#include "observe/call_sites.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct dd_recorder dd_recorder;
typedef struct dd_recorder_group dd_recorder_group;

#define DD_RECORDER_DEFAULT_CAPACITY 2000
#define DD_NO_RECORD UINT64_C(0) /* the id of what is not recorded: every function takes it */

/* capacity 0: nothing is recorded, and everything else works. */
dd_status dd_recorder_create(size_t capacity, dd_recorder **recorder, dd_error *err) DD_MUST_CHECK;
/* After the last group and the last dump. NULL is fine. */
void dd_recorder_destroy(dd_recorder *recorder);
size_t dd_recorder_capacity(const dd_recorder *recorder);
/* Forgets all records; entries of dumps count from 0 again. */
void dd_recorder_reset(dd_recorder *recorder);
/* Where the stacks of its records are. Borrowed. */
dd_call_sites *dd_recorder_call_sites(dd_recorder *recorder);
/* "2.21.5": of the library behind a backend, for dumps. */
void dd_recorder_set_comm_version(dd_recorder *recorder, const char *version);

/* ---- groups */

typedef struct dd_recorder_group_info {
    dd_bytes name;    /* "0": c10d's name of the group; the World's own where there is none */
    dd_bytes desc;    /* "default_pg" */
    const char *kind; /* "gloo", "nccl", "mpi": what analysers know as a backend; static text */
    int rank;         /* in the group */
    int size;
    const int *global_ranks; /* [size]; NULL: 0 to size - 1 */
} dd_recorder_group_info;

/* Counted; with one reference. The owner of a record that has not ended holds one. A group that has been released stays in dumps for
 * as long as it has records there. */
dd_status dd_recorder_add_group(dd_recorder *recorder, const dd_recorder_group_info *info,
                                dd_recorder_group **group, dd_error *err) DD_MUST_CHECK;
dd_recorder_group *dd_recorder_group_acquire(dd_recorder_group *group); /* NULL is fine, and gives NULL */
void dd_recorder_group_release(dd_recorder_group *group);               /* NULL is fine */
dd_recorder *dd_recorder_of_group(dd_recorder_group *group);            /* borrowed */
/* Its number among the groups of the recorder; no other has it, ever. */
uint32_t dd_recorder_group_uid(const dd_recorder_group *group);
/* What a group is called is sometimes known after it was made. */
dd_status dd_recorder_group_rename(dd_recorder_group *group, const dd_recorder_group_info *info,
                                   dd_error *err) DD_MUST_CHECK;
/* The same for its kind alone. */
dd_status dd_recorder_group_set_kind(dd_recorder_group *group, const char *kind, dd_error *err) DD_MUST_CHECK;

/* ---- records */

/* One tensor, or several of one shape. A record keeps what fits into it, and tells how many it has left out. */
typedef struct dd_record_tensor {
    dd_dtype dtype;
    int ndim;
    const int64_t *shape;
    uint32_t count;  /* how many; 0 counts as 1 */
    bool is_stacked; /* written as one tensor with `count` for its first dimension */
} dd_record_tensor;

typedef struct dd_record_call {
    /* Static text: one that torch's analyser knows, so that it can compare ranks. The binding's table of operations has them. */
    const char *name;
    bool is_p2p;
    bool is_started;    /* it begins to move at once, at created_ns */
    int peer;           /* point to point: the other rank in the group; -1: any */
    int64_t created_ns; /* of the monotonic clock */
    int64_t timeout_ns;
    uint32_t stack; /* of call_sites.h; 0: not known */
    const dd_record_tensor *inputs;
    const dd_record_tensor *outputs;
    size_t ninputs;
    size_t noutputs;
    uint32_t ninputs_more; /* tensors that are not in `inputs`, for want of room */
    uint32_t noutputs_more;
} dd_record_call;

/* A call has been made: gives its id. Its sequence number is the next of the group's collectives, or of its messages. Of one group one
 * at a time: the caller holds what orders them. */
uint64_t dd_recorder_begin(dd_recorder_group *group, const dd_record_call *call);
/* A call that is made again and again: what its records have in common, put together once. */
typedef struct dd_record_form dd_record_form;
/* Of a collective; the stack, the times and is_started do not count. */
dd_status dd_record_form_create(const dd_record_call *call, dd_record_form **form,
                                dd_error *err) DD_MUST_CHECK;
void dd_record_form_destroy(dd_record_form *form); /* NULL is fine */
/* dd_recorder_begin with what the form says, but for the stack and the times. */
typedef struct dd_record_times {
    int64_t created_ns;
    int64_t timeout_ns;
    bool is_started;
} dd_record_times;
uint64_t dd_recorder_begin_form(dd_recorder_group *group, const dd_record_form *form, uint32_t stack,
                                const dd_record_times *times);
/* A call that has been begun was refused, and nothing was sent: it does not count, and the next gets its sequence number. For the caller
 * of begin alone, before any other call on the group. */
void dd_recorder_withdraw(dd_recorder *recorder, uint64_t record);
/* It has begun to move. */
void dd_recorder_start(dd_recorder *recorder, uint64_t record, int64_t now_ns);
/* A receive from any rank: from which one it was. Before its end. */
void dd_recorder_set_peer(dd_recorder *recorder, uint64_t record, int peer);
/* It has ended: completed, or failed with `error`. Only the first counts. */
void dd_recorder_end(dd_recorder *recorder, uint64_t record, int64_t now_ns, const dd_error *error);

/* ---- alarms: something has failed, and somebody should look */

typedef struct dd_alarm {
    uint32_t uid;     /* which group it is about: names are not unique */
    char group[64];   /* its name */
    const char *kind; /* "gloo", "nccl" */
    int rank;         /* of this process in it */
    uint64_t record;  /* the operation that has failed first; DD_NO_RECORD when it was the group */
    dd_error error;
} dd_alarm;

/* Any thread, any locks held: takes no time. Of a group only the first counts. Alarms that nobody takes are kept in a small ring,
 * the oldest making room. */
void dd_recorder_raise_alarm(dd_recorder_group *group, uint64_t record, const dd_error *error);
/* False: there is none. */
bool dd_recorder_take_alarm(dd_recorder *recorder, dd_alarm *alarm);
/* Make every alarm call `notify`, instead of the function that was set before, on the thread that raises it and with any locks held.
 * NULL ends that if `ctx` is the one that was set last; then no call is under way. */
void dd_recorder_notify_of_alarms(dd_recorder *recorder, void (*notify)(void *ctx), void *ctx);

/* ---- dumps, in the formats of torch's recorder: version, pg_config, pg_status, entries. From any thread, with no lock held,
 * and without an interpreter.
 *
 * Entries have what torch's have, and more: one that has failed has "time_ended_ns", "error", "error_code" ("OP_TIMED_OUT") and, where
 * there is one, "culprit_rank"; and one whose tensors did not all fit has "inputs_left_out" or "outputs_left_out". "p2p_seq_id" counts
 * messages, but where a message and a collective next to it had the same number, which torch's analyser takes for parts of one call, those
 * of all messages of the group go on after those of its collectives. */

typedef enum dd_dump_format {
    DD_DUMP_PICKLE, /* protocol 2: what torch's analyser reads */
    DD_DUMP_JSON,
} dd_dump_format;

typedef struct dd_dump_options {
    dd_dump_format format;
    bool has_entries;
    bool has_stacks;
    bool is_active_only; /* entries that have not completed: those under way, and those that have failed */
} dd_dump_options;

/* Replaces what the blob holds. */
dd_status dd_recorder_dump(dd_recorder *recorder, const dd_dump_options *options, dd_blob *out,
                           dd_error *err) DD_MUST_CHECK;

/* Writes a dump to `path`, whose folders are made if need be: under another name first, so that a reader
 * finds a whole file, and replaces what was there before. File and folders are private to the user; links
 * that lead elsewhere are replaced, not followed. DD_SYSTEM when it cannot be written. */
dd_status dd_recorder_dump_to_file(dd_recorder *recorder, const dd_dump_options *options, const char *path,
                                   dd_error *err) DD_MUST_CHECK;

/* How far a group is, for reports: the last collective called, started, completed. While they change, a name may be that of the
 * collective before. */
typedef struct dd_progress {
    int64_t number;   /* in the group; -1: none yet */
    const char *name; /* "": none */
} dd_progress;

typedef struct dd_recorder_status {
    dd_progress called;
    dd_progress started;
    dd_progress completed;
} dd_recorder_status;
void dd_recorder_group_status(dd_recorder_group *group, dd_recorder_status *status);

#endif
