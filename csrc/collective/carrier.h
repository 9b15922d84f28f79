/* A carrier moves the data of a group's calls by a library that somebody else wrote: MPI, UCC, oneCCL.
 *
 * The group stays what it is. It meets, orders its calls, compares signatures, keeps deadlines, completes works and says why something
 * failed; a carrier only takes the place of the arena and of the plans. So a library needs two things here: to make communicators of a
 * group that stands already (dd_carrier_library.make, which may use the group's own collectives), and to start calls and look for their
 * ends. Everything but make is called with the lock of the group's engine, and never waits.
 *
 * A collective is only handed over once all ranks have come to the same call. Ranks of a host see that on the board of their arena; those
 * that have none in common compare by calls of the library before: an all_reduce of UINT64 by MIN and an all_gather of UINT8, which
 * every library has. So it never sees calls that do not fit, and what times out before that has left no array in it. */
#ifndef DD_COLLECTIVE_CARRIER_H
#define DD_COLLECTIVE_CARRIER_H

#include "collective/coll.h"
#include "core/wait.h"

struct dd_group;

/* A collective in the form that such libraries know: contiguous memory, and reductions of plain types.
 *
 * Counts and offsets are in elements of dtype. Where this rank has a block for each rank, in_counts and in_offsets (of inputs), or
 * out_counts and out_offsets (of outputs), say where in `input` or `output` they are; else they are NULL. They are one after the other,
 * in the order of ranks. `count` is the size of the one block of this rank: its array (all_reduce, broadcast, reduce), its contribution
 * (all_gather, gather), what it gets (scatter, reduce_scatter); 0 for all_to_all and barrier.
 *
 * Folding: dtype is FLOAT32, FLOAT64, COMPLEX64, COMPLEX128 or an integer, and op one of SUM, PRODUCT, MIN, MAX, BAND, BOR, BXOR.
 * Otherwise it is UINT8, UINT16, UINT32, UINT64, or COMPLEX128 for what has 16 bytes. */
typedef struct dd_carried_call {
    dd_coll coll;
    int root;
    dd_dtype dtype;
    dd_redop op;
    const void *input; /* NULL: this rank has none; of a barrier, both */
    void *output;
    size_t count;
    /* All blocks are equally large, as all ranks know: of all_gather and reduce_scatter. False for gather, scatter and all_to_all, whose ranks
     * know their own blocks only; true where there is nothing to differ. */
    bool is_even;
    /* The input is where the output will be: the same array (all_reduce, reduce on the root), this rank's block of the output (all_gather,
     * gather on the root), or of the input (scatter on the root). Never of reduce_scatter and all_to_all, and always of a broadcast's
     * root. */
    bool is_in_place;
    const size_t *in_counts;  /* [nranks] or NULL */
    const size_t *in_offsets; /* [nranks + 1]: the last is where the blocks end */
    const size_t *out_counts;
    const size_t *out_offsets;
} dd_carried_call;

/* MIN and MAX of floats give NaN where there is one, whatever the order. Libraries whose own do not say they have no such call. */
static inline bool
dd_carried_minds_nan(const dd_carried_call *call)
{
    bool is_float = call->dtype == DD_DTYPE_FLOAT32 || call->dtype == DD_DTYPE_FLOAT64;
    return dd_coll_is_folding(call->coll) && is_float &&
           (call->op == DD_REDOP_MIN || call->op == DD_REDOP_MAX);
}

/* A message. Any rank: DD_ANY_RANK of transport/context.h, of a receive. */
typedef struct dd_carried_message {
    bool is_send;
    int rank;
    uint64_t tag;
    void *data;
    size_t nbytes; /* of a receive: room */
    int source;    /* result */
    size_t received;
} dd_carried_message;

/* What a carrier keeps of an operation under way: the owner embeds it, and leaves it where it is. */
typedef struct dd_carried {
    _Alignas(16) unsigned char state[64];
} dd_carried;

typedef struct dd_carrier dd_carrier;

typedef struct dd_carrier_ops {
    /* Whether the library has the call, which has no memory yet. Ranks whose calls agree get the same answer. What it has not goes dldist's own
     * way. */
    bool (*has)(const dd_carrier *carrier, const dd_carried_call *call);
    /* Starts it. There is one at a time. The call and its counts stay until its end. */
    dd_status (*start)(dd_carrier *carrier, const dd_carried_call *call, dd_carried *carried, dd_error *err);
    /* Goes on with it. After a failure it has ended. */
    dd_status (*look)(dd_carrier *carrier, dd_carried *carried, bool *is_done, dd_error *err);
    /* Nobody waits for it any more. True: the library does not touch its memory from now on. */
    bool (*leave)(dd_carrier *carrier, dd_carried *carried);
    /* Messages, any number at a time; NULL: the library has none. has_tag: the tags that it can tell apart. */
    bool (*has_tag)(const dd_carrier *carrier, uint64_t tag);
    dd_status (*start_message)(dd_carrier *carrier, const dd_carried_message *message, dd_carried *carried,
                               dd_error *err);
    dd_status (*look_message)(dd_carrier *carrier, dd_carried *carried, dd_carried_message *message,
                              bool *is_done, dd_error *err);
    bool (*leave_message)(dd_carrier *carrier, dd_carried *carried);
    /* Without the lock, and not in a forked child. is_well: the group has ended in good order, and so may the communicator; else it is left
     * where it is. */
    void (*close)(dd_carrier *carrier, bool is_well);
} dd_carrier_ops;

typedef struct dd_carrier_library dd_carrier_library;

/* What a carrier begins with. */
struct dd_carrier {
    const dd_carrier_ops *ops;
    dd_carrier_library *library;
};

/* A library that has been loaded; it lives as long as the process. The texts are its own. */
struct dd_carrier_library {
    const char *name;    /* "mpi" */
    const char *version; /* "Open MPI v4.1.4", for people */
    const char *path;    /* the file that it came from */
    bool gives_way;      /* a look at what is under way gives the core to others that want it */
    /* On all ranks of a group that is whole, has no carrier yet, and that nobody else uses meanwhile. Without the lock; waits. */
    dd_status (*make)(dd_carrier_library *library, struct dd_group *group, dd_carrier **carrier,
                      const dd_wait *wait, dd_error *err);
};

#endif
