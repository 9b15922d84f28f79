/* put, get and flush. */
#include "group/window_internal.h"

#include "core/mem.h"
#include "kernels/copy.h"

#include <string.h>

static dd_status
check_place(const dd_window *window, const char *what, dd_window_place place, size_t nbytes, dd_error *err)
{
    size_t room = window->members[place.rank].nbytes;
    if (place.offset <= room && nbytes <= room - place.offset) {
        return DD_OK;
    }
    (void)dd_error_set(err, DD_INVALID_ARGUMENT, "%zu bytes from %zu, where rank %d has %zu", nbytes,
                       place.offset, place.rank, room);
    window_describe(window, what, err);
    return DD_INVALID_ARGUMENT;
}

static dd_status
check(dd_window *window, const char *what, dd_window_place place, size_t nbytes, int channel, dd_error *err)
{
    dd_status status = window_check_open(window, what, place.rank, channel, err);
    return status == DD_OK ? check_place(window, what, place, nbytes, err) : status;
}

/* A rank may move data within what it sees. */
static void
copy(void *dst, const void *src, size_t nbytes)
{
    uintptr_t to = (uintptr_t)dst;
    uintptr_t from = (uintptr_t)src;
    if (to < from + nbytes && from < to + nbytes) {
        memmove(dst, src, nbytes);
    } else {
        dd_copy(dst, src, nbytes);
    }
}

static void
put_direct(dd_window *window, dd_block source, dd_window_place to, int channel)
{
    if (source.nbytes > 0) {
        copy(window->members[to.rank].data + to.offset, source.data, source.nbytes);
    }
    if (channel != DD_NO_CHANNEL) {
        window_signal_direct(window, to.rank, channel);
    }
}

static void
get_direct(const dd_window *window, dd_block target, dd_window_place from)
{
    if (target.nbytes > 0) {
        copy(target.data, window->members[from.rank].data + from.offset, target.nbytes);
    }
}

/* ---- calls */

/* So much of small puts is copied and sent in the background; beyond it they wait until theirs is with the transport. */
#define KEPT_MAX ((size_t)1 << 20)

static dd_status
create_call(dd_window *window, const char *what, const dd_call_options *options, int64_t limit_ns,
            window_call **out, dd_error *err)
{
    window_call *call = dd_mem_alloc(sizeof *call);
    if (call == NULL) {
        return dd_error_no_memory(err, sizeof *call);
    }
    group_init_call(&call->base, window->group, what, options, dd_clock_now_ns(), limit_ns);
    call->base.work.destroy = group_destroy_call;
    dd_list_init(&call->asking);
    call->window = window->id;
    call->target = NULL;
    call->nbytes = 0;
    call->is_held = false;
    *out = call;
    return DD_OK;
}

static void
complete(window_call *call, const dd_error *cause)
{
    if (!dd_work_is_done(&call->base.work)) {
        dd_group *group = call->base.group;
        group_complete_locked(&call->base, cause);
        group_update_task_locked(group);
    }
}

void
window_call_answer_locked(window_call *call, const dd_error *cause)
{
    complete(call, cause);
    if (!dd_list_is_empty(&call->asking)) {
        dd_list_remove(&call->asking);
        call->base.group->windows->nheld -= call->is_held ? 1 : 0;
        dd_context_expect_locked(call->base.group->context, call->rank, false);
        dd_work_release(&call->base.work);
    }
}

void
window_call_ask_next_locked(window_source *source)
{
    window_hub *hub = source->hub;
    if (hub->nheld == 0 || source->nasked >= WINDOW_GETS_MAX) {
        return;
    }
    for (dd_list *node = hub->questions.next; node != &hub->questions; node = node->next) {
        window_call *call = DD_CONTAINER_OF(node, window_call, asking);
        if (call->is_held && call->rank == source->rank) {
            window_order order = {.rank = call->rank, .note = call->note};
            call->is_held = false;
            hub->nheld--;
            source->nasked++;
            window_note_post_or_fail_locked(hub, &order);
            return;
        }
    }
}

