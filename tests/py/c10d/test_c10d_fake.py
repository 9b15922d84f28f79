"""FakeProcessGroup and FakeStore: one process acts as a rank of a group of any size."""

import array

import dldist
import numpy as np
import pytest
from dldist._backends.fake import FakeProcessGroup, FakeStore
from dldist._base.options import AllreduceOptions, ReduceScatterOptions, ScatterOptions
from dldist._base.works import FakeWork

RANK, SIZE = 1, 2


@pytest.fixture
def fake():
    return FakeProcessGroup._create_internal(RANK, SIZE)


def numpy_row_major(values):
    return np.array(values, "f4")


def numpy_strided(values):
    """Return a view of every second element of a larger array, in both dimensions."""
    values = np.array(values, "f4")
    out = np.full(tuple(2 * length for length in values.shape), -7, "f4")[tuple(slice(None, None, 2) for _ in values.shape)]
    out[...] = values
    return out


def numpy_column_major(values):
    return np.asfortranarray(np.array(values, "f4"))


def torch_bfloat16(values):
    torch = pytest.importorskip("torch", reason="torch is not there")
    return torch.tensor(values).bfloat16()


def torch_transposed(values):
    torch = pytest.importorskip("torch", reason="torch is not there")
    transposed = torch.tensor(np.array(values, "f4").T.copy())
    return transposed.permute(*reversed(range(transposed.ndim)))


KINDS = [numpy_row_major, numpy_strided, numpy_column_major, torch_bfloat16, torch_transposed]


def values(tensor):
    return np.array(tensor.tolist())


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_collective_of_the_fake_backend_fills_its_outputs(fake, kind):
    def zeros(*shape):
        return kind(np.zeros(shape).tolist())

    one, other = kind([[1.0, 2.0], [3.0, 4.0]]), kind([[5.0, 6.0], [7.0, 8.0]])
    large = kind(np.arange(8.0).reshape(4, 2).tolist())

    outputs = [zeros(2, 2), zeros(2, 2)]
    fake.allgather(outputs, one)
    assert all((values(output) == values(one)).all() for output in outputs)

    outputs = [zeros(2, 2), zeros(2, 2)]
    fake.gather(outputs, one, RANK)
    assert all((values(output) == values(one)).all() for output in outputs)

    outputs = [[zeros(2, 2)], [zeros(2, 2)]]
    fake.allgather_coalesced(outputs, [one])
    assert all((values(output[0]) == values(one)).all() for output in outputs)

    for name in ("all_gather_single", "_allgather_base"):
        joined, stacked = zeros(4, 2), zeros(2, 2, 2)
        getattr(fake, name)(joined, one)
        getattr(fake, name)(stacked, one)
        assert (values(joined) == np.concatenate([values(one)] * 2)).all()
        assert (values(stacked) == np.stack([values(one)] * 2)).all()

    output = zeros(2, 2)
    fake.reduce_scatter(output, [one, other])
    assert (values(output) == values(other)).all()

    output = zeros(2, 2)
    fake.reduce_scatter_single(output, large)
    assert (values(output) == values(large)[2:]).all()

    output = zeros(2, 2)
    fake.scatter(output, [one, other], RANK)
    assert (values(output) == values(other)).all()

    outputs = [zeros(2, 2), zeros(2, 2)]
    fake.alltoall(outputs, [one, other])
    assert (values(outputs[0]) == values(one)).all() and (values(outputs[1]) == values(other)).all()

    output = zeros(4, 2)
    fake.alltoall_base(output, large, [], [])
    assert (values(output) == values(large)).all()
    fake.alltoall_base(output, large, [1, 3], [2, 2])
    assert (values(output) == np.concatenate([values(large)[:1], values(large)[:3]])).all()

    for call in (fake.allreduce, fake.reduce, fake.broadcast):
        kept = kind([[1.0, 2.0], [3.0, 4.0]])
        call([kept])
        assert (values(kept) == values(one)).all()


