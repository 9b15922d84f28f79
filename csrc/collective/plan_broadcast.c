#include "collective/plan_internal.h"

/* A rank's place in a broadcast: ranks counted from the root. */
static int
place_of(const dd_builder *b)
{
    return dd_builder_at(b, b->rank, -b->args->root);
}

static int
rank_at(const dd_builder *b, int place)
{
    return (int)(((long)place + b->args->root) % b->nranks);
}

static bool
is_root(const dd_builder *b)
{
    return b->rank == b->args->root;
}

/* Where the bytes are: the root sends its input, others what they have received. */
static dd_plan_range
range_held(const dd_builder *b, dd_span bytes)
{
    return is_root(b) ? dd_range_input(0, bytes.first, bytes.count)
                      : dd_range_output(0, bytes.first, bytes.count);
}

static void
copy_on_root(dd_builder *b)
{
    if (is_root(b)) {
        size_t nbytes = b->args->outputs[0].nbytes;
        dd_builder_copy_all(b, dd_range_input(0, 0, nbytes), dd_range_output(0, 0, nbytes));
    }
}

static uint32_t
receive_segment(dd_builder *b, int from_place, size_t channel, dd_span bytes)
{
    return dd_builder_recv(b, rank_at(b, from_place), channel, dd_range_output(0, bytes.first, bytes.count));
}

/* Place p gets the array from p without its lowest bit, and gives it to p plus each lower power of two, the furthest
 * first since that one has the most to pass on. */
dd_status
dd_plan_build_broadcast_binomial(const dd_plan_task *task, dd_plan *plan, dd_error *err)
{
    dd_builder b = dd_builder_start(task, plan, err);
    int place = place_of(&b);
    long lowest = 1;
    while (place != 0 ? (place & lowest) == 0 : lowest < b.nranks) {
        lowest *= 2;
    }
    size_t nbytes = b.args->outputs[0].nbytes;
    size_t nsegments = dd_nsegments(nbytes, b.segment_nbytes);
    for (size_t s = 0; s < nsegments && b.status == DD_OK; s++) {
        dd_span bytes = dd_segment(nbytes, b.segment_nbytes, s);
        uint32_t recv = DD_NO_STEP;
        if (place != 0) {
            recv = receive_segment(&b, place - (int)lowest, s, bytes);
        }
        for (long distance = lowest / 2; distance > 0; distance /= 2) {
            if (place + distance < b.nranks) {
                int peer = rank_at(&b, place + (int)distance);
                uint32_t send = dd_builder_send(&b, peer, s, range_held(&b, bytes));
                dd_builder_after(&b, send, recv);
            }
        }
    }
    copy_on_root(&b);
    return dd_builder_finish(&b);
}

/* Each rank passes every segment on to the next. */
dd_status
dd_plan_build_broadcast_chain(const dd_plan_task *task, dd_plan *plan, dd_error *err)
{
    dd_builder b = dd_builder_start(task, plan, err);
    int place = place_of(&b);
    size_t nbytes = b.args->outputs[0].nbytes;
    size_t nsegments = dd_nsegments(nbytes, b.segment_nbytes);
    for (size_t s = 0; s < nsegments && b.status == DD_OK; s++) {
        dd_span bytes = dd_segment(nbytes, b.segment_nbytes, s);
        uint32_t recv = DD_NO_STEP;
        if (place != 0) {
            recv = receive_segment(&b, place - 1, s, bytes);
        }
        if (place + 1 < b.nranks) {
            uint32_t send = dd_builder_send(&b, rank_at(&b, place + 1), s, range_held(&b, bytes));
            dd_builder_after(&b, send, recv);
        }
    }
    copy_on_root(&b);
    return dd_builder_finish(&b);
}

/* The part of the array that the root sends to a place, which passes it on to all others but the root. */
static dd_span
part_segment(const dd_builder *b, int place, size_t s)
{
    dd_span part = dd_share_bytes(b->args->outputs[0].nbytes, b->nranks - 1, place - 1);
    dd_span bytes = dd_segment(part.count, b->segment_nbytes, s);
    bytes.first += part.first;
    return bytes;
}

static void
scatter_segment(dd_builder *b, size_t s)
{
    for (int place = 1; place < b->nranks; place++) {
        dd_builder_send(b, rank_at(b, place), s, range_held(b, part_segment(b, place, s)));
    }
}

static void
spread_segment(dd_builder *b, size_t s)
{
    int place = place_of(b);
    int nothers = b->nranks - 1;
    uint32_t recv = receive_segment(b, 0, s, part_segment(b, place, s));
    for (int distance = 1; distance < nothers; distance++) {
        int to = 1 + (place - 1 + distance) % nothers;
        uint32_t send = dd_builder_send(b, rank_at(b, to), s, range_held(b, part_segment(b, place, s)));
        dd_builder_after(b, send, recv);
    }
    for (int distance = 1; distance < nothers; distance++) {
        int from = 1 + (place - 1 - distance + nothers) % nothers;
        receive_segment(b, from, s, part_segment(b, from, s));
    }
}

/* The root sends each other rank a part, segment by segment; each passes its own on to all the others meanwhile. */
dd_status
dd_plan_build_broadcast_scatter_all_gather(const dd_plan_task *task, dd_plan *plan, dd_error *err)
{
    dd_builder b = dd_builder_start(task, plan, err);
    if (b.nranks > 1) {
        size_t largest = dd_share_bytes(b.args->outputs[0].nbytes, b.nranks - 1, 0).count;
        size_t nsegments = dd_nsegments(largest, b.segment_nbytes);
        for (size_t s = 0; s < nsegments && b.status == DD_OK; s++) {
            if (is_root(&b)) {
                scatter_segment(&b, s);
            } else {
                spread_segment(&b, s);
            }
        }
    }
    copy_on_root(&b);
    return dd_builder_finish(&b);
}
