/* MPI as XLA uses it, on groups of threads. */
#include "check.h"
#include "group_team.h"
#include "xla/mpi.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#define CALL(name, ...) CHECK_INT(dd_mpi_group_calls.name(__VA_ARGS__), DD_MPI_SUCCESS)
#define FLOATS (DD_MPI_TYPE + DD_DTYPE_FLOAT32)
#define BYTE (DD_MPI_TYPE + DD_DTYPE_UINT8)
#define SUM (DD_MPI_OPERATION + DD_REDOP_SUM)

/* Return the text of this thread's last error, valid until the next call. */
static const char *
last_text(void)
{
    static _Thread_local char text[DD_MPI_MAX_ERROR_STRING];
    int nbytes = -1;
    CALL(Error_string, DD_MPI_ERR_OTHER, text, &nbytes);
    CHECK_INT(nbytes, strlen(text));
    return text;
}

static void
reduce(const team_rank *self, dd_mpi_handle comm)
{
    enum { COUNT = 1000 };
    float in[COUNT];
    float out[COUNT];
    for (int i = 0; i < COUNT; i++) {
        in[i] = (float)(self->rank + i);
    }
    CALL(Allreduce, in, out, COUNT, FLOATS, SUM, comm);
    int ranks = self->size * (self->size - 1) / 2;
    size_t nwrong = 0;
    for (int i = 0; i < COUNT; i++) {
        nwrong += out[i] != (float)(ranks + self->size * i);
    }
    CHECK_INT(nwrong, 0);
    CALL(Allreduce, (const void *)DD_MPI_IN_PLACE, in, COUNT, FLOATS, SUM, comm);
    CHECK(memcmp(in, out, sizeof in) == 0);
}

/* Part i has i + 1 elements, except for the last, which is empty. */
static void
scatter(const team_rank *self, dd_mpi_handle comm)
{
    int counts[8];
    int total = 0;
    for (int i = 0; i < self->size; i++) {
        counts[i] = i + 1 < self->size ? i + 1 : 0;
        total += counts[i];
    }
    float *in = malloc((size_t)(total + 1) * sizeof *in);
    float out[8] = {0};
    for (int i = 0; i < total; i++) {
        in[i] = (float)(i * (self->rank + 1));
    }
    CALL(Reduce_scatter, in, out, counts, FLOATS, SUM, comm);
    int first = self->rank * (self->rank + 1) / 2;
    for (int i = 0; i < counts[self->rank]; i++) {
        CHECK(out[i] == (float)((first + i) * self->size * (self->size + 1) / 2));
    }
    free(in);
}

static void
gather(const team_rank *self, dd_mpi_handle comm)
{
    char in[3] = {'a', (char)('0' + self->rank), 'z'};
    char out[24];
    CALL(Allgather, in, 3, BYTE, out, 3, BYTE, comm);
    for (int i = 0; i < self->size; i++) {
        char expected[3] = {'a', (char)('0' + i), 'z'};
        CHECK(memcmp(out + (size_t)i * 3, expected, 3) == 0);
    }
}

static void
pass_on(const team_rank *self, dd_mpi_handle comm)
{
    int next = (self->rank + 1) % self->size;
    int previous = (self->rank + self->size - 1) % self->size;
    int out = self->rank;
    int in = -1;
    CALL(Sendrecv, &out, 4, BYTE, next, 7, &in, 4, BYTE, previous, 7, comm, NULL);
    CHECK_INT(in, previous);
    dd_mpi_handle requests[2];
    in = -1;
    CALL(Irecv, &in, 4, BYTE, next, 0, comm, &requests[0]);
    CALL(Isend, &out, 4, BYTE, previous, 0, comm, &requests[1]);
    for (int i = 0; i < 2; i++) {
        CALL(Wait, &requests[i], NULL);
        CHECK_INT(requests[i], DD_MPI_NULL);
        CALL(Wait, &requests[i], NULL); /* the request has completed */
    }
    CHECK_INT(in, next);
}

static void
run_calls(team_rank *self)
{
    dd_mpi_handle comm = dd_mpi_comm_create(self->group);
    int rank;
    int size;
    CALL(Comm_rank, comm, &rank);
    CALL(Comm_size, comm, &size);
    CHECK_INT(rank, self->rank);
    CHECK_INT(size, self->size);
    reduce(self, comm);
    scatter(self, comm);
    gather(self, comm);
    pass_on(self, comm);
    CALL(Comm_free, &comm);
    CHECK_INT(comm, DD_MPI_NULL);
    CALL(Comm_free, &comm);
}

