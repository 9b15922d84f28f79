/* The world: random numbers, time, the trace, and threads. Threads are woken here; run.c schedules
 * them. */
#include "sim/world/internal.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

sim_world world;
const char sim_polling = 'p';

/* ---- random numbers: xoshiro256**, seeded by splitmix64 */

static uint64_t
rotate(uint64_t x, int nbits)
{
    return x << nbits | x >> (64 - nbits);
}

uint64_t
sim_random(void)
{
    uint64_t *s = world.random;
    uint64_t result = rotate(s[1] * 5, 7) * 9;
    uint64_t t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotate(s[3], 45);
    return result;
}

void
sim_seed_random(uint64_t seed)
{
    for (int i = 0; i < 4; i++) {
        uint64_t z = seed += UINT64_C(0x9e3779b97f4a7c15);
        z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
        z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
        world.random[i] = z ^ z >> 31;
    }
}

uint64_t
sim_below(uint64_t bound)
{
    return (uint64_t)(((unsigned __int128)sim_random() * bound) >> 64);
}

bool
sim_one_in(int64_t odds)
{
    return odds > 0 && sim_below((uint64_t)odds) == 0;
}

int64_t
sim_around(int64_t mean)
{
    int64_t value = mean / 2 + (int64_t)sim_below((uint64_t)mean + 1);
    return sim_one_in(64) ? value * (int64_t)(1 + sim_below(16)) : value;
}

/* ---- the trace */

static void
mix(uint64_t word)
{
    world.digest = (world.digest ^ word) * UINT64_C(0x9fb21c651e98df25);
    world.digest ^= world.digest >> 32;
}

static void
print_head(void)
{
    printf("%12.3f us  ", (double)world.now_ns / 1000.0);
    if (world.running == NULL) {
        printf("-       ");
    } else {
        printf("p%d.%-5d", world.running->process->number, world.running->number);
    }
}

void
sim_trace(const char *label, int64_t a, int64_t b)
{
    mix((uint64_t)world.now_ns);
    mix((uint64_t)a);
    mix((uint64_t)b ^ (uint64_t)(world.running != NULL ? world.running->number : -1) << 32);
    if (world.options.is_traced) {
        print_head();
        printf("%s %lld %lld\n", label, (long long)a, (long long)b);
    }
}

void
sim_note(const char *format, ...)
{
    char text[1400];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    for (const char *c = text; *c != '\0'; c++) {
        mix((uint64_t)(unsigned char)*c);
    }
    if (world.options.is_traced) {
        print_head();
        printf("# %s\n", text);
    }
}

uint64_t
sim_digest(void)
{
    return world.digest;
}

/* ---- events */

static bool
is_before(const sim_event *a, const sim_event *b)
{
    return a->at_ns != b->at_ns ? a->at_ns < b->at_ns : a->number < b->number;
}

void
sim_plan(int64_t at_ns, void (*run)(void *subject, int64_t word), void *subject, int64_t word)
{
    if (world.nevents == world.events_capacity) {
        world.events_capacity = 2 * world.events_capacity + 64;
        world.events = realloc(world.events, world.events_capacity * sizeof *world.events);
        if (world.events == NULL) {
            abort();
        }
    }
    sim_event event = {
        .at_ns = at_ns, .number = world.nevents_ever++, .run = run, .subject = subject, .word = word};
    size_t at = world.nevents++;
    for (; at > 0 && is_before(&event, &world.events[(at - 1) / 2]); at = (at - 1) / 2) {
        world.events[at] = world.events[(at - 1) / 2];
    }
    world.events[at] = event;
}

static sim_event
take_event(void)
{
    sim_event first = world.events[0];
    sim_event last = world.events[--world.nevents];
    size_t at = 0;
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= world.nevents) {
            break;
        }
        child += child + 1 < world.nevents && is_before(&world.events[child + 1], &world.events[child]);
        if (!is_before(&world.events[child], &last)) {
            break;
        }
        world.events[at] = world.events[child];
        at = child;
    }
    world.events[at] = last;
    return first;
}

bool
sim_run_event(int64_t until_ns)
{
    if (world.nevents == 0 || world.events[0].at_ns > until_ns) {
        return false;
    }
    sim_event event = take_event();
    world.now_ns = event.at_ns > world.now_ns ? event.at_ns : world.now_ns;
    event.run(event.subject, event.word);
    return true;
}

