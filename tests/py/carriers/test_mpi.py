"""MPI installations: libraries, their mpirun, other launchers, and errors when these differ."""

import ctypes.util
import os
import shutil
import subprocess
import sys
import time

import carrier_workers
import dldist
import mpirun
import pytest
from procs import under_load

LIBRARIES = mpirun.find()
pytestmark = pytest.mark.skipif(not LIBRARIES, reason="no MPI is installed: apt-get install openmpi-bin mpich")
ALONE = "import dldist; dldist.init_process_group('mpi'); print(dldist.get_rank(), dldist.get_world_size())"


@pytest.fixture(params=LIBRARIES, ids=lambda library: library.name)
def library(request):
    return request.param


def run(code, env=None, prefix=(), timeout=60):
    return subprocess.run([*prefix, sys.executable, "-c", code], env={**os.environ, **(env or {})}, capture_output=True,
                          text=True, timeout=timeout, check=False)


def test_single_process_can_use_mpi_without_mpirun(library):
    done = run(ALONE, library.variables())
    assert (done.returncode, done.stdout) == (0, "0 1\n"), done.stderr


def test_mpi_is_finalised_at_exit(library):
    """MPI must be finalised whether or not the group is destroyed; otherwise mpirun complains."""
    code = "import dldist; w = dldist.World(carrier='mpi'); w.barrier(); print(f'{w.rank} {w.size};')"
    done = run(code, library.variables(), library.command(2))
    assert done.returncode == 0 and sorted(done.stdout.replace("\n", "").split(";")) == ["", "0 2", "1 2"], done.stderr


def test_missing_mpi_library_is_named_with_a_way_to_install_one():
    done = run(ALONE, {"DLDIST_MPI_LIBRARY": "/nowhere/libmpi.so"})
    assert done.returncode != 0
    assert "RuntimeError: Distributed package doesn't have MPI built in: cannot load MPI: /nowhere/libmpi.so: " in done.stderr
    assert "install Open MPI or MPICH" in done.stderr and "DLDIST_MPI_LIBRARY" in done.stderr


def test_file_that_is_no_mpi_library_is_rejected():
    done = run("from dldist import carriers; print(carriers.why_not('mpi'))", {"DLDIST_MPI_LIBRARY": ctypes.util.find_library("m")})
    assert "lacks" in done.stdout and "MPI_Init_thread" in done.stdout and "MPI_Iallreduce" in done.stdout, (done.stdout, done.stderr)


def test_mpirun_of_another_mpi_library_is_an_error():
    commands = {library.name: library for library in LIBRARIES}
    if not {"openmpi", "mpich"} <= set(commands):
        pytest.skip("needs Open MPI and MPICH: apt-get install openmpi-bin mpich")
    for name, file, words in (("mpich", "libmpi.so.40", "expected MPICH or Intel MPI, whose mpirun started this process"),
                              ("openmpi", "libmpich.so.12", "expected Open MPI, whose mpirun started this process")):
        done = run(ALONE, {"DLDIST_MPI_LIBRARY": file}, commands[name].command(2))
        assert done.returncode != 0 and words in done.stderr, done.stderr


def test_mpi_library_of_the_running_mpirun_is_loaded():
    for library in LIBRARIES:
        if library.library:
            continue
        done = run("from dldist import carriers; print(carriers.info('mpi')['version'])", None, library.command(1))
        assert done.stdout.startswith("Open MPI" if library.name == "openmpi" else "MPICH"), (done.stdout, done.stderr)


def test_processes_not_started_by_mpirun_are_an_error(library):
    done = run(ALONE, {**library.variables(), "RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"})
    assert done.returncode != 0
    assert "another number of processes: got 1, expected 2 (env)" in done.stderr and "start them by the mpirun of this MPI" in done.stderr


def test_ranks_not_started_by_mpi_are_an_error(library, procs):
    """Ranks that MPI did not start must get an error."""
    store = dldist.TCPStore("127.0.0.1", 0, is_master=True)
    ranks = [procs.start(carrier_workers.ranks_of_separate_worlds, store.port, rank, 2, env=library.chosen()) for rank in range(2)]
    for child in ranks:
        text = child.result(60)
        assert "ranks 0 and 1 are both process 0 of MPI's world" in text, text


def test_ranks_with_different_libraries_are_an_error(procs):
    found = [library for library in LIBRARIES if not library.library]
    if len(found) < 2:
        pytest.skip("needs Open MPI and MPICH: apt-get install openmpi-bin mpich")
    store = dldist.TCPStore("127.0.0.1", 0, is_master=True)
    files = {"openmpi": "libmpi.so.40", "mpich": "libmpich.so.12"}
    ranks = [procs.start(carrier_workers.ranks_of_separate_worlds, store.port, rank, 2, env={"DLDIST_MPI_LIBRARY": files[found[rank].name]})
             for rank in range(2)]
    for child in ranks:
        text = child.result(60)
        assert "rank 1 has loaded mpi, " in text and "and rank 0 mpi, " in text and "all ranks must load the same library" in text, text


