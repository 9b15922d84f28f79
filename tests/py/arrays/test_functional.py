"""dldist.functional: every function, on arrays of every library, in one process and between two."""

import array
import importlib.util
import os
import re
import subprocess
import sys

import dldist
import dldist.functional as F
import pytest
from paths import DOCS

pytest.importorskip("numpy", reason="NumPy is not installed")

import functional_workers as workers  # noqa: E402
import procs  # noqa: E402
from group_team import start_ranks  # noqa: E402
from thread_ranks import on_threads  # noqa: E402

CASE_TIMEOUT_S = 60
DOCUMENT = DOCS / "functional.md"
HAS_ML_DTYPES = importlib.util.find_spec("ml_dtypes") is not None
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
needs_jax = pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="JAX is not installed")
needs_ml_dtypes = pytest.mark.skipif(not HAS_ML_DTYPES, reason="ml_dtypes is not installed")


class Team:
    """Processes that run cases of functional_workers in one group."""

    def __init__(self, size):
        self.size = size
        self.is_broken = False
        self.children = procs.Group()
        self.ranks, self.store = start_ranks(self.children, workers.member, size)
        assert [child.recv() for child in self.ranks] == ["ready"] * size

    def run(self, case, *args):
        self.is_broken = True
        for child in self.ranks:
            child.send((case.__name__, args))
        replies = [child.recv(CASE_TIMEOUT_S) for child in self.ranks]
        errors = [reply for kind, reply in replies if kind == "error"]
        assert not errors, "\n".join(f"{error['kinds'][0]}: {error['text']}" for error in errors)
        self.is_broken = False
        return [reply for _, reply in replies]

    def close(self):
        try:
            for child in self.ranks:
                child.send(None)
            assert [child.result() for child in self.ranks] == ["closed"] * self.size
        finally:
            self.children.close()


@pytest.fixture(scope="module")
def teams():
    made = {}
    yield made
    for team in made.values():
        team.close()


@pytest.fixture(params=[1, 2])
def team(request, teams):
    yield from team_of(request.param, teams)


@pytest.fixture(params=[1, 3, 4])
def wide_team(request, teams):
    yield from team_of(request.param, teams)


def team_of(size, teams):
    if size not in teams:
        teams[size] = Team(size)
    yield teams[size]
    if teams[size].is_broken:
        # The failed case broke the team; the next case starts another.
        teams.pop(size).children.close()


@pytest.mark.parametrize(
    ("library", "dtype"),
    [
        ("numpy", "float32"),
        ("numpy", "int64"),
        ("numpy", "complex64"),
        pytest.param("numpy", "bfloat16", marks=needs_ml_dtypes),
        pytest.param("torch", "float64", marks=needs_torch),
        pytest.param("torch", "int32", marks=needs_torch),
        pytest.param("torch", "bfloat16", marks=needs_torch),
        pytest.param("jax", "float32", marks=needs_jax),
        pytest.param("jax", "uint8", marks=needs_jax),
        pytest.param("jax", "bfloat16", marks=needs_jax),
        ("array", "d"),
        ("array", "q"),
        ("bytes", "uint8"),
        ("bytearray", "uint8"),
        ("memoryview", "float32"),
        ("opaque", "float32"),
    ],
)
@pytest.mark.deadline(90)
def test_every_functional_collective_gives_the_correct_result(team, library, dtype):
    team.run(workers.every_function, library, dtype)


def test_functional_collectives_accept_unusual_shapes(team):
    team.run(workers.odd_shapes)


@pytest.mark.parametrize("library", ["numpy", pytest.param("torch", marks=needs_torch), pytest.param("jax", marks=needs_jax),
                                     "array", "bytes", "memoryview", "opaque"])  # fmt: skip
def test_logical_location_and_function_reductions_are_correct(wide_team, library):
    wide_team.run(workers.more_reductions, library, {"array": "q", "bytes": "uint8"}.get(library, "int32"))


@pytest.mark.parametrize("case", [workers.pairs, workers.moved_lists, workers.functions_that_fail], ids=lambda case: case.__name__)
def test_reductions_accept_pairs_and_lists_of_arrays(wide_team, case):
    wide_team.run(case)


