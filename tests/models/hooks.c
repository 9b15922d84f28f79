/* The functions that the compiler calls for ThreadSanitizer, and replacements for the C library's
 * functions that copy memory (redirect.h). */
#include "models/checker_internal.h"

#include <string.h>

#define SITE __builtin_return_address(0)

void __tsan_init(void);
void __tsan_func_entry(void *from);
void __tsan_func_exit(void);
void __tsan_atomic_thread_fence(int order);
void __tsan_atomic_signal_fence(int order);

void
__tsan_init(void)
{
}

void
__tsan_func_entry(void *from)
{
    (void)from;
}

void
__tsan_func_exit(void)
{
}

/* ---- plain */

static void
on_read(const void *at, size_t nbytes)
{
    if (!explore_is_on_stack(at)) {
        memory_read_plain(at, nbytes);
    }
}

static void
on_write(void *at, size_t nbytes)
{
    if (!explore_is_on_stack(at)) {
        memory_write_plain(at, nbytes);
    }
}

#define PLAIN(nbytes)                                   \
    void __tsan_read##nbytes(const void *at);           \
    void __tsan_read##nbytes(const void *at)            \
    {                                                   \
        on_read(at, nbytes);                            \
    }                                                   \
    void __tsan_write##nbytes(void *at);                \
    void __tsan_write##nbytes(void *at)                 \
    {                                                   \
        on_write(at, nbytes);                           \
    }                                                   \
    void __tsan_unaligned_read##nbytes(const void *at); \
    void __tsan_unaligned_read##nbytes(const void *at)  \
    {                                                   \
        on_read(at, nbytes);                            \
    }                                                   \
    void __tsan_unaligned_write##nbytes(void *at);      \
    void __tsan_unaligned_write##nbytes(void *at)       \
    {                                                   \
        on_write(at, nbytes);                           \
    }

PLAIN(1)
PLAIN(2)
PLAIN(4)
PLAIN(8)
PLAIN(16)

void __tsan_read_range(const void *at, size_t nbytes);
void
__tsan_read_range(const void *at, size_t nbytes)
{
    on_read(at, nbytes);
}

void __tsan_write_range(void *at, size_t nbytes);
void
__tsan_write_range(void *at, size_t nbytes)
{
    on_write(at, nbytes);
}

void *checker_memmove(void *dst, const void *src, size_t nbytes);
void *
checker_memmove(void *dst, const void *src, size_t nbytes)
{
    if (nbytes > 0) {
        on_read(src, nbytes);
        on_write(dst, nbytes);
    }
    return memmove(dst, src, nbytes);
}

void *checker_memset(void *dst, int byte, size_t nbytes);
void *
checker_memset(void *dst, int byte, size_t nbytes)
{
    if (nbytes > 0) {
        on_write(dst, nbytes);
    }
    return memset(dst, byte, nbytes);
}

int checker_memcmp(const void *a, const void *b, size_t nbytes);
int
checker_memcmp(const void *a, const void *b, size_t nbytes)
{
    if (nbytes > 0) {
        on_read(a, nbytes);
        on_read(b, nbytes);
    }
    return memcmp(a, b, nbytes);
}

/* ---- atomic */

static uint64_t
load(const void *at, int size, int order, const void *site)
{
    memory_order_ used = weaken_order(site, SITE_LOAD, (memory_order_)order);
    uint64_t value = memory_load(at, size, used, site);
    if (explore_is_tracing() && checker_self() >= 0) {
        explore_trace("%s: load, %s: %llx", weaken_describe(site), weaken_name(used),
                      (unsigned long long)value);
    }
    return value;
}

static void
store(void *at, int size, uint64_t value, int order, const void *site)
{
    memory_order_ used = weaken_order(site, SITE_STORE, (memory_order_)order);
    memory_store(at, size, value, used, site);
    if (explore_is_tracing() && checker_self() >= 0) {
        explore_trace("%s: store, %s: %llx", weaken_describe(site), weaken_name(used),
                      (unsigned long long)value);
    }
}

static uint64_t
change(const memory_rmw *written, const void *site)
{
    memory_rmw used = *written;
    used.order = weaken_order(site, SITE_RMW, written->order);
    used.site = site;
    uint64_t before = memory_change_value(&used);
    if (explore_is_tracing() && checker_self() >= 0) {
        uint64_t after = before;
        (void)used.change(before, used.operand, used.expected, &after);
        explore_trace("%s: change, %s: %llx to %llx", weaken_describe(site), weaken_name(used.order),
                      (unsigned long long)before, (unsigned long long)after);
    }
    return before;
}

