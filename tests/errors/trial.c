#include "trial.h"

#include "core/fork.h"
#include "core/mem.h"
#include "faults/faults.h"
#include "leftovers.h"
#include "store/tcp_server.h"

#include <dirent.h>
#include <execinfo.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* Resources are released within this time: threads that end, descriptors in transit in a socket. */
#define SETTLE_NS (500 * DD_NS_PER_MS)

#if defined(__SANITIZE_ADDRESS__)
int __lsan_do_recoverable_leak_check(void);
#define is_memory_lost() (__lsan_do_recoverable_leak_check() != 0)
#else
#define is_memory_lost() false
#endif

/* ---- a rank */

static rank_report *own_report;

static void
note_failure(void)
{
    if (!own_report->was_hit) {
        own_report->was_hit = true;
        own_report->trace_depth = backtrace(own_report->trace, TRACE_DEPTH);
    }
}

static belongings
count_belongings(void)
{
    return (belongings){.nfds = count_fds(),
                        .nmappings = count_shared_mappings(),
                        .nthreads = count_threads_now(),
                        .nblocks = dd_mem_count_blocks()};
}

static bool
is_more(const belongings *now, const belongings *before)
{
    return now->nfds > before->nfds || now->nmappings > before->nmappings ||
           now->nthreads > before->nthreads || now->nblocks > before->nblocks;
}

static void
settle(rank_report *report)
{
    dd_wait wait = dd_wait_after(SETTLE_NS);
    do {
        report->after = count_belongings();
    } while (is_more(&report->after, &report->before) && !dd_wait_has_expired(&wait));
    if (is_memory_lost()) {
        snprintf(report->complaint, sizeof report->complaint, "memory is lost: see LeakSanitizer's report");
    }
}

static _Noreturn void
be_rank(const trial *trial_spec, rank_env *self)
{
    dd_sys_fault fault = trial_spec->fault;
    bool is_victim = self->rank == trial_spec->victim && fault.number >= 0;
    fault.on_failure = note_failure;
    own_report = self->report;
    /* allocates the list of core/fork.h, which is never freed */
    dd_fork_close(dd_fork_register(dup(0)));
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    self->report->before = count_belongings();
    dd_sys_fail_call(is_victim ? &fault : NULL);
    int64_t start_ns = dd_clock_now_ns();
    trial_spec->program->run(self);
    self->report->elapsed_ns = dd_clock_now_ns() - start_ns;
    for (int call = 0; call < DD_SYS_CALL_COUNT; call++) {
        self->report->ncalls[call] = dd_sys_count_calls((dd_sys_call)call);
    }
    dd_sys_fail_call(NULL);
    settle(self->report);
    self->report->has_ended = true;
    _exit(0);
}

/* ---- the store of the agent */

static _Noreturn void
be_agent(int port_pipe, int life)
{
    dd_tcp_server_options options = {.host = "127.0.0.1",
                                     .listen_fd = -1,
                                     .limits = DD_TCP_LIMITS_DEFAULT,
                                     .handshake_timeout_ns = 10 * DD_NS_PER_S};
    dd_tcp_server *server = NULL;
    dd_error error;
    dd_wait wait = dd_wait_after(10 * DD_NS_PER_S);
    uint16_t port = 0;
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (dd_tcp_server_open(&server, &options, &wait, &error) == DD_OK) {
        port = dd_tcp_server_port(server);
    } else {
        fprintf(stderr, "the agent's store: %s\n", error.message);
    }
    (void)!write(port_pipe, &port, sizeof port);
    char nothing;
    (void)!read(life, &nothing, 1);
    dd_tcp_server_release(server);
    _exit(0);
}

static bool
start_agent(trial_place *place)
{
    int port_pipe[2];
    int life[2];
    if (pipe(port_pipe) != 0 || pipe(life) != 0) {
        perror("a pipe");
        return false;
    }
    place->agent = fork();
    if (place->agent == 0) {
        (void)close(life[1]);
        be_agent(port_pipe[1], life[0]);
    }
    (void)close(port_pipe[1]);
    (void)close(life[0]);
    place->agent_life_fd = life[1];
    bool is_there = place->agent > 0 && read(port_pipe[0], &place->agent_port, sizeof place->agent_port) == 2;
    (void)close(port_pipe[0]);
    return is_there && place->agent_port != 0;
}

