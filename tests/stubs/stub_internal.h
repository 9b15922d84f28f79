/* What the doubles of both libraries are made of: faults and counts by the names of functions, and handles. */
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
    char text[256]; /* empty: none */
} stub_fault;

/* Counts a call and blocks it if it is to; true: it is to fail, with *fault. */
bool stub_enter(stub_site *site, stub_fault *fault);

/* The two libraries' own: the prefix of their functions, a command of DLDIST_STUB_FAULTS that is not for both, what
 * dd_stub_reset resets besides, and what dd_stub_live counts. */
extern const char stub_own_prefix[];
void stub_on_command(const char *name, const char *arguments);
void stub_on_reset(void);

/* "7 60 text with blanks" -> the integers, and what comes after them. */
const char *stub_parse_ints(const char *text, int *values, int n);

/* ---- counted things and handles (stub_handles.c) */

typedef struct stub_count {
    const char *kind;
    atomic_long live;
    atomic_long made;
} stub_count;

extern stub_count *const stub_counts[]; /* each library's; ends with NULL */
void stub_count_add(stub_count *count);
void stub_count_remove(stub_count *count);
void stub_count_bad_use(void);

/* Handles are numbers that are never used again and point to nothing, so that one that has been destroyed is seen. An object begins
 * with this; the table holds a reference while the handle is good, a lookup gives another. */
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

/* Takes the caller's reference. */
void *stub_table_add(stub_table *table, stub_object *object);
/* NULL (and a bad use) for a handle that is not good. */
void *stub_table_find(stub_table *table, const void *handle);
/* The table's reference is the caller's now. NULL as above. */
void *stub_table_remove(stub_table *table, const void *handle);
/* Calls visit for each object that there is, under the table's lock. */
void stub_table_each(stub_table *table, void (*visit)(stub_object *object, void *ctx), void *ctx);

void stub_object_init(stub_object *object, void (*free)(stub_object *object));
void *stub_object_acquire(stub_object *object);
void stub_object_release(stub_object *object);

/* ---- odds and ends */

void *stub_zalloc(size_t nbytes); /* never NULL: a test without memory has no meaning */
int64_t stub_now_ns(void);
void stub_sleep_ns(int64_t duration_ns);
void stub_cond_init(pthread_cond_t *cond); /* of the monotonic clock */
void stub_cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, int64_t deadline_ns);
/* A detached thread that takes no signals. */
void stub_thread_start(const char *name, void *(*run)(void *), void *arg);

#endif
