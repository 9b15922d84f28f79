/* The memory of C11, as a machine: what docs/memory-orders.md says in words.
 *
 * A location keeps all values that were written to it, as messages, in modification order. A thread has a view: the newest message of each
 * location that it must not look behind any more. A load takes any message that its view allows. A message carries the view that an acquire
 * gets of it. Besides, views carry the clocks of threads, by which accesses that are not atomic have to be ordered. */
#include "models/checker_internal.h"

#include <stdlib.h>
#include <string.h>

#define MAX_MESSAGES_OF_ONE 400
#define VIEWS_NBYTES ((size_t)64 << 20)
#define NCELLS ((size_t)1 << 15)
#define NKNOWN ((size_t)1 << 14)
#define STAMP_STEP (UINT64_C(1) << 24)
#define UID_BITS 16
#define WRITES_BITS 12

/* Where a message is in modification order, and in the lower bits who wrote it: greater is later. 0: nothing is known. */
typedef uint64_t place;

typedef struct view {
    place at[MAX_LOCATIONS];
    uint32_t clock[CHECKER_MAX_THREADS];
} view;

typedef struct message {
    place where;
    uint64_t value;
    bool is_change;  /* a read-modify-write that has read the one before it: nothing comes between */
    bool is_plain;   /* not atomic: the value is in memory, since nothing races with it */
    const place *at; /* the view; NULL: of its own location alone */
    int nat;
    uint32_t clock[CHECKER_MAX_THREADS];
} message;

/* What all runs have shown, a bit for each thread. */
typedef struct known_location {
    uintptr_t address;
    unsigned users;
    unsigned writers; /* of them */
    bool
        is_contended; /* two accesses, one of them a write, are in no order but that of this run: so there are others */
} known_location;

typedef struct location {
    uintptr_t address;
    int size;
    bool is_of_kernel; /* nobody sees any but its last value */
    known_location *known;
    int nmessages;
    message *messages[MAX_MESSAGES_OF_ONE]; /* in modification order */
} location;

/* The store of a sequentially consistent access is in the common order of these not before its thread's next one, or before another thread
 * that knows of it does one. */
typedef struct pending_store {
    bool is_there;
    int location;
    place where;
    uint32_t clock;
} pending_store;

/* A write since its thread has last let others go first. */
typedef struct recent_write {
    int location;
    place where;
    place before; /* what the thread knew of the location */
} recent_write;

#define MAX_RECENT 256

typedef struct actor {
    view now;
    view acquired; /* by loads that were not acquires: counts after a fence */
    view released; /* what stores that are no releases publish: that of the last fence */
    unsigned nwrites;
    pending_store pending;
    recent_write recent[MAX_RECENT];
    int nrecent;
    bool is_read[MAX_LOCATIONS]; /* in this look */
    place last_read[MAX_LOCATIONS];
    int nsame[MAX_LOCATIONS]; /* how often in a row */
    bool has_polled;
    bool has_written; /* in this look, both */
    bool has_seen_news;
} actor;

typedef enum access_kind {
    ACCESS_READ,
    ACCESS_WRITE,
    ACCESS_ATOMIC_READ,
    ACCESS_ATOMIC_WRITE,
    ACCESS_KINDS,
} access_kind;

/* Who has accessed eight bytes, and when by its clock. */
typedef struct cell {
    uintptr_t word;
    unsigned run;
    bool has_locations;
    unsigned accessors;                                 /* a bit for each thread */
    uint16_t newest[CHECKER_MAX_THREADS][ACCESS_KINDS]; /* of the bytes */
    uint16_t clock[CHECKER_MAX_THREADS][ACCESS_KINDS][8];
} cell;

static location locations[MAX_LOCATIONS];
static int nlocations;
static int by_address[4 * MAX_LOCATIONS]; /* one more than the number; 0: none */
static message pool[MAX_MESSAGES];
static int nmessages;
static place *views;
static size_t views_used;
static actor actors[CHECKER_MAX_THREADS];
static place common[MAX_LOCATIONS]; /* of sequentially consistent accesses and fences */
static cell *cells;
static cell *touched[NCELLS];
static int ntouched;
static unsigned run = 1;
static known_location known[NKNOWN];

static uint8_t *undo;
static size_t undo_used;
static size_t undo_capacity;