INITIALISED = """
import ctypes, dldist
from dldist import carriers
path = carriers.info("mpi")["path"]
mpi = ctypes.CDLL(path)
{calls}
try:
    dldist.World(carrier="mpi")
except Exception as error:
    print(type(error).__name__, error)
else:
    print("made")
"""


def test_mpi_initialised_by_the_program_must_support_threads(library):
    done = run(INITIALISED.format(calls="mpi.MPI_Init(None, None)"), library.variables())
    assert "NotImplementedError" in done.stdout and "MPI_THREAD_MULTIPLE" in done.stdout, (done.stdout, done.stderr)
    ended = run(INITIALISED.format(calls="mpi.MPI_Init(None, None); mpi.MPI_Finalize()"), library.variables())
    assert "MPI was finalized in this process" in ended.stdout, (ended.stdout, ended.stderr)
    level = 4096 if "libmpi_abi" in library.library else 3
    threads = f"mpi.MPI_Init_thread(None, None, {level}, ctypes.byref(ctypes.c_int()))"
    with_threads = run(INITIALISED.format(calls=threads), library.variables())
    assert "made" in with_threads.stdout, (with_threads.stdout, with_threads.stderr)


def test_rank_and_size_are_assigned_by_mpi(library):
    wrong = "import dldist; dldist.World(rank=1, world_size=2, carrier='mpi')"
    done = run(wrong, library.variables())
    assert "differ from MPI's: got 1 of 2, expected 0 of 1" in done.stderr, done.stderr
    ignored = "import dldist; dldist.init_process_group('mpi', rank=1, world_size=2); print(dldist.get_rank())"
    done = run(ignored, library.variables())
    assert done.stdout == "0\n" and "are ignored since they are assigned by the MPI runtime" in done.stderr, done.stderr


@pytest.mark.skipif(shutil.which("mpirun.openmpi") is None, reason="no Open MPI is installed: apt-get install openmpi-bin")
@pytest.mark.parametrize("variant", ["barrier", "all_reduce", "recv", "wait"])
def test_killed_process_is_named(procs, variant):
    """If mpirun keeps the other ranks alive, they must raise in two seconds, and name the lost
    rank."""
    library = mpirun.Mpi("openmpi", shutil.which("mpirun.openmpi"), options=(*mpirun.OPEN_MPI_OPTIONS, "--enable-recovery"))
    run_ = mpirun.Run(library, 3, carrier_workers.lose_last_rank, lambda rank: ("mpi", 0, rank, 3, variant))
    procs.children.append(run_)
    pids = [child.recv(60)[1] for child in run_.children]
    os.kill(pids[2], 9)
    killed_at = time.monotonic()
    for results in [child.recv(10) for child in run_.children[:2]]:
        for error in results:
            assert "DistPeerLostError" in error["kinds"] and (error["rank"], error["pid"]) == (2, pids[2]), error
        assert results[0]["at"] - killed_at < under_load(2)


def test_process_group_mpi_create_returns_a_group_of_the_given_ranks(library):
    code = (
        "from dldist._backends.carrier_backends import ProcessGroupMPI\n"
        "import array, dldist\n"
        "pg = ProcessGroupMPI.create([])\n"
        "x = array.array('f', [pg.rank() + 1.0])\n"
        "pg.allreduce([x]).wait()\n"
        "part = ProcessGroupMPI.create([1])\n"
        "print(pg.name(), pg.rank(), pg.size(), x[0], None if part is None else part.size(), end=';')\n"
        "pg.shutdown()\n"
    )
    done = run(code, library.variables(), library.command(2))
    assert sorted(done.stdout.split(";")) == ["", "mpi 0 2 3.0 None", "mpi 1 2 3.0 1"], (done.stdout, done.stderr)


def test_flight_recorder_entries_name_mpi(library):
    code = (
        "import dldist, pickle\n"
        "dldist.init_process_group('mpi'); dldist.barrier()\n"
        "dump = pickle.loads(dldist._dump_fr_trace())\n"
        "print({entry['profiling_name'] for entry in dump['entries']})\n"
        "dldist.destroy_process_group()\n"
    )
    done = run(code, library.variables(), library.command(2))
    assert done.stdout.count("mpi:barrier") == 2, (done.stdout, done.stderr)
