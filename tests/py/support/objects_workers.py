"""Cases of test_objects.py, run concurrently on every rank, with a group and arguments."""

import array
import threading
import tracemalloc
import warnings

import dldist
from dldist import World
from group_workers import describe, open_group, serve

BIG = 300_000  # bytes; more than is copied into headers


def member(channel, port, rank, size):
    return serve(channel, open_group(port, rank, size, timeout=10.0), globals())


def outcome(function, *args, **kwargs):
    """Return a call's result or described exception; the group must stay usable."""
    try:
        value = function(*args, **kwargs)
    except Exception as error:
        return describe(error)
    return value


def object_of(rank, turn=0):
    """Return an object; sizes vary from empty to several large arrays."""
    kinds = [
        None,
        {"rank": rank, "turn": turn},
        "",
        [bytes([rank]) * BIG, "and", bytearray(BIG + rank), b""],
        "x" * 600,
        (),
        {"big": list(range(20_000))},
    ]
    return [rank, turn, kinds[(rank + turn) % len(kinds)]]


# ---- every call, with objects of every size


def all_calls(group, serializer):
    rank, size = group.rank, group.size
    how = {"serializer": serializer, "timeout": 10.0}
    for turn in range(7):
        expected = [object_of(r, turn) for r in range(size)]
        root = turn % size
        assert World.all_gather_object(group, object_of(rank, turn), **how) == expected
        gathered = World.gather_object(group, object_of(rank, turn), root, **how)
        assert gathered == (expected if rank == root else None)
        own_object = object_of(root, turn)
        got = World.broadcast_object(group, own_object if rank == root else "ignored", root, **how)
        assert got == object_of(root, turn)
        assert (got is own_object) == (rank == root)
        assert World.scatter_objects(group, expected if rank == root else None, root, **how) == object_of(rank, turn)
        given = [[rank, r, object_of(r, turn)] for r in range(size)]
        assert World.all_to_all_objects(group, given, **how) == [[r, rank, object_of(rank, turn)] for r in range(size)]
        pass_on(group, turn, how)
    return True


def pass_on(group, turn, how):
    """Pass an object from every rank to the next, received by source and from any source."""
    rank, size = group.rank, group.size
    if size == 1:
        return
    for src in (None, (rank - 1) % size):
        args = (group, object_of(rank, turn), (rank + 1) % size, 5)
        sender = threading.Thread(target=World.send_object, args=args, kwargs=how)
        sender.start()
        got = World.recv_object_with_source(group, src, 5, **how)
        sender.join()
        assert got == (object_of((rank - 1) % size, turn), (rank - 1) % size)
        group.barrier()


def copies_are_own(group):
    """A rank's own object must come back as a copy, with writable arrays."""
    own_object = [array.array("d", [1.0] * BIG)]
    got = World.all_gather_object(group, own_object)
    for each in got:
        view = memoryview(each[0])
        assert not view.readonly
        view[0] = 7.0
    assert own_object[0][0] == 1.0
    return True


# ---- arrays


def numpy_arrays(group, serializer):
    import numpy

    rank = group.rank
    for dtype in ("bool", "int8", "uint16", "int64", "float16", "float32", "complex128"):
        for shape in ((), (0,), (3, 0, 2), (5,), (300, 301)):
            own_object = numpy.full(shape, rank + 1).astype(dtype)
            for r, got in enumerate(World.all_gather_object(group, {"x": own_object}, serializer=serializer)):
                got = got["x"]
                assert got.dtype == own_object.dtype and got.shape == own_object.shape and got.flags.writeable
                assert numpy.array_equal(got, numpy.full(shape, r + 1).astype(dtype))
                got[...] = 0
    return True