static uint64_t
mix(uint64_t hash, uint64_t value)
{
    hash ^= value + UINT64_C(0x9E3779B97F4A7C15) + (hash << 6) + (hash >> 2);
    hash *= UINT64_C(0x94D049BB133111EB);
    return hash ^ hash >> 31;
}

static actor *
own(void)
{
    return &actors[checker_self()];
}

/* ---- what was before */

typedef struct undo_entry {
    void *at;
    size_t nbytes;
} undo_entry;

static void
keep_for_undo(void *at, size_t nbytes)
{
    if (undo_used + nbytes + sizeof(undo_entry) > undo_capacity) {
        undo_capacity = 2 * (undo_capacity + nbytes + sizeof(undo_entry));
        undo = realloc(undo, undo_capacity);
    }
    undo_entry entry = {.at = at, .nbytes = nbytes};
    memcpy(undo + undo_used, at, nbytes);
    memcpy(undo + undo_used + nbytes, &entry, sizeof entry);
    undo_used += nbytes + sizeof entry;
}

void
memory_end_run(void)
{
    while (undo_used > 0) {
        undo_entry entry;
        undo_used -= sizeof entry;
        memcpy(&entry, undo + undo_used, sizeof entry);
        undo_used -= entry.nbytes;
        memcpy(entry.at, undo + undo_used, entry.nbytes);
    }
}

void
memory_begin_run(void)
{
    if (views == NULL) {
        views = malloc(VIEWS_NBYTES);
        cells = calloc(NCELLS, sizeof *cells);
    }
    run++;
    memset(by_address, 0, sizeof by_address);
    memset(common, 0, sizeof common[0] * (size_t)nlocations);
    for (int i = 0; i < CHECKER_MAX_THREADS; i++) {
        actor *each = &actors[i];
        for (int l = 0; l < nlocations; l++) {
            each->now.at[l] = each->acquired.at[l] = each->released.at[l] = 0;
            each->is_read[l] = false;
            each->last_read[l] = 0;
        }
        memset(each->now.clock, 0, sizeof each->now.clock);
        memset(each->acquired.clock, 0, sizeof each->acquired.clock);
        memset(each->released.clock, 0, sizeof each->released.clock);
        each->now.clock[i] = 1;
        each->nwrites = 0;
        each->nrecent = 0;
        each->pending.is_there = false;
        each->has_polled = each->has_written = each->has_seen_news = false;
    }
    ntouched = 0;
    nlocations = 0;
    nmessages = 0;
    views_used = 0;
}

void
memory_begin_scenario(void)
{
    memset(known, 0, sizeof known);
}

/* ---- accesses that are not atomic */

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

/* Whether two accesses of different threads need an order. */
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
    uint32_t seen = own()->now.clock[thread];
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

static bool
is_ordered(const cell *found, int first, int nbytes, access_kind kind)
{
    bool is_everything = true;
    for (unsigned others = found->accessors & ~(1u << checker_self()); others != 0; others &= others - 1) {
        int thread = __builtin_ctz(others);
        for (access_kind other = ACCESS_ATOMIC_READ; other < ACCESS_KINDS; other++) {
            bool is_conflict = kind == ACCESS_ATOMIC_WRITE || other == ACCESS_ATOMIC_WRITE;
            for (int byte = first; is_conflict && byte < first + nbytes; byte++) {
                is_everything =
                    is_everything && found->clock[thread][other][byte] <= own()->now.clock[thread];
            }
        }
    }
    return is_everything;
}

static cell *
note_access(uintptr_t address, size_t nbytes, access_kind kind)
{
    int self = checker_self();
    cell *found = find_cell(address & ~UINT64_C(7));
    int first = (int)(address & 7);
    uint16_t clock = (uint16_t)own()->now.clock[self];
    for (unsigned others = found->accessors & ~(1u << self); others != 0; others &= others - 1) {
        check_bytes(found, first, (int)nbytes, kind, __builtin_ctz(others));
    }
    found->accessors |= 1u << self;
    found->newest[self][kind] = clock;
    for (size_t i = 0; i < nbytes; i++) {
        found->clock[self][kind][first + (int)i] = clock;
    }
    return found;
}

static void write_whole_locations(uintptr_t address, size_t nbytes);

static void
note_plain(uintptr_t address, size_t nbytes, access_kind kind)
{
    while (nbytes > 0) {
        size_t step = 8 - (address & 7);
        step = step < nbytes ? step : nbytes;
        const cell *found = note_access(address, step, kind);
        if (kind == ACCESS_WRITE && found->has_locations) {
            write_whole_locations(address, step);
        }
        address += step;
        nbytes -= step;
    }
}

