"""dldist.Reducer: ranks are threads, and results must equal the mean of gathered gradients."""

import array
import contextlib
import gc
import importlib.util
import json
import subprocess
import sys
import threading
import time

import dldist
import pytest
from dldist import _core, comm_hooks

numpy = pytest.importorskip("numpy", reason="NumPy is not installed")

from thread_ranks import error_of, in_worlds, on_threads  # noqa: E402

SHAPES = [(3, 4), (5,), (), (40, 30), (0, 2), (7,)]
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
needs_jax = pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="JAX is not installed")
needs_ml_dtypes = pytest.mark.skipif(importlib.util.find_spec("ml_dtypes") is None, reason="ml_dtypes is not installed")
DTYPES = ["float16", pytest.param("bfloat16", marks=needs_ml_dtypes), "float32", "float64", "complex64", "complex128"]


def in_groups(size, case, *args, **options):
    """Run case(group, *args) on a thread per rank."""
    store = dldist.HashStore()

    def run(rank):
        with dldist.Group(store, rank, size, **{"timeout": 10.0, **options}) as group:
            return case(group, *args)

    return on_threads(size, run)


def values(group, step, index, shape, dtype="float32"):
    """Return a parameter's gradient on a rank: small whole numbers, whose averages of 1, 2 and 4
    are exact in every type."""
    rng = numpy.random.default_rng([group.rank, step, index])
    drawn = rng.integers(-8, 8, size=shape) * 4
    if dtype.startswith("complex"):
        drawn = drawn + 1j * rng.integers(-8, 8, size=shape)
    return numpy.asarray(drawn).astype(dtype)


def mean(group, x):
    """Return the expected value: all ranks' values, gathered and averaged in NumPy."""
    wide = numpy.asarray(x).astype("complex128")
    gathered = [numpy.empty_like(wide) for _ in range(group.size)]
    group.all_gather(gathered, wide)
    return sum(gathered) / group.size


def check(group, results, gradients):
    assert len(results) == len(gradients)
    for index, (result, gradient) in enumerate(zip(results, gradients)):
        expected = mean(group, gradient)
        got = numpy.asarray(result).astype("complex128")
        assert got.shape == expected.shape and numpy.array_equal(got, expected), f"parameter {index}"


def run_pass(reducer, gradients, order=None):
    reducer.prepare_for_backward()
    for index in order if order is not None else reversed(range(len(gradients))):
        reducer.mark_ready(index, gradients[index])
    reducer.finish()
    return reducer.gradients()


def make(group, shapes=SHAPES, dtype="float32", **options):
    small = {"first_bucket_bytes_cap": 64, "bucket_bytes_cap": 256}
    return dldist.Reducer([numpy.zeros(shape, dtype) for shape in shapes], process_group=group, **{**small, **options})


def case_averages(group, dtype, is_view):
    reducer = make(group, dtype=dtype, gradient_as_bucket_view=is_view)
    for step in range(4):
        gradients = [values(group, step, index, shape, dtype) for index, shape in enumerate(SHAPES)]
        originals = [gradient.copy() for gradient in gradients]
        order = numpy.random.default_rng([step, group.rank]).permutation(len(SHAPES)).tolist()
        results = run_pass(reducer, gradients, order)
        check(group, results, originals)
        for gradient, original, result in zip(gradients, originals, results):
            if is_view:
                assert numpy.array_equal(gradient, original), "the given gradient is unchanged"
            else:
                assert result is gradient, "the average is where the gradient was"


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("is_view", [False, True])
def test_reducer_averages_gradients(size, is_view):
    in_groups(size, case_averages, "float32", is_view)


def test_reducer_sums_gradients():
    def case(group):
        reducer = make(group, op="sum")
        gradients = [values(group, 0, index, shape) for index, shape in enumerate(SHAPES)]
        originals = [gradient.copy() for gradient in gradients]
        for result, original in zip(run_pass(reducer, gradients), originals):
            assert numpy.allclose(result, mean(group, original) * 3)

    in_groups(3, case)


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_of_every_dtype_are_averaged(dtype):
    if dtype == "bfloat16":
        importlib.import_module("ml_dtypes")
    in_groups(2, case_averages, dtype, False)
    in_groups(2, case_averages, dtype, True)


def case_mixed(group):
    dtypes = ["float32", "float64", "float32", "float16", "float64"]
    params = [numpy.zeros(10, dtype) for dtype in dtypes]
    reducer = dldist.Reducer(params, process_group=group)
    for step in range(3):
        gradients = [values(group, step, index, 10, dtype) for index, dtype in enumerate(dtypes)]
        originals = [gradient.copy() for gradient in gradients]
        check(group, run_pass(reducer, gradients), originals)
    assert reducer.stats()["bucket_sizes"].count(",") == 2, "one bucket for each dtype"


