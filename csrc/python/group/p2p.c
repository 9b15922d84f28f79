/* Messages and barriers. */
#include "python/base/error.h"
#include "python/base/object.h"
#include "python/group/call.h"
#include "python/nccl/nccl.h"
#include "python/observe/recorder.h"
#include "transport/context.h"

#include <limits.h>

/* NO_RANK in Python: a message to or from this rank ends immediately and moves nothing. */
#define NO_RANK INT_MIN

/* Read a rank or NO_RANK. A receive without a rank accepts any rank, as in c10d. */
static bool
read_peer(const py_group_call *call, PyObject *value, bool is_send, int *rank)
{
    py_state *state = call->group->state;
    const char *function = call->params->function;
    const char *name = is_send ? "dst" : "src";
    if (value == NULL) {
        *rank = DD_ANY_RANK;
        return true;
    }
    if (!py_params_int(state, value, rank, function, name)) {
        return false;
    }
    if (*rank < 0 && *rank != NO_RANK) {
        py_raise_argument(state, function, name, "is an invalid rank: got %d, expected 0 to %d%s", *rank,
                          call->group->size - 1,
                          is_send ? ", or dldist.NO_RANK to send nothing"
                                  : "; omit it to receive from any rank, or pass dldist.NO_RANK for none");
        return false;
    }
    return *rank == NO_RANK || py_params_check_rank(state, *rank, call->group->size, function, name);
}

/* End a call whose message has no peer. */
static PyObject *
skip_message(py_group_call *call, bool is_send)
{
    (void)py_group_call_fail(call); /* releases the operands; there is no exception to keep */
    if (call->params->is_async) {
        return py_object_call_python(is_send ? Py_None : call->values[0], "dldist._base.works",
                                     "skipped_message", NULL, NULL);
    }
    return is_send ? Py_NewRef(Py_None) : PyLong_FromLong(NO_RANK);
}

/* ANY_TAG in Python: a receive accepts every tag. */
#define ANY_TAG (-1)

static bool
check_tag(py_state *state, const char *function, int64_t tag, bool is_send)
{
    if (tag < 0 && (is_send || tag != ANY_TAG)) {
        py_raise_argument(state, function, "tag",
                          is_send ? "is negative: got %lld, expected 0 or more"
                                  : "is negative: got %lld, expected 0 or more, or ANY_TAG (-1)",
                          (long long)tag);
        return false;
    }
    return true;
}

static bool
read_tag(const py_group_call *call, PyObject *value, py_group_message *message)
{
    int64_t number = 0;
    const char *function = call->params->function;
    if ((value != NULL && !py_to_int64(value, &number, function, "tag")) ||
        !check_tag(call->group->state, function, number, message->is_send)) {
        return false;
    }
    message->is_any_tag = number == ANY_TAG;
    message->tag = message->is_any_tag ? 0 : (uint64_t)number;
    return true;
}

/* Set *is_typed to true if sender and receiver must use the same dtype. Buffers of bytes match any
 * dtype. `match_dtype` is the argument of a receive; NULL if not given. */
static bool
read_typed(const py_group_call *call, PyObject *match_dtype, bool *is_typed)
{
    dd_dtype dtype = py_operands_dtype(call->operands);
    *is_typed = true;
    if (match_dtype != NULL &&
        !py_params_flag(call->group->state, match_dtype, is_typed, call->params->function, "match_dtype")) {
        return false;
    }
    bool is_bytes =
        (dtype == DD_DTYPE_UINT8 || dtype == DD_DTYPE_INT8) && py_operands_foreign_dtype(call->operands) == 0;
    *is_typed = *is_typed && !is_bytes;
    return true;
}

/* Maximum size in bytes of a message that is copied without releasing the GIL. */
#define QUICK_NBYTES ((size_t)4096)

/* A message being sent or received. */
typedef struct transfer {
    dd_p2p p2p;
    dd_p2p_result result; /* set when the transfer ends */
} transfer;