/* Memory of a thread's own needs no clocks. */
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
    keep_for_undo(at, nbytes);
    if (is_shared(at)) {
        note_plain((uintptr_t)at, nbytes, ACCESS_WRITE);
    }
}

/* ---- locations */

static uint64_t
value_in_memory(const void *at, int size)
{
    uint64_t value = 0;
    memcpy(&value, at, (size_t)size);
    return value;
}

static known_location *
find_known(uintptr_t address)
{
    size_t at = (size_t)(address * UINT64_C(0x9E3779B97F4A7C15) >> 40) & (NKNOWN - 1);
    while (known[at].address != 0 && known[at].address != address) {
        at = (at + 1) & (NKNOWN - 1);
    }
    known[at].address = address;
    return &known[at];
}

static int *
find_number(uintptr_t address)
{
    size_t at = (size_t)(address * UINT64_C(0x9E3779B97F4A7C15) >> 40) & (4 * MAX_LOCATIONS - 1);
    while (by_address[at] != 0 && locations[by_address[at] - 1].address != address) {
        at = (at + 1) & (4 * MAX_LOCATIONS - 1);
    }
    return &by_address[at];
}

static message *
make_message(void)
{
    if (nmessages == MAX_MESSAGES) {
        explore_fail("the run writes too often");
    }
    message *made = &pool[nmessages++];
    memset(made, 0, sizeof *made);
    return made;
}

static int
find_location(const void *at, int size)
{
    int *number = find_number((uintptr_t)at);
    if (*number == 0) {
        if (nlocations == MAX_LOCATIONS) {
            explore_fail("the scenario has too many atomic variables");
        }
        location *made = &locations[nlocations++];
        made->address = (uintptr_t)at;
        made->size = size;
        made->known = find_known(made->address);
        made->nmessages = 1;
        made->is_of_kernel = false;
        made->messages[0] = make_message();
        made->messages[0]->where = STAMP_STEP << UID_BITS;
        made->messages[0]->value = value_in_memory(at, size);
        find_cell(made->address & ~UINT64_C(7))->has_locations = true;
        *number = nlocations;
    }
    if (locations[*number - 1].size != size) {
        explore_fail("%p is accessed with %d bytes and with %d", at, locations[*number - 1].size, size);
    }
    known_location *which = locations[*number - 1].known;
    if ((which->users >> checker_self() & 1) == 0) {
        which->users |= 1u << checker_self();
        explore_restart();
    }
    return *number - 1;
}

static bool
do_others_write(const location *which)
{
    return (which->known->writers & ~(1u << checker_self())) != 0;
}

static void
note_writer(const location *which)
{
    unsigned bit = 1u << checker_self();
    own()->has_written = true;
    if ((which->known->writers & bit) == 0) {
        which->known->writers |= bit;
        /* Loads that were thought to have nothing to decide may have. */
        explore_restart();
    }
}

/* ---- views */

static void
raise(place *into, place other)
{
    *into = other > *into ? other : *into;
}

static void
join_clocks(uint32_t *into, const uint32_t *other)
{
    for (int i = 0; i < CHECKER_MAX_THREADS; i++) {
        into[i] = other[i] > into[i] ? other[i] : into[i];
    }
}

static void
join(view *into, const view *other)
{
    for (int l = 0; l < nlocations; l++) {
        raise(&into->at[l], other->at[l]);
    }
    join_clocks(into->clock, other->clock);
}

static void
join_message(view *into, const message *other)
{
    for (int l = 0; l < other->nat; l++) {
        raise(&into->at[l], other->at[l]);
    }
    join_clocks(into->clock, other->clock);
}

/* ---- states
 *
 * Of what has been, only that counts which somebody may still see: messages that some thread's view allows, and what views have beyond
 * what all know. Places and clocks are counted from there. */

static int first_live[MAX_LOCATIONS];
static uint32_t known_clock[CHECKER_MAX_THREADS];

static int
index_of(int number, place where)
{
    const location *which = &locations[number];
    int at = which->nmessages - 1;
    while (at > 0 && which->messages[at]->where > where) {
        at--;
    }
    return at;
}

