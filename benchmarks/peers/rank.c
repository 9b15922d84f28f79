#include "rank.h"

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

/* ---- the data: small integers, exact in every dtype and every sum */

static unsigned
pattern(size_t rank, size_t index)
{
    return (unsigned)(rank + 1 + index % 7);
}

static unsigned
pattern_sum(size_t size, size_t index)
{
    return (unsigned)(size * (size + 1) / 2 + size * (index % 7));
}

static bool
is(const rank_task *task, const char *op)
{
    return strcmp(task->op, op) == 0;
}

/* Returns the expected element `index` of the result; -1 if this rank has no result. */
static long
expected(const rank_task *task, size_t index)
{
    size_t rank = (size_t)task->rank;
    size_t size = (size_t)task->size;
    size_t part;

    if (is(task, "all_reduce")) {
        return (long)pattern_sum(size, index);
    }
    if (is(task, "broadcast")) {
        return (long)pattern(0, index);
    }
    if (is(task, "all_gather")) {
        return (long)pattern(index / task->nin, index % task->nin);
    }
    if (is(task, "reduce_scatter")) {
        return (long)pattern_sum(size, rank * task->nout + index);
    }
    if (is(task, "all_to_all")) {
        part = task->nin / size;
        return (long)pattern(index / part, rank * part + index % part);
    }
    if (is(task, "sendrecv") && rank < 2) {
        return (long)pattern(1 - rank, index);
    }
    if (is(task, "stream") && rank == 1) {
        return (long)pattern(0, index);
    }
    return -1;
}

static void
store(const rank_task *task, void *buf, size_t index, unsigned value)
{
    switch (task->kind) {
    case RANK_FLOAT32:
        ((float *)buf)[index] = (float)value;
        break;
    case RANK_FLOAT64:
        ((double *)buf)[index] = (double)value;
        break;
    case RANK_INT32:
        ((int32_t *)buf)[index] = (int32_t)value;
        break;
    case RANK_INT64:
        ((int64_t *)buf)[index] = (int64_t)value;
        break;
    case RANK_UINT8:
        ((uint8_t *)buf)[index] = (uint8_t)value;
        break;
    case RANK_WORD16:
        ((uint16_t *)buf)[index] = (uint16_t)value;
        break;
    }
}

static double
load(const rank_task *task, const void *buf, size_t index)
{
    switch (task->kind) {
    case RANK_FLOAT32:
        return (double)((const float *)buf)[index];
    case RANK_FLOAT64:
        return ((const double *)buf)[index];
    case RANK_INT32:
        return (double)((const int32_t *)buf)[index];
    case RANK_INT64:
        return (double)((const int64_t *)buf)[index];
    case RANK_UINT8:
        return (double)((const uint8_t *)buf)[index];
    case RANK_WORD16:
        return (double)((const uint16_t *)buf)[index];
    }
    return -1;
}

/* Returns false and sets `reply` to the reason if the result is wrong. */
static bool
verify(const rank_task *task, char *reply, size_t nreply)
{
    const void *result = task->output == NULL ? task->input : task->output;
    size_t count = task->output == NULL ? task->nin : task->nout;

    for (size_t i = 0; i < count; i++) {
        long want = expected(task, i);
        double got = load(task, result, i);
        if (want >= 0 && got != (double)want) {
            snprintf(reply, nreply, "wrong element %zu of %zu is %g, not %ld", i, count, got, want);
            return false;
        }
    }
    return true;
}

/* ---- commands */

static bool
parse_dtype(const char *name, rank_task *task)
{
    static const struct {
        const char *name;
        rank_kind kind;
        size_t item;
    } dtypes[] = {
        {"float32", RANK_FLOAT32, 4}, {"float64", RANK_FLOAT64, 8}, {"int32", RANK_INT32, 4},
        {"int64", RANK_INT64, 8},     {"uint8", RANK_UINT8, 1},     {"float16", RANK_WORD16, 2},
        {"bfloat16", RANK_WORD16, 2},
    };

    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++) {
        if (strcmp(name, dtypes[i].name) == 0) {
            task->kind = dtypes[i].kind;
            task->item = dtypes[i].item;
            return true;
        }
    }
    return false;
}

static bool
has_output(const rank_task *task)
{
    return !is(task, "all_reduce") && !is(task, "broadcast") && !is(task, "barrier");
}

static void
finish(rank_task *task)
{
    free(task->input);
    free(task->output);
    memset(task, 0, sizeof *task);
}

static bool
allocate(rank_task *task, size_t nbytes)
{
    size_t size = (size_t)task->size;
    size_t count = nbytes / task->item;

    task->nin = is(task, "all_gather") ? count / size : count;
    task->nout = !has_output(task) ? 0 : is(task, "reduce_scatter") ? count / size : count;
    task->input = malloc(task->nin * task->item + 1);
    task->output = has_output(task) ? malloc(task->nout * task->item + 1) : NULL;
    if (task->input == NULL || (has_output(task) && task->output == NULL)) {
        return false;
    }
    for (size_t i = 0; i < task->nin; i++) {
        store(task, task->input, i, pattern((size_t)task->rank, i));
    }
    if (task->output != NULL) {
        memset(task->output, 0xee, task->nout * task->item);
    }
    return true;
}

