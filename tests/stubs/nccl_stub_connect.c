/* Connections: the first call that needs one creates it, and its callers wait for each other on the
 * host. One-sided operations use windows instead. */
#include "nccl_stub.h"

#include <stdlib.h>
#include <string.h>

/* Return true if connections for collectives are created when needed. Older versions, and all if
 * NCCL_RUNTIME_CONNECT=0, create them with the communicator. */
static bool
are_made_late(void)
{
    const char *setting = getenv("NCCL_RUNTIME_CONNECT");
    return nccl_stub_version >= 22203 && (setting == NULL || strcmp(setting, "0") != 0);
}

static bool
needs_collectives(const nccl_comm *comm, const nccl_op *op)
{
    return !nccl_is_message(op->kind) && !nccl_is_one_sided(op->kind) && !comm->is_connected &&
           are_made_late();
}

static bool
needs_peer(const nccl_comm *comm, const nccl_op *op)
{
    return nccl_is_message(op->kind) && op->peer != comm->rank &&
           !(op->kind == NCCL_SEND ? comm->is_connected_to : comm->is_connected_from)[op->peer];
}

/* No lock is needed: only calls of the communicator read and change its connections, and these are
 * serialized. */
bool
nccl_must_connect(const nccl_comm *comm, const nccl_op *ops, size_t nops)
{
    for (size_t i = 0; i < nops; i++) {
        if (needs_collectives(comm, &ops[i]) || needs_peer(comm, &ops[i])) {
            return true;
        }
    }
    return false;
}

/* Prepare one byte to the peer and one from it. */
static size_t
greet(nccl_comm *comm, const nccl_op *op, char *byte, wire_transfer out[2])
{
    bool is_send = op->kind == NCCL_SEND;
    (is_send ? comm->is_connected_to : comm->is_connected_from)[op->peer] = true;
    for (int i = 0; i < 2; i++) {
        bool is_own_word = i == 0;
        out[i] = (wire_transfer){
            .is_send = is_own_word,
            .lane = is_send == is_own_word ? WIRE_SENDER : WIRE_RECEIVER,
            .peer = op->peer,
            .data = byte,
            .nbytes = 1,
        };
    }
    return 2;
}

dd_nccl_result
nccl_connect(nccl_comm *comm, const nccl_op *ops, size_t nops)
{
    wire_transfer *transfers = stub_zalloc(2 * nops * sizeof *transfers);
    char *bytes = stub_zalloc(nops);
    size_t n = 0;
    bool is_done = true;
    for (size_t i = 0; i < nops && is_done; i++) {
        if (needs_collectives(comm, &ops[i])) {
            is_done = nccl_comm_barrier(comm);
            comm->is_connected = true;
        } else if (needs_peer(comm, &ops[i])) {
            n += greet(comm, &ops[i], &bytes[i], transfers + n);
        }
    }
    is_done = is_done && wire_carry(comm->wire, transfers, n, &comm->is_aborted) == WIRE_OK;
    free(transfers);
    free(bytes);
    return is_done ? DD_NCCL_SUCCESS
                   : nccl_fail(DD_NCCL_INTERNAL_ERROR, "the communicator was aborted while it connected");
}
