/* The flight recorder: the last operations of this process, on all backends, to find out why it
 * hangs. It is a ring of records of fixed size, which the threads that start and complete
 * operations write, and dumps read. Writing a record allocates no memory, and takes a lock only for
 * the message of a failure. A record has an id that is never reused: calls for an overwritten
 * record are ignored. Records have monotonic times, which dumps convert to calendar times. */
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
#define DD_NO_RECORD UINT64_C(0) /* id of a call that is not recorded; accepted by all functions */

/* Create a recorder. With a capacity of 0, calls are not recorded; everything else works. */
dd_status dd_recorder_create(size_t capacity, dd_recorder **recorder, dd_error *err) DD_MUST_CHECK;
/* Destroy the recorder. Its last group must be released and its last dump written. NULL is
 * allowed. */
void dd_recorder_destroy(dd_recorder *recorder);
size_t dd_recorder_capacity(const dd_recorder *recorder);
/* Drop all records. Later dumps number their entries from 0 again. */
void dd_recorder_reset(dd_recorder *recorder);
/* Return the table of the records' stacks. The recorder keeps ownership. */
dd_call_sites *dd_recorder_call_sites(dd_recorder *recorder);
/* Set the version, such as "2.21.5", that dumps show for the backend's library. */
void dd_recorder_set_comm_version(dd_recorder *recorder, const char *version);

/* ---- groups */

typedef struct dd_recorder_group_info {
    dd_bytes name;    /* name in torch.distributed, such as "0"; else the World's own name */
    dd_bytes desc;    /* description of the group, such as "default_pg" */
    const char *kind; /* the backend's name in dumps, as static text: "gloo", "nccl", "mpi" */
    int rank;         /* this process's rank in the group */
    int size;
    const int *global_ranks; /* [size]: the members' global ranks; NULL for 0 to size - 1 */
} dd_recorder_group_info;

/* Add a group, with one reference. A caller whose record has not ended must hold a reference to the
 * record's group. A released group stays in dumps while they have its records. */
dd_status dd_recorder_add_group(dd_recorder *recorder, const dd_recorder_group_info *info,
                                dd_recorder_group **group, dd_error *err) DD_MUST_CHECK;
dd_recorder_group *dd_recorder_group_acquire(dd_recorder_group *group); /* NULL for NULL */
void dd_recorder_group_release(dd_recorder_group *group);               /* NULL is allowed */
dd_recorder *dd_recorder_of_group(dd_recorder_group *group);            /* borrowed */
/* Return the number of the group in its recorder. Numbers are never reused. */
uint32_t dd_recorder_group_uid(const dd_recorder_group *group);
/* Change a group's info, for data that is known only after the group was added. */
dd_status dd_recorder_group_rename(dd_recorder_group *group, const dd_recorder_group_info *info,
                                   dd_error *err) DD_MUST_CHECK;
dd_status dd_recorder_group_set_kind(dd_recorder_group *group, const char *kind, dd_error *err) DD_MUST_CHECK;

/* ---- records */

/* One tensor, or several of one shape. A record stores those that fit, and counts the rest. */
typedef struct dd_record_tensor {
    dd_dtype dtype;
    int ndim;
    const int64_t *shape;
    uint32_t count;  /* number of tensors; 0 counts as 1 */
    bool is_stacked; /* dumps show one tensor whose first dimension is `count` */
} dd_record_tensor;

typedef struct dd_record_call {
    /* The operation's name: static text that torch's analyser knows, so that the analyser can
     * compare ranks. The names are in the Python binding's table of operations. */
    const char *name;
    bool is_p2p;
    bool is_started;    /* the operation started at created_ns */
    int peer;           /* in a message: rank of the other side; -1 for any rank */
    int64_t created_ns; /* time of the call, monotonic */
    int64_t timeout_ns;
    uint32_t stack; /* number of the call's stack (call_sites.h); 0 if unknown */
    const dd_record_tensor *inputs;
    const dd_record_tensor *outputs;
    size_t ninputs;
    size_t noutputs;
    uint32_t ninputs_more; /* number of tensors that `inputs` had no space for */
    uint32_t noutputs_more;
} dd_record_call;

/* Record a call and return the record's id. The record's sequence number is the next one of the
 * group's collectives, or of its messages. The caller must serialise the calls on one group. */
uint64_t dd_recorder_begin(dd_recorder_group *group, const dd_record_call *call);
/* The packed data that all records of a repeated call share. */
typedef struct dd_record_form dd_record_form;
/* Create the form of a repeated collective. Ignores the stack, times and is_started of `call`. */
dd_status dd_record_form_create(const dd_record_call *call, dd_record_form **form,
                                dd_error *err) DD_MUST_CHECK;
