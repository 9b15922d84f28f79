/* Tests of the checker itself: small programs whose outcomes in C11 are known. Each program reports
 * the values that its threads have read. The set of outcomes must equal the listed set.
 *
 * Where processors and C11 differ, the checker follows C11, except for load buffering, which it
 * reports (buffering.c). */
#include "models/checker.h"

#include "core/fence.h"

#include <stdatomic.h>

static _Atomic uint64_t x, y, z;
static uint64_t plain;
static uint64_t r[4]; /* results of loads, each written by one thread */

#define SHAPE_WITH(id, count, note, buffers, body, ...)                                       \
    static void run_##id(int self)                                                            \
    {                                                                                         \
        body                                                                                  \
    }                                                                                         \
    static const uint64_t outcomes_of_##id[] = {__VA_ARGS__, CHECKER_END};                    \
    SCENARIO(litmus_##id, .label = "", .nthreads = count, .setup = clear, .thread = run_##id, \
             .finish = note, .outcomes = outcomes_of_##id, .is_buffered = buffers)
#define SHAPE(id, count, body, ...) SHAPE_WITH(id, count, note_read, false, body, __VA_ARGS__)

static void
clear(void)
{
    x = y = z = 0;
    plain = 0;
    r[0] = r[1] = r[2] = r[3] = 0;
    checker_set_fenced(true);
}

/* Report r0 r1 r2 r3 as decimal digits. */
static void
note_read(void)
{
    checker_note(r[0] * 1000 + r[1] * 100 + r[2] * 10 + r[3]);
}

static void
note_last(void)
{
    checker_note(x * 10 + y);
}

#define LOAD(from, order) atomic_load_explicit(&(from), memory_order_##order)
#define STORE(to, value, order) atomic_store_explicit(&(to), value, memory_order_##order)
#define FENCE(order) atomic_thread_fence(memory_order_##order)

/* ---- store buffering */

#define SB(id, store, load, between, ...) \
    SHAPE(                                \
        id, 2,                            \
        if (self == 0) {                  \
            STORE(x, 1, store);           \
            between;                      \
            r[0] = LOAD(y, load);         \
        } else {                          \
            STORE(y, 1, store);           \
            between;                      \
            r[1] = LOAD(x, load);         \
        },                                \
        __VA_ARGS__)

SB(sb_relaxed, relaxed, relaxed, (void)0, 0, 100, 1000, 1100)
SB(sb_release_acquire, release, acquire, (void)0, 0, 100, 1000, 1100)
SB(sb_acq_rel_fences, relaxed, relaxed, FENCE(acq_rel), 0, 100, 1000, 1100)
SB(sb_fences, relaxed, relaxed, FENCE(seq_cst), 100, 1000, 1100)
SB(sb_seq_cst, seq_cst, seq_cst, (void)0, 100, 1000, 1100)
SB(sb_seq_cst_stores_alone, seq_cst, acquire, (void)0, 0, 100, 1000, 1100)

/* One side uses sequentially consistent accesses, the other a fence. */
SHAPE(
    sb_mixed, 2,
    if (self == 0) {
        STORE(x, 1, seq_cst);
        r[0] = LOAD(y, seq_cst);
    } else {
        STORE(y, 1, relaxed);
        FENCE(seq_cst);
        r[1] = LOAD(x, relaxed);
    },
    100, 1000, 1100)

/* With exchanges, which on Arm are not fences for surrounding accesses. */
SHAPE(
    sb_exchange, 2,
    if (self == 0) {
        (void)atomic_exchange(&x, 1);
        r[0] = LOAD(y, seq_cst);
    } else {
        (void)atomic_exchange(&y, 1);
        r[1] = LOAD(x, seq_cst);
    },
    100, 1000, 1100)
SHAPE(
    sb_exchange_relaxed_loads, 2,
    if (self == 0) {
        (void)atomic_exchange(&x, 1);
        r[0] = LOAD(y, relaxed);
    } else {
        (void)atomic_exchange(&y, 1);
        r[1] = LOAD(x, relaxed);
    },
    0, 100, 1000, 1100)

/* ---- message passing */

#define MP(id, store, load, before, behind, ...) \
    SHAPE(                                       \
        id, 2,                                   \
        if (self == 0) {                         \
            STORE(x, 1, relaxed);                \
            before;                              \
            STORE(y, 1, store);                  \
        } else {                                 \
            r[0] = LOAD(y, load);                \
            behind;                              \
            r[1] = LOAD(x, relaxed);             \
        },                                       \
        __VA_ARGS__)

MP(mp_relaxed, relaxed, relaxed, (void)0, (void)0, 0, 100, 1000, 1100)
MP(mp_release, release, relaxed, (void)0, (void)0, 0, 100, 1000, 1100)
MP(mp_acquire, relaxed, acquire, (void)0, (void)0, 0, 100, 1000, 1100)
MP(mp_release_acquire, release, acquire, (void)0, (void)0, 0, 100, 1100)
MP(mp_fences, relaxed, relaxed, FENCE(release), FENCE(acquire), 0, 100, 1100)
MP(mp_release_fence, relaxed, acquire, FENCE(release), (void)0, 0, 100, 1100)
MP(mp_acquire_fence, release, relaxed, (void)0, FENCE(acquire), 0, 100, 1100)

/* With a value that is not atomic. */
SHAPE(
    mp_plain, 2,
    if (self == 0) {
        plain = 1;
        STORE(y, 1, release);
    } else {
        r[0] = LOAD(y, acquire);
        r[1] = r[0] != 0 ? plain : 5;
    },
    500, 1100)

/* A read-modify-write continues a release sequence; a later store of the same thread does not
 * (C20). */
SHAPE(
    release_sequence, 3,
    if (self == 0) {
        STORE(x, 1, relaxed);
        STORE(y, 1, release);
    } else if (self == 1) { r[0] = atomic_fetch_add_explicit(&y, 1, memory_order_relaxed); } else {
        r[1] = LOAD(y, acquire);
        r[2] = LOAD(x, relaxed);
    },
    0, 10, 100, 110, 1000, 1010, 1110, 1210)
SHAPE(
    release_sequence_of_stores, 2,
    if (self == 0) {
        STORE(x, 1, relaxed);
        STORE(y, 1, release);
        STORE(y, 2, relaxed);
    } else {
        r[0] = LOAD(y, acquire);
        r[1] = LOAD(x, relaxed);
    },
    0, 100, 1100, 2000, 2100)

/* ---- coherence */

SHAPE(
    corr, 2,
    if (self == 0) {
        STORE(x, 1, relaxed);
        STORE(x, 2, relaxed);
    } else {
        r[0] = LOAD(x, relaxed);
        r[1] = LOAD(x, relaxed);
    },
    0, 100, 200, 1100, 1200, 2200)

/* Two readers agree about the order of two writes. */
SHAPE(
    coherence_of_two, 4,
    if (self == 0) { STORE(x, 1, relaxed); } else if (self == 1) { STORE(x, 2, relaxed); } else {
        uint64_t first = LOAD(x, relaxed);
        uint64_t then = LOAD(x, relaxed);
        r[self] = first * 3 + then == 5 ? 1 : first * 3 + then == 7 ? 2 : 0;
    },
    0, 1, 2, 10, 11, 20, 22)

/* Each thread writes two variables. Both variables can keep the first thread's write only if a
 * store is executed after a later store. */
#define TWO_PLUS_TWO_W(id, order, between, ...) \
    SHAPE_WITH(                                 \
        id, 2, note_last, false,                \
        if (self == 0) {                        \
            STORE(x, 1, order);                 \
            between;                            \
            STORE(y, 2, order);                 \
        } else {                                \
            STORE(y, 1, order);                 \
            between;                            \
            STORE(x, 2, order);                 \
        },                                      \
        __VA_ARGS__)

TWO_PLUS_TWO_W(2_plus_2w_relaxed, relaxed, (void)0, 11, 12, 21, 22)
TWO_PLUS_TWO_W(2_plus_2w_release, release, (void)0, 11, 12, 21, 22)
TWO_PLUS_TWO_W(2_plus_2w_seq_cst, seq_cst, (void)0, 12, 21, 22)
TWO_PLUS_TWO_W(2_plus_2w_fences, relaxed, FENCE(seq_cst), 12, 21, 22)

/* ---- independent readers of independent writes */

#define IRIW(id, store, load, between, ...)                                 \
    SHAPE(                                                                  \
        id, 4, if (self == 0) { STORE(x, 1, store); } else if (self == 1) { \
            STORE(y, 1, store);                                             \
        } else if (self == 2) {                                             \
            uint64_t first = LOAD(x, load);                                 \
            between;                                                        \
            r[0] = 1 + first * 2 + LOAD(y, load);                           \
        } else {                                                            \
            uint64_t first = LOAD(y, load);                                 \
            between;                                                        \
            r[1] = 1 + first * 2 + LOAD(x, load);                           \
        },                                                                  \
        __VA_ARGS__)

#define EVERY_IRIW_BUT_ONE \
    1100, 1200, 1300, 1400, 2100, 2200, 2300, 2400, 3100, 3200, 3400, 4100, 4200, 4300, 4400
#define EVERY_IRIW \
    1100, 1200, 1300, 1400, 2100, 2200, 2300, 2400, 3100, 3200, 3300, 3400, 4100, 4200, 4300, 4400

IRIW(iriw_relaxed, relaxed, relaxed, (void)0, EVERY_IRIW)
IRIW(iriw_acquire, release, acquire, (void)0, EVERY_IRIW)
IRIW(iriw_seq_cst, seq_cst, seq_cst, (void)0, EVERY_IRIW_BUT_ONE)
IRIW(iriw_fences, relaxed, relaxed, FENCE(seq_cst), EVERY_IRIW_BUT_ONE)

/* ---- causality */

#define WRC(id, store, load, ...)                                             \
    SHAPE(                                                                    \
        id, 3, if (self == 0) { STORE(x, 1, relaxed); } else if (self == 1) { \
            r[0] = LOAD(x, load);                                             \
            STORE(y, 1, store);                                               \
        } else {                                                              \
            r[1] = LOAD(y, load);                                             \
            r[2] = LOAD(x, relaxed);                                          \
        },                                                                    \
        __VA_ARGS__)

WRC(wrc_relaxed, relaxed, relaxed, 0, 10, 100, 110, 1000, 1010, 1100, 1110)
WRC(wrc_release_acquire, release, acquire, 0, 10, 100, 110, 1000, 1010, 1110)

/* ---- load buffering: C11 and Arm allow both loads to read the other thread's store (1100) unless
 * both sides are ordered. The checker does not execute such runs, but reports them. */

#define LB(id, buffers, load0, store0, between0, load1, store1, between1) \
    SHAPE_WITH(                                                           \
        id, 2, note_read, buffers,                                        \
        if (self == 0) {                                                  \
            r[0] = LOAD(x, load0);                                        \
            between0;                                                     \
            STORE(y, 1, store0);                                          \
        } else {                                                          \
            r[1] = LOAD(y, load1);                                        \
            between1;                                                     \
            STORE(x, 1, store1);                                          \
        },                                                                \
        0, 100, 1000)

LB(lb_relaxed, true, relaxed, relaxed, (void)0, relaxed, relaxed, (void)0)
LB(lb_acquire_of_one, true, acquire, relaxed, (void)0, relaxed, relaxed, (void)0)
LB(lb_release_of_one, true, relaxed, release, (void)0, relaxed, relaxed, (void)0)
LB(lb_fence_of_one, true, relaxed, relaxed, FENCE(acquire), relaxed, relaxed, (void)0)
LB(lb_acquire, false, acquire, relaxed, (void)0, acquire, relaxed, (void)0)
LB(lb_release, false, relaxed, release, (void)0, relaxed, release, (void)0)
LB(lb_release_acquire, false, relaxed, release, (void)0, acquire, relaxed, (void)0)
LB(lb_acquire_fences, false, relaxed, relaxed, FENCE(acquire), relaxed, relaxed, FENCE(acquire))
LB(lb_release_fence, false, relaxed, relaxed, FENCE(release), relaxed, release, (void)0)
LB(lb_release_between, true, relaxed, relaxed, STORE(z, 1, release), acquire, relaxed, (void)0)
LB(lb_acquire_between, true, relaxed, relaxed, (void)LOAD(z, acquire), acquire, relaxed, (void)0)
/* checker_forget forgets the state, but not the loads that can take part in load buffering. */
LB(lb_forgets, true, relaxed, relaxed, checker_forget(1), acquire, relaxed, (void)0)
LB(lb_fence_forgets, false, relaxed, relaxed, FENCE(acquire); checker_forget(1), acquire, relaxed, (void)0)
LB(lb_forgets_fence, false, relaxed, relaxed, checker_forget(1); FENCE(release), acquire, relaxed, (void)0)

/* The second thread reads no store of the first. */
SHAPE(
    lb_no_way_back, 2,
    if (self == 0) {
        r[0] = LOAD(x, relaxed);
        STORE(y, 1, relaxed);
    } else {
        STORE(x, 1, relaxed);
        r[1] = LOAD(y, relaxed);
    },
    0, 100, 1000, 1100)

/* A thread's own stores do not close a ring, either in the middle or at the end of the thread. */
SHAPE(
    lb_begins_with_own, 2,
    if (self == 0) {
        r[0] = LOAD(x, relaxed);
        STORE(y, 1, relaxed);
        (void)LOAD(y, relaxed);
        STORE(z, 1, release);
    } else {
        r[1] = LOAD(z, acquire);
        STORE(x, 1, relaxed);
        (void)LOAD(y, relaxed);
    },
    0, 100, 1000)
SHAPE(
    lb_ends_with_own, 2,
    if (self == 0) {
        r[0] = LOAD(x, relaxed);
        STORE(y, 1, relaxed);
        r[1] = LOAD(z, acquire);
        STORE(x, 1, relaxed);
    } else {
        r[3] = LOAD(x, relaxed);
        r[2] = LOAD(y, acquire);
        STORE(z, 1, release);
    },
    0, 1, 10, 11, 100, 110)

/* A ring through two other threads, one of which uses a read-modify-write. */
#define LB_OF_THREE(id, buffers, load, store)                             \
    SHAPE_WITH(                                                           \
        id, 3, note_read, buffers,                                        \
        if (self == 0) {                                                  \
            r[0] = LOAD(x, relaxed);                                      \
            STORE(y, 1, store);                                           \
        } else if (self == 1) {                                           \
            r[1] = LOAD(y, load);                                         \
            STORE(z, 1, relaxed);                                         \
        } else {                                                          \
            r[2] = atomic_exchange_explicit(&z, 2, memory_order_acquire); \
            STORE(x, 1, relaxed);                                         \
        },                                                                \
        0, 10, 100, 110, 1000, 1010, 1100)

LB_OF_THREE(lb_of_three, true, acquire, relaxed)
LB_OF_THREE(lb_of_three_relaxed_load, true, relaxed, release)
LB_OF_THREE(lb_of_three_ordered, false, acquire, release)

/* A release orders values that are not atomic. */
SHAPE(
    lb_plain, 2,
    if (self == 0) {
        plain = 1;
        STORE(y, 1, release);
    } else {
        r[0] = LOAD(y, acquire);
        if (r[0] != 0) {
            r[1] = plain;
            plain = 2;
        }
    },
    0, 1100)

/* A sequentially consistent store is not a fence: a later access may become visible before it. */
SHAPE(
    seq_cst_store_is_no_fence, 2,
    if (self == 0) {
        STORE(x, 1, seq_cst);
        STORE(y, 1, relaxed);
    } else {
        r[0] = LOAD(y, relaxed);
        r[1] = LOAD(x, seq_cst);
    },
    0, 100, 1000, 1100)

/* No addition by either thread is lost. */
SHAPE(
    add, 3,
    {
        (void)self;
        (void)atomic_fetch_add_explicit(&x, 1, memory_order_relaxed);
        r[self] = atomic_fetch_add_explicit(&y, 1, memory_order_relaxed);
    },
    120, 210, 1020, 1200, 2010, 2100)

/* ---- polling: a poll may find a result if a variable is newer than the value that was read, even
 * if the thread's view was advanced by other means */

SHAPE(
    poll_is_fenced, 2,
    if (self == 0) {
        while (LOAD(x, relaxed) == 0) {
            checker_poll();
        }
    } else {
        STORE(x, 1, relaxed);
        (void)dd_fence_all();
    },
    0)

SHAPE(
    poll_acquires_late, 2,
    if (self == 0) {
        while (LOAD(x, relaxed) == 0) {
            r[0] = LOAD(y, acquire);
            checker_poll();
        }
    } else {
        STORE(x, 1, relaxed);
        STORE(y, 1, release);
    },
    0, 1000)