def test_gradients_of_mixed_dtypes_are_averaged():
    in_groups(2, case_mixed)


def case_views(group):
    reducer = make(group, gradient_as_bucket_view=True)
    for step in range(3):
        reducer.prepare_for_backward()
        originals = [values(group, step, index, shape) for index, shape in enumerate(SHAPES)]
        for index, original in enumerate(originals):
            reducer.gradient(index)[...] = original
            reducer.mark_ready(index)
        reducer.finish()
        check(group, reducer.gradients(), originals)


def test_gradients_can_be_written_into_views_of_buckets():
    in_groups(2, case_views)


def test_bucket_views_are_shared_memory_and_views_from_before_a_rebuild_are_rejected():
    """A view from before buckets were rebuilt must be an error: writes into it would be lost."""

    def case(group):
        reducer = make(group, gradient_as_bucket_view=True)
        old = reducer.gradients()
        reducer.prepare_for_backward()
        for index in (3, 0, 1, 2, 5, 4):
            old[index][...] = 1
            reducer.mark_ready(index)
        reducer.finish()
        assert reducer._rebuild_buckets()
        reducer.prepare_for_backward()
        with pytest.raises(RuntimeError, match=r"parameter 3: got None, but gradient\(3\) was not called"):
            reducer.mark_ready(3)
        assert reducer.gradient(3) is not old[3] and numpy.array_equal(reducer.gradient(3), old[3])
        reducer.mark_ready(3)
        reducer.mark_ready(0, old[0])  # is copied, like any array
        reducer.reset()

    in_groups(2, case)


@needs_torch
@pytest.mark.parametrize("is_view", [False, True])
def test_torch_parameters_are_accepted(is_view):
    import torch

    def case(group):
        params = [torch.zeros(shape, requires_grad=True) for shape in SHAPES] + [torch.zeros(9, dtype=torch.bfloat16)]
        reducer = dldist.Reducer(params, process_group=group, gradient_as_bucket_view=is_view)
        for step in range(3):
            originals = [values(group, step, index, tuple(p.shape)) for index, p in enumerate(params)]
            gradients = [torch.tensor(x).to(p.dtype) for x, p in zip(originals, params)]
            results = run_pass(reducer, gradients)
            assert all(isinstance(result, torch.Tensor) for result in results)
            assert is_view or all(result is gradient for result, gradient in zip(results, gradients))
            check(group, [result.double().numpy() for result in results], originals)

    in_groups(2, case)


@needs_torch
def test_lazy_conjugate_torch_tensors_receive_correct_values():
    """Lazy tensors must be written through their values; their memory differs."""
    import torch

    def lazy(rank):
        conjugated = torch.full((2,), complex(4, 8 * rank)).conj()
        return [conjugated, conjugated.clone().conj().imag]

    def case(group):
        parameters, gradients = lazy(group.rank), lazy(group.rank)
        reducer = dldist.Reducer(parameters, process_group=group)
        reducer.broadcast_parameters(src=1)
        reducer.reduce(gradients)
        return [x.tolist() for x in [*parameters, *gradients]]

    assert in_groups(2, case) == [[[4 - 8j] * 2, [8.0] * 2, [4 - 4j] * 2, [4.0] * 2]] * 2


def test_numpy_scalars_are_unchanged_and_results_are_new_scalars():
    """Scalars cannot be written to, although a writable array can be made of them."""

    def case(group):
        reducer = dldist.Reducer([numpy.float32(group.rank)], process_group=group)
        return reducer.broadcast_parameters(src=1) + reducer.reduce([numpy.float32(2 * group.rank)])

    assert in_groups(2, case) == [[1.0, 1.0]] * 2


@needs_jax
@pytest.mark.parametrize("is_template", [False, True])
def test_jax_arrays_are_not_changed_and_new_results_returned(is_template):
    """JAX arrays are immutable: the results must be new ones, which later passes do not change."""
    import jax
    import jax.numpy as jnp

    def case(group):
        params = [jax.ShapeDtypeStruct(s, jnp.float32) if is_template else jnp.zeros(s, jnp.float32) for s in SHAPES]
        reducer = dldist.Reducer(params, process_group=group)
        kept = None
        for step in range(3):
            originals = [values(group, step, index, shape) for index, shape in enumerate(SHAPES)]
            gradients = [jnp.asarray(original) for original in originals]
            results = run_pass(reducer, gradients)
            assert all(isinstance(result, jax.Array) for result in results)
            check(group, results, originals)
            assert all(numpy.array_equal(gradient, original) for gradient, original in zip(gradients, originals))
            if kept is not None:
                check(group, *kept)
            kept = results, originals
        averages = reducer.reduce([jnp.ones(shape) * group.rank for shape in SHAPES])
        assert all(numpy.all(numpy.asarray(average) == (group.size - 1) / 2) for average in averages)

    in_groups(2, case)


