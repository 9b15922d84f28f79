/* A carrier moves the data of a group's calls by a third-party library: MPI, UCC, oneCCL.
 *
 * The group still connects its ranks, orders calls, compares signatures, enforces deadlines,
 * completes works and explains failures; a carrier replaces only the arena and the plans. So it
 * needs two things of a library: communicators for an existing group (dd_carrier_library.make,
 * which may use the group's own collectives), and calls that can be started and polled. Everything
 * except make and close is called with the engine's lock, and never waits.
 *
 * A collective is handed over only after all ranks have entered the same call. Ranks of a host
 * check that on their arena's board. Ranks without a common board first compare by calls that every
 * library has: an all_reduce of UINT64 by MIN and an all_gather of UINT8. So the library gets no
 * calls that differ, and a call that times out before that leaves no array in it. */
#ifndef DD_COLLECTIVE_CARRIER_H
#define DD_COLLECTIVE_CARRIER_H

#include "collective/coll.h"
#include "core/wait.h"

struct dd_group;

/* A collective in the form that such libraries know: contiguous memory, and reductions of plain
 * types.
 *
 * Counts and offsets are in elements of dtype. If this rank has a block for each rank, in_counts
 * and in_offsets (or out_counts and out_offsets) give their places in `input` (or `output`), in
 * rank order without gaps; else they are NULL. `count` is the size of this rank's single block: its
 * array (all_reduce, broadcast, reduce), its contribution (all_gather, gather), its result
 * (scatter, reduce_scatter); 0 for all_to_all and barrier. In a fold, dtype is FLOAT32, FLOAT64,
 * COMPLEX64, COMPLEX128 or an integer, and op is SUM, PRODUCT, MIN, MAX, BAND, BOR or BXOR.
 * Otherwise dtype is UINT8, UINT16, UINT32, UINT64, or COMPLEX128 for 16 bytes. */
typedef struct dd_carried_call {
    dd_coll coll;
    int root;
    dd_dtype dtype;
    dd_redop op;
    const void *input; /* NULL if this rank has none; both NULL for a barrier */
    void *output;
    size_t count;
    /* All blocks have one size, and all ranks know it: computed for all_gather and reduce_scatter;
     * false for gather, scatter and all_to_all; true for other kinds. */
    bool is_even;
    /* The input is at the place of the output: the same array (all_reduce, reduce on the root),
     * this rank's block of the output (all_gather, gather on the root) or of the input (scatter on
     * the root). Never for reduce_scatter and all_to_all; always on the root of a broadcast. */
    bool is_in_place;
    const size_t *in_counts;  /* [nranks] or NULL */
    const size_t *in_offsets; /* [nranks + 1]: the last is the end of the blocks */
    const size_t *out_counts;
    const size_t *out_offsets;
} dd_carried_call;

/* MIN and MAX of floats must return NaN if an input is NaN. True for such a call: a library whose
 * documentation does not promise it lacks the call. */
static inline bool
dd_carried_needs_nan(const dd_carried_call *call)
{
    bool is_float = call->dtype == DD_DTYPE_FLOAT32 || call->dtype == DD_DTYPE_FLOAT64;
    return dd_coll_is_folding(call->coll) && is_float &&
           (call->op == DD_REDOP_MIN || call->op == DD_REDOP_MAX);
}

/* A message. `rank` of a receive may be DD_ANY_RANK of transport/context.h. */
typedef struct dd_carried_message {
    bool is_send;
    int rank;
    uint64_t tag;
    void *data;
    size_t nbytes; /* of a receive: capacity */
    int source;    /* result */
    size_t received;
} dd_carried_message;

/* A carrier's state of an operation under way: the caller embeds it, and must not move it. */
typedef struct dd_carried {
    _Alignas(16) unsigned char state[64];
} dd_carried;

typedef struct dd_carrier dd_carrier;

typedef struct dd_carrier_ops {
    /* Return true if the library has the call, whose memory is not set yet. Equal on all ranks if
     * their calls agree. dldist itself carries out calls that the library lacks. */
    bool (*has)(const dd_carrier *carrier, const dd_carried_call *call);
    /* Start a call, one at a time. The call and its counts stay valid until its end. */
    dd_status (*start)(dd_carrier *carrier, const dd_carried_call *call, dd_carried *carried, dd_error *err);
    /* Advance the call. After a failure it has ended. */
    dd_status (*poll)(dd_carrier *carrier, dd_carried *carried, bool *is_done, dd_error *err);
    /* Abandon a cancelled operation. True if the library will not use its memory from now on. */
    bool (*cancel)(dd_carrier *carrier, dd_carried *carried);
    /* Messages, any number at a time; NULL if the library has none. has_tag: true if the library
     * can represent the tag. */
    bool (*has_tag)(const dd_carrier *carrier, uint64_t tag);
    dd_status (*start_message)(dd_carrier *carrier, const dd_carried_message *message, dd_carried *carried,
                               dd_error *err);
    dd_status (*poll_message)(dd_carrier *carrier, dd_carried *carried, dd_carried_message *message,
                              bool *is_done, dd_error *err);
    bool (*cancel_message)(dd_carrier *carrier, dd_carried *carried);
    /* Called without the lock, and not in a forked child. is_well: the group has ended cleanly, and
     * the communicator can be freed; else it must be left as it is. */
    void (*close)(dd_carrier *carrier, bool is_well);
} dd_carrier_ops;

typedef struct dd_carrier_library dd_carrier_library;

/* The head of each carrier's own struct. */
struct dd_carrier {
    const dd_carrier_ops *ops;
    dd_carrier_library *library;
};

/* A loaded library; it stays until the process exits, and owns the texts. */
struct dd_carrier_library {
    const char *name;    /* "mpi" */
    const char *version; /* "Open MPI v4.1.4", for people */
    const char *path;    /* the file that it was loaded from */
    bool yields_core;    /* its progress call yields the core */
    /* Create a carrier. Call on all ranks of a group that works, has no carrier, and is not used by
     * other callers until the end. Without the lock; waits. */
    dd_status (*make)(dd_carrier_library *library, struct dd_group *group, dd_carrier **carrier,
                      const dd_wait *wait, dd_error *err);
};

#endif
