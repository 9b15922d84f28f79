/* Windows: opening, closing, and what is known of them. */
#include "group/window_internal.h"

#include "core/little_endian.h"
#include "core/log.h"
#include "core/mem.h"

#include <stdio.h>
#include <string.h>

/* Descriptors have been sent before the messages that speak of them. One that does not come was thrown away, with others that nobody had
 * asked for, or for want of memory: that rank is reached by messages. */
#define DESCRIPTORS_PATIENCE_NS (500 * DD_NS_PER_MS)
#define CONTROL_ALIGNMENT ((size_t)128)
#define PAD_MAX ((size_t)1 << 30)

static size_t
control_at(size_t pad_nbytes)
{
    return (pad_nbytes + CONTROL_ALIGNMENT - 1) & ~(CONTROL_ALIGNMENT - 1);
}

/* ---- words */

void
window_blame(const dd_group *group, int rank, dd_error *err)
{
    const dd_card *card = dd_peer_card(group->peers[rank]);
    dd_error_blame(err, rank, card->host, card->pid);
}

void
window_describe(const dd_window *window, const char *what, dd_error *err)
{
    const dd_group *group = window->group;
    dd_error_prepend(err, "%s on window %llu of group \"%.*s\" (rank %d of %d)", what,
                     (unsigned long long)window->id, (int)group->name.len, (const char *)group->name.data,
                     group->rank, group->size);
}

dd_status
window_error_closed(const dd_window *window, int rank, dd_error *err)
{
    char who[128];
    (void)dd_error_set(err, DD_CLOSED, "%s has closed the window",
                       group_print_member(window->group, rank, who));
    window_blame(window->group, rank, err);
    return DD_CLOSED;
}

dd_status
window_find_cause(dd_window *window, const char *what, dd_status status, dd_error *err)
{
    dd_group *group = window->group;
    if (status == DD_OK || dd_engine_check_fork(group->engine, NULL) != DD_OK) {
        return status;
    }
    dd_engine_lock(group->engine);
    if (status == DD_CLOSED) {
        dd_engine_hear_locked(group->engine);
        if (group->cause.code != DD_OK) {
            status = group_check_usable_locked(group, what, err);
        }
    }
    dd_engine_finish_telling_locked(group->engine);
    dd_engine_unlock(group->engine);
    return status;
}

dd_status
window_error_gone(const dd_group *group, int rank, dd_error *err)
{
    char who[128];
    (void)dd_error_set(err, DD_PEER_LOST, "%s has left the group", group_print_member(group, rank, who));
    window_blame(group, rank, err);
    return DD_PEER_LOST;
}

static dd_status
error_not_open(dd_window *window, const char *what, dd_error *err)
{
    dd_group *group = window->group;
    dd_engine_lock(group->engine);
    dd_status status = group_check_usable_locked(group, what, err);
    dd_engine_unlock(group->engine);
    if (status == DD_OK) {
        status = dd_error_set(err, DD_CLOSED, "this rank has closed the window");
        window_describe(window, what, err);
    }
    return status;
}

static dd_status
error_out_of_range(const dd_window *window, const char *what, int rank, int channel, dd_error *err)
{
    dd_status status = rank < 0 || rank >= window->group->size
                           ? dd_error_set(err, DD_INVALID_ARGUMENT, "invalid rank: %d is not in 0 to %d",
                                          rank, window->group->size - 1)
                           : dd_error_set(err, DD_INVALID_ARGUMENT, "invalid channel: %d is not in 0 to %d",
                                          channel, window->nchannels - 1);
    window_describe(window, what, err);
    return status;
}

dd_status
window_check(dd_window *window, const char *what, int rank, int channel, dd_error *err)
{
    dd_status status = dd_engine_check_fork(window->group->engine, err);
    if (status != DD_OK) {
        return status;
    }
    if (rank < 0 || rank >= window->group->size || channel < DD_NO_CHANNEL || channel >= window->nchannels) {
        return error_out_of_range(window, what, rank, channel, err);
    }
    if (atomic_load_explicit(&window->state, memory_order_acquire) != WINDOW_OPEN) {
        return error_not_open(window, what, err);
    }
    return DD_OK;
}

