"""Edge cases of calls: packed tensors, dropped works, callbacks that raise, inconsistent arguments.

One process is enough for most of them.
"""

import array
import concurrent.futures
import gc
import sys
import weakref

import dldist
import group_edge_workers as workers
import procs
import pytest
from dldist import _core
from procs import poll_until
from type_stub import stub_classes, stub_functions, stub_tree


@pytest.fixture
def group():
    with dldist.Group(None, 0, 1, timeout=5) as group:
        yield group


def every_other(*values):
    """Return a non-contiguous buffer with the memory that contains it."""
    memory = bytearray(value for value in values for _ in range(2))
    return memory, memoryview(memory)[::2]


# ---- packed tensors


@pytest.mark.parametrize("how", ["recv", "irecv"])
def test_short_message_leaves_the_rest_of_the_buffer_unchanged(group, how):
    memory, tensor = every_other(7, 7, 7, 7)
    send = group.isend(b"\1\2", 0)
    if how == "recv":
        group.recv(tensor, 0)
    else:
        group.irecv(tensor, 0).wait()
    send.wait()
    assert list(memory) == [1, 7, 2, 7, 7, 7, 7, 7]


@pytest.mark.parametrize("how", ["recv", "irecv"])
def test_failed_receive_does_not_write_into_its_buffer(group, how):
    memory, tensor = every_other(7, 7)
    with pytest.raises(dldist.DistTimeoutError):
        if how == "recv":
            group.recv(tensor, 0, timeout=0.05)
        else:
            group.irecv(tensor, 0, timeout=0.05).wait()
    assert list(memory) == [7, 7, 7, 7]


def test_aborted_receive_does_not_write_into_its_buffer(group):
    part = group.split([0])
    memory, tensor = every_other(7, 7)
    work = part.irecv(tensor, 0)
    part.abort("enough")
    with pytest.raises(dldist.DistAbortedError):
        work.wait()
    assert list(memory) == [7, 7, 7, 7]
    tensor.release()
    memory.append(0)


def test_outputs_are_written_even_if_the_work_object_is_dropped(group):
    """A dropped work must fill its outputs, even if it ended before."""
    memory, tensor = every_other(1, 2, 3)
    group.all_reduce(tensor, dldist.ReduceOp.PREMUL_SUM(10), async_op=True)
    poll_until(lambda: list(memory) == [10, 1, 20, 2, 30, 3])
    memory, tensor = every_other(0, 0)
    group.irecv(tensor, 0)
    group.send(b"\5\6", 0)
    poll_until(lambda: list(memory) == [5, 0, 6, 0])


# ---- references


class Node(array.array):
    pass


def test_reference_cycle_through_a_completed_work_is_collected(group):
    tensor = Node("i", [1])
    reference = weakref.ref(tensor)
    tensor.work = group.all_reduce(tensor, async_op=True)
    tensor.work.wait()
    del tensor
    gc.collect()
    assert reference() is None


def test_reference_cycle_through_a_pending_work_is_kept_until_completion(group):
    tensor = Node("b", [1])
    reference = weakref.ref(tensor)
    tensor.work = group.irecv(tensor, 0)
    del tensor
    gc.collect()
    assert reference() is not None
    group.send(b"\5", 0)
    assert reference().work.wait() and reference()[0] == 5
    gc.collect()
    assert reference() is None


def test_reference_cycle_through_a_group_is_collected():
    class Mine(dldist.Group):
        pass

    group = Mine(None, 0, 1)
    group.work = group.barrier(async_op=True)
    group.work.wait()
    reference = weakref.ref(group)
    del group
    gc.collect()
    assert reference() is None


