/* The memory of processes: csrc/core/mem.h and mappings. A process frees its memory when it
 * exits. */
#include "core/mem.h"

#include "sim/world/internal.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define HEAD_NBYTES ((sizeof(sim_allocation) + 15) / 16 * 16)

static bool
is_allocation_to_fail(sim_process *process)
{
    sim_step(world.options.call_cost_ns / 8 + 1);
    if (process->nallocations_to_fail == 0) {
        return false;
    }
    process->nallocations_to_fail--;
    sim_trace("no memory", process->number, process->nallocations_to_fail);
    return true;
}

static sim_allocation *
head_of(void *ptr)
{
    return (sim_allocation *)(void *)((uint8_t *)ptr - HEAD_NBYTES);
}

static void *
allocate(size_t nbytes, bool is_zeroed)
{
    sim_process *process = sim_self();
    if (is_allocation_to_fail(process) || nbytes > SIZE_MAX / 2) {
        return NULL;
    }
    sim_allocation *head = is_zeroed ? calloc(1, HEAD_NBYTES + nbytes) : malloc(HEAD_NBYTES + nbytes);
    if (head == NULL) {
        return NULL;
    }
    head->process = process;
    head->nbytes = nbytes;
    dd_list_push_back(&process->allocations, &head->link);
    process->nallocations++;
    return (uint8_t *)head + HEAD_NBYTES;
}

/* Return memory filled with a fixed garbage pattern. */
void *
dd_mem_alloc(size_t nbytes)
{
    void *ptr = allocate(nbytes, false);
    if (ptr != NULL) {
        memset(ptr, 0xa5, nbytes < 4096 ? nbytes : 4096);
    }
    return ptr;
}

void *
dd_mem_zalloc(size_t nbytes)
{
    return allocate(nbytes, true);
}

void *
dd_mem_alloc_array(size_t count, size_t size)
{
    return size != 0 && count > SIZE_MAX / size ? NULL : dd_mem_alloc(count * size);
}

static void
forget_allocation(sim_allocation *head)
{
    dd_list_remove(&head->link);
    head->process->nallocations--;
    free(head);
}

void *
dd_mem_realloc(void *ptr, size_t nbytes)
{
    void *moved = dd_mem_alloc(nbytes);
    if (moved != NULL && ptr != NULL) {
        size_t old = head_of(ptr)->nbytes;
        memcpy(moved, ptr, old < nbytes ? old : nbytes);
        forget_allocation(head_of(ptr));
    }
    return moved;
}

void
dd_mem_free(void *ptr)
{
    if (ptr != NULL) {
        forget_allocation(head_of(ptr));
    }
}

void *
dd_mem_map(size_t nbytes)
{
    sim_process *process = sim_self();
    if (is_allocation_to_fail(process)) {
        return NULL;
    }
    void *pages = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) {
        return NULL;
    }
    return sim_note_mapping(process, pages, nbytes) ? pages : NULL;
}

void
dd_mem_unmap(void *pages, size_t nbytes)
{
    if (pages != NULL) {
        sim_unmap(sim_self(), pages, nbytes);
    }
}

void
dd_mem_expect_writes(void *at, size_t nbytes)
{
    (void)at;
    (void)nbytes;
}

/* ---- mappings */

bool
sim_note_mapping(sim_process *process, uint8_t *at, size_t nbytes)
{
    if (process->nmappings == process->mappings_capacity) {
        size_t capacity = 2 * process->mappings_capacity + 16;
        sim_mapping *mappings = realloc(process->mappings, capacity * sizeof *mappings);
        if (mappings == NULL) {
            return false;
        }
        process->mappings = mappings;
        process->mappings_capacity = capacity;
    }
    process->mappings[process->nmappings++] = (sim_mapping){.at = at, .nbytes = nbytes};
    return true;
}

/* Remove a mapping or a part of it; the rest stays mapped. */
static void
forget_mapping(sim_process *process, const uint8_t *at, size_t nbytes)
{
    for (size_t i = process->nmappings; i-- > 0;) {
        sim_mapping old = process->mappings[i];
        const uint8_t *end = old.at + old.nbytes;
        if (old.at >= at + nbytes || end <= at) {
            continue;
        }
        process->mappings[i] = process->mappings[--process->nmappings];
        if (old.at < at) {
            (void)sim_note_mapping(process, old.at, (size_t)(at - old.at));
        }
        if (end > at + nbytes) {
            (void)sim_note_mapping(process, old.at + (at + nbytes - old.at), (size_t)(end - (at + nbytes)));
        }
    }
}

void
sim_unmap(sim_process *process, uint8_t *at, size_t nbytes)
{
    forget_mapping(process, at, nbytes);
    (void)munmap(at, nbytes);
}

void
sim_free_all(sim_process *process)
{
    while (process->nmappings > 0) {
        sim_mapping *last = &process->mappings[process->nmappings - 1];
        sim_unmap(process, last->at, last->nbytes);
    }
    free(process->mappings);
    process->mappings = NULL;
    while (!dd_list_is_empty(&process->allocations)) {
        forget_allocation(DD_CONTAINER_OF(process->allocations.next, sim_allocation, link));
    }
}
