/* Injected faults of communicators and kernels, by rank. */
#include "nccl_stub.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char stub_own_prefix[] = "nccl";

typedef struct async_fault {
    bool is_armed;
    int after;
    dd_nccl_result result;
    char text[NCCL_TEXT_MAX];
} async_fault;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static async_fault async_faults[WIRE_MAX_RANKS];
static int hang_after[WIRE_MAX_RANKS]; /* kernels + 1; 0: none */
static atomic_int slow_ms[WIRE_MAX_RANKS];
static atomic_int launch_delay_ms;
static atomic_int end_delay_ms;
static atomic_bool does_end_apart;

static bool
is_meant(int wanted, int rank)
{
    return wanted < 0 || wanted == rank;
}

void
dd_stub_warn(const char *text)
{
    if (text != NULL && text[0] != '\0') {
        nccl_warn("%s", text);
    }
}

dd_nccl_result
nccl_enter(stub_site *site)
{
    stub_fault fault;
    if (!stub_enter(site, &fault)) {
        return DD_NCCL_SUCCESS;
    }
    dd_stub_warn(fault.text);
    return (dd_nccl_result)fault.result;
}

/* ---- asynchronous errors */

static bool
take_due(int rank, bool is_launch, async_fault *due)
{
    pthread_mutex_lock(&lock);
    async_fault *fault = &async_faults[rank];
    bool is_due = fault->is_armed && fault->after == 0;
    if (is_due) {
        *due = *fault;
        fault->is_armed = false;
    } else if (fault->is_armed && is_launch) {
        fault->after--;
    }
    pthread_mutex_unlock(&lock);
    return is_due;
}

void
nccl_fault_on_launch(nccl_comm *comm)
{
    async_fault due;
    if (take_due(comm->rank, true, &due)) {
        dd_stub_warn(due.text);
        nccl_comm_set_state(comm, due.result);
    }
}

typedef struct async_visit {
    int rank;
    dd_nccl_result result;
    const char *text; /* may be NULL */
    bool is_found[WIRE_MAX_RANKS];
} async_visit;

static void
set_async(stub_object *object, void *ctx)
{
    nccl_comm *comm = (nccl_comm *)object;
    async_visit *visit = ctx;
    if (is_meant(visit->rank, comm->rank)) {
        dd_stub_warn(visit->text);
        nccl_comm_set_state(comm, visit->result);
        visit->is_found[comm->rank] = true;
    }
}

void
dd_stub_async_error(int rank, int result, int after, const char *text)
{
    async_visit visit = {.rank = rank, .result = (dd_nccl_result)result, .text = text};
    if (after == 0) {
        stub_table_each(&nccl_comms, set_async, &visit);
    }
    bool is_any_found = false;
    for (int i = 0; i < WIRE_MAX_RANKS; i++) {
        is_any_found = is_any_found || visit.is_found[i];
    }
    pthread_mutex_lock(&lock);
    for (int i = 0; i < WIRE_MAX_RANKS && !is_any_found; i++) {
        if (is_meant(rank, i)) {
            async_fault *fault = &async_faults[i];
            *fault = (async_fault){.is_armed = true, .after = after, .result = (dd_nccl_result)result};
            snprintf(fault->text, sizeof fault->text, "%s", text != NULL ? text : "");
        }
    }
    pthread_mutex_unlock(&lock);
}

/* ---- kernels */

void
dd_stub_hang_kernel(int rank, int after)
{
    pthread_mutex_lock(&lock);
    for (int i = 0; i < WIRE_MAX_RANKS; i++) {
        hang_after[i] = is_meant(rank, i) ? after + 1 : hang_after[i];
    }
    pthread_mutex_unlock(&lock);
}

void
dd_stub_slow_kernels(int rank, int ms)
{
    for (int i = 0; i < WIRE_MAX_RANKS; i++) {
        if (is_meant(rank, i)) {
            atomic_store(&slow_ms[i], ms);
        }
    }
}

void
dd_stub_slow_launches(int ms)
{
    atomic_store(&launch_delay_ms, ms);
}

void
dd_stub_slow_ends(int ms)
{
    atomic_store(&end_delay_ms, ms);
}

void
dd_stub_end_apart(int is_apart)
{
    atomic_store(&does_end_apart, is_apart != 0);
}

bool
nccl_fault_ends_apart(void)
{
    return atomic_load(&does_end_apart);
}

void
nccl_fault_on_end(void)
{
    int ms = atomic_load(&end_delay_ms);
    if (ms > 0) {
        stub_sleep_ns((int64_t)ms * 1000000);
    }
}

int
nccl_fault_launch_delay_ms(void)
{
    return atomic_load(&launch_delay_ms);
}

int
nccl_fault_of_kernel(const nccl_comm *comm)
{
    pthread_mutex_lock(&lock);
    int *after = &hang_after[comm->rank];
    bool does_hang = *after == 1;
    *after -= *after > 0;
    pthread_mutex_unlock(&lock);
    return does_hang ? -1 : atomic_load(&slow_ms[comm->rank]);
}

/* ---- environment commands, and reset */

void
stub_on_command(const char *name, const char *arguments)
{
    int values[3] = {0};
    if (strcmp(name, "async") == 0) {
        const char *text = stub_parse_ints(arguments, values, 3);
        dd_stub_async_error(values[0], values[1], values[2], text);
    } else if (strcmp(name, "hang_kernel") == 0) {
        (void)stub_parse_ints(arguments, values, 2);
        dd_stub_hang_kernel(values[0], values[1]);
    } else if (strcmp(name, "slow_kernels") == 0) {
        (void)stub_parse_ints(arguments, values, 2);
        dd_stub_slow_kernels(values[0], values[1]);
    } else if (strcmp(name, "slow_ends") == 0) {
        (void)stub_parse_ints(arguments, values, 1);
        dd_stub_slow_ends(values[0]);
    } else if (strcmp(name, "warn") == 0) {
        dd_stub_warn(arguments);
    } else if (strcmp(name, "slow_launches") == 0) {
        (void)stub_parse_ints(arguments, values, 1);
        dd_stub_slow_launches(values[0]);
    }
}

void
stub_on_reset(void)
{
    pthread_mutex_lock(&lock);
    memset(async_faults, 0, sizeof async_faults);
    memset(hang_after, 0, sizeof hang_after);
    pthread_mutex_unlock(&lock);
    dd_stub_slow_kernels(-1, 0);
    dd_stub_slow_launches(0);
    dd_stub_slow_ends(0);
    dd_stub_end_apart(0);
    nccl_forget_encryption();
    nccl_forget_coll_config();
}