dd_status
window_check_open(dd_window *window, const char *what, int rank, int channel, dd_error *err)
{
    dd_status status = window_check(window, what, rank, channel, err);
    if (status == DD_OK && window_has_closed(&window->members[rank])) {
        status = window_error_closed(window, rank, err);
        window_describe(window, what, err);
    }
    return window_find_cause(window, what, status, err);
}

dd_status
window_check_far_locked(const dd_window *window, int rank, dd_error *err)
{
    dd_group *group = window->group;
    if (group->cause.code != DD_OK) {
        dd_engine_finish_telling_locked(group->engine);
        return dd_error_copy(err, &group->cause);
    }
    if (group->is_closing) {
        return dd_error_set(err, DD_CLOSED, "the group is closed");
    }
    if (atomic_load(&window->state) != WINDOW_OPEN) {
        return dd_error_set(err, DD_CLOSED, "this rank has closed the window");
    }
    /* What a rank that has left had to say before may still be on its way. */
    if (group->members[rank].is_gone && !window_serve_is_busy_locked(group->windows, rank)) {
        return window_error_gone(group, rank, err);
    }
    return window->members[rank].is_closed ? window_error_closed(window, rank, err) : DD_OK;
}

/* ---- opening */

/* What the making of a window needs on the way. */
typedef struct window_opening {
    const dd_window_options *options;
    dd_window *window;
    dd_group *group;
    uint8_t *cards;          /* [size], as they came */
    dd_window_card *decoded; /* [size] */
    dd_block *blocks;        /* [size] */
    const dd_wait *wait;
} window_opening;

static dd_status
check_options(const dd_group *group, const dd_window_options *options, dd_error *err)
{
    if (options->obstacle != DD_OK) {
        return dd_error_set(err, options->obstacle, "window: this rank cannot open its part");
    }
    size_t least = (size_t)group->size * sizeof(uint32_t);
    if (options->pad_nbytes != 0 && (options->pad_nbytes < least || options->pad_nbytes > PAD_MAX)) {
        return dd_error_set(
            err, DD_INVALID_ARGUMENT,
            "window: a pad of %zu bytes for %d ranks: a channel takes %zu bytes, and %zu are the most",
            options->pad_nbytes, group->size, least, PAD_MAX);
    }
    if (options->data == NULL && options->nbytes > 0) {
        return dd_error_set(err, DD_INVALID_ARGUMENT, "window: %zu bytes of no memory", options->nbytes);
    }
    if (options->region == NULL) {
        return DD_OK;
    }
    const uint8_t *base = dd_region_data(options->region);
    size_t room = dd_region_nbytes(options->region);
    size_t offset = (size_t)((const uint8_t *)options->data - base);
    bool is_inside =
        (const uint8_t *)options->data >= base && offset <= room && options->nbytes <= room - offset;
    if (group_of_region(options->region) != group || !is_inside) {
        return dd_error_set(err, DD_INVALID_ARGUMENT,
                            "window: the memory does not lie in that region of this group");
    }
    return DD_OK;
}

static size_t
default_pad_nbytes(const dd_group *group)
{
    size_t least = (size_t)group->size * sizeof(uint32_t);
    return least > DD_WINDOW_PAD_NBYTES ? least : DD_WINDOW_PAD_NBYTES;
}

/* Without looking whether the options make sense. */
static dd_status
create(dd_group *group, const dd_window_options *options, dd_window **out, dd_error *err)
{
    size_t nbytes = sizeof(dd_window) + (size_t)group->size * sizeof(window_member);
    dd_window *window = dd_mem_zalloc(nbytes);
    if (window == NULL) {
        return dd_error_no_memory(err, nbytes);
    }
    atomic_init(&window->refs, 1);
    atomic_init(&window->state, WINDOW_OPEN);
    atomic_init(&window->nto_be_told, 0);
    window->group = dd_group_acquire(group);
    window->region = options->region != NULL ? dd_region_acquire(options->region) : NULL;
    window->pad_nbytes = options->pad_nbytes != 0 ? options->pad_nbytes : default_pad_nbytes(group);
    window->nchannels = (int)(window->pad_nbytes / sizeof(uint32_t) / (size_t)group->size);
    dd_list_init(&window->link);
    dd_list_init(&window->waiters);
    window_task_init(window);
    window_member *own = &window->members[group->rank];
    own->data = options->data;
    own->nbytes = options->nbytes;
    *out = window;
    return DD_OK;
}

