/* The naps of the background thread, which reads hints about callers without a lock. */
#include "transport/engine_internal.h"

#include "core/lock.h"

#include <time.h>

void
engine_nap_init(dd_engine *engine)
{
    atomic_init(&engine->ndrives, 0);
    atomic_init(&engine->ncalls, 0);
    atomic_init(&engine->is_driven, false);
    atomic_init(&engine->nprompt, 0);
    atomic_init(&engine->is_napping_long, false);
    dd_lock_init(&engine->nap_mu, DD_LOCK_ENGINE_NAP);
    dd_cond_init(&engine->nap);
}

/* ---- called by callers' threads */

void
dd_engine_set_prompt_locked(dd_engine *engine, bool is_wanted)
{
    unsigned before = atomic_load_explicit(&engine->nprompt, memory_order_relaxed);
    atomic_store_explicit(&engine->nprompt, is_wanted ? before + 1 : before - 1, memory_order_relaxed);
}

void
engine_note_undriven(dd_engine *engine)
{
    atomic_store(&engine->is_driven, false);
}

/* End a long nap that began while the caller drove (nap_once), if prompt answers are wanted. */
void
engine_cut_nap_short(dd_engine *engine)
{
    bool is_prompt = atomic_load_explicit(&engine->nprompt, memory_order_relaxed) > 0;
    if (is_prompt && atomic_load(&engine->is_napping_long)) {
        dd_lock_take(&engine->nap_mu);
        dd_cond_signal(&engine->nap);
        dd_lock_release(&engine->nap_mu);
    }
}

/* ---- called by the background thread */

/* Nap once. nap_mu must be held. Sets is_napping_long before reading is_driven, so that a caller
 * that stops driving (after clearing is_driven) sees the flag. */
static void
nap_once(dd_engine *engine, bool is_long)
{
    atomic_store(&engine->is_napping_long, true);
    bool is_short = !atomic_load(&engine->is_driven) && atomic_load(&engine->nprompt) > 0;
    if (is_short) {
        atomic_store(&engine->is_napping_long, false);
    }
    int64_t until_ns = dd_clock_now_ns() + (is_short  ? DD_NAP_ENGINE_PROMPT_NS
                                            : is_long ? DD_NAP_ENGINE_LONG_NS
                                                      : DD_NAP_ENGINE_NS);
    struct timespec until = {until_ns / DD_NS_PER_S, until_ns % DD_NS_PER_S};
    dd_cond_wait_until(&engine->nap, &engine->nap_mu, &until);
}

static bool
has_driven(const dd_engine *engine, engine_callers_seen *seen)
{
    engine_callers_seen before = *seen;
    seen->ndrives = atomic_load_explicit(&engine->ndrives, memory_order_relaxed);
    seen->ncalls = atomic_load_explicit(&engine->ncalls, memory_order_relaxed);
    seen->are_active = seen->ndrives != before.ndrives || seen->ncalls != before.ncalls;
    return seen->ndrives != before.ndrives || atomic_load_explicit(&engine->is_driven, memory_order_relaxed);
}

bool
engine_nap(dd_engine *engine, engine_callers_seen *seen)
{
    bool is_time = false;
    dd_lock_take(&engine->nap_mu);
    while (!engine->is_stopping && !is_time) {
        if (!engine->is_kicked) {
            nap_once(engine, seen->are_active);
        }
        is_time = !has_driven(engine, seen) || engine->is_kicked;
        engine->is_kicked = false;
    }
    bool goes_on = !engine->is_stopping;
    dd_lock_release(&engine->nap_mu);
    return goes_on;
}
