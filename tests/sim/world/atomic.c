/* Atomic operations of the simulated code. clang calls these functions instead of atomic
 * instructions (-fsanitize=thread). Each call may switch to another thread. Threads run one at a
 * time, so every operation is sequentially consistent: weaker memory orders are not simulated. */
#include "sim/world/internal.h"
#include "sim/world/pause.h"

#define COST_NS (world.options.call_cost_ns / 64 + 1)

void __tsan_init(void);
void __tsan_atomic_thread_fence(int order);
void __tsan_atomic_signal_fence(int order);

void
sim_pause(void)
{
    sim_step(2 * world.options.call_cost_ns);
}

void
__tsan_init(void)
{
}

void
__tsan_atomic_thread_fence(int order)
{
    (void)order;
    sim_step(COST_NS);
}

void
__tsan_atomic_signal_fence(int order)
{
    (void)order;
}

/* X(bits, name, the new value from the old value `was` and the operand `word`) */
#define OPERATIONS(X, bits)          \
    X(bits, exchange, word)          \
    X(bits, fetch_add, (was + word)) \
    X(bits, fetch_sub, (was - word)) \
    X(bits, fetch_and, (was & word)) \
    X(bits, fetch_or, (was | word))  \
    X(bits, fetch_xor, (was ^ word)) \
    X(bits, fetch_nand, (~(was & word)))

#define DEFINE_OPERATION(bits, name, result)                                                                 \
    uint##bits##_t __tsan_atomic##bits##_##name(volatile uint##bits##_t *at, uint##bits##_t word,            \
                                                int order);                                                  \
    uint##bits##_t __tsan_atomic##bits##_##name(volatile uint##bits##_t *at, uint##bits##_t word, int order) \
    {                                                                                                        \
        (void)order;                                                                                         \
        sim_step(COST_NS);                                                                                   \
        uint##bits##_t was = *at;                                                                            \
        *at = (uint##bits##_t)result;                                                                        \
        return was;                                                                                          \
    }

#define DEFINE_ALL(bits)                                                                                    \
    uint##bits##_t __tsan_atomic##bits##_load(const volatile uint##bits##_t *at, int order);                \
    void __tsan_atomic##bits##_store(volatile uint##bits##_t *at, uint##bits##_t word, int order);          \
    uint##bits##_t __tsan_atomic##bits##_compare_exchange_val(volatile uint##bits##_t *at,                  \
                                                              uint##bits##_t expected, uint##bits##_t word, \
                                                              int order, int failure_order);                \
    uint##bits##_t __tsan_atomic##bits##_load(const volatile uint##bits##_t *at, int order)                 \
    {                                                                                                       \
        (void)order;                                                                                        \
        sim_step(COST_NS);                                                                                  \
        return *at;                                                                                         \
    }                                                                                                       \
    void __tsan_atomic##bits##_store(volatile uint##bits##_t *at, uint##bits##_t word, int order)           \
    {                                                                                                       \
        (void)order;                                                                                        \
        sim_step(COST_NS);                                                                                  \
        *at = word;                                                                                         \
    }                                                                                                       \
    uint##bits##_t __tsan_atomic##bits##_compare_exchange_val(volatile uint##bits##_t *at,                  \
                                                              uint##bits##_t expected, uint##bits##_t word, \
                                                              int order, int failure_order)                 \
    {                                                                                                       \
        (void)order;                                                                                        \
        (void)failure_order;                                                                                \
        sim_step(COST_NS);                                                                                  \
        uint##bits##_t was = *at;                                                                           \
        if (was == expected) {                                                                              \
            *at = word;                                                                                     \
        }                                                                                                   \
        return was;                                                                                         \
    }                                                                                                       \
    OPERATIONS(DEFINE_OPERATION, bits)

DEFINE_ALL(8)
DEFINE_ALL(16)
DEFINE_ALL(32)
DEFINE_ALL(64)
