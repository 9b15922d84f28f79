/* Opening and closing of windows. To open a window, ranks exchange their parts, map the memory that
 * they can map, and then exchange the results. */
#include "core/log.h"
#include "core/mem.h"
#include "window/window_internal.h"

#include <stdio.h>

/* Longest wait for descriptors, which are sent before the messages that name them. A descriptor
 * that is still missing was dropped, because it was not requested or memory was short; its rank is
 * then reached by messages. */
#define DESCRIPTORS_PATIENCE_NS (500 * DD_NS_PER_MS)
#define CONTROL_ALIGNMENT ((size_t)128)
#define PAD_MAX ((size_t)1 << 30)

typedef struct window_opening {
    dd_group *group;
    int size;
    dd_window *window;
    const dd_wait *wait;
    dd_status own; /* status of this rank; if not DD_OK, details are in `error` */
    dd_error error;
    dd_window_part part;   /* this rank's part */
    dd_window_part *parts; /* [size]: last exchanged parts: all offers, then all results */
    dd_block *blocks;      /* [size]: `parts` in encoded form */
    dd_error map_error;    /* the error of map_locked; code DD_OK if there is none */
    int blamed;
} window_opening;

static size_t
control_at(size_t pad_nbytes)
{
    return (pad_nbytes + CONTROL_ALIGNMENT - 1) & ~(CONTROL_ALIGNMENT - 1);
}

static size_t
least_pad_nbytes(const dd_group *group)
{
    return (size_t)dd_group_size(group) * sizeof(uint32_t);
}

static dd_status
window_check_options(dd_group *group, const dd_window_options *options, dd_error *err)
{
    if (options->obstacle != DD_OK) {
        return dd_error_set(err, options->obstacle, "window: this rank cannot open its part");
    }
    size_t least = least_pad_nbytes(group);
    if (options->pad_nbytes != 0 && (options->pad_nbytes < least || options->pad_nbytes > PAD_MAX)) {
        return dd_error_set(
            err, DD_INVALID_ARGUMENT,
            "window: invalid signal pad for %d ranks: got %zu bytes, expected %zu (one channel) to %zu",
            dd_group_size(group), options->pad_nbytes, least, PAD_MAX);
    }
    if (options->data == NULL && options->nbytes > 0) {
        return dd_error_set(err, DD_INVALID_ARGUMENT, "window: size %zu with a NULL address",
                            options->nbytes);
    }
    if (options->region == NULL) {
        return DD_OK;
    }
    /* Memory that begins before the region gets a huge offset, which is rejected. */
    size_t offset = (uintptr_t)options->data - (uintptr_t)dd_region_data(options->region);
    size_t room = dd_region_nbytes(options->region);
    if (dd_region_group(options->region) != group || offset > room || options->nbytes > room - offset) {
        return dd_error_set(err, DD_INVALID_ARGUMENT,
                            "window: the memory is not in the given region of this group");
    }
    return DD_OK;
}

static dd_window *
window_create(window_hub *hub, uint64_t id, const dd_window_options *options)
{
    size_t least = least_pad_nbytes(hub->group);
    size_t by_default = least > DD_WINDOW_PAD_NBYTES ? least : DD_WINDOW_PAD_NBYTES;
    dd_window *window = dd_mem_zalloc(sizeof(dd_window) + (size_t)hub->size * sizeof(window_member));
    if (window == NULL) {
        return NULL;
    }
    atomic_init(&window->refs, 1);
    atomic_init(&window->state, WINDOW_OPEN);
    window->group = dd_group_acquire(hub->group);
    window->hub = hub;
    window->id = id;
    window->region = options->region != NULL ? dd_region_acquire(options->region) : NULL;
    window->pad_nbytes = options->pad_nbytes != 0 ? options->pad_nbytes : by_default;
    window->nchannels = (int)(window->pad_nbytes / least);
    dd_list_init(&window->link);
    window->members[hub->rank] = (window_member){
        .data = options->data, .nbytes = options->nbytes, .dtype = options->dtype, .is_direct = true};
    return window;
}