/* Frees it; also one that is half open. */
static void
destroy(dd_window *window)
{
    dd_group *group = window->group;
    dd_region_release(window->pad);
    dd_region_release(window->region);
    dd_mem_free(window->tallies);
    dd_mem_free(window);
    dd_group_release(group);
}

static dd_status
make_pad(dd_window *window, dd_error *err)
{
    size_t at = control_at(window->pad_nbytes);
    dd_status status = group_alloc_pad(window->group, at + sizeof(window_control), &window->pad, err);
    if (status == DD_OK) {
        window_member *own = &window->members[window->group->rank];
        uint8_t *base = dd_region_data(window->pad);
        own->words = (_Atomic uint32_t *)(void *)base;
        own->control = (window_control *)(void *)(base + at);
        own->is_direct = true;
    }
    return status;
}

static dd_window_card
make_card(const dd_window *window, dd_status status, uint64_t id)
{
    const window_member *own = &window->members[window->group->rank];
    dd_window_card card = {
        .status = status, .window = id, .pad_nbytes = window->pad_nbytes, .nbytes = own->nbytes};
    if (window->pad != NULL) {
        card.pad_region = group_region_id(window->pad);
    }
    if (window->region != NULL && status == DD_OK) {
        const uint8_t *base = dd_region_data(window->region);
        card.data = (dd_window_spot){.region = group_region_id(window->region),
                                     .offset = (uint64_t)(own->data - base)};
    }
    return card;
}

/* Everybody's `nbytes` bytes to everybody, into opening->cards. */
static dd_status
exchange(window_opening *opening, void *own, size_t nbytes, dd_error *err)
{
    dd_group *group = opening->group;
    dd_block input = {.data = own, .nbytes = nbytes};
    for (int rank = 0; rank < group->size; rank++) {
        opening->blocks[rank] = (dd_block){.data = opening->cards + (size_t)rank * nbytes, .nbytes = nbytes};
    }
    dd_coll_args args = {.coll = DD_COLL_ALL_GATHER,
                         .reduction = {.dtype = DD_DTYPE_UINT8},
                         .inputs = &input,
                         .outputs = opening->blocks};
    dd_call_options options = {.timeout_ns = -1};
    return dd_group_collective_and_wait(group, &args, &options, opening->wait, err);
}

/* A rank has said something that cannot be. */
static dd_status
fail_protocol(dd_group *group, int rank, dd_error *error, dd_error *err)
{
    char who[128];
    dd_error_prepend(error, "window: %s broke the protocol", group_print_member(group, rank, who));
    window_blame(group, rank, error);
    dd_engine_lock(group->engine);
    group_fail_locked(group, error, true, DD_ANY_RANK);
    dd_engine_unlock(group->engine);
    return dd_error_copy(err, error);
}

/* What a rank could not do is everybody's failure. */
static dd_status
check_outcome(const window_opening *opening, int rank, dd_status status, dd_error *err)
{
    if (status == DD_OK) {
        return DD_OK;
    }
    char who[128];
    (void)dd_error_set(err, status, "window: %s cannot open its part: %s",
                       group_print_member(opening->group, rank, who), dd_status_text(status));
    window_blame(opening->group, rank, err);
    return status;
}

