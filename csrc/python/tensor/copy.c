/* Copying, converting or reducing the elements of one tensor into another. */
#include "core/mem.h"
#include "kernels/convert.h"
#include "kernels/reduce.h"
#include "python/base/params.h"
#include "python/tensor/tensor.h"

/* Smaller transfers keep the GIL, because releasing and retaking the GIL would take longer. */
#define GIL_RELEASE_MIN_BYTES ((size_t)32768)

typedef struct tensor_transfer tensor_transfer;

/* Copy, convert or reduce `src` into `dst`. `src` must have as many elements as `dst`, in row-major
 * order. Return false if memory runs out. */
typedef bool transfer_fn(const tensor_transfer *t, const dd_view *dst, const void *src, dd_dtype src_dtype);

/* A table row that describes one of the module's functions. */
struct tensor_transfer {
    const char *function;
    const char *dst; /* name of the first parameter */
    const char *src;
    transfer_fn *run;
    bool (*is_supported)(const tensor_transfer *t, dd_dtype dst, dd_dtype src);
    dd_redop op; /* the reduction; used only by run_reduce */
};

static bool
is_same_dtype(const tensor_transfer *Py_UNUSED(t), dd_dtype dst, dd_dtype src)
{
    return dst == src;
}

static bool
run_copy(const tensor_transfer *Py_UNUSED(t), const dd_view *dst, const void *src,
         dd_dtype Py_UNUSED(src_dtype))
{
    dd_view_unpack(dst, src);
    return true;
}

static bool
is_convertible(const tensor_transfer *Py_UNUSED(t), dd_dtype dst, dd_dtype src)
{
    return dst == src || dd_convert_is_supported(dst, src);
}

static bool
run_convert(const tensor_transfer *Py_UNUSED(t), const dd_view *dst, const void *src, dd_dtype src_dtype)
{
    if (dst->is_contiguous) {
        dd_convert(dst->dtype, dst->data, src_dtype, src, dst->count);
        return true;
    }
    void *converted = dd_mem_alloc(dd_view_nbytes(dst));
    if (converted == NULL) {
        return false;
    }
    dd_convert(dst->dtype, converted, src_dtype, src, dst->count);
    dd_view_unpack(dst, converted);
    dd_mem_free(converted);
    return true;
}

static bool
is_reducible(const tensor_transfer *t, dd_dtype dst, dd_dtype src)
{
    return dst == src && dd_reduce_is_supported(dst, t->op);
}

/* For AVG and PREMUL_SUM, only add: the rank with the complete sum divides or multiplies once. */
static void
transfer_reduce(const tensor_transfer *t, dd_dtype dtype, void *result, const void *src, size_t count)
{
    bool is_sum = t->op == DD_REDOP_AVG || t->op == DD_REDOP_PREMUL_SUM;
    dd_reduction reduction = {.dtype = dtype, .op = is_sum ? DD_REDOP_SUM : t->op};
    const void *sources[] = {result, src};
    dd_reduce(&reduction, DD_STAGE_WHOLE, result, sources, 2, count);
}

static bool
run_reduce(const tensor_transfer *t, const dd_view *dst, const void *src, dd_dtype Py_UNUSED(src_dtype))
{
    if (dst->is_contiguous) {
        transfer_reduce(t, dst->dtype, dst->data, src, dst->count);
        return true;
    }
    void *result = dd_mem_alloc(dd_view_nbytes(dst));
    if (result == NULL) {
        return false;
    }
    dd_view_pack(dst, result);
    transfer_reduce(t, dst->dtype, result, src, dst->count);
    dd_view_unpack(dst, result);
    dd_mem_free(result);
    return true;
}