void dd_record_form_destroy(dd_record_form *form); /* NULL is allowed */
/* The times of one call. dd_recorder_begin_form works like dd_recorder_begin, with a form and times
 * instead of a dd_record_call. */
typedef struct dd_record_times {
    int64_t created_ns;
    int64_t timeout_ns;
    bool is_started;
} dd_record_times;
uint64_t dd_recorder_begin_form(dd_recorder_group *group, const dd_record_form *form, uint32_t stack,
                                const dd_record_times *times);
/* Withdraw a call that was refused before any data was sent: the next call gets its sequence
 * number. Only the caller of dd_recorder_begin may do so, before any other call on the group. */
void dd_recorder_withdraw(dd_recorder *recorder, uint64_t record);
/* Record that the operation has begun to move data. */
void dd_recorder_start(dd_recorder *recorder, uint64_t record, int64_t now_ns);
/* Set the source of a receive from any rank. Must be called before dd_recorder_end. */
void dd_recorder_set_peer(dd_recorder *recorder, uint64_t record, int peer);
/* Record an operation's end; `error` is NULL for success. Only the first end of a record counts. */
void dd_recorder_end(dd_recorder *recorder, uint64_t record, int64_t now_ns, const dd_error *error);

/* Print where a recorded call was made: " (train.py:12)"; "" if unknown. */
void dd_recorder_print_place(dd_recorder *recorder, uint64_t record, char out[128]);

/* ---- alarms: failures for the monitor to handle */

typedef struct dd_alarm {
    uint32_t uid;     /* the failed group's uid, because names are not unique */
    char group[64];   /* name of the failed group */
    const char *kind; /* the group's backend, such as "gloo" or "nccl" */
    int rank;         /* this process's rank in the group */
    uint64_t record;  /* the operation that failed first; DD_NO_RECORD: the group failed */
    dd_error error;
} dd_alarm;

/* Raise an alarm, without blocking. May be called on any thread, with any locks held. Only a
 * group's first alarm counts. A small ring keeps the alarms; it drops the oldest one when full. */
void dd_recorder_raise_alarm(dd_recorder_group *group, uint64_t record, const dd_error *error);
/* Remove and return the oldest alarm. Return false if there is none. */
bool dd_recorder_take_alarm(dd_recorder *recorder, dd_alarm *alarm);
/* Set the function that every alarm calls, on the thread that raises the alarm and with any locks
 * held. NULL removes the function that was set with the same `ctx`. After this returns, no call of
 * the previous function is running. */
void dd_recorder_notify_of_alarms(dd_recorder *recorder, void (*notify)(void *ctx), void *ctx);

/* ---- dumps, in the formats of torch's recorder: version, pg_config, pg_status, entries. May be
 * called on any thread, with no lock held; needs no interpreter. Entries have torch's fields and
 * more: a failed entry has "time_ended_ns", "error", "error_code" ("OP_TIMED_OUT") and, if a rank
 * is to blame, "culprit_rank". An entry has "inputs_left_out" or "outputs_left_out" if not all of
 * its tensors fit. "p2p_seq_id" counts messages. If a message and an adjacent collective have the
 * same number, torch's analyser takes both for one call; then the numbers of the group's messages
 * continue after the numbers of its collectives. */

typedef enum dd_dump_format {
    DD_DUMP_PICKLE, /* a pickle of protocol 2, for torch's analyser */
    DD_DUMP_JSON,
} dd_dump_format;

typedef struct dd_dump_options {
    dd_dump_format format;
    bool has_entries;
    bool has_stacks;
    bool is_active_only; /* only entries that have not completed: running and failed ones */
} dd_dump_options;

/* Write a dump into `out`, whose old contents are replaced. */
dd_status dd_recorder_dump(dd_recorder *recorder, const dd_dump_options *options, dd_blob *out,
                           dd_error *err) DD_MUST_CHECK;

/* Write a dump to `path`, creating missing directories. The dump is written under another name and
 * then renamed, so readers find a complete file. The file and the new directories are private to
 * the user. A symbolic link is replaced, not followed. DD_SYSTEM if the dump cannot be written. */
dd_status dd_recorder_dump_to_file(dd_recorder *recorder, const dd_dump_options *options, const char *path,
                                   dd_error *err) DD_MUST_CHECK;

/* A group's progress, for reports: the last collectives called, started and completed. If a
 * collective starts or ends during the query, a name may be that of the previous collective. */
typedef struct dd_progress {
    int64_t number;   /* the collective's number in the group; -1 if there was none */
    const char *name; /* the collective's name; "" if there was none */
} dd_progress;

typedef struct dd_recorder_status {
    dd_progress called;
    dd_progress started;
    dd_progress completed;
} dd_recorder_status;
void dd_recorder_group_status(dd_recorder_group *group, dd_recorder_status *status);

#endif