static void
find_first_live(unsigned live)
{
    for (int l = 0; l < nlocations; l++) {
        const location *which = &locations[l];
        first_live[l] = which->nmessages - 1;
        for (unsigned left = which->is_of_kernel ? 0 : live & which->known->users; left != 0;
             left &= left - 1) {
            int at = index_of(l, actors[__builtin_ctz(left)].now.at[l]);
            first_live[l] = at < first_live[l] ? at : first_live[l];
        }
    }
    for (int t = 0; t < CHECKER_MAX_THREADS; t++) {
        known_clock[t] = UINT32_MAX;
        for (unsigned left = live & ~(1u << t); left != 0; left &= left - 1) {
            uint32_t clock = actors[__builtin_ctz(left)].now.clock[t];
            known_clock[t] = clock < known_clock[t] ? clock : known_clock[t];
        }
    }
}

static uint64_t
hash_places(const place *at, int nat)
{
    uint64_t sum = 0;
    for (int l = 0; l < nat; l++) {
        int beyond = at[l] != 0 ? index_of(l, at[l]) - first_live[l] : 0;
        sum += beyond > 0 ? mix(locations[l].address, (uint64_t)beyond) : 0;
    }
    return sum;
}

static uint64_t
hash_clocks(const uint32_t *clock)
{
    uint64_t sum = 0;
    for (int t = 0; t < CHECKER_MAX_THREADS; t++) {
        sum += clock[t] > known_clock[t] ? mix((uint64_t)t, clock[t] - known_clock[t]) : 0;
    }
    return sum;
}

static uint64_t
hash_view(const view *which)
{
    return mix(hash_clocks(which->clock), hash_places(which->at, nlocations));
}

static uint64_t
hash_location(int number)
{
    const location *which = &locations[number];
    uint64_t hash = which->address;
    for (int i = first_live[number]; i < which->nmessages; i++) {
        const message *each = which->messages[i];
        hash = mix(hash, each->is_plain ? 0 : each->value);
        hash = mix(hash, each->is_change && i > first_live[number]);
        hash = mix(hash, hash_places(each->at, each->nat) + hash_clocks(each->clock));
    }
    return hash;
}

static uint64_t
hash_cell(const cell *of)
{
    uint64_t sum = 0;
    for (unsigned left = of->accessors; left != 0; left &= left - 1) {
        int t = __builtin_ctz(left);
        for (access_kind kind = 0; kind < ACCESS_KINDS; kind++) {
            for (int byte = 0; of->newest[t][kind] > known_clock[t] && byte < 8; byte++) {
                uint16_t clock = of->clock[t][kind][byte];
                uint64_t what = of->word * 64 + (uint64_t)((t * ACCESS_KINDS + (int)kind) * 8 + byte);
                sum += clock > known_clock[t] ? mix(what, clock - known_clock[t]) : 0;
            }
        }
    }
    return sum;
}

uint64_t
memory_hash(unsigned live)
{
    find_first_live(live);
    uint64_t hash = hash_places(common, nlocations);
    for (int l = 0; l < nlocations; l++) {
        hash += hash_location(l);
    }
    for (int i = 0; i < ntouched; i++) {
        hash += hash_cell(touched[i]);
    }
    for (unsigned left = live; left != 0; left &= left - 1) {
        const actor *each = &actors[__builtin_ctz(left)];
        hash = mix(hash, hash_view(&each->now));
        hash = mix(hash, hash_view(&each->acquired));
        hash = mix(hash, hash_view(&each->released));
        hash = mix(hash,
                   (uint64_t)each->has_polled << 2 | (uint64_t)each->has_written << 1 | each->has_seen_news);
        if (each->pending.is_there) {
            hash = mix(hash, locations[each->pending.location].address);
            hash = mix(hash, (uint64_t)index_of(each->pending.location, each->pending.where));
            hash = mix(hash, each->pending.clock);
        }
    }
    return hash;
}

/* ---- messages */

/* Who writes, and how manyth write of it this is. */
static uint64_t
next_uid(void)
{
    unsigned nth = own()->nwrites++;
    if (nth >> WRITES_BITS != 0) {
        explore_fail("a thread writes too often");
    }
    return (uint64_t)(checker_self() + 1) << WRITES_BITS | nth;
}

