"""dldist._rendezvous.launchers: the environments of launchers, from tables, and ranks started by
real launchers."""

import json
import os
import shutil
import subprocess
import sys

import dldist
import pytest
import rendezvous_workers
from conftest import torch_missing
from dldist import rendezvous
from dldist._rendezvous import launchers as launch_environment
from paths import SUPPORT

PROGRAM = str(SUPPORT / "rendezvous_workers.py")

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "1",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "run7",
}
OPENMPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "OMPI_COMM_WORLD_NODE_RANK": "5",
    "PMIX_NAMESPACE": "1453785089",
    "PMIX_SERVER_URI2": "1453785088.0;tcp4://127.0.0.1:33011",
    "OMPI_MCA_orte_precondition_transports": "1f69-2240",
}
MPICH = {"PMI_RANK": "0", "PMI_SIZE": "3", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2", "PMI_FD": "6"}
SLURM = {
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_ID": "2",
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "2",
    "SLURM_NTASKS": "8",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_STEP_NUM_NODES": "4",
    "SLURM_STEP_TASKS_PER_NODE": "2(x4)",
    "SLURM_STEP_NODELIST": "node[08-11]",
}
ONE_NODE = SLURM | {"SLURM_NODEID": "0", "SLURM_STEP_TASKS_PER_NODE": "8", "SLURM_STEP_NODELIST": "node3"}
# The variables in a batch script (with -n 8), and in the shell of salloc.
BATCH = {"SLURM_JOB_ID": "77", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "8", "SLURM_NODEID": "0"}
SALLOC = {"SLURM_JOB_ID": "77", "SLURM_NTASKS": "8", "SLURM_TASKS_PER_NODE": "8"}
INTERACTIVE_STEP = SLURM | {"SLURM_STEP_ID": "4294967290", "SLURM_PROCID": "0"}

# kind, rank, world_size, local_rank, local_size, node_rank, job, master_addr, master_port
LAUNCHES = {
    "torchrun": (TORCHRUN, ("torchrun", 3, 4, 1, 2, 1, "run7", "10.0.0.1", 29500)),
    "by hand": ({"RANK": "0", "WORLD_SIZE": "2"}, ("env", 0, 2, None, None, None, None, None, None)),
    "Open MPI": (OPENMPI, ("openmpi", 1, 2, 1, 2, None, "openmpi 1453785089 1f69-2240", None, None)),
    "Open MPI 5": (
        {name: value for name, value in OPENMPI.items() if "orte" not in name} | {"PMIX_NAMESPACE": "prterun-vm-7@1"},
        ("openmpi", 1, 2, 1, 2, None, "openmpi prterun-vm-7@1 1453785088.0;tcp4://127.0.0.1:33011", None, None),
    ),
    "MPICH": (MPICH, ("pmi", 0, 3, 0, 2, None, None, None, None)),
    "Slurm": (SLURM, ("slurm", 5, 8, 1, 2, 2, "slurm 77.2 0", "node08", launch_environment._choose_port("slurm 77.2 0"))),
    "Slurm, one node": (ONE_NODE, ("slurm", 5, 8, 1, 8, 0, "slurm 77.2 0", None, None)),
    "Slurm with PMI": (
        ONE_NODE | {"PMI_RANK": "5", "PMI_SIZE": "8"},
        ("slurm", 5, 8, 1, 8, 0, "slurm 77.2 0", None, None),
    ),
    "Slurm, requeued": (
        ONE_NODE | {"SLURM_RESTART_COUNT": "3"},
        ("slurm", 5, 8, 1, 8, 0, "slurm 77.2 3", None, None),
    ),
    "Slurm with an address": (
        SLURM | {"MASTER_ADDR": "gate", "MASTER_PORT": "5"},
        ("slurm", 5, 8, 1, 2, 2, "slurm 77.2 0", "gate", 5),
    ),
    "Open MPI under Slurm": (
        SLURM | OPENMPI,
        ("openmpi", 1, 2, 1, 2, None, "openmpi 1453785089 1f69-2240", None, None),
    ),
    "MPICH under Slurm": (SLURM | MPICH, ("pmi", 0, 3, 0, 2, None, None, None, None)),
    "torchrun under Slurm and Open MPI": (
        SLURM | OPENMPI | TORCHRUN,
        ("torchrun", 3, 4, 1, 2, 1, "run7", "10.0.0.1", 29500),
    ),
}

NO_LAUNCHES = {
    "nothing": {},
    "empty": {"RANK": "", "OMPI_COMM_WORLD_RANK": "", "SLURM_STEP_ID": ""},
    "batch script": BATCH,
    "salloc": SALLOC,
    "interactive step": INTERACTIVE_STEP,
    "only a rank": {"RANK": "1"},
}

BAD = {
    "rank no number": ({"RANK": "one", "WORLD_SIZE": "2"}, "RANK must be a whole number, not 'one'"),
    "rank negative": ({"RANK": "-1", "WORLD_SIZE": "2"}, "RANK must be a whole number, not '-1'"),
    "rank too large": ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK is out of range: got 2, expected less than WORLD_SIZE=2"),
    "local rank too large": (TORCHRUN | {"LOCAL_RANK": "2"}, "LOCAL_RANK is out of range: got 2, expected less than LOCAL_WORLD_SIZE=2"),
    "port": (TORCHRUN | {"MASTER_PORT": "70000"}, "MASTER_PORT must be from 0 to 65535, not 70000"),
    "Open MPI": (OPENMPI | {"OMPI_COMM_WORLD_SIZE": "x"}, "OMPI_COMM_WORLD_SIZE must be a whole number, not 'x'"),
    "MPICH": (MPICH | {"PMI_RANK": "3"}, "PMI_RANK is out of range: got 3, expected less than PMI_SIZE=3"),
    "Slurm": (SLURM | {"SLURM_PROCID": "8"}, "SLURM_PROCID is out of range: got 8, expected less than SLURM_STEP_NUM_TASKS=8"),
    "Slurm's tasks": (
        SLURM | {"SLURM_STEP_TASKS_PER_NODE": "2(x"},
        """SLURM_STEP_TASKS_PER_NODE must be like "2(x3),1", not '2(x'""",
    ),
    "Slurm's repeats": (SLURM | {"SLURM_STEP_TASKS_PER_NODE": "2x3)"}, "SLURM_STEP_TASKS_PER_NODE must be like"),
    "Slurm's node": (
        SLURM | {"SLURM_NODEID": "4"},
        "SLURM_STEP_TASKS_PER_NODE lacks this node: got '2(x4)', expected an item for SLURM_NODEID=4",
    ),
    "Slurm's hosts": (SLURM | {"SLURM_STEP_NODELIST": "node[1-"}, "malformed list of hosts"),
}


@pytest.fixture
def environment(monkeypatch):
    """Replace any launch environment by another one."""
    for name in list(os.environ):
        if name.startswith(("SLURM_", "OMPI_", "PMI", "MPI_", "MASTER_", "TORCHELASTIC_")) or name in TORCHRUN:
            monkeypatch.delenv(name)

    def set_environment(variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return set_environment


@pytest.mark.parametrize("case", LAUNCHES)
def test_launcher_is_recognised_by_its_environment_variables(case):
    variables, expected = LAUNCHES[case]
    launch = launch_environment.detect(variables)
    names = "kind", "rank", "world_size", "local_rank", "local_size", "node_rank", "job", "master_addr", "master_port"
    assert tuple(getattr(launch, name) for name in names) == expected
    assert f"rank={launch.rank}" in repr(launch)


@pytest.mark.parametrize("case", NO_LAUNCHES)
def test_other_environments_are_not_taken_for_a_launcher(case):
    assert launch_environment.detect(NO_LAUNCHES[case]) is None


@pytest.mark.parametrize("case", BAD)
def test_malformed_launcher_variable_is_named(case):
    variables, text = BAD[case]
    with pytest.raises(ValueError) as caught:
        launch_environment.detect(variables)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, (None, None)),
        ({"LOCAL_RANK": "3"}, (3, None)),
        ({"LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "4"}, (3, 4)),
        (OPENMPI, (1, 2)),
        (MPICH, (0, 2)),
        (SLURM, (1, 2)),
        (OPENMPI | {"LOCAL_RANK": "0"}, (0, 2)),
    ],
)
def test_local_rank_and_size_are_read_from_variables(variables, expected):
    assert (launch_environment.local_rank(variables), launch_environment.local_size(variables)) == expected


def test_local_rank_must_be_a_number():
    with pytest.raises(ValueError, match="LOCAL_RANK must be a whole number, not 'x'"):
        launch_environment.local_rank({"LOCAL_RANK": "x"})


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("gpu5", ["gpu5"]),
        ("a,b-1,c.example", ["a", "b-1", "c.example"]),
        ("node[01-03,7],gpu5", ["node01", "node02", "node03", "node7", "gpu5"]),
        ("node[9-11]", ["node9", "node10", "node11"]),
        ("node[098-101]-ib", ["node098-ib", "node099-ib", "node100-ib", "node101-ib"]),
        ("r[1-2]n[3,5]", ["r1n3", "r1n5", "r2n3", "r2n5"]),
    ],
)
def test_host_lists_of_slurm_are_expanded(text, hosts):
    assert list(launch_environment.expand_hosts(text)) == hosts


