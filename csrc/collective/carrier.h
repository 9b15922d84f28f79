/* A carrier moves the data of a group's calls with a third-party library: MPI, UCC or oneCCL.
 *
 * The group still connects its ranks, orders calls, compares signatures, enforces deadlines,
 * completes works and explains failures; a carrier replaces only the arena and the plans. A library
 * must therefore provide two things: communicators for an existing group (dd_carrier_library.make,
 * which may use the group's own collectives), and calls that can be started and polled. Every
 * function except make and close is called with the engine's lock held, and must not wait.
 *
 * A collective is handed over only after all ranks have entered the same call. Ranks of one host
 * check this on their arena's board. Ranks without a common board first compare their calls by two
 * calls that every library has: an all_reduce of UINT64 by MIN and an all_gather of UINT8. So the
 * library never gets calls that differ between ranks, and a call that times out before the handover
 * leaves no array in the library. */
#ifndef DD_COLLECTIVE_CARRIER_H
#define DD_COLLECTIVE_CARRIER_H

#include "collective/coll.h"
#include "core/wait.h"

struct dd_group;

/* A collective in the form that carriers' libraries take: contiguous memory, and reductions of
 * plain types.
 *
 * Counts and offsets are in elements of dtype. If this rank has a block for each rank, in_counts
 * and in_offsets (or out_counts and out_offsets) give the blocks' places in `input` (or `output`),
 * in rank order without gaps; else these arrays are NULL. `count` is the size of this rank's single
 * block: its array (all_reduce, broadcast, reduce), its contribution (all_gather, gather), its
 * result (scatter, reduce_scatter); 0 for all_to_all and barrier. In a reduction, dtype is FLOAT32,
 * FLOAT64, COMPLEX64, COMPLEX128 or an integer, and op is SUM, PRODUCT, MIN, MAX, BAND, BOR or
 * BXOR. Otherwise dtype is UINT8, UINT16, UINT32, UINT64, or COMPLEX128 for 16 bytes. */
typedef struct dd_carried_call {
    dd_coll coll;
    int root;
    dd_dtype dtype;
    dd_redop op;
    const void *input; /* NULL if this rank has no input; in a barrier, output is also NULL */
    void *output;
    size_t count;
    /* True if all blocks have one size that all ranks know: computed for all_gather and
     * reduce_scatter; else false for gather, scatter and all_to_all, and true for other kinds. */
    bool is_even;
    /* True if input and output share memory: the same array (all_reduce, reduce on the root), the
     * input in this rank's block of the output (all_gather, gather on the root), or the output in
     * this rank's block of the input (scatter on the root). Never true for reduce_scatter and
     * all_to_all; always true on the root of a broadcast. */
    bool is_in_place;
    const size_t *in_counts;  /* [nranks]: number of elements in each block; or NULL */
    const size_t *in_offsets; /* [nranks + 1]: offset of each block, then the end of the last one */
    const size_t *out_counts;
    const size_t *out_offsets;
} dd_carried_call;

/* Return true if the call is a MIN or MAX of floats, which must return NaN if an input is NaN. A
 * library whose documentation does not promise NaN must report such a call as unsupported. */
static inline bool
dd_carried_needs_nan(const dd_carried_call *call)
{
    bool is_float = call->dtype == DD_DTYPE_FLOAT32 || call->dtype == DD_DTYPE_FLOAT64;
    return dd_coll_is_folding(call->coll) && is_float &&
           (call->op == DD_REDOP_MIN || call->op == DD_REDOP_MAX);
}

/* A point-to-point message. In a receive, `rank` may be DD_ANY_RANK (transport/context.h). */
typedef struct dd_carried_message {
    bool is_send;
    int rank;
    uint64_t tag;
    void *data;
    size_t nbytes; /* in a receive: capacity of `data` */
    int source;    /* result of a receive: the sender's rank */
    size_t received;
} dd_carried_message;

/* State of a carrier's operation under way. The caller embeds this struct, and must not move it. */
typedef struct dd_carried {
    _Alignas(16) unsigned char state[64];
} dd_carried;

typedef struct dd_carrier dd_carrier;

typedef struct dd_carrier_ops {
    /* Return true if the library supports the call, whose memory is not set yet. The result must be
     * equal on all ranks whose calls agree. dldist itself carries out unsupported calls. */
    bool (*has)(const dd_carrier *carrier, const dd_carried_call *call);
    /* Start a call; only one may be under way. The call and its counts stay valid until it ends. */
    dd_status (*start)(dd_carrier *carrier, const dd_carried_call *call, dd_carried *carried, dd_error *err);
    /* Advance the call, and set *is_done. A failure also ends the call. */
    dd_status (*poll)(dd_carrier *carrier, dd_carried *carried, bool *is_done, dd_error *err);
    /* Abandon an operation, which the library may be unable to stop. Return true if the library no
     * longer uses its memory. */
    bool (*abandon)(dd_carrier *carrier, dd_carried *carried);
    /* Point-to-point messages, any number at a time. The next four functions are NULL if the
     * library has none. has_tag returns true if the library can represent the tag. */
    bool (*has_tag)(const dd_carrier *carrier, uint64_t tag);
    dd_status (*start_message)(dd_carrier *carrier, const dd_carried_message *message, dd_carried *carried,
                               dd_error *err);
    dd_status (*poll_message)(dd_carrier *carrier, dd_carried *carried, dd_carried_message *message,
                              bool *is_done, dd_error *err);
    bool (*cancel_message)(dd_carrier *carrier, dd_carried *carried);
    /* Close the carrier. Called without the lock, and not in a forked child. If is_well, the group
     * has ended cleanly and the communicator can be freed; otherwise it must be leaked. */
    void (*close)(dd_carrier *carrier, bool is_well);
} dd_carrier_ops;

typedef struct dd_carrier_library dd_carrier_library;

/* A carrier's own struct begins with this one. */
struct dd_carrier {
    const dd_carrier_ops *ops;
    dd_carrier_library *library;
};

/* A loaded library. It stays loaded until the process exits, and owns its strings. */
struct dd_carrier_library {
    const char *name;    /* short name: "mpi" */
    const char *version; /* for messages: "Open MPI v4.1.4" */
    const char *path;    /* the file that the library was loaded from */
    bool yields_core;    /* a poll of the library yields the core */
    /* Create a carrier for the group. Call without the lock, on all ranks of a working group that
     * has no carrier; no other thread may use the group during the call. May block. */
    dd_status (*make)(dd_carrier_library *library, struct dd_group *group, dd_carrier **carrier,
                      const dd_wait *wait, dd_error *err);
};

#endif
