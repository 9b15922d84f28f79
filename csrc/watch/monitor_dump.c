/* Dumps of the recorder, and the pipe that asks for them. */
#include "watch/watch_internal.h"

#include "core/fork.h"
#include "core/lock.h"
#include "core/mem.h"
#include "observe/dump_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- the pipe */

static dd_status
refuse_what_is_there(const char *path, dd_error *err)
{
    struct stat entry;
    if (lstat(path, &entry) != 0) {
        return DD_OK;
    }
    if (!S_ISFIFO(entry.st_mode)) {
        return dd_error_set(err, DD_SYSTEM, "%s is to be a named pipe, and is something else", path);
    }
    (void)unlink(path); /* of a process before us */
    return DD_OK;
}

dd_status
watch_open_pipe(dd_monitor *monitor, dd_error *err)
{
    const char *path = monitor->pipe_path;
    dd_status status = refuse_what_is_there(path, err);
    if (status != DD_OK) {
        return status;
    }
    if (mkfifo(path, 0600) != 0) {
        return dd_error_set_errno(err, DD_SYSTEM, errno, "cannot make the named pipe %s", path);
    }
    /* Also for writing: it never ends then, however many come and go. */
    monitor->pipe_fd = dd_fork_own(open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW));
    if (monitor->pipe_fd < 0) {
        status = dd_error_set_errno(err, DD_SYSTEM, errno, "cannot open the named pipe %s", path);
        (void)unlink(path);
    }
    return status;
}

void
watch_close_pipe(dd_monitor *monitor)
{
    if (monitor->pipe_fd >= 0) {
        dd_fork_close(monitor->pipe_fd);
        monitor->pipe_fd = -1;
        (void)unlink(monitor->pipe_path);
    }
}

bool
watch_drain_pipe(dd_monitor *monitor)
{
    char bytes[256];
    bool is_any = false;
    while (monitor->pipe_fd >= 0 && read(monitor->pipe_fd, bytes, sizeof bytes) > 0) {
        is_any = true;
    }
    return is_any;
}

/* ---- dumps, on a thread of their own: a file system may hang */

typedef struct dump_job {
    dd_recorder *recorder;
    dd_dump_options options;
    char *path; /* owned */
    dd_lock mu;
    pthread_cond_t cond;
    /* guarded by mu */
    int nowners;
    bool is_done;
    dd_status status;
    dd_error error;
} dump_job;

static void
leave_job(dump_job *job)
{
    dd_lock_take(&job->mu);
    bool is_last = --job->nowners == 0;
    dd_lock_release(&job->mu);
    if (is_last) {
        dd_lock_fini(&job->mu);
        pthread_cond_destroy(&job->cond);
        dd_mem_free(job->path);
        dd_mem_free(job);
    }
}

static void *
run_job(void *arg)
{
    dump_job *job = arg;
    dd_error err;
    dd_status status = dd_recorder_dump_to_file(job->recorder, &job->options, job->path, &err);
    dd_lock_take(&job->mu);
    job->is_done = true;
    job->status = status;
    if (status != DD_OK) {
        job->error = err;
    }
    pthread_cond_signal(&job->cond);
    dd_lock_release(&job->mu);
    leave_job(job);
    return NULL;
}

static dd_status
start_job(dd_monitor *monitor, dump_job **out, dd_error *err)
{
    size_t nbytes = strlen(monitor->dump_path) + 1;
    dump_job *job = dd_mem_zalloc(sizeof *job);
    char *path = dd_mem_alloc(nbytes);
    if (job == NULL || path == NULL) {
        dd_mem_free(job);
        dd_mem_free(path);
        return dd_error_no_memory(err, sizeof *job + nbytes);
    }
    memcpy(path, monitor->dump_path, nbytes);
    job->recorder = monitor->options.recorder;
    job->options = monitor->options.dump;
    job->path = path;
    job->nowners = 2;
    dd_lock_init(&job->mu, DD_LOCK_DUMP_JOB);
    dd_cond_init(&job->cond);
    pthread_t thread;
    dd_status status = dd_thread_start(&thread, "dldist-dump", run_job, job, err);
    if (status != DD_OK) {
        job->nowners = 1;
        leave_job(job);
        return status;
    }
    pthread_detach(thread);
    *out = job;
    return DD_OK;
}

static dd_status
wait_job(dd_monitor *monitor, dump_job *job, dd_error *err)
{
    dd_wait wait = watch_wait(monitor);
    wait.deadline_ns = dd_clock_now_ns() + monitor->options.dump_timeout_ns;
    dd_status status = DD_OK;
    dd_lock_take(&job->mu);
    while (!job->is_done && !dd_wait_is_over(&wait) && status == DD_OK) {
        dd_cond_wait_slice(&job->cond, &job->mu, &wait);
        status = dd_wait_check(&wait, err);
    }
    if (job->is_done) {
        status = job->status == DD_OK ? DD_OK : dd_error_copy(err, &job->error);
    } else if (status == DD_OK) {
        status = dd_error_set(err, DD_TIMED_OUT, "writing %s takes longer than %.1f s", job->path,
                              dd_wait_elapsed_s(&wait));
    }
    dd_lock_release(&job->mu);
    return status;
}

bool
watch_is_dump_due(dd_monitor *monitor)
{
    int64_t now_ns = dd_clock_now_ns();
    bool is_due = monitor->last_dump_ns == 0 || now_ns - monitor->last_dump_ns >= WATCH_BURST_NS;
    if (is_due) {
        monitor->last_dump_ns = now_ns;
    }
    return is_due;
}

void
watch_dump_now(dd_monitor *monitor, dd_blob *report)
{
    dd_error err;
    dump_job *job = NULL;
    dd_status status = start_job(monitor, &job, &err);
    if (status == DD_OK) {
        status = wait_job(monitor, job, &err);
        leave_job(job);
    }
    if (status == DD_OK) {
        atomic_fetch_add(&monitor->ndumps, 1);
        watch_report_add(report, "the flight recorder is in %s", monitor->dump_path);
    } else {
        watch_report_add(report, "no dump could be written: %s", err.message);
    }
}
