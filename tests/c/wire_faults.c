#include "wire_faults.h"

#include "check.h"

#include <netinet/in.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/types.h>

/* The send that csrc/core/system.c calls (-Wl,--wrap). Tests use sendto, which is not wrapped. */
ssize_t __real_send(int fd, const void *data, size_t nbytes, int flags);
ssize_t __wrap_send(int fd, const void *data, size_t nbytes, int flags);

static struct {
    pthread_mutex_t mu;
    bool is_armed;
    bool is_done;
    wire_fault_kind kind;
    size_t after;
    unsigned bit;
    size_t nsent;
} plan = {.mu = PTHREAD_MUTEX_INITIALIZER};

void
wire_fault_arm(wire_fault_kind kind, size_t after, unsigned bit)
{
    pthread_mutex_lock(&plan.mu);
    plan.is_armed = true;
    plan.is_done = false;
    plan.kind = kind;
    plan.after = after;
    plan.bit = bit;
    plan.nsent = 0;
    pthread_mutex_unlock(&plan.mu);
}

bool
wire_fault_disarm(size_t *nbytes)
{
    pthread_mutex_lock(&plan.mu);
    bool is_done = plan.is_done;
    *nbytes = plan.nsent;
    plan.is_armed = false;
    pthread_mutex_unlock(&plan.mu);
    return is_done;
}

static bool
is_tcp(int fd)
{
    int domain = 0;
    socklen_t len = sizeof domain;
    return getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &len) == 0 && domain != AF_UNIX;
}

/* Inject the fault into a send whose byte `at` is the planned one. */
static ssize_t
inject_fault(int fd, const uint8_t *data, size_t nbytes, size_t at, int flags)
{
    static uint8_t changed[1 << 18];
    const uint8_t foreign[4] = {(uint8_t)plan.bit, 0, 0, (uint8_t)(plan.bit >> 8)};
    size_t len = nbytes < sizeof changed ? nbytes : sizeof changed;
    memcpy(changed, data, len);
    switch (plan.kind) {
    case WIRE_FAULT_FLIP:
        changed[at < len ? at : 0] ^= (uint8_t)(1u << (plan.bit % 8));
        return __real_send(fd, changed, len, flags);
    case WIRE_FAULT_DROP:
        (void)__real_send(fd, changed, at < len ? at : 0, flags);
        return (ssize_t)len;
    case WIRE_FAULT_REPEAT:
        (void)__real_send(fd, changed, len, flags);
        return __real_send(fd, changed, len, flags);
    case WIRE_FAULT_INSERT:
        (void)__real_send(fd, foreign, sizeof foreign, flags);
        return __real_send(fd, changed, len, flags);
    case WIRE_FAULT_CUT:
    case WIRE_FAULT_COUNT:
    default:
        (void)__real_send(fd, changed, at < len ? at : 0, flags);
        (void)shutdown(fd, SHUT_WR);
        return (ssize_t)len;
    }
}

ssize_t
__wrap_send(int fd, const void *data, size_t nbytes, int flags)
{
    pthread_mutex_lock(&plan.mu);
    size_t at = plan.after - plan.nsent;
    bool is_now = plan.is_armed && !plan.is_done && is_tcp(fd) && plan.after >= plan.nsent && at < nbytes;
    ssize_t rc = is_now ? inject_fault(fd, data, nbytes, at, flags) : 0;
    plan.is_done = plan.is_done || is_now;
    if (!is_now) {
        bool counts = plan.is_armed && is_tcp(fd);
        rc = __real_send(fd, data, nbytes, flags);
        plan.nsent += counts && rc > 0 ? (size_t)rc : 0;
    }
    pthread_mutex_unlock(&plan.mu);
    return rc;
}

/* ---- programs */

#define NOWHERE ((size_t)1 << 40)

void
wire_fault_note_error(wire_fault_outcome *out, const dd_error *err, bool is_named)
{
    atomic_fetch_add(&out->nfailed, 1);
    if (!is_named && atomic_fetch_add(&out->nunnamed, 1) == 0) {
        (void)snprintf(out->unnamed, sizeof out->unnamed, "%.250s", err->message);
    }
}

void
wire_fault_add_outcome(wire_fault_outcome *sum, const wire_fault_outcome *part)
{
    sum->nfailed += part->nfailed;
    sum->nunnamed += part->nunnamed;
    sum->nwrong += part->nwrong;
    sum->nlate += part->nlate;
    if (sum->unnamed[0] == '\0') {
        memcpy(sum->unnamed, part->unnamed, sizeof sum->unnamed);
    }
}

size_t
wire_fault_run_without(wire_fault_program *run)
{
    wire_fault_outcome out = {0};
    size_t nbytes = 0;
    wire_fault_arm(WIRE_FAULT_FLIP, NOWHERE, 0);
    run(&out);
    CHECK(!wire_fault_disarm(&nbytes));
    CHECK_INT(out.nfailed + out.nwrong + out.nlate, 0);
    return nbytes;
}

static unsigned
number_from(const char *variable, unsigned usual)
{
    const char *text = getenv(variable);
    return text != NULL ? (unsigned)strtoul(text, NULL, 10) : usual;
}

static size_t
pick_place(unsigned *seed, size_t nbytes)
{
    return (size_t)rand_r(seed) % (rand_r(seed) % 2 == 0 ? (size_t)2000 : nbytes);
}

void
wire_fault_check(wire_fault_program *run, wire_fault_kind kind, unsigned usual_count)
{
    unsigned seed = 1000u * (unsigned)kind + number_from("DLDIST_TEST_SEED", 1);
    unsigned count = number_from("DLDIST_TEST_WIRE_FAULTS", usual_count);
    size_t nbytes = wire_fault_run_without(run);
    int ndone = 0;
    int nnoticed = 0;
    for (unsigned i = 0; i < count && nbytes > 0; i++) {
        wire_fault_outcome out = {0};
        size_t ignored = 0;
        size_t offset = pick_place(&seed, nbytes);
        unsigned bit = (unsigned)rand_r(&seed);
        int nbefore = check_failures();
        wire_fault_arm(kind, offset, bit);
        run(&out);
        if (!wire_fault_disarm(&ignored)) {
            continue; /* fewer bytes were sent than the last time */
        }
        ndone++;
        nnoticed += out.nfailed > 0;
        (void)(CHECK_INT(out.nwrong, 0) && CHECK_INT(out.nlate, 0) && CHECK_INT(out.nunnamed, 0));
        if (check_failures() > nbefore) {
            printf("    kind %d, byte %zu, bit %u: %s\n", (int)kind, offset, bit, out.unnamed);
        }
    }
    printf("    %d of %d were noticed\n", nnoticed, ndone);
    CHECK(ndone > 0 && nnoticed > 0);
}