#define CHANGE(name, expression)                                                            \
    static bool name(uint64_t before, uint64_t operand, uint64_t expected, uint64_t *after) \
    {                                                                                       \
        (void)before;                                                                       \
        (void)expected;                                                                     \
        *after = (expression);                                                              \
        return true;                                                                        \
    }

CHANGE(to_operand, operand)
CHANGE(to_sum, before + operand)
CHANGE(to_difference, before - operand)
CHANGE(to_and, before &operand)
CHANGE(to_or, before | operand)
CHANGE(to_xor, before ^ operand)

static bool
if_expected(uint64_t before, uint64_t operand, uint64_t expected, uint64_t *after)
{
    *after = operand;
    return before == expected;
}

#define FETCH(bits, name, how)                                                                             \
    uint##bits##_t __tsan_atomic##bits##_##name(void *at, uint##bits##_t operand, int order);              \
    uint##bits##_t __tsan_atomic##bits##_##name(void *at, uint##bits##_t operand, int order)               \
    {                                                                                                      \
        memory_rmw rmw = {                                                                                 \
            .at = at, .size = bits / 8, .change = how, .operand = operand, .order = (memory_order_)order}; \
        return (uint##bits##_t)change(&rmw, SITE);                                                         \
    }

/* Spurious failures of a weak exchange are not modeled: the caller would only try again. */
#define EXCHANGE_IF(bits, strength)                                                                        \
    int __tsan_atomic##bits##_compare_exchange_##strength(void *at, void *expected, uint##bits##_t wanted, \
                                                          int order, int failure_order);                   \
    int __tsan_atomic##bits##_compare_exchange_##strength(void *at, void *expected, uint##bits##_t wanted, \
                                                          int order, int failure_order)                    \
    {                                                                                                      \
        uint##bits##_t before;                                                                             \
        memcpy(&before, expected, sizeof before);                                                          \
        memory_rmw rmw = {.at = at,                                                                        \
                          .size = bits / 8,                                                                \
                          .change = if_expected,                                                           \
                          .operand = wanted,                                                               \
                          .expected = before,                                                              \
                          .order = (memory_order_)order,                                                   \
                          .failure_order = (memory_order_)failure_order};                                  \
        uint##bits##_t found = (uint##bits##_t)change(&rmw, SITE);                                         \
        bool is_done = found == before;                                                                    \
        if (!is_done) {                                                                                    \
            on_write(expected, sizeof found);                                                              \
            memcpy(expected, &found, sizeof found);                                                        \
        }                                                                                                  \
        return is_done;                                                                                    \
    }

#define ATOMIC(bits)                                                             \
    uint##bits##_t __tsan_atomic##bits##_load(const void *at, int order);        \
    uint##bits##_t __tsan_atomic##bits##_load(const void *at, int order)         \
    {                                                                            \
        return (uint##bits##_t)load(at, bits / 8, order, SITE);                  \
    }                                                                            \
    void __tsan_atomic##bits##_store(void *at, uint##bits##_t value, int order); \
    void __tsan_atomic##bits##_store(void *at, uint##bits##_t value, int order)  \
    {                                                                            \
        store(at, bits / 8, value, order, SITE);                                 \
    }                                                                            \
    FETCH(bits, exchange, to_operand)                                            \
    FETCH(bits, fetch_add, to_sum)                                               \
    FETCH(bits, fetch_sub, to_difference)                                        \
    FETCH(bits, fetch_and, to_and)                                               \
    FETCH(bits, fetch_or, to_or)                                                 \
    FETCH(bits, fetch_xor, to_xor)                                               \
    EXCHANGE_IF(bits, strong)                                                    \
    EXCHANGE_IF(bits, weak)

ATOMIC(8)
ATOMIC(16)
ATOMIC(32)
ATOMIC(64)

void
__tsan_atomic_thread_fence(int order)
{
    memory_order_ used = weaken_order(SITE, SITE_FENCE, (memory_order_)order);
    memory_fence(used);
    if (explore_is_tracing() && checker_self() >= 0) {
        explore_trace("%s: fence, %s", weaken_describe(SITE), weaken_name(used));
    }
}

/* A compiler barrier has no effect at run time. */
void
__tsan_atomic_signal_fence(int order)
{
    (void)order;
}
