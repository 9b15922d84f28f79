/* Copies around operations: random tensors with any layout, compared with copies on the host. */
#include "check.h"
#include "nccl_rig.h"

#include <stdlib.h>
#include <string.h>

#define ROOM 4096

static unsigned
draw(unsigned *state, unsigned n)
{
    *state = *state * 1664525u + 1013904223u;
    return (*state >> 10) % n;
}

/* Return a view of `shape` within ROOM bytes: dimensions in any order in memory, with gaps, some
 * reversed; some dimensions of a source repeat. */
static dd_view
make_view(unsigned *state, char *memory, const dd_view *shape, bool is_source)
{
    dd_view view = *shape;
    int64_t step = (int64_t)dd_dtype_size(view.dtype);
    view.data = memory;
    int order[4] = {0, 1, 2, 3};
    for (int d = view.ndim - 1; d > 0; d--) {
        int other = (int)draw(state, (unsigned)d + 1);
        int kept = order[d];
        order[d] = order[other];
        order[other] = kept;
    }
    for (int i = 0; i < view.ndim; i++) {
        int d = order[i];
        view.strides[d] = step;
        step *= view.shape[d] + (int64_t)draw(state, 2);
        if (draw(state, 3) == 0) {
            view.data = (char *)view.data + view.strides[d] * (view.shape[d] - 1);
            view.strides[d] = -view.strides[d];
        } else if (is_source && draw(state, 4) == 0) {
            view.strides[d] = 0;
        }
    }
    CHECK(dd_view_finish(&view) && step <= ROOM);
    return view;
}

static void
copies_body(nccl_rig_rank *self)
{
    static const dd_dtype dtypes[] = {DD_DTYPE_INT8, DD_DTYPE_FLOAT16, DD_DTYPE_INT32, DD_DTYPE_COMPLEX128};
    unsigned state = 12345;
    char *device = nccl_rig_alloc(self, 2 * ROOM);
    char *host = malloc(ROOM);
    char expected[ROOM];
    char packed[ROOM];
    for (int i = 0; i < 600; i++) {
        dd_view shape = {.dtype = dtypes[draw(&state, 4)], .ndim = (int)draw(&state, 5)};
        for (int d = 0; d < shape.ndim; d++) {
            shape.shape[d] = (int64_t)(i % 50 == 0 ? 0 : 1 + draw(&state, 3));
        }
        for (int k = 0; k < ROOM; k++) {
            device[k] = host[k] = (char)draw(&state, 256);
        }
        /* One of the two may be host memory. */
        dd_nccl_copy copy = {.src = make_view(&state, i % 3 == 0 ? host : device, &shape, true),
                             .dst = make_view(&state, i % 3 == 1 ? host : device + ROOM, &shape, false)};
        char *target = i % 3 == 1 ? host : device + ROOM;
        memset(target, 0, ROOM);
        memset(expected, 0, ROOM);
        dd_view_pack(&copy.src, packed);
        dd_view mirror = copy.dst;
        mirror.data = expected + ((char *)copy.dst.data - target);
        dd_view_unpack(&mirror, packed);
        dd_nccl_call call = nccl_rig_call(self, "copy", NULL, 0);
        call.before = &copy;
        call.nbefore = 1;
        CHECK_OK(nccl_rig_do(self, &call, check_err()));
        if (!CHECK(memcmp(target, expected, ROOM) == 0)) {
            break;
        }
    }
    /* no communicator was needed */
    CHECK(dd_nccl_group_find_comm(self->group, self->rank) == NULL);
    free(host);
    nccl_rig_free(self, device);
}

TEST(copies_of_random_strided_tensors_are_exact)
{
    nccl_rig_run(&(nccl_rig_options){.size = 1}, copies_body, NULL);
}
