"""Communication hooks of dldist.Reducer: dldist.comm_hooks, and all accepted kinds of hooks."""

import dldist
import pytest
from dldist import comm_hooks

numpy = pytest.importorskip("numpy", reason="NumPy is not installed")

from test_reducer import SHAPES, check, in_groups, make, mean, run_pass, values  # noqa: E402
from thread_ranks import error_of  # noqa: E402


def gradients_of(group, step, shapes=SHAPES, dtype="float32"):
    return [values(group, step, index, shape, dtype) for index, shape in enumerate(shapes)]


def copies(arrays):
    return [array.copy() for array in arrays]


def check_hook(group, state, hook, **options):
    reducer = make(group, **options)
    reducer.register_comm_hook(state, hook)
    for step in range(3):
        originals = gradients_of(group, step)
        check(group, run_pass(reducer, copies(originals)), originals)
    return reducer


HOOKS = {
    "future": lambda group, bucket: comm_hooks.allreduce_hook(group, bucket),
    "work": lambda group, bucket: group.all_reduce(bucket.memory, "avg", async_op=True),
    "work of the buffer": lambda group, bucket: group.all_reduce(bucket.buffer(), "avg", async_op=True),
    "array": lambda group, bucket: dldist.functional.all_reduce(bucket.buffer(), "avg", group),
    "function": lambda group, bucket: lambda: dldist.functional.all_reduce(bucket.buffer(), "avg", group),
    "float16": comm_hooks.fp16_compress_hook,
    "bfloat16": comm_hooks.bf16_compress_hook,
    "wrapped": comm_hooks.fp16_compress_wrapper(comm_hooks.allreduce_hook),
}


@pytest.mark.parametrize("name", HOOKS)
@pytest.mark.parametrize("is_view", [False, True])
def test_each_communication_hook_reduces_gradients_correctly(name, is_view):
    """Gradients are small whole numbers, which are exact in 16 bits."""
    import dldist.functional  # noqa: F401

    in_groups(2, lambda group: check_hook(group, group, HOOKS[name], gradient_as_bucket_view=is_view))


@pytest.mark.parametrize("kind", dldist.BuiltinCommHookType.__members__)
def test_built_in_communication_hooks_average_gradients(kind):
    def case(group):
        reducer = make(group)
        dldist._register_builtin_comm_hook(reducer, dldist.BuiltinCommHookType.__members__[kind])
        originals = gradients_of(group, 0)
        check(group, run_pass(reducer, copies(originals)), originals)
        assert kind.lower().split("_")[0] in reducer.stats()["comm_hook"]

    in_groups(2, case)


def test_bucket_of_a_hook_has_its_index_gradients_and_parameters():
    def case(group):
        seen = []

        def hook(state, bucket):
            assert state == "state"
            flat = numpy.concatenate([gradient.ravel() for gradient in bucket.gradients()])
            assert numpy.array_equal(flat, bucket.buffer()) and bucket.buffer().ndim == 1
            seen.append((bucket.index(), bucket.is_last(), [param.shape for param in bucket.parameters()], bucket.shapes()))
            bucket.gradients()[0][...] = 8
            doubled = numpy.asarray(bucket.buffer() * 2, "float64")
            bucket.set_buffer(doubled)
            assert bucket.buffer() is doubled
            assert [gradient.shape for gradient in bucket.gradients()] == bucket.shapes()
            return doubled

        reducer = make(group, [(2,), (3, 4)], first_bucket_bytes_cap=1)
        reducer.register_comm_hook("state", hook)
        results = run_pass(reducer, [numpy.ones(2, "float32"), numpy.ones((3, 4), "float32")])
        assert seen == [(0, False, [(3, 4)], [(3, 4)]), (1, True, [(2,)], [(2,)])]
        assert all((result == 16).all() for result in results)

    in_groups(1, case)


def test_functions_returned_by_hooks_run_in_bucket_order_when_finish_is_called():
    order = []

    def case(group):
        def hook(_, bucket):
            order.append(("hook", bucket.index()))

            def later():
                order.append(("later", bucket.index()))
                return bucket.memory

            return later

        reducer = make(group, [(4,)] * 3, first_bucket_bytes_cap=1, bucket_bytes_cap=1)
        reducer.register_comm_hook(None, hook)
        run_pass(reducer, [numpy.ones(4, "float32")] * 3)

    in_groups(1, case)
    assert order == [(kind, index) for kind in ("hook", "later") for index in range(3)]


def test_exception_of_a_communication_hook_is_raised():
    def fail(state, bucket):
        raise ArithmeticError("the hook's")

    def later(state, bucket):
        future = dldist.Future()
        future.set_exception(ArithmeticError("the future's"))
        return future

    with dldist.Group(None, 0, 1) as group:
        for hook, text in [(fail, "the hook's"), (later, "the future's")]:
            reducer = make(group, [(2,)])
            reducer.register_comm_hook(None, hook)
            with pytest.raises(ArithmeticError, match=text):
                reducer.reduce([numpy.ones(2, "float32")])


@pytest.mark.parametrize("result", [None, 3, [], "text", numpy.ones(3), numpy.ones(2, "int64")])
def test_wrong_results_of_a_communication_hook_are_rejected(result):
    with dldist.Group(None, 0, 1) as group:
        reducer = make(group, [(2,)])
        reducer.register_comm_hook(None, lambda state, bucket: result)
        with pytest.raises((TypeError, ValueError), match="the communication hook's result for bucket 0 must be an array"):
            reducer.reduce([numpy.ones(2, "float32")])