@pytest.mark.parametrize("text", ["", ",", "a,,b", "a[1-2", "a]1", "a[]", "a[1-]", "a[x]", "a[-2]", "a[[1]]", "a[1]]"])
def test_malformed_host_lists_of_slurm_are_rejected(text):
    with pytest.raises(ValueError):
        list(launch_environment.expand_hosts(text))


def test_first_host_of_a_list_is_found_without_expanding_the_rest():
    assert next(launch_environment.expand_hosts("node[1-99999999999]")) == "node1"


# ---- the meeting place on one host


def test_temporary_directory_of_the_launcher_is_used_if_it_is_private(tmp_path):
    own = tmp_path / "own"
    own.mkdir(mode=0o700)
    environ = {"TMPDIR": str(tmp_path), "PMIX_SERVER_TMPDIR": str(own)}
    assert os.path.dirname(launch_environment.meeting_file("job", environ)) == str(own)
    own.chmod(0o750)
    at = os.path.dirname(launch_environment.meeting_file("job", environ))
    assert at == str(tmp_path / f"dldist-{os.geteuid()}")
    assert os.stat(at).st_mode & 0o777 == 0o700


def test_jobs_have_separate_rendezvous_files(tmp_path):
    environ = {"TMPDIR": str(tmp_path)}
    paths = [launch_environment.meeting_file(job, environ) for job in ("slurm 1.0 0", "slurm 1.1 0", "hydra 3 4")]
    assert len(set(paths)) == 3
    assert paths[0] == launch_environment.meeting_file("slurm 1.0 0", environ)
    assert not os.path.exists(paths[0])


