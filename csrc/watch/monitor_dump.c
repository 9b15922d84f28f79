/* Dumps of the recorder, and the named pipe by which a user requests dumps. */
#include "watch/watch_internal.h"

#include "core/background_task.h"
#include "core/fork.h"
#include "core/mem.h"
#include "core/system.h"
#include "observe/recorder.h"

#include <errno.h>
#include <string.h>

/* ---- the pipe */

dd_status
watch_open_pipe(dd_monitor *monitor, dd_error *err)
{
    const char *path = monitor->options.pipe_path;
    struct stat entry;
    if (dd_sys_lstat(path, &entry) == 0) {
        if (!S_ISFIFO(entry.st_mode)) {
            return dd_error_set(err, DD_SYSTEM, "%s exists and is not a named pipe: remove it", path);
        }
        (void)dd_sys_unlink(path); /* removes a pipe that an earlier process left here */
    }
    if (dd_sys_mkfifo(path, 0600) != 0) {
        return dd_error_set_errno(err, DD_SYSTEM, errno, "cannot create the named pipe %s", path);
    }
    /* Open the pipe for writing as well: otherwise, reads would return the end of the file after
     * each writer closes the pipe. */
    do {
        monitor->pipe_fd =
            dd_fork_register(dd_sys_open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW, 0));
    } while (monitor->pipe_fd < 0 && errno == EINTR);
    if (monitor->pipe_fd < 0) {
        dd_status status = dd_error_set_errno(err, DD_SYSTEM, errno, "cannot open the named pipe %s", path);
        (void)dd_sys_unlink(path);
        return status;
    }
    return DD_OK;
}

void
watch_close_pipe(dd_monitor *monitor)
{
    if (monitor->pipe_fd >= 0) {
        dd_fork_close(monitor->pipe_fd);
        monitor->pipe_fd = -1;
        (void)dd_sys_unlink(monitor->options.pipe_path);
    }
}

bool
watch_drain_pipe(dd_monitor *monitor)
{
    char bytes[256];
    bool is_any = false;
    while (monitor->pipe_fd >= 0 && dd_sys_read(monitor->pipe_fd, bytes, sizeof bytes) > 0) {
        is_any = true;
    }
    return is_any;
}

/* ---- dumps, written on a separate thread because a file system may hang */

typedef struct dump_job {
    dd_background_task task; /* must be first */
    dd_recorder *recorder;
    dd_dump_options options;
    dd_status status;
    dd_error error;
    char path[];
} dump_job;

static void
run_job(dd_background_task *task)
{
    dump_job *job = (dump_job *)task;
    job->status = dd_recorder_dump_to_file(job->recorder, &job->options, job->path, &job->error);
}

dd_status
watch_write_dump(dd_monitor *monitor, dd_error *err)
{
    const char *path = monitor->options.dump_path;
    size_t path_nbytes = strlen(path) + 1;
    dump_job *job = dd_mem_zalloc(sizeof *job + path_nbytes);
    if (job == NULL) {
        return dd_error_no_memory(err, sizeof *job + path_nbytes);
    }
    job->task = (dd_background_task){.run = run_job};
    job->recorder = monitor->options.recorder;
    job->options = monitor->options.dump;
    memcpy(job->path, path, path_nbytes);
    dd_status status = dd_background_task_start(&job->task, "dldist-dump", err);
    if (status != DD_OK) {
        return status;
    }
    dd_wait wait = watch_wait(monitor);
    wait.deadline_ns = dd_clock_now_ns() + monitor->options.dump_timeout_ns;
    status = dd_background_task_wait(&job->task, &wait, err);
    if (status == DD_TIMED_OUT) {
        status = dd_error_set(err, DD_TIMED_OUT, "writing %s did not finish within %.1f s", path,
                              dd_wait_elapsed_s(&wait));
    } else if (status == DD_OK && job->status != DD_OK) {
        status = dd_error_copy(err, &job->error);
    }
    dd_background_task_release(&job->task);
    return status;
}