static void
attach_view(message *made, int number, const view *of)
{
    place *at = views + views_used;
    if ((views_used + (size_t)nlocations) * sizeof *at > VIEWS_NBYTES) {
        explore_fail("the run writes too often");
    }
    views_used += (size_t)nlocations;
    memcpy(at, of->at, (size_t)nlocations * sizeof *at);
    raise(&at[number], made->where);
    made->at = at;
    made->nat = nlocations;
    memcpy(made->clock, of->clock, sizeof made->clock);
}

static void
write_through(const location *which)
{
    const message *last = which->messages[which->nmessages - 1];
    if (!last->is_plain) {
        keep_for_undo((void *)which->address, (size_t)which->size);
        memcpy((void *)which->address, &last->value, (size_t)which->size);
    }
}

/* Right behind message `before`. */
static message *
insert(int number, int before, uint64_t value, bool is_change)
{
    location *which = &locations[number];
    if (which->nmessages == MAX_MESSAGES_OF_ONE) {
        explore_fail("a variable is written too often");
    }
    uint64_t low = which->messages[before]->where >> UID_BITS;
    bool is_last = before + 1 == which->nmessages;
    uint64_t high = is_last ? low + 2 * STAMP_STEP : which->messages[before + 1]->where >> UID_BITS;
    uint64_t stamp = low + (high - low) / 2;
    if (stamp == low) {
        explore_fail("too many writes between two");
    }
    message *made = make_message();
    made->where = stamp << UID_BITS | next_uid();
    made->value = which->size == 8 ? value : value & ((UINT64_C(1) << 8 * which->size) - 1);
    made->is_change = is_change;
    memmove(&which->messages[before + 2], &which->messages[before + 1],
            (size_t)(which->nmessages - before - 1) * sizeof which->messages[0]);
    which->messages[before + 1] = made;
    which->nmessages++;
    actor *self = own();
    if (self->nrecent == MAX_RECENT) {
        explore_fail("a thread writes too much at a time");
    }
    self->recent[self->nrecent++] = (recent_write){number, made->where, self->now.at[number]};
    self->now.at[number] = made->where;
    return made;
}

/* A write that is not atomic, of a variable that others are: what follows in memory is its value. */
static void
write_whole_locations(uintptr_t address, size_t nbytes)
{
    for (int l = 0; l < nlocations; l++) {
        location *which = &locations[l];
        if (which->address < address + nbytes && address < which->address + (uintptr_t)which->size) {
            note_writer(which);
            message *last = which->messages[which->nmessages - 1];
            if (!last->is_plain || last->where != own()->now.at[l]) {
                message *made = insert(l, which->nmessages - 1, 0, false);
                made->is_plain = true;
                write_through(&locations[l]);
            }
        }
    }
}

static uint64_t
value_of(const location *which, const message *read)
{
    return read->is_plain ? value_in_memory((const void *)which->address, which->size) : read->value;
}

/* ---- sequential consistency */

/* All that comes before what this thread does now. */
static void
commit_known(int thread)
{
    for (int t = 0; t < CHECKER_MAX_THREADS; t++) {
        pending_store *pending = &actors[t].pending;
        if (pending->is_there && (t == thread || actors[thread].now.clock[t] >= pending->clock)) {
            raise(&common[pending->location], pending->where);
            pending->is_there = false;
        }
    }
}

static void
yield_for(bool is_needed)
{
    if (is_needed) {
        explore_yield(NULL, NULL);
    }
}

/* ---- atomic accesses */

/* Variables whose accesses are all ordered by others are like those that are not atomic: when they are accessed, decides nothing. */
static void
note_atomic(int number, access_kind kind)
{
    location *which = &locations[number];
    uintptr_t address = which->address;
    if (!which->known->is_contended &&
        !is_ordered(find_cell(address & ~UINT64_C(7)), (int)(address & 7), which->size, kind)) {
        which->known->is_contended = true;
        explore_restart();
    }
    (void)note_access(address, (size_t)which->size, kind);
}

static bool
is_acquire(memory_order_ order)
{
    return order == ORDER_ACQUIRE || order == ORDER_CONSUME || order == ORDER_ACQ_REL ||
           order == ORDER_SEQ_CST;
}

static bool
is_release(memory_order_ order)
{
    return order == ORDER_RELEASE || order == ORDER_ACQ_REL || order == ORDER_SEQ_CST;
}

static void
tick(void)
{
    own()->now.clock[checker_self()]++;
}

