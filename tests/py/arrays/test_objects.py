"""Object collectives: _objects over a group, and torch.distributed's calls over a default world."""

import importlib.util

import objects_workers as workers
import procs
import pytest
from group_team import start_ranks

SERIALIZERS = ["safe", "pickle"]
CALLS = ["all_gather_object", "gather_object", "broadcast_object", "scatter_objects", "all_to_all_objects"]
HAS_NUMPY = importlib.util.find_spec("numpy") is not None
needs_numpy = pytest.mark.skipif(not HAS_NUMPY, reason="NumPy is not installed")


class Team:
    """Processes in one group. run() runs a case of objects_workers and returns all results."""

    def __init__(self, size):
        self.size = size
        self.children = procs.Group()
        try:
            self.ranks, self.store = start_ranks(self.children, workers.member, size)
            assert [child.recv() for child in self.ranks] == ["ready"] * size
        except BaseException:
            self.children.close()
            raise

    def run(self, case, *args):
        for child in self.ranks:
            child.send((case.__name__, args))
        replies = [child.recv() for child in self.ranks]
        errors = [reply for kind, reply in replies if kind == "error"]
        assert not errors, "\n".join(f"{error['kinds'][0]}: {error['text']}" for error in errors)
        return [reply for _, reply in replies]

    def close(self):
        try:
            for child in self.ranks:
                if child.process.poll() is None:
                    child.send(None)
            assert [child.result() for child in self.ranks] == ["closed"] * self.size
            assert [child.stderr_text() for child in self.ranks] == [""] * self.size
        finally:
            self.children.close()


@pytest.fixture(scope="module", params=[1, 2, 3])
def team(request):
    team = Team(request.param)
    yield team
    team.close()


@pytest.fixture(scope="module")
def three():
    team = Team(3)
    yield team
    team.close()


@pytest.mark.parametrize("serializer", SERIALIZERS)
def test_every_object_call_sends_objects_of_all_sizes(team, serializer):
    assert all(team.run(workers.all_calls, serializer))


def test_each_rank_gets_its_own_copy(team):
    assert all(team.run(workers.copies_are_own))


@needs_numpy
@pytest.mark.parametrize("serializer", SERIALIZERS)
def test_numpy_arrays_are_sent_as_objects(three, serializer):
    assert all(three.run(workers.numpy_arrays, serializer))


@needs_numpy
@pytest.mark.parametrize("serializer", SERIALIZERS)
def test_sending_an_object_does_not_copy_its_arrays(three, serializer):
    nbytes = 32 << 20
    sender, *receivers = three.run(workers.peak_memory, serializer, nbytes)
    assert sender < 1 << 20
    assert all(nbytes <= receiver < nbytes + (1 << 20) for receiver in receivers)


@pytest.mark.parametrize("serializer", SERIALIZERS)
@pytest.mark.parametrize("call", [*CALLS, "send_object"])
def test_unserializable_object_fails_on_all_ranks(three, call, serializer):
    results = three.run(workers.unsendable, call, serializer)
    assert "TypeError" in results[1]["kinds"]
    assert "lock" in results[1]["text"]
    if serializer == "safe":
        assert "['bad'][1] has an unsupported type for serializer='safe': got _thread.lock" in results[1]["text"]
    concerned = results[:1] if call == "send_object" else [results[0], results[2]]
    for result in concerned:
        assert "DistError" in result["kinds"]
        assert result["rank"] == 1
        name = "recv_object" if call == "send_object" else call
        assert result["text"].startswith(f"{name}(): rank 1 could not send its object: TypeError: ")


@pytest.mark.parametrize("call", [*CALLS, "recv_object"])
def test_ranks_with_different_serializers_raise_a_mismatch(three, call):
    results = three.run(workers.other_serializers, call)
    wanted = {"recv_object": results[1:2], "broadcast_object": results[1:], "scatter_objects": results[1:]}
    for result in wanted.get(call, results):
        assert "DistMismatchError" in result["kinds"]
        assert "serializer='safe'" in result["text"] and "serializer='pickle'" in result["text"]
    if call in ("broadcast_object", "scatter_objects"):
        assert results[0] == workers.BIG


def test_receiver_with_the_safe_serializer_rejects_a_pickle(three):
    for is_trapped, result in three.run(workers.malicious)[1:]:
        assert not is_trapped
        assert "DistMismatchError" in result["kinds"]


def test_error_of_unpickling_names_the_sender(three):
    for text, note in three.run(workers.unreadable)[1:]:
        assert "invalid literal for int()" in text
        assert note == "broadcast_object(): while reading the object of rank 0 (serializer='pickle')"


def test_object_calls_reject_wrong_lists_and_arguments(three):
    for rank, (short, none, long, unknown) in enumerate(three.run(workers.wrong_lists)):
        assert "got 1, expected a list of 3" in short["text"]
        assert "got a NoneType, expected a list of 3" in none["text"]
        assert "got 4, expected a list of 3" in long["text"]
        assert ("ValueError" in short["kinds"]) == ("ValueError" in none["kinds"]) == (rank == 0)
        assert ("ValueError" in long["kinds"]) == (rank == 1)
        assert unknown["kinds"][0] == "ValueError" and "'json'" in unknown["text"]


def test_malformed_object_of_a_peer_is_an_error(three):
    nothing, noise, huge = three.run(workers.no_object)[1]
    for result in (nothing, noise, huge):
        assert result["kinds"][0] == "DistError" and result["rank"] == 0
    assert "sent a malformed object, or has" in nothing["text"] and "sent a malformed object, or has" in noise["text"]
    assert f"sent an object too large for this machine: got {1 << 60} bytes" in huge["text"]


def test_receive_of_an_object_without_a_sender_times_out(three):
    assert "DistTimeoutError" in three.run(workers.receive_without_a_sender)[0]["kinds"]


def test_serializer_of_a_group_is_the_default_of_its_calls(three):
    sender, *receivers = three.run(workers.group_serializer)
    assert "TypeError" in sender["kinds"] and "obj[2] has an unsupported type for serializer='safe': got builtins.slice" in sender["text"]
    assert all("rank 0 could not send its object" in result["text"] for result in receivers)


def test_object_calls_work_by_their_torch_distributed_names():
    children = procs.Group()
    try:
        ranks, _ = start_ranks(children, workers.c10d, 3)
        assert [child.result() for child in ranks] == ["done"] * 3
    finally:
        children.close()
