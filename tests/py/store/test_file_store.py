"""FileStore over the life of jobs: one after another, killed, leaving early, with slow locks and
torn records."""

import os
import threading
import time
from datetime import timedelta

import dldist
import pytest
import workers
from procs import under_load

LONG = timedelta(seconds=20)
SHORT = timedelta(milliseconds=200)


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "store")


def open_store(path, world_size=-1):
    return dldist.FileStore(path, world_size, timeout=LONG)


def test_processes_share_a_file_store(path, procs):
    store = open_store(path)
    child = procs.start(workers.file_member, path, -1, ["from-child"])
    assert child.recv() == 1
    assert store.get("from-child") == f"by {child.pid}".encode()
    child.send("leave")
    child.result()
    assert store.get("from-child") == f"by {child.pid}".encode()


def test_wait_ends_when_another_process_sets_the_key(path, procs):
    store = open_store(path)
    child = procs.start(workers.interruptible, "file", path, "get")
    child.recv()
    store.set("absent", "there now")
    assert child.result()[0] == "returned"


@pytest.mark.parametrize("world_size", [-1, 1])
def test_second_job_does_not_see_the_values_of_the_first(path, world_size):
    first = open_store(path, world_size)
    first.set("old", "1")
    first.queue_push("q", "old")
    del first
    second = open_store(path, world_size)
    assert second.check(["old"]) is False
    assert second.queue_len("q") == 0
    assert len(second.list_keys()) == 0
    second.set("new", "1")
    assert second.get("new") == b"1"


def test_file_of_a_store_is_removed_after_a_complete_job(path, procs):
    store = open_store(path, 2)
    child = procs.start(workers.file_member, path, 2, ["a"])
    child.recv()
    child.send("leave")
    child.result()
    assert os.path.exists(path), "removed while a store has it open"
    assert store.get("a") == f"by {child.pid}".encode()
    del store
    assert not os.path.exists(path)


def test_file_of_a_store_without_a_world_size_is_not_removed(path):
    store = open_store(path)
    store.set("a", "1")
    del store
    assert os.path.exists(path)


def test_rank_that_leaves_early_does_not_remove_the_file(path):
    """With a world size, a late member must find the values of one that has left cleanly."""
    early = open_store(path, 2)
    early.set("a", "from the early one")
    del early
    late = open_store(path, 2)
    assert late.get("a", timeout=SHORT) == b"from the early one"
    del late
    assert not os.path.exists(path)


@pytest.mark.parametrize("world_size", [-1, 2])
def test_values_of_a_job_whose_processes_were_killed_are_discarded(path, world_size, procs):
    """Data of a dead job must not be read as live, and its file must serve the next job."""
    child = procs.start(workers.file_member, path, world_size, ["stale"])
    child.recv()
    child.kill()
    child.wait_exit()
    assert os.path.getsize(path) > 0
    store = open_store(path, world_size)
    assert store.check(["stale"]) is False
    assert len(store.list_keys()) == 0
    store.set("fresh", "1")
    assert open_store(path, world_size).get("fresh") == b"1"


def test_values_of_one_killed_process_are_kept_while_others_run(path, procs):
    """Other members must keep the killed member's values, and the last one still end the job."""
    store = open_store(path)
    child = procs.start(workers.file_member, path, -1, ["a", "b"])
    child.recv()
    child.kill()
    child.wait_exit()
    assert store.get("b") == f"by {child.pid}".encode()
    store.set("c", "1")
    assert len(store.list_keys()) == 3
    del store
    assert len(open_store(path).list_keys()) == 0


@pytest.mark.parametrize("part", [0.01, 0.5, 0.99])
def test_incomplete_record_of_a_crashed_process_is_ignored(path, part):
    """A record torn by a writer's crash must be ignored, with the rest of the file."""
    store = open_store(path)
    store.set("whole", "1")
    with open(path, "rb") as file:
        before = file.read()
    store.set("next", "x" * 100)
    with open(path, "rb") as file:
        record = file.read()[len(before) :]
    assert len(record) > 100
    with open(path, "r+b") as file:
        file.truncate(len(before) + max(1, int(part * len(record))))
    other = open_store(path)
    assert other.get("whole") == b"1"
    assert other.check(["next"]) is False
    other.set("after", "2")
    assert other.get("after") == b"2"
    third = open_store(path)
    assert third.get("after") == b"2" and third.get("whole") == b"1"
    assert len(third.list_keys()) == 2


def test_zeros_at_the_end_of_a_store_file_are_ignored(path):
    """Trailing zeros, as a file system leaves them for unwritten data, must be ignored."""
    store = open_store(path)
    store.set("whole", "1")
    with open(path, "ab") as file:
        file.write(bytes(37))
    other = open_store(path)
    assert len(other.list_keys()) == 1
    other.set("after", "1")
    assert open_store(path).multi_get(["whole", "after"]) == [b"1", b"1"]


def test_other_bytes_at_the_end_of_a_store_file_are_an_error(path):
    """Bytes that dldist did not write must be an error, neither read as values nor overwritten."""
    store = open_store(path)
    store.set("whole", "1")
    with open(path, "ab") as file:
        file.write(b"\xff" * 37)
    size = os.path.getsize(path)
    other = open_store(path)
    assert other.get("whole") == b"1"
    assert len(other.list_keys()) == 1
    with pytest.raises(dldist.DistStoreError, match="damaged") as raised:
        other.set("after", "1")
    assert path in str(raised.value)
    assert os.path.getsize(path) == size


