/* What the C ranks of benchmarks/collectives.py have in common: they are told over a Unix socket what to do, make
 * and check the data, and time blocks of calls. rank.py says the same protocol in Python, and documents it. */
#ifndef DLDIST_BENCHMARKS_RANK_H
#define DLDIST_BENCHMARKS_RANK_H

#include <stdbool.h>
#include <stddef.h>

typedef enum rank_kind {
    RANK_FLOAT32,
    RANK_FLOAT64,
    RANK_INT32,
    RANK_INT64,
    RANK_UINT8,
    RANK_WORD16, /* float16 and bfloat16, which C has not: moved, never added */
} rank_kind;

typedef struct rank_task {
    char op[24];
    rank_kind kind;
    int rank, size;
    size_t item;                                 /* bytes of an element */
    size_t nin, nout;                            /* elements; an operation in place has nout == 0 */
    void *input, *output;                        /* output is NULL when the operation is in place */
    void *context;                               /* of the peer */
    const char *(*call)(struct rank_task *task); /* NULL, or what went wrong */
} rank_task;

typedef struct rank_peer {
    int rank, size;
    const char *version;
    void *context;
    /* Sets task->call, and whatever of the context it needs; false when the peer has no such operation. */
    bool (*find)(rank_task *task);
    void (*barrier)(void *context);
} rank_peer;

/* Serves commands from the socket at `path` until its other end is closed. Returns the exit status of the rank. */
int rank_serve(const char *path, const rank_peer *peer);

#endif
