/* Controls for tests of the libcuda and libnccl stubs: injected faults, and counts.
 *
 * Both libraries export dd_stub_*. Each has its own functions, faults and counts, so look the
 * symbols up in the handle of the right library. All functions may be called at any time from any
 * thread. Rank -1 stands for all ranks.
 *
 * The environment can inject the same faults when a library is loaded: DLDIST_STUB_FAULTS holds
 * commands separated by ';':
 *
 *     fail FUNCTION AFTER RESULT TEXT       hang FUNCTION AFTER MS        hang_kernel RANK AFTER
 *     async RANK RESULT AFTER TEXT          slow_kernels RANK MS          slow_launches MS
 *     shut_down                             memory BYTES
 *     slow_ends MS                          warn TEXT
 *
 * A library ignores commands of the other library, and functions with the other library's
 * prefix. */
#ifndef DD_TESTS_STUB_CONTROL_H
#define DD_TESTS_STUB_CONTROL_H

#include <stddef.h>

#define DD_STUB_EXPORT __attribute__((visibility("default")))

/* ---- both libraries */

/* Make one call of the function do nothing and return `result`, after `after` more successful
 * calls. For NCCL, `text` is the warning that the call logs, which ncclGetLastError returns from
 * then on; NULL or "" if it logs none. Several faults may be pending; each fails one call. "(init)"
 * is the background part of the creation of a communicator, "(launch)" the background part of the
 * end of a group. */
DD_STUB_EXPORT void dd_stub_fail(const char *function, int after, int result, const char *text);
/* Same, but the call blocks for ms, or until dd_stub_release if ms < 0, and then continues
 * normally. */
DD_STUB_EXPORT void dd_stub_hang(const char *function, int after, int ms);
DD_STUB_EXPORT void dd_stub_release(void);
/* Return the number of calls that are blocked by dd_stub_hang. */
DD_STUB_EXPORT int dd_stub_hanging(void);
/* Return the number of calls of the function. */
DD_STUB_EXPORT long dd_stub_calls(const char *function);
/* Remove all faults, release blocked calls, and set the counts of calls and the encryption to 0. */
DD_STUB_EXPORT void dd_stub_reset(void);
/* Return the number of existing objects, and of all objects created so far. libcuda: "stream",
 * "event", "graph", "exec", "memory", "host memory", "module", "context" (retained); libnccl:
 * "comm", "redop", "registration", "window", "memory". -1: unknown kind. */
DD_STUB_EXPORT long dd_stub_live(const char *kind);
DD_STUB_EXPORT long dd_stub_made(const char *kind);
/* Return the number of uses of invalid handles and frees of invalid memory. It is 0 in a correct
 * program. */
DD_STUB_EXPORT long dd_stub_bad_uses(void);

/* ---- libcuda */

/* Make every cu* function return CUDA_ERROR_DEINITIALIZED, as when the process is exiting. */
DD_STUB_EXPORT void dd_stub_shut_down(int is_down);
/* Limit the total size of allocations. Larger ones return CUDA_ERROR_OUT_OF_MEMORY. -1: no
 * limit. */
DD_STUB_EXPORT void dd_stub_limit_memory(long long nbytes);
/* Write nbytes from src (copied now) to dst on the stream after `ms`, as slow work would. */
DD_STUB_EXPORT int dd_stub_slow_write(void *stream, void *dst, const void *src, size_t nbytes, int ms);
/* Block the stream until dd_stub_open_gate(gate). Gates are numbers and closed at first. */
DD_STUB_EXPORT int dd_stub_gate(void *stream, int gate);
DD_STUB_EXPORT void dd_stub_open_gate(int gate);

/* ---- libnccl */

/* Set a warning of the process, as NCCL also does in calls that succeed. NULL and "" are
 * ignored. */
DD_STUB_EXPORT void dd_stub_warn(const char *text);
/* Set the asynchronous error of a communicator of the rank after `after` more of the rank's kernels
 * were launched. With 0, existing communicators have it immediately; if there are none, the next
 * one that launches a kernel does. Running kernels continue to wait, as on a real device. */
DD_STUB_EXPORT void dd_stub_async_error(int rank, int result, int after, const char *text);
/* Make one kernel of the rank hang until its communicator is aborted, after `after` more
 * kernels. */
DD_STUB_EXPORT void dd_stub_hang_kernel(int rank, int after);
/* Delay each kernel of the rank by this time; 0: no delay. */
DD_STUB_EXPORT void dd_stub_slow_kernels(int rank, int ms);
/* Delay the end of a group: for non-blocking communicators before it enqueues anything, for others
 * before it returns the estimate. */
DD_STUB_EXPORT void dd_stub_slow_launches(int ms);
/* Delay each ncclCommDestroy and ncclCommAbort that frees: the real library takes 450 ms if ranks
 * are in several processes. Calls of one group are delayed together. 0, the default: no delay. */
DD_STUB_EXPORT void dd_stub_slow_ends(int ms);
/* 1: end ranks of one process as if each had its own process. 0, the default: only the last one
 * waits and frees. */
DD_STUB_EXPORT void dd_stub_end_apart(int is_apart);
/* Return a hash of the key given to ncclSetEncryption, or 0 if there was none. */
DD_STUB_EXPORT unsigned long long dd_stub_encryption(void);
/* Copy the configuration of the last collective that had one, "maxCTAs=4 algSelection=ring", or ""
 * if none had. */
DD_STUB_EXPORT void dd_stub_coll_config(char *text, size_t room);

#endif
