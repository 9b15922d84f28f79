"""dldist.testing, tested with itself. Functions that must fail are called directly."""

import asyncio
import functools
import os
import re
import subprocess
import sys
import time
import unittest

import dldist
import pytest
from dldist.testing import RanksFailed, distributed, run_ranks, threads
from procs import under_load
from terminal import Terminal


def own_group(**how):
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dldist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), timeout=20)
    return dldist.Group(store, rank, size, **{"timeout": 20, **how})


def pids_and(word):
    print("printed by", os.environ["RANK"])
    with own_group() as group:
        return group.rank, group.size, os.getpid(), word, os.environ.get("EXTRA")


def all_raise():
    raise LookupError(f"rank {os.environ['RANK']}")


def one_raises():
    with own_group() as group:
        if group.rank == 1:
            raise LookupError("the culprit")
        group.barrier()


def one_asserts():
    values = [1, int(os.environ["RANK"])]
    assert values == [1, 0]


def one_leaves_a_receive():
    if dldist.get_rank() == 0:
        dldist.irecv(memoryview(bytearray(8)), 1, tag=4)


def all_leave_an_operation_that_ends():
    dldist.all_reduce(memoryview(bytearray(8)), async_op=True)


def one_hangs():
    if os.environ["RANK"] == "1":
        time.sleep(60)


def one_exits():
    if os.environ["RANK"] == "1":
        os._exit(3)


def one_skips():
    with own_group() as group:
        if group.rank == 0:
            pytest.skip("not on this machine")
        group.barrier()


def one_dies_and_leaves_a_child():
    if os.environ["RANK"] == "1":
        if os.fork() == 0:
            time.sleep(10)
            os._exit(0)
        os._exit(3)


class Unreadable:
    def __reduce__(self):
        return int, ("no number",)


def one_returns_an_unreadable_object():
    if os.environ["RANK"] == "1":
        raise LookupError("the other one")
    return Unreadable()


def interrupts():
    raise KeyboardInterrupt


class NotPickled(Exception):
    def __init__(self, one, two):
        super().__init__(one)


def raises_an_unpicklable_exception():
    raise NotPickled(1, 2)


