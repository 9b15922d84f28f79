"""PyTorch's client with dldist's server, dldist's client with PyTorch's servers, and both kinds of
prefix on one store."""

import os
import socket
import subprocess
import sys
import textwrap
import threading
import time
from datetime import timedelta

import dldist
import pytest
import workers
from procs import under_load

pytestmark = pytest.mark.torch

LOOPBACK = "127.0.0.1"
LONG = timedelta(seconds=15)
SHORT = timedelta(milliseconds=200)
ALL_BYTES = bytes(range(256))


@pytest.fixture(scope="module")
def torch_dist():
    return pytest.importorskip("torch.distributed")


def torch_client(torch_dist, port, timeout=LONG):
    return torch_dist.TCPStore(LOOPBACK, port, is_master=False, timeout=timeout, wait_for_workers=False)


def has(torch_dist, name):
    return hasattr(torch_dist.Store, name)


# -- torch's client, dldist's server -------------------------------------------------------------


@pytest.fixture
def server():
    return dldist.TCPStore(LOOPBACK, 0, is_master=True, timeout=LONG)


@pytest.fixture
def client(torch_dist, server):
    return torch_client(torch_dist, server.port)


def test_torch_client_exchanges_values_with_the_server(client, server):
    client.set("a", "1")
    assert server.get("a") == b"1"
    server.set("b", ALL_BYTES)
    assert client.get("b") == ALL_BYTES
    client.set("big", b"x" * (1 << 20))
    assert server.get("big") == b"x" * (1 << 20)
    assert client.get("big") == b"x" * (1 << 20)
    client.set("", "")
    assert client.get("") == b""
    client.set("\u9375", "unicode")
    assert server.get("\u9375") == b"unicode"
    assert client.num_keys() == server.num_keys() == 5


def test_torch_client_may_send_many_sets_in_one_flush(client, server):
    for index in range(2000):
        client.set(f"k{index}", str(index))
    assert client.add("n", 1) == 1
    assert server.get("k1999") == b"1999"
    assert server.num_keys() == 2001


def test_torch_client_can_add_and_compare_set(client, server):
    assert client.add("n", 40) == 40
    assert server.add("n", 2) == 42
    assert client.add("n", -50) == -8
    assert client.compare_set("c", "", "new") == b"new"
    assert client.compare_set("missing", "old", "new") == b"old"
    assert not server.check(["missing"])
    assert client.compare_set("c", "new", "newer") == b"newer"
    assert client.compare_set("c", "wrong", "x") == b"newer"


def test_torch_client_can_check_and_delete_keys(client, server):
    assert client.check(["x"]) is False
    server.set("x", "1")
    assert client.check(["x"]) is True
    assert client.check([]) is True
    assert client.delete_key("x") is True
    assert client.delete_key("x") is False
    assert server.check(["x"]) is False


def test_torch_client_can_append_and_set_several_keys(client, server):
    assert client.has_extended_api() is True
    client.append("log", "one ")
    client.append("log", "two")
    assert client.num_keys() == 1  # an append has no response; the next request has
    assert server.get("log") == b"one two"
    client.multi_set(["a", "b"], ["1", "2"])
    assert client.multi_get(["b", "a"]) == [b"2", b"1"]
    assert server.multi_get(["a", "b"]) == [b"1", b"2"]


def test_torch_client_wait_ends_when_all_keys_exist(client, server):
    thread = threading.Thread(target=lambda: client.wait(["late", "later"], LONG))
    thread.start()
    server.set("later", "1")
    server.set("late", "1")
    thread.join(10)
    assert not thread.is_alive()


def test_torch_client_continues_after_a_timeout_of_wait(torch_dist, client, server):
    for _ in range(3):
        with pytest.raises(torch_dist.DistStoreError, match="timeout"):
            client.wait(["absent"], SHORT)
        assert client.add("n", 0) == 0
    # The key is set after the timeout: the parked wait must be removed, or its response would
    # answer the next request.
    server.set("absent", "here")
    assert client.get("absent") == b"here"
    assert client.num_keys() == 2


def test_torch_client_stays_synchronised_if_wait_is_cancelled_late(torch_dist, client, server):
    """CANCEL_WAIT and the response cross: in either order the connection must stay synchronised."""
    for index in range(30):
        setter = threading.Timer(0.02, lambda: server.set(f"k{index}", str(index)))
        setter.start()
        try:
            client.wait([f"k{index}"], timedelta(milliseconds=20))
        except torch_dist.DistStoreError:
            pass
        setter.join()
        assert client.add("n", 1) == index + 1
        assert client.get(f"k{index}") == str(index).encode()