def test_fake_collective_does_not_change_memory_around_a_strided_output(fake):
    memory = np.full((4, 2), -7, "f4")
    fake.all_gather_single(memory[:, 0], np.array([1, 2], "f4"))
    assert memory.tolist() == [[1, -7], [2, -7], [1, -7], [2, -7]]


def test_fake_backend_accepts_standard_library_arrays(fake):
    output = array.array("d", [0, 0])
    fake.scatter(output, [array.array("d", [1, 2]), array.array("d", [3, 4])], RANK)
    assert output == array.array("d", [3, 4])
    output = bytearray(4)
    fake.all_gather_single(output, bytearray(b"ab"))
    assert output == b"abab"


def test_fake_backend_accepts_tensors_without_memory(fake):
    torch = pytest.importorskip("torch", reason="torch is not there")
    output = torch.zeros(4, device="meta")
    assert fake.all_gather_single(output, torch.zeros(2, device="meta")).wait()
    with pytest.raises(RuntimeError, match="world_size times"):
        fake.all_gather_single(output, torch.zeros(3, device="meta"))


def test_fake_backend_accepts_empty_tensors(fake):
    empty = np.empty((0, 3), "f4")
    for work in (
        fake.allreduce(empty),
        fake.all_gather_single(np.empty((0, 3), "f4"), empty),
        fake.allgather([empty.copy(), empty.copy()], empty),
        fake.all_to_all_single(empty.copy(), empty),
    ):
        assert work.wait() is True


def test_calls_of_the_fake_backend_return_completed_works(fake):
    x = np.ones(2, "f4")
    works = [
        fake.allreduce(x),
        fake.allreduce_coalesced([x, x]),
        fake.barrier(),
        fake.send([x], 0, 0),
        fake.recv([x], 0, 0),
        fake.recv_anysource([x], 0),
    ]
    fake._start_coalescing()
    works.append(fake._end_coalescing())
    assert all(type(work) is FakeWork and work.wait() and work.is_completed() for work in works)
    assert x.tolist() == [1, 1]
    with pytest.raises(RuntimeError, match="Backend fake does not support monitored_barrier"):
        fake.monitored_barrier()


def f4(*shape):
    return np.zeros(shape, "f4")


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda g: g.allgather([f4(2), f4(3)], f4(2)), r"allgather: output has another shape: got \(3,\), expected \(2,\)"),
        (lambda g: g.allgather([f4(2), f4(2)], np.zeros(2, "i8")), "output has another dtype: got float32, expected int64"),
        (lambda g: g.all_gather_single(f4(5), f4(2)), "world_size times input tensor size"),
        (lambda g: g.allgather_coalesced([[f4(2)]], [f4(2)]), "Incorrect output list size 1"),
        (lambda g: g.gather([f4(2)], f4(2), RANK), r"gather: Incorrect output list size 1\. Output list size should be 2"),
        (lambda g: g.gather([f4(2), f4(2)], f4(2), 0), "gather: requires empty output on non-root"),
        (lambda g: g.scatter(f4(2), [f4(2)], RANK), r"scatter: Incorrect input list size 1\. Input list size should be 2"),
        (lambda g: g.scatter(f4(2), [f4(2), f4(2)], 0), "scatter: requires empty input on non-root"),
        (lambda g: g.reduce_scatter(f4(2), [f4(2)]), "Incorrect input list size 1"),
        (lambda g: g.reduce_scatter_single(f4(3), f4(7)), "same size as output size times world size"),
        (lambda g: g.alltoall([f4(2)], [f4(2)] * 2), "alltoall: Incorrect output list size 1"),
        (lambda g: g.alltoall_base(f4(3), f4(3), [], []), "dim 0 does not divide equally"),
        (lambda g: g.alltoall_base(f4(4), f4(4), [4], []), "Number of tensor splits not equal"),
        (lambda g: g.alltoall_base(f4(4), f4(4), [5, -1], []), "must be non-negative"),
        (lambda g: g.alltoall_base(f4(4), f4(4), [], [1, 2]), "doesn't match total dim 0 size"),
        (lambda g: g.alltoall_base(f4(4), f4(6), [], []), r"shape: got \(4,\), expected \(6,\)"),
        (lambda g: g.alltoall_base(f4(4), f4(2), [0, 4], [1, 1]), "input has another number of elements: got 2, expected 4"),
    ],
)
def test_fake_backend_rejects_mismatched_sizes(fake, call, text):
    with pytest.raises(RuntimeError, match=text):
        call(fake)


