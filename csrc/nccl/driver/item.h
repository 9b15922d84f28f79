/* One call of NCCL that moves data, as a value: the one place that knows their prototypes. */
#ifndef DD_NCCL_DRIVER_ITEM_H
#define DD_NCCL_DRIVER_ITEM_H

#include "nccl/driver/lib_api.h"

typedef enum dd_nccl_item_kind {
    DD_NCCL_ITEM_ALL_REDUCE,
    DD_NCCL_ITEM_BROADCAST,
    DD_NCCL_ITEM_REDUCE,
    DD_NCCL_ITEM_ALL_GATHER,
    DD_NCCL_ITEM_REDUCE_SCATTER,
    DD_NCCL_ITEM_ALL_TO_ALL, /* this and the next two: since 2.28.3 */
    DD_NCCL_ITEM_GATHER,
    DD_NCCL_ITEM_SCATTER,
    DD_NCCL_ITEM_SEND,
    DD_NCCL_ITEM_RECV,
} dd_nccl_item_kind;

/* With NCCL's meaning: count is of one rank's block, send == recv is in place. */
typedef struct dd_nccl_item {
    dd_nccl_item_kind kind;
    const void *send; /* not of RECV, nor of SCATTER on other ranks than the root */
    void *recv;       /* not of SEND, nor of REDUCE and GATHER on other ranks than the root */
    size_t count;
    dd_nccl_dtype dtype;
    dd_nccl_redop redop; /* ALL_REDUCE, REDUCE, REDUCE_SCATTER */
    int root;            /* BROADCAST, REDUCE, GATHER, SCATTER; of SEND and RECV the peer */
    /* Borrowed, and copied by NCCL, 2.31.2 or newer. NULL: NCCL chooses. SEND and RECV have none: it is not looked at. */
    const dd_nccl_abi_coll_config *config;
} dd_nccl_item;

/* Makes the call, which this NCCL must have, by its other function if there is a configuration. */
dd_nccl_result dd_nccl_item_call(const dd_nccl_api *api, const dd_nccl_item *item, dd_nccl_comm_handle comm,
                                 dd_cuda_stream stream);
/* "ncclAllReduce" */
const char *dd_nccl_item_function(dd_nccl_item_kind kind);

#endif