@needs_torch
@needs_jax
def test_logical_and_location_reductions_work_under_jit(team):
    team.run(workers.traced_reductions)


def test_functional_collectives_accept_trees_of_arrays(team):
    team.run(workers.trees)


def test_functional_collectives_of_numbers_return_numbers(team):
    team.run(workers.numbers)


def test_functional_collectives_accept_table_columns_and_similar_objects(team):
    team.run(workers.columns)


@needs_torch
@needs_jax
def test_numbers_in_trees_of_jax_arrays_are_reduced_under_jit(team):
    team.run(workers.other_libraries_trees)


def test_asynchronous_functional_calls_wait_only_when_the_result_is_used(team):
    team.run(workers.lazily)


@needs_torch
@pytest.mark.deadline(60)
def test_torch_gradients_are_those_of_the_sum_of_all_ranks_losses(team):
    team.run(workers.torch_gradients)


@needs_jax
@pytest.mark.deadline(60)
@pytest.mark.parametrize(
    "case",
    [
        workers.jax_jit,
        workers.jax_order,
        workers.jax_gradients,
        workers.jax_vmap,
        workers.jax_dtypes,
        workers.jax_without_python,
    ],
)
def test_functional_collectives_work_under_jax_transformations(team, case):
    team.run(case)


@needs_jax
@pytest.mark.deadline(60)
def test_collectives_of_large_jax_arrays_do_not_block_the_threads_of_xla(team):
    team.run(workers.jax_large, 16)


@needs_jax
def test_functional_collectives_of_jax_arrays_reject_wrong_arguments(team):
    for texts in team.run(workers.jax_refusals):
        later, shapes, share, op = texts
        assert "ValueError: all_reduce(): argument 'async_op': got True, expected False for arrays that are traced" in later
        assert "TypeError: all_gather_any(): unsupported in jax.jit" in shapes
        assert team.size == 1 or "is not divisible: got" in share
        # raised at compile time
        assert op == "DistArgumentError: all_reduce: reduction BAND does not support dtype float32"


@needs_jax
def test_mismatch_between_compiled_jax_programs_names_both_calls(team):
    for text in team.run(workers.jax_mismatch):
        wanted = r"FAILED_PRECONDITION: all_reduce #1 .* called all_reduce.* called all_reduce"
        assert (text is None) if team.size == 1 else re.match(wanted, text), text


def test_functional_collectives_use_the_default_world(team):
    team.run(workers.default_world, team.store.port)


@needs_jax
def test_functional_collectives_of_jax_arrays_use_the_default_world(team):
    team.run(workers.jax_default_world, team.store.port)


REFUSALS = {
    "text": ("TypeError", "all_reduce(): argument 'x' must be an array"),
    "large int": ("OverflowError", "all_reduce(): argument 'x' is out of range: got 9223372036854775808"),
    "number in place": ("TypeError", "a memoryview; dldist.functional also accepts numbers and objects with __array__), not float"),
    "column in place": ("TypeError", "numbers and objects with __array__), not Column"),
    "list": ("TypeError", "not list"),
    "none": ("TypeError", "broadcast(): argument 'x' must be an array"),
    "objects": ("TypeError", "has an unsupported dtype"),
    "leaf": ("TypeError", "all_reduce_tree(): argument 'tree' at ['a'][1] must be an array"),
    "leaf or number": ("TypeError", "or a number, not str"),
    "keys": ("TypeError", "keys without an order"),
    "axis": ("ValueError", "argument 'axis' is out of range: got 2, expected -2 to 1 for shape (3, 4)"),
    "negative axis": ("ValueError", "argument 'axis' is out of range: got -3"),
    "no axis": ("ValueError", "expected 0 to -1 for shape ()"),
    "kind of axis": ("ValueError", "argument 'axis' is out of range: got 1.0"),
    "axis of a view": ("ValueError", "expected 0, the only axis"),
    "dimensions": ("ValueError", "got an array.array, which has one dimension"),
    "share": ("ValueError", "is not divisible: got"),
    "scatter": ("ValueError", "is not divisible: got"),
    "split sizes": ("ValueError", "argument 'input_split_sizes': got "),
    "split sum": ("ValueError", "expected 3, as axis 0"),
    "split axes": ("ValueError", "expected equal axes"),
    "root": ("ValueError", "broadcast(): argument 'root': invalid rank"),
    "kind of root": ("ValueError", "reduce(): argument 'root': invalid rank: got '0'"),
    "dst": ("ValueError", "send(): argument 'dst': invalid rank: "),
    "src": ("ValueError", "recv(): argument 'src': invalid rank"),
    "pairs": ("ValueError", "permute(): argument 'pairs': invalid rank"),
    "pair": ("ValueError", "pairs of a source and a destination"),
    "twice": ("ValueError", "a source or destination twice"),
    "op": ("ValueError", "median"),
    "group as op": ("TypeError", "all_reduce(): argument 'op' must be a reduction such as 'sum', not Group; pass a group as group="),
    "group": ("TypeError", "Invalid process group"),
    "no world": ("ValueError", "please make sure to call init_process_group, or pass group="),
}