/* Find the addresses of the view's first byte and of the end of its last byte in memory. */
static void
find_extent(const dd_view *view, uintptr_t *begin, uintptr_t *end)
{
    *begin = (uintptr_t)view->data;
    *end = *begin + dd_dtype_size(view->dtype);
    for (int d = 0; d < view->ndim; d++) {
        int64_t span = view->strides[d] * (view->shape[d] - 1);
        *(span < 0 ? begin : end) += (uintptr_t)span;
    }
    if (view->is_contiguous) {
        *begin = (uintptr_t)view->data;
        *end = *begin + dd_view_nbytes(view);
    }
}

static bool
is_sharing_memory(const dd_view *a, const dd_view *b)
{
    uintptr_t a_begin, a_end, b_begin, b_end;
    find_extent(a, &a_begin, &a_end);
    find_extent(b, &b_begin, &b_end);
    return a_begin < b_end && b_begin < a_end;
}

static bool
is_same_memory(const dd_view *a, const dd_view *b)
{
    return a->data == b->data && a->dtype == b->dtype && a->is_contiguous && b->is_contiguous;
}

/* Transfer the elements of `src` to `dst`. Return false, without an exception, if memory runs out.
 * May be called without the GIL. */
static bool
transfer_views(const tensor_transfer *t, const dd_view *dst, const dd_view *src)
{
    if (t->run != run_reduce && is_same_memory(dst, src)) {
        return true;
    }
    bool is_shared = is_sharing_memory(dst, src);
    if (src->is_contiguous && !is_shared) {
        return t->run(t, dst, src->data, src->dtype);
    }
    if (t->run == run_copy && dst->is_contiguous && !is_shared) {
        dd_view_pack(src, dst->data);
        return true;
    }
    void *packed = dd_mem_alloc(dd_view_nbytes(src));
    if (packed == NULL) {
        return false;
    }
    dd_view_pack(src, packed);
    bool is_done = t->run(t, dst, packed, src->dtype);
    dd_mem_free(packed);
    return is_done;
}

static bool
check_pair(const tensor_transfer *t, const py_state *state, const py_tensor *dst, const py_tensor *src)
{
    if (!py_tensor_require_cpu(dst, state, t->function, t->dst) ||
        !py_tensor_require_cpu(src, state, t->function, t->src)) {
        return false;
    }
    if (dst->view.count != src->view.count || dst->foreign_dtype != src->foreign_dtype ||
        !t->is_supported(t, dst->view.dtype, src->view.dtype)) {
        bool is_reduction = t->run == run_reduce && dst->view.dtype == src->view.dtype;
        if (is_reduction && dst->view.count == src->view.count) {
            PyErr_Format(state->errors[PY_ERROR_ARGUMENT], "%s(): reduction %s does not support dtype %s",
                         t->function, dd_redop_name(t->op), dd_dtype_name(dst->view.dtype));
            return false;
        }
        PyErr_Format(state->errors[PY_ERROR_ARGUMENT], "%s(): got %zu elements of %s, expected %zu of %s",
                     t->function, src->view.count, py_tensor_dtype_name(src, (char[PY_DTYPE_TEXT]){""}),
                     dst->view.count, py_tensor_dtype_name(dst, (char[PY_DTYPE_TEXT]){""}));
        return false;
    }
    return true;
}

static bool
transfer_tensors(const tensor_transfer *t, const py_state *state, const py_tensor *dst, const py_tensor *src)
{
    if (!check_pair(t, state, dst, src)) {
        return false;
    }
    if (src->view.count == 0) {
        return true;
    }
    bool is_done;
    if (dd_view_nbytes(&src->view) < GIL_RELEASE_MIN_BYTES) {
        is_done = transfer_views(t, &dst->view, &src->view);
    } else {
        Py_BEGIN_ALLOW_THREADS
        is_done = transfer_views(t, &dst->view, &src->view);
        Py_END_ALLOW_THREADS
    }
    if (!is_done) {
        PyErr_NoMemory();
    }
    return is_done;
}

/* ---- the functions of the module */