def test_file_that_is_no_store_is_an_error(tmp_path):
    """A file of another kind must be an error or read as empty, never as values."""
    path = tmp_path / "notes.txt"
    path.write_bytes(b"dear diary, " * 100)
    try:
        store = dldist.FileStore(str(path), timeout=timedelta(seconds=2))
    except dldist.DistStoreError as error:
        assert str(path) in str(error)
        assert path.read_bytes() == b"dear diary, " * 100
    else:
        assert len(store.list_keys()) == 0


def test_directory_of_a_file_store_may_be_created_late(tmp_path, procs):
    directory = tmp_path / "later"
    child = procs.start(workers.file_member, str(directory / "store"), -1, ["a"])
    directory.mkdir()
    child.recv()
    assert open_store(str(directory / "store")).get("a") == f"by {child.pid}".encode()


def test_opening_a_file_store_in_a_missing_directory_times_out(tmp_path):
    start = time.monotonic()
    with pytest.raises(dldist.DistStoreError, match="no-such-directory"):
        dldist.FileStore(str(tmp_path / "no-such-directory" / "store"), timeout=timedelta(seconds=0.4))
    assert 0.35 < time.monotonic() - start < under_load(2)


def test_file_store_at_the_path_of_a_directory_is_an_error(tmp_path):
    start = time.monotonic()
    with pytest.raises(dldist.DistError, match=str(tmp_path)):
        dldist.FileStore(str(tmp_path), timeout=timedelta(seconds=1))
    assert time.monotonic() - start < under_load(3)


def test_timeout_names_the_process_that_holds_the_file_lock(path, procs):
    """Calls must wait for a slow lock until the deadline, then name it, and work once it frees."""
    store = open_store(path)
    store.set("a", "1")
    holder = procs.start(workers.lock_holder, path)
    assert holder.recv() == "locked"
    store.set_timeout(timedelta(seconds=0.4))
    start = time.monotonic()
    with pytest.raises(dldist.DistStoreTimeoutError) as raised:
        store.set("b", "1")
    assert path in str(raised.value)
    assert 0.35 < time.monotonic() - start < under_load(2)
    store.set_timeout(LONG)
    late = threading.Timer(0.2, holder.send, ("unlock",))
    late.start()
    store.set("b", "2")
    assert store.get("b") == b"2"
    holder.result()
    late.join()


@pytest.mark.deadline(90)
def test_concurrent_processes_lose_no_add_or_append(path, procs):
    count, nprocs = 200, 4
    children = [procs.start(workers.file_adds, path, count) for _ in range(nprocs)]
    for child in children:
        child.recv()
    start = time.monotonic()
    for child in children:
        child.send("go")
    for child in children:
        assert child.recv(60) == "done"
    print(f"{nprocs * count} adds by {nprocs} processes in {time.monotonic() - start:.2f} s")
    for child in children:
        child.send("read")
    results = [child.result() for child in children]
    assert sorted(value for values, _ in results for value in values) == list(range(1, count * nprocs + 1))
    logs = {log for _, log in results}
    assert len(logs) == 1
    entries = logs.pop().decode().split(";")[:-1]
    assert sorted(entries) == sorted(f"{child.pid}.{i}" for child in children for i in range(count // 10))


def test_process_killed_while_writing_leaves_only_complete_values(path, procs):
    """After a SIGKILL during many writes, the survivor must only read complete values."""
    store = open_store(path)
    for round_number in range(5):
        child = procs.start(workers.file_storm, path)
        child.recv()
        size = os.path.getsize(path)
        deadline = time.monotonic() + 5
        while os.path.getsize(path) < size + 20000 and time.monotonic() < deadline:
            pass
        child.kill()
        child.wait_exit()
        value = store.get("storm")
        assert len(set(value)) == 1 and len(value) % 100 == 0
        store.set("survivor", str(round_number))
        assert store.get("survivor") == str(round_number).encode()


def test_num_keys_of_a_file_store_counts_its_internal_key(path):
    """num_keys must count the store's own key, as in c10d."""
    store = open_store(path)
    assert (store.num_keys(), store.list_keys()) == (1, [])
    store.set("a", "1")
    assert (store.num_keys(), store.list_keys()) == (2, ["a"])
    assert dldist.PrefixStore("p", store).num_keys() == 2


def test_two_stores_of_one_process_share_the_file(path):
    first, second = open_store(path), open_store(path)
    first.set("a", "1")
    assert second.get("a") == b"1"
    del first
    second.set("b", "1")
    assert len(open_store(path).list_keys()) == 2


def test_file_of_a_store_is_private_to_its_user(path):
    open_store(path).set("a", "1")
    assert os.stat(path).st_mode & 0o022 == 0


def test_repr_of_a_file_store_has_its_path(tmp_path):
    path = tmp_path / "st'öre"
    store = dldist.FileStore(str(path), 1)
    assert store.path == str(path)
    assert repr(store) == f"FileStore(path={str(path)!r})"
    with pytest.raises(RuntimeError, match="__init__"):
        repr(dldist.FileStore.__new__(dldist.FileStore))