def test_standard_library_arrays_are_averaged():
    def case(group):
        params = [array.array("d", [0, 0]), array.array("f", [0])]
        reducer = dldist.Reducer(params, process_group=group)
        first, second = array.array("d", [group.rank, 2]), array.array("f", [group.rank])
        assert reducer.reduce([first, second]) == [array.array("d", [0.5, 2]), array.array("f", [0.5])]

    in_groups(2, case)


def test_reducer_uses_the_default_world():
    def case(rank):
        reducer = dldist.Reducer([numpy.zeros(3)])
        (average,) = reducer.reduce([numpy.full(3, float(rank))])
        return average.tolist()

    assert in_worlds(2, case) == [[0.5] * 3] * 2


# ---- order


def test_all_ranks_reduce_buckets_in_the_same_order():
    started = [[], []]

    def case(group):
        def hook(state, bucket):
            started[group.rank].append(bucket.index())
            return comm_hooks.allreduce_hook(group, bucket)

        reducer = make(group, [(16,)] * 6)
        reducer.register_comm_hook(None, hook)
        originals = [values(group, 0, index, (16,)) for index in range(6)]
        order = range(6) if group.rank else [5, 0, 4, 1, 3, 2]
        check(group, run_pass(reducer, [original.copy() for original in originals], order), originals)

    in_groups(2, case)
    assert started[0] == started[1] == sorted(started[0])
    assert len(started[0]) > 2


def test_buckets_are_rebuilt_in_the_order_of_rank_0():
    def case(group):
        reducer = make(group, [(8,)] * 5, first_bucket_bytes_cap=32, bucket_bytes_cap=64)
        order = [[2, 0, 4, 1, 3], [4, 3, 2, 1, 0]][group.rank]
        run_pass(reducer, [numpy.ones(8, "float32") for _ in range(5)], order)
        return reducer.stats()["rebuilt_per_bucket_param_indices"]

    assert in_groups(2, case) == ["2, 0 4, 1 3"] * 2


def test_complete_bucket_is_reduced_before_finish_is_called():
    def case(group):
        reducer = make(group, [(64,), (64,)], first_bucket_bytes_cap=1)
        reducer.prepare_for_backward()
        reducer.mark_ready(1, numpy.ones(64, "float32"))
        reducer._buckets[0].outcome.wait()  # ends although finish() was not called
        reducer.mark_ready(0, numpy.ones(64, "float32"))
        reducer.finish()

    in_groups(2, case)


def test_buckets_chosen_by_the_caller_are_not_rebuilt():
    def case(group):
        reducer = make(group, [(4,)] * 4, bucket_indices=[[0, 2], [1, 3]])
        originals = [values(group, 0, index, (4,)) for index in range(4)]
        for _ in range(2):
            check(group, run_pass(reducer, [original.copy() for original in originals]), originals)
        stats = reducer.stats()
        assert (stats["bucket_sizes"], stats["has_rebuilt_buckets"]) == ("32, 32", 0)

    in_groups(2, case)


# ---- unused parameters


def test_unused_parameters_may_differ_between_ranks():
    """Only rank 0 uses parameter 1, and no rank uses parameter 3."""

    def case(group, is_told):
        shapes = [(4,), (5,), (6,), (7,)]
        reducer = make(group, shapes, find_unused_parameters=True)
        for step in range(3):
            used = [0, 1, 2] if group.rank == 0 else [0, 2]
            unused = [index for index in range(4) if index not in used]
            originals = {index: values(group, step, index, shapes[index]) for index in used}
            reducer.prepare_for_backward(unused=unused if is_told else [])
            for index in used:
                reducer.mark_ready(index, originals[index].copy())
            reducer.finish()
            expected = [originals.get(index, numpy.zeros(shapes[index])) for index in range(3)]
            check(group, reducer.gradients()[:3], expected)
            assert reducer.gradient(3) is None
            assert reducer.stats()["unused_parameter_size"] == 28
            assert not reducer._rebuild_buckets()

    in_groups(2, case, True)
    in_groups(2, case, False)


