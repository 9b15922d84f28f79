/* Stacks and switches between them. */
#include "sim/world/internal.h"

#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define STACK_NBYTES ((size_t)256 << 10)
#define GUARD_NBYTES ((size_t)4096)

#if !defined(__x86_64__)
#error "the simulator changes stacks only on x86-64"
#endif

/* A switch pushes the callee-saved registers onto the old stack. */
__asm__(".text\n"
        ".globl sim_switch_stack\n"
        ".type sim_switch_stack, @function\n"
        "sim_switch_stack:\n"
        "    push %rbp\n"
        "    push %rbx\n"
        "    push %r12\n"
        "    push %r13\n"
        "    push %r14\n"
        "    push %r15\n"
        "    mov %rsp, (%rdi)\n"
        "    mov %rsi, %rsp\n"
        "    pop %r15\n"
        "    pop %r14\n"
        "    pop %r13\n"
        "    pop %r12\n"
        "    pop %rbx\n"
        "    pop %rbp\n"
        "    ret\n"
        ".size sim_switch_stack, . - sim_switch_stack\n");

/* Free stacks outlive their worlds: creating a stack takes longer than most threads live. */
static void *free_stacks[64];
static size_t nfree_stacks;

void *
sim_stack_acquire(void)
{
    if (nfree_stacks > 0) {
        return free_stacks[--nfree_stacks];
    }
    uint8_t *memory = mmap(NULL, GUARD_NBYTES + STACK_NBYTES, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        perror("sim: a stack");
        abort();
    }
    (void)mprotect(memory, GUARD_NBYTES, PROT_NONE);
    return memory + GUARD_NBYTES;
}

void
sim_stack_release(void *stack)
{
    if (nfree_stacks < sizeof free_stacks / sizeof free_stacks[0]) {
        free_stacks[nfree_stacks++] = stack;
    } else {
        (void)munmap((uint8_t *)stack - GUARD_NBYTES, GUARD_NBYTES + STACK_NBYTES);
    }
}

void *
sim_stack_begin(void *stack, void (*entry)(void))
{
    uint64_t *top = (uint64_t *)(void *)((uint8_t *)stack + STACK_NBYTES);
    *--top = 0; /* return address of `entry`, so that the stack is aligned as after a call */
    *--top = (uint64_t)(uintptr_t)entry;
    for (int i = 0; i < 6; i++) { /* the registers that sim_switch_stack pops */
        *--top = 0;
    }
    return top;
}

static int
find_tls(struct dl_phdr_info *info, size_t size, void *out)
{
    (void)size;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        if (info->dlpi_phdr[i].p_type == PT_TLS) {
            size_t align = info->dlpi_phdr[i].p_align;
            *(size_t *)out = (info->dlpi_phdr[i].p_memsz + align - 1) / align * align;
        }
    }
    return 1; /* the program comes first, and its other modules contain no library code */
}

/* On x86-64, the program's thread-local variables end at the thread pointer. */
uint8_t *
sim_tls(size_t *nbytes)
{
    static size_t known = SIZE_MAX;
    if (known == SIZE_MAX) {
        known = 0;
        (void)dl_iterate_phdr(find_tls, &known);
        if (known > SIM_TLS_NBYTES) {
            (void)fprintf(stderr, "sim: a thread has %zu bytes of variables, and there is room for %d\n",
                          known, SIM_TLS_NBYTES);
            abort();
        }
    }
    *nbytes = known;
    return (uint8_t *)__builtin_thread_pointer() - known;
}
