/* Detection of data races: conflicting accesses that are not atomic must be ordered by other
 * accesses. */
#include "models/memory_internal.h"

#include <stdlib.h>
#include <string.h>

#define NCELLS ((size_t)1 << 15)

/* The last accesses to eight bytes, as clocks of their threads. */
typedef struct cell {
    uintptr_t word;
    unsigned run;
    bool has_locations;
    unsigned accessors; /* a bit for each thread */
    /* clock of the newest access to the bytes */
    uint16_t newest[CHECKER_MAX_THREADS][ACCESS_KINDS];
    uint16_t clock[CHECKER_MAX_THREADS][ACCESS_KINDS][8];
} cell;

static cell *cells;
static cell *touched[NCELLS];
static int ntouched;
static unsigned run = 1;

void
memory_begin_run_of_races(void)
{
    if (cells == NULL) {
        cells = calloc(NCELLS, sizeof *cells);
    }
    run++;
    ntouched = 0;
}

static cell *
find_cell(uintptr_t word)
{
    size_t at = (size_t)((word * UINT64_C(0x9E3779B97F4A7C15)) >> 40) & (NCELLS - 1);
    for (size_t looks = 0; cells[at].run == run && cells[at].word != word; looks++) {
        if (looks == NCELLS - 1) {
            explore_fail("the scenario touches too much memory");
        }
        at = (at + 1) & (NCELLS - 1);
    }
    if (cells[at].run != run) {
        memset(&cells[at], 0, sizeof cells[at]);
        cells[at].run = run;
        cells[at].word = word;
        touched[ntouched++] = &cells[at];
    }
    return &cells[at];
}

/* Return true if two accesses of different threads must be ordered. */
static bool
do_conflict(access_kind a, access_kind b)
{
    bool is_write =
        a == ACCESS_WRITE || a == ACCESS_ATOMIC_WRITE || b == ACCESS_WRITE || b == ACCESS_ATOMIC_WRITE;
    bool are_atomic = a >= ACCESS_ATOMIC_READ && b >= ACCESS_ATOMIC_READ;
    return is_write && !are_atomic;
}

static void
check_bytes(const cell *found, int first, int nbytes, access_kind kind, int thread)
{
    static const char *const names[] = {"a read", "a write", "an atomic read", "an atomic write"};
    uint32_t seen = memory_own()->now.clock[thread];
    for (access_kind other = 0; other < ACCESS_KINDS; other++) {
        if (found->newest[thread][other] <= seen || !do_conflict(kind, other)) {
            continue;
        }
        for (int byte = first; byte < first + nbytes; byte++) {
            if (found->clock[thread][other][byte] > seen) {
                explore_fail("a data race: %s of %p, which is not ordered after %s by thread %d", names[kind],
                             (void *)(found->word + (uintptr_t)byte), names[other], thread);
            }
        }
    }
}

bool
memory_is_ordered(uintptr_t address, int size, access_kind kind)
{
    const cell *found = find_cell(address & ~UINT64_C(7));
    int first = (int)(address & 7);
    bool is_everything = true;
    for (unsigned others = found->accessors & ~(1u << checker_self()); others != 0; others &= others - 1) {
        int thread = __builtin_ctz(others);
        for (access_kind other = ACCESS_ATOMIC_READ; other < ACCESS_KINDS; other++) {
            bool is_conflict = kind == ACCESS_ATOMIC_WRITE || other == ACCESS_ATOMIC_WRITE;
            for (int byte = first; is_conflict && byte < first + size; byte++) {
                is_everything =
                    is_everything && found->clock[thread][other][byte] <= memory_own()->now.clock[thread];
            }
        }
    }
    return is_everything;
}

void
memory_note_access(uintptr_t address, size_t nbytes, access_kind kind)
{
    int self = checker_self();
    cell *found = find_cell(address & ~UINT64_C(7));
    int first = (int)(address & 7);
    uint16_t clock = (uint16_t)memory_own()->now.clock[self];
    for (unsigned others = found->accessors & ~(1u << self); others != 0; others &= others - 1) {
        check_bytes(found, first, (int)nbytes, kind, __builtin_ctz(others));
    }
    found->accessors |= 1u << self;
    found->newest[self][kind] = clock;
    for (size_t i = 0; i < nbytes; i++) {
        found->clock[self][kind][first + (int)i] = clock;
    }
}

void
memory_note_location(uintptr_t address)
{
    find_cell(address & ~UINT64_C(7))->has_locations = true;
}

/* ---- accesses that are not atomic */

static void
note_plain(uintptr_t address, size_t nbytes, access_kind kind)
{
    while (nbytes > 0) {
        size_t step = 8 - (address & 7);
        step = step < nbytes ? step : nbytes;
        memory_note_access(address, step, kind);
        if (kind == ACCESS_WRITE && find_cell(address & ~UINT64_C(7))->has_locations) {
            memory_write_whole_locations(address, step);
        }
        address += step;
        nbytes -= step;
    }
}

/* Return false for private memory of a thread, which needs no clocks. */
static bool
is_shared(const void *at)
{
    int owner = standins_owner_of(at);
    if (owner >= 0 && owner != checker_self()) {
        explore_fail("looks at %p, which is thread %d's own", at, owner);
    }
    return owner < 0;
}

void
memory_read_plain(const void *at, size_t nbytes)
{
    if (checker_self() >= 0 && is_shared(at)) {
        note_plain((uintptr_t)at, nbytes, ACCESS_READ);
    }
}

void
memory_write_plain(void *at, size_t nbytes)
{
    if (checker_self() < 0) {
        return;
    }
    memory_keep_for_undo(at, nbytes);
    if (is_shared(at)) {
        note_plain((uintptr_t)at, nbytes, ACCESS_WRITE);
    }
}

/* ---- states */

static uint64_t
hash_cell(const cell *of, const uint32_t *known_clock)
{
    uint64_t sum = 0;
    for (unsigned left = of->accessors; left != 0; left &= left - 1) {
        int t = __builtin_ctz(left);
        for (access_kind kind = 0; kind < ACCESS_KINDS; kind++) {
            for (int byte = 0; of->newest[t][kind] > known_clock[t] && byte < 8; byte++) {
                uint16_t clock = of->clock[t][kind][byte];
                uint64_t label = of->word * 64 + (uint64_t)((t * ACCESS_KINDS + (int)kind) * 8 + byte);
                sum += clock > known_clock[t] ? memory_mix(label, clock - known_clock[t]) : 0;
            }
        }
    }
    return sum;
}

uint64_t
memory_hash_accesses(const uint32_t known_clock[CHECKER_MAX_THREADS])
{
    uint64_t sum = 0;
    for (int i = 0; i < ntouched; i++) {
        sum += hash_cell(touched[i], known_clock);
    }
    return sum;
}