static void
destroy(dd_window *window)
{
    dd_group *group = window->group;
    dd_region_release(window->pad);
    dd_region_release(window->region);
    dd_mem_free(window);
    dd_group_release(group);
}

static void
set_pad(window_member *member, uint8_t *pad, size_t pad_nbytes)
{
    member->words = (_Atomic uint32_t *)(void *)pad;
    member->control = (window_control *)(void *)(pad + control_at(pad_nbytes));
}

/* Create this rank's pad, and describe this rank's memory in its part. */
static dd_status
make_part(window_opening *opening, dd_error *err)
{
    dd_window *window = opening->window;
    window_member *own_member = &window->members[window->hub->rank];
    dd_status status = dd_group_alloc_pad(
        opening->group, control_at(window->pad_nbytes) + sizeof(window_control), &window->pad, err);
    if (status != DD_OK) {
        return status;
    }
    set_pad(own_member, dd_region_data(window->pad), window->pad_nbytes);
    opening->part.pad_region = dd_region_id(window->pad);
    opening->part.nbytes = own_member->nbytes;
    opening->part.dtype = own_member->dtype;
    if (window->region != NULL) {
        const uint8_t *base = dd_region_data(window->region);
        opening->part.data = (dd_window_location){.region = dd_region_id(window->region),
                                                  .offset = (uint64_t)(own_member->data - base)};
    }
    return DD_OK;
}

/* ---- parts */

/* Fail the group with an error that a part cannot report. */
static dd_status
fail_group(dd_group *group, dd_error *error, dd_error *err)
{
    dd_error_prepend(error, "window");
    dd_engine_lock(dd_group_engine(group));
    dd_group_fail_locked(group, error);
    dd_engine_unlock(dd_group_engine(group));
    return dd_error_copy(err, error);
}

static dd_status
fail_without_memory(dd_group *group, dd_error *err)
{
    dd_error error;
    (void)dd_error_no_memory(&error, (size_t)dd_group_size(group) * sizeof(window_member));
    return fail_group(group, &error, err);
}

static dd_status
fail_protocol(const window_opening *opening, int rank, const dd_error *fault, dd_error *err)
{
    dd_error error;
    char label[512];
    (void)snprintf(label, sizeof label, "broke the protocol: %.400s", fault->message);
    (void)dd_group_error_about(opening->group, rank, DD_PROTOCOL, label, &error);
    return fail_group(opening->group, &error, err);
}

/* Return the error of a rank that could not open its part or whose pad size is not rank 0's. */
static dd_status
check_part(const window_opening *opening, int rank, dd_error *err)
{
    const dd_window_part *part = &opening->parts[rank];
    char label[256];
    if (part->status != DD_OK) {
        dd_error why;
        (void)(part->sys_errno != 0
                   ? dd_error_set_errno(&why, part->status, part->sys_errno, "cannot open its part")
                   : dd_error_set(&why, part->status, "cannot open its part: %s",
                                  dd_status_text(part->status)));
        (void)snprintf(label, sizeof label, "%.250s", why.message);
        (void)dd_group_error_about(opening->group, rank, part->status, label, err);
        dd_error_prepend(err, "window");
        return part->status;
    }
    if (part->pad_nbytes != opening->parts[0].pad_nbytes) {
        dd_error own_error;
        (void)snprintf(label, sizeof label, "has %llu", (unsigned long long)part->pad_nbytes);
        (void)dd_group_error_about(opening->group, rank, DD_MISMATCH, label, &own_error);
        (void)dd_error_set(err, DD_MISMATCH,
                           "window: ranks disagree on the signal pad: rank 0 has %llu bytes, %s",
                           (unsigned long long)opening->parts[0].pad_nbytes, own_error.message);
        dd_error_blame(err, rank, own_error.blamed.host, own_error.blamed.pid);
        return DD_MISMATCH;
    }
    return DD_OK;
}