def test_calls_leave_reference_counts_unchanged(group):
    """Calls must neither leak nor lose a reference, whether they succeed or fail."""
    tensor, other = array.array("i", [1]), array.array("f", [1])

    def use():
        group.all_reduce(tensor)
        group.all_gather([tensor], array.array("i", [1]), async_op=True).wait()
        group.all_reduce(tensor, async_op=True).result()
        with group.coalesce():
            group.all_reduce(tensor)
        for call in (lambda: group.all_gather([tensor], other), lambda: group.isend(tensor, 3),
                     lambda: group.all_reduce(tensor, "unknown"), lambda: group.barrier(timeout=object())):
            with pytest.raises((ValueError, TypeError)):
                call()

    use()
    before = [sys.getrefcount(thing) for thing in (tensor, other, group, dldist.ReduceOp.SUM)]
    for _ in range(50):
        use()
    gc.collect()
    after = [sys.getrefcount(thing) for thing in (tensor, other, group, dldist.ReduceOp.SUM)]
    assert after == before


# ---- callbacks


def test_exception_of_a_callback_is_reported_and_other_callbacks_run(group, monkeypatch):
    """The error must be reported by Python's hook or the user's; other callbacks must run."""
    for hook in (sys.__unraisablehook__, lambda unraisable: seen.append(unraisable.exc_type)):
        monkeypatch.setattr(sys, "unraisablehook", hook)
        for make in (dldist.Future, lambda: group.barrier(async_op=True).get_future()):
            seen = []
            future = make()
            future.add_done_callback(lambda done: 1 / 0)
            future.add_done_callback(lambda done: seen.append("called"))
            if make is dldist.Future:
                future.set_result(1)
            future.wait(5)
            wanted = ["called"] if hook is sys.__unraisablehook__ else [ZeroDivisionError, "called"]
            poll_until(lambda: seen == wanted)


def test_interrupt_in_a_callback_is_raised_in_the_thread_that_runs_it():
    """Ctrl-C in a callback must reach the thread that runs it."""
    future = dldist.Future()

    def interrupt(done):
        raise KeyboardInterrupt

    future.add_done_callback(interrupt)
    with pytest.raises(KeyboardInterrupt):
        future.set_result(1)


def test_system_exit_in_a_callback_of_a_completed_future_is_raised(group):
    """A BaseException that is not an Exception must propagate to the caller of a done future of
    every kind."""
    done = concurrent.futures.Future(), dldist.Future(), group.barrier(async_op=True).get_future()
    for future in done[:2]:
        future.set_result(1)
    poll_until(done[2].done)
    finished = group.barrier(async_op=True)
    poll_until(finished.is_completed)
    for future in (*done, finished.get_future()):
        with pytest.raises(SystemExit):
            future.add_done_callback(lambda done: sys.exit(5))


def test_callbacks_must_be_callable(group):
    with pytest.raises(TypeError, match="add_done_callback.*callback.*int"):
        dldist.Future().add_done_callback(3)
    with pytest.raises(TypeError, match="_watch.*callback.*int"):
        group.barrier(async_op=True)._watch(3)


def test_callbacks_in_a_forked_child_are_rejected(procs):
    assert procs.start(workers.watch_in_child).result().startswith("FORKED: ")


def test_all_works_share_one_completion_thread(procs):
    assert procs.start(workers.watchers_from_many_threads, 8).result() == 1


# ---- arguments


class WrongLength(list):
    """A list whose length differs from its number of items."""

    def __init__(self, length, items):
        super().__init__(items)
        self.length, self.items = length, items

    def __len__(self):
        return self.length

    def __iter__(self):
        return iter(self.items)


