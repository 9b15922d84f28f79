/* csrc/transport/engine_nap.c: a caller that leaves the engine, and the engine's thread, which naps
 * for longer while callers drive the engine. */
#include "models/checker.h"

#include "transport/engine_internal.h"

#include <string.h>

/* A nap of this length is short and ends by its timeout. */
#define SHORT_NAP_NS DD_NS_PER_MS

static dd_engine engine;

static void
open_driven(void)
{
    memset(&engine, 0, sizeof engine);
    engine_nap_init(&engine);
    atomic_store(&engine.is_driven, true);
    checker_set_patience(SHORT_NAP_NS);
}

/* A caller requests prompt progress while another caller drives the engine. */
static void
leave_or_nap(int self)
{
    if (self == 0) {
        dd_engine_set_prompt_locked(&engine, true);
        engine_note_undriven(&engine);
        engine_cut_nap_short(&engine);
    } else {
        engine_callers_seen seen = {.are_active = true};
        REQUIRE(engine_nap(&engine, &seen));
    }
}

SCENARIO(engine_naps, .label = "a caller that leaves while the engine's thread begins a long nap",
         .nthreads = 2, .setup = open_driven, .thread = leave_or_nap, .max_same = 3)
