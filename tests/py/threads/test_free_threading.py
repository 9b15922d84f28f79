"""Threads that share an object: a work, a plan, a group, a window. With the GIL and without."""

import array
import contextlib
import sys
import threading
import time

import dldist
import pytest
from pairs import LIMIT_S, on_both, open_pair, together

NTHREADS = 8
NROUNDS = 40


def ints(*values):
    return array.array("i", values)


@contextlib.contextmanager
def frequent_switches():
    """Switch between threads often if there is a GIL."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


@pytest.fixture(autouse=True)
def switches():
    with frequent_switches():
        yield


def outcome(call, *allowed):
    """Return True if the call succeeds, and False if it raises one of the allowed exceptions."""
    try:
        call()
    except allowed:
        return False
    return True


@pytest.fixture
def group():
    with dldist.Group(None, 0, 1, timeout=LIMIT_S) as group:
        yield group


@pytest.fixture
def pair():
    with open_pair(timeout=LIMIT_S) as groups:
        yield groups


# ---- works


def test_threads_may_wait_for_one_work(pair):
    for _ in range(NROUNDS):
        message = ints(0)
        work = pair[0].irecv(message, 1)
        waits = [work.wait] * (NTHREADS - 2) + [work.result, work.is_completed]
        calls = [lambda call=call: outcome(call, RuntimeError) for call in waits]
        results = together(*calls, lambda: pair[1].send(ints(7), 0))
        assert all(results[: NTHREADS - 2])
        assert message[0] == 7
        assert work.result()[0] is message
        assert len({id(result) for result in together(*[work.result] * NTHREADS)}) == 1


def test_threads_may_wait_for_one_work_with_a_strided_output(pair):
    for round_number in range(NROUNDS):
        memory = ints(*range(16))
        output = memoryview(memory)[::2]
        work = pair[0].irecv(output, 1)
        together(*[work.wait] * NTHREADS, lambda n=round_number: pair[1].send(ints(*[n] * 8), 0))
        assert memory[::2] == ints(*[round_number] * 8)
        assert memory[1::2] == ints(*range(1, 16, 2))


def test_callbacks_added_by_several_threads_each_run_once(pair):
    for _ in range(NROUNDS):
        called = []
        work = pair[0].irecv(ints(0), 1)
        adders = [lambda i=i: work._watch(lambda: called.append(i)) for i in range(NTHREADS)]
        together(*adders, lambda: pair[1].send(ints(1), 0))
        deadline = time.monotonic() + LIMIT_S
        while len(called) < NTHREADS and time.monotonic() < deadline:
            time.sleep(0.001)
        assert sorted(called) == list(range(NTHREADS))


def test_works_dropped_by_threads_are_released(pair):
    def post():
        for _ in range(NROUNDS):
            pair[0].irecv(ints(0), 1, 5)

    together(*[post] * NTHREADS, lambda: [pair[1].send(ints(1), 0, 5) for _ in range(NTHREADS * NROUNDS)])
    pair[0].irecv(ints(0), 1)  # releases the memory of the dropped works
    pair[1].send(ints(1), 0)


# ---- plans


def test_plan_started_by_several_threads_runs_once_at_a_time(group):
    tensor = ints(1)
    plan = group.plan.all_reduce(tensor)
    sequence = group.sequence
    starts = []

    def use():
        for _ in range(NROUNDS):
            if outcome(plan.start, RuntimeError):
                starts.append(1)
            plan.wait()
            plan.is_completed()
            repr(plan)

    together(*[use] * NTHREADS)
    assert len(starts) > 0
    assert group.sequence == sequence + len(starts)
    assert plan.tensors[0] is tensor
    plan.close()


def test_plan_started_by_several_threads_gives_correct_strided_results(group):
    memory = ints(*range(64))
    plan = group.plan.all_reduce(memoryview(memory)[::2])

    def use():
        for _ in range(NROUNDS):
            outcome(plan, RuntimeError)

    together(*[use] * NTHREADS)
    plan.wait()
    assert memory == ints(*range(64))


def test_plan_may_be_closed_while_threads_use_it(group):
    for _ in range(NROUNDS):
        plan = group.plan.all_reduce(ints(1))
        uses = [plan, plan.start, plan.wait, plan.is_completed, lambda plan=plan: plan.tensors]
        calls = [lambda use=use: outcome(use, RuntimeError) for use in uses]
        together(*calls, lambda plan=plan: outcome(plan.close, RuntimeError))
        plan.close()
        with pytest.raises(RuntimeError, match="closed"):
            plan.start()


def start_and_wait(plan, waited):
    """Start a plan that cannot run while other threads wait for it; collect errors in `waited`."""

    def start():
        for _ in range(50 * NROUNDS):
            with pytest.raises(dldist.DistError):
                plan.start()

    def wait():
        for _ in range(50 * NROUNDS):
            try:
                waited.append(plan.wait())
            except dldist.DistError as error:
                waited.append(str(error))

    together(start, *[wait] * (NTHREADS - 1))


def test_plan_that_cannot_be_started_again_keeps_its_last_result(group):
    plan = group.plan.all_reduce(ints(1))
    plan()
    group.abort("over")
    waited = []
    start_and_wait(plan, waited)
    assert set(waited) == {None}


def test_plan_that_cannot_be_started_again_keeps_its_failure(pair):
    plan = pair[0].plan.all_reduce(ints(1))
    plan.start()
    pair[1].abort("over")
    with pytest.raises(dldist.DistError) as failure:
        plan.wait()
    waited = []
    start_and_wait(plan, waited)
    assert set(waited) == {str(failure.value)}


def test_lists_of_plans_may_be_started_by_several_threads(group):
    plans = [group.plan.all_reduce(ints(i)) for i in range(3)]
    sequence = group.sequence
    starts = []

    def use():
        for _ in range(NROUNDS):
            if outcome(lambda: dldist._core.start_all(plans), RuntimeError):
                starts.append(1)
            dldist._core.wait_all(plans)

    together(*[use] * NTHREADS)
    dldist._core.wait_all(plans)
    assert group.sequence == sequence + len(plans) * len(starts)


# ---- groups


def test_threads_may_run_collectives_on_separate_groups():
    def use():
        with dldist.Group(None, 0, 1, timeout=LIMIT_S) as group:
            for i in range(NROUNDS):
                tensor = ints(i, i)
                group.all_reduce(tensor)
                assert tensor == ints(i, i)

    together(*[use] * NTHREADS)


def test_threads_may_run_different_collectives_on_one_group(group):
    def use(size):
        for i in range(NROUNDS):
            tensor = ints(*[i] * size)
            group.all_reduce(tensor)
            group.all_reduce(tensor, async_op=True).wait()
            group.broadcast(tensor, 0)
            assert tensor == ints(*[i] * size)

    sequence = group.sequence
    together(*[lambda size=size: use(size) for size in range(1, NTHREADS + 1)])
    assert group.sequence == sequence + 3 * NTHREADS * NROUNDS


def test_group_may_be_closed_while_threads_start_calls_and_read_it():
    for _ in range(NROUNDS):
        group = dldist.Group(None, 0, 1, timeout=LIMIT_S)

        def post(group=group):
            while outcome(lambda: group.all_reduce(ints(1), async_op=True), dldist.DistBackendError):
                pass

        def read(group=group):
            while not group.is_closed:
                assert (group.rank, group.size, group.name) == (0, 1, "default")
                repr(group)
                group.timeout = 5
                _ = group.timeout, group.error, group.members, group.sequence

        together(post, post, read, read, group.close)


def test_group_initialised_by_several_threads_opens_once():
    for _ in range(NROUNDS):
        group = dldist.Group.__new__(dldist.Group)
        calls = [lambda g=group: outcome(lambda: g.__init__(None, 0, 1), RuntimeError) for _ in range(NTHREADS)]
        assert sum(together(*calls)) == 1
        group.all_reduce(ints(1))
        group.close()


def test_lists_of_groups_stay_valid_while_threads_drop_groups():
    tensor = ints(1)

    def make():
        for _ in range(NROUNDS):
            dldist.Group(None, 0, 1, timeout=LIMIT_S)

    def look():
        for _ in range(NROUNDS * 5):
            assert not dldist._core._is_shared(tensor)

    together(*[make] * 4, *[look] * 4)


def test_recorder_set_by_one_thread_does_not_record_calls_of_another(group):
    class Recorder:
        def __init__(self):
            self.calls = 0

        def record(self, *_):
            self.calls += 1

    def use():
        for i in range(NROUNDS):
            recorder = Recorder()
            assert group._set_recorder(recorder) is None
            group.all_reduce(ints(i))
            assert group._set_recorder(None) is recorder
            assert recorder.calls == 1
            group.all_reduce(ints(i))
            assert recorder.calls == 1

    together(*[use] * NTHREADS)


def test_list_of_tensors_may_change_while_a_call_reads_it(group):
    tensors = [ints(1) for _ in range(4)]
    is_done = threading.Event()

    def change():
        while not is_done.is_set():
            tensors.append(ints(1))
            del tensors[0]

    def use():
        try:
            for _ in range(NROUNDS * 5):
                outcome(lambda: group.all_reduce_coalesced(tensors), ValueError, RuntimeError)
        finally:
            is_done.set()

    together(change, use)


# ---- windows


def test_window_may_be_closed_while_threads_use_it(pair):
    def make(group, _):
        return dldist._core.Window(group, group.empty(64, "int32"))

    for _ in range(NROUNDS // 4):
        windows = on_both(pair, make)
        window = windows[0]

        def use(n, window=window):
            for i in range(NROUNDS):
                window.put(ints(n), 1, n)
                got = ints(0)
                window.get(got, 1, n)
                assert got[0] == n, i
                _ = window.buffer_ptrs, window.group, window.channels
                view = window.get_buffer(1, [4], "int32")
                assert len(view) == 4

        calls = [lambda n=n: outcome(lambda: use(n), RuntimeError, dldist.DistError) for n in range(NTHREADS)]
        assert all(together(*calls))
        together(*calls, window.close)
        windows[1].close()