def test_view_of_a_gradient_that_no_rank_used_is_unchanged():
    def case(group):
        reducer = make(group, [(4,), (4,)], find_unused_parameters=True, gradient_as_bucket_view=True)
        for view in reducer.gradients():
            view[...] = group.rank + 1
        reducer.prepare_for_backward(unused=[1])
        reducer.mark_ready(0)
        reducer.finish()
        return [view[0] for view in reducer.gradients()]

    assert in_groups(2, case) == [[1.5, 1.0], [1.5, 2.0]]


def test_missing_gradients_are_named_and_can_be_added():
    def case(group):
        reducer = make(group, [(4,)] * 3, param_to_name_mapping={1: "layer.bias"})
        reducer.prepare_for_backward()
        reducer.mark_ready(2, numpy.ones(4, "float32"))
        wanted = rf"parameters 0, 1 \(layer.bias\) have no gradient on rank {group.rank}"
        with pytest.raises(RuntimeError, match=wanted):
            reducer.finish()
        with pytest.raises(RuntimeError, match=wanted):
            reducer.prepare_for_backward()
        reducer.mark_ready(0, numpy.ones(4, "float32"))
        with pytest.raises(RuntimeError, match=r"parameter 1 \(layer.bias\) has no gradient"):
            reducer._check_reducer_finalized()
        reducer.mark_ready(1, numpy.full(4, group.rank, "float32"))
        reducer.finish()
        return reducer.gradient(1)[0]

    assert in_groups(2, case) == [0.5, 0.5]


def test_static_graph_requires_the_same_parameters_in_each_pass():
    def case(group):
        reducer = make(group, [(4,)] * 3, static_graph=True)
        used = [0, 2] if group.rank == 0 else [0]
        for step in range(3):
            originals = {index: values(group, step, index, (4,)) for index in used}
            reducer.prepare_for_backward()
            for index in used:
                reducer.mark_ready(index, originals[index].copy())
            reducer.finish()
            check(group, [reducer.gradient(i) for i in (0, 2)], [originals.get(i, numpy.zeros(4)) for i in (0, 2)])
            assert reducer.gradient(1) is None
        assert reducer._rebuild_buckets() and reducer._ddp_graph_static()
        reducer.prepare_for_backward()
        with pytest.raises(RuntimeError, match="parameter 1 is unused: it had no gradient in the first pass"):
            reducer.mark_ready(1, numpy.ones(4, "float32"))
        with pytest.raises(RuntimeError, match="parameter.* no gradient on rank"):
            reducer.finish()
        reducer.reset()

    in_groups(2, case)


# ---- accumulation, uneven inputs


@pytest.mark.parametrize("is_view", [False, True])
def test_no_sync_accumulates_gradients(is_view):
    def case(group):
        reducer = make(group, gradient_as_bucket_view=is_view)
        for step in range(3):
            parts = [[values(group, 10 * step + micro, i, shape) for i, shape in enumerate(SHAPES)] for micro in range(3)]
            with reducer.no_sync():
                for part in parts[:2]:
                    run_pass(reducer, [x.copy() for x in part])
            results = run_pass(reducer, [x.copy() for x in parts[2]])
            check(group, results, [sum(micro) for micro in zip(*parts)])

    in_groups(2, case)


def test_no_sync_calls_no_collective():
    with dldist.Group(None, 0, 1) as group:
        reducer = make(group)
        before = group.sequence
        with reducer.no_sync():
            run_pass(reducer, [numpy.ones(shape, "float32") for shape in SHAPES])
        assert group.sequence == before


def test_accumulated_gradients_are_averaged_even_if_the_last_pass_has_none():
    def case(group):
        reducer = make(group, [(2,)], find_unused_parameters=True)
        with reducer.no_sync():
            run_pass(reducer, [numpy.full(2, 6, "float32")])
        reducer.prepare_for_backward()
        reducer.finish()
        return reducer.gradient(0)[0]

    assert in_groups(2, case) == [6, 6]


@pytest.mark.parametrize("is_view", [False, True])
def test_one_ranks_accumulated_gradients_are_averaged_if_its_last_pass_has_none(is_view):
    def case(group):
        reducer = make(group, [(2,)], find_unused_parameters=True, gradient_as_bucket_view=is_view)
        with reducer.no_sync():
            one_pass(reducer, 6 if group.rank == 0 else None)
        one_pass(reducer, None if group.rank == 0 else 2)
        return reducer.gradient(0)[0]

    def one_pass(reducer, value):
        reducer.prepare_for_backward()
        if value is not None and is_view:
            reducer.gradient(0)[...] = value
            reducer.mark_ready(0)
        elif value is not None:
            reducer.mark_ready(0, numpy.full(2, value, "float32"))
        reducer.finish()

    assert in_groups(2, case) == [4, 4]


