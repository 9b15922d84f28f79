/* The scheduler, from the start of a world to its end. */
#include "core/cpu.h"
#include "sim/world/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void
sim_begin(const sim_options *options)
{
    world = (sim_world){.options = *options, .next_wake_ns = DD_NEVER_NS, .due_fault = -1};
    sim_seed_random(options->seed);
    (void)
        /* The only state that the program keeps between worlds: it must not be initialized during a
         * run. */
        dd_cpu_features();
    dd_list_init(&world.fibers);
    dd_list_init(&world.files);
    dd_list_init(&world.nodes);
    for (int host = 0; host < options->nhosts; host++) {
        world.calendar_ns[host] = INT64_C(1700000000) * DD_NS_PER_S + (int64_t)sim_below(DD_NS_PER_S);
        world.boot_ns[host] = (int64_t)sim_below(1000 * (uint64_t)DD_NS_PER_S);
        world.next_port[host] = 32768 + (int)sim_below(10000);
        for (int to = 0; to < options->nhosts; to++) {
            world.paths[host][to].latency_ns = sim_around(host == to ? 5000 : options->latency_ns);
        }
    }
}

void
sim_end(void)
{
    for (int i = 0; i < world.nprocesses; i++) {
        sim_process *process = &world.processes[i];
        if (process->state == SIM_RUNS || process->state == SIM_STOPPED) {
            sim_process_end(process, SIM_KILLED);
        }
    }
    /* Events hold references to files. */
    while (sim_run_event(DD_NEVER_NS)) {
    }
    sim_disk_clear();
    free(world.events);
    world.events = NULL;
}

/* Wake the threads whose time has passed, and record the next wake-up time. */
static void
run_timers(void)
{
    world.next_wake_ns = DD_NEVER_NS;
    for (dd_list *node = world.fibers.next; node != &world.fibers; node = node->next) {
        sim_fiber *fiber = DD_CONTAINER_OF(node, sim_fiber, link);
        if (fiber->state != FIBER_BLOCKED || fiber->process->state != SIM_RUNS) {
            continue;
        }
        if (fiber->wake_ns <= world.now_ns) {
            sim_wake(fiber, false);
        } else if (fiber->wake_ns < world.next_wake_ns) {
            world.next_wake_ns = fiber->wake_ns;
        }
    }
}

static bool
may_run(const sim_fiber *fiber)
{
    return fiber->state == FIBER_RUNNABLE && fiber->process->state == SIM_RUNS;
}

static sim_fiber *
choose_fiber(void)
{
    sim_fiber *chosen = NULL;
    sim_fiber *slow = NULL;
    uint64_t count = 0;
    for (dd_list *node = world.fibers.next; node != &world.fibers; node = node->next) {
        sim_fiber *fiber = DD_CONTAINER_OF(node, sim_fiber, link);
        if (!may_run(fiber)) {
            continue;
        }
        if (fiber->process->slowness > 1 && !sim_one_in(fiber->process->slowness)) {
            slow = fiber;
        } else if (sim_below(++count) == 0) {
            chosen = fiber;
        }
    }
    return chosen != NULL ? chosen : slow;
}

static void
run_fiber(sim_fiber *fiber)
{
    size_t tls_nbytes;
    uint8_t *tls = sim_tls(&tls_nbytes);
    world.budget = 1 + (int64_t)sim_below(2 * (uint64_t)world.options.switch_every);
    world.running = fiber;
    sim_trace("runs", fiber->number, 0);
    memcpy(tls, fiber->tls, tls_nbytes);
    sim_switch_stack(&world.scheduler_sp, fiber->sp);
    memcpy(fiber->tls, tls, tls_nbytes);
    world.running = NULL;
}

/* Free the objects that the last running thread no longer needs. */
static void
clear_up(sim_fiber *fiber)
{
    sim_process *process = fiber->process;
    if (world.due_fault >= 0) {
        int fault = world.due_fault;
        world.due_fault = -1;
        sim_fault_run(fault);
    } else if (fiber->state == FIBER_ENDED && fiber->run == NULL) {
        sim_process_end(process, SIM_EXITED);
    } else if (fiber->state == FIBER_ENDED && fiber->is_detached) {
        sim_fiber_destroy(fiber);
    }
}

static bool
has_anything_left(void)
{
    for (int i = 0; i < world.nprocesses; i++) {
        if (world.processes[i].state == SIM_RUNS || world.processes[i].state == SIM_STOPPED) {
            return true;
        }
    }
    return false;
}

/* Advance the time to the next event or wake-up. Return false if there is none. */
static bool
pass_time(void)
{
    int64_t next_ns = world.next_wake_ns;
    if (world.nevents > 0 && world.events[0].at_ns < next_ns) {
        next_ns = world.events[0].at_ns;
    }
    if (next_ns == DD_NEVER_NS) {
        return false;
    }
    world.now_ns = next_ns > world.now_ns ? next_ns : world.now_ns;
    return true;
}

sim_outcome
sim_run(int64_t limit_ns, int64_t limit_steps)
{
    while (has_anything_left()) {
        while (sim_run_event(world.now_ns)) {
        }
        run_timers();
        sim_fiber *fiber = choose_fiber();
        if (world.nsteps > limit_steps) {
            return SIM_TOO_LONG;
        }
        if (world.now_ns > limit_ns || (fiber == NULL && !pass_time())) {
            return SIM_STUCK;
        }
        if (fiber != NULL) {
            run_fiber(fiber);
            clear_up(fiber);
        }
    }
    return SIM_ALL_ENDED;
}

void
sim_print_threads(void)
{
    for (dd_list *node = world.fibers.next; node != &world.fibers; node = node->next) {
        sim_fiber *fiber = DD_CONTAINER_OF(node, sim_fiber, link);
        printf("  process %d, thread %d (%s): %s", fiber->process->number, fiber->number, fiber->name,
               fiber->process->state == SIM_STOPPED ? "stopped"
               : fiber->state == FIBER_BLOCKED      ? "waits in "
                                                    : "runs");
        printf("%s\n", fiber->state == FIBER_BLOCKED && fiber->doing != NULL ? fiber->doing : "");
    }
}
