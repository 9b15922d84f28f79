"""Cases that the ranks of test_messages.py run, in a World. See group_workers.py. Without pytest, so
that the children start faster."""

import asyncio
import os
import threading
import time
from array import array

import dldist
import group_workers


def member(channel, port, rank, size, options=None):
    store = dldist.TCPStore("127.0.0.1", port)
    world = dldist.World(store, rank, size, timeout=20)
    return group_workers.serve(channel, world, globals())


def floats(count, value=0.0):
    return array("d", [value]) * count


def raises(kind, call, *args, **named):
    try:
        call(*args, **named)
    except kind as error:
        return str(error)
    raise AssertionError(f"{call} raised no {kind.__name__}")


# ---- no peer


def messages_without_a_peer(world):
    none, box = dldist.NO_RANK, floats(2, 3.0)
    sent = world.isend(box, none, 4)
    received = world.irecv(box, none, dldist.ANY_TAG)
    assert world.send(box, none, 4) is None and world.recv(box, none, 4) == none
    for work in (sent, received):
        assert work.is_completed() and work.is_success() and work.wait() and work.exception() is None
        assert work.get_future().wait() == work.result() and not work.cancel()
    assert (received.source_rank(), received.received_nbytes(), received.received_tag()) == (none, 0, dldist.ANY_TAG)
    assert received.result()[0] is box and dldist.wait_some([sent, received]) == [0, 1]
    assert world.probe(none) == world.iprobe(none) == (none, dldist.ANY_TAG, 0)
    world.send_object([1], none)
    assert world.recv_object(none) is None and world.recv_object_with_source(none) == (None, none)
    messages = [dldist.P2POp(kind, floats(2), peer=peer) for kind, peer in (("irecv", none), ("isend", world.rank), ("irecv", world.rank))]
    for work in world.batch_isend_irecv(messages):
        work.wait()
    for tensor, arguments in (("x", (none,)), (box, (none, -5))):
        raises((TypeError, ValueError), world.send, tensor, *arguments)
    assert box.tolist() == [3.0, 3.0]
    text, problem = raises(ValueError, world.recv, box, -1), "is an invalid rank: got -1, expected 0 to 1"
    assert text == f"recv(): argument 'src' {problem}; omit it to receive from any rank, or pass dldist.NO_RANK for none", text
    text = raises(ValueError, world.isend, box, -1)
    assert text == f"isend(): argument 'dst' {problem}, or dldist.NO_RANK to send nothing", text


def line_of_ranks(world):
    """Shift data along a line: the messages over its ends have no peer, and nothing waits."""
    before = world.rank - 1 if world.rank else dldist.NO_RANK
    after = world.rank + 1 if world.rank < world.size - 1 else dldist.NO_RANK
    box = floats(1, -1.0)
    work = world.isend(floats(1, world.rank), after)
    assert world.recv(box, before) == before and box[0] == world.rank - 1
    work.wait()


def default_group_without_a_peer(world):
    for backend in ("gloo", "fake"):
        store = dldist.HashStore() if backend == "gloo" else dldist.FakeStore()
        dldist.init_process_group(backend, store=store, rank=0, world_size=1)
        try:
            check_default_group_without_a_peer()
        finally:
            dldist.destroy_process_group()


def check_default_group_without_a_peer():
    none, box = dldist.NO_RANK, floats(2, 3.0)
    part = dldist.new_group([0])
    for group in (None, part):
        for keyword in ({"src": none}, {"group_src": none}):
            assert dldist.recv(box, **keyword, group=group) == none
            assert dldist.irecv(box, **keyword, group=group).source_rank() == none
        dldist.send(box, none, group=group)
        dldist.isend(box, group_dst=none, group=group).wait()
        messages = [dldist.P2POp(dldist.irecv, box, none, group), dldist.P2POp(dldist.isend, box, group_peer=none, group=group)]
        assert [work.wait() for work in dldist.batch_isend_irecv(messages)] == [True, True]
        dldist.send_object_list([1], none, group=group)
        objects = [5]
        assert dldist.recv_object_list(objects, none, group=group) == none and objects == [5]
    assert raises(ValueError, dldist.send, box).endswith("expected one of them")