@pytest.mark.parametrize(("is_divided_by_all", "expected"), [(True, [1.0, 4 / 3, 1.0]), (False, [1.0, 2.0, 3.0])])
def test_join_allows_different_numbers_of_passes(is_divided_by_all, expected):
    """Rank r has r + 1 passes; gradients are 1 in the first pass, 2 in the second, and so on."""

    def case(group):
        reducer = make(group, [(3,), (40,)])
        seen = []
        with reducer.join(divide_by_initial_world_size=is_divided_by_all) as joined:
            for step in range(group.rank + 1):
                gradients = [numpy.full(shape, step + 1, "float32") for shape in ((3,), (40,))]
                seen.append(float(run_pass(reducer, gradients)[1][0]))
        assert joined.last_rank == 2
        return seen

    results = in_groups(3, case)
    assert [pytest.approx(expected[: rank + 1]) for rank in range(3)] == results


# ---- checks


def test_rank_with_a_different_parameter_is_named():
    def case(group):
        shapes = [(2,), (3,), (4,)]
        if group.rank == 1:
            shapes[1] = (3, 1)
        return error_of(make, group, shapes, param_to_name_mapping={1: "scale"})

    for error in in_groups(2, case):
        assert isinstance(error, dldist.DistMismatchError)
        assert "parameter 1 (scale) is float32[3, 1] on rank 1, and float32[3] on rank 0" in str(error)


def test_rank_with_fewer_parameters_is_named():
    def case(group):
        return str(error_of(dldist._verify_params_across_processes, group, [array.array("d", [1])] * (2 + group.rank)))

    for text in in_groups(2, case):
        assert "rank 1 has 3 parameters, and rank 0 has 2" in text


def test_calls_in_the_wrong_order_in_a_pass_are_rejected():
    with dldist.Group(None, 0, 1) as group:
        reducer = make(group, [(2,), (3,)])
        one = numpy.ones(2, "float32")
        with pytest.raises(RuntimeError, match=r"mark_ready\(\): no pass has started"):
            reducer.mark_ready(0, one)
        with pytest.raises(RuntimeError, match=r"finish\(\): no pass has started"):
            reducer.finish()
        reducer.prepare_for_backward()
        reducer.mark_ready(0, one)
        with pytest.raises(RuntimeError, match="parameter 0 is already marked in this pass"):
            reducer.mark_ready(0, one)
        for index in (2, -1, 10**30, "0", None, 1.0):
            with pytest.raises(IndexError, match="'index' is out of range: got "):
                reducer.mark_ready(index, one)
        with pytest.raises(TypeError, match="parameter 1: got None, expected an array"):
            reducer.mark_ready(1)
        with pytest.raises(TypeError, match="'gradient' of parameter 1 must be an array, not str"):
            reducer.mark_ready(1, "text")
        with pytest.raises(ValueError, match=r"'gradient' of parameter 1 has another shape: got \(2,\), expected \(3,\)"):
            reducer.mark_ready(1, one)
        with pytest.raises(ValueError, match="'gradient' of parameter 1: got 3 elements of float64, expected 3 of float32"):
            reducer.mark_ready(1, numpy.ones(3))
        with pytest.raises(RuntimeError, match="without find_unused_parameters"):
            reducer.mark_unused(1)
        reducer.mark_ready(numpy.int64(1), numpy.ones(3, "float32"))
        reducer.finish()
        with pytest.raises(ValueError, match="'gradients' has another length: got 1, expected 2"):
            reducer.reduce([one])


def test_reducer_constructor_rejects_wrong_arguments():
    one = numpy.ones(2)
    with dldist.Group(None, 0, 1) as group:
        for wrong, message in [
            ({"params": []}, "'params' is empty"),
            ({"params": [3]}, r"argument 'params\[0\]' must be an array, or have a shape and a dtype, not int"),
            ({"params": [one], "op": "max"}, "argument 'op' is unknown: got 'max', expected 'avg' or 'sum'"),
            ({"params": [one], "expect_sparse_gradients": [True]}, "got sparse gradients of other parameters"),
            ({"params": [one, one], "bucket_indices": [[0]]}, "expected each parameter once"),
            ({"params": [one, one], "bucket_indices": [[0, 1], []]}, "no empty bucket"),
            ({"params": [one, numpy.ones(2, "float32")], "bucket_indices": [[0, 1]]}, r"has several dtypes: got \['float32', 'float64'\]"),
        ]:
            with pytest.raises((TypeError, ValueError), match=message):
                dldist.Reducer(process_group=group, **wrong)


