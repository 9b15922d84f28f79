/* Calls on a group inside of programs that XLA has compiled: what a functional form of dldist does, as one call of XLA's foreign function
 * interface. A program is made once, in terms of memory that stands for the arrays, and run on the arrays that XLA gives, as often as it
 * likes. The only attribute of the call is the program's number.
 *
 * XLA calls from any of its threads, without the GIL; calls that are to come in an order have tokens of XLA's among their arrays. */
#ifndef DD_XLA_FFI_H
#define DD_XLA_FFI_H

#include "group/group.h"
#include "kernels/view.h"
#include "xla/ffi_api.h"

typedef struct dd_ffi_program dd_ffi_program;

/* How the results begin. */
typedef enum dd_ffi_fill {
    DD_FFI_FILL_NOTHING,
    DD_FFI_FILL_COPIES, /* of the sources of the same places */
    DD_FFI_FILL_ZEROS,
} dd_ffi_fill;

/* The memory stands for arrays that are only read, `nsources` of them, and then for the results; it is not looked at. NULL without
 * memory. */
typedef struct dd_ffi_memory {
    const dd_block *blocks; /* [nsources + nresults], copied */
    size_t nsources;
    size_t nresults;
    dd_ffi_fill fill;
} dd_ffi_memory;
dd_ffi_program *dd_ffi_program_create(uint64_t number, dd_group *group, const dd_ffi_memory *memory);

/* A tensor in that memory which the call has in one piece in `flat`, somewhere in the call's scratch memory. */
typedef struct dd_ffi_part {
    dd_view view;
    const void *flat;
    bool is_read;    /* it is packed before the call */
    bool is_written; /* ... and unpacked after it */
} dd_ffi_part;

/* A call, whose blocks lie in the memory of the program, or in scratch memory that stands for what the call gets of its own. */
typedef struct dd_ffi_call {
    const dd_coll_args *args; /* a collective; NULL: a message */
    const dd_p2p *message;
    int64_t timeout_ns; /* < 0: the group's */
    const dd_record_call *record;
    uint32_t stack;
    dd_block scratch;
    const dd_ffi_part *parts; /* copied */
    size_t nparts;
} dd_ffi_call;
/* Adds a call that comes after those before. DD_INVALID_ARGUMENT if the group would refuse it, or memory is not the program's. */
dd_status dd_ffi_program_add(dd_ffi_program *program, const dd_ffi_call *call, dd_error *err) DD_MUST_CHECK;

/* From now on XLA can run it. */
void dd_ffi_program_publish(dd_ffi_program *program);
/* It runs on this group from now on, of the same rank and size. */
void dd_ffi_program_set_group(dd_ffi_program *program, dd_group *group);
/* Ends it, now or when a run that is under way has ended; later ones fail. */
void dd_ffi_program_destroy(dd_ffi_program *program);

/* What XLA calls. NULL: all went well. */
dd_ffi_error *dd_ffi_handle(dd_ffi_frame *frame);

#endif