class TestRunRanks:
    def test_run_ranks_returns_results_by_rank_and_prefixes_output(self, capsys):
        results = run_ranks(pids_and, 2, "word", init=False, env={"EXTRA": "more"})
        assert [(result[0], result[1], *result[3:]) for result in results] == [(r, 2, "word", "more") for r in (0, 1)]
        assert len({os.getpid(), results[0][2], results[1][2]}) == 3
        assert capsys.readouterr().out.splitlines() == ["[rank0]: printed by 0", "[rank1]: printed by 1"]

    def test_run_ranks_can_run_lambdas_and_inner_functions(self):
        base = 10
        assert run_ranks(lambda more: base + more + int(os.environ["RANK"]), 2, 5, init=False) == [15, 16]

    def test_run_ranks_can_run_any_callable(self):
        assert run_ranks(functools.partial(os.path.join, "a"), 1, "b", init=False) == ["a/b"]

    def test_run_ranks_can_run_functions_of_a_script(self, tmp_path):
        script = tmp_path / "script.py"
        script.write_text(
            "from dldist.testing import run_ranks\n"
            "BASE = 7\n"
            "def named(): return BASE\n"
            "if __name__ == '__main__':\n"
            "    print(run_ranks(named, 1, init=False), run_ranks(lambda: BASE + 1, 1, init=False))\n"
        )
        done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=20)
        assert done.stdout == "[7] [8]\n", done.stderr

    def test_ranks_of_a_test_have_a_default_world(self):
        assert run_ranks(world_size, 2) == [2, 2]

    def test_exception_that_all_ranks_raise_keeps_its_type(self, monkeypatch):
        monkeypatch.setattr("dldist.testing._GRACE_S", 20)
        with pytest.raises(LookupError, match="rank 0") as caught:
            run_ranks(all_raise, 2, init=False)
        (note,) = caught.value.__notes__
        assert note.startswith("2 of 2 ranks failed: 0, 1\n---- rank 0 ----\nTraceback")
        assert "LookupError: rank 1" in note

    def test_blamed_rank_is_shown_first_in_the_failure(self):
        with pytest.raises(RanksFailed) as caught:
            run_ranks(one_raises, 2, init=False)
        text = str(caught.value)
        assert text.startswith("rank 1: LookupError: the culprit\n2 of 2 ranks failed: 0, 1\n---- rank 1 ----\n")
        assert "LookupError: the culprit" in text
        assert text.index("---- rank 0 ----") < text.index("DistAbortedError")

    def test_failed_assertions_of_ranks_show_their_values(self):
        with pytest.raises(RanksFailed, match=r"(?s)^rank 1: AssertionError: assert \[1, 1\] == \[1, 0\]\n.*At index 1 diff: 1 != 0"):
            run_ranks(one_asserts, 2, init=False)

    def test_tracebacks_of_ranks_begin_in_the_tested_function(self):
        with pytest.raises(RanksFailed) as caught:
            run_ranks(one_asserts, 2, init=False)
        assert re.findall(r'File ".*/(\S+)", line \d+, in (\w+)', str(caught.value)) == [("test_testing.py", "one_asserts")]

    def test_operation_still_pending_at_the_end_of_a_test_is_a_failure(self):
        line = r"\(test_testing\.py:\d+: dldist\.irecv\(memoryview\(bytearray\(8\)\), 1, tag=4\)\)"
        words = f"^rank 0: AssertionError: operations are under way at the end of the test: recv from rank 1 {line}\n1 of 2 ranks"
        with pytest.raises(RanksFailed, match=words):
            run_ranks(one_leaves_a_receive, 2)

    def test_completed_operation_that_was_not_waited_for_is_no_failure(self):
        run_ranks(all_leave_an_operation_that_ends, 2)

    @pytest.mark.deadline(90)
    def test_timeout_of_a_test_shows_the_stack_of_each_late_rank(self, capsys):
        limit = under_load(4.0)  # the other rank ends within this
        began = time.monotonic()
        with pytest.raises(RanksFailed) as caught:
            run_ranks(one_hangs, 2, init=False, timeout=limit)
        assert limit <= time.monotonic() - began < 2.5 * limit
        assert re.search(r"---- rank 1 ----\nwas still running after \d", str(caught.value))
        assert "in one_hangs" in str(caught.value) and "testing_child" not in str(caught.value)
        assert "Fatal" not in str(caught.value) and "one_hangs" not in capsys.readouterr().err
        assert "rank 0 ----" not in str(caught.value)

    def test_rank_that_exits_without_a_result_is_a_failure(self):
        with pytest.raises(RanksFailed, match="---- rank 1 ----\nended without a result: exit code 3"):
            run_ranks(one_exits, 2, init=False)

    def test_death_of_a_rank_is_detected_even_if_its_pipe_stays_open(self):
        with pytest.raises(RanksFailed, match="---- rank 1 ----\nended without a result: exit code 3"):
            run_ranks(one_dies_and_leaves_a_child, 2, init=False, timeout=6.0)

    def test_rank_that_fails_to_start_is_a_failure(self):
        with pytest.raises(RanksFailed, match="(?s)ended without a result: exit code 1.*No module named 'encodings'"):
            run_ranks(len, 1, bytes(1 << 22), init=False, env={"PYTHONHOME": "/nowhere"})

    def test_result_that_cannot_be_unpickled_is_a_failure(self, monkeypatch):
        monkeypatch.setattr("dldist.testing._GRACE_S", 20)
        with pytest.raises(RanksFailed, match="(?s)rank 0 ----\nits result cannot be unpickled:.*no number.*the other one"):
            run_ranks(one_returns_an_unreadable_object, 2, init=False)

    def test_keyboard_interrupt_in_a_rank_does_not_interrupt_the_test_run(self):
        with pytest.raises(RanksFailed, match="KeyboardInterrupt"):
            run_ranks(interrupts, 1, init=False)

    def test_exception_that_cannot_be_pickled_is_a_failure(self):
        with pytest.raises(RanksFailed, match="NotPickled: 1"):
            run_ranks(raises_an_unpicklable_exception, 1, init=False)

    def test_skip_of_one_rank_skips_the_test(self):
        with pytest.raises(unittest.SkipTest, match="not on this machine"):
            run_ranks(one_skips, 2, init=False)

    def test_run_ranks_rejects_wrong_arguments(self):
        with pytest.raises(ValueError, match="'nranks' is out of range: got 0, expected 1 or more"):
            run_ranks(pids_and, 0)
        with pytest.raises(ValueError, match="'nranks' is out of range: got True, expected 1 or more"):
            run_ranks(pids_and, True)
        with pytest.raises(TypeError, match="'fn' must be callable"):
            run_ranks(None, 2)
        with pytest.raises(TypeError, match=r"argument 0 cannot be sent to the ranks: got \w+"):
            run_ranks(pids_and, 1, sys._getframe())
        with pytest.raises(TypeError, match="got a function, expected a call"):
            distributed(pids_and)