/* Exchange parts. Return DD_OK if all ranks report success. */
static dd_status
window_exchange(window_opening *opening, dd_error *err)
{
    uint8_t own[DD_WINDOW_PART_NBYTES];
    dd_block input = {.data = own, .nbytes = sizeof own};
    dd_coll_args args = {.coll = DD_COLL_ALL_GATHER,
                         .reduction = {.dtype = DD_DTYPE_UINT8},
                         .inputs = &input,
                         .outputs = opening->blocks};
    dd_call_options options = {.timeout_ns = -1};
    opening->part.status = opening->own;
    opening->part.sys_errno = opening->own != DD_OK ? opening->error.sys_errno : 0;
    dd_window_part_encode(&opening->part, own);
    dd_status status = dd_group_collective_and_wait(opening->group, &args, &options, opening->wait, err);
    if (opening->own != DD_OK) { /* this rank's error, even if others have failed the group */
        return dd_error_copy(err, &opening->error);
    }
    for (int rank = 0; rank < opening->size && status == DD_OK; rank++) {
        dd_error fault;
        if (dd_window_part_decode(opening->blocks[rank].data, &opening->parts[rank], &fault) != DD_OK) {
            return fail_protocol(opening, rank, &fault, err);
        }
        status = check_part(opening, rank, err);
    }
    return status;
}

/* ---- mapping the memory of other local ranks */

/* Map a rank's memory. Return NULL if its descriptor has not arrived or an error occurs; map_error
 * keeps the error, which ends the mapping. */
static uint8_t *
map_locked(window_opening *opening, int rank, dd_window_location spot, uint64_t nbytes)
{
    dd_block memory = {.data = NULL};
    dd_error error;
    dd_status status = dd_group_map_region_locked(opening->group, rank, spot.region, &memory, &error);
    if (status == DD_OK && memory.data == NULL) {
        return NULL;
    }
    if (status == DD_OK && spot.offset <= memory.nbytes && nbytes <= memory.nbytes - spot.offset) {
        return (uint8_t *)memory.data + spot.offset;
    }
    if (status == DD_OK) {
        (void)dd_error_set(&error, DD_PROTOCOL,
                           "out of range: got %llu bytes at %llu, expected at most %zu in the region",
                           (unsigned long long)nbytes, (unsigned long long)spot.offset, memory.nbytes);
    }
    opening->map_error = error;
    opening->blamed = rank;
    return NULL;
}

/* Map as much as possible of a rank's pad and memory. Return true if no descriptor is missing. */
static bool
map_member_locked(window_opening *opening, int rank)
{
    dd_window *window = opening->window;
    window_member *member = &window->members[rank];
    const dd_window_part *part = &opening->parts[rank];
    bool wants_data = part->nbytes > 0 && part->data.region != 0;
    if (member->words == NULL && part->pad_region != 0) {
        uint8_t *pad = map_locked(opening, rank, (dd_window_location){.region = part->pad_region},
                                  control_at(window->pad_nbytes) + sizeof(window_control));
        if (pad != NULL) {
            set_pad(member, pad, window->pad_nbytes);
        }
    }
    if (opening->map_error.code == DD_OK && member->data == NULL && wants_data) {
        member->data = map_locked(opening, rank, part->data, part->nbytes);
    }
    member->is_direct = member->words != NULL && (part->nbytes == 0 || member->data != NULL);
    return (member->words != NULL || part->pad_region == 0) && (member->data != NULL || !wants_data);
}