void
window_call_give_up_locked(window_call *call, const dd_error *cause)
{
    window_hub *hub = call->base.group->windows;
    bool is_put = dd_list_is_empty(&call->asking);
    if (is_put) {
        window_note_detach_put_locked(hub, call);
        complete(call, cause);
        return;
    }
    if (call->is_held) {
        window_call_answer_locked(call, cause);
        return;
    }
    call->target = NULL;
    complete(call, cause);
    window_serve_forget_locked(hub, NULL, call);
}

/* From now on the group looks after it. Its note is posted with it, unless it is held, or it is not begun. */
static dd_status
begin_locked(dd_window *window, window_call *call, window_order *order, dd_work **work, dd_error *err)
{
    dd_group *group = window->group;
    window_hub *hub = group->windows;
    dd_status status = window_check_far_locked(window, order->rank, err);
    if (status == DD_OK && !call->is_held) {
        status = window_note_post_locked(hub, order, err);
    }
    if (status != DD_OK) {
        return status;
    }
    call->rank = order->rank;
    *work = dd_work_acquire(&call->base.work);
    dd_list_push_back(&hub->calls, &call->base.link);
    group_note_deadline_locked(group, call->base.deadline_ns);
    return DD_OK;
}

static dd_status
begin_put_locked(dd_window *window, window_call *call, window_order *order, dd_work **work, dd_error *err)
{
    bool is_kept = !dd_window_note_has_data(&order->note) && window->group->windows->kept_nbytes < KEPT_MAX;
    order->put = is_kept ? NULL : call;
    dd_status status = begin_locked(window, call, order, work, err);
    if (status != DD_OK) {
        return status;
    }
    window->members[order->rank].nputs += order->note.nbytes > 0 ? 1 : 0;
    if (order->note.channel != DD_WINDOW_NO_CHANNEL) {
        window->tallies[window_word(window, (int)order->note.channel, order->rank)].nsent++;
    }
    if (is_kept) {
        complete(call, NULL);
    }
    return DD_OK;
}

static dd_status
begin_get_locked(dd_window *window, window_call *call, window_order *order, dd_work **work, dd_error *err)
{
    window_hub *hub = window->group->windows;
    window_source *source = window_serve_source_locked(hub, order->rank);
    if (source == NULL) {
        return dd_error_no_memory(err, sizeof *source);
    }
    call->id = ++hub->nquestions;
    order->note.id = call->id;
    call->is_held = source->nasked >= WINDOW_GETS_MAX;
    call->note = order->note;
    dd_status status = begin_locked(window, call, order, work, err);
    if (status == DD_OK) {
        hub->nheld += call->is_held ? 1 : 0;
        source->nasked += call->is_held ? 0 : 1;
        (void)dd_work_acquire(&call->base.work);
        dd_list_push_back(&hub->questions, &call->asking);
        dd_context_expect_locked(window->group->context, call->rank, true);
    }
    return status;
}

/* What is wanted of a rank that is reached by notes. */
typedef struct window_request {
    const char *what;
    bool is_put;
    window_order order;
    void *target; /* of a get */
} window_request;

static dd_status
post(dd_window *window, window_request *request, const dd_call_options *options, int64_t limit_ns,
     dd_work **work, dd_error *err)
{
    window_call *call = NULL;
    dd_status status = create_call(window, request->what, options, limit_ns, &call, err);
    if (status != DD_OK) {
        return status;
    }
    call->target = request->target;
    call->nbytes = request->is_put ? 0 : (size_t)request->order.note.nbytes;
    dd_engine_lock(window->group->engine);
    status = request->is_put ? begin_put_locked(window, call, &request->order, work, err)
                             : begin_get_locked(window, call, &request->order, work, err);
    dd_engine_unlock(window->group->engine);
    if (status != DD_OK) {
        dd_mem_free(call);
        window_describe(window, request->what, err);
    }
    return status;
}

