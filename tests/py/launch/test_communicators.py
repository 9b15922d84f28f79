"""World.from_mpi and World.from_torch: worlds of the ranks of another library's communicator."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import communicator_workers
import dldist
import dldist.functional
import mpirun
import netns
import numpy as np
import pytest
from communicator_workers import StoreComm
from dldist._rendezvous import communicators, urls

PROGRAMS = Path(__file__).parent / "run_programs"
LIMIT_S = 60


def on_ranks(size, call):
    """Run call(comm) on `size` threads, each a rank of a communicator. Return results and errors."""
    store = dldist.HashStore()
    comms = [StoreComm(store.clone(), rank, size) for rank in range(size)]
    results = [None] * size

    def run(comm):
        try:
            results[comm.rank] = call(comm)
        except Exception as error:
            results[comm.rank] = error

    threads = [threading.Thread(target=run, args=(comm,)) for comm in comms]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    return results, comms[0]


def gather_ranks(comm, **options):
    with dldist.World.from_mpi(comm, timeout=20, **options) as world:
        return world.rank, world.size, world.name, world.all_gather_object(comm.rank)


def test_from_mpi_makes_a_world_with_the_ranks_of_the_communicator():
    results, _ = on_ranks(3, lambda comm: gather_ranks(comm, name="beside"))
    assert results == [(rank, 3, "beside", [0, 1, 2]) for rank in range(3)]


def test_from_mpi_of_one_rank_needs_no_communication():
    assert gather_ranks(StoreComm(None, 0, 1)) == (0, 1, "default", [0])


def test_store_of_from_mpi_is_only_for_ranks_that_received_the_secret(monkeypatch):
    monkeypatch.setattr(communicators, "_last_secret", "")
    refused = []

    def call(comm):
        with dldist.World.from_mpi(comm, timeout=20) as world:
            if comm.rank == 0:
                for secret in ("", "guess"):
                    with pytest.raises(dldist.DistAuthError) as caught:
                        dldist.TCPStore("localhost", int(comm.texts[-1].split("\n")[2]), secret=secret, timeout=20)
                    refused.append(str(caught.value))
            world.barrier()

    results, comm = on_ranks(2, call)
    assert results == [None, None] and len(refused) == 2
    _, host, _, secret = comm.texts[-1].split("\n")
    assert host == "localhost" and len(secret) == 32
    _, again = on_ranks(2, gather_ranks)
    assert again.texts[-1].split("\n")[3] == secret, "a new secret would need another engine"


def test_argument_host_of_rank_0_applies_to_all_ranks():
    results, comm = on_ranks(2, lambda comm: gather_ranks(comm, host="127.0.0.1" if comm.rank == 0 else None))
    assert [result[3] for result in results] == [[0, 1]] * 2
    assert comm.texts[-1].split("\n")[1] == "127.0.0.1"


def test_failure_of_rank_0_in_from_mpi_is_raised_on_all_ranks(monkeypatch):
    def fail(*_):
        raise dldist.DistNetworkError("no free port")

    monkeypatch.setattr(urls, "_serve", fail)
    results, _ = on_ranks(2, gather_ranks)
    assert str(results[0]) == "no free port"
    assert isinstance(results[1], dldist.DistStoreError)
    assert str(results[1]) == "rank 0 failed to serve the store of the rendezvous: DistNetworkError: no free port"


def test_from_mpi_names_a_missing_rank():
    def call(comm):
        if comm.rank != 1:
            return gather_ranks(comm, connect_timeout=1)
        comm.allgather("")
        return comm.allgather("")  # receives the address, but does not join

    results, _ = on_ranks(2, call)
    assert isinstance(results[0], dldist.DistTimeoutError) and "missing: 1" in str(results[0])


class Null(StoreComm):
    def __bool__(self):
        return False


class Inter(StoreComm):
    is_inter = True


class GroupOfTorch:
    def allgather(self, *_):
        raise AssertionError

    def rank(self):
        raise AssertionError


@pytest.mark.parametrize(
    ("comm", "error", "text"),
    [
        (5, TypeError, "must be a communicator of mpi4py, such as MPI.COMM_WORLD, not int"),
        (GroupOfTorch(), TypeError, "such as MPI.COMM_WORLD, not GroupOfTorch"),
        (Null(None, 0, 1), ValueError, "must not be MPI.COMM_NULL: this process is not a member; only members call from_mpi"),
        (Inter(None, 0, 1), ValueError, "must be an intracommunicator, not an intercommunicator; pass comm.Merge()"),
    ],
)
def test_from_mpi_refuses_objects_that_are_no_communicator(comm, error, text):
    with pytest.raises(error) as caught:
        dldist.World.from_mpi(comm)
    assert str(caught.value).startswith("World.from_mpi(): argument 'comm' must ") and str(caught.value).endswith(text)


@pytest.mark.skipif(netns.why_unavailable() is not None, reason=f"no hosts: {netns.why_unavailable()}")
def test_ranks_of_several_hosts_meet_at_the_host_given_to_from_mpi(procs):
    with netns.Hosts(2) as hosts:
        ranks = [
            hosts.start(procs, host, communicator_workers.meet, hosts.address(0), rank, 3, env={"DLDIST_SECRET": ""})
            for rank, host in enumerate((0, 0, 1))
        ]
        port = ranks[0].recv()
        for rank in ranks[1:]:
            rank.send(port)
        others = [rank.result() for rank in ranks[1:]]
        ranks[0].send("end")
        assert [ranks[0].result(), *others] == [
            ([0, 1, 2], ["self", "shared memory", "encrypted TCP"]),
            ([0, 1, 2], ["shared memory", "self", "encrypted TCP"]),
            ([0, 1, 2], ["encrypted TCP", "encrypted TCP", "self"]),
        ]


def launcher_of_mpi4py():
    """Return the mpirun of mpi4py's library, and the reason if there is none."""
    program = "from mpi4py import MPI; print(MPI.Get_library_version())"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=LIMIT_S)
    if found.returncode != 0:
        return None, f"no mpi4py with an MPI library: {found.stderr.strip().splitlines()[-1]}"
    kind = "openmpi" if found.stdout.startswith("Open MPI") else "mpich"
    launchers = [mpi for mpi in mpirun.find() if mpi.name == kind]
    return (launchers[0], "") if launchers else (None, f"no mpirun.{kind} for the library of mpi4py")


