"""A fault on one rank must reach every work of every rank, in time and with NCCL's reason, and end
no process."""

import os
import pickle
import signal
import subprocess
import sys

import dldist
import nccl_fault_workers as workers
import nccl_stubs
import procs
import pytest

VERSION = "2.32.3"
CASES = (
    "error_during_collectives",
    "error_while_idle",
    "launch_fails",
    "call_fails",
    "init_fails",
    "init_fails_later",
    "unique_id_fails",
    "a_rank_does_not_come",
    "hung_kernel",
    "rank_without_a_call",
    "slow_kernels",
    "one_rank_aborts",
    "an_abort_hangs",
    "an_abort_reaches_split_groups",
    "abort_of_a_split_keeps_the_parent",
    "memory_runs_out",
)


class Team:
    """Ranks that run one case after another."""

    def __init__(self, folder, size):
        self.size = size
        self.env = nccl_stubs.build(VERSION).environment(devices=size, folder=folder)
        self.env["DLDIST_FR_DUMP_FILE"] = f"{folder}/dump_"
        self.children = None

    def open(self):
        self.store = dldist.TCPStore("127.0.0.1", 0, is_master=True)
        self.children = procs.Group()
        self.ranks = [
            self.children.start(workers.member, self.store.port, rank, self.size, VERSION, env=self.env)
            for rank in range(self.size)
        ]
        assert [rank.recv() for rank in self.ranks] == ["ready"] * self.size

    def run(self, name):
        if self.children is None:
            self.open()
        for rank in self.ranks:
            rank.send(name)
        try:
            replies = [rank.recv(60) for rank in self.ranks]
        except BaseException:
            self.close()
            raise
        errors = [f"rank {number}: {reply}" for number, (kind, reply) in enumerate(replies) if kind == "error"]
        if errors:
            self.close()  # their state is unknown
        assert not errors, "\n".join(errors)
        return [reply for _, reply in replies]

    def close(self):
        children, self.children = self.children, None
        if children is not None:
            children.close()

    def end(self):
        """End the ranks cleanly."""
        if self.children is not None:
            for rank in self.ranks:
                rank.send(None)
            assert [rank.result() for rank in self.ranks] == ["closed"] * self.size


@pytest.fixture(scope="module")
def teams(tmp_path_factory):
    made = {size: Team(tmp_path_factory.mktemp("stubs"), size) for size in (2, 4)}
    yield made
    try:
        for team in made.values():
            team.end()
    finally:
        for team in made.values():
            team.close()


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", CASES)
def test_each_case_of_nccl_faults_passes(teams, name, size):
    teams[size].run(name)


@pytest.fixture
def children():
    children = procs.Group()
    yield children
    children.close()


def start(children, function, tmp_path, size=2, versions=None, **env):
    store = dldist.TCPStore("127.0.0.1", 0, is_master=True)
    ranks = []
    for rank in range(size):
        version = versions[rank] if versions else VERSION
        libraries = nccl_stubs.build(version).environment(devices=size, folder=tmp_path)
        environment = {**libraries, "DLDIST_FR_DUMP_FILE": f"{tmp_path}/dump_", **env}
        ranks.append(children.start(function, store.port, rank, size, version, env=environment))
    return ranks, store


def test_killed_rank_of_an_nccl_group_is_reported(children, tmp_path):
    """The other ranks must time out, their dumps contain the failed operations, and the report name
    the rank that did not call."""
    ranks, store = start(children, workers.killed, tmp_path, size=4, DLDIST_DESYNC_DEBUG="1")
    assert ranks[3].recv() == "ready"
    ranks[3].kill(signal.SIGKILL)
    reports = [rank.recv() for rank in ranks[:3]]
    for rank in ranks[:3]:
        rank.result()
    for number, report in enumerate(reports):
        missing = [line for line in report.splitlines() if line.startswith("  never called ")]
        assert any(line.endswith("rank 3") for line in missing), report
        with open(f"{tmp_path}/dump_{number}", "rb") as file:
            entries = pickle.load(file)["entries"]
        failed = [entry["profiling_name"] for entry in entries if entry["state"] != "completed" or "error" in entry]
        assert "nccl:all_reduce" in failed, entries
    command = [sys.executable, "-m", "dldist.trace", "-p", "dump_", str(tmp_path)]
    read = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert read.returncode == 1 and read.stderr == "", read
    analysis = " ".join(read.stdout.split())
    assert "Rank 3 has left no dump" in analysis and 'All_reduce #2 of group "killed" is not completed' in analysis, read.stdout
    assert "timed out after 1 s" in analysis and "nccl_fault_workers.py:" in analysis, read.stdout


def test_different_nccl_versions_are_an_error(children, tmp_path):
    ranks, store = start(children, workers.mismatched, tmp_path, versions=["2.27.3", "2.32.3"])
    for kind, text in [rank.recv() for rank in ranks]:
        assert kind == "DistMismatchError" and "2.27.3" in text and "2.32.3" in text, (kind, text)
    for rank in ranks:
        rank.result()


@pytest.mark.deadline(120)
@pytest.mark.parametrize("mode", ["1", "3"])
def test_setting_for_error_handling_can_end_the_process(children, tmp_path, mode):
    ranks, store = start(children, workers.torn_down, tmp_path, DLDIST_ASYNC_ERROR_HANDLING=mode)
    assert [rank.recv(60) for rank in ranks] == ["ready"] * 2
    for number, rank in enumerate(ranks):
        # Without other causes, only this signal ends the process, however long it takes.
        assert rank.wait_exit(90) == -signal.SIGABRT
        text = rank.stderr_text()
        assert "the process is ended, as the environment asks for" in text and "ncclRemoteError (6)" in text, text
        assert os.path.exists(f"{tmp_path}/dump_{number}")


def test_hung_nccl_watchdog_ends_the_process_with_a_dump(children, tmp_path):
    ranks, store = start(children, workers.watchdog_hangs, tmp_path, DLDIST_HEARTBEAT_TIMEOUT_S="1")
    for number, rank in enumerate(ranks):
        assert rank.recv() < 1 + workers.SOON_S + workers.SLACK_S
        rank.result()
        assert os.path.exists(f"{tmp_path}/dump_{number}")


def test_process_exit_after_the_cuda_driver_is_unloaded_is_silent(children, tmp_path):
    """The process must exit without output, and in time."""
    ranks, store = start(children, workers.driver_is_unloaded, tmp_path)
    for rank in ranks:
        rank.recv()
    for rank in ranks:
        rank.result(5)
        assert rank.stderr_text() == ""


@pytest.mark.parametrize("is_blocking", [False, True])
def test_wait_for_an_nccl_operation_ends_after_its_timeout(children, tmp_path, is_blocking):
    ranks, store = start(children, workers.wait_times_out, tmp_path, DLDIST_NCCL_BLOCKING_WAIT="1" if is_blocking else "")
    for rank in ranks:
        rank.result()
