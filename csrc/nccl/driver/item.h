/* An NCCL call that moves data, as a value. Only item.c knows the prototypes of NCCL. */
#ifndef DD_NCCL_DRIVER_ITEM_H
#define DD_NCCL_DRIVER_ITEM_H

#include "nccl/driver/lib_api.h"

typedef enum dd_nccl_item_kind {
    DD_NCCL_ITEM_ALL_REDUCE,
    DD_NCCL_ITEM_BROADCAST,
    DD_NCCL_ITEM_REDUCE,
    DD_NCCL_ITEM_ALL_GATHER,
    DD_NCCL_ITEM_REDUCE_SCATTER,
    DD_NCCL_ITEM_ALL_TO_ALL, /* ALL_TO_ALL, GATHER and SCATTER need NCCL 2.28.3 */
    DD_NCCL_ITEM_GATHER,
    DD_NCCL_ITEM_SCATTER,
    DD_NCCL_ITEM_SEND,
    DD_NCCL_ITEM_RECV,
} dd_nccl_item_kind;

/* NCCL's arguments. `count`: number of elements of a rank's block. In place if send == recv. */
typedef struct dd_nccl_item {
    dd_nccl_item_kind kind;
    const void *send; /* unused by RECV, and by SCATTER on ranks other than the root */
    void *recv;       /* unused by SEND, and by REDUCE and GATHER on ranks other than the root */
    size_t count;
    dd_nccl_dtype dtype;
    dd_nccl_redop redop; /* used by ALL_REDUCE, REDUCE and REDUCE_SCATTER */
    int root;            /* root of BROADCAST, REDUCE, GATHER, SCATTER; peer of SEND, RECV */
    /* Borrowed configuration (NCCL 2.31.2); NULL to let NCCL choose. Unused by SEND and RECV. */
    const dd_nccl_abi_coll_config *config;
} dd_nccl_item;

/* Call NCCL's function, which must exist, or its Config variant if item->config is not NULL. */
dd_nccl_result dd_nccl_item_call(const dd_nccl_api *api, const dd_nccl_item *item, dd_nccl_comm_handle comm,
                                 dd_cuda_stream stream);
/* Return the name of NCCL's function, such as "ncclAllReduce". */
const char *dd_nccl_item_function(dd_nccl_item_kind kind);

#endif