def _accessible_to_others(path, _elsewhere):
    path.mkdir()
    path.chmod(0o755)  # regardless of the umask
    return r"others may enter \(its mode is 0755\)"


def _link(path, elsewhere):
    elsewhere.mkdir(mode=0o700)
    path.symlink_to(elsewhere)
    return "is no directory"


def _file(path, _elsewhere):
    path.write_text("")
    return "is no directory"


def _owned_by_another_user(path, _elsewhere):
    if os.geteuid() != 0:
        pytest.skip("only root can give a directory away")
    path.mkdir(mode=0o700)
    os.chown(path, 12345, -1)
    return "belongs to user 12345, not to 0"


@pytest.mark.parametrize("make", [_accessible_to_others, _link, _file, _owned_by_another_user])
def test_rendezvous_directory_that_others_can_write_is_rejected(tmp_path, make):
    path = tmp_path / f"dldist-{os.geteuid()}"
    text = make(path, tmp_path / "elsewhere")
    with pytest.raises(dldist.DistStoreError, match=f"rendezvous directory {path} is unusable: it {text}"):
        launch_environment.meeting_file("job", {"TMPDIR": str(tmp_path)})


@pytest.mark.parametrize(
    ("variables", "text"),
    [
        (MPICH, "pmi has started 3 processes, 2 of them on this host, without an address .* set MASTER_ADDR .* and MASTER_PORT"),
        (OPENMPI | {"OMPI_COMM_WORLD_SIZE": "4"}, "openmpi has started 4 processes, 2 of them on this host"),
        # started without hydra's helper process
        (MPICH | {"PMI_SIZE": "2"}, "pmi has started 2 processes, on one host, without an address"),
        (OPENMPI | {"MASTER_ADDR": "x"}, "environment variable MASTER_PORT expected, but not set"),
    ],
)
def test_launcher_without_a_known_rendezvous_address_is_an_error(environment, variables, text):
    environment(variables)
    with pytest.raises(ValueError, match=text):
        rendezvous.meet(timeout=1)