static dd_status
check_cards(window_opening *opening, dd_error *err)
{
    dd_group *group = opening->group;
    const dd_window_card *first = &opening->decoded[0];
    for (int rank = 0; rank < group->size; rank++) {
        dd_window_card *card = &opening->decoded[rank];
        dd_error error;
        if (dd_window_card_decode(opening->cards + (size_t)rank * DD_WINDOW_CARD_NBYTES, card, &error) !=
            DD_OK) {
            return fail_protocol(group, rank, &error, err);
        }
        dd_status status = check_outcome(opening, rank, card->status, err);
        if (status != DD_OK) {
            return status;
        }
        if (card->pad_nbytes != first->pad_nbytes) {
            char who[128];
            (void)dd_error_set(err, DD_MISMATCH,
                               "window: rank 0 asks for a pad of %llu bytes, %s for one of %llu",
                               (unsigned long long)first->pad_nbytes, group_print_member(group, rank, who),
                               (unsigned long long)card->pad_nbytes);
            window_blame(group, rank, err);
            return DD_MISMATCH;
        }
        opening->window->members[rank].nbytes = (size_t)card->nbytes;
    }
    opening->window->id = first->window;
    return DD_OK;
}

/* ---- mapping the memory of the others of this host */

typedef struct window_mapping {
    window_opening *opening;
    dd_error error; /* code DD_OK: nothing is wrong */
    int culprit;
} window_mapping;

/* Memory of a rank, from `offset`; NULL: not here (yet), or nonsense, which ends the mapping. */
static uint8_t *
map_locked(window_mapping *mapping, int rank, dd_window_spot spot, uint64_t nbytes)
{
    dd_group *group = mapping->opening->group;
    dd_block memory = {.data = NULL};
    dd_status status =
        group_map_region_locked(group, group->topology.local_of[rank], spot.region, &memory, &mapping->error);
    if (status == DD_OK) {
        mapping->error.code = DD_OK;
        if (memory.data == NULL || (spot.offset <= memory.nbytes && nbytes <= memory.nbytes - spot.offset)) {
            return memory.data != NULL ? (uint8_t *)memory.data + spot.offset : NULL;
        }
        (void)dd_error_set(&mapping->error, DD_PROTOCOL, "%llu bytes from %llu of a region of %zu",
                           (unsigned long long)nbytes, (unsigned long long)spot.offset, memory.nbytes);
    }
    mapping->culprit = rank;
    return NULL;
}

/* True when there is nothing more to wait for from this rank. */
static bool
map_member_locked(window_mapping *mapping, int rank)
{
    dd_window *window = mapping->opening->window;
    window_member *member = &window->members[rank];
    const dd_window_card *card = &mapping->opening->decoded[rank];
    size_t at = control_at(window->pad_nbytes);
    if (member->words == NULL && card->pad_region != 0) {
        dd_window_spot spot = {.region = card->pad_region};
        uint8_t *pad = map_locked(mapping, rank, spot, at + sizeof(window_control));
        if (pad != NULL) {
            member->words = (_Atomic uint32_t *)(void *)pad;
            member->control = (window_control *)(void *)(pad + at);
        }
    }
    bool wants_data = card->nbytes > 0 && card->data.region != 0;
    if (mapping->error.code == DD_OK && member->data == NULL && wants_data) {
        member->data = map_locked(mapping, rank, card->data, card->nbytes);
    }
    member->is_direct = member->words != NULL && (card->nbytes == 0 || member->data != NULL);
    return (member->words != NULL || card->pad_region == 0) && (member->data != NULL || !wants_data);
}

static bool
is_mapped(void *ctx)
{
    window_mapping *mapping = ctx;
    const dd_group *group = mapping->opening->group;
    bool is_all = true;
    for (int i = 0; i < group->topology.nlocal && mapping->error.code == DD_OK; i++) {
        int rank = group->topology.local_ranks[i];
        is_all = (rank == group->rank || map_member_locked(mapping, rank)) && is_all;
    }
    /* Nothing more comes from a group that has failed. */
    return is_all || mapping->error.code != DD_OK || group->cause.code != DD_OK;
}