def test_functional_collectives_reject_wrong_arguments(team):
    for caught in team.run(workers.refusals):
        assert caught.keys() == REFUSALS.keys()
        # One rank divides everything evenly.
        excused = {"share", "scatter"} if team.size == 1 else set()
        for name, error in caught.items():
            if error is None:
                assert name in excused, f"{name}: nothing was raised"
                continue
            kind, text = REFUSALS[name]
            assert kind in error["kinds"] and text in error["text"], f"{name}: {error['kinds'][0]}: {error['text']}"


class Number:
    """A whole number like NumPy's: it only has __index__."""

    def __init__(self, value):
        self.value = value

    def __index__(self):
        return self.value


def test_ranks_may_be_integers_of_any_library():
    x = array.array("d", [1, 2])
    zero, two = Number(0), Number(2)
    with dldist.Group(None, 0, 1) as group:
        assert F.all_gather(x, zero, group=group) == x
        assert F.broadcast(x, zero, group) == F.reduce(x, zero, group=group) == F.gather(x, zero, group=group) == x
        assert F.permute(x, [(zero, zero)], group) == x
        assert F.all_to_all(x, 0, 0, [two], [two], group) == x


def test_scatter_of_an_unsplit_array_explains_what_to_pass():
    store = dldist.HashStore()

    def run(rank):
        with dldist.Group(store, rank, 2, timeout=15.0) as group:
            return F.scatter(array.array("d", range(4)), group=group)

    with pytest.raises(dldist.DistMismatchError, match="disagree on the size of a block") as caught:
        on_threads(2, run)
    assert "ranks other than the root must pass an array like their part" in caught.value.__notes__[0]


def run_program(program):
    environment = dict(os.environ, PYTHONPATH=os.path.dirname(os.path.dirname(dldist.__file__)))
    return subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=25)


def test_functional_collectives_import_no_array_library():
    program = (
        "import sys, array, dldist, dldist.functional as F\n"
        "F.all_reduce_tree([array.array('d', [1.0]), 0.5, 3], group=dldist.Group(None, 0, 1))\n"
        "print([name for name in ('numpy', 'torch', 'jax', 'ml_dtypes', 'cupy') if name in sys.modules])\n"
    )
    ran = run_program(program)
    assert (ran.stdout.strip(), ran.stderr) == ("[]", "")


def examples_of_the_documentation():
    with open(DOCUMENT, encoding="utf-8") as file:
        text = file.read()
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", text, re.DOTALL)):
        needed = [needs_jax] if "import jax" in block else [needs_torch] if "import torch" in block else []
        yield pytest.param(block, id=str(number), marks=needed)


@pytest.mark.parametrize("block", list(examples_of_the_documentation()))
def test_programs_of_the_functional_page_run_without_errors(block):
    ran = run_program(block)
    assert (ran.returncode, ran.stderr) == (0, "") and ran.stdout
