/* Packing and unpacking compared with a loop over every index; copies. */
#include "check.h"
#include "core/cpu.h"
#include "faults/faults.h"
#include "kernels/copy.h"
#include "kernels/view.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define POOL_NBYTES (1 << 16)

static uint64_t random_state = 1;

static uint64_t
random_word(void)
{
    random_state = random_state * 6364136223846793005U + 1442695040888963407U;
    return random_state >> 33;
}

static int64_t
random_below(int64_t limit)
{
    return (int64_t)(random_word() % (uint64_t)limit);
}

static void
fill(uint8_t *bytes, size_t nbytes)
{
    for (size_t i = 0; i < nbytes; i++) {
        bytes[i] = (uint8_t)random_word();
    }
}

/* Return the byte offset of the element with this number in row-major order. */
static int64_t
offset_of(const dd_view *view, size_t number)
{
    int64_t offset = 0;
    for (int d = view->ndim - 1; d >= 0; d--) {
        offset += (int64_t)(number % (size_t)view->shape[d]) * view->strides[d];
        number /= (size_t)view->shape[d];
    }
    return offset;
}

static dd_view
make_view(void *data, dd_dtype dtype, int ndim, const int64_t *shape, const int64_t *strides)
{
    dd_view view = {.data = data, .dtype = dtype, .ndim = ndim};
    for (int d = 0; d < ndim; d++) {
        view.shape[d] = shape[d];
        view.strides[d] = strides[d];
    }
    CHECK(dd_view_finish(&view));
    return view;
}

/* Check pack and unpack of a view in the middle of a pool against a loop over every index. */
static void
check_view(dd_view *view)
{
    static uint8_t pool[POOL_NBYTES], expected[POOL_NBYTES], packed[POOL_NBYTES];
    size_t size = dd_dtype_size(view->dtype), nbytes = dd_view_nbytes(view);
    REQUIRE(nbytes < sizeof packed);
    view->data = pool + POOL_NBYTES / 2 + random_below(16);
    fill(pool, sizeof pool);
    packed[nbytes] = 0xa5;
    dd_view_pack(view, packed);
    CHECK(packed[nbytes] == 0xa5);
    for (size_t i = 0; i < view->count; i++) {
        REQUIRE(memcmp(packed + i * size, (uint8_t *)view->data + offset_of(view, i), size) == 0);
    }
    fill(packed, nbytes);
    memcpy(expected, pool, sizeof pool);
    for (size_t i = 0; i < view->count; i++) {
        memcpy(expected + ((uint8_t *)view->data - pool) + offset_of(view, i), packed + i * size, size);
    }
    dd_view_unpack(view, packed);
    CHECK(memcmp(pool, expected, sizeof pool) == 0);
}

/* Return a view whose dimensions are in a random order in memory, some with gaps, some reversed. */
static dd_view
random_view(void)
{
    dd_view view = {.dtype = (dd_dtype)random_below(DD_DTYPE_COUNT), .ndim = (int)random_below(6)};
    int order[8];
    for (int d = 0; d < view.ndim; d++) {
        int offset = (int)random_below(d + 1);
        order[d] = order[offset];
        order[offset] = d;
        view.shape[d] = random_below(40) == 0 ? 0
                                              : 1 + random_below(view.ndim > 3   ? 4
                                                                 : view.ndim > 1 ? 10
                                                                                 : 300);
    }
    int64_t stride = (int64_t)dd_dtype_size(view.dtype);
    for (int k = 0; k < view.ndim; k++) {
        int d = order[k];
        stride += random_below(4) == 0 ? stride : 0;
        view.strides[d] = random_below(4) == 0 ? -stride : stride;
        stride *= view.shape[d] > 0 ? view.shape[d] : 1;
    }
    CHECK(dd_view_finish(&view));
    return view;
}

TEST(random_strided_views_are_packed_and_unpacked_correctly)
{
    for (int i = 0; i < 4000; i++) {
        dd_view view = random_view();
        if (dd_view_nbytes(&view) < POOL_NBYTES / 32) {
            check_view(&view);
        }
    }
}

TEST(transposed_matrices_are_packed_and_unpacked_correctly)
{
    static const dd_dtype dtypes[] = {DD_DTYPE_INT8, DD_DTYPE_FLOAT16, DD_DTYPE_FLOAT32, DD_DTYPE_INT64,
                                      DD_DTYPE_COMPLEX128};
    for (size_t t = 0; t < sizeof dtypes / sizeof dtypes[0]; t++) {
        int64_t size = (int64_t)dd_dtype_size(dtypes[t]);
        for (int64_t rows = 1; rows < 100; rows += 31) {
            for (int64_t columns = 1; columns < 20; columns += 6) {
                dd_view view =
                    make_view(NULL, dtypes[t], 2, (int64_t[]){rows, columns}, (int64_t[]){size, rows * size});
                check_view(&view);
            }
        }
    }
}