async def asserts_later():
    await asyncio.sleep(0)
    raise AssertionError("after the await")


def test_coroutine_functions_run_as_ranks_are_awaited():
    with pytest.raises(AssertionError, match="after the await"):
        run_ranks(asserts_later, 1, init=False)

    @threads(1)
    async def rank(group):
        await asserts_later()

    with pytest.raises(AssertionError, match="after the await"):
        rank()


def world_size():
    return dldist.get_world_size()


@distributed(nranks=2, init=False)
def test_decorated_function_runs_on_ranks():
    with own_group() as group:
        assert group.size == 2


@pytest.mark.parametrize("word", ["a", "b"])
@distributed(nranks=2, init=False)
def test_ranks_get_the_parameters_and_fixtures_of_a_test(word, tmp_path):
    assert word in "ab"
    (tmp_path / os.environ["RANK"]).write_text(word)
    with own_group() as group:
        group.barrier()
        assert [(tmp_path / str(rank)).read_text() for rank in range(group.size)] == [word, word]


@pytest.mark.parametrize("word", ["a"])
@distributed(nranks=2)
def test_argument_named_world_is_the_default_world(world, word):
    assert (world is dldist.default_world(), word, world.size) == (True, "a", 2)


@pytest.fixture
def world():
    return "a fixture"


@distributed(nranks=1, init=False)
def test_argument_named_world_is_a_fixture_if_there_is_no_default_world(world):
    assert world == "a fixture"


class TestMethods:
    VALUE = 3

    @distributed(nranks=1)
    def test_decorated_method_gets_the_world(self, world):
        assert world.size == 1

    @distributed(nranks=2, init=False)
    def test_decorated_method_runs_on_ranks(self):
        assert type(self).VALUE == 3
        assert os.environ["WORLD_SIZE"] == "2"

    class TestInner:
        @distributed(nranks=1, init=False)
        def test_decorated_method_runs_on_ranks(self, tmp_path):
            assert tmp_path.is_dir() and type(self).__qualname__ == "TestMethods.TestInner"


class TestOfUnittest(unittest.TestCase):
    def setUp(self):
        self.rank = os.environ.get("RANK")

    @distributed(nranks=2, init=False)
    def test_decorated_method_runs_on_ranks(self):
        self.assertEqual(self.rank, os.environ["RANK"])


class Skips(unittest.TestCase):
    __test__ = False

    @distributed(nranks=2, init=False)
    def test_skip(self):
        if os.environ["RANK"] == "1":
            self.skipTest("by one rank")
        time.sleep(60)


def test_skip_of_one_rank_skips_a_unittest(monkeypatch):
    monkeypatch.setattr("dldist.testing._GRACE_S", 0.1)
    result = unittest.TestResult()
    Skips("test_skip").run(result)
    assert [reason for _, reason in result.skipped] == ["by one rank"]
    assert result.errors == result.failures == []


class TestThreads:
    @threads(3)
    def test_decorated_function_runs_on_ranks_as_threads_of_one_process(self, group, tmp_path):
        assert tmp_path.is_dir()
        values = memoryview(bytearray(4)).cast("i")
        values[0] = group.rank + 1
        group.all_reduce(values)
        assert values[0] == 6

    def test_ranks_as_threads_return_results_and_raise_failures(self):
        @threads(2, timeout=10)
        def ranks(group, base):
            if base < 0 and group.rank == 1:
                raise LookupError("the culprit")
            group.barrier()
            return base + group.rank

        assert ranks(5) == [5, 6]
        with pytest.raises(LookupError, match="the culprit"):
            ranks(-1)

    def test_stack_of_a_hung_rank_thread_is_shown(self, monkeypatch):
        monkeypatch.setattr("dldist.testing._GRACE_S", 0.1)
        import threading

        end = threading.Event()

        @threads(2, timeout=0.5)
        def ranks(group):
            if group.rank == 1:
                end.wait(30)

        with pytest.raises(RanksFailed, match=r"(?s)---- rank 1 ----\nis still running, here:.*end\.wait\(30\)"):
            ranks()
        end.set()


    def test_operation_of_a_rank_thread_still_pending_at_the_end_is_a_failure(self):
        @threads(2)
        def ranks(group):
            if group.rank == 1:
                group.irecv(memoryview(bytearray(8)), tag=7)

        with pytest.raises(AssertionError, match=r"under way at the end of the test: recv from any rank \(test_testing\.py:\d+: group\.irecv"):
            ranks()


