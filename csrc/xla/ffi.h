/* Group calls inside programs that XLA has compiled: a functional form of dldist, as one call of
 * XLA's foreign function interface (FFI).
 *
 * A dd_ffi_program is recorded once, with placeholders instead of arrays. XLA then runs the program
 * any number of times, on XLA's arrays. The FFI call's only attribute is the program's number. XLA
 * makes the call from any thread, without the GIL. Calls whose order matters have XLA tokens as
 * arguments. */
#ifndef DD_XLA_FFI_H
#define DD_XLA_FFI_H

#include "group/group.h"
#include "kernels/view.h"
#include "xla/ffi_api.h"

typedef struct dd_ffi_program dd_ffi_program;

/* Initial contents of a program's results. */
typedef enum dd_ffi_fill {
    DD_FFI_FILL_NOTHING,
    DD_FFI_FILL_COPIES, /* result i starts as a copy of source i */
    DD_FFI_FILL_ZEROS,
} dd_ffi_fill;

/* Create a program (NULL if there is no memory). Its blocks are placeholders, never dereferenced:
 * first `nsources` arrays that calls only read, then `nresults` results. */
typedef struct dd_ffi_memory {
    const dd_block *blocks; /* nsources + nresults placeholders, copied */
    size_t nsources;
    size_t nresults;
    dd_ffi_fill fill;
} dd_ffi_memory;
dd_ffi_program *dd_ffi_program_create(uint64_t number, dd_group *group, const dd_ffi_memory *memory);

/* A tensor of the program, `view`. The call uses a contiguous copy of it, `flat`, in `scratch`. */
typedef struct dd_ffi_part {
    dd_view view;
    const void *flat;
    bool is_read;    /* `view` is packed into `flat` before the call */
    bool is_written; /* `flat` is unpacked into `view` after the call */
} dd_ffi_part;

/* One call. Its blocks must lie in the program's memory or in `scratch`, a placeholder for
 * temporary memory that each run allocates. */
typedef struct dd_ffi_call {
    const dd_coll_args *args; /* a collective; NULL if `message` is set */
    const dd_p2p *message;
    int64_t timeout_ns; /* timeout of the call; negative to use the group's */
    const dd_record_call *record;
    uint32_t stack;
    dd_block scratch;
    const dd_ffi_part *parts; /* nparts elements, copied */
    size_t nparts;
} dd_ffi_call;
/* Append a call. DD_INVALID_ARGUMENT if the group rejects it or a block is not in the program. */
dd_status dd_ffi_program_add(dd_ffi_program *program, const dd_ffi_call *call, dd_error *err) DD_MUST_CHECK;

/* Make the program available to XLA. No calls may be added after this. */
void dd_ffi_program_publish(dd_ffi_program *program);
/* Use this group for later runs. Its rank and size must equal the previous group's. */
void dd_ffi_program_set_group(dd_ffi_program *program, dd_group *group);
/* Remove the program: later runs fail. It is freed when the last run in progress has ended. */
void dd_ffi_program_destroy(dd_ffi_program *program);

/* The handler that XLA calls for each FFI call. Returns NULL on success. */
dd_ffi_error *dd_ffi_handle(dd_ffi_frame *frame);

#endif
