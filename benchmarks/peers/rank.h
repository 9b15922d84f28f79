/* Common code of the C ranks of benchmarks/collectives.py: commands from a Unix socket, creation
 * and checks of data, timed blocks of calls. rank.py documents the protocol and implements it in
 * Python. */
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
    RANK_WORD16, /* float16 and bfloat16, which C lacks: copied, never added */
} rank_kind;

typedef struct rank_task {
    char op[24];
    rank_kind kind;
    int rank, size;
    size_t item;                                 /* element size in bytes */
    size_t nin, nout;                            /* elements; nout is 0 for in-place operations */
    void *input, *output;                        /* output is NULL for in-place operations */
    void *context;                               /* belongs to the peer */
    const char *(*call)(struct rank_task *task); /* returns NULL or an error message */
} rank_task;

typedef struct rank_peer {
    int rank, size;
    const char *version;
    void *context;
    /* Sets task->call and task->context; returns false if the peer lacks the operation. */
    bool (*find)(rank_task *task);
    void (*barrier)(void *context);
} rank_peer;

/* Serves commands from the socket at `path` until it is closed. Returns the rank's exit status. */
int rank_serve(const char *path, const rank_peer *peer);

#endif