static bool
is_mapped(void *ctx)
{
    window_opening *opening = ctx;
    bool is_all = true;
    for (int rank = 0; rank < opening->size && opening->map_error.code == DD_OK; rank++) {
        bool is_near = rank != opening->window->hub->rank && dd_group_shares_memory(opening->group, rank);
        is_all = (!is_near || map_member_locked(opening, rank)) && is_all;
    }
    /* Stop waiting if the group has failed, because it then receives no more descriptors. */
    return is_all || opening->map_error.code != DD_OK || dd_group_cause_locked(opening->group) != NULL;
}

static dd_status
map_members(window_opening *opening, dd_error *err)
{
    opening->map_error.code = DD_OK;
    dd_wait patience = dd_wait_at_most(opening->wait, DESCRIPTORS_PATIENCE_NS);
    dd_status status = dd_group_await(opening->group, is_mapped, opening, &patience, err);
    if (opening->map_error.code == DD_PROTOCOL) {
        return fail_protocol(opening, opening->blamed, &opening->map_error, err);
    }
    if (opening->map_error.code != DD_OK) {
        return dd_error_copy(err, &opening->map_error);
    }
    if (status == DD_OP_TIMED_OUT) {
        dd_bytes name = dd_group_name(opening->group);
        DD_LOG(DD_LOG_INFO,
               "window of group \"%.*s\" (rank %d): the memory of some ranks of this host did not arrive",
               (int)name.len, (const char *)name.data, dd_group_rank(opening->group));
        return DD_OK;
    }
    return status;
}

static dd_status
add_to_hub(dd_window *window, dd_error *err)
{
    window_hub *hub = window->hub;
    for (int rank = 0; rank < hub->size; rank++) {
        window->needs_messages = window->needs_messages || !window->members[rank].is_direct;
    }
    dd_engine_lock(hub->engine);
    dd_status status = dd_group_check_usable_locked(hub->group, "window", err);
    if (status == DD_OK) {
        hub->nwindows = window->id > hub->nwindows ? window->id : hub->nwindows;
        dd_list_push_back(&hub->windows, &window->link);
        if (window->needs_messages) {
            dd_engine_set_prompt_locked(hub->engine, true);
        }
    }
    dd_engine_unlock(hub->engine);
    return status;
}

/* ---- closing */

/* Close this rank's part. Data that is still to be sent is copied from the caller's memory in
 * pieces, between which the lock is free. */
void
dd_window_close(dd_window *window)
{
    window_hub *hub = window->hub;
    if (dd_engine_check_fork(hub->engine, NULL) != DD_OK) {
        return;
    }
    dd_engine_lock(hub->engine);
    bool is_first = atomic_load(&window->state) == WINDOW_OPEN;
    if (is_first) {
        dd_error cause;
        (void)dd_error_set(&cause, DD_CLOSED, "this rank has closed the window");
        atomic_store(&window->state, WINDOW_CLOSED);
        atomic_store(&window->members[hub->rank].control->is_closed, 1);
        window_end_waits_locked(hub, window, DD_ANY_RANK, &cause);
        window_close_messages_locked(window);
    }
    for (bool has_more = true; has_more;) {
        has_more = window_copy_wanted_locked(hub);
        dd_engine_unlock(hub->engine);
        dd_engine_lock(hub->engine);
    }
    dd_engine_unlock(hub->engine);
    for (int rank = 0; is_first && rank < hub->size; rank++) {
        if (rank != hub->rank && window->members[rank].is_direct) {
            window_wake(window, rank);
        }
    }
}

static void
remove_from_hub(dd_window *window)
{
    window_hub *hub = window->hub;
    if (dd_list_is_empty(&window->link) || dd_engine_check_fork(hub->engine, NULL) != DD_OK) {
        return;
    }
    dd_engine_lock(hub->engine);
    dd_list_remove(&window->link);
    if (window->needs_messages) {
        dd_engine_set_prompt_locked(hub->engine, false);
    }
    dd_engine_unlock(hub->engine);
}

dd_window *
dd_window_acquire(dd_window *window)
{
    atomic_fetch_add_explicit(&window->refs, 1, memory_order_relaxed);
    return window;
}