TEST(every_mpi_call_that_xla_makes_gives_the_correct_result)
{
    for (int size = 1; size <= 4; size++) {
        team_options options = {.size = size};
        team_run_both(&options, run_calls, NULL);
    }
}

static void
check_refusals(team_rank *self)
{
    dd_mpi_handle comm = dd_mpi_comm_create(self->group);
    float x = 1;
    CHECK_INT(dd_mpi_group_calls.Allreduce(&x, &x, 1, SUM, SUM, comm), DD_MPI_ERR_OTHER);
    CHECK_CONTAINS(last_text(), "dldist has no such MPI datatype");
    CHECK_INT(dd_mpi_group_calls.Allreduce(&x, &x, 1, FLOATS, FLOATS, comm), DD_MPI_ERR_OTHER);
    CHECK_CONTAINS(last_text(), "dldist has no such MPI operation");
    CHECK_INT(dd_mpi_group_calls.Allgather(&x, 1, SUM, &x, 1, SUM, comm), DD_MPI_ERR_OTHER);
    CHECK_INT(dd_mpi_group_calls.Reduce_scatter(&x, &x, &(int){1}, SUM, SUM, comm), DD_MPI_ERR_OTHER);
    dd_mpi_handle request = comm;
    CHECK_INT(dd_mpi_group_calls.Isend(&x, 1, FLOATS, 5, 0, comm, &request), DD_MPI_ERR_OTHER);
    CHECK_INT(request, DD_MPI_NULL);
    CHECK_CONTAINS(last_text(), "5");
    dd_group_abort(self->group, "because I say so");
    CHECK_INT(dd_mpi_group_calls.Allreduce(&x, &x, 1, FLOATS, SUM, comm), DD_MPI_ERR_OTHER);
    CHECK_CONTAINS(last_text(), "because I say so");
    CHECK_INT(dd_mpi_group_calls.Sendrecv(&x, 4, BYTE, 0, 0, &x, 4, BYTE, 0, 0, comm, NULL),
              DD_MPI_ERR_OTHER);
    CHECK_CONTAINS(last_text(), "because I say so");
    CALL(Comm_free, &comm);
}

TEST(failed_mpi_calls_of_xla_report_a_reason)
{
    team_options options = {.size = 1};
    team_run(&options, check_refusals, NULL);
}

TEST(a_failed_communicator_reports_its_cause_in_every_call)
{
    dd_mpi_handle comm = dd_mpi_comm_create_broken(3, 5, "rank 2 has died");
    int number;
    CALL(Comm_rank, comm, &number);
    CHECK_INT(number, 3);
    CALL(Comm_size, comm, &number);
    CHECK_INT(number, 5);
    float x = 1;
    CHECK_INT(dd_mpi_group_calls.Allreduce(&x, &x, 1, FLOATS, SUM, comm), DD_MPI_ERR_OTHER);
    CHECK_CONTAINS(last_text(), "rank 2 has died");
    dd_mpi_set_world(comm);
    CHECK_INT(dd_mpi_group_calls.Allgather(&x, 1, FLOATS, &x, 1, FLOATS, DD_MPI_COMM_WORLD),
              DD_MPI_ERR_OTHER);
    CHECK_CONTAINS(last_text(), "rank 2 has died");
    dd_mpi_handle whole = DD_MPI_COMM_WORLD;
    CHECK_INT(dd_mpi_group_calls.Comm_free(&whole), DD_MPI_ERR_OTHER);
    CHECK_CONTAINS(last_text(), "MPI_COMM_WORLD cannot be freed");
    dd_mpi_set_world(DD_MPI_NULL);
    CALL(Comm_size, DD_MPI_COMM_WORLD, &number);
    CHECK_INT(number, 1);
    CHECK_INT(dd_mpi_group_calls.Allgather(&x, 1, FLOATS, &x, 1, FLOATS, DD_MPI_COMM_WORLD),
              DD_MPI_ERR_OTHER);
    CHECK_CONTAINS(last_text(), "out of memory when this communicator was created");
    CALL(Comm_free, &comm);
}
