/* The format of a FileStore's file: a header, then records (docs/contributing/file-store.md).
 * Parsing and encoding are pure functions, and the parsed bytes are untrusted. Replay applies
 * records to a keyspace. */
#ifndef DD_STORE_FILE_LOG_H
#define DD_STORE_FILE_LOG_H

#include "core/bytes.h"
#include "core/status.h"
#include "store/keyspace.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define DD_FILE_RUN_ID_BYTES 16
#define DD_FILE_HEADER_BYTES 64
#define DD_FILE_RECORD_HEAD_BYTES 16
#define DD_FILE_RECORD_MAX_BYTES (UINT64_C(1) << 30)

/* The header as stored in the file. */
typedef struct dd_file_header {
    char magic[8];
    uint32_t version;
    uint32_t zero;
    uint8_t run_id[DD_FILE_RUN_ID_BYTES];
    int64_t world_size; /* number of processes of the job; negative if unknown */
    uint64_t joined;
    uint64_t left; /* number of members that have left cleanly */
    uint32_t last_zero;
    uint32_t crc; /* CRC-32 of all fields before this one */
} dd_file_header;

typedef enum dd_file_header_state {
    DD_FILE_HEADER_VALID,
    DD_FILE_HEADER_EMPTY,   /* the file has no bytes */
    DD_FILE_HEADER_BROKEN,  /* a FileStore header that is truncated or damaged */
    DD_FILE_HEADER_VERSION, /* a valid header with an unknown format version */
    DD_FILE_HEADER_FOREIGN, /* not the file of a FileStore: the caller must not change it */
} dd_file_header_state;

/* Classify a file by its first bytes. `header` is set only if the file's header is valid. */
dd_file_header_state dd_file_header_parse(dd_bytes bytes, dd_file_header *header);
/* Set the constant fields and the checksum of a header, before it is written. */
void dd_file_header_seal(dd_file_header *header);

/* Read up to `nbytes` bytes at `offset`, fewer only at the end of the file. Return the number of
 * bytes read, or -1 with errno set. */
ssize_t dd_file_read(int fd, uint8_t *out, size_t nbytes, uint64_t offset);

/* Return true if the bytes begin with a header that has this run_id. Only fields that are constant
 * during a run are compared, so another process may update the counts during the call. */
bool dd_file_header_is_of_run(dd_bytes bytes, const uint8_t run_id[DD_FILE_RUN_ID_BYTES]);

typedef enum dd_file_record_type {
    DD_FILE_RECORD_SET = 1,
    DD_FILE_RECORD_DELETE,
    DD_FILE_RECORD_APPEND,
    DD_FILE_RECORD_PUSH,
    DD_FILE_RECORD_POP,
} dd_file_record_type;

typedef struct dd_file_record {
    dd_file_record_type type;
    dd_bytes key;
    dd_bytes value; /* empty for DELETE and POP */
} dd_file_record;

typedef enum dd_file_record_state {
    DD_FILE_RECORD_WHOLE,
    DD_FILE_RECORD_SHORT,   /* the record extends beyond the end of `bytes` */
    DD_FILE_RECORD_DAMAGED, /* not a valid record */
} dd_file_record_state;

/* Parse the record at the start of `bytes`; `record` points into `bytes`. *nbytes is set to the
 * length of the record as it claims; for SHORT, to the number of bytes needed to continue; for
 * DAMAGED, to 0 if no record was written there. */
dd_file_record_state dd_file_record_parse(dd_bytes bytes, dd_file_record *record, uint64_t *nbytes);

/* Append the encoded record to `out`. DD_INVALID_ARGUMENT if over DD_FILE_RECORD_MAX_BYTES. */
dd_status dd_file_record_encode(dd_blob *out, const dd_file_record *record, dd_error *err) DD_MUST_CHECK;

/* Apply the record to the keyspace. On failure, the keyspace is unchanged. */
dd_status dd_file_record_apply(dd_keyspace *ks, const dd_file_record *record, dd_error *err) DD_MUST_CHECK;

/* A keyspace, and the length of the part of the file whose records were applied to the keyspace. */
typedef struct dd_file_log {
    dd_keyspace ks;
    uint64_t offset; /* all records before this offset were applied to `ks` */
    dd_blob read_buf;
} dd_file_log;

typedef enum dd_file_tail {
    DD_FILE_TAIL_CLEAN,   /* the file ends with a complete record */
    DD_FILE_TAIL_TORN,    /* the last record is incomplete: being written, or its writer died */
    DD_FILE_TAIL_DAMAGED, /* a record is damaged and others follow, which no crash can cause */
} dd_file_tail;

void dd_file_log_init(dd_file_log *log);
void dd_file_log_fini(dd_file_log *log);

/* Drop the keyspace, so that the next dd_file_log_replay starts from the first record. */
void dd_file_log_reset(dd_file_log *log);

/* Apply the records from log->offset to `size`, the size of the file. Stops before the first record
 * that is incomplete or damaged; *tail classifies that record. On failure, the keyspace contains
 * exactly the records before log->offset. */
dd_status dd_file_log_replay(dd_file_log *log, int fd, uint64_t size, dd_file_tail *tail,
                             dd_error *err) DD_MUST_CHECK;

#endif