# ---- broadcasts


@pytest.mark.parametrize("buffer_size", [1, 50, 1 << 20])
def test_parameters_are_broadcast_from_the_source_rank(buffer_size):
    def case(group):
        params = [numpy.full(shape, group.rank + 1, dtype) for shape in SHAPES for dtype in ("float32", "int64")]
        params[0] = params[0].T[::-1]  # not contiguous
        reducer = dldist.Reducer(params, process_group=group)
        given = reducer.broadcast_parameters(src=1, buffer_size=buffer_size)
        assert all(a is b for a, b in zip(given, params))
        assert all((param == 2).all() for param in params)
        (buffer,) = reducer.broadcast_parameters([numpy.full(3, group.rank)])
        assert (buffer == 0).all()

    in_groups(2, case)


def test_broadcast_leaves_read_only_arrays_unchanged():
    def case(group):
        frozen = numpy.full(4, group.rank)
        frozen.flags.writeable = False
        reducer = dldist.Reducer([frozen], process_group=group)
        (got,) = reducer.broadcast_parameters()
        assert (got == 0).all() and (frozen == group.rank).all()
        dldist._broadcast_coalesced(group, [numpy.zeros(3)], 100)

    in_groups(2, case)


def test_objects_with_only_shape_and_dtype_cannot_be_broadcast():
    class Template:
        shape, dtype = (2, 3), numpy.dtype("float32")

    with dldist.Group(None, 0, 1) as group:
        reducer = dldist.Reducer([Template()], process_group=group)
        with pytest.raises(ValueError, match="expected arrays"):
            reducer.broadcast_parameters()
        assert (reducer.reduce([numpy.ones((2, 3), "float32")])[0] == 1).all()


# ---- failures


def test_reducer_can_use_another_group_after_a_rank_is_lost():
    stores = [dldist.HashStore(), dldist.HashStore()]
    have_all_passed = threading.Barrier(3)

    def run(rank):
        with contextlib.ExitStack() as stack:
            group = stack.enter_context(dldist.Group(stores[0], rank, 3, timeout=10.0))
            reducer = make(group)
            gradients = [values(group, 0, index, shape) for index, shape in enumerate(SHAPES)]
            run_pass(reducer, [gradient.copy() for gradient in gradients])
            have_all_passed.wait(10)
            if rank == 2:
                group.abort("the test has it so")
                stack.pop_all()
                return
            with pytest.raises(dldist.DistError, match="the test has it so"):
                run_pass(reducer, gradients)
            after = stack.enter_context(dldist.Group(stores[1], rank, 2, timeout=10.0))
            reducer.use_group(after)
            gradients = [values(after, 1, index, shape) for index, shape in enumerate(SHAPES)]
            check(after, run_pass(reducer, [gradient.copy() for gradient in gradients]), gradients)

    on_threads(3, run)


def test_late_rank_causes_a_timeout_on_the_other_ranks():
    late = threading.Event()

    def case(group):
        reducer = make(group, [(4,)], timeout=1.0)
        run_pass(reducer, [numpy.ones(4, "float32")])
        if group.rank == 1:
            late.wait(10)
            return
        try:
            with pytest.raises(dldist.DistTimeoutError, match="rank 1"):
                run_pass(reducer, [numpy.ones(4, "float32")])
        finally:
            late.set()

    in_groups(2, case)


@pytest.mark.parametrize(
    ("call", "late_rank"),
    # the root does not wait, so the other rank is the late one
    [(lambda reducer: reducer.use_group(reducer._operations), 1), (dldist.Reducer.broadcast_parameters, 0)],
)
def test_timeout_of_a_reducer_applies_to_every_collective(call, late_rank):
    late = threading.Event()

    def case(group):
        reducer = make(group, [(4,)], timeout=1.0)
        if group.rank == late_rank:
            late.wait(10)
            return
        try:
            with pytest.raises(dldist.DistTimeoutError, match=f"rank {late_rank}"):
                call(reducer)
        finally:
            late.set()

    in_groups(2, case, timeout=20.0)