static bool
take_pair(const tensor_transfer *t, py_state *state, PyObject *const *args, Py_ssize_t nargs,
          PyObject *kwnames, PyObject **dst, PyObject **src)
{
    const py_params params = PY_PARAMS(t->function, 2, 2, {t->dst, PY_OBJECT, dst}, {t->src, PY_OBJECT, src});
    return py_params_read(&params, state, args, nargs, kwnames);
}

static PyObject *
transfer_objects(const tensor_transfer *t, py_state *state, PyObject *dst_object, PyObject *src_object)
{
    py_tensor dst = {.takes_foreign = t->run == run_copy};
    py_tensor src = {.takes_foreign = t->run == run_copy};
    bool is_done = py_tensor_init(&dst, state, dst_object, PY_TENSOR_OUT, t->function, t->dst) &&
                   py_tensor_init(&src, state, src_object, PY_TENSOR_IN, t->function, t->src) &&
                   transfer_tensors(t, state, &dst, &src);
    py_tensor_fini(&src);
    py_tensor_fini(&dst);
    return is_done ? Py_NewRef(Py_None) : NULL;
}

static PyObject *
call(const tensor_transfer *t, PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    PyObject *dst;
    PyObject *src;
    py_state *state = PyModule_GetState(module);
    return take_pair(t, state, args, nargs, kwnames, &dst, &src) ? transfer_objects(t, state, dst, src)
                                                                 : NULL;
}

PyObject *
py_tensor_copy(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    static const tensor_transfer copy = {"_copy_tensor", "dst", "src", run_copy, is_same_dtype, DD_REDOP_SUM};
    return call(&copy, module, args, nargs, kwnames);
}

PyObject *
py_tensor_convert(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    static const tensor_transfer convert = {"_convert_tensor", "dst",          "src",
                                            run_convert,       is_convertible, DD_REDOP_SUM};
    return call(&convert, module, args, nargs, kwnames);
}

PyObject *
py_tensor_reduce(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    tensor_transfer reduction = {"_reduce_tensor", "dst", "src", run_reduce, is_reducible, DD_REDOP_SUM};
    PyObject *dst;
    PyObject *src;
    int op = DD_REDOP_SUM;
    const py_params params = PY_PARAMS(reduction.function, 2, 3, {reduction.dst, PY_OBJECT, &dst},
                                       {reduction.src, PY_OBJECT, &src}, {"op", PY_INT, &op});
    py_state *state = PyModule_GetState(module);
    if (!py_params_read(&params, state, args, nargs, kwnames)) {
        return NULL;
    }
    if (op < 0 || op >= DD_REDOP_COUNT) {
        PyErr_Format(state->errors[PY_ERROR_ARGUMENT], "%s(): argument 'op' is an unknown operation: got %d",
                     reduction.function, op);
        return NULL;
    }
    reduction.op = (dd_redop)op;
    return transfer_objects(&reduction, state, dst, src);
}

PyObject *
py_tensor_copy_list(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    static const tensor_transfer copy = {"_copy_tensors", "dsts",        "srcs",
                                         run_copy,        is_same_dtype, DD_REDOP_SUM};
    PyObject *dst_objects;
    PyObject *src_objects;
    py_state *state = PyModule_GetState(module);
    py_tensor_list dsts = {0};
    py_tensor_list srcs = {0};
    bool is_done = take_pair(&copy, state, args, nargs, kwnames, &dst_objects, &src_objects) &&
                   py_tensor_list_init(&dsts, state, dst_objects, PY_TENSOR_OUT, copy.function, copy.dst) &&
                   py_tensor_list_init(&srcs, state, src_objects, PY_TENSOR_IN, copy.function, copy.src);
    for (Py_ssize_t i = 0; is_done && i < dsts.count && i < srcs.count; i++) {
        is_done = transfer_tensors(&copy, state, &dsts.items[i], &srcs.items[i]);
    }
    py_tensor_list_fini(&srcs);
    py_tensor_list_fini(&dsts);
    return is_done ? Py_NewRef(Py_None) : NULL;
}