/* ---- threads */

static void
enter_fiber(void)
{
    sim_fiber *self = world.running;
    (void)self->run(self->arg);
    sim_leave();
}

sim_fiber *
sim_fiber_create(sim_process *process, const char *name, void *(*run)(void *arg), void *arg)
{
    sim_fiber *fiber = calloc(1, sizeof *fiber);
    if (fiber == NULL) {
        abort();
    }
    fiber->process = process;
    fiber->number = world.nfibers++;
    (void)snprintf(fiber->name, sizeof fiber->name, "%s", name);
    fiber->run = run;
    fiber->arg = arg;
    fiber->wake_ns = DD_NEVER_NS;
    fiber->stack = sim_stack_acquire();
    fiber->sp = sim_stack_begin(fiber->stack, enter_fiber);
    dd_list_push_back(&world.fibers, &fiber->link);
    return fiber;
}

void
sim_fiber_destroy(sim_fiber *fiber)
{
    dd_list_remove(&fiber->link);
    if (fiber->stack != NULL) {
        sim_stack_release(fiber->stack);
    }
    free(fiber);
}

/* Switch to the scheduler, which resumes the thread later. */
static void
switch_to_scheduler(void)
{
    sim_fiber *self = world.running;
    self->saved_errno = errno;
    sim_switch_stack(&self->sp, world.scheduler_sp);
    errno = self->saved_errno;
}

void
sim_leave(void)
{
    sim_fiber *self = world.running;
    self->state = FIBER_ENDED;
    sim_wake_all(self);
    switch_to_scheduler();
    abort();
}

void
sim_yield(void)
{
    if (world.running != NULL) {
        switch_to_scheduler();
    }
}

void
sim_step(int64_t cost_ns)
{
    if (world.running == NULL) {
        return;
    }
    world.now_ns += cost_ns;
    world.nsteps++;
    bool is_due =
        world.now_ns >= world.next_wake_ns || (world.nevents > 0 && world.events[0].at_ns <= world.now_ns);
    if (--world.budget <= 0 || is_due) {
        switch_to_scheduler();
    }
}

bool
sim_block(const void *address, int64_t until_ns, const char *doing)
{
    sim_fiber *self = world.running;
    self->state = FIBER_BLOCKED;
    self->waits_for = address;
    self->wake_ns = until_ns;
    self->was_woken = false;
    self->doing = doing;
    switch_to_scheduler();
    self->doing = NULL;
    return self->was_woken;
}

void
sim_wake(sim_fiber *fiber, bool was_woken)
{
    fiber->state = FIBER_RUNNABLE;
    fiber->was_woken = was_woken;
    fiber->waits_for = NULL;
    fiber->wake_ns = DD_NEVER_NS;
}

void
sim_wake_all(const void *address)
{
    for (dd_list *node = world.fibers.next; node != &world.fibers; node = node->next) {
        sim_fiber *fiber = DD_CONTAINER_OF(node, sim_fiber, link);
        if (fiber->state == FIBER_BLOCKED && fiber->waits_for == address) {
            sim_wake(fiber, true);
        }
    }
}

void
sim_wake_pollers(const sim_process *process)
{
    for (dd_list *node = world.fibers.next; node != &world.fibers; node = node->next) {
        sim_fiber *fiber = DD_CONTAINER_OF(node, sim_fiber, link);
        if (fiber->process == process && fiber->state == FIBER_BLOCKED && fiber->waits_for == &sim_polling) {
            sim_wake(fiber, true);
        }
    }
}

/* Wake one waiting thread, chosen at random. */
void
sim_wake_one(const void *address)
{
    sim_fiber *chosen = NULL;
    uint64_t count = 0;
    for (dd_list *node = world.fibers.next; node != &world.fibers; node = node->next) {
        sim_fiber *fiber = DD_CONTAINER_OF(node, sim_fiber, link);
        if (fiber->state == FIBER_BLOCKED && fiber->waits_for == address && sim_below(++count) == 0) {
            chosen = fiber;
        }
    }
    if (chosen != NULL) {
        sim_wake(chosen, true);
    }
}

int64_t
sim_now_ns(void)
{
    return world.now_ns;
}

int64_t
sim_nsteps(void)
{
    return world.nsteps;
}
