"""Cases that the ranks of test_plans.py run. See group_workers.py. Without pytest, so that the
children start faster."""

import array
import ctypes
import gc
import os
import signal
import threading
import time
import weakref

import dldist
import group_workers as cases
from dldist import flight_recorder


class Planned:
    """A group whose collectives use plans on ranks where `uses_plan` returns True, run by `run`."""

    def __init__(self, group, run, uses_plan=lambda rank: True):
        self._group = group
        self._run = run
        self._uses_plan = uses_plan(group.rank)

    def __getattr__(self, name):
        make = getattr(self._group.plan, name, None) if self._uses_plan else None
        if make is None:
            return getattr(self._group, name)

        def call(*args, async_op=False, **kwargs):
            if async_op:
                return getattr(self._group, name)(*args, async_op=True, **kwargs)
            return self._run(make(*args, **kwargs))

        return call


def call_once(plan):
    return plan()


def start_and_wait(plan):
    plan.start()
    return plan.wait()


def poll(plan):
    plan.start()
    while not plan.is_completed():
        time.sleep(0)


def with_lists(plan):
    dldist.start_all([plan])
    dldist.wait_all((plan,))


RUNS = {run.__name__: run for run in (call_once, start_and_wait, poll, with_lists)}


def planned(group, case, run, *args):
    """Run a case of group_workers with plans."""
    return getattr(cases, case)(Planned(group, RUNS[run]), *args)


def mixed(group, case, *args):
    """Run a case with plans on every second rank; the other ranks must not be affected."""
    return getattr(cases, case)(Planned(group, call_once, lambda rank: rank % 2 == 0), *args)


def again_and_again(group):
    """A plan must use the tensor's content at each start."""
    total = group.size * (group.size - 1) // 2
    plain = array.array("d", [0] * 3)
    spread = memoryview(array.array("d", [0] * 6))[::2]
    large = array.array("d", [0] * 40_000)
    for tensor in (plain, spread, large):
        plan = group.plan.all_reduce(tensor)
        for round in range(20):
            for i in range(3):
                tensor[i] = group.rank + round + i
            assert start_and_wait(plan) is None if round % 2 else plan() is None
            assert list(tensor[:3]) == [total + group.size * (round + i) for i in range(3)]
            if round % 5 == 0:
                group.barrier()
        plan.close()
    output = array.array("i", [0] * group.size)
    value = array.array("i", [0])
    plan = group.plan.all_gather_single(output, value)
    for round in range(5):
        value[0] = group.rank * round
        plan()
        assert output.tolist() == [rank * round for rank in range(group.size)]


def several(group):
    tensors = [array.array("i", [i + group.rank] * (1 if i % 3 else 3000)) for i in range(16)]
    plans = [group.plan.all_reduce(tensor, "max") for tensor in tensors]
    before = group.sequence
    for _ in range(3):
        dldist.start_all(plans)
        dldist.wait_all(plans[::-1])
    assert group.sequence == before + 48
    assert [tensor[0] for tensor in tensors] == [i + group.size - 1 for i in range(16)]
    dldist.start_all([])
    other = group.split(list(range(group.size)))
    ones = [array.array("i", [1]) for _ in range(4)]
    pairs = [owner.plan.all_reduce(one) for owner, one in zip((group, group, other, group), ones)]
    dldist.start_all(pairs)
    dldist.wait_all(pairs)
    assert [one[0] for one in ones] == [group.size] * 4
    pairs.clear()
    other.close()


def in_call_order(group):
    """Plans, plain calls and asynchronous calls must run in call order."""
    tensor = array.array("i", [1])
    plan = group.plan.all_reduce(tensor)
    double = array.array("i", [2])
    for _ in range(20):
        tensor[0] = 1
        work = group.all_reduce(double, "max", async_op=True)
        plan.start()
        last = group.all_reduce(double, "max", async_op=True)
        group.barrier()
        plan.wait()
        assert tensor[0] == group.size
        work.wait()
        last.wait()


def polled(group):
    """Return the median time in seconds from a start until a poll finds its end."""
    plan = group.plan.all_reduce(array.array("i", [1]))
    seconds = []
    for _ in range(30):
        plan.start()
        began = time.monotonic()
        while not plan.is_completed() and time.monotonic() < began + 10:
            time.sleep(1e-4)
        plan.wait()
        seconds.append(time.monotonic() - began)
    return sorted(seconds)[15]


def rejects_a_second_start(group):
    tensor = array.array("i", [1])
    plan = group.plan.all_reduce(tensor)
    other = group.plan.barrier()
    plan.start()
    for call in (plan.start, plan, lambda: dldist.start_all([other, plan]), lambda: dldist.start_all([other, other])):
        kind, text = cases.raised(call)
        assert kind == "RuntimeError" and "cannot be started again before it has been waited for" in text, text
    plan.wait()
    plan.wait()  # a second wait returns immediately
    other()
    assert group.size == tensor[0] and repr(other) == "<dldist.Plan: barrier, ready>" and other.op == "barrier"


def await_the_thread(condition):
    """Wait until the library's thread has finished an operation whose plan was dropped."""
    until = time.monotonic() + 10
    while not condition() and time.monotonic() < until:
        time.sleep(0.001)
    assert condition()