void
dd_window_release(dd_window *window)
{
    if (window == NULL || atomic_fetch_sub_explicit(&window->refs, 1, memory_order_acq_rel) != 1) {
        return;
    }
    dd_window_close(window);
    remove_from_hub(window);
    destroy(window);
}

/* ---- opening */

/* Open the window on all ranks, or on none. */
static dd_status
open_window(window_opening *opening, dd_error *err)
{
    dd_window *window = opening->window;
    if (opening->own == DD_OK) {
        opening->own = make_part(opening, &opening->error);
    }
    dd_status status = window_exchange(opening, err);
    if (status != DD_OK) {
        return status;
    }
    window->id = opening->parts[0].window;
    for (int rank = 0; rank < opening->size; rank++) {
        window->members[rank].nbytes = (size_t)opening->parts[rank].nbytes;
        window->members[rank].dtype = opening->parts[rank].dtype;
    }
    opening->own = map_members(opening, &opening->error);
    if (opening->own == DD_OK) {
        opening->own = add_to_hub(window, &opening->error);
    }
    status = window_exchange(opening, err);
    if (status != DD_OK) {
        remove_from_hub(window);
    }
    return status;
}

dd_status
dd_window_open(dd_group *group, const dd_window_options *options, dd_window **window, const dd_wait *wait,
               dd_error *err)
{
    static const dd_window_options nothing = {.data = NULL};
    window_opening opening = {.group = group, .size = dd_group_size(group), .wait = wait};
    window_hub *hub = NULL;
    uint64_t id = 0;
    dd_status status = dd_engine_check_fork(dd_group_engine(group), err);
    if (status == DD_OK) {
        status = window_find_hub(group, &hub, &id, err);
    }
    if (status != DD_OK) {
        return status == DD_OUT_OF_MEMORY ? fail_without_memory(group, err) : status;
    }
    opening.own = window_check_options(group, options, &opening.error);
    opening.window = window_create(hub, id, opening.own == DD_OK ? options : &nothing);
    size_t size = (size_t)opening.size;
    opening.blocks =
        dd_mem_alloc(size * (sizeof *opening.blocks + sizeof *opening.parts + DD_WINDOW_PART_NBYTES));
    if (opening.window == NULL || opening.blocks == NULL) {
        status = fail_without_memory(group, err);
    } else {
        opening.parts = (dd_window_part *)(void *)(opening.blocks + size);
        uint8_t *bytes = (uint8_t *)(opening.parts + size);
        for (size_t rank = 0; rank < size; rank++, bytes += DD_WINDOW_PART_NBYTES) {
            opening.blocks[rank] = (dd_block){.data = bytes, .nbytes = DD_WINDOW_PART_NBYTES};
        }
        opening.part = (dd_window_part){.window = id, .pad_nbytes = opening.window->pad_nbytes};
        status = open_window(&opening, err);
    }
    dd_mem_free(opening.blocks);
    if (status == DD_OK) {
        *window = opening.window;
    } else if (opening.window != NULL) {
        destroy(opening.window);
    }
    return status;
}

/* ---- properties */

dd_dtype
dd_window_dtype(const dd_window *window, int rank)
{
    return window->members[rank].dtype;
}

size_t
dd_window_nbytes(const dd_window *window, int rank)
{
    return window->members[rank].nbytes;
}

size_t
dd_window_pad_nbytes(const dd_window *window)
{
    return window->pad_nbytes;
}

int
dd_window_nchannels(const dd_window *window)
{
    return window->nchannels;
}

void *
dd_window_data(const dd_window *window, int rank)
{
    const window_member *member = &window->members[rank];
    return member->nbytes > 0 ? member->data : NULL;
}

_Atomic uint32_t *
dd_window_pad(const dd_window *window, int rank)
{
    return window->members[rank].words;
}
