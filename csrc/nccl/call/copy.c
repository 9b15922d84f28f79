/* Copies between tensors of any layout, as rectangles that the driver copies (cuMemcpy2D).
 *
 * Dimensions of length 1 are dropped, and neighbouring dimensions are joined if they are adjacent
 * in both tensors. A dimension that is contiguous in both tensors becomes a row. Of the others, the
 * longest with forward steps in both tensors makes a rectangle of rows. A loop covers the rest. */
#include "nccl/call/internal.h"

/* Largest pitch (bytes between rows) that all devices allow. Longer steps need a loop. */
#define MAX_PITCH INT64_C(0x7fffffff)

typedef struct copy_dim {
    int64_t length;
    int64_t src; /* step in the source in bytes; `dst` is the step in the target */
    int64_t dst;
} copy_dim;

typedef struct copy_plan {
    char *src;
    char *dst;
    size_t width; /* size of a row in bytes */
    copy_dim rows;
    int ndim; /* number of dimensions in `dims`, over which a loop runs */
    copy_dim dims[DD_VIEW_MAX_DIMS];
    int64_t index[DD_VIEW_MAX_DIMS];
} copy_plan;

/* Return a view's strides in bytes; a contiguous view has none, so compute them. */
static void
strides_of(const dd_view *view, int64_t strides[DD_VIEW_MAX_DIMS])
{
    int64_t packed = (int64_t)dd_dtype_size(view->dtype);
    for (int d = view->ndim - 1; d >= 0; d--) {
        strides[d] = view->is_contiguous ? packed : view->strides[d];
        packed *= view->shape[d];
    }
}

/* Drop and join dimensions (see above). Reverse a dimension if both tensors step backwards. */
static void
join_dims(copy_plan *plan, const dd_nccl_copy *copy)
{
    int64_t src[DD_VIEW_MAX_DIMS] = {0};
    int64_t dst[DD_VIEW_MAX_DIMS] = {0};
    strides_of(&copy->src, src);
    strides_of(&copy->dst, dst);
    for (int d = 0; d < copy->src.ndim; d++) {
        copy_dim next = {.length = copy->src.shape[d], .src = src[d], .dst = dst[d]};
        if (next.length == 1) {
            continue;
        }
        if (next.src < 0 && next.dst < 0) {
            plan->src += next.src * (next.length - 1);
            plan->dst += next.dst * (next.length - 1);
            next.src = -next.src;
            next.dst = -next.dst;
        }
        copy_dim *last = plan->ndim > 0 ? &plan->dims[plan->ndim - 1] : NULL;
        if (last != NULL && last->src == next.length * next.src && last->dst == next.length * next.dst) {
            next.length *= last->length;
            *last = next;
        } else {
            plan->dims[plan->ndim++] = next;
        }
    }
}

static void
remove_dim(copy_plan *plan, int d)
{
    for (int i = d; i + 1 < plan->ndim; i++) {
        plan->dims[i] = plan->dims[i + 1];
    }
    plan->ndim--;
}

/* Choose the dimensions for the row and for the rectangle, and remove both from `dims`. */
static void
choose_rectangle(copy_plan *plan, size_t element)
{
    plan->width = element;
    for (int d = 0; d < plan->ndim; d++) {
        const copy_dim *dim = &plan->dims[d];
        if (dim->src == (int64_t)element && dim->dst == (int64_t)element) {
            plan->width = element * (size_t)dim->length;
            remove_dim(plan, d);
            break;
        }
    }
    plan->rows = (copy_dim){.length = 1};
    int best = -1;
    int64_t width = (int64_t)plan->width;
    for (int d = 0; d < plan->ndim; d++) {
        const copy_dim *dim = &plan->dims[d];
        bool is_forward =
            dim->src >= width && dim->dst >= width && dim->src <= MAX_PITCH && dim->dst <= MAX_PITCH;
        if (is_forward && (best < 0 || dim->length > plan->dims[best].length)) {
            best = d;
        }
    }
    if (best >= 0) {
        plan->rows = plan->dims[best];
        remove_dim(plan, best);
    }
}

/* Advance to the next rectangle. Return false after the last one. */
static bool
copy_next(copy_plan *plan)
{
    for (int d = plan->ndim - 1; d >= 0; d--) {
        const copy_dim *dim = &plan->dims[d];
        plan->src += dim->src;
        plan->dst += dim->dst;
        if (++plan->index[d] < dim->length) {
            return true;
        }
        plan->src -= dim->src * dim->length;
        plan->dst -= dim->dst * dim->length;
        plan->index[d] = 0;
    }
    return false;
}

static dd_cuda_result
copy_rectangle(const dd_cuda *cuda, dd_cuda_stream stream, const copy_plan *plan)
{
    if (plan->rows.length == 1) {
        return cuda->api.cuMemcpyAsync((dd_cuda_ptr)(uintptr_t)plan->dst, (dd_cuda_ptr)(uintptr_t)plan->src,
                                       plan->width, stream);
    }
    dd_cuda_copy_2d rectangle = {
        .srcMemoryType = DD_CUDA_MEMORY_UNIFIED,
        .srcDevice = (dd_cuda_ptr)(uintptr_t)plan->src,
        .srcPitch = (size_t)plan->rows.src,
        .dstMemoryType = DD_CUDA_MEMORY_UNIFIED,
        .dstDevice = (dd_cuda_ptr)(uintptr_t)plan->dst,
        .dstPitch = (size_t)plan->rows.dst,
        .WidthInBytes = plan->width,
        .Height = (size_t)plan->rows.length,
    };
    return cuda->api.cuMemcpy2DAsync(&rectangle, stream);
}

dd_status
nccl_copy_enqueue(const dd_cuda *cuda, dd_cuda_stream stream, const dd_nccl_copy *copy, dd_error *err)
{
    if (copy->src.count == 0) {
        return DD_OK;
    }
    copy_plan plan = {.src = copy->src.data, .dst = copy->dst.data};
    size_t element = dd_dtype_size(copy->src.dtype);
    join_dims(&plan, copy);
    choose_rectangle(&plan, element);
    do {
        dd_cuda_result result = copy_rectangle(cuda, stream, &plan);
        if (result != DD_CUDA_SUCCESS) {
            return dd_cuda_check(cuda, result, err, "copying %zu bytes, %lld rows of %zu",
                                 copy->src.count * element, (long long)plan.rows.length, plan.width);
        }
    } while (copy_next(&plan));
    return DD_OK;
}
