/* Equality of memory states. Only the visible part of the past matters: messages that some thread's
 * view allows, and the part of each view that not all threads have. Places and clocks are counted
 * from there. */
#include "models/memory_internal.h"

static int first_live[MAX_LOCATIONS];
static uint32_t known_clock[CHECKER_MAX_THREADS];

static int
index_of(int number, place where)
{
    const location *which = &memory_locations[number];
    int at = which->nmessages - 1;
    while (at > 0 && which->messages[at]->where > where) {
        at--;
    }
    return at;
}

static void
find_first_live(unsigned live)
{
    for (int l = 0; l < memory_nlocations; l++) {
        const location *which = &memory_locations[l];
        first_live[l] = which->nmessages - 1;
        for (unsigned left = which->is_of_kernel ? 0 : live & which->known->users; left != 0;
             left &= left - 1) {
            int at = index_of(l, memory_actors[__builtin_ctz(left)].now.at[l]);
            first_live[l] = at < first_live[l] ? at : first_live[l];
        }
    }
    for (int t = 0; t < CHECKER_MAX_THREADS; t++) {
        known_clock[t] = UINT32_MAX;
        for (unsigned left = live & ~(1u << t); left != 0; left &= left - 1) {
            uint32_t clock = memory_actors[__builtin_ctz(left)].now.clock[t];
            known_clock[t] = clock < known_clock[t] ? clock : known_clock[t];
        }
    }
}

static uint64_t
hash_addresses(const place *at, int nat)
{
    uint64_t sum = 0;
    for (int l = 0; l < nat; l++) {
        int beyond = at[l] != 0 ? index_of(l, at[l]) - first_live[l] : 0;
        sum += beyond > 0 ? memory_mix(memory_locations[l].address, (uint64_t)beyond) : 0;
    }
    return sum;
}

static uint64_t
hash_clocks(const uint32_t *clock)
{
    uint64_t sum = 0;
    for (int t = 0; t < CHECKER_MAX_THREADS; t++) {
        sum += clock[t] > known_clock[t] ? memory_mix((uint64_t)t, clock[t] - known_clock[t]) : 0;
    }
    return sum;
}

static uint64_t
hash_view(const view *which)
{
    return memory_mix(hash_clocks(which->clock), hash_addresses(which->at, memory_nlocations));
}

static uint64_t
hash_location(int number)
{
    const location *which = &memory_locations[number];
    uint64_t hash = which->address;
    for (int i = first_live[number]; i < which->nmessages; i++) {
        const message *each = which->messages[i];
        hash = memory_mix(hash, each->is_plain ? 0 : each->value);
        hash = memory_mix(hash, each->is_change && i > first_live[number]);
        hash = memory_mix(hash, hash_addresses(each->at, each->nat) + hash_clocks(each->clock));
    }
    return hash;
}

/* Hash the state that polling depends on. */
static uint64_t
hash_look(const actor *of)
{
    uint64_t sum = 1 + (uint64_t)of->has_written + 2 * (uint64_t)of->has_seen_news;
    for (int l = 0; l < memory_nlocations; l++) {
        int beyond = of->last_read[l] != 0 ? index_of(l, of->last_read[l]) - first_live[l] : 0;
        sum +=
            of->is_read[l] ? memory_mix(memory_locations[l].address, (uint64_t)(beyond > 0 ? beyond : 0)) : 0;
    }
    return sum;
}

uint64_t
memory_hash(unsigned live)
{
    find_first_live(live);
    uint64_t hash = hash_addresses(memory_common, memory_nlocations);
    for (int l = 0; l < memory_nlocations; l++) {
        hash += hash_location(l);
    }
    hash += memory_hash_accesses(known_clock);
    for (unsigned left = live; left != 0; left &= left - 1) {
        const actor *each = &memory_actors[__builtin_ctz(left)];
        hash = memory_mix(hash, hash_view(&each->now));
        hash = memory_mix(hash, hash_view(&each->acquired));
        hash = memory_mix(hash, hash_view(&each->released));
        hash = memory_mix(hash, each->has_polled ? hash_look(each) : 0);
        if (each->pending.is_there) {
            hash = memory_mix(hash, memory_locations[each->pending.location].address);
            hash = memory_mix(hash, (uint64_t)index_of(each->pending.location, each->pending.where));
            hash = memory_mix(hash, each->pending.clock);
        }
    }
    return hash;
}
