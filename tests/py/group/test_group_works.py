"""Works, futures, callbacks, and groups split from groups."""

import array
import re
import threading
import time

import dldist
import group_team
import group_workers as cases
import pytest
from procs import poll_until, under_load


@pytest.fixture(scope="module")
def teams():
    teams = group_team.Teams()
    yield teams
    teams.close()


@pytest.fixture
def alone():
    with dldist.Group(None, 0, 1) as group:
        yield group


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("case", [cases.async_forms, cases.many_works, cases.dropped, cases.in_threads],
                         ids=lambda case: case.__name__)
def test_each_case_of_asynchronous_works_passes(teams, size, case):
    teams(size).run(case)


@pytest.mark.parametrize("count", [4, 100_000])
def test_work_of_a_single_rank_completes_even_if_no_thread_waits(alone, count):
    """A work must complete without a waiter. With a single rank, no engine thread monitors it."""
    tensor = array.array("f", [2.0]) * count
    ended = threading.Event()
    work = alone.all_reduce(tensor, async_op=True)
    work.get_future().add_done_callback(lambda _: ended.set())
    assert ended.wait(10) and work.is_completed() and tensor[-1] == 2.0


@pytest.mark.parametrize("variant", ["questions", "await", "futures", "dropped"])
def test_wait_returns_after_the_late_rank_calls(teams, variant):
    assert teams(2).run(cases.late_rank, variant)[0] == 1


def test_callbacks_run_on_the_completion_thread_or_immediately(teams):
    """Callbacks must run on dldist's own thread if they had to wait, with the result in place;
    otherwise immediately."""
    seen = teams(2).run(cases.late_rank, "callbacks")[0]
    assert seen == [(True, "dldist-completion", 1, True), True]


def test_failed_works_raise_when_awaited(teams):
    for result, text in teams(2).run(cases.failing_works):
        assert result == "awaited"
        assert "recv" in text and "timed out" in text


def test_group_lists_its_members(teams):
    replies = teams(3).run(cases.membership)
    pids = [pid for _, pid, *_ in replies]
    for rank, (members, _, first, host) in enumerate(replies):
        assert first == 0 and host == members[-1][1]
        assert [member[0] for member in members] == [0, 1, 2]
        assert [member[2] for member in members] == pids
        assert all(member[4] for member in members)
        assert members[rank][3] == "self"


@pytest.mark.parametrize("size", [1, 2, 4])
def test_group_can_be_split_in_every_way(teams, size):
    names = teams(size).run(cases.splits)
    assert names[0].startswith("default/")


@pytest.mark.parametrize("size", [2, 3])
def test_several_groups_can_be_created_over_one_store(teams, size):
    team = teams(size)
    for _ in range(2):  # the names are reusable
        team.run(cases.more_worlds, team.port)


@pytest.mark.deadline(60)
def test_several_ranks_may_be_threads_of_one_process(procs):
    store = dldist.TCPStore("127.0.0.1", 0, is_master=True)
    child = procs.start(cases.ranks_as_threads, store.port, 3)
    assert child.result(50) == [(3.0, 2), (3.0, 0), (3.0, 1)]


@pytest.mark.deadline(90)
def test_repeated_open_and_close_leaks_nothing(teams):
    """After 100 cycles, descriptors, threads, mappings and memory must be unchanged."""
    team = teams(2)
    for before, after in team.run(cases.open_and_close, team.port, 0, 100, timeout=80):
        assert after[:2] == before[:2], (before, after)
        assert after[2] <= before[2] + 4, (before, after)
        assert after[3] - before[3] < 8 << 20, (before, after)


# ---- one process is enough


def test_future_has_the_value_or_error_that_was_set():
    future = dldist.Future()
    seen = []
    future.add_done_callback(lambda done: seen.append(done.value()))
    after = future.then(lambda done: done.value() + 1)
    assert not future.done() and future.exception() is None
    with pytest.raises(RuntimeError):
        future.value()
    with pytest.raises(dldist.DistTimeoutError):
        future.wait(0.01)
    waiting = []
    threads = [threading.Thread(target=lambda: waiting.append(future.wait(10))) for _ in range(3)]
    for thread in threads:
        thread.start()
    future.set_result(41)
    for thread in threads:
        thread.join()
    assert seen == [41] and waiting == [41] * 3
    assert future.wait() == future.value() == 41 and after.wait() == 42
    future.add_done_callback(lambda done: seen.append("immediately"))
    assert seen == [41, "immediately"]
    with pytest.raises(RuntimeError):
        future.set_result(1)
    failed = dldist.Future()
    failed.set_exception(LookupError("why"))
    with pytest.raises(LookupError, match="why"):
        failed.wait()
    with pytest.raises(LookupError):
        failed.then(lambda done: done.value()).wait()
    assert isinstance(failed.exception(), LookupError)
    with pytest.raises(TypeError):
        dldist.Future().set_exception("text")


