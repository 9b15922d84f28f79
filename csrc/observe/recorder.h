/* The flight recorder: the last operations of this process, of all backends, to find out why it
 * hangs. It is a ring of records of a fixed size, written by the threads that start and complete
 * operations, and read by dumps. Writing a record allocates no memory, and takes a lock only for
 * the message of a failure. A record is identified by an id that is never reused: calls for a
 * record that was overwritten are ignored. Records have monotonic times; dumps convert them. */
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
#define DD_NO_RECORD UINT64_C(0) /* a call that is not recorded; all functions accept it */

/* Create a recorder. With a capacity of 0 nothing is recorded, and everything else works. */
dd_status dd_recorder_create(size_t capacity, dd_recorder **recorder, dd_error *err) DD_MUST_CHECK;
/* Call it after the last group is released and the last dump is written. NULL is allowed. */
void dd_recorder_destroy(dd_recorder *recorder);
size_t dd_recorder_capacity(const dd_recorder *recorder);
/* Drop all records; dumps then number their entries from 0 again. */
void dd_recorder_reset(dd_recorder *recorder);
/* Return the table of the records' stacks. Borrowed. */
dd_call_sites *dd_recorder_call_sites(dd_recorder *recorder);
/* Set the version of the backend's library for dumps, such as "2.21.5". */
void dd_recorder_set_comm_version(dd_recorder *recorder, const char *version);

/* ---- groups */

typedef struct dd_recorder_group_info {
    dd_bytes name;    /* torch.distributed's name, such as "0"; else the World's own */
    dd_bytes desc;    /* such as "default_pg" */
    const char *kind; /* the backend in dumps: "gloo", "nccl", "mpi"; static text */
    int rank;         /* in the group */
    int size;
    const int *global_ranks; /* [size]; NULL for 0 to size - 1 */
} dd_recorder_group_info;

/* Add a group, with one reference. The owner of a record that has not ended must hold a reference.
 * A released group stays in dumps as long as it has records there. */
dd_status dd_recorder_add_group(dd_recorder *recorder, const dd_recorder_group_info *info,
                                dd_recorder_group **group, dd_error *err) DD_MUST_CHECK;
dd_recorder_group *dd_recorder_group_acquire(dd_recorder_group *group); /* NULL gives NULL */
void dd_recorder_group_release(dd_recorder_group *group);               /* may be NULL */
dd_recorder *dd_recorder_of_group(dd_recorder_group *group);            /* borrowed */
/* Return the group's number in the recorder, which is never reused. */
uint32_t dd_recorder_group_uid(const dd_recorder_group *group);
/* Change a group's info: some of it may only be known after the group was added. */
dd_status dd_recorder_group_rename(dd_recorder_group *group, const dd_recorder_group_info *info,
                                   dd_error *err) DD_MUST_CHECK;
dd_status dd_recorder_group_set_kind(dd_recorder_group *group, const char *kind, dd_error *err) DD_MUST_CHECK;

/* ---- records */

/* One tensor, or several with one shape. A record stores those that fit, and counts the others. */
typedef struct dd_record_tensor {
    dd_dtype dtype;
    int ndim;
    const int64_t *shape;
    uint32_t count;  /* number of tensors; 0 counts as 1 */
    bool is_stacked; /* written as one tensor whose first dimension is `count` */
} dd_record_tensor;

typedef struct dd_record_call {
    /* Static text that torch's analyser knows, so that it can compare ranks; the binding's table of
     * operations has the names. */
    const char *name;
    bool is_p2p;
    bool is_started;    /* started at created_ns */
    int peer;           /* point to point: the other rank in the group; -1 for any */
    int64_t created_ns; /* monotonic */
    int64_t timeout_ns;
    uint32_t stack; /* see call_sites.h; 0 if it is not known */
    const dd_record_tensor *inputs;
    const dd_record_tensor *outputs;
    size_t ninputs;
    size_t noutputs;
    uint32_t ninputs_more; /* number of tensors that did not fit into `inputs` */
    uint32_t noutputs_more;
} dd_record_call;

/* Record a call and return its id. Its sequence number is the next one of the group's collectives,
 * or of its messages. The caller must serialise the calls on one group. */
uint64_t dd_recorder_begin(dd_recorder_group *group, const dd_record_call *call);
/* The common data of the records of a repeated call, packed once. */
typedef struct dd_record_form dd_record_form;
/* Create the form of a collective. Its stack, times and is_started are ignored. */
dd_status dd_record_form_create(const dd_record_call *call, dd_record_form **form,
                                dd_error *err) DD_MUST_CHECK;