def test_torch_client_and_server_share_queues(torch_dist, client, server):
    if not has(torch_dist, "queue_push"):
        pytest.skip("this torch has no queues")
    client.queue_push("q", "1")
    assert client.queue_len("q") == 1
    server.queue_push("q", "2")
    assert server.queue_len("q") == client.queue_len("q") == 2
    assert client.queue_pop("q") == b"1"
    assert client.queue_pop("q", block=False) == b"2"
    with pytest.raises(torch_dist.QueueEmptyError):
        client.queue_pop("q", block=False)
    client.queue_push("q", "3")
    assert client.check(["q"]) is True
    assert server.queue_pop("q") == b"3"


def test_two_torch_clients_on_one_queue_get_each_item_once(torch_dist, server):
    if not has(torch_dist, "queue_push"):
        pytest.skip("this torch has no queues")
    got = []

    def drain(client):
        while True:
            try:
                item = client.queue_pop("q")
            except torch_dist.QueueEmptyError:
                # ^ torch waits for an item, then takes it; the other client took it in between
                continue
            if item == b"stop":
                return
            got.append(item)

    threads = [threading.Thread(target=drain, args=(torch_client(torch_dist, server.port),)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for index in range(300):
        server.queue_push("q", str(index))
    for _ in threads:
        server.queue_push("q", "stop")
    for thread in threads:
        thread.join(15)
        assert not thread.is_alive()
    assert sorted(got, key=int) == [str(index).encode() for index in range(300)]


def test_torch_client_queue_pop_times_out(torch_dist, server):
    if not has(torch_dist, "queue_push"):
        pytest.skip("this torch has no queues")
    client = torch_client(torch_dist, server.port, timedelta(seconds=1))
    with pytest.raises(torch_dist.DistStoreError):
        client.queue_pop("q")
    server.queue_push("q", "x")
    assert server.queue_len("q") == 1
    assert client.queue_pop("q") == b"x"


def test_torch_client_lists_the_keys_of_all_clients(torch_dist, client, server):
    if not has(torch_dist, "list_keys"):
        pytest.skip("this torch has no list_keys")
    server.set("a/b", "1")
    client.set("c", "1")
    assert server.num_keys() >= 1
    assert sorted(client.list_keys()) == ["a/b", "c"]


def test_torch_client_barrier_waits_for_the_other_rank(torch_dist, client, server):
    if not has(torch_dist, "barrier"):
        pytest.skip("this torch has no barrier")
    thread = threading.Thread(target=lambda: client.barrier("b", 2, LONG))
    thread.start()
    server.barrier("b", 2)
    thread.join(10)
    assert not thread.is_alive()
    with pytest.raises(torch_dist.DistStoreError, match="timeout"):
        client.barrier("other", 2, SHORT)
    assert client.add("n", 1) == 1


def test_clone_of_a_torch_client_outlives_the_client(client, server):
    twin = client.clone()
    thread = threading.Thread(target=lambda: client.wait(["late"], LONG))  # noqa: F821  deleted below
    thread.start()
    twin.set("late", "1")
    thread.join(10)
    assert not thread.is_alive()
    del client
    assert twin.get("late") == b"1"


def test_torch_workers_join_a_dldist_master(torch_dist):
    """A dldist master that waits for workers must count torch clients."""
    ready = threading.Event()
    with_port = {}

    def master():
        listener = socket.socket()
        listener.bind((LOOPBACK, 0))
        with_port["port"] = listener.getsockname()[1]
        ready.set()
        with_port["store"] = dldist.TCPStore(
            LOOPBACK, with_port["port"], 3, True, LONG, master_listen_fd=listener.detach()
        )

    thread = threading.Thread(target=master)
    thread.start()
    assert ready.wait(10)
    clients = [torch_dist.TCPStore(LOOPBACK, with_port["port"], 3, False, LONG) for _ in range(2)]
    thread.join(15)
    assert not thread.is_alive()
    clients[0].set("a", "1")
    assert with_port["store"].get("a") == b"1"


def test_queue_item_for_a_dead_torch_client_goes_to_another_client(torch_dist, server, procs):
    """The item that it waited for must reach another client."""
    child = procs.start(workers.torch_popper, server.port)
    child.recv(60)
    child.kill()
    child.wait_exit()
    time_out = time.monotonic() + 10
    server.queue_push("q", "x")
    # the server may have given the pushed item to the dead client before it saw its end
    while server.queue_len("q") < 1:
        assert time.monotonic() < time_out, "the item went to a dead client"
        server.queue_push("q", "x")
        time.sleep(0.05)
    assert server.queue_pop("q") == b"x"


# -- dldist's client, torch's server -------------------------------------------------------------


@pytest.fixture(params=[True, False], ids=["libuv", "plain"])
def torch_server(request, torch_dist):
    return torch_dist.TCPStore(
        LOOPBACK, 0, is_master=True, timeout=LONG, wait_for_workers=False, use_libuv=request.param
    )


def dldist_client(server, timeout=LONG):
    return dldist.TCPStore(LOOPBACK, server.port, timeout=timeout)


def test_dldist_client_operations_work_on_torchs_server(torch_server):
    client = dldist_client(torch_server)
    client.set("a", ALL_BYTES)
    assert torch_server.get("a") == ALL_BYTES
    assert client.get("a") == ALL_BYTES
    assert client.try_get("b") is None
    assert client.add("n", 5) == 5
    assert torch_server.add("n", 1) == 6
    assert client.compare_set("c", "", "1") == b"1"
    assert client.compare_set("c", "0", "2") == b"1"
    assert client.compare_set("no", "0", "2") == b"0"
    assert client.check(["a", "n"]) is True
    assert client.check(["a", "no"]) is False
    client.append("a", "!")
    assert client.get("a") == ALL_BYTES + b"!"
    client.multi_set(["x", "y"], ["1", "2"])
    assert client.multi_get(["y", "x"]) == [b"2", b"1"]
    assert client.num_keys() == torch_server.num_keys() == 5
    assert client.delete_key("x") is True
    assert client.delete_key("x") is False
    assert client.has_extended_api() is True


def test_dldist_client_continues_after_a_timeout_of_wait(torch_server):
    client = dldist_client(torch_server)
    for _ in range(3):
        with pytest.raises(dldist.DistStoreTimeoutError) as raised:
            client.wait(["absent"], SHORT)
        for part in ("absent", f"{LOOPBACK}:{torch_server.port}", "0."):
            assert part in str(raised.value)
    torch_server.set("absent", "now")
    client.wait(["absent"], LONG)
    assert client.get("absent") == b"now"


def test_blocked_call_of_a_dldist_client_delays_no_other_call(torch_server):
    client = dldist_client(torch_server)
    threads = [threading.Thread(target=client.get, args=(f"late{index}",)) for index in range(8)]
    for thread in threads:
        thread.start()
    for index in range(8):
        client.set(f"late{index}", "v")
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()


def test_add_to_text_by_a_dldist_client_is_an_error(torch_server):
    """When torch's server drops the connection, the error must say so, and the client reconnect or
    report why it cannot."""
    client = dldist_client(torch_server)
    client.set("word", "twelve")
    with pytest.raises(dldist.DistError) as raised:
        client.add("word", 1)
    assert "word" in str(raised.value) or f"{LOOPBACK}:{torch_server.port}" in str(raised.value)


def call_or_name(call):
    start = time.monotonic()
    try:
        return call(), time.monotonic() - start
    except (dldist.DistError, NotImplementedError) as error:
        return error, time.monotonic() - start


@pytest.mark.parametrize("name", ["queue_push", "queue_pop", "queue_pop_now", "queue_len", "list_keys", "barrier"])
def test_dldist_client_reports_calls_missing_in_the_plain_backend(torch_dist, torch_server, name):
    if torch_server.libuvBackend:
        pytest.skip("the libuv backend answers these")
    client = dldist_client(torch_server, timedelta(seconds=5))
    client.set("before", "1")
    calls = {
        "queue_push": lambda: client.queue_push("q", "1"),
        "queue_pop": lambda: client.queue_pop("q"),
        "queue_pop_now": lambda: client.queue_pop("q", block=False),
        "queue_len": lambda: client.queue_len("q"),
        "list_keys": lambda: client.list_keys(),
        "barrier": lambda: client.barrier("b", 1),
    }
    outcome, seconds = call_or_name(calls[name])
    if name == "queue_push" and outcome is None:
        # A push has no response: the next operation finds the closed connection, and must report it
        # or reconnect.
        outcome, more = call_or_name(lambda: client.queue_len("q"))
        seconds += more
    if name in ("list_keys", "barrier") and not isinstance(outcome, Exception):
        assert outcome in (None, ["before"])  # emulation is as good as native support
    else:
        assert isinstance(outcome, Exception), outcome
        assert not isinstance(outcome, dldist.DistTimeoutError), outcome
        assert len(str(outcome)) > 10
    assert seconds < under_load(3), f"{outcome!r} after {seconds:.1f} s"
    client.set("after", "2")
    assert client.get("after") == b"2"
    assert client.get("before") == b"1"


def test_dldist_client_can_use_queues_and_barriers_on_libuv(torch_dist, torch_server):
    if not torch_server.libuvBackend:
        pytest.skip("the plain backend has no queues")
    client, other = dldist_client(torch_server), dldist_client(torch_server)
    client.queue_push("q", "1")
    assert client.queue_len("q") == 1
    assert other.queue_pop("q") == b"1"
    with pytest.raises(dldist.DistQueueEmptyError):
        client.queue_pop("q", block=False)
    with pytest.raises(dldist.DistStoreTimeoutError):
        client.queue_pop("q", timeout=SHORT)
    torch_server.queue_push("q", "2")
    assert client.queue_pop("q") == b"2"
    # the response to a pop has the earlier queue length, 3, 2, 1, and one item
    for value in ("a", "b", "c"):
        client.queue_push("q", value)
    assert [client.queue_pop("q", timeout=timedelta(seconds=2)) for _ in range(3)] == [b"a", b"b", b"c"]
    if has(torch_dist, "list_keys"):
        client.set("k", "1")
        assert sorted(client.list_keys()) == sorted(torch_server.list_keys())
    if has(torch_dist, "barrier"):
        thread = threading.Thread(target=client.barrier, args=("b", 2))
        thread.start()
        torch_server.barrier("b", 2, LONG)
        thread.join(10)
        assert not thread.is_alive()


def test_prefix_stores_of_torch_and_dldist_see_the_same_keys(torch_dist, server):
    torch_prefix = torch_dist.PrefixStore("q", torch_dist.PrefixStore("p", torch_client(torch_dist, server.port)))
    dldist_prefix = dldist.PrefixStore("q", dldist.PrefixStore("p", server))
    torch_prefix.set("k", "torch")
    assert dldist_prefix.get("k") == b"torch"
    dldist_prefix.set("j", "dldist")
    assert torch_prefix.get("j") == b"dldist"
    assert dldist_prefix.add("n", 1) == 1 and torch_prefix.add("n", 1) == 2
    assert server.get("p/q/k") == b"torch"
    assert sorted(dldist_prefix.list_keys()) == ["j", "k", "n"]


def test_prefix_stores_of_torch_and_dldist_see_the_same_keys_on_torchs_server(torch_dist, torch_server):
    dldist_prefix = dldist.PrefixStore("p", dldist_client(torch_server))
    torch_prefix = torch_dist.PrefixStore("p", torch_server)
    dldist_prefix.set("k", "1")
    assert torch_prefix.get("k") == b"1"
    torch_prefix.set("j", "2")
    assert dldist_prefix.multi_get(["j", "k"]) == [b"2", b"1"]


@pytest.mark.deadline(90)
def test_torch_process_group_works_over_a_dldist_server(torch_dist, server, procs):
    """torch's init_process_group must find its peers through a dldist server."""
    children = [procs.start(workers.torch_all_reduce, server.port, rank, 2) for rank in range(2)]
    assert [child.result(60) for child in children] == [3.0, 3.0]



@pytest.mark.deadline(120)
def test_dldist_client_works_in_a_torchrun_job(torch_dist, tmp_path):
    """dldist clients must work in a torchrun job, with the agent's server."""
    script = tmp_path / "job.py"
    script.write_text(
        textwrap.dedent(
            """
            import os
            from datetime import timedelta
            import dldist
            store = dldist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False,
                                    timeout=timedelta(seconds=30))
            job = dldist.PrefixStore("job", store)
            rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
            job.set(f"rank{rank}", str(rank))
            job.wait([f"rank{peer}" for peer in range(world)])
            total = job.add("total", rank + 1)
            job.append("log", "x")
            if job.add("done", 1) == world:
                job.set("all", "1")
            job.wait(["all"])
            with open(os.environ["RESULT"] + str(rank), "w") as file:
                file.write(f"{job.get('total').decode()} {job.get('log').decode()}")
            job.add("read", 1)
            """
        )
    )
    result = str(tmp_path / "result")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    done = subprocess.run(
        command,
        env=dict(os.environ, RESULT=result, OMP_NUM_THREADS="1"),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for rank in range(2):
        with open(f"{result}{rank}", encoding="utf-8") as file:
            assert file.read() == "3 xx"
