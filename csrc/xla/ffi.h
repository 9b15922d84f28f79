/* Group calls inside programs that XLA has compiled: a functional form of dldist as one call of
 * XLA's foreign function interface (FFI).
 *
 * A dd_ffi_program is recorded once, in terms of memory that stands for the arrays. XLA then runs
 * it any number of times on its own arrays. The FFI call's only attribute is the program's number.
 * XLA calls from any thread, without the GIL. Calls with an order have XLA tokens as arguments. */
#ifndef DD_XLA_FFI_H
#define DD_XLA_FFI_H

#include "group/group.h"
#include "kernels/view.h"
#include "xla/ffi_api.h"

typedef struct dd_ffi_program dd_ffi_program;

/* The initial contents of the results. */
typedef enum dd_ffi_fill {
    DD_FFI_FILL_NOTHING,
    DD_FFI_FILL_COPIES, /* result i is a copy of source i */
    DD_FFI_FILL_ZEROS,
} dd_ffi_fill;

/* Create a program. The memory stands for `nsources` arrays that are only read, then for the
 * results; it is never accessed. Returns NULL if out of memory. */
typedef struct dd_ffi_memory {
    const dd_block *blocks; /* [nsources + nresults], copied */
    size_t nsources;
    size_t nresults;
    dd_ffi_fill fill;
} dd_ffi_memory;
dd_ffi_program *dd_ffi_program_create(uint64_t number, dd_group *group, const dd_ffi_memory *memory);

/* A tensor of the program's memory that the call uses in contiguous form, `flat`, in `scratch`. */
typedef struct dd_ffi_part {
    dd_view view;
    const void *flat;
    bool is_read;    /* packed into `flat` before the call */
    bool is_written; /* unpacked from `flat` after the call */
} dd_ffi_part;

/* A call. Its blocks lie in the program's memory, or in `scratch`, which stands for memory that
 * each run has of its own. */
typedef struct dd_ffi_call {
    const dd_coll_args *args; /* of a collective; NULL for a message */
    const dd_p2p *message;
    int64_t timeout_ns; /* < 0 for the group's timeout */
    const dd_record_call *record;
    uint32_t stack;
    dd_block scratch;
    const dd_ffi_part *parts; /* copied */
    size_t nparts;
} dd_ffi_call;
/* Append a call. DD_INVALID_ARGUMENT if the group refuses it or a block is not in the memory. */
dd_status dd_ffi_program_add(dd_ffi_program *program, const dd_ffi_call *call, dd_error *err) DD_MUST_CHECK;

/* Make the program available to XLA. No calls may be added afterwards. */
void dd_ffi_program_publish(dd_ffi_program *program);
/* Run on this group from now on; it must have the same rank and size. */
void dd_ffi_program_set_group(dd_ffi_program *program, dd_group *group);
/* Remove the program: later runs fail. It is freed when the last run in progress has ended. */
void dd_ffi_program_destroy(dd_ffi_program *program);

/* The handler that XLA calls. Returns NULL on success. */
dd_ffi_error *dd_ffi_handle(dd_ffi_frame *frame);

#endif