void dd_record_form_destroy(dd_record_form *form); /* may be NULL */
/* The times of one call of dd_recorder_begin_form, which works like dd_recorder_begin. */
typedef struct dd_record_times {
    int64_t created_ns;
    int64_t timeout_ns;
    bool is_started;
} dd_record_times;
uint64_t dd_recorder_begin_form(dd_recorder_group *group, const dd_record_form *form, uint32_t stack,
                                const dd_record_times *times);
/* Withdraw a call that was refused before anything was sent: the next call gets its sequence
 * number. Only the caller of dd_recorder_begin may call it, before any other call on the group. */
void dd_recorder_withdraw(dd_recorder *recorder, uint64_t record);
/* Record that the operation has started to move data. */
void dd_recorder_start(dd_recorder *recorder, uint64_t record, int64_t now_ns);
/* Set the source of a receive from any rank. Call it before dd_recorder_end. */
void dd_recorder_set_peer(dd_recorder *recorder, uint64_t record, int peer);
/* Record the end: success if `error` is NULL, else failure. Only the first call counts. */
void dd_recorder_end(dd_recorder *recorder, uint64_t record, int64_t now_ns, const dd_error *error);

/* ---- alarms: failures for the monitor to handle */

typedef struct dd_alarm {
    uint32_t uid;     /* the group's uid, since names are not unique */
    char group[64];   /* the group's name */
    const char *kind; /* such as "gloo", "nccl" */
    int rank;         /* rank of this process in the group */
    uint64_t record;  /* the operation that failed first; DD_NO_RECORD if the group failed */
    dd_error error;
} dd_alarm;

/* Raise an alarm, without blocking; on any thread, with any locks held. Only a group's first alarm
 * counts. Alarms are kept in a small ring, which drops the oldest. */
void dd_recorder_raise_alarm(dd_recorder_group *group, uint64_t record, const dd_error *error);
/* Take the oldest alarm. Return false if there is none. */
bool dd_recorder_take_alarm(dd_recorder *recorder, dd_alarm *alarm);
/* Set the function that every alarm calls, on the thread that raises it and with any locks held.
 * NULL removes it if `ctx` is the current one; no call is running once this returns. */
void dd_recorder_notify_of_alarms(dd_recorder *recorder, void (*notify)(void *ctx), void *ctx);

/* ---- dumps, in the formats of torch's recorder: version, pg_config, pg_status, entries. Any
 * thread, with no lock held, without an interpreter. Entries have torch's fields and more: a failed
 * one has "time_ended_ns", "error", "error_code" ("OP_TIMED_OUT") and, if a rank is to blame,
 * "culprit_rank"; one whose tensors did not all fit has "inputs_left_out" or "outputs_left_out".
 * "p2p_seq_id" counts messages. If a message and a collective next to it have the same number,
 * which torch's analyser takes for parts of one call, the numbers of the group's messages continue
 * after those of its collectives. */

typedef enum dd_dump_format {
    DD_DUMP_PICKLE, /* protocol 2, for torch's analyser */
    DD_DUMP_JSON,
} dd_dump_format;

typedef struct dd_dump_options {
    dd_dump_format format;
    bool has_entries;
    bool has_stacks;
    bool is_active_only; /* only entries that have not completed: running or failed */
} dd_dump_options;

/* Write a dump, replacing the contents of the blob. */
dd_status dd_recorder_dump(dd_recorder *recorder, const dd_dump_options *options, dd_blob *out,
                           dd_error *err) DD_MUST_CHECK;

/* Write a dump to `path`, creating missing directories. It is written under another name first and
 * then replaces an existing file, so readers find a whole file. File and directories are private to
 * the user; symbolic links are replaced, not followed. DD_SYSTEM if it cannot be written. */
dd_status dd_recorder_dump_to_file(dd_recorder *recorder, const dd_dump_options *options, const char *path,
                                   dd_error *err) DD_MUST_CHECK;

/* The progress of a group, for reports: the last collective called, started and completed. While
 * they change, a name may be the previous collective's. */
typedef struct dd_progress {
    int64_t number;   /* in the group; -1 if there was none */
    const char *name; /* "" if there was none */
} dd_progress;

typedef struct dd_recorder_status {
    dd_progress called;
    dd_progress started;
    dd_progress completed;
} dd_recorder_status;
void dd_recorder_group_status(dd_recorder_group *group, dd_recorder_status *status);

#endif