/* Until it is done, which its deadline sees to; who is interrupted leaves it. Lets the work go. */
static dd_status
finish(dd_window *window, dd_work *work, const dd_wait *wait, dd_error *err)
{
    dd_group *group = window->group;
    dd_wait until_done = *wait;
    until_done.deadline_ns = DD_NEVER_NS;
    dd_status status = DD_OK;
    if (dd_work_is_done(work)) {
        dd_engine_kick(group->engine); /* it may still be on its way */
    } else {
        status = dd_engine_wait(group->engine, &work->is_done, &until_done, err);
    }
    if (status == DD_OK) {
        status = dd_work_result(work, err);
    } else {
        dd_error cause;
        (void)dd_error_set(&cause, DD_ABORTED, "its caller was interrupted");
        dd_engine_lock(group->engine);
        if (!dd_work_is_done(work)) {
            window_call_give_up_locked((window_call *)DD_CONTAINER_OF(work, group_call, work), &cause);
        }
        dd_engine_unlock(group->engine);
    }
    status = window_find_cause(window, work->what, status, err);
    dd_work_release(work);
    return status;
}

/* The deadline of the wait is the only one. */
static const dd_call_options by_the_wait = {.timeout_ns = INT64_MAX};

static dd_status
run(dd_window *window, window_request *request, const dd_wait *wait, dd_error *err)
{
    dd_work *work = NULL;
    dd_status status = post(window, request, &by_the_wait, wait->deadline_ns, &work, err);
    return status == DD_OK ? finish(window, work, wait, err) : status;
}

/* A work that is done. */
static dd_status
post_done(dd_window *window, const char *what, const dd_call_options *options, dd_work **work, dd_error *err)
{
    window_call *call = NULL;
    dd_status status = create_call(window, what, options, DD_NEVER_NS, &call, err);
    if (status == DD_OK) {
        (void)dd_work_complete(&call->base.work, NULL);
        *work = &call->base.work;
    }
    return status;
}

/* ---- put and get */

static window_request
make_put(const dd_window *window, dd_block source, dd_window_place to, int channel)
{
    return (window_request){
        .what = "put",
        .is_put = true,
        .order = {.rank = to.rank,
                  .note = {.type = DD_WINDOW_PUT,
                           .channel = channel == DD_NO_CHANNEL ? DD_WINDOW_NO_CHANNEL : (uint32_t)channel,
                           .window = window->id,
                           .offset = to.offset,
                           .nbytes = source.nbytes},
                  .data = source.data},
    };
}

static window_request
make_get(const dd_window *window, const char *what, dd_block target, dd_window_place from)
{
    return (window_request){
        .what = what,
        .order = {.rank = from.rank,
                  .note = {.type = DD_WINDOW_GET,
                           .window = window->id,
                           .offset = from.offset,
                           .nbytes = target.nbytes}},
        .target = target.data,
    };
}

dd_status
dd_window_put(dd_window *window, dd_block source, dd_window_place to, int channel, const dd_wait *wait,
              dd_error *err)
{
    dd_status status = check(window, "put", to, source.nbytes, channel, err);
    if (status != DD_OK) {
        return status;
    }
    if (window->members[to.rank].is_direct) {
        put_direct(window, source, to, channel);
        return DD_OK;
    }
    window_request request = make_put(window, source, to, channel);
    return run(window, &request, wait, err);
}

dd_status
dd_window_get(dd_window *window, dd_block target, dd_window_place from, const dd_wait *wait, dd_error *err)
{
    dd_status status = check(window, "get", from, target.nbytes, DD_NO_CHANNEL, err);
    if (status != DD_OK) {
        return status;
    }
    if (window->members[from.rank].is_direct) {
        get_direct(window, target, from);
        return DD_OK;
    }
    window_request request = make_get(window, "get", target, from);
    return run(window, &request, wait, err);
}