# ---- probes


def probes(world):
    other = 1 - world.rank
    assert world.iprobe() is None
    world.barrier()
    work = world.isend(floats(3, world.rank), other, 7)
    found = world.probe()
    assert found == (other, 7, 24) and found.source == other and found.tag == 7 and found.nbytes == 24
    assert world.probe(other, 7) == world.probe(other) == world.probe(tag=7) == found == world.iprobe(other, 7)
    assert world.iprobe(tag=8) is None and world.iprobe(world.rank) is None
    box = floats(3)
    assert world.recv(box, other, dldist.ANY_TAG) == other and box.tolist() == [other] * 3
    assert world.iprobe() is None
    work.wait()
    text = raises(dldist.DistTimeoutError, world.probe, other, 9, timeout=0.1)
    assert text.startswith('probe on group "default"') and f"rank {other} (" in text and "has not sent (tag 9)" in text, text
    world.barrier()


def receive_of_any_tag(world):
    other = 1 - world.rank
    works = [world.isend(floats(tag, 1.0), other, tag) for tag in (5, 2)]
    for tag in (5, 2):
        box = floats(8)
        work = world.irecv(box, tag=dldist.ANY_TAG)
        work.wait()
        assert (work.source_rank(), work.received_tag(), work.received_nbytes()) == (other, tag, 8 * tag)
        assert box.tolist() == [1.0] * tag + [0.0] * (8 - tag)
    dldist.wait_all(works)
    assert "ANY_TAG" in raises(ValueError, world.recv, floats(1), other, -2)
    assert "0 or more" in raises(ValueError, world.send, floats(1), other, -1)
    world.barrier()


def object_of_any_tag(world):
    other = 1 - world.rank
    message = {"rank": world.rank, "data": b"x" * 100_000}
    if world.rank == 0:
        world.send_object(message, other, tag=31)
    else:
        assert world.recv_object_with_source(tag=dldist.ANY_TAG) == ({"rank": 0, "data": b"x" * 100_000}, 0)
    world.barrier()


def probes_of_the_default_group(world):
    dldist.init_process_group(store=dldist.PrefixStore("default", world_store(world)), rank=world.rank, world_size=world.size)
    try:
        part = dldist.new_group([world.size - 1, 0])  # reversed ranks
        other = world.size - 1 - world.rank
        if world.rank in (0, world.size - 1):
            work = dldist.isend(floats(1), other, group=part, tag=4)
            assert dldist.probe(group=part) == (other, 4, 8)
            assert dldist.iprobe(other, group=part) == dldist.probe(group_src=1 - part.rank(), group=part) == (other, 4, 8)
            assert dldist.recv(floats(1), other, group=part, tag=4) == other
            assert dldist.iprobe(group=part) is None
            work.wait()
        dldist.barrier()
    finally:
        dldist.destroy_process_group()


def world_store(world):
    port = None
    if world.rank == 0:
        world.kept = dldist.TCPStore("127.0.0.1", 0, is_master=True)
        port = world.kept.port
    port = world.broadcast_object(port, 0)
    return world.kept if world.rank == 0 else dldist.TCPStore("127.0.0.1", port)


# ---- cancelled receives


def cancelled_receives(world):
    other = 1 - world.rank
    work = world.irecv(floats(1), other, 3)
    any_work = world.irecv(floats(1))
    assert work.cancel() and not work.cancel() and any_work.cancel()
    for each in (work, any_work):
        assert "cancelled before a message matched it" in raises(dldist.DistAbortedError, each.wait)
    world.barrier()
    sent = world.isend(floats(1, 6.0), other, 3)
    assert not sent.cancel()
    box = floats(1)
    late = world.irecv(box, other, 3)
    late.wait()
    assert not late.cancel() and box[0] == 6.0
    sent.wait()
    collective = world.all_reduce(floats(1), async_op=True)
    assert not collective.cancel()
    collective.wait()


# ---- waiting for some


