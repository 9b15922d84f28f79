"""Every operation, over dtypes and world sizes, against plain Python. See group_workers.py."""

import importlib.util
from array import array
from concurrent.futures import ThreadPoolExecutor

import dldist
import group_team
import group_workers as cases
import pytest

SIZES = [1, 2, 3, 4]
COUNTS = [0, 1, 5, 1000]
HAS_NUMPY = importlib.util.find_spec("numpy") is not None

needs_numpy = pytest.mark.skipif(not HAS_NUMPY, reason="NumPy is not installed")


@pytest.fixture(scope="module")
def teams():
    teams = group_team.Teams()
    yield teams
    teams.close()


DTYPES = [*cases.INT_CODES, *cases.FLOAT_CODES, "?", *cases.NUMPY_DTYPES]


def dtypes_for(size):
    """Return all dtypes for two ranks, and one of each sort for other sizes."""
    return DTYPES if size == 2 else ["b", "Q", "f", "?"]


def cases_of(dtypes):
    return [pytest.param(size, name, marks=needs_numpy if name in cases.NUMPY_DTYPES else [])
            for size in SIZES for name in dtypes(size)]


@pytest.mark.parametrize(("size", "name"), cases_of(dtypes_for))
def test_reductions_are_correct_for_every_dtype_and_count(teams, size, name):
    teams(size).run(cases.sweep_reductions, name, COUNTS)


@pytest.mark.parametrize(("size", "name"), cases_of(dtypes_for))
def test_data_movement_is_correct_for_every_dtype_and_count(teams, size, name):
    teams(size).run(cases.sweep_movements, name, COUNTS)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    "case",
    [cases.uneven, cases.coalesced, cases.coalescing, cases.strided, cases.overlapping, cases.premultiplied,
     cases.point_to_point, cases.shared_arrays],
    ids=lambda case: case.__name__,
)
def test_each_case_of_group_operations_passes(teams, size, case):
    teams(size).run(case)


@needs_numpy
@pytest.mark.parametrize("size", [2, 3])
def test_transposed_arrays_are_accepted(teams, size):
    teams(size).run(cases.transposed)


@pytest.mark.torch
@pytest.mark.deadline(60)
def test_operations_accept_torch_tensors(teams):
    teams(2).run(cases.with_torch, timeout=50)


def test_operations_on_large_arrays_are_correct(teams):
    """Sizes beyond eager messages, and not multiples of any block size."""
    teams(2).run(cases.sweep_reductions, "f", [150_007], ["MAX"])
    teams(3).run(cases.sweep_movements, "q", [60_013])


@pytest.mark.parametrize("env", [{"DLDIST_SHM": "0"}, {"DLDIST_ALGORITHM": "flat"}], ids=["tcp", "flat"])
@pytest.mark.parametrize("size", [2, 3])
def test_operations_are_correct_without_shared_memory_or_optimisations(teams, size, env):
    """Operations must work without shared memory and without shortcuts."""
    team = teams(size, env=env)
    for name in ("f", "b"):
        team.run(cases.sweep_reductions, name, [1, 1000])
        team.run(cases.sweep_reductions, name, [30_011], ["SUM"])
        team.run(cases.sweep_movements, name, [1, 1000])
    team.run(cases.point_to_point)
    team.run(cases.strided)
    transports = {member[3] for members, *_ in team.run(cases.membership) for member in members}
    assert ("shared memory" in transports) == ("DLDIST_SHM" not in env)


def test_message_larger_than_its_buffer_is_an_error(teams):
    _, error = teams(2).run(cases.too_short)
    assert error is not None and "DistError" in error["kinds"] or "ValueError" in error["kinds"], error
    teams(2).run(cases.point_to_point)


def test_repeated_calls_with_many_blocks_use_the_blocks_of_each_call():
    """A call with more blocks than fit into its record is described once; repeats must find the
    blocks wherever the tensors are."""
    nranks, rounds = 9, 4
    store = dldist.HashStore()

    def gather(rank):
        with dldist.Group(store, rank, nranks, timeout=60) as group:
            outputs = []
            for number in range(rounds):
                output = array("f", [0] * (2 * nranks))
                group.all_gather_single(output, array("f", [rank, number]))
                outputs.append(list(output))
            return outputs

    with ThreadPoolExecutor(nranks) as pool:
        results = list(pool.map(gather, range(nranks)))
    expected = [[float(x) for rank in range(nranks) for x in (rank, number)] for number in range(rounds)]
    assert results == [expected] * nranks