@pytest.mark.parametrize("passes", [0, 1])
def test_rank_may_close_while_another_creates_its_buckets(monkeypatch, passes):
    """close() must wait until the other rank has made its buckets, so that the memory is shared."""
    has_left = threading.Event()
    make_bucket = dldist.reducer.Bucket
    late = set()

    def make_late(*args):
        if threading.get_ident() in late:
            has_left.wait(0.2)
            time.sleep(0.1)  # until its leave message has arrived
        return make_bucket(*args)

    def case(group):
        if group.rank == 0:
            late.add(threading.get_ident())
        reducer = make(group, [(4,)])
        for _ in range(passes):
            run_pass(reducer, [numpy.ones(4, "float32")])
        del reducer  # its memory keeps links open
        group.close()
        has_left.set()

    monkeypatch.setattr("dldist.reducer.Bucket", make_late)
    in_groups(2, case)


def test_memory_of_a_reducer_is_freed_without_the_garbage_collector():
    """Large memory and shared memory's descriptors must not wait for the garbage collector."""
    with dldist.Group(None, 0, 1) as group:
        reducer = make(group)
        run_pass(reducer, [numpy.ones(shape, "float32") for shape in SHAPES])
        gc.collect()
        gc.disable()
        try:
            del reducer
            assert gc.collect() == 0
        finally:
            gc.enable()


def test_reset_during_a_reduction_discards_the_result():
    """A late result must go to memory that the next pass does not use."""

    def case(group):
        reducer = make(group, [(4,), (4,)], first_bucket_bytes_cap=1)
        originals = [values(group, 0, index, (4,)) for index in range(2)]
        reducer.prepare_for_backward()
        reducer.mark_ready(1, numpy.ones(4, "float32"))
        reducer.reset()
        check(group, run_pass(reducer, [original.copy() for original in originals]), originals)

    in_groups(2, case)


def test_reset_replaces_bucket_memory_that_a_hook_still_uses():
    with dldist.Group(None, 0, 1) as group:
        reducer = make(group, [(4,)])
        reducer.register_comm_hook(None, lambda _, bucket: lambda: bucket.memory)
        reducer.prepare_for_backward()
        reducer.mark_ready(0, numpy.ones(4, "float32"))
        memory = reducer._buckets[0].memory
        reducer.reset()
        assert reducer._buckets[0].memory is not memory


# ---- buckets by size


def random_sizes(rng):
    count = int(rng.integers(1, 30))
    dtypes = ["float32", "float64", "float16"][: int(rng.integers(1, 4))]
    tensors = [numpy.empty(int(rng.integers(0, 300)), rng.choice(dtypes)) for _ in range(count)]
    return tensors, [int(x) for x in rng.integers(1, 2000, size=int(rng.integers(1, 4)))]


@pytest.mark.torch
def test_parameters_are_assigned_to_the_same_buckets_as_by_torch():
    import torch.distributed

    rng = numpy.random.default_rng(0)
    for _ in range(200):
        tensors, limits = random_sizes(rng)
        order = rng.permutation(len(tensors)).tolist() if rng.integers(2) else []
        sparse = (rng.integers(0, 4, size=len(tensors)) == 0).tolist() if rng.integers(2) else []
        torch_result = torch.distributed._compute_bucket_assignment_by_size(
            [torch.from_numpy(x) for x in tensors], limits, sparse, order
        )
        dldist_result = dldist._compute_bucket_assignment_by_size(tensors, limits, sparse, order)
        if order:  # torch's order comes from a hash map
            torch_result, dldist_result = (sorted(zip(*each, strict=True)) for each in (torch_result, dldist_result))
        assert dldist_result == torch_result


def test_bucket_assignment_rejects_wrong_arguments():
    with pytest.raises(ValueError, match="must not be empty"):
        dldist._compute_bucket_assignment_by_size([], [1])
    with pytest.raises(ValueError, match="'tensor_indices' has another length: got 1, expected 2"):
        dldist._compute_bucket_assignment_by_size([numpy.ones(1)] * 2, [1], [], [1])


# ---- statistics


def test_statistics_contain_the_times_and_sizes_of_passes():
    def case(group):
        reducer = make(group, [(4,), (6,)])
        logger = dldist.Logger(reducer)
        logger.set_construction_data_and_log("Net", [], -1, True, False, False)
        for _ in range(3):
            reducer.prepare_for_forward()
            run_pass(reducer, [numpy.ones(4, "float32"), numpy.ones(6, "float32")])
        logged = logger._get_ddp_logging_data()
        data = {**logged.strs_map, **logged.ints_map}
        assert data["module_name"] == "Net" and data["iteration"] == 3 and data["world_size"] == 2
        assert data["total_parameter_size_bytes"] == 40 and data["num_parameter_tensors"] == 2
        assert data["has_rebuilt_buckets"] == 1 and data["rebuilt_per_bucket_param_indices"] == "1 0"
        for name in ("forward_compute_time", "backward_compute_time", "backward_comm_time"):
            assert data[name] > 0 and data[f"avg_{name}"] > 0
        assert 0 <= data["backward_compute_comm_overlap_time"] <= data["backward_comm_time"]
        assert all(0 < ns < 10**10 for ns in reducer.get_backward_stats())
        return data["rank"]

    assert in_groups(2, case) == [0, 1]


