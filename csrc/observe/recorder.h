/* The flight recorder: the last operations of this process, whatever their backend, for whoever has to find out why it hangs.
 *
 * A ring of records of a fixed size, written by the threads that call and complete operations, read by whoever dumps. Writing
 * a record takes no lock that a dump holds for long, and no memory. A record is named by an id that is never used again: what is told
 * about one that has been overwritten is ignored. Records keep times of the monotonic clock; dumps turn them into the calendar's. */
#ifndef DD_OBSERVE_RECORDER_H
#define DD_OBSERVE_RECORDER_H

#include "core/bytes.h"
#include "core/dtype.h"
#include "core/status.h"
#include "core/wait.h"

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
/* Forgets all records, and goes on. */
void dd_recorder_reset(dd_recorder *recorder);

/* ---- groups */

typedef struct dd_recorder_group_info {
    dd_bytes name;    /* "0": c10d's name of the group; the World's own where there is none */
    dd_bytes desc;    /* "default_pg" */
    const char *kind; /* "gloo", "nccl": what analysers know as a backend; static text */
    int rank;         /* in the group */
    int size;
    const int *global_ranks; /* [size]; NULL: 0 to size - 1 */
} dd_recorder_group_info;

/* Counted; with one reference. A group that has been released stays in dumps for as long as it has records there. */
dd_status dd_recorder_add_group(dd_recorder *recorder, const dd_recorder_group_info *info,
                                dd_recorder_group **group, dd_error *err) DD_MUST_CHECK;
void dd_recorder_group_release(dd_recorder_group *group); /* NULL is fine */
/* What a group is called is sometimes known after it was made. */
dd_status dd_recorder_group_rename(dd_recorder_group *group, const dd_recorder_group_info *info,
                                   dd_error *err) DD_MUST_CHECK;

/* ---- records */

typedef struct dd_record_tensor {
    dd_dtype dtype;
    int ndim;
    const int64_t *shape;
} dd_record_tensor;

typedef struct dd_record_call {
    const char *name; /* "all_reduce", "send"; static text */
    bool is_p2p;
    int peer;           /* point to point: the other rank in the group; -1: any */
    int64_t created_ns; /* of the monotonic clock */
    int64_t timeout_ns;
    uint32_t stack; /* of call_sites.h; 0: not known */
    const dd_record_tensor *inputs;
    const dd_record_tensor *outputs;
    size_t ninputs;
    size_t noutputs;
} dd_record_call;

/* A call has been made: gives its id. Its sequence number is the next of the group's collectives, or of its messages. */
uint64_t dd_recorder_begin(dd_recorder_group *group, const dd_record_call *call);
/* It has begun to move. */
void dd_recorder_start(dd_recorder *recorder, uint64_t record, int64_t now_ns);
/* It has ended: completed, or failed with `error`. Never after its work may be gone. */
void dd_recorder_end(dd_recorder *recorder, uint64_t record, int64_t now_ns, const dd_error *error);

/* ---- alarms: something has failed, and somebody should look */

typedef struct dd_alarm {
    char group[64];  /* its name */
    int rank;        /* of this process in it */
    uint64_t record; /* the operation that has failed first; DD_NO_RECORD when it was the group */
    dd_error error;
} dd_alarm;

/* Any thread, any locks held but the recorder's: takes no time. Of a group only the first counts. Alarms that nobody takes are kept
 * in a small ring, the oldest making room. */
void dd_recorder_raise_alarm(dd_recorder_group *group, uint64_t record, const dd_error *error);
/* Waits for one: DD_TIMED_OUT at the deadline. */
dd_status dd_recorder_take_alarm(dd_recorder *recorder, dd_alarm *alarm, const dd_wait *wait,
                                 dd_error *err) DD_MUST_CHECK;
/* Ends the wait of whoever is in take_alarm, with DD_CLOSED, from now on. */
void dd_recorder_close_alarms(dd_recorder *recorder);

/* ---- dumps, in the formats of torch's recorder: version, pg_config, pg_status, entries. From any thread, with no lock held,
 * and without an interpreter */

typedef enum dd_dump_format {
    DD_DUMP_PICKLE, /* protocol 2: what torch's analyser reads */
    DD_DUMP_JSON,
} dd_dump_format;

typedef struct dd_dump_options {
    dd_dump_format format;
    bool has_entries;
    bool has_stacks;
    bool is_active_only; /* entries that have not ended */
} dd_dump_options;

/* Replaces what the blob holds. */
dd_status dd_recorder_dump(dd_recorder *recorder, const dd_dump_options *options, dd_blob *out,
                           dd_error *err) DD_MUST_CHECK;

/* How far a group is, for reports: sequence numbers and names of the last collective called, started, completed (-1 and "" for none). */
typedef struct dd_recorder_status {
    int64_t last_enqueued;
    int64_t last_started;
    int64_t last_completed;
    const char *last_enqueued_name;
    const char *last_started_name;
    const char *last_completed_name;
} dd_recorder_status;
void dd_recorder_group_status(dd_recorder_group *group, dd_recorder_status *status);

#endif
