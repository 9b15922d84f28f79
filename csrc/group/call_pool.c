/* Memory of calls that outlive the function that made them. A group keeps 64 such calls for reuse;
 * they are taken and returned without a lock. A work may outlive its group and be released by any
 * thread, so the pool has a reference count: one for the group, and one for each call in use. */
#include "group/internal.h"

#include "core/mem.h"

#define POOL_SLOTS 64

typedef struct call_pool {
    atomic_uint refs; /* one for the group, and one for each call in use */
    /* Unused calls. Taken by an exchange with NULL (acquire), and put back with release. */
    _Atomic(group_call *) free[POOL_SLOTS];
} call_pool;

dd_status
group_create_pool(dd_group *group, dd_error *err)
{
    group->pool = dd_mem_zalloc(sizeof *group->pool);
    if (group->pool == NULL) {
        return dd_error_no_memory(err, sizeof *group->pool);
    }
    atomic_init(&group->pool->refs, 1);
    return DD_OK;
}

void
group_release_pool(call_pool *pool)
{
    if (pool == NULL || atomic_fetch_sub_explicit(&pool->refs, 1, memory_order_acq_rel) != 1) {
        return;
    }
    for (int i = 0; i < POOL_SLOTS; i++) {
        dd_mem_free(atomic_load_explicit(&pool->free[i], memory_order_acquire));
    }
    dd_mem_free(pool);
}

dd_status
group_call_create(call_pool *pool, group_call **out, dd_error *err)
{
    group_call *call = NULL;
    for (int i = 0; i < POOL_SLOTS && call == NULL; i++) {
        if (atomic_load_explicit(&pool->free[i], memory_order_relaxed) != NULL) {
            call = atomic_exchange_explicit(&pool->free[i], NULL, memory_order_acquire);
        }
    }
    call = call != NULL ? call : dd_mem_alloc(sizeof *call);
    if (call == NULL) {
        return dd_error_no_memory(err, sizeof *call);
    }
    atomic_fetch_add_explicit(&pool->refs, 1, memory_order_relaxed);
    call->pool = pool;
    call->blocks = call->inline_blocks;
    call->prepared_form = NULL;
    *out = call;
    return DD_OK;
}

void
group_call_destroy(group_call *call)
{
    call_pool *pool = call->pool;
    dd_coll_form_destroy(call->prepared_form);
    if (call->blocks != call->inline_blocks) {
        dd_mem_free(call->blocks);
    }
    for (int i = 0; i < POOL_SLOTS && call != NULL; i++) {
        group_call *none = NULL;
        if (atomic_load_explicit(&pool->free[i], memory_order_relaxed) == NULL &&
            atomic_compare_exchange_strong_explicit(&pool->free[i], &none, call, memory_order_release,
                                                    memory_order_relaxed)) {
            call = NULL;
        }
    }
    dd_mem_free(call);
    group_release_pool(pool);
}
