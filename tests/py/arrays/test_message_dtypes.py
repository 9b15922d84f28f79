"""A message and its receive buffer must have the same dtype, unless one of them is bytes or the
receiver overrides it."""

import array
from datetime import timedelta

import dldist
import pytest
from thread_ranks import error_of, in_worlds, on_threads

# elements: EAGER is sent immediately; LARGE waits at its sender for the receive
EAGER, LARGE = 8, 100_000


def pair(case, *args):
    store = dldist.HashStore()

    def run(rank):
        group = dldist.Group(store, rank, 2, timeout=15.0)
        try:
            result = case(group, *args)
            group.barrier()  # only the message that does not fit fails
            return result
        finally:
            group.close()

    return on_threads(2, run)


def floats(count):
    return array.array("f", range(count))


def send(group, tensor, tag):
    """Send; return None or the work's exception."""
    work = group.isend(tensor, 1, tag)
    try:
        work.wait()
    except dldist.DistError as error:
        return error
    return None


def receive_blocking(group, tensor, source, tag):
    group.recv(tensor, source, tag)


def receive_later(group, tensor, source, tag):
    group.irecv(tensor, source, tag).wait()


def receive_in_a_batch(group, tensor, source, tag):
    for work in group.batch_isend_irecv([dldist.P2POp("irecv", tensor, source, tag=tag)]):
        work.wait()


RECEIVES = {
    "recv": receive_blocking,
    "irecv": receive_later,
    "batch": receive_in_a_batch,
    "any source": lambda group, tensor, source, tag: group.recv(tensor, tag=tag),
}


def into_doubles(group, count, receive):
    if group.rank == 0:
        return send(group, floats(count), 3)
    tensor = array.array("d", [7.0] * count)
    error = error_of(receive, group, tensor, 0, 3)
    assert set(tensor) == {7.0}
    return error


@pytest.mark.parametrize("count", [EAGER, LARGE])
@pytest.mark.parametrize("name", RECEIVES)
def test_message_of_another_dtype_is_a_mismatch_that_names_both_sides(name, count):
    mismatch, error = pair(into_doubles, count, RECEIVES[name])
    assert isinstance(error, dldist.DistMismatchError) and error.rank == 0
    text = str(error)
    assert f"rank 0 ({error.host}, pid {error.pid}) has sent {count} elements of float32 (tag 3)" in text
    assert f"expected {count} of float64: " in text and "rank 1 of 2" in text
    if count == LARGE:  # the sender gets the error if its message was not sent
        assert isinstance(mismatch, dldist.DistMismatchError) and mismatch.rank == 1
        assert f"expects {count} elements of float64 (tag 3), got {count} of float32" in str(mismatch)


def same_size(group):
    if group.rank == 0:
        return send(group, array.array("i", [1, 2]), 0)
    return error_of(group.recv, array.array("f", [0.0] * 2), 0)


def test_different_dtypes_of_the_same_size_are_a_mismatch():
    assert isinstance(pair(same_size)[1], dldist.DistMismatchError)


def as_bytes(group, count):
    sent = floats(count)
    if group.rank == 0:
        for _ in range(5):
            group.send(sent, 1)
        group.send(sent.tobytes(), 1)
        group.send(memoryview(sent).cast("B").cast("c"), 1)
        return
    for tensor in (bytearray(4 * count), array.array("b", bytes(4 * count)), memoryview(bytearray(4 * count)).cast("c")):
        group.recv(tensor, 0)
        assert bytes(tensor) == sent.tobytes()
    words = array.array("i", [0] * count)
    group.recv(words, 0, match_dtype=False)
    assert words.tobytes() == sent.tobytes()
    words = array.array("i", [0] * count)
    group.irecv(words, 0, match_dtype=0).wait()
    assert words.tobytes() == sent.tobytes()
    for _ in range(2):  # sent as bytes
        got = array.array("f", [0.0] * count)
        group.recv(got, 0)
        assert got == sent


@pytest.mark.parametrize("count", [EAGER, LARGE])
def test_message_of_bytes_matches_a_receive_of_any_dtype(count):
    pair(as_bytes, count)


def to_oneself(group):
    work = group.isend(floats(4), group.rank, 1)
    error = error_of(group.recv, array.array("d", [0.0] * 4), group.rank, 1)
    assert isinstance(error, dldist.DistMismatchError) and "float32" in str(error)
    error_or_none = None
    try:
        work.wait()
    except dldist.DistMismatchError as mismatch:
        error_or_none = mismatch
    assert error_or_none is None or "float64" in str(error_or_none)


def test_message_of_another_dtype_to_the_own_rank_is_a_mismatch():
    pair(to_oneself)


def test_match_dtype_must_have_a_truth_value():
    group = dldist.Group(dldist.HashStore(), 0, 1)

    class Neither:
        def __bool__(self):
            raise RuntimeError("neither")

    with pytest.raises(ValueError, match="match_dtype"):
        group.recv(bytearray(1), 0, match_dtype=Neither())
    with pytest.raises(TypeError, match="match_dtype"):
        group.send(b"1", 0, match_dtype=False)
    group.close()


# ---- the module's calls, on both paths


def module_calls(rank, is_hooked):
    if is_hooked:
        dldist.distributed_c10d._world.default_pg.register_pre_hook(1, lambda args: None)
    sent, tensor = floats(4), array.array("i", [0] * 4)
    if rank == 0:
        for _ in range(5):
            dldist.send(sent, 1)
        return
    with pytest.raises(dldist.DistMismatchError):
        dldist.recv(tensor, 0)
    assert dldist.recv(tensor, 0, match_dtype=False) == 0
    assert tensor.tobytes() == sent.tobytes()
    assert dldist.recv(tensor, match_dtype=False) == 0
    dldist.irecv(tensor, 0, match_dtype=False).wait()
    (work,) = dldist.batch_isend_irecv([dldist.P2POp(dldist.irecv, tensor, 0, match_dtype=False)])
    work.wait()


@pytest.mark.parametrize("is_hooked", [False, True], ids=["short way", "past hooks"])
def test_module_level_messages_check_dtypes(is_hooked):
    in_worlds(2, module_calls, is_hooked)


def backend_calls(backend):
    sent, tensor = floats(4), array.array("i", [0] * 4)
    if backend.rank() == 0:
        for _ in range(5):
            dldist.send(sent, group=backend, group_dst=1)
        return
    with pytest.raises(dldist.DistMismatchError):
        dldist.recv(tensor, group=backend, group_src=0)
    assert dldist.recv(tensor, group=backend, group_src=0, match_dtype=False) == 0
    assert tensor.tobytes() == sent.tobytes()
    assert dldist.recv(tensor, group=backend, match_dtype=False) == 0
    dldist.irecv(tensor, group=backend, group_src=0, match_dtype=False).wait()
    (work,) = dldist.batch_isend_irecv([dldist.P2POp(dldist.irecv, tensor, group=backend, group_peer=0, match_dtype=False)])
    work.wait()


def test_module_level_messages_over_another_backend_check_dtypes():
    store = dldist.HashStore()

    def run(rank):
        backend = dldist.ProcessGroupGloo(store, rank, 2, timedelta(seconds=15))
        backend_calls(backend)
        dldist.barrier(backend)
        backend.shutdown()

    on_threads(2, run)