static dd_status
map_members(window_opening *opening, dd_error *err)
{
    dd_group *group = opening->group;
    window_mapping mapping = {.opening = opening};
    mapping.error.code = DD_OK;
    if (group->arena == NULL || group->topology.nlocal < 2) {
        return DD_OK;
    }
    dd_wait patience = dd_wait_at_most(opening->wait, DESCRIPTORS_PATIENCE_NS);
    dd_status status = group_await(group, is_mapped, &mapping, &patience, err);
    if (mapping.error.code == DD_PROTOCOL) {
        return fail_protocol(group, mapping.culprit, &mapping.error, err);
    }
    if (mapping.error.code != DD_OK) {
        return dd_error_copy(err, &mapping.error);
    }
    if (status == DD_OP_TIMED_OUT) {
        DD_LOG(DD_LOG_INFO, "window of group \"%.*s\" (rank %d): not all memory of this host has come",
               (int)group->name.len, (const char *)group->name.data, group->rank);
        return DD_OK;
    }
    return status;
}

/* What the ways to the members need. */
static dd_status
equip(dd_window *window, dd_error *err)
{
    for (int rank = 0; rank < window->group->size; rank++) {
        window->has_far_members = window->has_far_members || !window->members[rank].is_direct;
    }
    size_t count = (size_t)window->nchannels * (size_t)window->group->size;
    window->tallies = dd_mem_zalloc(count * sizeof *window->tallies);
    return window->tallies == NULL ? dd_error_no_memory(err, count * sizeof *window->tallies) : DD_OK;
}

static dd_status
enter_hub(dd_window *window, dd_error *err)
{
    dd_group *group = window->group;
    dd_engine_lock(group->engine);
    dd_status status = group_check_usable_locked(group, "window", err);
    if (status == DD_OK) {
        window_hub *hub = group->windows;
        hub->nwindows = window->id > hub->nwindows ? window->id : hub->nwindows;
        dd_list_push_back(&hub->windows, &window->link);
        window->is_in_hub = true;
        if (window->has_far_members) {
            dd_engine_attend_locked(group->engine, true);
        }
    }
    dd_engine_unlock(group->engine);
    return status;
}

static void
leave_hub(dd_window *window)
{
    dd_group *group = window->group;
    if (!window->is_in_hub || dd_engine_check_fork(group->engine, NULL) != DD_OK) {
        return;
    }
    dd_engine_lock(group->engine);
    dd_engine_remove_task_locked(group->engine, &window->task);
    dd_list_remove(&window->link);
    if (window->has_far_members) {
        dd_engine_attend_locked(group->engine, false);
    }
    dd_engine_unlock(group->engine);
}

/* Its own part, and a number for it. */
static dd_status
begin(window_opening *opening, uint64_t *id, dd_error *err)
{
    dd_group *group = opening->group;
    dd_status status = check_options(group, opening->options, err);
    if (status != DD_OK) {
        return status;
    }
    dd_engine_lock(group->engine);
    status = group_check_usable_locked(group, "window", err);
    if (status == DD_OK) {
        status = window_hub_open_locked(group, err);
    }
    if (status == DD_OK) {
        *id = ++group->windows->nwindows;
    }
    dd_engine_unlock(group->engine);
    return status == DD_OK ? make_pad(opening->window, err) : status;
}

static dd_status
agree(window_opening *opening, dd_error *err)
{
    dd_error error;
    uint64_t id = 0;
    dd_status own = begin(opening, &id, &error);
    uint8_t bytes[DD_WINDOW_CARD_NBYTES];
    dd_window_card card = make_card(opening->window, own, id);
    dd_window_card_encode(&card, bytes);
    dd_status status = exchange(opening, bytes, sizeof bytes, err);
    if (status == DD_OK && own != DD_OK) {
        return dd_error_copy(err, &error);
    }
    return status == DD_OK ? check_cards(opening, err) : status;
}

