"""Plans: every collective by a plan, against plain Python and plain calls. See plan_workers.py."""

import array
import importlib.util
import os

import dldist
import group_team
import plan_workers as cases
import pytest

SIZES = [1, 2, 3, 4]
COUNTS = [0, 1, 5, 1000]
HAS_NUMPY = importlib.util.find_spec("numpy") is not None
DTYPES = ["b", "Q", "f", "d", "?", *(["float16", "complex64"] if HAS_NUMPY else [])]


@pytest.fixture(scope="module")
def teams():
    teams = group_team.Teams()
    yield lambda size, **settings: teams(size, worker=cases.member, **settings)
    teams.close()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("sweep", ["sweep_reductions", "sweep_movements"])
@pytest.mark.parametrize("run", sorted(cases.RUNS))
def test_planned_collectives_are_correct(teams, size, sweep, run):
    for name in DTYPES if run == "call_once" and size == 2 else ["b", "f", "?"]:
        teams(size).run(cases.planned, sweep, run, name, COUNTS)


@pytest.mark.parametrize("size", [2, 3])
def test_planned_calls_on_one_rank_match_plain_calls_on_another(teams, size):
    for sweep in ("sweep_reductions", "sweep_movements"):
        teams(size).run(cases.mixed, sweep, "f", COUNTS)
    teams(size).run(cases.mixed, "uneven")


@pytest.mark.parametrize("env", [{"DLDIST_SHM": "0"}, {"DLDIST_ALGORITHM": "flat"}], ids=["tcp", "flat"])
def test_planned_calls_are_correct_without_shared_memory_or_optimisations(teams, env):
    team = teams(2, env=env)
    for sweep in ("sweep_reductions", "sweep_movements"):
        team.run(cases.planned, sweep, "start_and_wait", "f", [1, 1000])
    team.run(cases.again_and_again)
    team.run(cases.several)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("case", ["uneven", "coalesced", "strided", "overlapping", "premultiplied", "shared_arrays"])
def test_planned_calls_accept_arrays_of_every_layout(teams, size, case):
    teams(size).run(cases.planned, case, "start_and_wait")


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    "case",
    [cases.again_and_again, cases.several, cases.in_call_order, cases.rejects_a_second_start, cases.dropped_while_pending,
     cases.from_another_thread, cases.closed_plan, cases.recorded, cases.kept_alive, cases.cycles],
    ids=lambda case: case.__name__,
)
def test_each_case_of_plans_passes(teams, size, case):
    teams(size).run(case)


def test_polling_a_plan_advances_it_with_more_ranks_than_cores():
    """Polls must advance a plan. Without them only the engine's thread does, every 20 ms: a start
    on three ranks took 66 ms."""
    cpus = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cpus)})  # inherited by the ranks, which are child processes
    try:
        team = group_team.Team(3, worker=cases.member)
    finally:
        os.sched_setaffinity(0, cpus)
    try:
        assert max(team.run(cases.polled)) < 0.02
    finally:
        team.close()


@pytest.mark.parametrize("case", [cases.interrupted, cases.forked], ids=lambda case: case.__name__)
def test_each_case_of_plans_with_processes_passes(teams, case):
    teams(2).run(case)


@pytest.mark.parametrize(
    ("how", "kind", "texts"),
    [
        ("mismatch", "DistMismatchError", ["1 elements", "2 elements"]),
        ("abort", "DistAbortedError", ["the end"]),
        ("late", "DistTimeoutError", ["timed out after 0."]),
    ],
)
def test_failure_of_a_planned_call_fails_later_calls(how, kind, texts):
    team = group_team.Team(2, worker=cases.member)
    try:
        for first, *later in team.run(cases.fails, how):
            for got in (first, *later):
                assert got[0] == kind and all(text in got[1] for text in texts), got
            assert all("the group has failed before" in text for _, text in later), later
    finally:
        team.close()


def test_plan_of_a_closed_group_is_rejected():
    team = group_team.Team(2, worker=cases.member)
    try:
        for outcomes in team.run(cases.closed_group):
            assert all("is closed" in text for _, text in outcomes), outcomes
    finally:
        team.close()


# ---- refused calls


@pytest.fixture
def alone():
    with dldist.Group(None, 0, 1) as group:
        yield group


def test_arguments_of_a_plan_are_checked_when_it_is_created(alone):
    for call, kind, text in (
        (lambda: alone.plan.all_reduce(3), TypeError, r"plan\.all_reduce\(\)"),
        (lambda: alone.plan.all_reduce(), TypeError, r"plan\.all_reduce\(\) missing required argument 'tensor'"),
        (lambda: alone.plan.broadcast(array.array("i", [1]), 1), ValueError, r"plan\.broadcast\(\): argument 'root' is an invalid root rank"),
        (lambda: alone.plan.all_reduce(array.array("f", [1]), "band"), ValueError, "reduction BAND does not support dtype float32"),
        (lambda: alone.plan.all_reduce(array.array("i", [1]), async_op=True), TypeError, "unexpected keyword"),
        (lambda: alone.plan.barrier(timeout="soon"), TypeError, "timeout"),
        (lambda: alone.plan.barrier()(1), TypeError, "a plan is called without arguments"),
        (lambda: dldist.start_all(alone.plan.barrier()), TypeError, "a list or tuple of Plans"),
        (lambda: dldist.wait_all([3]), TypeError, "must be a Work or Plan, or None, not int"),
        (lambda: dldist.Plan(), TypeError, "cannot create 'dldist.Plan' instances"),
    ):
        with pytest.raises(kind, match=text):
            call()


def test_plan_in_a_coalescing_block_runs_immediately(alone):
    tensor = array.array("i", [1])
    with alone.coalesce():
        plan = alone.plan.all_reduce(tensor)
    assert isinstance(plan, dldist.Plan)
    plan()


def test_plan_keeps_its_group_open(alone):
    group = dldist.Group(None, 0, 1)
    plan = group.plan.barrier()
    del group
    plan()
