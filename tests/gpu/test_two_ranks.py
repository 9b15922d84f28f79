"""Two ranks on one GPU, each in its own process. These are the first tests that communicate,
because a group of one rank only copies.

They run the test suite of NCCL groups (tests/py/support/nccl_cases.py) and the cases of gpu_workers.py.
Arrays are allocated by the driver: no framework is needed.
"""

import signal

import gpu_workers
import group_team
import group_workers
import numpy
import pytest
from dldist import nccl
from gpu_device import DEVICE, Gpu
from nccl_cases import CASES, COUNTS, DTYPES

SINCE = (2, 30, 3)
CASE_TIMEOUT_S = 100
BLOCKING = pytest.mark.parametrize("blocking", [1, 0], ids=["blocking", "nonblocking"])

pytestmark = [
    pytest.mark.deadline(CASE_TIMEOUT_S + 30),
    pytest.mark.skipif(nccl.is_available() and nccl.get_version() < SINCE, reason="two ranks on one GPU need NCCL 2.30.3 or newer"),
]


class Team(group_team.Team):
    def run(self, case, *args):
        return super().run(case, *args, timeout=CASE_TIMEOUT_S)

    def check_stderr(self, texts):
        """Allow output on stderr: libraries of a real device may print messages."""
        for rank, text in enumerate(texts):
            print(f"stderr of rank {rank}:\n{text}" if text else "", end="")


class Teams(group_team.Teams):
    team_type = Team

    def __init__(self, worker):
        super().__init__()
        self._worker = worker

    def __call__(self, blocking=1):
        return super().__call__(2, options={"config": {"blocking": blocking}}, worker=self._worker)


@pytest.fixture(scope="module")
def teams():
    teams = Teams(gpu_workers.member)
    yield teams
    teams.close()


@pytest.fixture(scope="module")
def case_teams():
    teams = Teams(gpu_workers.case_runner)
    yield teams
    teams.close()


@pytest.mark.parametrize("name", DTYPES)
class TestCollectives:
    """Compare every collective with every type with plain Python."""

    def test_reductions_of_two_ranks_on_a_gpu_are_correct(self, teams, name):
        teams().run(group_workers.sweep_reductions, name, COUNTS)

    def test_data_movement_of_two_ranks_on_a_gpu_is_correct(self, teams, name):
        teams().run(group_workers.sweep_movements, name, COUNTS)


class TestSuite:
    @BLOCKING
    @pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
    def test_each_case_of_two_ranks_on_a_gpu_passes(self, teams, case, blocking):
        teams(blocking).run(case)

    @pytest.mark.parametrize("variant", ["questions", "await", "futures", "callbacks"])
    def test_wait_on_a_gpu_returns_after_the_late_rank_calls(self, teams, variant):
        seen = teams().run(group_workers.late_rank, variant)[0]
        assert seen == ([(True, "dldist-completion", 1, True), True] if variant == "callbacks" else 1)

    def test_results_of_two_ranks_on_a_gpu_match_a_reference(self, teams):
        teams().run(group_workers.by_oracle)


class TestLife:
    @BLOCKING
    @pytest.mark.parametrize("name", gpu_workers.CASES)
    def test_each_case_of_two_ranks_on_a_gpu_passes(self, case_teams, name, blocking):
        print(case_teams(blocking).run(gpu_workers.CASES[name]))

    def test_killed_rank_on_a_gpu_is_reported_by_the_other(self, procs):
        ranks, store = group_team.start_ranks(procs, gpu_workers.killed, 2)
        assert ranks[1].recv(60) == "ready"
        ranks[1].kill(signal.SIGKILL)
        ranks[1].process.wait(10)
        ranks[0].send("go on")
        ranks[0].result(60)

    def test_both_ranks_on_a_gpu_may_be_in_one_process(self):
        gpu = Gpu()
        streams = [gpu.cuda.make_stream(DEVICE) for _ in range(2)]
        arrays = [gpu.Array(gpu, numpy.full(1000, rank + 1, "float32")) for rank in range(2)]
        with nccl.NcclComms([DEVICE, DEVICE]) as comms:
            comms.all_reduce(arrays, streams=streams)
            for stream in streams:
                gpu.cuda.synchronize(stream, DEVICE)
        assert [set(each.numpy().tolist()) for each in arrays] == [{3.0}, {3.0}]
