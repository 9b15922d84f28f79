/* Counters of the store's server and of the engine, read from their internal state. */
#ifndef DD_TESTS_INSIGHT_H
#define DD_TESTS_INSIGHT_H

#include "store/tcp_server_internal.h"
#include "transport/engine_internal.h"

typedef struct server_stats {
    uint64_t connections;
    uint64_t accepted;
    uint64_t reads;
    uint64_t parked;
    uint64_t entries;
} server_stats;

static inline server_stats
read_server_stats(const dd_tcp_server *server)
{
    return (server_stats){.connections = atomic_load(&server->nconns),
                          .accepted = atomic_load(&server->naccepted),
                          .reads = atomic_load(&server->nreads),
                          .parked = atomic_load(&server->nparked),
                          .entries = atomic_load(&server->nentries)};
}

static inline dd_engine_stats
read_engine_stats(dd_engine *engine)
{
    dd_engine_lock(engine);
    dd_engine_stats stats = engine->stats;
    dd_engine_unlock(engine);
    return stats;
}

#endif