@pytest.mark.deadline(LIMIT_S)
def test_from_mpi_works_with_mpi4py_communicators():
    launcher, reason = launcher_of_mpi4py()
    if launcher is None:
        pytest.skip(reason)
    command = [*launcher.command(4), sys.executable, str(PROGRAMS / "from_mpi.py")]
    ran = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S, env=launcher.variables())
    assert ran.returncode == 0, ran.stderr
    lines = sorted(ran.stdout.splitlines())
    assert len(lines) == 12 and lines.count("done") == 4
    assert sum("must not be MPI.COMM_NULL" in line for line in lines) == sum("pass comm.Merge()" in line for line in lines) == 4


@pytest.mark.torch
@pytest.mark.deadline(LIMIT_S)
@pytest.mark.parametrize("backend", ["gloo", "dldist"])
def test_from_torch_works_with_torch_process_groups(backend):
    command = [sys.executable, "-m", "dldist.run", "-n", "4", str(PROGRAMS / "from_torch.py"), backend]
    ran = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S, env=dict(os.environ))
    assert ran.returncode == 0, ran.stderr
    text = "World.from_torch(): argument 'group': this process is not a member of the group; only members call from_torch"
    assert sorted(ran.stdout.splitlines()) == sorted(
        [f"[rank{rank}]: done" for rank in range(4)] + [f"[rank{rank}]: {text}" for rank in (0, 2)]
    )


@pytest.mark.torch
def test_errors_name_classes_of_torch_and_from_torch():
    import torch.distributed as torch_dist

    with pytest.raises(ValueError, match="no default group; call torch.distributed.init_process_group first"):
        dldist.World.from_torch()
    way_out = "(for the ranks of a torch group, use World.from_torch)"
    store = torch_dist.PrefixStore("a", torch_dist.HashStore())
    for call in (dldist.World, dldist.ProcessGroup, lambda *ranks: dldist.init_process_group(store=ranks[0], rank=0, world_size=1)):
        with pytest.raises(TypeError) as caught:
            call(store, 0, 1)
        assert str(caught.value).endswith(f"(): argument 'store' must be a Store, not torch.distributed.PrefixStore {way_out}")
    torch_dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        with pytest.raises(TypeError, match="argument 'group' must be a ProcessGroup of torch.distributed, not int; for a DeviceMesh pass"):
            dldist.World.from_torch(5)
        with dldist.World.from_torch() as world, pytest.raises(TypeError) as caught:
            dldist.functional.all_reduce(np.ones(1), group=torch_dist.group.WORLD)
        assert world.size == 1 and f"got torch.distributed.ProcessGroup {way_out}, expected a group" in str(caught.value)
    finally:
        torch_dist.destroy_process_group()
