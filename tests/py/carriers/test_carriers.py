"""Groups over a carrier library: the suites of dldist.Group and of c10d's calls, with each
installed library."""

import os
import subprocess
import sys
import time

import c10d_team
import carrier_workers
import dldist
import group_team
import group_workers as cases
import mpirun
import procs
import pytest
from c10d_cases import CASES_FOR_TWO, CASES_FOR_TWO_AND_THREE
from dldist import carriers

DIFFERENT = {"shorter_and_longer_messages": "MPI does not say how long a message is that has no room"}
C10D_CASES = [name for name in CASES_FOR_TWO_AND_THREE + CASES_FOR_TWO if name not in DIFFERENT]
DTYPES = [*cases.INT_CODES, *cases.FLOAT_CODES, "?", *cases.NUMPY_DTYPES]
COUNTS = [0, 1, 5, 1000]
SIZES = [2, 4]


class Library:
    """A carrier that needs no mpirun."""

    def __init__(self, name):
        self.name = self.carrier = name

    environment = {"CCL_KVS_IFACE": "lo", "FI_TCP_IFACE": "lo"}
    """The test machine may have no other interface."""


def find():
    """Return each installed carrier library."""
    return mpirun.find() + [Library(name) for name in carriers.NAMES if name != "mpi" and carriers.is_available(name)]


def start(children, library, worker, size, argument, port):
    """Start the ranks, by mpirun if the library is an MPI."""
    if isinstance(library, Library):
        return [children.start(worker, argument, port, rank, size, env=library.environment) for rank in range(size)]
    run = mpirun.Run(library, size, worker, lambda rank: (argument, port, rank, size))
    children.children.append(run)
    return run.children


class C10dTeam(c10d_team.Team):
    """Processes in a default world of the library's backend."""

    def __init__(self, library, size):
        self.children = procs.Group()
        self.store = dldist.TCPStore("127.0.0.1", 0, is_master=True)
        try:
            how = ("c10d_cases", library.carrier)
            self.ranks = start(self.children, library, carrier_workers.cases, size, how, self.store.port)
            assert [child.recv(c10d_team.START_TIMEOUT_S) for child in self.ranks] == ["ready"] * size
        except BaseException:
            self.children.close()
            raise


class GroupTeam(group_team.Team):
    """Processes in a World with the library."""

    def __init__(self, size, library):
        self.size = size
        self.has_failed = False
        self.children = procs.Group()
        self.store = dldist.TCPStore("127.0.0.1", 0, is_master=True)
        self.port = self.store.port
        self.ranks = start(self.children, library, carrier_workers.member, size, library.carrier, self.port)
        assert [child.recv() for child in self.ranks] == ["ready"] * size


class GroupTeams(group_team.Teams):
    team_type = GroupTeam


LIBRARIES = find()


@pytest.fixture(scope="module", params=LIBRARIES or [None], ids=lambda library: library.name if library else "none")
def library(request):
    if request.param is None:
        pytest.skip("no library is installed: apt-get install openmpi-bin mpich, pip install nvidia-libcal-cu12 libucx-cu12")
    return request.param


@pytest.fixture(scope="module", params=SIZES)
def c10d(request, library):
    teams = c10d_team.Teams(library, request.param, team_type=C10dTeam)
    teams.size = request.param
    yield teams
    teams.close()


@pytest.fixture(scope="module", params=SIZES)
def world(request, library):
    teams = GroupTeams()
    yield lambda: teams(request.param, library=library)
    teams.close()


@pytest.mark.exhaustive(every=8)
@pytest.mark.parametrize("name", C10D_CASES)
def test_calls_of_process_groups_are_correct_over_a_carrier(c10d, name):
    if name in CASES_FOR_TWO and c10d.size != 2:
        return  # this case needs two ranks
    c10d.run(name)


def test_message_larger_than_its_buffer_is_an_error(c10d, library):
    if library.carrier == "mpi" and "impi" in library.name and "libmpi_abi" in library.name:
        pytest.skip("Intel MPI's library of the standard ABI ends the process instead of returning the error")
    c10d.run("message_larger_than_its_buffer" if library.carrier == "mpi" else "shorter_and_longer_messages")


def test_every_supported_call_uses_the_library(world):
    team = world()
    assert team.run(carrier_workers.is_carried) == [[1] * 9] * team.size


@pytest.mark.exhaustive(every=5)
@pytest.mark.parametrize("dtype", DTYPES)
def test_reductions_are_correct_for_every_dtype_and_count(world, dtype):
    world().run(cases.sweep_reductions, dtype, COUNTS)


@pytest.mark.exhaustive(every=5)
@pytest.mark.parametrize("dtype", DTYPES)
def test_data_movement_is_correct_for_every_dtype_and_count(world, dtype):
    world().run(cases.sweep_movements, dtype, COUNTS)


@pytest.mark.exhaustive(every=3)
@pytest.mark.parametrize(
    "case",
    [cases.uneven, cases.coalesced, cases.coalescing, cases.strided, cases.overlapping, cases.premultiplied,
     cases.point_to_point, cases.shared_arrays],
    ids=lambda case: case.__name__,
)
def test_each_case_of_the_group_tests_passes_over_a_carrier(world, case):
    world().run(case)


