/* Code shared by the stubs of both libraries: faults and counts by function name, and handles. */
#ifndef DD_TESTS_STUB_INTERNAL_H
#define DD_TESTS_STUB_INTERNAL_H

#include "stub_control.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* ---- faults and counts (stub_faults.c) */

typedef struct stub_function stub_function;

/* One in each function of the API. */
typedef struct stub_site {
    const char *name;
    _Atomic(stub_function *) function;
} stub_site;

typedef struct stub_fault {
    int result;
    char text[256]; /* may be empty */
} stub_fault;

/* Count a call and block it if requested. Return true and set *fault if it must fail. */
bool stub_enter(stub_site *site, stub_fault *fault);

/* Hooks of the two libraries: the prefix of their functions, their own commands of
 * DLDIST_STUB_FAULTS, additional work of dd_stub_reset, and the counters of dd_stub_live. */
extern const char stub_own_prefix[];
void stub_on_command(const char *name, const char *arguments);
void stub_on_reset(void);

/* "7 60 text with blanks" -> the integers; return the rest of the text. */
const char *stub_parse_ints(const char *text, int *values, int n);

/* ---- counted objects and handles (stub_handles.c) */

typedef struct stub_count {
    const char *kind;
    atomic_long live;
    atomic_long made;
} stub_count;

extern stub_count *const stub_counts[]; /* defined by each library; ends with NULL */
void stub_count_add(stub_count *count);
void stub_count_remove(stub_count *count);
void stub_count_bad_use(void);

/* Handles are numbers that are never reused and point to nothing, so the use of a destroyed one is
 * detected. An object begins with this struct. The table holds a reference while the handle is
 * valid; a lookup adds another. */
typedef struct stub_object {
    void *handle;
    atomic_int refs;
    void (*free)(struct stub_object *object);
} stub_object;

typedef struct stub_table {
    pthread_mutex_t lock;
    stub_count *count;
    unsigned tag; /* part of the number */
    stub_object **objects;
    size_t nobjects;
    size_t capacity;
} stub_table;

#define STUB_TABLE(count_, tag_)                                            \
    {                                                                       \
        .lock = PTHREAD_MUTEX_INITIALIZER, .count = (count_), .tag = (tag_) \
    }

/* Take over the caller's reference. */
void *stub_table_add(stub_table *table, stub_object *object);
/* Return NULL and count a bad use if the handle is invalid. */
void *stub_table_find(stub_table *table, const void *handle);
/* Return the table's reference to the caller. NULL as above. */
void *stub_table_remove(stub_table *table, const void *handle);
/* Call visit for each object in the table, under the table's lock. */
void stub_table_each(stub_table *table, void (*visit)(stub_object *object, void *ctx), void *ctx);

void stub_object_init(stub_object *object, void (*free)(stub_object *object));
void *stub_object_acquire(stub_object *object);
void stub_object_release(stub_object *object);

/* ---- helpers */

void *stub_zalloc(size_t nbytes); /* never NULL: aborts without memory */
int64_t stub_now_ns(void);
void stub_sleep_ns(int64_t duration_ns);
void stub_cond_init(pthread_cond_t *cond); /* with the monotonic clock */
void stub_cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, int64_t deadline_ns);
/* Start a detached thread that blocks all signals. */
void stub_thread_start(const char *name, void *(*run)(void *), void *arg);

#endif