def peak_memory(group, serializer, nbytes):
    """Return the peak growth of Python's memory while an array is broadcast, on both sides."""
    import numpy

    own_object = numpy.arange(nbytes // 8) if group.rank == 0 else None
    group.barrier()
    tracemalloc.start()
    try:
        got = World.broadcast_object(group, own_object, serializer=serializer)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert got[-1] == nbytes // 8 - 1
    return peak


# ---- errors


def unsendable(group, call, serializer):
    """Rank 1 (the root or sender) has an object that cannot be sent. The group must stay usable."""
    bad = threading.Lock()
    obj = {"fine": 1, "bad": [0, bad]} if group.rank == 1 else "fine"
    size = group.size
    how = {"serializer": serializer}
    calls = {
        "all_gather_object": lambda: World.all_gather_object(group, obj, **how),
        "gather_object": lambda: World.gather_object(group, obj, **how),
        "broadcast_object": lambda: World.broadcast_object(group, obj, 1, **how),
        "scatter_objects": lambda: World.scatter_objects(group, [1, obj, 3][:size], 1, **how),
        "all_to_all_objects": lambda: World.all_to_all_objects(group, [1, obj, 3][:size], **how),
        "send_object": lambda: send_to_0(group, obj, how),
    }
    result = outcome(calls[call])
    assert World.all_gather_object(group, group.rank) == list(range(size))
    return result


def send_to_0(group, obj, how):
    if group.rank == 1:
        return World.send_object(group, obj, 0, **how)
    return World.recv_object(group, 1, **how) if group.rank == 0 else None


def other_serializers(group, call):
    """Rank 0, the root, uses pickle; the other ranks require the safe serializer."""
    how = {"serializer": "pickle" if group.rank == 0 else "safe"}
    large = b"x" * BIG
    calls = {
        "all_gather_object": lambda: World.all_gather_object(group, large, **how),
        "gather_object": lambda: World.gather_object(group, large, **how),
        "broadcast_object": lambda: len(World.broadcast_object(group, large, **how)),
        "scatter_objects": lambda: len(World.scatter_objects(group, [large] * group.size, **how)),
        "all_to_all_objects": lambda: World.all_to_all_objects(group, [large] * group.size, **how),
        "recv_object": lambda: recv_of_0(group, large, how),
    }
    result = outcome(calls[call])
    assert World.all_gather_object(group, group.rank) == list(range(group.size))
    return result


def recv_of_0(group, obj, how):
    if group.rank == 0:
        return World.send_object(group, obj, 1, **how)
    return World.recv_object(group, 0, **how) if group.rank == 1 else None


class Malicious:
    """An object that runs code when unpickled."""

    def __reduce__(self):
        return exec, ("import builtins; builtins.trapped = True",)


def malicious(group):
    import builtins

    result = outcome(lambda: World.broadcast_object(group, Malicious(), serializer="pickle" if group.rank == 0 else "safe"))
    return hasattr(builtins, "trapped"), result


class Unreadable:
    def __reduce__(self):
        return int, ("not a number",)


def unreadable(group):
    """Rank 0 pickles an object that no rank can unpickle."""
    try:
        World.broadcast_object(group, Unreadable(), serializer="pickle")
    except ValueError as error:
        result = [str(error), *error.__notes__]
    else:
        result = None
    assert World.all_gather_object(group, 1) == [1] * group.size
    return result


def wrong_lists(group):
    """A wrong list on the root, and an argument that is wrong on every rank, must raise."""
    results = [
        outcome(World.scatter_objects, group, [1] if group.rank == 0 else None),
        outcome(World.scatter_objects, group, None, 0),
        outcome(World.all_to_all_objects, group, [1] * (group.size + (group.rank == 1))),
        outcome(World.all_gather_object, group, 1, serializer="json"),
    ]
    assert World.all_gather_object(group, 1) == [1] * group.size
    return results


def no_object(group):
    """Rank 0 sends malformed object prefixes; the last announces more bytes than any memory has."""
    huge = b"dlob" + bytes([1, 2, 0, 0]) + (1).to_bytes(4, "little") + bytes(4) + (1 << 60).to_bytes(8, "little")
    replies = []
    for prefix in (b"", b"\xff" * 512, huge):
        if group.rank == 0:
            group.send(prefix.ljust(512, b"\0"), 1)
        elif group.rank == 1:
            replies.append(outcome(World.recv_object, group, 0, serializer="pickle"))
    return replies


def receive_without_a_sender(group):
    result = None
    if group.rank == 0:
        result = outcome(World.recv_object, group, 1, timeout=0.1)
    group.barrier()
    return result


def group_serializer(group):
    """The group's attribute must select the serializer, and the call's argument override it."""

    class Named:
        def __init__(self, serializer):
            self.serializer = serializer

        def __getattr__(self, name):
            return getattr(group, name)

    pickles, is_safe = Named("pickle"), Named("safe")
    obj = frozenset([1]), 2j, slice(1, 2)
    assert World.broadcast_object(pickles, obj) == obj
    assert outcome(World.broadcast_object, is_safe, obj)["kinds"]
    assert World.broadcast_object(is_safe, obj, serializer="pickle") == obj
    return outcome(World.broadcast_object, group, obj)


# ---- torch.distributed's calls


def c10d_session(port, rank, size):
    import dldist.distributed_c10d as dist

    store = dldist.TCPStore("127.0.0.1", port, timeout=30.0)
    dist.init_process_group("gloo", store=dldist.PrefixStore("c10d", store), rank=rank, world_size=size)
    return dist


def c10d(channel, port, rank, size):
    """Run all c10d cases in one process group."""
    dist = c10d_session(port, rank, size)
    try:
        c10d_round_trips(dist, rank, size)
        c10d_errors(dist, rank, size)
        c10d_subgroups(dist, rank, size)
    finally:
        dist.destroy_process_group()
    return "done"


def c10d_round_trips(dist, rank, size):
    for weights_only in (False, True):
        how = {"weights_only": weights_only}
        output = [None] * size
        dist.all_gather_object(output, object_of(rank), **how)
        assert output == [object_of(r) for r in range(size)]
        output = [None] * size if rank == 1 else None
        dist.gather_object(object_of(rank), output, dst=1, **how)
        assert rank != 1 or output == [object_of(r) for r in range(size)]
        objects = [object_of(0), None, "a"] if rank == 0 else [1, 2, 3]
        dist.broadcast_object_list(objects, src=0, **how)
        assert objects == [object_of(0), None, "a"]
        output = [None, "rest"]
        dist.scatter_object_list(output, [object_of(r) for r in range(size)] if rank == 1 else None, src=1, **how)
        assert output == [object_of(rank), "rest"]
        if rank == 0:
            dist.send_object_list([1, object_of(3)], dst=1, **how)
        elif rank == 1:
            received = [None, None]
            assert dist.recv_object_list(received, src=0, **how) == 0
            assert received == [1, object_of(3)]
    # By default, every picklable object is accepted.
    output = [None] * size
    dist.all_gather_object(output, slice(rank, 2))
    assert output == [slice(r, 2) for r in range(size)]
    if rank == 0:
        dist.send_object_list([slice(1)], dst=1, use_batch=True, device="cpu")
    elif rank == 1:
        received = [None]
        assert dist.recv_object_list(received) == 0
        assert received == [slice(1)]


def c10d_errors(dist, rank, size):
    def raises(kind, text, function, *args, **kwargs):
        result = outcome(function, *args, **kwargs)
        assert isinstance(result, dict) and kind in result["kinds"] and text in result["text"], (rank, kind, text, result)

    raises("IndexError", "got 0 items, expected", dist.all_gather_object, [], 1)
    raises("TypeError", "item assignment", dist.all_gather_object, (None,) * size, 1)
    missing = "must be specified on destination rank" if rank == 0 else "rank 0 could not send its object: ValueError"
    raises("ValueError" if rank == 0 else "DistError", missing, dist.gather_object, 1)
    if rank == 0:
        raises("DistError", "rank 1 could not send", dist.gather_object, 1, [None] * size)
    else:
        raises("ValueError", "must NOT be specified", dist.gather_object, 1, [None] * size)
    raises("ValueError", "is empty", dist.broadcast_object_list, [])
    if rank == 0:
        dist.broadcast_object_list([1, 2])
    else:
        raises("ValueError", "'object_list' has another length: got 3, expected 2", dist.broadcast_object_list, [1] * 3)
    raises("ValueError", "to be a list of size at least 1", dist.scatter_object_list, [], [1] * size)
    source = "source rank must provide non-None scatter_object_input_list"
    raises("ValueError" if rank == 0 else "DistError", source, dist.scatter_object_list, [None])
    wrong = f"another number of objects: got {size + 1}, expected a list of {size}, one for each rank"
    raises("ValueError" if rank == 0 else "DistError", wrong, dist.scatter_object_list, [None], [1] * (size + 1))
    raises("ValueError", "destination rank should not be the same", dist.send_object_list, [1], dst=rank)
    raises("ValueError", "source rank should not be the same", dist.recv_object_list, [1], src=rank)
    raises("ValueError", "got neither of 'dst' and 'group_dst', expected one", dist.send_object_list, [1])
    both = "got both of '"
    raises("ValueError", both, dist.broadcast_object_list, [1], src=0, group_src=0)
    raises("ValueError", both, dist.gather_object, 1, dst=0, group_dst=0)
    raises("ValueError", "argument 'serializer' is unknown", dist.all_gather_object, [None] * size, 1, serializer="json")
    raises("ValueError", "weights_only=True", dist.all_gather_object, [0] * size, 1, weights_only=True, serializer="pickle")
    raises("TypeError" if rank == 0 else "DistError", "slice", dist.broadcast_object_list, [slice(1)], weights_only=True)
    output = [None] * size
    dist.all_gather_object(output, rank)
    assert output == list(range(size))


def c10d_subgroups(dist, rank, size):
    group = dist.new_group([1, 2])
    if rank == 0:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            output = ["kept"]
            assert dist.all_gather_object(output, 1, group) is None
            assert dist.gather_object(1, output, group=group) is None
            assert dist.broadcast_object_list(output, group=group) is None
            assert dist.scatter_object_list(output, None, group=group) is None
            assert dist.send_object_list(output, dst=1, group=group) is None
            assert dist.recv_object_list(output, src=1, group=group) == -1
        assert output == ["kept"]
        assert len(seen) == 6 and all("does not belong to the given group" in str(each.message) for each in seen)
        return
    # By ranks of the default world and of the group.
    for where in ({"src": 2}, {"group_src": 1}):
        objects = [rank]
        dist.broadcast_object_list(objects, group=group, **where)
        assert objects == [2]
    if rank == 1:
        dist.send_object_list(["hello"], group_dst=1, group=group)
    else:
        received = [None]
        assert dist.recv_object_list(received, group=group) == 1
    result = outcome(dist.broadcast_object_list, [1], src=0, group=group)
    assert "ValueError" in result["kinds"] and "is not part of group" in result["text"], result