# ---- failures


@pytest.mark.parametrize("variant", ["op", "dtype", "size", "root", "redop", "factor", "block"])
def test_mismatch_is_raised_on_all_ranks(world, variant):
    """All ranks must get the error, under both of its names, before the library gets the call."""
    team = world()
    replies = team.run(cases.mismatched, variant)
    for rank, (first, later) in enumerate(replies):
        assert "DistMismatchError" in first["kinds"] and "DistMismatchError" in later["kinds"], (rank, first, later)
        assert first["code"] == "MISMATCH" and first["seconds"] < procs.under_load(3)
        assert first["rank"] in range(team.size) and first["rank"] != rank, (rank, first)
    text = replies[0][0]["text"]
    words = {"op": ["barrier", "all_reduce"], "dtype": ["int32", "float32"], "size": ["5 elements", "4 elements"],
             "root": ["root 0", "root 1"], "redop": ["SUM", "MAX"], "factor": ["by 2", "by 3"], "block": ["all_gather"]}[variant]
    for word in words:
        assert word in text, text


@pytest.mark.parametrize("variant", ["all_reduce", "recv", "recv any", "async", "default"])
def test_late_rank_causes_a_timeout_on_the_other_ranks(world, variant):
    team = world()
    error = team.run(cases.too_late, variant)[0]
    assert "DistTimeoutError" in error["kinds"] and error["code"] == "OP_TIMED_OUT", error
    assert 0.25 < error["seconds"] < procs.under_load(2)
    if variant in ("all_reduce", "async", "default"):
        assert f"rank{'s' if team.size > 2 else ''} 1" in error["text"], error["text"]
    if variant == "recv":
        assert error["rank"] == 1


def test_abort_is_raised_on_all_ranks(world):
    for first, later in world().run(cases.aborted):
        for error in (first, later):
            assert "DistAbortedError" in error["kinds"] and "enough of it" in error["text"], error
        assert first["seconds"] < procs.under_load(2)


@pytest.mark.parametrize("case", [cases.aborted_from_a_thread, cases.closed, cases.left_by_exception], ids=lambda case: case.__name__)
def test_group_over_a_carrier_can_be_ended_in_every_way(world, case):
    world().run(case)


@pytest.fixture
def alone(library):
    """Start children without mpirun, which would end all of its processes when one dies."""
    if library.carrier == "mpi":
        pytest.skip("mpirun ends all of its processes when one is killed")
    children = procs.Group()
    yield lambda worker, size, *args: start_alone(children, library, worker, size, args)
    children.close()


def start_alone(children, library, worker, size, args):
    store = dldist.TCPStore("127.0.0.1", 0, is_master=True)
    how = {"env": library.environment}
    return [children.start(worker, library.carrier, store.port, rank, size, *args, **how) for rank in range(size)], store


@pytest.mark.parametrize("variant", ["barrier", "all_reduce", "recv", "wait"])
def test_lost_peer_is_an_error_on_the_other_ranks(alone, variant):
    ranks, _store = alone(carrier_workers.lose_last_rank, 3, variant)
    pids = [child.recv()[1] for child in ranks]
    time.sleep(0.1)
    ranks[2].kill()
    killed_at = time.monotonic()
    for child in ranks[:2]:
        results = child.recv(10)
        for error in results:
            assert "DistPeerLostError" in error["kinds"] and (error["rank"], error["pid"]) == (2, pids[2]), error
        assert results[0]["at"] - killed_at < procs.under_load(3)
    for child in ranks[:2]:
        child.send("end")
        assert child.result() is None


@pytest.mark.parametrize(("name", "words"), [("mpi", "install Open MPI or MPICH"), ("ucc", "pip install nvidia-libcal-cu12 libucx-cu12"),
                                             ("xccl", "pip install --no-deps oneccl-cpu impi-rt")])
def test_why_not_names_the_package_to_install(name, words):
    """The reason must be one sentence that names the package to install, in every query."""
    code = (
        "import dldist as dist\n"
        "from dldist import carriers\n"
        f"print(carriers.is_available('{name}'), dist.is_backend_available('{name}'), carriers.why_not('{name}'))\n"
        f"try: dist.init_process_group('{name}')\n"
        "except RuntimeError as error: print('c10d:', error)\n"
        f"try: dist.World(carrier='{name}')\n"
        "except NotImplementedError as error: print('World:', error)\n"
    )
    variable = f"DLDIST_{name.upper()}_LIBRARY"
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, variable: "/nowhere/lib.so"}, capture_output=True,
                          text=True, timeout=60, check=False)
    lines = done.stdout.splitlines()
    assert len(lines) == 3 and lines[0].startswith("False False cannot load "), (done.stdout, done.stderr)
    assert lines[1].startswith(f"c10d: Distributed package doesn't have {name.upper()} built in: cannot load ")
    for line in lines:
        assert "/nowhere/lib.so: " in line and words in line and f"set {variable} to the file" in line, line


def test_unknown_carrier_is_rejected():
    with pytest.raises(ValueError, match="unknown carrier: got 'x', expected one of 'mpi'"):
        carriers.library("x")