bool
trial_place_init(trial_place *place, int id)
{
    sigset_t ends;
    sigemptyset(&ends);
    sigaddset(&ends, SIGCHLD);
    (void)sigprocmask(SIG_BLOCK, &ends, NULL);
    *place = (trial_place){.id = id};
    snprintf(place->folder, sizeof place->folder, "/tmp/dldist_errors_XXXXXX");
    place->board =
        mmap(NULL, sizeof *place->board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (place->board == MAP_FAILED || mkdtemp(place->folder) == NULL) {
        perror("a place for runs");
        return false;
    }
    return start_agent(place);
}

void
trial_place_fini(trial_place *place)
{
    (void)close(place->agent_life_fd);
    (void)waitpid(place->agent, NULL, 0);
    if (rmdir(place->folder) != 0) {
        fprintf(stderr, "%s: runs have left files\n", place->folder);
    }
    (void)munmap(place->board, sizeof *place->board);
}

/* ---- one run */

/* Remove the files. Return their number, except store files, which remain if a job was not
 * completed. */
static int
clear_folder(const char *path)
{
    int count = 0;
    DIR *folder = opendir(path);
    for (const struct dirent *entry; folder != NULL && (entry = readdir(folder)) != NULL;) {
        char inner[512];
        snprintf(inner, sizeof inner, "%s/%s", path, entry->d_name);
        if (entry->d_name[0] == '.' && (entry->d_name[1] == '\0' || entry->d_name[1] == '.')) {
            continue;
        }
        bool is_store = strstr(entry->d_name, ".store") != NULL;
        count += is_store ? 0 : entry->d_type == DT_DIR ? clear_folder(inner) : 1;
        (void)!remove(inner);
    }
    if (folder != NULL) {
        (void)closedir(folder);
    }
    return count;
}

static pid_t
start_rank(trial_place *place, const trial *trial_spec, int rank, const char *name)
{
    (void)fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        rank_env self = {.rank = rank,
                         .size = trial_spec->program->size,
                         .name = name,
                         .folder = place->folder,
                         .agent_port = place->agent_port,
                         .board = place->board,
                         .report = &place->board->ranks[rank]};
        (void)close(place->agent_life_fd);
        be_rank(trial_spec, &self);
    }
    return pid;
}

/* Sleep until a child exits, with a short limit. */
static void
await_child(void)
{
    sigset_t ends;
    sigemptyset(&ends);
    sigaddset(&ends, SIGCHLD);
    struct timespec moment = {.tv_nsec = 20 * DD_NS_PER_MS};
    (void)sigtimedwait(&ends, NULL, &moment);
}

static rank_end
judge_end(const rank_report *report, int status)
{
    return WIFEXITED(status) && WEXITSTATUS(status) == 0 && report->has_ended ? RANK_ENDED : RANK_CRASHED;
}

void
trial_run(trial_place *place, const trial *trial_spec, int64_t limit_ns, trial_result *result)
{
    int size = trial_spec->program->size;
    char name[32];
    pid_t pids[PROGRAM_RANKS_MAX];
    snprintf(name, sizeof name, "run%d_%ld", place->id, place->nruns++);
    memset(place->board, 0, sizeof *place->board);
    atomic_store(&place->board->stop_at_ns, INT64_MAX);
    dd_wait wait = dd_wait_after(limit_ns);
    for (int rank = 0; rank < size; rank++) {
        pids[rank] = start_rank(place, trial_spec, rank, name);
    }
    memset(result, 0, sizeof *result);
    for (int nrunning = size; nrunning > 0;) {
        bool is_late = dd_wait_has_expired(&wait);
        for (int rank = 0; rank < size; rank++) {
            if (pids[rank] > 0 && is_late) {
                (void)kill(pids[rank], SIGKILL);
            }
            if (pids[rank] > 0 && waitpid(pids[rank], &result->status[rank], is_late ? 0 : WNOHANG) > 0) {
                result->ends[rank] =
                    is_late ? RANK_HUNG : judge_end(&place->board->ranks[rank], result->status[rank]);
                pids[rank] = 0;
                nrunning--;
            }
        }
        if (nrunning > 0) {
            await_child();
        }
    }
    result->board = *place->board;
    result->nfiles = clear_folder(place->folder);
}
