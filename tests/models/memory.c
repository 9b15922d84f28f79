/* The C11 memory model as an abstract machine; docs/contributing/memory-orders.md describes it.
 *
 * A location keeps all values that were written to it as messages, in modification order. A thread
 * has a view: for each location, the oldest message that it may still read. A load reads any
 * message that the view allows. A message carries a view, which a load with acquire order adds to
 * its own. Views also carry the clocks of threads, which determine the order of accesses that are
 * not atomic. */
#include "models/memory_internal.h"

#include <stdlib.h>
#include <string.h>

#define VIEWS_NBYTES ((size_t)64 << 20)
#define NKNOWN ((size_t)1 << 14)
#define STAMP_STEP (UINT64_C(1) << 24)
#define WRITES_BITS 12

location memory_locations[MAX_LOCATIONS];
int memory_nlocations;
actor memory_actors[CHECKER_MAX_THREADS];
static int by_address[4 * MAX_LOCATIONS]; /* index + 1; 0 if empty */
static message pool[MAX_MESSAGES];
static int nmessages;
static place *views;
static size_t views_used;
static known_location known[NKNOWN];

static uint8_t *undo;
static size_t undo_used;
static size_t undo_capacity;

/* ---- undo */

typedef struct undo_entry {
    void *at;
    size_t nbytes;
} undo_entry;