static dd_status
transfer_and_wait(const py_group_call *call, void *target, const dd_call_options *options,
                  const dd_wait *wait, dd_error *err)
{
    transfer *self = target;
    return dd_group_p2p_and_wait(call->group->group, &self->p2p, options, &self->result, wait, err);
}

static dd_status
post_transfer(const py_group_call *call, const void *target, const dd_call_options *options, dd_work **work,
              dd_error *err)
{
    return dd_group_p2p(call->group->group, &((const transfer *)target)->p2p, options, work, err);
}

/* Run a message with prepared operands. Keep the GIL for a small message that can be transferred
 * immediately, so that this thread need not wait to retake the GIL. */
static PyObject *
run_prepared_message(py_group_call *call, const py_group_message *message)
{
    const py_piece *piece = &call->operands->pieces[0];
    transfer one = {.p2p = {.is_send = message->is_send,
                            .rank = message->rank,
                            .tag = message->tag,
                            .channel = message->channel,
                            .is_any_tag = message->is_any_tag,
                            .block = {.data = piece->flat, .nbytes = piece->nbytes}}};
    py_record record;
    dd_call_options options = {.is_typed = message->is_typed,
                               .dtype = piece->tensor.view.dtype,
                               .foreign_dtype = piece->tensor.foreign_dtype,
                               .record = py_record_message(&record, call->group->state, call->operands,
                                                           message->is_send, message->rank)};
    if (call->flight != NULL) {
        call->flight->op_type =
            message->rank == DD_ANY_RANK ? PY_OP_TYPE_RECV_ANY_SOURCE : call->params->op_type;
        return py_group_call_start(call, post_transfer, &one, &options);
    }
    if (!py_group_call_wait(call, transfer_and_wait, &one, &options, piece->nbytes > QUICK_NBYTES)) {
        return NULL;
    }
    return message->is_send ? Py_NewRef(Py_None) : PyLong_FromLong(one.result.source);
}

static PyObject *
prepare_and_run(py_group_call *call, const py_group_message *message)
{
    if (call->group->nccl != NULL) {
        if (message->is_any_tag) {
            py_raise_argument(call->group->state, call->params->function, "tag",
                              "is unsupported: got ANY_TAG, expected a tag, as NCCL's messages have none");
            return py_group_call_fail(call);
        }
        return py_nccl_call_run_message(call, message);
    }
    dd_coll_args unused = {.coll = DD_COLL_BROADCAST};
    py_side *side = message->is_send ? &call->operands->inputs : &call->operands->outputs;
    py_operands_set_side(side, PY_LAYOUT_EACH, 0, 1, 1);
    if (!py_operands_prepare(call->operands, &unused, call->group->rank)) {
        return py_group_call_fail(call);
    }
    return run_prepared_message(call, message);
}

static PyObject *
call_message(const py_params *params, bool is_send, uint32_t channel, PyObject *self, PyObject *const *args,
             Py_ssize_t nargs, PyObject *kwnames)
{
    py_group_message message = {.is_send = is_send, .channel = channel};
    py_group_call call;
    if (!py_group_call_parse(&call, self, params, args, nargs, kwnames) || !py_group_call_begin(&call)) {
        return NULL;
    }
    /* A receive also packs a staged tensor, so that a message shorter than the tensor leaves the
     * rest of the tensor unchanged. */
    py_use use = is_send ? PY_USE_IN : PY_USE_IN_PLACE;
    if (!read_peer(&call, call.values[1], is_send, &message.rank) ||
        !read_tag(&call, call.values[2], &message) ||
        !py_operands_add(call.operands, call.values[0], use, "tensor") ||
        !read_typed(&call, is_send ? NULL : call.values[4], &message.is_typed)) {
        return py_group_call_fail(&call);
    }
    return message.rank == NO_RANK ? skip_message(&call, is_send) : prepare_and_run(&call, &message);
}