static void
take_message(int number, const message *read, memory_order_ order)
{
    actor *self = own();
    self->is_read[number] = true;
    self->nsame[number] = read->where == self->last_read[number] ? self->nsame[number] + 1 : 1;
    self->last_read[number] = read->where;
    if (explore_current()->max_same > 0 && self->nsame[number] > explore_current()->max_same) {
        explore_prune();
    }
    self->has_seen_news =
        self->has_seen_news || (read->where > self->now.at[number] && read->where >> UID_BITS > STAMP_STEP);
    raise(&self->now.at[number], read->where);
    join_message(is_acquire(order) ? &self->now : &self->acquired, read);
    if (order == ORDER_SEQ_CST) {
        raise(&common[number], read->where);
    }
}

/* The last message that must not be looked behind, and that nothing is written before. */
static place
bound_of(int number, memory_order_ order)
{
    place bound = own()->now.at[number];
    if (order == ORDER_SEQ_CST) {
        commit_known(checker_self());
        raise(&bound, common[number]);
    }
    return bound;
}

/* The first message that a load of that order may take. */
static int
first_readable(int number, memory_order_ order)
{
    const location *which = &locations[number];
    place bound = bound_of(number, order);
    int first = which->nmessages - 1;
    while (first > 0 && which->messages[first]->where > bound) {
        first--;
    }
    return first;
}

uint64_t
memory_load(const void *at, int size, memory_order_ order)
{
    if (checker_self() < 0) {
        return value_in_memory(at, size);
    }
    int number = find_location(at, size);
    const location *which = &locations[number];
    yield_for(which->known->is_contended || (order == ORDER_SEQ_CST && own()->pending.is_there));
    note_atomic(number, ACCESS_ATOMIC_READ);
    int first = first_readable(number, order);
    const message *read = which->messages[which->nmessages - 1 - explore_choose(which->nmessages - first)];
    take_message(number, read, order);
    uint64_t value = value_of(which, read);
    if (do_others_write(which)) {
        explore_note_seen(value);
    }
    return value;
}

/* Messages behind which this thread may write, the last first. */
static int
choose_place(int number, memory_order_ order)
{
    const location *which = &locations[number];
    place bound = bound_of(number, order);
    int options[MAX_MESSAGES_OF_ONE];
    int noptions = 0;
    for (int i = which->nmessages - 1; i >= 0; i--) {
        bool is_open = i + 1 == which->nmessages || !which->messages[i + 1]->is_change;
        if (is_open) {
            options[noptions++] = i;
        }
        if (which->messages[i]->where <= bound) {
            break;
        }
    }
    return options[which->known->is_contended ? explore_choose(noptions) : 0];
}

/* Of what is written, with its thread's clock. */
static void
publish(message *made, int number, memory_order_ order, const message *read)
{
    actor *self = own();
    static view published;
    const view *base = is_release(order) ? &self->now : &self->released;
    if (read != NULL) { /* and what that one has published, goes on */
        memcpy(published.at, base->at, (size_t)nlocations * sizeof published.at[0]);
        memcpy(published.clock, base->clock, sizeof published.clock);
        join_message(&published, read);
        base = &published;
    }
    attach_view(made, number, base);
    if (order == ORDER_SEQ_CST) {
        self->pending = (pending_store){true, number, made->where, self->now.clock[checker_self()]};
    }
    write_through(&locations[number]);
    if (is_release(order)) {
        tick();
    }
}

void
memory_store(void *at, int size, uint64_t value, memory_order_ order)
{
    if (checker_self() < 0) {
        memcpy(at, &value, (size_t)size);
        return;
    }
    int number = find_location(at, size);
    note_writer(&locations[number]);
    yield_for((order == ORDER_SEQ_CST && own()->pending.is_there));
    note_atomic(number, ACCESS_ATOMIC_WRITE);
    message *made = insert(number, choose_place(number, order), value, false);
    publish(made, number, order, NULL);
}

/* One that may be read and, where something is to be written, written behind. */
static int
choose_message(int number, const memory_rmw *rmw)
{
    const location *which = &locations[number];
    int first = first_readable(number, rmw->order);
    int options[MAX_MESSAGES_OF_ONE];
    int noptions = 0;
    if (rmw->is_latest) {
        locations[number].is_of_kernel = true;
        return which->nmessages - 1;
    }
    for (int i = which->nmessages - 1; i >= first; i--) {
        uint64_t after = 0;
        bool is_open = i + 1 == which->nmessages || !which->messages[i + 1]->is_change;
        if (is_open ||
            !rmw->change(value_of(which, which->messages[i]), rmw->operand, rmw->expected, &after)) {
            options[noptions++] = i;
        }
    }
    return options[explore_choose(noptions)];
}

