/* The check for NaN, among its files: nccl_launch_nan.c goes through the inputs of a call and asks the device, nccl_nan_host.c looks itself
 * where there are no kernels, nccl_nan_graph.c is about calls in CUDA graphs, whose inputs are looked at with each launch. */
#ifndef DD_NCCL_NCCL_NAN_H
#define DD_NCCL_NCCL_NAN_H

#include "nccl/nccl_internal.h"

/* How the floats of a dtype lie, and from which value on, without the sign, their bits are NaN. */
typedef struct nccl_nan_format {
    unsigned width; /* bytes of a float */
    uint64_t limit;
    unsigned nfloats; /* in an element */
} nccl_nan_format;

/* An input of a call. */
typedef struct nccl_nan_place {
    size_t op; /* of nops in the call */
    size_t nops;
    int index; /* of ninputs in the operation */
    int ninputs;
    nccl_nan_format format;
} nccl_nan_place;

/* The next input of the call that has floats, in its order; false: there are no more. At first *place is NCCL_NAN_FIRST. */
#define NCCL_NAN_FIRST ((nccl_nan_place){.index = -1})
bool nccl_nan_next(const nccl_launch *launch, nccl_nan_place *place, const dd_block **block);
/* "operation 1 of 3: all_reduce: input 2 has a NaN at element 7". `at` counts floats. Returns DD_INVALID_ARGUMENT. */
dd_status nccl_nan_describe(const char *what, const nccl_nan_place *place, uint64_t at, dd_error *err);
/* The stream has done everything so far; DD_OP_TIMED_OUT. */
dd_status nccl_nan_wait(nccl_launch *launch, const dd_wait *wait) DD_MUST_CHECK;

/* What kernels report: the number of an input, and the index of a float there. Devices have fewer floats than that, and calls
 * fewer inputs. */
#define NCCL_NAN_INDEX_BITS 40
static inline uint64_t
nccl_nan_key(uint64_t number)
{
    return number << NCCL_NAN_INDEX_BITS;
}
static inline uint64_t
nccl_nan_number(uint64_t reported)
{
    return reported >> NCCL_NAN_INDEX_BITS;
}
static inline uint64_t
nccl_nan_index(uint64_t reported)
{
    return reported & (nccl_nan_key(1) - 1);
}
/* Kernels for all inputs of the call into its stream, the first of which has this number. */
dd_status nccl_nan_enqueue(nccl_launch *launch, uint64_t first, dd_cuda_nan_report *report) DD_MUST_CHECK;

/* ---- nccl_nan_host.c */

dd_status nccl_nan_check_on_host(nccl_launch *launch) DD_MUST_CHECK;

/* ---- nccl_nan_graph.c */

/* The call's graph looks for NaN whenever it is launched; nccl_nan_look tells. */
dd_status nccl_nan_capture(nccl_launch *launch) DD_MUST_CHECK;

#endif