def first_of_several(world):
    other = 1 - world.rank
    boxes = [floats(1) for _ in range(4)]
    works = [None, *(world.irecv(box, other, tag) for tag, box in enumerate(boxes))]
    assert dldist.test_any(works) is None
    assert "none of 4 operations has ended" in raises(dldist.DistTimeoutError, dldist.wait_any, works, 0.05)
    world.barrier()
    sent = [world.isend(floats(1, 2.0), other, 2)]
    assert dldist.wait_any(works) == 3 == dldist.test_any(works) and boxes[2][0] == 2.0
    works[3] = None
    world.barrier()
    sent += [world.isend(floats(1, float(tag)), other, tag) for tag in (0, 1, 3)]
    ended = []
    assert dldist.wait_any(works) in (1, 2, 4)
    while any(works):
        for index in dldist.wait_some(works):
            ended.append(index)
            works[index] = None
    assert sorted(ended) == [1, 2, 4] and [box[0] for box in boxes] == [0.0, 1.0, 2.0, 3.0]
    dldist.wait_all(sent)
    assert "no work" in raises(ValueError, dldist.wait_any, works)
    world.barrier()


def first_of_several_groups(world):
    second = world.split(range(world.size), name="second")
    works = [world.irecv(floats(1), 1 - world.rank, 1), second.irecv(floats(1), 1 - world.rank, 1)]
    world.barrier()
    sent = second.isend(floats(1), 1 - world.rank, 1)
    assert dldist.wait_any(works, 20) == 1
    assert works[0].cancel()
    sent.wait()
    second.close()


def first_of_other_works(world):
    """Works that are no operations of the core are waited for as well."""
    future = dldist.Future()
    works = [world.irecv(floats(1), 1 - world.rank, 1), dldist.distributed_c10d._create_work_from_future(future)]
    assert "none of 2" in raises(dldist.DistTimeoutError, dldist.wait_any, works, 0.05)
    timer = threading.Timer(0.05, future.set_result, (None,))
    timer.start()
    assert dldist.wait_any(works, 20) == 1
    timer.join()
    assert works[0].cancel()


def failure_of_one(world):
    """A failed work's exception is raised, also if another thread's call ends it."""
    part = world.split(range(world.size), name="aborted")
    works = [part.irecv(floats(1), 1 - world.rank, tag) for tag in range(2)]
    timer = threading.Timer(0.1, part.abort, ("enough",))
    began = time.monotonic()
    timer.start()
    assert "enough" in raises(dldist.DistAbortedError, dldist.wait_any, works)
    assert time.monotonic() - began < 10
    timer.join()
    part.close()


def first_success_before_a_failure(world):
    other = 1 - world.rank
    works = [world.irecv(floats(1), other, 1), world.irecv(floats(1), other, 2)]
    assert works[1].cancel()
    sent = world.isend(floats(1), other, 1)
    works[0].wait()
    assert dldist.wait_any(works) == dldist.test_any(works) == 0
    assert "cancelled" in raises(dldist.DistAbortedError, dldist.wait_some, works)
    assert "cancelled" in raises(dldist.DistAbortedError, works[1].received_tag)
    sent.wait()


def cancelled_by_another_thread(world):
    works = [world.irecv(floats(1), 1 - world.rank, 1)]
    timer = threading.Timer(0.1, works[0].cancel)
    timer.start()
    assert "cancelled" in raises(dldist.DistAbortedError, dldist.wait_any, works)
    timer.join()