#define MESSAGE(name, sends, returns_at_once, channel, required, ...)             \
    PY_GROUP_METHOD(name)                                                         \
    {                                                                             \
        py_params params = PY_PARAMS(#name, required, 3, __VA_ARGS__);            \
        params.op_type = sends ? PY_OP_TYPE_SEND : PY_OP_TYPE_RECV;               \
        params.is_async = returns_at_once;                                        \
        return call_message(&params, sends, channel, self, args, nargs, kwnames); \
    }
#define SEND_NAMES PY_TENSORS(tensor), PY_OTHER(dst), PY_OTHER(tag), PY_TIME_LIMIT
#define RECV_NAMES PY_TENSORS(tensor), PY_OTHER(src), PY_OTHER(tag), PY_TIME_LIMIT, PY_OTHER(match_dtype)

MESSAGE(send, true, false, 0, 2, SEND_NAMES)
MESSAGE(isend, true, true, 0, 2, SEND_NAMES)
MESSAGE(recv, false, false, 0, 1, RECV_NAMES)
MESSAGE(irecv, false, true, 0, 1, RECV_NAMES)
MESSAGE(isend_part, true, true, DD_P2P_PARTS_CHANNEL, 2, SEND_NAMES)
MESSAGE(irecv_part, false, true, DD_P2P_PARTS_CHANNEL, 1, RECV_NAMES)

/* Find a message without receiving it. Return None, or a tuple of source, tag and size in bytes. */
PY_GROUP_METHOD(probe)
{
    py_group *group = (py_group *)self;
    PyObject *source = NULL;
    int64_t tag = ANY_TAG;
    bool is_waiting = true;
    bool is_found = true;
    dd_call_options options = {.timeout_ns = -1};
    dd_p2p p2p = {.is_peek = true, .rank = DD_ANY_RANK};
    dd_p2p_result result;
    const py_params params =
        PY_PARAMS("probe", 0, 3, {"src", PY_OBJECT, &source}, {"tag", PY_INT64, &tag},
                  {"is_waiting", PY_FLAG, &is_waiting}, {"timeout", PY_TIMEOUT, &options.timeout_ns});
    if (!py_group_require_cpu(group, "probe") || !py_group_require_usable(group) ||
        !py_params_read(&params, group->state, args, nargs, kwnames) ||
        !check_tag(group->state, "probe", tag, false) ||
        (source != NULL && !py_params_rank(group->state, source, group->size, &p2p.rank, "probe", "src"))) {
        return NULL;
    }
    p2p.is_any_tag = tag == ANY_TAG;
    p2p.tag = p2p.is_any_tag ? 0 : (uint64_t)tag;
    bool is_ok = is_waiting
                     ? PY_GROUP_CALL(group->state, DD_NEVER_NS, dd_group_p2p_and_wait, group->group, &p2p,
                                     &options, &result)
                     : PY_GROUP_TRY(group->state, dd_group_probe, group->group, &p2p, &is_found, &result);
    if (!is_ok || !is_found) {
        return is_ok ? Py_NewRef(Py_None) : NULL;
    }
    return Py_BuildValue("(iKn)", result.source, (unsigned long long)result.tag, (Py_ssize_t)result.nbytes);
}

PY_GROUP_METHOD(monitored_barrier)
{
    py_group *group = (py_group *)self;
    int64_t timeout_ns = -1;
    bool is_all = false;
    const py_params params = PY_PARAMS("monitored_barrier", 0, 2, {"timeout", PY_TIMEOUT, &timeout_ns},
                                       {"wait_all_ranks", PY_FLAG, &is_all});
    if (!py_group_require_cpu(group, "monitored_barrier") || !py_group_require_usable(group) ||
        !py_params_read(&params, group->state, args, nargs, kwnames)) {
        return NULL;
    }
    return py_none_if(PY_GROUP_CALL(group->state, DD_NEVER_NS, dd_group_monitored_barrier, group->group,
                                    timeout_ns, is_all));
}