def test_single_process_of_a_launcher_is_a_world_of_one_rank(environment):
    environment(MPICH | {"PMI_SIZE": "1", "MPI_LOCALNRANKS": "1"})
    meeting = rendezvous.meet(timeout=5)
    assert (meeting.rank, meeting.world_size) == (0, 1)
    assert rendezvous_workers.sum_over(meeting) == 1


# ---- real launchers


EXPECTED = [[[rank, 2, 3.0]] * 2 for rank in range(2)]


def _launch_for_real(command, folder, **variables):
    environ = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SLURM_", "OMPI_", "PMI")) and name not in TORCHRUN
    }
    paths = [os.path.dirname(os.path.dirname(dldist.__file__)), os.environ.get("PYTHONPATH", "")]
    environ |= {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "TMPDIR": str(folder), **variables}
    done = subprocess.run([*command, PROGRAM, str(folder)], env=environ, capture_output=True, text=True, timeout=40)
    assert done.returncode == 0, done.stdout + done.stderr
    results = []
    for rank in range(2):
        with open(folder / str(rank), encoding="utf-8") as file:
            results.append(json.load(file))
    assert results == EXPECTED


def _mpirun(name, mark):
    for command in (f"mpirun.{name}", "mpirun"):
        path = shutil.which(command)
        if path and mark in subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20).stdout:
            return path
    pytest.skip(f"mpirun of {mark} is not installed")


@pytest.mark.deadline(60)
def test_world_opens_under_mpirun_of_open_mpi(tmp_path):
    path = _mpirun("openmpi", "Open")
    options = ["--oversubscribe", *(["--allow-run-as-root"] if os.geteuid() == 0 else [])]
    _launch_for_real([path, *options, "-n", "2", sys.executable], tmp_path)
    assert not os.path.exists(tmp_path / f"dldist-{os.geteuid()}")


@pytest.mark.deadline(60)
@pytest.mark.parametrize("shell", [(), ("sh", "-c", '"$@" || exit', "sh")], ids=["", "in a shell"])
def test_world_opens_under_mpirun_of_mpich(tmp_path, shell):
    path = _mpirun("mpich", "HYDRA")
    _launch_for_real([path, "-n", "2", *shell, sys.executable], tmp_path)
    assert os.listdir(tmp_path / f"dldist-{os.geteuid()}") == []


@pytest.mark.torch
@pytest.mark.deadline(90)
def test_world_opens_under_torchrun(tmp_path):
    reason = torch_missing()
    assert reason is None
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    _launch_for_real(command, tmp_path, OMP_NUM_THREADS="1")


@pytest.mark.parametrize("nodes", [1, 2])
def test_world_opens_under_slurm(procs, environment, tmp_path, nodes):
    """Start ranks as srun does. With two nodes, both are this host, under two names."""
    environment({"TMPDIR": str(tmp_path)})
    tasks = {"SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2"}
    tasks |= {"SLURM_STEP_TASKS_PER_NODE": "2"} if nodes == 1 else {"SLURM_STEP_TASKS_PER_NODE": "1(x2)"}
    tasks["SLURM_STEP_NODELIST"] = "localhost" if nodes == 1 else "localhost,localhost2"
    children = []
    for rank in range(2):
        place = (rank, 0) if nodes == 1 else (0, rank)
        own = {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(place[0]), "SLURM_NODEID": str(place[1])}
        children.append(procs.start(rendezvous_workers.meet_by_environment, env=tasks | own))
    assert [child.result() for child in children] == [[(rank, 2, 3.0)] * 2 for rank in range(2)]
    directory = tmp_path / f"dldist-{os.geteuid()}"
    assert os.listdir(directory) == [] if nodes == 1 else not directory.exists()