dd_status
dd_window_post_put(dd_window *window, dd_block source, dd_window_place to, int channel,
                   const dd_call_options *options, dd_work **work, dd_error *err)
{
    dd_status status = check(window, "put", to, source.nbytes, channel, err);
    if (status != DD_OK) {
        return status;
    }
    if (!window->members[to.rank].is_direct) {
        window_request request = make_put(window, source, to, channel);
        return post(window, &request, options, DD_NEVER_NS, work, err);
    }
    status = post_done(window, "put", options, work, err);
    if (status == DD_OK) {
        put_direct(window, source, to, channel);
    }
    return status;
}

dd_status
dd_window_post_get(dd_window *window, dd_block target, dd_window_place from, const dd_call_options *options,
                   dd_work **work, dd_error *err)
{
    dd_status status = check(window, "get", from, target.nbytes, DD_NO_CHANNEL, err);
    if (status != DD_OK) {
        return status;
    }
    if (!window->members[from.rank].is_direct) {
        window_request request = make_get(window, "get", target, from);
        return post(window, &request, options, DD_NEVER_NS, work, err);
    }
    get_direct(window, target, from);
    return post_done(window, "get", options, work, err);
}

/* ---- flush: a get of nothing, which comes behind all puts */

typedef struct window_flush {
    dd_work *work; /* NULL: there is nothing to wait for */
    uint64_t nputs;
} window_flush;

static dd_status
post_flush(dd_window *window, int rank, window_flush *flush, const dd_wait *wait, dd_error *err)
{
    const window_member *member = &window->members[rank];
    dd_engine_lock(window->group->engine);
    *flush = (window_flush){.nputs = member->nputs};
    bool is_needed = member->nputs != member->nflushed;
    dd_engine_unlock(window->group->engine);
    if (!is_needed) {
        return DD_OK;
    }
    window_request request =
        make_get(window, "flush", (dd_block){.data = NULL}, (dd_window_place){.rank = rank});
    return post(window, &request, &by_the_wait, wait->deadline_ns, &flush->work, err);
}

static dd_status
finish_flush(dd_window *window, int rank, const window_flush *flush, const dd_wait *wait, dd_error *err)
{
    dd_status status = flush->work != NULL ? finish(window, flush->work, wait, err) : DD_OK;
    if (status == DD_OK) {
        window_member *member = &window->members[rank];
        dd_engine_lock(window->group->engine);
        member->nflushed = flush->nputs > member->nflushed ? flush->nputs : member->nflushed;
        dd_engine_unlock(window->group->engine);
    }
    return status;
}

/* All are asked, and then waited for. The first failure is told. */
static dd_status
flush_all(dd_window *window, window_flush *flushes, const dd_wait *wait, dd_error *err)
{
    int size = window->group->size;
    dd_error error;
    dd_status status = DD_OK;
    int nposted = 0;
    while (nposted < size && status == DD_OK) {
        status = post_flush(window, nposted, &flushes[nposted], wait, &error);
        nposted += status == DD_OK ? 1 : 0;
    }
    for (int rank = 0; rank < nposted; rank++) {
        dd_error own;
        dd_status ended = finish_flush(window, rank, &flushes[rank], wait, &own);
        if (ended != DD_OK && status == DD_OK) {
            status = ended;
            error = own;
        }
    }
    return status == DD_OK ? DD_OK : dd_error_copy(err, &error);
}

dd_status
dd_window_flush(dd_window *window, const dd_wait *wait, dd_error *err)
{
    dd_status status = window_check(window, "flush", window->group->rank, DD_NO_CHANNEL, err);
    if (status != DD_OK || !window->has_far_members) {
        return status;
    }
    size_t size = (size_t)window->group->size;
    window_flush *flushes = dd_mem_alloc_array(size, sizeof *flushes);
    if (flushes == NULL) {
        return dd_error_no_memory(err, size * sizeof *flushes);
    }
    status = flush_all(window, flushes, wait, err);
    dd_mem_free(flushes);
    return status;
}