# In a process that just exits: freeing a Gloo group while its threads free futures may hang.
NAMES_OF_TORCH = """
import json, os, torch, torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
for _ in range(12):
    model(torch.ones(1, 2)).sum().backward()
print(json.dumps(list(model._get_ddp_logging_data())), flush=True)
os._exit(0)
"""


@pytest.mark.torch
def test_statistics_have_the_same_names_as_torchs():
    done = subprocess.run([sys.executable, "-c", NAMES_OF_TORCH], stdout=subprocess.PIPE, timeout=25, check=True)
    torch_result = set(json.loads(done.stdout))
    of_torch = {"gloo_device_transport", "gloo_socket_ifname", "gloo_num_threads"}
    wall_clock = {name for name in torch_result if name.endswith(("_time_start", "_time_end"))}
    with dldist.Group(None, 0, 1) as group:
        logger = dldist.Logger(make(group))
        logger.set_construction_data_and_log("", [], -1, True, False, False)
        data = logger._get_ddp_logging_data()
        assert torch_result - of_torch - wall_clock <= set(data.strs_map) | set(data.ints_map)


def test_statistics_keep_texts_and_numbers_in_separate_maps():
    with dldist.Group(None, 0, 1) as group:
        logger = dldist.Logger(make(group))
        logger.set_construction_data_and_log("Net", [], -1, True, False, False)
        data = logger._get_ddp_logging_data()
    assert data.strs_map["module_name"] == "Net" and data.ints_map["broadcast_buffers"] == 1
    assert not set(data.strs_map) & set(data.ints_map)


# ---- the parts of shared arrays


def test_part_of_a_shared_array_shares_its_memory():
    with dldist.Group(None, 0, 1) as group:
        whole = group.empty(10, "float32")
        part = whole.part(4, (2, 3))
        assert (part.shape, part.dtype, part.nbytes) == ((2, 3), "float32", 24)
        numpy.asarray(part)[...] = 7
        assert numpy.asarray(whole).tolist() == [0] * 4 + [7] * 6
        view = numpy.from_dlpack(part.part(1, 2))
        del whole, part
        view += 1  # the memory is still alive
        assert view.tolist() == [8, 8]
        whole = group.empty(10)
        for start, shape in [(11, 0), (-1, 1), (5, 6), (0, (3, 4))]:
            with pytest.raises(ValueError, match="expected a part of 10"):
                whole.part(start, shape)
        with pytest.raises(ValueError, match=r"part\(\): argument 'shape' has a negative length: got -1"):
            whole.part(0, -1)
        assert whole.part(10, 0).nbytes == 0


# ---- copying of elements


def test_overlapping_arrays_are_copied_correctly():
    x = numpy.arange(20000, dtype="float32")
    _core._copy_tensor(x[1:], x[:-1])
    assert x[:4].tolist() == [0, 0, 1, 2] and x[-1] == 19998
    _core._copy_tensor(x, x[::-1])
    assert x[0] == 19998 and x[-1] == 0
    _core._reduce_tensor(x, x)
    assert x[0] == 2 * 19998


def test_reduce_tensor_adds_only_elements_of_the_same_dtype():
    total = numpy.ones((3, 4))
    _core._reduce_tensor(total.T, numpy.full((4, 3), 2.0))
    assert (total == 3).all()
    with pytest.raises(ValueError, match="got 1 elements of float32, expected 1 of float64"):
        _core._reduce_tensor(numpy.ones(1), numpy.ones(1, "float32"))


def test_convert_tensor_rounds_like_numpy():
    source = numpy.array([[1.5, -2], [70000, 2**-26]], "float64")
    halves = numpy.empty((2, 2), "float16")
    with numpy.errstate(over="ignore"):
        expected = source.astype("float32").astype("float16")
    _core._convert_tensor(halves.T, source.T)
    assert numpy.array_equal(halves, expected)
    with pytest.raises(ValueError, match="got 4 elements of float64, expected 4 of int32"):
        _core._convert_tensor(numpy.empty(4, "int32"), source)