def test_fake_backend_rejects_read_only_outputs(fake):
    output = f4(2)
    output.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        fake.scatter(output, [f4(2), f4(2)], RANK)


def test_lists_are_optional_in_the_fake_backend_on_ranks_that_are_not_the_root(fake):
    assert fake.scatter(f4(2), [], 0).wait()
    assert fake.scatter([f4(2)], [], ScatterOptions()).wait()
    assert fake.gather([], f4(2), 0).wait()


def test_fake_process_group_has_options_and_no_public_constructor(fake):
    assert (fake.options.backend, fake.options.fake_option, fake.options.error_on_collective) == ("fake", 0, False)
    assert fake.options.simulate_uniform_ranks is False
    assert (fake.rank(), fake.size(), fake.name()) == (RANK, SIZE, "fake")
    with pytest.raises(TypeError, match="No constructor defined"):
        FakeProcessGroup(0, 2)
    assert FakeProcessGroup._create_internal(rank=0, world_size=1, options=FakeProcessGroup.Options()).size() == 1


def test_option_error_on_collective_fails_only_collectives():
    opts = FakeProcessGroup.Options()
    opts.error_on_collective = True
    fake = FakeProcessGroup._create_internal(0, 2, opts)
    x = f4(2)
    for call in (lambda: fake.allreduce([x], AllreduceOptions()), fake.barrier, lambda: fake.all_gather_single(f4(4), x)):
        with pytest.raises(RuntimeError, match=r"collective operation error \(error_on_collective=true\)"):
            call()
    assert fake.send([x], 1, 0).wait()


@pytest.fixture
def uniform():
    opts = FakeProcessGroup.Options()
    opts.simulate_uniform_ranks = True
    return FakeProcessGroup._create_internal(RANK, 3, opts)


X = np.array([[1, 2], [3, 4]], "i4")
REDUCED = {"SUM": 3 * X, "AVG": X, "MIN": X, "MAX": X, "PRODUCT": X**3, "BAND": X, "BOR": X, "BXOR": X}


@pytest.mark.parametrize("name", REDUCED)
def test_fake_backend_with_uniform_ranks_reduces_as_if_all_inputs_were_equal(uniform, name):
    op, whole = getattr(dldist.ReduceOp, name), np.tile(X, (3, 1))
    for call, kind in ((uniform.allreduce, np.ascontiguousarray), (uniform.allreduce, np.asfortranarray)):
        x = kind(X.copy())
        work = call([x], op)
        assert (x == REDUCED[name]).all() and work.get_future().wait()[0] is x
    outputs = [np.zeros_like(X) for _ in range(3)]
    uniform.reduce_scatter(outputs[0], [X, X, X], op)
    uniform.reduce_scatter_single(outputs[1], whole, op)
    uniform.reduce_scatter_single_coalesced([outputs[2]], [whole], reduce_options(op))
    assert all((output == REDUCED[name]).all() for output in outputs)


def reduce_options(op):
    opts = ReduceScatterOptions()
    opts.reduceOp = op
    return opts


def test_fake_bxor_of_an_even_number_of_equal_inputs_is_zero():
    opts = FakeProcessGroup.Options()
    opts.simulate_uniform_ranks = True
    x = X.copy()
    FakeProcessGroup._create_internal(0, 4, opts).allreduce([x], dldist.ReduceOp.BXOR)
    assert not x.any()