def dropped_while_pending(group):
    """A dropped plan's tensors must live until the operation ends, and receive its results."""
    for count in (1, 50_000):
        tensor = (ctypes.c_double * (2 * count))(*([1] * (2 * count)))
        reference = weakref.ref(tensor)
        view = memoryview(tensor).cast("B").cast("d")[::2]
        if group.rank == 0:
            plan = group.plan.all_reduce(view)
            plan.start()
            del plan
            copy = view
            del tensor, view
            group.barrier()
            filled = [group.size] * min(3, count)
            await_the_thread(lambda: list(copy[:3]) == filled)
            del copy
        else:
            group.plan.all_reduce(view)()
            del tensor, view
            group.barrier()
        gc.collect()
        await_the_thread(lambda: reference() is None)


def from_another_thread(group):
    tensor = array.array("i", [group.rank])
    plan = group.plan.all_reduce(tensor, "max")
    plan.start()
    errors = []

    def wait():
        try:
            plan.wait()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert errors == [] and tensor[0] == group.size - 1
    plan()


def closed_plan(group):
    tensor = array.array("i", [1])
    plan = group.plan.all_reduce(tensor)
    plan()
    plan.close()
    plan.close()
    for call in (plan, plan.start, plan.wait, plan.is_completed, lambda: plan.tensors):
        assert cases.raised(call) == ("RuntimeError", "this plan has been closed: create another one")
    tensor.append(1)  # no export prevents resizing
    assert repr(plan) == "<dldist.Plan: all_reduce, closed>"


def recorded(group):
    """Every start must be recorded as an operation, at the line that made the plan."""
    tensor = array.array("f", [1, 2])
    flight_recorder.reset()
    plan = group.plan.all_reduce(tensor, timeout=7)
    before = group.sequence
    for _ in range(3):
        plan()
    entries = flight_recorder.entries()
    assert group.sequence == before + 3
    assert [entry["profiling_name"] for entry in entries] == ["gloo:all_reduce"] * 3, entries
    assert {entry["state"] for entry in entries} == {"completed"}
    assert {entry["timeout_ms"] for entry in entries} == {7000}
    assert {tuple(entry["input_sizes"][0]) for entry in entries} == {(2,)}
    assert all(entry["frames"][0]["name"] == "recorded" for entry in entries)
    assert len({entry["collective_seq_id"] for entry in entries}) == 3


def kept_alive(group):
    tensor = (ctypes.c_float * 4)(1, 2, 3, 4)
    reference = weakref.ref(tensor)
    plan = group.plan.all_reduce(tensor)
    assert plan.tensors[0] is tensor
    del tensor
    gc.collect()
    plan()
    assert reference()[1] == 2 * group.size
    del plan
    assert reference() is None


class Referring(bytearray):
    """A tensor that refers to its plan."""


def cycles(group):
    """The collector must find a plan that its own tensor refers to, once no start is pending."""
    tensor = Referring(8)
    tensor.plan = plan = group.plan.all_reduce(tensor)
    gone = weakref.ref(tensor.plan)
    plan.start()
    del tensor, plan
    gc.collect()
    assert gone() is not None  # the operation keeps its tensor
    gone().wait()
    gc.collect()
    assert gone() is None
    group.barrier()


# ---- failures; each breaks its group


def fails(group, how):
    """Return the errors of start and wait on every rank if rank 1 does `how`."""
    tensor = array.array("i", [1])
    plan = group.plan.all_reduce(tensor, timeout=0.3 if how == "late" else 20)
    if group.rank == 1:
        if how == "mismatch":
            first = cases.raised(lambda: group.all_reduce(array.array("i", [1, 2])))
        elif how == "abort":
            group.recv(array.array("b", [0]), 0)
            group.abort("the end")
            first = cases.raised(plan)
        elif how == "late":
            timeout_error = cases.raised(lambda: group.recv(array.array("b", [0]), 0))
            assert timeout_error[0] == "DistTimeoutError", timeout_error
            first = cases.raised(plan)
    else:
        plan.start()
        under_way = group.isend(array.array("b", [0]), 1) if how == "abort" else None
        first = cases.raised(plan.wait)
        del under_way
        again = cases.raised(plan.wait)
        assert again == first, (again, first)
    return first, cases.raised(plan.start), cases.raised(lambda: dldist.start_all([plan]))


def closed_group(group):
    tensor = array.array("i", [1])
    plan = group.plan.all_reduce(tensor)
    plan()
    group.barrier()
    group.close()
    return cases.raised(plan), cases.raised(group.plan.barrier)


def interrupted(group):
    """Ctrl-C in wait must leave the operation running."""
    tensor = array.array("i", [1])
    plan = group.plan.all_reduce(tensor)
    if group.rank == 0:
        timer = threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGINT))
        timer.start()
        plan.start()
        try:
            plan.wait()
            raise AssertionError("Ctrl-C did not interrupt the call")
        except KeyboardInterrupt:
            pass
        assert not plan.is_completed()
        timer.join()
        group.send(array.array("b", [0]), 1)
        plan.wait()
    else:
        group.recv(array.array("b", [0]), 0)
        plan()
    assert tensor[0] == 2


def forked(group):
    tensor = array.array("i", [1])
    plan = group.plan.all_reduce(tensor)
    plan()
    child = os.fork()
    if child == 0:
        texts = [cases.raised(call) for call in (plan, plan.start)]
        del plan
        os._exit(0 if all("forked child" in text for _, text in texts) else 1)
    assert os.waitpid(child, 0)[1] == 0
    plan()


def member(channel, port, rank, size, options=None):
    return cases.serve(channel, cases.open_group(port, rank, size, **(options or {})), globals())
