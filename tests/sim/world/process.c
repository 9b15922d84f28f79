/* The lifecycle of processes. */
#include "sim/world/internal.h"

static void *
run_process(void *arg)
{
    sim_process *process = arg;
    process->body(process->arg);
    world.running->run = NULL; /* the process exits */
    return NULL;
}

int
sim_spawn(int host, void (*body)(void *arg), void *arg)
{
    int number = world.nprocesses++;
    sim_process *process = &world.processes[number];
    *process = (sim_process){
        .number = number,
        .host = host,
        .pid = 1000 + number,
        .body = body,
        .arg = arg,
        .fd_limit = SIM_FDS_MAX,
        .slowness = 1,
        .next_fault_ncalls = INT64_MAX,
    };
    dd_list_init(&process->allocations);
    (void)sim_fiber_create(process, "main", run_process, process);
    return number;
}

static void
note_leftovers(sim_process *process)
{
    for (int fd = 0; fd < SIM_FDS_MAX; fd++) {
        process->leftovers.nfds += process->fds[fd] != NULL;
    }
    for (dd_list *node = world.fibers.next; node != &world.fibers; node = node->next) {
        const sim_fiber *fiber = DD_CONTAINER_OF(node, sim_fiber, link);
        process->leftovers.nthreads += fiber->process == process && fiber->run != NULL;
    }
    process->leftovers.nallocations = process->nallocations;
    process->leftovers.nmappings = (int)process->nmappings;
}

static void
end_threads(const sim_process *process)
{
    for (dd_list *node = world.fibers.next; node != &world.fibers;) {
        sim_fiber *fiber = DD_CONTAINER_OF(node, sim_fiber, link);
        node = node->next;
        if (fiber->process == process) {
            sim_fiber_destroy(fiber);
        }
    }
}

void
sim_process_end(sim_process *process, sim_state how)
{
    sim_trace(how == SIM_EXITED ? "exits" : "is killed", process->number, 0);
    note_leftovers(process);
    process->state = how;
    end_threads(process);
    for (int fd = 0; fd < SIM_FDS_MAX; fd++) {
        sim_file *file = process->fds[fd];
        process->fds[fd] = NULL;
        if (file != NULL) {
            sim_file_drop_fd(file);
        }
    }
    sim_free_all(process);
}

int
sim_own_process(void)
{
    return sim_self()->number;
}

long long
sim_pid_of(int process)
{
    return world.processes[process].pid;
}

sim_state
sim_state_of(int process)
{
    return world.processes[process].state;
}

sim_leftovers
sim_leftovers_of(int process)
{
    return world.processes[process].leftovers;
}

void
sim_sleep(int64_t duration_ns)
{
    (void)sim_block(&world, world.now_ns + duration_ns, "a pause");
}
