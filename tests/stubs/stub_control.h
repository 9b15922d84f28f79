/* What tests ask of the doubles of libcuda and libnccl: faults on demand, and counts.
 *
 * Both libraries export dd_stub_*; each has its own functions, faults and counts, so take the symbols from the handle
 * of the library that is meant. All may be called at any time from any thread. Ranks are -1 for all.
 *
 * The same by the environment, when a library is loaded: DLDIST_STUB_FAULTS holds commands separated by ';':
 *
 *     fail FUNCTION AFTER RESULT TEXT       hang FUNCTION AFTER MS        hang_kernel RANK AFTER
 *     async RANK RESULT AFTER TEXT          slow_kernels RANK MS          slow_launches MS
 *     shut_down                             memory BYTES
 *     slow_ends MS                          warn TEXT
 *
 * A library passes over functions that begin with the other's prefix, and commands that are the other's. */
#ifndef DD_TESTS_STUB_CONTROL_H
#define DD_TESTS_STUB_CONTROL_H

#include <stddef.h>

#define DD_STUB_EXPORT __attribute__((visibility("default")))

/* ---- both libraries */

/* `after` calls of the function from now on do what they do, and the one after fails: does nothing and returns `result`. For
 * NCCL, `text` is the warning that the call logs, which ncclGetLastError returns from then on; NULL or "" if the call logs none. Several may be pending; each fails one call. "(init)" is
 * the part of making a communicator that runs in the background, "(launch)" that of the end of a group. */
DD_STUB_EXPORT void dd_stub_fail(const char *function, int after, int result, const char *text);
/* The same, but the call blocks first, for ms or (ms < 0) until dd_stub_release, and then does what it does. */
DD_STUB_EXPORT void dd_stub_hang(const char *function, int after, int ms);
DD_STUB_EXPORT void dd_stub_release(void);
/* How many calls block that way just now. */
DD_STUB_EXPORT int dd_stub_hanging(void);
/* How often the function has been called. */
DD_STUB_EXPORT long dd_stub_calls(const char *function);
/* Forgets all faults that are pending or in force, releases what hangs, and sets the counts of calls and the encryption to 0. */
DD_STUB_EXPORT void dd_stub_reset(void);
/* How many there are now, and how many have been made so far. libcuda: "stream", "event", "graph", "exec", "memory", "host memory", "module", "context" (retained);
 * libnccl: "comm", "redop", "registration", "window", "memory". -1: no such kind. */
DD_STUB_EXPORT long dd_stub_live(const char *kind);
DD_STUB_EXPORT long dd_stub_made(const char *kind);
/* How often a handle was used that is none (any more), or memory was freed that was none. A correct program leaves it 0. */
DD_STUB_EXPORT long dd_stub_bad_uses(void);

/* ---- libcuda */

/* Every cu* function returns CUDA_ERROR_DEINITIALIZED, as when the process is on its way out. */
DD_STUB_EXPORT void dd_stub_shut_down(int is_down);
/* Allocations that would go beyond it (all together) are CUDA_ERROR_OUT_OF_MEMORY; -1: no limit. */
DD_STUB_EXPORT void dd_stub_limit_memory(long long nbytes);
/* On the stream, after `ms`: nbytes from src (copied now) to dst. A producer whose work takes its time. */
DD_STUB_EXPORT int dd_stub_slow_write(void *stream, void *dst, const void *src, size_t nbytes, int ms);
/* On the stream: nothing until dd_stub_open_gate(gate). Gates are numbers, shut until opened. */
DD_STUB_EXPORT int dd_stub_gate(void *stream, int gate);
DD_STUB_EXPORT void dd_stub_open_gate(int gate);

/* ---- libnccl */

/* A warning of the process, as NCCL also logs in calls that succeed. NULL and "" are none. */
DD_STUB_EXPORT void dd_stub_warn(const char *text);
/* A communicator of the rank has the asynchronous error once `after` more kernels of the rank have been launched; with 0 those that there are
 * have it at once, and if there is none, the next that launches one. Kernels under way go on waiting, as on a real device. */
DD_STUB_EXPORT void dd_stub_async_error(int rank, int result, int after, const char *text);
/* `after` kernels of the rank later, one never ends (until its communicator's abort). */
DD_STUB_EXPORT void dd_stub_hang_kernel(int rank, int after);
/* Each kernel of the rank takes so much longer; 0: no more. */
DD_STUB_EXPORT void dd_stub_slow_kernels(int rank, int ms);
/* Communicators that are not blocking: so long until the end of a group has put anything on a stream. Others: until it has estimated. */
DD_STUB_EXPORT void dd_stub_slow_launches(int ms);
/* Each ncclCommDestroy and ncclCommAbort that frees takes this much longer: 450 is what the real library takes where ranks are in several
 * processes. Those of one group take it together. 0, the default: no more. */
DD_STUB_EXPORT void dd_stub_slow_ends(int ms);
/* 1: ranks of one process end as if each had a process of its own. 0, the default: only the last of them waits and frees. */
DD_STUB_EXPORT void dd_stub_end_apart(int is_apart);
/* A number made of the key that ncclSetEncryption has been given; 0: none has been. */
DD_STUB_EXPORT unsigned long long dd_stub_encryption(void);
/* The configuration of the last collective that had one: "maxCTAs=4 algSelection=ring". "": there was none. */
DD_STUB_EXPORT void dd_stub_coll_config(char *text, size_t room);

#endif
