#include "stub_internal.h"

#include <stdlib.h>
#include <string.h>

typedef enum stub_action {
    ACTION_FAIL,
    ACTION_HANG,
} stub_action;

typedef struct pending {
    stub_action action;
    int after;
    int ms;
    stub_fault fault;
    struct pending *next;
} pending;

/* Never freed: sites point to it. */
struct stub_function {
    char name[64];
    atomic_long ncalls;
    atomic_bool has_pending;
    pending *pending; /* under the lock */
    stub_function *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static stub_function *functions;
static pthread_cond_t released;
static unsigned generation; /* of releases */
static int nhanging;

static stub_function *
find_locked(const char *name)
{
    stub_function *function = functions;
    while (function != NULL && strcmp(function->name, name) != 0) {
        function = function->next;
    }
    if (function == NULL) {
        function = stub_zalloc(sizeof *function);
        strncpy(function->name, name, sizeof function->name - 1);
        function->next = functions;
        functions = function;
    }
    return function;
}

static stub_function *
site_function(stub_site *site)
{
    stub_function *function = atomic_load(&site->function);
    if (function == NULL) {
        pthread_mutex_lock(&lock);
        function = find_locked(site->name);
        pthread_mutex_unlock(&lock);
        atomic_store(&site->function, function);
    }
    return function;
}

static void
hang_locked(int ms)
{
    unsigned begun_in = generation;
    int64_t deadline_ns = ms < 0 ? INT64_MAX : stub_now_ns() + (int64_t)ms * 1000000;
    nhanging++;
    while (generation == begun_in && stub_now_ns() < deadline_ns) {
        int64_t slice_ns = stub_now_ns() + 100000000;
        stub_cond_wait_until(&released, &lock, slice_ns < deadline_ns ? slice_ns : deadline_ns);
    }
    nhanging--;
}

/* Each pending fault counts this call; the first one that has reached its count acts. */
static bool
take_due_locked(stub_function *function, pending *due)
{
    bool is_found = false;
    pending **link = &function->pending;
    while (*link != NULL) {
        pending *item = *link;
        if (!is_found && item->after == 0) {
            is_found = true;
            *due = *item;
            *link = item->next;
            free(item);
            continue;
        }
        item->after -= item->after > 0;
        link = &item->next;
    }
    atomic_store(&function->has_pending, function->pending != NULL);
    return is_found;
}

bool
stub_enter(stub_site *site, stub_fault *fault)
{
    stub_function *function = site_function(site);
    atomic_fetch_add(&function->ncalls, 1);
    if (!atomic_load(&function->has_pending)) {
        return false;
    }
    pending due;
    pthread_mutex_lock(&lock);
    bool is_due = take_due_locked(function, &due);
    if (is_due && due.action == ACTION_HANG) {
        hang_locked(due.ms);
    }
    pthread_mutex_unlock(&lock);
    if (!is_due || due.action != ACTION_FAIL) {
        return false;
    }
    *fault = due.fault;
    return true;
}

static void
add_pending(const char *name, const pending *wanted)
{
    pending *item = stub_zalloc(sizeof *item);
    *item = *wanted;
    pthread_mutex_lock(&lock);
    stub_function *function = find_locked(name);
    pending **link = &function->pending;
    while (*link != NULL) {
        link = &(*link)->next;
    }
    *link = item;
    atomic_store(&function->has_pending, true);
    pthread_mutex_unlock(&lock);
}

void
dd_stub_fail(const char *function, int after, int result, const char *text)
{
    pending item = {.action = ACTION_FAIL, .after = after, .fault = {.result = result}};
    if (text != NULL) {
        strncpy(item.fault.text, text, sizeof item.fault.text - 1);
    }
    add_pending(function, &item);
}

void
dd_stub_hang(const char *function, int after, int ms)
{
    add_pending(function, &(pending){.action = ACTION_HANG, .after = after, .ms = ms});
}

void
dd_stub_release(void)
{
    pthread_mutex_lock(&lock);
    generation++;
    pthread_cond_broadcast(&released);
    pthread_mutex_unlock(&lock);
}

int
dd_stub_hanging(void)
{
    pthread_mutex_lock(&lock);
    int n = nhanging;
    pthread_mutex_unlock(&lock);
    return n;
}

long
dd_stub_calls(const char *function)
{
    pthread_mutex_lock(&lock);
    long n = atomic_load(&find_locked(function)->ncalls);
    pthread_mutex_unlock(&lock);
    return n;
}

void
dd_stub_reset(void)
{
    pthread_mutex_lock(&lock);
    for (stub_function *function = functions; function != NULL; function = function->next) {
        while (function->pending != NULL) {
            pending *item = function->pending;
            function->pending = item->next;
            free(item);
        }
        atomic_store(&function->has_pending, false);
        atomic_store(&function->ncalls, 0);
    }
    pthread_mutex_unlock(&lock);
    dd_stub_release();
    stub_on_reset();
}

/* ---- DLDIST_STUB_FAULTS */

const char *
stub_parse_ints(const char *text, int *values, int n)
{
    for (int i = 0; i < n; i++) {
        char *end;
        values[i] = (int)strtol(text, &end, 10);
        text = end;
    }
    return text + strspn(text, " ");
}

static bool
is_other_library(const char *function)
{
    bool is_cuda = strncmp(function, "cu", 2) == 0;
    bool is_own_cuda = strcmp(stub_own_prefix, "cu") == 0;
    return is_cuda != is_own_cuda;
}

static void
run_command(char *command)
{
    char *rest = command + strcspn(command, " ");
    if (*rest != '\0') {
        *rest++ = '\0';
    }
    bool is_fail = strcmp(command, "fail") == 0;
    if (!is_fail && strcmp(command, "hang") != 0) {
        stub_on_command(command, rest);
        return;
    }
    const char *function = rest;
    rest += strcspn(rest, " ");
    if (*rest != '\0') {
        *rest++ = '\0';
    }
    if (is_other_library(function)) {
        return;
    }
    int values[2];
    const char *text = stub_parse_ints(rest, values, 2);
    if (is_fail) {
        dd_stub_fail(function, values[0], values[1], text);
    } else {
        dd_stub_hang(function, values[0], values[1]);
    }
}

__attribute__((constructor)) static void
read_environment(void)
{
    stub_cond_init(&released);
    const char *text = getenv("DLDIST_STUB_FAULTS");
    if (text == NULL) {
        return;
    }
    char *copy = strdup(text);
    char *state = NULL;
    for (char *command = strtok_r(copy, ";", &state); command != NULL;
         command = strtok_r(NULL, ";", &state)) {
        run_command(command + strspn(command, " \n"));
    }
    free(copy);
}
