"""all_reduce of sparse tensors. Needs the libraries of the tensors."""

import dldist
import numpy as np
import pytest
from thread_ranks import error_of, in_worlds

pytestmark = pytest.mark.usefixtures("nothing_is_left")

KINDS = ["torch", "coo_matrix", "coo_array", "csr_matrix", "csr_array", "csc_array"]


def sparse(kind, dense):
    """Return a dense matrix as a sparse one; if possible, with the first element in two halves."""
    dense = np.array(dense, "f8")
    rows, columns = np.nonzero(dense)
    values = dense[rows, columns]
    if len(values):
        rows, columns = np.append(rows, rows[0]), np.append(columns, columns[0])
        values = np.append(values, values[0] / 2)
        values[0] /= 2
    if kind == "torch":
        import torch

        where = torch.tensor(np.stack([rows, columns]))
        return torch.sparse_coo_tensor(where, torch.tensor(values), dense.shape, check_invariants=False)
    import scipy.sparse

    return getattr(scipy.sparse, kind)((values, (rows, columns)), shape=dense.shape)


def dense(tensor):
    return (tensor.to_dense() if hasattr(tensor, "to_dense") else tensor.toarray()).tolist()


@pytest.fixture
def nothing_is_left():
    yield
    if dldist.is_initialized():
        dldist.destroy_process_group()


@pytest.fixture(params=KINDS)
def kind(request):
    library = "torch" if request.param == "torch" else "scipy.sparse"
    pytest.importorskip(library, reason=f"{library} is not installed")
    return request.param


def test_sparse_tensors_are_summed_over_all_ranks(kind):
    def case(rank):
        x = sparse(kind, [[rank + 1, 0, 0], [0, 10 * rank, 5]])
        before, nothing = x, sparse(kind, np.zeros((2, 3)))
        assert dldist.all_reduce(x) is None
        assert x is before
        only = sparse(kind, [[0, 7, 0]]) if rank == 1 else sparse(kind, [[0, 0, 0]])
        work = dldist.all_reduce(only, dldist.ReduceOp.SUM, async_op=True, timeout=10)
        assert work.wait() and work.result()[0] is only
        dldist.all_reduce(nothing, "sum")
        counts = [each._nnz() if kind == "torch" else each.nnz for each in (x, only, nothing)]
        return dense(x), dense(only), dense(nothing), counts

    expected = [[6.0, 0, 0], [0, 30.0, 15.0]], [[0, 7.0, 0]], [[0.0] * 3] * 2, [3, 1, 0]
    assert in_worlds(3, case) == [expected] * 3


def test_sparse_result_can_be_used_in_further_operations(kind):
    """The library's metadata of a tensor must match the elements of the result."""

    def case(rank):
        x = sparse(kind, [[rank, 0], [0, 2]])
        dldist.all_reduce(x)
        if kind == "torch":
            return x.is_coalesced() and dense(x * 2)
        return x.has_canonical_format and dense(x.T @ x + x)

    assert in_worlds(2, case) == [[[2.0, 0], [0, 8.0]] if kind == "torch" else [[2.0, 0], [0, 20.0]]] * 2


def test_allreduce_of_a_process_group_sums_sparse_tensors(kind):
    def case(rank):
        group = dldist.group.WORLD
        x, y = sparse(kind, [[1, rank]]), sparse(kind, [[1, rank]])
        assert group.allreduce([x]).wait() and group.allreduce_sparse([y]).wait()
        return dense(x), dense(y)

    assert in_worlds(2, case) == [([[2.0, 1.0]], [[2.0, 1.0]])] * 2


def test_several_sparse_tensors_all_get_the_sum(kind):
    def case(rank):
        group = dldist.group.WORLD
        # one tensor on rank 0, two on rank 1
        several = [sparse(kind, [[1, rank, 0]]), sparse(kind, [[0, 2, 0]])][: 1 + rank]
        for call in (group.allreduce, group.allreduce_sparse):
            work = call(several)
            assert work.wait() and len(work.result()) == len(several)
        return [dense(each) for each in several]

    first = np.array([[2.0, 3.0, 0.0]])  # in the first call; in the second, once per tensor
    assert in_worlds(2, case) == [[(3 * first).tolist()] * (1 + rank) for rank in range(2)]


