/* Fences, and the common order of all sequentially consistent accesses and fences. */
#include "models/memory_internal.h"

#include <string.h>

place memory_common[MAX_LOCATIONS];

bool
memory_is_acquire(memory_order_ order)
{
    return order == ORDER_ACQUIRE || order == ORDER_CONSUME || order == ORDER_ACQ_REL ||
           order == ORDER_SEQ_CST;
}

bool
memory_is_release(memory_order_ order)
{
    return order == ORDER_RELEASE || order == ORDER_ACQ_REL || order == ORDER_SEQ_CST;
}

void
memory_commit_known(int thread)
{
    for (int t = 0; t < CHECKER_MAX_THREADS; t++) {
        pending_store *pending = &memory_actors[t].pending;
        if (pending->is_there && (t == thread || memory_actors[thread].now.clock[t] >= pending->clock)) {
            memory_raise(&memory_common[pending->location], pending->where);
            pending->is_there = false;
        }
    }
}

static void
fence_of(int thread, memory_order_ order)
{
    actor *whose = &memory_actors[thread];
    if (memory_is_acquire(order)) {
        memory_join(&whose->now, &whose->acquired);
    }
    if (order == ORDER_SEQ_CST) {
        memory_commit_known(thread);
        for (int l = 0; l < memory_nlocations; l++) {
            memory_raise(&whose->now.at[l], memory_common[l]);
            memory_common[l] = whose->now.at[l];
        }
    }
    if (memory_is_release(order)) {
        memcpy(whose->released.at, whose->now.at, (size_t)memory_nlocations * sizeof whose->now.at[0]);
        memcpy(whose->released.clock, whose->now.clock, sizeof whose->now.clock);
        whose->now.clock[thread]++;
    }
}

void
memory_fence(memory_order_ order)
{
    if (checker_self() >= 0 && order != ORDER_NONE) {
        memory_yield_for(order == ORDER_SEQ_CST);
        fence_of(checker_self(), order);
        buffering_note_fence(order);
    }
}

void
memory_note_turn(void)
{
    memory_own()->nrecent = 0;
}

static bool
is_seen_by_others(int thread, const recent_write *write)
{
    /* it precedes the common message */
    bool is_seen = write->where < memory_common[write->location];
    for (int t = 0; t < CHECKER_MAX_THREADS; t++) {
        is_seen = is_seen || (t != thread && (memory_actors[t].now.at[write->location] >= write->where ||
                                              memory_actors[t].acquired.at[write->location] >= write->where));
    }
    return is_seen;
}

/* Execute a fence in another thread. The exploration does not choose when stores happen, so the
 * target may have executed stores that no other thread has read. Its fence precedes those stores:
 * that restricts other threads least, and the target's view after the fence is the same. */
void
memory_fence_other(int target)
{
    actor *whose = &memory_actors[target];
    int nbefore = 0;
    for (int i = 0; i < whose->nrecent; i++) {
        nbefore = is_seen_by_others(target, &whose->recent[i]) ? i + 1 : nbefore;
    }
    pending_store pending = whose->pending;
    for (int i = whose->nrecent - 1; i >= nbefore; i--) {
        const recent_write *write = &whose->recent[i];
        whose->now.at[write->location] = write->before;
        whose->pending.is_there = whose->pending.is_there && pending.where != write->where;
    }
    bool is_pending_later = pending.is_there && !whose->pending.is_there;
    fence_of(target, ORDER_SEQ_CST);
    for (int i = nbefore; i < whose->nrecent; i++) {
        memory_raise(&whose->now.at[whose->recent[i].location], whose->recent[i].where);
    }
    if (is_pending_later) {
        whose->pending = pending;
    }
    memmove(whose->recent, whose->recent + nbefore,
            (size_t)(whose->nrecent - nbefore) * sizeof whose->recent[0]);
    whose->nrecent -= nbefore;
}