/* All have it open, or nobody has. */
static dd_status
confirm(window_opening *opening, dd_status own, dd_error *own_error, dd_error *err)
{
    uint8_t bytes[4];
    dd_put_number(bytes, (uint32_t)own, 4);
    dd_status status = exchange(opening, bytes, sizeof bytes, err);
    if (own != DD_OK) {
        return dd_error_copy(err, own_error);
    }
    for (int rank = 0; rank < opening->group->size && status == DD_OK; rank++) {
        uint32_t code = (uint32_t)dd_get_number(opening->cards + (size_t)rank * sizeof bytes, sizeof bytes);
        dd_status theirs = code < DD_STATUS_COUNT ? (dd_status)code : DD_PROTOCOL;
        status = check_outcome(opening, rank, theirs, err);
    }
    return status;
}

static dd_status
open_window(window_opening *opening, dd_error *err)
{
    dd_status status = agree(opening, err);
    if (status != DD_OK) {
        return status;
    }
    dd_error error;
    dd_status own = map_members(opening, &error);
    if (own == DD_OK) {
        own = equip(opening->window, &error);
    }
    if (own == DD_OK) {
        own = enter_hub(opening->window, &error);
    }
    status = confirm(opening, own, &error, err);
    if (status != DD_OK) {
        leave_hub(opening->window);
    }
    return status;
}

/* There is not even memory to take part with: the others would wait. */
static dd_status
fail_without_memory(dd_group *group, dd_error *err)
{
    dd_error error;
    (void)dd_error_no_memory(&error, (size_t)group->size * sizeof(window_member));
    dd_error_prepend(&error, "window");
    dd_engine_lock(group->engine);
    group_fail_locked(group, &error, true, DD_ANY_RANK);
    dd_engine_unlock(group->engine);
    return dd_error_copy(err, &error);
}

dd_status
dd_window_open(dd_group *group, const dd_window_options *options, dd_window **window, const dd_wait *wait,
               dd_error *err)
{
    window_opening opening = {.options = options, .group = group, .wait = wait};
    dd_status status = dd_engine_check_fork(group->engine, err);
    if (status != DD_OK) {
        return status;
    }
    status = create(group, options, &opening.window, err);
    if (status != DD_OK) {
        return fail_without_memory(group, err);
    }
    size_t size = (size_t)group->size;
    size_t nbytes = size * (sizeof *opening.decoded + sizeof *opening.blocks + DD_WINDOW_CARD_NBYTES);
    opening.decoded = dd_mem_alloc(nbytes);
    if (opening.decoded == NULL) {
        status = fail_without_memory(group, err);
    } else {
        opening.blocks = (dd_block *)(void *)(opening.decoded + size);
        opening.cards = (uint8_t *)(opening.blocks + size);
        status = open_window(&opening, err);
    }
    dd_mem_free(opening.decoded);
    if (status != DD_OK) {
        destroy(opening.window);
        return status;
    }
    *window = opening.window;
    return DD_OK;
}

/* ---- closing */

void
dd_window_close(dd_window *window)
{
    dd_group *group = window->group;
    if (dd_engine_check_fork(group->engine, NULL) != DD_OK) {
        return;
    }
    dd_engine_lock(group->engine);
    bool is_first = atomic_load(&window->state) == WINDOW_OPEN;
    if (is_first) {
        dd_error cause;
        (void)dd_error_set(&cause, DD_CLOSED, "this rank has closed the window");
        atomic_store(&window->state, WINDOW_CLOSED);
        atomic_store(&window->members[group->rank].control->is_closed, 1);
        window_fail_waiters_locked(window, DD_ANY_RANK, &cause);
        window_serve_forget_locked(group->windows, window, NULL);
        window_note_retire_locked(window);
    }
    dd_engine_unlock(group->engine);
    for (int rank = 0; is_first && rank < group->size; rank++) {
        if (rank != group->rank && window->members[rank].is_direct) {
            window_wake(window, rank);
        }
    }
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
    leave_hub(window);
    destroy(window);
}

/* ---- what there is */

dd_window *
window_find_locked(const window_hub *hub, uint64_t id)
{
    for (dd_list *node = hub->windows.next; node != &hub->windows; node = node->next) {
        dd_window *window = DD_CONTAINER_OF(node, dd_window, link);
        if (window->id == id) {
            return atomic_load(&window->state) == WINDOW_OPEN ? window : NULL;
        }
    }
    return NULL;
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