def test_only_one_callable_communication_hook_can_be_registered():
    with dldist.Group(None, 0, 1) as group:
        reducer = make(group)
        with pytest.raises(TypeError, match="must be callable, not int"):
            reducer.register_comm_hook(None, 3)
        with pytest.raises(TypeError, match="must be a BuiltinCommHookType, not"):
            dldist._register_builtin_comm_hook(reducer, 7)
        dldist._register_comm_hook(reducer, group, comm_hooks.allreduce_hook)
        with pytest.raises(RuntimeError, match="already has a hook"):
            reducer.register_comm_hook(group, comm_hooks.allreduce_hook)


def test_exception_of_a_hooks_function_is_raised_even_if_the_group_has_failed():
    with dldist.Group(None, 0, 1) as group:

        def fail():
            group.abort("the test has it so")
            raise ArithmeticError("the function's")

        reducer = make(group, [(2,), (2,)], first_bucket_bytes_cap=1)
        reducer.register_comm_hook(None, lambda _, bucket: fail)
        with pytest.raises(ArithmeticError, match="the function's"):
            reducer.reduce([numpy.ones(2, "float32")] * 2)


def test_built_in_hook_uses_a_replaced_group():
    with dldist.Group(None, 0, 1) as first, dldist.Group(None, 0, 1) as second:
        reducer = make(first, [(2,)])
        dldist._register_builtin_comm_hook(reducer, dldist.BuiltinCommHookType.ALLREDUCE)
        reducer.use_group(second)
        before = first.sequence, second.sequence
        reducer.reduce([numpy.ones(2, "float32")])
        assert first.sequence == before[0] and second.sequence > before[1]


def test_reducer_has_the_method_names_of_torchs_reducer():
    def case(group):
        reducer = make(group, [(2,), (3,)], gradient_as_bucket_view=True)
        (bucket,) = reducer._get_zeros_like_grad_buckets()
        assert bucket.buffer().tolist() == [0] * 5
        future = reducer._run_comm_hook(bucket)
        (summed,) = future.wait()
        assert summed is bucket.buffer()
        reducer.prepare_for_backward()
        for index in (1, 0):
            reducer.gradient(index)[...] = group.rank
            reducer._autograd_hook(index)
        reducer.finish()
        reducer._check_reducer_finalized()
        with pytest.raises(RuntimeError, match="before the first pass"):
            reducer._set_static_graph()
        reducer._update_process_group(group)
        reducer._set_static_graph()
        assert reducer._ddp_graph_static() and not reducer._rebuild_buckets()
        reducer._reset_state()

    in_groups(2, case)


# ---- PowerSGD


def descend(group, reducer, steps):
    """Return the distance from the optimum at which a quadratic problem of all ranks ends. Each
    rank has its own targets."""
    rng = numpy.random.default_rng(group.rank)
    targets = [rng.normal(size=(20, 30)).astype("float32"), rng.normal(size=7).astype("float32")]
    best = [mean(group, target).real for target in targets]
    weights = [numpy.zeros_like(target) for target in targets]
    for _ in range(steps):
        gradients = [weight - target for weight, target in zip(weights, targets)]
        for weight, average in zip(weights, reducer.reduce(gradients)):
            weight -= 0.1 * average
    assert all(numpy.array_equal(mean(group, weight).real.astype("float32"), weight) for weight in weights), "ranks agree"
    return [float(numpy.linalg.norm(weight - target) / numpy.linalg.norm(target)) for weight, target in zip(weights, best)]


@pytest.mark.parametrize("dtype_hook", [None, comm_hooks.bf16_compress_wrapper])
def test_power_sgd_converges_with_error_feedback(dtype_hook):
    pytest.importorskip("ml_dtypes") if dtype_hook else None

    def case(group, has_feedback):
        reducer = make(group, [(20, 30), (7,)], bucket_bytes_cap=1 << 20)
        state = comm_hooks.PowerSGDState(
            group, matrix_approximation_rank=2, start_powerSGD_iter=2, use_error_feedback=has_feedback, warm_start=has_feedback
        )
        hook = comm_hooks.powerSGD_hook if dtype_hook is None else dtype_hook(comm_hooks.powerSGD_hook)
        reducer.register_comm_hook(state, hook)
        errors = descend(group, reducer, 250)
        assert state.iter == 250 and state.compression_rate() > 5
        return errors

    assert all(error < 0.05 for errors in in_groups(2, case, True) for error in errors)
    assert in_groups(2, case, False)[0][0] < 1


def test_power_sgd_is_exact_if_its_matrix_rank_suffices():
    """PowerSGD must be exact for gradients whose sum over all ranks has rank 2. Before the start
    and for vectors it averages."""

    def case(group):
        reducer = make(group, [(12, 20), (4,)], bucket_bytes_cap=1 << 20)
        state = comm_hooks.PowerSGDState(
            group, matrix_approximation_rank=2, start_powerSGD_iter=0, use_error_feedback=False, warm_start=False
        )
        reducer.register_comm_hook(state, comm_hooks.powerSGD_hook)
        for step in range(3):
            rng = numpy.random.default_rng([step, group.rank])
            matrix = numpy.outer(rng.normal(size=12), rng.normal(size=20)).astype("float32")
            vector = rng.normal(size=4).astype("float32")
            expected = [mean(group, matrix).real, mean(group, vector).real]
            for result, wanted in zip(reducer.reduce([matrix, vector]), expected):
                assert numpy.allclose(result, wanted, atol=1e-5)
        assert 1 < state.compression_rate() < 244 / 64 + 1

    in_groups(2, case)


def test_power_sgd_must_not_start_before_buckets_are_rebuilt():
    error = error_of(comm_hooks.PowerSGDState, None, 1, 1)
    assert isinstance(error, ValueError) and "at least 2" in str(error)