def test_sparse_tensors_that_differ_in_size_or_layout_in_one_call_are_rejected(kind):
    def case(rank):
        group = dldist.group.WORLD
        x = sparse(kind, [[1, 2]])
        for others, words in (
            ([sparse(kind, [[1, 2, 3]])], r"invalid tensor size at index 1 \(expected \(1, 2\), got \(1, 3\)\)"),
            ([x, np.ones((1, 2))], "invalid tensor layout at index 2"),
        ):
            for call in (group.allreduce, group.allreduce_sparse):
                with pytest.raises(RuntimeError, match=words):
                    call([x, *others])
        return dense(x)

    assert in_worlds(1, case) == [[[1.0, 2.0]]]


def test_sparse_sums_work_in_detail_mode(kind):
    before = dldist.get_debug_level()
    dldist.set_debug_level(dldist.DebugLevel.DETAIL)

    def case(rank):
        names = []
        dldist.group.WORLD.register_pre_hook(1, lambda arguments: names.append(arguments.name.name))
        x = sparse(kind, [[1, rank]])
        dldist.all_reduce(x)
        return dense(x), names[0]

    try:
        assert in_worlds(2, case) == [([[2.0, 1.0]], "ALLREDUCE")] * 2
    finally:
        dldist.set_debug_level(before)


def test_sparse_tensors_must_have_the_same_size_on_all_ranks(kind):
    def case(rank):
        error = error_of(dldist.all_reduce, sparse(kind, np.ones((2, 2 + rank))))
        dldist.barrier()
        return type(error), str(error)

    assert in_worlds(2, case) == [(ValueError, "Sizes do not match")] * 2


def test_only_sums_of_sparse_tensors_are_supported(kind):
    dldist.init_process_group()
    for op in (dldist.ReduceOp.MAX, "avg", dldist.ReduceOp.AVG):
        with pytest.raises(RuntimeError, match="only works with ReduceOp.SUM"):
            dldist.all_reduce(sparse(kind, [[1]]), op)
    dldist.destroy_process_group()


def test_sparse_tensors_may_have_dense_dimensions_that_match():
    torch = pytest.importorskip("torch", reason="torch is not installed")

    def case(rank):
        x = torch.sparse_coo_tensor([[rank]], [[1.0, 2.0]], (3, 2), check_invariants=False)
        dldist.all_reduce(x)
        own = torch.sparse_coo_tensor([[0]] * (1 + rank), [[1.0, 2.0]] if rank == 0 else [1.0], (3, 2), check_invariants=False)
        return x.to_dense().tolist(), str(error_of(dldist.all_reduce, own))

    assert in_worlds(2, case) == [([[1, 2], [1, 2], [0, 0]], "Sparse dimensions do not match")] * 2


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
def test_unsupported_sparse_formats_are_rejected():
    dldist.init_process_group()
    scipy = pytest.importorskip("scipy.sparse", reason="SciPy is not installed")
    with pytest.raises(TypeError, match=r"got 'lil', expected one of coo, csr, csc; convert it by tocoo\(\)"):
        dldist.all_reduce(scipy.lil_array((2, 2)))
    torch = pytest.importorskip("torch", reason="torch is not installed")
    with pytest.raises(TypeError, match=r"got torch.sparse_csr, expected torch.sparse_coo"):
        dldist.all_reduce(torch.eye(2).to_sparse_csr())
    dldist.destroy_process_group()


def test_all_reduce_rejects_objects_that_are_neither_dense_nor_sparse_tensors():
    dldist.init_process_group()
    for wrong, kind in ((3, TypeError), (np.zeros(2, "U3"), TypeError), (b"abc", ValueError)):
        assert isinstance(error_of(dldist.all_reduce, wrong), kind)
    dldist.destroy_process_group()