/* Allocates buffers, runs the operation once, checks the result, and leaves zeros, whose sums stay
 * zeros. */
static void
prepare(const char *line, const rank_peer *peer, rank_task *task, char *reply, size_t nreply)
{
    char dtype[24];
    size_t nbytes;
    const char *problem;

    finish(task);
    snprintf(reply, nreply, "ok");
    if (sscanf(line, "%*s %*s %23s %23s %zu", task->op, dtype, &nbytes) != 3 || !parse_dtype(dtype, task)) {
        snprintf(reply, nreply, "no the C rank cannot read the command");
        return;
    }
    task->rank = peer->rank;
    task->size = peer->size;
    task->context = peer->context;
    if (!allocate(task, nbytes)) {
        snprintf(reply, nreply, "error no memory for %zu bytes", nbytes);
        return;
    }
    if (!peer->find(task)) {
        snprintf(reply, nreply, "no it has no %s of %s", task->op, dtype);
        return;
    }
    problem = task->call(task);
    if (problem != NULL) {
        snprintf(reply, nreply, "error %s", problem);
        return;
    }
    if (verify(task, reply, nreply)) {
        memset(task->input, 0, task->nin * task->item);
    }
}

static int64_t
clock_ns(clockid_t clock)
{
    struct timespec time;

    clock_gettime(clock, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static int64_t
now_ns(void)
{
    return clock_ns(CLOCK_MONOTONIC);
}

/* Runs a block: an untimed call, a barrier, then `nbatches` timed batches of `batch` calls each. */
static void
run(const rank_peer *peer, rank_task *task, int nbatches, long batch, FILE *to)
{
    int64_t *marks = calloc((size_t)nbatches + 1, sizeof *marks);
    const char *problem = marks == NULL || task->call == NULL ? "nothing is prepared" : task->call(task);

    if (problem == NULL) {
        peer->barrier(peer->context);
        marks[0] = now_ns();
        for (int i = 0; i < nbatches && problem == NULL; i++) {
            for (long j = 0; j < batch && problem == NULL; j++) {
                problem = task->call(task);
            }
            marks[i + 1] = now_ns();
        }
    }
    if (problem == NULL) {
        fputs("times", to);
    } else {
        fprintf(to, "error %s", problem);
    }
    for (int i = 0; i < nbatches && problem == NULL; i++) {
        fprintf(to, " %" PRId64, marks[i + 1] - marks[i]);
    }
    free(marks);
}

/* Runs `work_ns` of work and a call, `nsteps` times; replies each call's times and the calls' CPU
 * time. */
static void
run_steps(const rank_peer *peer, rank_task *task, int nsteps, int64_t work_ns, FILE *to)
{
    int64_t *marks = calloc((size_t)nsteps * 2, sizeof *marks);
    int64_t end, cpu_ns = 0;
    const char *problem = marks == NULL || task->call == NULL ? "nothing is prepared" : task->call(task);

    if (problem == NULL) {
        peer->barrier(peer->context);
        end = now_ns();
        for (int i = 0; i < nsteps && problem == NULL; i++) {
            int64_t until = end + work_ns, before;
            while (now_ns() < until) {
            }
            before = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
            marks[2 * i] = now_ns();
            problem = task->call(task);
            marks[2 * i + 1] = end = now_ns();
            cpu_ns += clock_ns(CLOCK_PROCESS_CPUTIME_ID) - before;
        }
    }
    if (problem == NULL) {
        fprintf(to, "steps %" PRId64, cpu_ns);
    } else {
        fprintf(to, "error %s", problem);
    }
    for (int i = 0; i < 2 * nsteps && problem == NULL; i++) {
        fprintf(to, " %" PRId64, marks[i]);
    }
    free(marks);
}

static void
obey(const char *line, const rank_peer *peer, rank_task *task, FILE *to)
{
    char reply[256] = "ok";
    int nbatches;
    long batch;
    int64_t work_ns;

    if (strncmp(line, "prepare ", 8) == 0) {
        prepare(line, peer, task, reply, sizeof reply);
        fputs(reply, to);
    } else if (sscanf(line, "run %*s %d %ld", &nbatches, &batch) == 2 && nbatches > 0) {
        run(peer, task, nbatches, batch, to);
    } else if (sscanf(line, "steps %*s %d %" SCNd64, &nbatches, &work_ns) == 2 && nbatches > 0) {
        run_steps(peer, task, nbatches, work_ns, to);
    } else {
        finish(task);
        fputs(reply, to);
    }
    fputc('\n', to);
    fflush(to);
}

static int
open_connection(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) != 0) {
        perror(path);
        return -1;
    }
    return fd;
}

int
rank_serve(const char *path, const rank_peer *peer)
{
    rank_task task = {0};
    char line[256];
    int fd = open_connection(path);
    FILE *from = fd < 0 ? NULL : fdopen(fd, "r");
    FILE *to = fd < 0 ? NULL : fdopen(dup(fd), "w");

    if (from == NULL || to == NULL) {
        return 1;
    }
    fprintf(to, "hello %d %d %s\n", peer->rank, (int)getpid(), peer->version);
    fflush(to);
    while (fgets(line, sizeof line, from) != NULL) {
        obey(line, peer, &task, to);
    }
    finish(&task);
    fclose(from);
    fclose(to);
    return 0;
}