class TestPytest:
    """Runs of pytest on a file of its own."""

    LIMIT_S = 40

    @pytest.fixture(autouse=True)
    def environment(self, monkeypatch, tmp_path):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("PYTHONPATH", os.path.dirname(os.path.dirname(dldist.__file__)))
        monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)

    def run(self, *args):
        # -P: without the working directory on the path, as the command pytest.
        command = [sys.executable, "-P", *args, "-p", "no:cacheprovider", "-rf"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=self.LIMIT_S)
        return done.returncode, done.stdout + done.stderr

    @pytest.mark.parametrize("decorator", ["distributed(2, init=False)", "threads(2)"])
    def test_failure_output_shows_no_source_lines_of_dldist(self, tmp_path, decorator):
        argument = "group" if decorator.startswith("threads") else ""
        (tmp_path / "test_it.py").write_text(
            f"from dldist.testing import distributed, threads\n@{decorator}\ndef test_it({argument}):\n    assert [1, 2] == [1, 3]\n"
        )
        code, out = self.run("-m", "pytest")
        assert code == 1
        assert "At index 1 diff: 2 != 3" in out and "FAILED test_it.py::test_it - " in out
        assert "_run(" not in out and "testing.py" not in out.replace("test_it.py", ""), out

    @pytest.mark.parametrize("has_init", [False, True])
    def test_relative_imports_of_tests_work_in_importlib_mode_of_pytest(self, tmp_path, has_init):
        folder = tmp_path / "suite" / "inner"
        folder.mkdir(parents=True)
        (folder / "helper.py").write_text("VALUE = 5\n")
        (folder / "test_it.py").write_text(
            "from .helper import VALUE\nfrom dldist.testing import distributed\n"
            "@distributed(2, init=False)\ndef test_it():\n    assert VALUE == 5\n"
        )
        if has_init:
            (folder.parent / "__init__.py").touch()
            (folder / "__init__.py").touch()
            with open(folder / "test_it.py", "a") as file:  # by the full name, from the topmost package
                file.write("    import suite.inner.helper\n    assert suite.inner.helper.VALUE == 5\n")
        code, out = self.run("-m", "pytest", "--import-mode=importlib")
        assert code == 0, out

    def test_coverage_measurement_includes_the_ranks_of_a_test(self, tmp_path):
        coverage = pytest.importorskip("coverage")
        (tmp_path / "library.py").write_text("def branch(rank):\n    if rank:\n        return 1\n    return 0\n")
        (tmp_path / "test_it.py").write_text(
            "from dldist.testing import distributed\n@distributed(2)\ndef test_it(world):\n"
            "    import library\n    assert library.branch(world.rank) == world.rank\n"
        )
        os.environ["PYTHONPATH"] += f"{os.pathsep}{tmp_path}"
        code, out = self.run("-m", "coverage", "run", "--source=.", "-m", "pytest")
        assert code == 0, out
        data = coverage.CoverageData(str(tmp_path / ".coverage"))
        data.read()
        assert sorted(data.lines(str(tmp_path / "library.py"))) == [1, 2, 3, 4]

    @pytest.mark.parametrize("rank", [0, 1])
    def test_breakpoint_in_a_rank_of_a_test_reads_the_terminal(self, tmp_path, rank):
        (tmp_path / "test_it.py").write_text(
            "import dldist\nfrom dldist.testing import distributed\n@distributed(2)\ndef test_it(world):\n"
            f"    dldist.breakpoint({rank})\n    world.barrier()\n"
        )
        with Terminal([sys.executable, "-m", "pytest", "-p", "no:cacheprovider"], self.LIMIT_S) as job:
            assert "-> world.barrier()" in job.wait_for("(Pdb) ")
            job.enter("p 100 + world.rank")
            job.wait_for(f"\n{100 + rank}\n(Pdb) ")
            job.enter("c")
            code, out = job.finish()
        assert code == 0, out


def test_dldist_testing_can_be_imported_without_pytest():
    code = "import sys, dldist.testing; print(sorted({'pytest', '_pytest', 'numpy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20)
    assert done.stdout == "[]\n", done.stderr