@pytest.mark.parametrize("items", [0, 2])
def test_lists_with_a_wrong_length_are_rejected(group, items):
    tensor = array.array("i", [1])
    lists = WrongLength(1, [array.array("i", [1])] * items)
    for call in (lambda: group.all_gather(lists, tensor), lambda: group.reduce_scatter(tensor, lists),
                 lambda: group.all_to_all([tensor], lists), lambda: group.all_gather_coalesced([lists], [tensor])):
        with pytest.raises(ValueError, match=r"got \d tensors, expected \d|is empty"):
            call()


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda group: dldist.Group(None, "x", 1), TypeError, r"Group\(\): argument 'rank' must be int, not str"),
        (lambda group: dldist.Group(None, 0, 2**40), ValueError, r"Group\(\): argument 'size' is out of range: got 1099511627776"),
        (lambda group: group.broadcast(bytearray(1), 2**40), ValueError, r"broadcast\(\): argument 'root'"),
        (lambda group: group.barrier(async_op=Ambiguous()), ValueError, r"barrier\(\): argument 'async_op'"),
        (lambda group: group.coalesce(unknown=1), TypeError, r"coalesce\(\).*unknown"),
        (lambda group: group.all_gather_coalesced([[1]], [1]), TypeError, r"'output_lists\[0\]\[0\]'"),
        (lambda group: dldist.Future().wait("x"), TypeError, r"wait\(\): argument 'timeout'"),
    ],
)
def test_errors_name_function_and_argument(group, call, error, text):
    with pytest.raises(error, match=text):
        call(group)


class Ambiguous:
    def __bool__(self):
        raise ValueError("hard to say")


def test_batch_with_an_invalid_message_starts_no_message(group):
    buffer = bytearray(4)
    ops = [dldist.P2POp("irecv", buffer, None, 9), dldist.P2POp("isend", b"abcd", 7, 9)]
    with pytest.raises(ValueError, match=r"p2p_op_list\[1\].*got 7, expected 0 to 0"):
        group.batch_isend_irecv(ops)
    buffer.append(0)


@pytest.mark.parametrize("name", ["float32", "int8", "bool_", "complex128"])
def test_empty_accepts_dtypes_of_numpy(group, name):
    numpy = pytest.importorskip("numpy")
    for dtype in (getattr(numpy, name), numpy.dtype(name)):
        assert numpy.asarray(group.empty(2, dtype)).dtype == numpy.dtype(name)


# ---- the stub


@pytest.mark.parametrize("name", sorted(name for name, node in stub_classes().items() if not node.name.startswith("_")))
def test_type_stub_has_the_public_names_of_each_class(name):
    """A class's public names must be in its stub or a base's, and the stub must have no others."""
    cls = getattr(_core, name)
    stubs = stub_classes()
    own = {attribute for base in cls.__mro__ if base.__name__ in stubs for attribute in names_in(stubs[base.__name__])}
    builtin = {attribute for base in cls.__mro__ if base.__name__ not in stubs for attribute in dir(base)}
    there = {attribute for attribute in dir(cls) if not attribute.startswith("_")}
    assert there - builtin - own - {"n_fields", "n_sequence_fields", "n_unnamed_fields"} == set()
    # Attributes of exceptions are set on instances.
    instance = cls() if issubclass(cls, BaseException) else cls
    assert {attribute for attribute in own if not attribute.startswith("_") and not hasattr(instance, attribute)} == set()


def names_in(node):
    fields = [field.target.id for field in node.body if hasattr(field, "target")]
    return [*stub_functions(node.body), *fields]


def test_type_stub_has_all_functions_of_the_extension():
    """The stub must also have the module's private functions, because the package calls them."""
    there = {name for name, value in vars(_core).items() if callable(value) and not isinstance(value, type)}
    there -= {name for name in there if name.startswith("__")}
    assert there == set(stub_functions(stub_tree().body))


# ---- threads


def test_background_thread_does_not_take_over_calls_after_a_pause():
    """The engine's thread, which monitored the links during the rest, must not compete with callers
    for their cores."""
    store = dldist.TCPStore("127.0.0.1", 0, is_master=True)
    children = procs.Group()
    try:
        ranks = [children.start(workers.call_after_rests, store.port, rank, 3) for rank in range(3)]
        times = [child.result() for child in ranks]
    finally:
        children.close()
    caller, others = map(sum, zip(*times, strict=True))
    assert others < caller / 4, times
