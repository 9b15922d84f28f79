"""c10d's windows. See window_workers.py."""

import dldist
import group_team
import pytest
import window_workers as cases
from thread_ranks import in_worlds


@pytest.fixture(scope="module")
def teams():
    teams = group_team.Teams()
    yield lambda size: teams(size, worker=cases.member)
    teams.close()


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize(
    "case",
    [cases.windows, cases.async_windows, cases.unregistered_source, cases.awaited_twice, cases.nothing_registered],
    ids=lambda case: case.__name__,
)
def test_each_case_of_windows_passes(teams, size, case):
    teams(size).run(case)


def test_process_groups_create_windows_by_their_torch_distributed_names(monkeypatch):
    """Windows must work by c10d's names, with hooks and in DETAIL mode."""

    def case(rank):
        pg = dldist.group.WORLD
        seen = []
        pg.register_pre_hook(1, lambda args: seen.append(args.name))
        assert pg.supports_window and dldist._supports_window()
        x = dldist.empty(4, "int32")
        for window in (pg.new_window(x), dldist._new_window(x)):
            window.put(memoryview(bytes([1, 0, 0, 0])).cast("i"), 1 - rank, 2)
            window.signal(1 - rank)
            window.wait_signal(1 - rank)
            assert memoryview(x).tolist() == [0, 0, 1, 0]
            window.tensor_deregister()
        assert [name.name for name in seen].count("NEW_WINDOW") == 1

    in_worlds(2, case)
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "DETAIL")
    monkeypatch.setattr("dldist._base.options._debug_level", None)
    in_worlds(2, case)


def test_window_enums_and_options_have_the_values_of_torch():
    assert [int(member) for member in (dldist.WindowAccessType.UNIFIED, dldist.WindowAccessType.SEPARATE)] == [0, 1]
    for kind in (dldist.PutOptions, dldist.SignalOptions, dldist.WaitSignalOptions):
        opts = kind()
        assert opts.hints == {} and opts.timeout.total_seconds() == -0.001
    assert "SEPARATE" in repr(dldist.WindowAttr(dldist.WindowAccessType.SEPARATE))


def test_views_of_a_window_may_be_released_by_threads_without_python(procs):
    start, taken, one_gone, another_gone, at_the_end = procs.start(cases.release_from_foreign_threads).result()
    assert start == 0 and 2 * taken == 3 * one_gone > 0 and taken == 3 * another_gone and at_the_end == another_gone
