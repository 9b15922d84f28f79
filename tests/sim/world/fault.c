/* Faults of processes, hosts and the network. */
#include "sim/world/internal.h"

const char *
sim_fault_name(sim_fault_kind kind)
{
    static const char *const names[] = {"kill",     "stop",      "slow",  "no-memory", "no-fds", "cut",
                                        "half-cut", "power-off", "clock", "delay",     "flip"};
    return (unsigned)kind < SIM_FAULT_KINDS ? names[kind] : "?";
}

static void
run_planned(void *subject, int64_t word)
{
    (void)subject;
    sim_fault_run((int)word);
}

static void
look_for_next_fault(sim_process *process)
{
    process->next_fault_ncalls = INT64_MAX;
    for (int i = 0; i < world.nfaults; i++) {
        const sim_fault *fault = &world.faults[i];
        if (fault->process == process->number && fault->after_ns == 0 && world.happened_ns[i] < 0 &&
            fault->after_ncalls < process->next_fault_ncalls) {
            process->next_fault_ncalls = fault->after_ncalls;
        }
    }
}

void
sim_plan_fault(const sim_fault *fault)
{
    int number = world.nfaults++;
    world.faults[number] = *fault;
    world.happened_ns[number] = -1;
    if (fault->after_ns == 0) {
        look_for_next_fault(&world.processes[fault->process]);
    } else {
        sim_plan(fault->after_ns, run_planned, NULL, number);
    }
}

/* Note a pending fault. The scheduler runs it, because the stack of the running thread is in
 * use. */
void
sim_check_faults(sim_process *process)
{
    if (process->ncalls < process->next_fault_ncalls) {
        return;
    }
    for (int i = 0; i < world.nfaults; i++) {
        const sim_fault *fault = &world.faults[i];
        if (fault->process == process->number && fault->after_ns == 0 && world.happened_ns[i] < 0 &&
            fault->after_ncalls <= process->ncalls && fault->after_nsends <= process->nsends) {
            world.due_fault = i;
            sim_yield();
            return;
        }
    }
}

static void
end_fault(void *subject, int64_t word)
{
    (void)subject;
    const sim_fault *fault = &world.faults[word];
    sim_process *process = &world.processes[fault->process];
    sim_trace("fault ends", word, (int64_t)fault->kind);
    switch (fault->kind) {
    case SIM_STOP:
        process->state = process->state == SIM_STOPPED ? SIM_RUNS : process->state;
        break;
    case SIM_SLOW:
        process->slowness = 1;
        break;
    case SIM_NO_FDS:
        process->fd_limit = SIM_FDS_MAX;
        break;
    case SIM_CUT:
        world.paths[fault->amount][process->host].is_cut = false;
        world.paths[process->host][fault->amount].is_cut = false;
        sim_network_resume();
        break;
    case SIM_HALF_CUT:
        world.paths[process->host][fault->amount].is_cut = false;
        sim_network_resume();
        break;
    case SIM_KILL:
    case SIM_NO_MEMORY:
    case SIM_POWER_OFF:
    case SIM_CLOCK:
    case SIM_DELAY:
    case SIM_FLIP:
    case SIM_FAULT_KINDS:
        break;
    }
}

static int
count_fds(const sim_process *process)
{
    int count = 0;
    for (int fd = 0; fd < SIM_FDS_MAX; fd++) {
        count = process->fds[fd] != NULL ? fd + 1 : count;
    }
    return count;
}

static void
power_off(int host)
{
    world.is_off[host] = true;
    for (int i = 0; i < world.nprocesses; i++) {
        sim_process *process = &world.processes[i];
        if (process->host == host && (process->state == SIM_RUNS || process->state == SIM_STOPPED)) {
            sim_process_end(process, SIM_KILLED);
        }
    }
    sim_network_note_cut();
}

/* Move the calendar of a host. Waits until a calendar time end earlier or later, as in the
 * kernel. */
static void
move_calendar(int host, int64_t by_ns)
{
    world.calendar_ns[host] += by_ns;
    for (dd_list *node = world.fibers.next; node != &world.fibers; node = node->next) {
        sim_fiber *fiber = DD_CONTAINER_OF(node, sim_fiber, link);
        if (fiber->state == FIBER_BLOCKED && fiber->is_on_calendar && fiber->process->host == host) {
            fiber->wake_ns -= by_ns;
        }
    }
}

void
sim_move_calendar(int64_t by_ns)
{
    move_calendar(sim_self()->host, by_ns);
}

void
sim_fault_run(int number)
{
    const sim_fault *fault = &world.faults[number];
    sim_process *process = &world.processes[fault->process];
    bool is_there = process->state == SIM_RUNS || process->state == SIM_STOPPED;
    world.happened_ns[number] = world.now_ns;
    look_for_next_fault(process);
    sim_trace(sim_fault_name(fault->kind), fault->process, fault->amount);
    if (!is_there) {
        return;
    }
    switch (fault->kind) {
    case SIM_KILL:
        sim_process_end(process, SIM_KILLED);
        break;
    case SIM_STOP:
        process->state = SIM_STOPPED;
        break;
    case SIM_SLOW:
        process->slowness = (int)fault->amount;
        break;
    case SIM_NO_MEMORY:
        process->nallocations_to_fail = fault->amount;
        break;
    case SIM_NO_FDS:
        process->fd_limit = count_fds(process) + (int)fault->amount;
        break;
    case SIM_CUT:
        world.paths[fault->amount][process->host].is_cut = true;
        world.paths[process->host][fault->amount].is_cut = true;
        sim_network_note_cut();
        break;
    case SIM_HALF_CUT:
        world.paths[process->host][fault->amount].is_cut = true;
        sim_network_note_cut();
        break;
    case SIM_POWER_OFF:
        power_off(process->host);
        break;
    case SIM_CLOCK:
        move_calendar(process->host, fault->duration_ns);
        break;
    case SIM_DELAY:
        for (int to = 0; to < world.options.nhosts; to++) {
            world.paths[process->host][to].latency_ns += fault->duration_ns;
        }
        break;
    case SIM_FLIP:
        process->is_to_flip = true;
        break;
    case SIM_FAULT_KINDS:
        break;
    }
    sim_plan(world.now_ns + (fault->duration_ns > 0 ? fault->duration_ns : 0), end_fault, NULL, number);
}

bool
sim_has_happened(int fault)
{
    return world.happened_ns[fault] >= 0;
}

int64_t
sim_happened_at_ns(int fault)
{
    return world.happened_ns[fault];
}