def test_future_of_a_work_rejects_a_value(alone):
    future = alone.barrier(async_op=True).get_future()
    with pytest.raises(RuntimeError):
        future.set_result(1)
    assert future.wait() == []


def test_work_wakes_all_waiting_threads(alone):
    """A work must wake all threads that wait for it."""
    tensor = bytearray(4)
    work = alone.irecv(tensor, 0)
    results = []
    threads = [threading.Thread(target=lambda: results.append(work.wait(10))) for _ in range(4)]
    for thread in threads:
        thread.start()
    alone.send(b"\1\2\3\4", 0)
    for thread in threads:
        thread.join(10)
    assert results == [True] * 4 and bytes(tensor) == b"\1\2\3\4"


def test_tensor_of_a_dropped_work_is_released_without_another_call(alone):
    """Dropped tensors must be released, even if dldist is not called again."""
    tensor = bytearray(4)
    alone.irecv(tensor, 0)
    sender = threading.Thread(target=alone.send, args=(b"abcd", 0))
    sender.start()
    sender.join()

    def is_free():
        try:
            tensor.append(0)
        except BufferError:
            return False
        return True

    poll_until(is_free)
    assert bytes(tensor[:4]) == b"abcd"


def test_wait_of_a_completed_work_returns_immediately(alone):
    work = alone.all_reduce(bytearray(4), async_op=True)
    work.wait()
    start = time.monotonic()
    assert work.wait(0) and time.monotonic() - start < under_load(1)


def test_group_is_closed_when_its_last_reference_is_dropped():
    for _ in range(20):
        group = dldist.Group(None, 0, 1)
        group.all_reduce(bytearray(4), async_op=True)
        del group


def test_group_made_by_a_split_is_named_after_its_parent(alone):
    assert alone.split([0]).name == "default/0"
    assert alone.split((0,), name="x").name == "x"
    assert re.fullmatch(r"<dldist.Group 'default': rank 0 of 1>", repr(alone))


# ---- memory that must not move


def refusal_of(call, *args, **kwargs):
    """Return the error of a call that would move memory."""
    with pytest.raises((ValueError, BufferError)) as raised:
        call(*args, **kwargs)
    return str(raised.value)


def check_stays(array_of, begin, end):
    """While a call started by begin() is pending, its array, or one it views, cannot be resized."""
    for memory, resize in array_of:
        handle = begin(memory)
        assert refusal_of(resize)
        end(handle)
        del handle, memory
        resize()


def resizable_arrays(numpy):
    """Yield arrays, each with a call that moves its memory."""
    whole, viewed, shown = (numpy.zeros(100, "int8") for _ in range(3))
    standard, plain = array.array("b", bytes(100)), bytearray(100)
    large = 1 << 20
    yield whole, lambda: whole.resize(large, refcheck=False)
    yield viewed[10:20], lambda: viewed.resize(large, refcheck=False)
    yield memoryview(shown), lambda: shown.resize(large, refcheck=False)
    yield standard, lambda: standard.extend(bytes(large))
    yield plain, lambda: plain.extend(bytes(large))


def test_memory_of_a_tensor_cannot_be_resized_during_a_work(alone):
    numpy = pytest.importorskip("numpy")

    def receive(memory):
        return alone.irecv(memory, 0, tag=9)

    def complete(work):
        alone.send(bytes(1), 0, tag=9)
        work.wait()

    check_stays(resizable_arrays(numpy), receive, complete)


def test_memory_of_a_tensor_cannot_be_resized_while_a_plan_or_window_uses_it(alone):
    numpy = pytest.importorskip("numpy")
    check_stays(resizable_arrays(numpy), alone.plan.all_reduce, lambda plan: plan.close())
    check_stays(resizable_arrays(numpy), lambda memory: dldist._core.Window(alone, memory), lambda window: window.close())