TEST(views_with_zero_strides_repeat_their_elements)
{
    uint8_t packed[24];
    uint16_t row[3] = {1, 2, 3};
    dd_view view = make_view(row, DD_DTYPE_UINT16, 2, (int64_t[]){4, 3}, (int64_t[]){0, 2});
    CHECK(!view.is_contiguous);
    dd_view_pack(&view, packed);
    for (size_t i = 0; i < 4; i++) {
        CHECK(memcmp(packed + i * sizeof row, row, sizeof row) == 0);
    }
    view = make_view(row, DD_DTYPE_UINT16, 2, (int64_t[]){3, 4}, (int64_t[]){2, 0});
    dd_view_pack(&view, packed);
    CHECK(packed[0] == 1 && packed[6] == 1 && packed[8] == 2 && packed[22] == 3);
}

TEST(contiguous_views_are_detected)
{
    dd_view view = make_view(NULL, DD_DTYPE_FLOAT32, 0, NULL, NULL);
    CHECK(view.count == 1 && view.is_contiguous);
    view = make_view(NULL, DD_DTYPE_FLOAT32, 3, (int64_t[]){2, 1, 3}, (int64_t[]){12, -999, 4});
    CHECK(view.count == 6 && view.is_contiguous && dd_view_nbytes(&view) == 24);
    view = make_view(NULL, DD_DTYPE_FLOAT32, 2, (int64_t[]){2, 3}, (int64_t[]){16, 4});
    CHECK(!view.is_contiguous);
    view = make_view(NULL, DD_DTYPE_FLOAT32, 2, (int64_t[]){1, 1}, (int64_t[]){7, 7});
    CHECK(view.count == 1 && view.is_contiguous);
    view = make_view(NULL, DD_DTYPE_FLOAT32, 2, (int64_t[]){INT64_MAX, 0}, (int64_t[]){7, 7});
    CHECK(view.count == 0 && view.is_contiguous);
    dd_view_pack(&view, NULL);
    dd_view_unpack(&view, NULL);
}

TEST(views_with_an_invalid_shape_are_refused)
{
    dd_view view = {.dtype = DD_DTYPE_INT16, .ndim = 2, .shape = {1 << 30, INT64_C(1) << 33}};
    CHECK(!dd_view_finish(&view));
    view = (dd_view){.dtype = DD_DTYPE_INT8, .ndim = 3, .shape = {0, 2, -1}};
    CHECK(!dd_view_finish(&view));
    view = (dd_view){.dtype = DD_DTYPE_INT8, .ndim = DD_VIEW_MAX_DIMS + 1};
    CHECK(!dd_view_finish(&view));
    view = (dd_view){.dtype = DD_DTYPE_INT8, .ndim = -1};
    CHECK(!dd_view_finish(&view));
}

static void
copy_every_length(void)
{
    static uint8_t src[10000], dst[10000];
    fill(src, sizeof src);
    for (size_t nbytes = 0; nbytes < 9000; nbytes += nbytes < 70 ? 1 : 61) {
        size_t to = nbytes % 7, from = nbytes % 5;
        memset(dst, 0, sizeof dst);
        dd_copy(dst + 1 + to, src + from, nbytes);
        CHECK(memcmp(dst + 1 + to, src + from, nbytes) == 0);
        CHECK(dst[to] == 0 && dst[1 + to + nbytes] == 0);
        memset(dst, 0, sizeof dst);
        dd_copy_streaming(dst + 1 + to, src + from, nbytes);
        CHECK(memcmp(dst + 1 + to, src + from, nbytes) == 0);
        CHECK(dst[to] == 0 && dst[1 + to + nbytes] == 0);
    }
    dd_copy(NULL, NULL, 0);
    dd_copy_streaming(NULL, NULL, 0);
}

/* Copy by each of the ways that processors offer. */
TEST(copies_of_every_length_are_exact)
{
    static const unsigned hidden[] = {0, DD_CPU_STRING_COPY, DD_CPU_AVX2, DD_CPU_AVX2 | DD_CPU_STRING_COPY};
    for (size_t i = 0; i < sizeof hidden / sizeof hidden[0]; i++) {
        dd_cpu_hide_features(hidden[i]);
        CHECK_INT(dd_cpu_features() & hidden[i], 0);
        copy_every_length();
    }
    dd_cpu_hide_features(0);
}