uint64_t
memory_change_value(const memory_rmw *rmw)
{
    uint64_t after = 0;
    if (checker_self() < 0) {
        uint64_t before = value_in_memory(rmw->at, rmw->size);
        if (rmw->change(before, rmw->operand, rmw->expected, &after)) {
            memory_store(rmw->at, rmw->size, after, ORDER_RELAXED);
        }
        return before;
    }
    int number = find_location(rmw->at, rmw->size);
    const location *which = &locations[number];
    bool is_shared = do_others_write(which);
    yield_for(which->known->is_contended || (rmw->order == ORDER_SEQ_CST && own()->pending.is_there));
    int at = choose_message(number, rmw);
    const message *read = which->messages[at];
    uint64_t before = value_of(which, read);
    bool is_changed = rmw->change(before, rmw->operand, rmw->expected, &after);
    if (is_changed) {
        note_writer(which);
    }
    note_atomic(number, is_changed ? ACCESS_ATOMIC_WRITE : ACCESS_ATOMIC_READ);
    take_message(number, read, is_changed ? rmw->order : rmw->failure_order);
    if (is_shared) {
        explore_note_seen(before);
    }
    if (is_changed) {
        message *made = insert(number, at, after, true);
        publish(made, number, rmw->order, read);
    }
    return before;
}

uint64_t
memory_latest(const void *at, int size)
{
    return value_in_memory(at, size); /* which stores write through to */
}

/* ---- fences */

static void
fence_of(int thread, memory_order_ order)
{
    actor *whose = &actors[thread];
    if (is_acquire(order)) {
        join(&whose->now, &whose->acquired);
    }
    if (order == ORDER_SEQ_CST) {
        commit_known(thread);
        for (int l = 0; l < nlocations; l++) {
            raise(&whose->now.at[l], common[l]);
            common[l] = whose->now.at[l];
        }
    }
    if (is_release(order)) {
        memcpy(whose->released.at, whose->now.at, (size_t)nlocations * sizeof whose->now.at[0]);
        memcpy(whose->released.clock, whose->now.clock, sizeof whose->now.clock);
        whose->now.clock[thread]++;
    }
}

void
memory_fence(memory_order_ order)
{
    if (checker_self() >= 0 && order != ORDER_NONE) {
        yield_for(order == ORDER_SEQ_CST);
        fence_of(checker_self(), order);
    }
}

void
memory_note_turn(void)
{
    own()->nrecent = 0;
}

static bool
is_seen_by_others(int thread, const recent_write *write)
{
    bool is_seen = write->where < common[write->location]; /* so it was before what is there */
    for (int t = 0; t < CHECKER_MAX_THREADS; t++) {
        is_seen = is_seen || (t != thread && (actors[t].now.at[write->location] >= write->where ||
                                              actors[t].acquired.at[write->location] >= write->where));
    }
    return is_seen;
}

/* Stores are not decided about, so that the target has done some of which nobody knows yet. Its fence comes before those: that forces the
 * least on others, and what the target knows after it is the same in any case. */
void
memory_fence_other(int target)
{
    actor *whose = &actors[target];
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
        raise(&whose->now.at[whose->recent[i].location], whose->recent[i].where);
    }
    if (is_pending_later) {
        whose->pending = pending;
    }
    memmove(whose->recent, whose->recent + nbefore,
            (size_t)(whose->nrecent - nbefore) * sizeof whose->recent[0]);
    whose->nrecent -= nbefore;
}

/* ---- polling */

void
memory_begin_look(void)
{
    actor *self = own();
    memset(self->is_read, 0, (size_t)nlocations * sizeof self->is_read[0]);
    self->has_polled = true;
    self->has_written = self->has_seen_news = false;
}

bool
memory_has_news(int thread)
{
    const actor *whose = &actors[thread];
    for (int l = 0; l < nlocations; l++) {
        const location *which = &locations[l];
        if (whose->is_read[l] && which->messages[which->nmessages - 1]->where > whose->now.at[l] &&
            which->nmessages > 1) {
            return true;
        }
    }
    return false;
}

bool
memory_was_look_in_vain(void)
{
    const actor *self = own();
    return self->has_polled && !self->has_written && !self->has_seen_news;
}