void
memory_keep_for_undo(void *at, size_t nbytes)
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
    memory_begin_run_of_races();
    if (views == NULL) {
        views = malloc(VIEWS_NBYTES);
    }
    memset(by_address, 0, sizeof by_address);
    memset(memory_common, 0, sizeof memory_common[0] * (size_t)memory_nlocations);
    for (int i = 0; i < CHECKER_MAX_THREADS; i++) {
        actor *each = &memory_actors[i];
        for (int l = 0; l < memory_nlocations; l++) {
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
    memory_nlocations = 0;
    nmessages = 0;
    views_used = 0;
}

void
memory_begin_scenario(void)
{
    memset(known, 0, sizeof known);
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
    while (by_address[at] != 0 && memory_locations[by_address[at] - 1].address != address) {
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
        if (memory_nlocations == MAX_LOCATIONS) {
            explore_fail("the scenario has too many atomic variables");
        }
        location *made = &memory_locations[memory_nlocations++];
        made->address = (uintptr_t)at;
        made->size = size;
        made->known = find_known(made->address);
        made->nmessages = 1;
        made->is_of_kernel = false;
        made->messages[0] = make_message();
        made->messages[0]->where = STAMP_STEP << UID_BITS;
        made->messages[0]->value = value_in_memory(at, size);
        memory_note_location(made->address);
        *number = memory_nlocations;
    }
    if (memory_locations[*number - 1].size != size) {
        explore_fail("%p is accessed with %d bytes and with %d", at, memory_locations[*number - 1].size,
                     size);
    }
    known_location *which = memory_locations[*number - 1].known;
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
    memory_own()->has_written = true;
    if ((which->known->writers & bit) == 0) {
        which->known->writers |= bit;
        /* Loads without a choice of values may now have one. */
        explore_restart();
    }
}

/* ---- views */

static void
join_clocks(uint32_t *into, const uint32_t *other)
{
    for (int i = 0; i < CHECKER_MAX_THREADS; i++) {
        into[i] = other[i] > into[i] ? other[i] : into[i];
    }
}

void
memory_join(view *into, const view *other)
{
    for (int l = 0; l < memory_nlocations; l++) {
        memory_raise(&into->at[l], other->at[l]);
    }
    join_clocks(into->clock, other->clock);
}

static void
join_message(view *into, const message *other)
{
    for (int l = 0; l < other->nat; l++) {
        memory_raise(&into->at[l], other->at[l]);
    }
    join_clocks(into->clock, other->clock);
}

/* ---- messages */

/* Return an identifier made of the thread and the number of its writes. */
static uint64_t
next_uid(void)
{
    unsigned nth = memory_own()->nwrites++;
    if (nth >> WRITES_BITS != 0) {
        explore_fail("a thread writes too often");
    }
    return (uint64_t)(checker_self() + 1) << WRITES_BITS | nth;
}

static void
attach_view(message *made, int number, const view *of)
{
    place *at = views + views_used;
    if ((views_used + (size_t)memory_nlocations) * sizeof *at > VIEWS_NBYTES) {
        explore_fail("the run writes too often");
    }
    views_used += (size_t)memory_nlocations;
    memcpy(at, of->at, (size_t)memory_nlocations * sizeof *at);
    memory_raise(&at[number], made->where);
    made->at = at;
    made->nat = memory_nlocations;
    memcpy(made->clock, of->clock, sizeof made->clock);
}

static void
write_through(const location *which)
{
    const message *last = which->messages[which->nmessages - 1];
    if (!last->is_plain) {
        memory_keep_for_undo((void *)which->address, (size_t)which->size);
        memcpy((void *)which->address, &last->value, (size_t)which->size);
    }
}

/* Insert a message after message `before`. */
static message *
insert(int number, int before, uint64_t value, bool is_change)
{
    location *which = &memory_locations[number];
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
    actor *self = memory_own();
    if (self->nrecent == MAX_RECENT) {
        explore_fail("a thread writes too much at a time");
    }
    self->recent[self->nrecent++] = (recent_write){number, made->where, self->now.at[number]};
    self->now.at[number] = made->where;
    return made;
}

void
memory_write_whole_locations(uintptr_t address, size_t nbytes)
{
    for (int l = 0; l < memory_nlocations; l++) {
        location *which = &memory_locations[l];
        if (which->address < address + nbytes && address < which->address + (uintptr_t)which->size) {
            note_writer(which);
            message *last = which->messages[which->nmessages - 1];
            if (!last->is_plain || last->where != memory_own()->now.at[l]) {
                message *made = insert(l, which->nmessages - 1, 0, false);
                made->is_plain = true;
                write_through(&memory_locations[l]);
            }
        }
    }
}

static uint64_t
value_of(const location *which, const message *read)
{
    return read->is_plain ? value_in_memory((const void *)which->address, which->size) : read->value;
}

void
memory_yield_for(bool is_needed)
{
    if (is_needed) {
        explore_yield(NULL, NULL);
    }
}

/* ---- atomic accesses */

/* Variables whose accesses are all ordered by other variables behave like variables that are not
 * atomic: the timing of their accesses does not affect the run. */
static void
note_atomic(int number, access_kind kind)
{
    location *which = &memory_locations[number];
    uintptr_t address = which->address;
    if (!which->known->is_contended && !memory_is_ordered(address, which->size, kind)) {
        which->known->is_contended = true;
        explore_restart();
    }
    memory_note_access(address, (size_t)which->size, kind);
}

static void
tick(void)
{
    memory_own()->now.clock[checker_self()]++;
}

static void
take_message(int number, const message *read, memory_order_ order)
{
    actor *self = memory_own();
    self->is_read[number] = true;
    self->has_seen_news = self->has_seen_news ||
                          (read->where > self->last_read[number] && read->where >> UID_BITS > STAMP_STEP);
    self->nsame[number] = read->where == self->last_read[number] ? self->nsame[number] + 1 : 1;
    self->last_read[number] = read->where;
    if (explore_current()->max_same > 0 && self->nsame[number] > explore_current()->max_same) {
        explore_prune();
    }
    memory_raise(&self->now.at[number], read->where);
    join_message(memory_is_acquire(order) ? &self->now : &self->acquired, read);
    if (order == ORDER_SEQ_CST) {
        memory_raise(&memory_common[number], read->where);
    }
}

/* Return the place of the oldest message that the thread may read and that a write must follow. */
static place
bound_of(int number, memory_order_ order)
{
    place bound = memory_own()->now.at[number];
    if (order == ORDER_SEQ_CST) {
        memory_commit_known(checker_self());
        memory_raise(&bound, memory_common[number]);
    }
    return bound;
}

/* Return the first message that a load of that order may read. */
static int
first_readable(int number, memory_order_ order)
{
    const location *which = &memory_locations[number];
    place bound = bound_of(number, order);
    int first = which->nmessages - 1;
    while (first > 0 && which->messages[first]->where > bound) {
        first--;
    }
    return first;
}

/* Record a load for the detection of load buffering, unless all accesses of the variable are
 * ordered. */
static void
note_load(const location *which, memory_order_ order, const void *site)
{
    if (which->known->is_contended) {
        buffering_note_load(which->address, site, order);
    }
}

static void
note_store(const location *which, memory_order_ order, const void *site)
{
    if (which->known->is_contended) {
        buffering_note_store(which->address, site, order);
    }
}

uint64_t
memory_load(const void *at, int size, memory_order_ order, const void *site)
{
    if (checker_self() < 0) {
        return value_in_memory(at, size);
    }
    int number = find_location(at, size);
    const location *which = &memory_locations[number];
    memory_yield_for(which->known->is_contended ||
                     (order == ORDER_SEQ_CST && memory_own()->pending.is_there));
    note_atomic(number, ACCESS_ATOMIC_READ);
    int first = first_readable(number, order);
    const message *read = which->messages[which->nmessages - 1 - explore_choose(which->nmessages - first)];
    take_message(number, read, order);
    note_load(which, order, site);
    uint64_t value = value_of(which, read);
    if (do_others_write(which)) {
        explore_note_seen(value);
    }
    return value;
}

/* Choose the message after which this thread writes. The last message is tried first. */
static int
choose_place(int number, memory_order_ order)
{
    const location *which = &memory_locations[number];
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

/* Set the view of a new message, including its thread's clock. */
static void
publish(message *made, int number, memory_order_ order, const message *read)
{
    actor *self = memory_own();
    static view published;
    const view *base = memory_is_release(order) ? &self->now : &self->released;
    if (read != NULL) { /* a read-modify-write continues the release sequence */
        memcpy(published.at, base->at, (size_t)memory_nlocations * sizeof published.at[0]);
        memcpy(published.clock, base->clock, sizeof published.clock);
        join_message(&published, read);
        base = &published;
    }
    attach_view(made, number, base);
    if (order == ORDER_SEQ_CST) {
        self->pending = (pending_store){true, number, made->where, self->now.clock[checker_self()]};
    }
    write_through(&memory_locations[number]);
    if (memory_is_release(order)) {
        tick();
    }
}

void
memory_store(void *at, int size, uint64_t value, memory_order_ order, const void *site)
{
    if (checker_self() < 0) {
        memcpy(at, &value, (size_t)size);
        return;
    }
    int number = find_location(at, size);
    note_writer(&memory_locations[number]);
    memory_yield_for((order == ORDER_SEQ_CST && memory_own()->pending.is_there));
    note_atomic(number, ACCESS_ATOMIC_WRITE);
    message *made = insert(number, choose_place(number, order), value, false);
    publish(made, number, order, NULL);
    note_store(&memory_locations[number], order, site);
}

/* Choose a message that the thread may read and, if it writes, directly follow. */
static int
choose_message(int number, const memory_rmw *rmw)
{
    const location *which = &memory_locations[number];
    int first = first_readable(number, rmw->order);
    int options[MAX_MESSAGES_OF_ONE];
    int noptions = 0;
    if (rmw->is_latest) {
        memory_locations[number].is_of_kernel = true;
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
            memory_store(rmw->at, rmw->size, after, ORDER_RELAXED, rmw->site);
        }
        return before;
    }
    int number = find_location(rmw->at, rmw->size);
    const location *which = &memory_locations[number];
    bool is_shared = do_others_write(which);
    memory_yield_for(which->known->is_contended ||
                     (rmw->order == ORDER_SEQ_CST && memory_own()->pending.is_there));
    int at = choose_message(number, rmw);
    const message *read = which->messages[at];
    uint64_t before = value_of(which, read);
    bool is_changed = rmw->change(before, rmw->operand, rmw->expected, &after);
    if (is_changed) {
        note_writer(which);
    }
    note_atomic(number, is_changed ? ACCESS_ATOMIC_WRITE : ACCESS_ATOMIC_READ);
    take_message(number, read, is_changed ? rmw->order : rmw->failure_order);
    note_load(which, is_changed ? rmw->order : rmw->failure_order, rmw->site);
    if (is_shared) {
        explore_note_seen(before);
    }
    if (is_changed) {
        message *made = insert(number, at, after, true);
        publish(made, number, rmw->order, read);
        note_store(which, rmw->order, rmw->site);
    }
    return before;
}

uint64_t
memory_latest(const void *at, int size)
{
    return value_in_memory(at, size); /* stores write through to memory */
}

/* ---- polling */

void
memory_end_look(void)
{
    actor *self = memory_own();
    self->has_polled = true;
    self->has_written = self->has_seen_news = false;
}

void
memory_begin_look(void)
{
    actor *self = memory_own();
    memset(self->is_read, 0, (size_t)memory_nlocations * sizeof self->is_read[0]);
}

static bool
is_by(place where, int thread)
{
    return (int)(where >> WRITES_BITS & ((1 << (UID_BITS - WRITES_BITS)) - 1)) == thread + 1;
}

/* Compare with the values that were read: the view may be newer, since other threads make it
 * execute fences. */
bool
memory_has_news(int thread)
{
    const actor *whose = &memory_actors[thread];
    for (int l = 0; l < memory_nlocations; l++) {
        const location *which = &memory_locations[l];
        place last = which->messages[which->nmessages - 1]->where;
        if (whose->is_read[l] && last > whose->last_read[l] && which->nmessages > 1 && !is_by(last, thread)) {
            return true;
        }
    }
    return false;
}

bool
memory_was_poll_unchanged(void)
{
    const actor *self = memory_own();
    return self->has_polled && !self->has_written && !self->has_seen_news;
}