def test_fake_premul_sum_of_equal_inputs_multiplies_them(uniform):
    x = np.array([1.0, 2.0], "f4")
    uniform.allreduce([x], dldist._make_nccl_premul_sum(0.5))
    assert x.tolist() == [1.5, 3.0]
    with pytest.raises(ValueError, match="float32"):
        uniform.allreduce([x], dldist.ReduceOp.BAND)


def test_fake_reduce_of_equal_inputs_changes_only_the_root(uniform):
    x = np.ones(2, "f4")
    assert uniform.reduce([x], root=0).get_future().wait() is None and x.tolist() == [1, 1]
    assert uniform.reduce([x], root=RANK).get_future().wait()[0] is x and x.tolist() == [3, 3]


def test_fake_all_to_all_assumes_that_all_ranks_send_equal_parts(uniform):
    inputs, outputs = [f4(1), np.array([5, 6], "f4"), f4(2)], [f4(2), f4(3), f4(1)]
    work = uniform.alltoall(outputs, inputs)
    assert [output.tolist() for output in outputs] == [[5, 6], [5, 6, 5], [5]] and len(work.result()) == 3
    output = np.full((7, 1), 9, "f4")
    uniform.all_to_all_single(output, np.array([[1], [2], [3]], "f4"), [3, 0, 4], [1, 2, 0])
    assert output[:, 0].tolist() == [2, 3, 2, 2, 3, 2, 3]
    uniform.all_to_all_single(output, f4(3, 1), [3, 0, 4], [1, 0, 2])
    assert not output.any(), "a rank that sends nothing leaves zeros"
    output = f4(6)
    uniform.all_to_all_single(output, np.arange(6, dtype="f4"), [], [])
    assert output.tolist() == [2, 3] * 3


def test_works_of_the_fake_backend_with_uniform_ranks_have_the_outputs(uniform):
    outputs = [f4(2) for _ in range(3)]
    assert uniform.allgather(outputs, np.ones(2, "f4")).result()[2].tolist() == [1, 1]
    x = f4(2)
    assert uniform.broadcast([x]).result()[0] is x
    assert uniform.scatter(f4(2), [], 0).get_future().wait() is None
    assert uniform.barrier().get_future().wait() is None


def test_fake_backend_with_uniform_ranks_skips_tensors_without_memory(uniform):
    torch = pytest.importorskip("torch", reason="torch is not there")
    assert uniform.allreduce([torch.zeros(4, device="meta")]).wait()


def test_fake_group_can_be_split():
    opts = FakeProcessGroup.Options()
    opts.error_on_collective = True
    dldist.init_process_group("fake", rank=2, world_size=4, pg_options=opts)
    part = dldist.split_group(split_ranks=[[1, 2], [0, 3]])
    assert (part.rank(), part.size()) == (1, 2)
    assert part._get_backend("cpu").options.error_on_collective and part._get_backend("cpu").options.global_ranks_in_group
    assert part._get_backend("cpu").split(None, [0]) is None
    dldist.destroy_process_group()


@pytest.mark.parametrize("wrap", [lambda store: store, lambda store: dldist.PrefixStore("p", store)], ids=["bare", "prefix"])
def test_fake_store_answers_without_keeping_values(wrap):
    store = wrap(FakeStore())
    store.set("key", "value")
    assert store.get("key") == b"" and store.multi_get(["a", "b"]) == [b"", b""]
    assert store.add("key", 3) == 3 and store.add("key", 3) == 3
    assert store.check(["absent"]) and store.wait(["absent"]) is None
    assert store.num_keys() == 0 and store.delete_key("absent") is True
    assert store.clone().get("key") == b""
    for call in (lambda: store.compare_set("a", "b", "c"), lambda: store.append("a", "b"), store.list_keys):
        with pytest.raises(NotImplementedError):
            call()