def works_of_a_forked_parent(world):
    """A child must not wait for its parent's works, even if a thread had a lock at the fork."""
    work, of_object = world.irecv(floats(1), 1 - world.rank, 1), world.irecv_object(1 - world.rank, 2)
    is_over = threading.Event()

    def probe():
        while not is_over.is_set():
            world.iprobe()

    threads = [threading.Thread(target=probe) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(10):
        child = os.fork()
        if child == 0:
            for wait in (lambda: dldist.wait_any([work], 1), of_object.wait, lambda: dldist.wait_any([of_object])):
                try:
                    wait()
                    os._exit(2)
                except dldist.DistError as error:
                    if "fork" not in str(error):
                        os._exit(1)
            os._exit(7)
        deadline = time.monotonic() + 15
        while (ended := os.waitpid(child, os.WNOHANG))[0] == 0 and time.monotonic() < deadline:
            time.sleep(0.005)
        if ended[0] == 0:
            os.kill(child, 9)
            os.waitpid(child, 0)
        assert ended[0] == child and os.waitstatus_to_exitcode(ended[1]) == 7, ended
    is_over.set()
    for thread in threads:
        thread.join()
    assert work.cancel() and of_object.cancel()


def wait_for_all(world):
    other = 1 - world.rank
    works = [world.irecv(floats(1), other, 1), None, world.isend(floats(1), other, 1)]
    dldist.wait_all(works)
    late = world.irecv(floats(1), other, 2)
    assert "still under way" in raises(dldist.DistTimeoutError, dldist.wait_all, [late], timeout=0.05)
    assert late.cancel()
    plan = world.plan.all_reduce(floats(1))
    dldist.start_all([plan])
    dldist.wait_all([plan])


# ---- errors that name unread messages


def unread_messages_are_named(world):
    other = 1 - world.rank
    world.send(floats(1), other, 5)
    world.probe(other, 5)
    text = raises(dldist.DistTimeoutError, world.recv, floats(1), other, 6, timeout=0.1)
    assert f"has not sent (tag 6); 1 message of rank {other} is unread (tag 5)" in text, text
    text = raises(dldist.DistTimeoutError, world.recv, floats(1), tag=6, timeout=0.1)
    assert f"no rank has sent (tag 6); 1 message of rank {other} is unread (tag 5)" in text, text
    world.recv(floats(1), other, 5)
    world.barrier()


def message_to_this_rank_ends_both_works(world):
    """The owner of the earlier work is notified, although no thread makes another call."""
    for is_async in (True, False):
        box, done = floats(50_000), threading.Event()
        work = world.isend(floats(50_000, 1.0), world.rank)
        work.get_future().add_done_callback(lambda _, done=done: done.set())
        world.irecv(box, world.rank) if is_async else world.recv(box, world.rank)
        assert done.wait(10) and box[0] == 1.0


# ---- objects that are sent asynchronously

LARGE = bytes(300_000)  # several messages


def objects_keep_their_order(world):
    """Receives get objects and arrays of one tag in the order of the calls, whatever their sizes."""
    other = 1 - world.rank
    box = floats(1)
    receives = [world.irecv_object(src, 5) for src in (other, None, other)]
    receives += [world.irecv(box, other, 5), world.irecv_object(None, 5), world.irecv_object(tag=dldist.ANY_TAG)]
    world.barrier()
    objects = [[0, LARGE], "small", {2: LARGE, "more": bytearray(LARGE)}, None, [LARGE] * 3, ["last"]]
    sends = [world.isend(floats(1, 4.0), other, 5) if obj is None else world.isend_object(obj, other, 5) for obj in objects]
    got = [work.wait() for work in receives]
    assert got == [True if obj is None else obj for obj in objects] and box[0] == 4.0
    assert [work.wait() for work in sends] == [True] * len(sends)
    for work in receives:
        assert work.is_completed() and work.is_success() and work.exception() is None and work.source_rank() == other
        assert work.received_tag() == 5 and not work.cancel()
    assert receives[0].wait() is receives[0].result() is receives[0].get_future().wait()
    assert world.iprobe() is None


def objects_meet_blocking_calls(world):
    other = 1 - world.rank
    for obj in ("small", [LARGE]):
        work = world.isend_object(obj, other, 1)
        assert world.recv_object_with_source(tag=dldist.ANY_TAG) == (obj, other) and work.wait()
        work = world.irecv_object(other, 2)
        world.send_object(obj, other, 2)
        assert work.wait() == obj
    threads = [threading.Thread(target=world.send_object, args=([index, LARGE], other, 3)) for index in range(4)]
    for thread in threads:
        thread.start()
    works = [world.irecv_object(other, 3) for _ in threads]
    assert sorted(work.wait()[0] for work in works) == [0, 1, 2, 3]
    for thread in threads:
        thread.join()


def objects_arrive_while_the_program_does_other_things(world):
    """A large object is received without any call: its sender can wait for the end."""
    other = 1 - world.rank
    work = world.irecv_object(other)
    world.isend_object([LARGE], other).wait()
    world.barrier()
    end = time.monotonic() + 10
    while not work.is_completed() and time.monotonic() < end:
        time.sleep(0.001)
    assert work.is_completed() and work.wait() == [LARGE] and repr(work) == "<dldist.Work: irecv_object, done>"


def first_of_several_objects(world):
    other = 1 - world.rank
    works = [world.irecv_object(other, tag) for tag in range(3)] + [world.irecv(floats(1), other, 9)]
    text = raises(dldist.DistTimeoutError, dldist.wait_any, works, timeout=0.01)
    assert "<dldist.Work: irecv_object, under way>" in text, text
    assert dldist.test_any(works) is None and not works[0].is_completed()
    world.barrier()
    sent = world.isend_object(LARGE, other, 1)
    assert dldist.wait_any(works) == 1 and works[1].wait() == LARGE
    assert dldist.wait_any([sent]) == 0
    raises(dldist.DistTimeoutError, works[0].wait, 0.01)
    for index in (0, 2, 3):
        assert works[index].cancel() and works[index].is_completed()
        raises(dldist.DistAbortedError, works[index].wait)
        assert isinstance(works[index].exception(), dldist.DistAbortedError) and not works[index].is_success()
    world.barrier()

    async def receive():
        work = world.irecv_object(other, 4)
        assert await world.isend_object([LARGE], other, 4) is True
        return await work

    assert asyncio.run(receive()) == [LARGE]


def failures_of_objects(world):
    other = 1 - world.rank
    late = world.irecv_object(other, 1, timeout=0.05)
    raises(dldist.DistTimeoutError, late.wait)
    assert "unsupported type" in raises(TypeError, world.isend_object, [object()], other, 2)
    text = raises(dldist.DistError, world.irecv_object(other, 2).wait)
    assert f"rank {other} could not send its object: TypeError: obj[0] has an unsupported type" in text, text
    world.barrier()
    raises(ValueError, world.isend_object, 1, 5)
    raises(ValueError, world.isend_object, 1, other, -1)
    raises(ValueError, world.irecv_object, -1)
    work = world.irecv_object(other, 4)
    world.isend_object({1: 2}, other, 4, serializer="pickle").wait()
    assert "used another serializer" in raises(dldist.DistMismatchError, work.wait) and not work.is_success()
    work = world.irecv_object(other, 6)
    world.isend(floats(64), other, 6).wait()
    assert "malformed object" in raises(dldist.DistError, work.wait) and work.is_completed()
    assert world.irecv_object(dldist.NO_RANK).wait() is None and world.isend_object(LARGE, dldist.NO_RANK).wait() is True
    world.barrier()


def objects_to_this_rank(world):
    for obj in ("small", [LARGE]):
        send, receive = world.isend_object(obj, world.rank), world.irecv_object(world.rank)
        assert receive.wait() == obj and send.wait() is True


def objects_of_the_default_group(world):
    dldist.init_process_group("gloo", store=world_store(world), rank=world.rank, world_size=world.size)
    try:
        other = 1 - world.rank
        for group in (None, dldist.new_group([0, 1])):
            work = dldist.irecv_object(other, group, 3)
            dldist.isend_object([LARGE], group_dst=other, group=group, tag=3).wait()
            assert work.wait() == [LARGE]
            work = dldist.irecv_object(group=group, serializer="pickle")
            dldist.isend_object({1}, other, group, serializer="pickle").wait()
            assert work.wait() == {1} and work.source_rank() == other
        dldist.barrier()
    finally:
        dldist.destroy_process_group()


def objects_without_a_channel(world):
    dldist.init_process_group("fake", store=dldist.FakeStore(), rank=0, world_size=2)
    try:
        text = raises(ValueError, dldist.irecv_object, 1)
        assert text.startswith("irecv_object(): got a group of another backend"), text
    finally:
        dldist.destroy_process_group()
