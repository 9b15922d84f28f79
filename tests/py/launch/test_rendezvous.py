"""dldist.rendezvous: c10d's functions and error texts, and repeated meetings at one address."""

import concurrent.futures
import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from datetime import timedelta

import dldist
import pytest
import rendezvous_workers
from dldist import rendezvous
from dldist._rendezvous import urls
from dldist.rendezvous import meet, register_rendezvous_handler
from ports import reserve_port
from procs import fd_count, poll_until, under_load

LOOPBACK = "127.0.0.1"
ENVIRONMENT = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": LOOPBACK, "MASTER_PORT": "0"}


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    names = [*ENVIRONMENT, "LOCAL_RANK", "USE_LIBUV", "DLDIST_MASTER_FD", "TORCHELASTIC_RESTART_COUNT", "GROUP_WORLD_SIZE"]
    for name in [*names, *(name for name in os.environ if name.startswith(("SLURM_", "OMPI_", "PMI")))]:
        monkeypatch.delenv(name, raising=False)


def wait_for_descriptors(limit):
    """Wait until at most `limit` descriptors are open; earlier tests' may still be closing."""
    poll_until(lambda: fd_count() <= limit, description=f"the number of descriptors, {fd_count()}, to be {limit} at most")


@pytest.fixture
def port():
    return reserve_port()


@pytest.fixture
def listener():
    with socket.create_server((LOOPBACK, 0)) as server:
        yield server


@pytest.fixture
def ranks():
    """Return a function that runs ranks as threads: ranks(function, 2) returns the results of
    function(0) and function(1)."""
    with concurrent.futures.ThreadPoolExecutor(8) as pool:

        def run(function, size):
            futures = [pool.submit(function, rank) for rank in range(size)]
            return [future.result(25) for future in futures]

        yield run


# ---- c10d's rendezvous()

AT_CALL = {
    "no such scheme": (("foo://x",), RuntimeError, "No rendezvous handler for foo://"),
    "no scheme": (("foo",), RuntimeError, "No rendezvous handler for ://"),
    "not a string": ((7,), RuntimeError, "`url` must be a string. <class 'int'>: 7"),
    "rank": (("env://", "0"), RuntimeError, "`rank` must be an integer. 0"),
    "rank a float": (("env://", 1.0), RuntimeError, "`rank` must be an integer. 1.0"),
    "world size": (("env://", 0, None), RuntimeError, "`world_size` must be an integer. None"),
    "rank twice": (
        ("tcp://x:1?rank=0", 0, 1),
        AssertionError,
        "The url: tcp://x:1?rank=0 has node-specific arguments(rank, world_size) already.",
    ),
    "size twice": (
        ("tcp://x:1?world_size=3", -1, 1),
        AssertionError,
        "The url: tcp://x:1?world_size=3 has node-specific arguments(rank, world_size) already.",
    ),
}

AT_NEXT = {
    "file without path": ("file://?rank=0&world_size=1", "file:// rendezvous: path missing"),
    "file without rank": ("file:///tmp/x?world_size=1", "file:// rendezvous: rank parameter missing"),
    "file without size": ("file:///tmp/x?rank=0", "file:// rendezvous: world size parameter missing"),
    "tcp without port": ("tcp://127.0.0.1?rank=0&world_size=1", "tcp:// rendezvous: port number missing"),
    "tcp without rank": ("tcp://127.0.0.1:23456?world_size=1", "tcp:// rendezvous: rank parameter missing"),
    "tcp without size": ("tcp://127.0.0.1:23456?rank=0", "tcp:// rendezvous: world size parameter missing"),
    "port too large": ("tcp://127.0.0.1:65536?rank=0&world_size=1", "Port out of range 0-65535"),
    "rank no number": ("tcp://127.0.0.1:23456?rank=x&world_size=1", "rank must be an integer, not 'x'"),
    "parameter without value": ("tcp://127.0.0.1:23456?rank&world_size=1", "rank must be an integer, not ''"),
    "range backwards": ("tcp://127.0.0.1:7-5?job=a&rank=0&world_size=1", "invalid range of ports: got 7-5"),
    "range without job": ("tcp://127.0.0.1:5-7?rank=0&world_size=1", "got a range of ports without job=NAME"),
    "port 0 of another": ("tcp://127.0.0.1:0?rank=1&world_size=2", "only rank 0 can take a free port"),
    "no such descriptor": ("tcp://127.0.0.1:9?rank=0&world_size=1&listen_fd=9999", "listen_fd is not an open descriptor: got 9999"),
}


@pytest.mark.parametrize("case", AT_CALL)
def test_rendezvous_with_wrong_arguments_raises_immediately(case):
    args, kind, text = AT_CALL[case]
    with pytest.raises(kind) as caught:
        rendezvous.rendezvous(*args)
    assert type(caught.value) is kind
    assert str(caught.value) == text


@pytest.mark.parametrize("case", AT_NEXT)
def test_rendezvous_url_with_wrong_fields_raises_when_the_store_is_requested(case):
    url, text = AT_NEXT[case]
    generator = rendezvous.rendezvous(url)
    with pytest.raises(ValueError) as caught:
        next(generator)
    assert text in str(caught.value)


@pytest.mark.parametrize("empty", [None, ""], ids=["unset", "empty"])
def test_missing_rendezvous_variables_are_named_in_order(monkeypatch, empty):
    for name, value in ENVIRONMENT.items():
        if empty is not None:
            monkeypatch.setenv(name, empty)
        with pytest.raises(ValueError, match=f"env:// rendezvous: environment variable {name} expected, but not set"):
            next(rendezvous.rendezvous("env://"))
        monkeypatch.setenv(name, value)
    assert next(rendezvous.rendezvous("env://"))[1:] == (0, 1)


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE", "MASTER_PORT"])
def test_malformed_numbers_in_rendezvous_variables_are_named(monkeypatch, name):
    for other, value in ENVIRONMENT.items():
        monkeypatch.setenv(other, value)
    monkeypatch.setenv(name, "x1")
    with pytest.raises(ValueError, match=f"{name} must be an integer, not 'x1'"):
        next(rendezvous.rendezvous("env://"))


def test_port_in_the_rendezvous_variables_must_be_valid(monkeypatch):
    for name, value in (ENVIRONMENT | {"MASTER_PORT": "70000"}).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match="port must have value from 0 to 65535 but was 70000"):
        next(rendezvous.rendezvous("env://"))


def test_arguments_of_rendezvous_take_precedence_over_variables(monkeypatch):
    for name, value in (ENVIRONMENT | {"RANK": "7", "WORLD_SIZE": "9"}).items():
        monkeypatch.setenv(name, value)
    assert next(rendezvous.rendezvous("env://", 0, 1))[1:] == (0, 1)
    assert next(rendezvous.rendezvous("env://?rank=0&world_size=1"))[1:] == (0, 1)


@pytest.mark.parametrize("scheme", ["tcp", "env", "file"])
def test_rendezvous_generator_yields_one_store(monkeypatch, tmp_path, scheme):
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    url = {"tcp": f"tcp://{LOOPBACK}:0?rank=0&world_size=1", "env": "env://"}.get(
        scheme, f"file://{tmp_path}/store?rank=0&world_size=1"
    )
    generator = rendezvous.rendezvous(url)
    store, rank, world_size = next(generator)
    assert (rank, world_size) == (0, 1)
    assert type(store) is (dldist.FileStore if scheme == "file" else dldist.TCPStore)
    store.set("key", "value")
    assert store.get("key") == b"value"
    verb = "rerendezvous" if scheme == "file" else "re-rendezvous"
    with pytest.raises(RuntimeError, match=f"^Unable to perform {verb} using {scheme}:// method$"):
        next(generator)


def test_rendezvous_url_may_be_bytes(tmp_path):
    url = f"file://{tmp_path}/store?rank=0&world_size=1".encode()
    assert next(rendezvous.rendezvous(url))[1:] == (0, 1)


@pytest.mark.parametrize(("query", "variable", "expected"), [("", "0", False), ("&use_libuv=1", "0", True), ("", "1", True)])
def test_option_use_libuv_in_a_rendezvous_url_is_accepted(monkeypatch, query, variable, expected):
    monkeypatch.setenv("USE_LIBUV", variable)
    store = next(rendezvous.rendezvous(f"tcp://{LOOPBACK}:0?rank=0&world_size=1{query}"))[0]
    assert store.libuvBackend is expected


def test_url_scheme_can_be_registered_only_once(monkeypatch):
    monkeypatch.setattr(rendezvous, "_handlers", dict(rendezvous._handlers))
    seen = {}

    def handler(url, **kwargs):
        seen.update(kwargs, url=url)
        yield dldist.HashStore(), 0, 1

    register_rendezvous_handler("mine", handler)
    assert next(rendezvous.rendezvous("mine://place?a=b", 0, 1, timeout=3))[1:] == (0, 1)
    assert seen == {"url": "mine://place?a=b&rank=0&world_size=1", "timeout": 3}
    with pytest.raises(RuntimeError, match="^Rendezvous handler for mine:// already registered$"):
        register_rendezvous_handler("mine", handler)
    with pytest.raises(RuntimeError, match="^Rendezvous handler for tcp:// already registered$"):
        register_rendezvous_handler("tcp", handler)
    assert meet("mine://place", timeout=timedelta(seconds=4)).world_size == 1
    assert seen["timeout"] == timedelta(seconds=4)


def test_rendezvous_by_url_waits_for_all_ranks(procs, port):
    urls = [f"tcp://{LOOPBACK}:{port}?rank={rank}&world_size=2" for rank in range(2)]
    children = [procs.start(rendezvous_workers.store_by_url, url) for url in urls]
    assert [child.result() for child in children] == [[b"2", b"2"]] * 2


def test_rendezvous_by_url_waits_for_missing_ranks():
    with pytest.raises(dldist.DistStoreError, match="1/2 clients joined") as caught:
        next(rendezvous.rendezvous(f"tcp://{LOOPBACK}:{reserve_port()}", 0, 2, timeout=1))
    # c10d's text
    assert str(caught.value).startswith("Timed out after 1 seconds waiting for clients. 1/2 clients joined: ")


def test_only_rank_0_can_take_any_port():
    store, _, _ = next(rendezvous.rendezvous(f"tcp://{LOOPBACK}:0", 0, 2))
    assert store.port > 0
    rank_1 = next(rendezvous.rendezvous(f"tcp://{LOOPBACK}:{store.port}", 1, 2))[0]
    rank_1.set("key", "v")
    assert store.get("key") == b"v"
    with pytest.raises(ValueError, match="the other ranks cannot learn the port"):
        meet(f"tcp://{LOOPBACK}:0", 0, 2)


class Options:
    init_method = "env://"


def test_store_created_from_rpc_options_has_no_world_size(monkeypatch):
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("WORLD_SIZE")
    store = rendezvous._create_store_from_options(Options, 0)
    store.set("key", "v")
    assert store.num_keys() == 1  # no rank was counted


# ---- the store of an agent


@pytest.fixture
def agent(monkeypatch):
    store = dldist.TCPStore(LOOPBACK, 0, is_master=True)
    for name, value in (ENVIRONMENT | {"WORLD_SIZE": "2", "MASTER_PORT": str(store.port)}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    return store


@pytest.mark.parametrize("scheme", ["env", "tcp"])
def test_store_of_torchruns_agent_is_used_by_all_ranks(agent, scheme):
    url = "env://" if scheme == "env" else f"tcp://{LOOPBACK}:{agent.port}"
    for rank in range(2):
        next(rendezvous.rendezvous(url, rank, 2))[0].set(f"from {rank}", "x")
    assert (agent.get("from 0"), agent.get("from 1")) == (b"x", b"x")


@pytest.mark.parametrize(("groups", "expected"), [(None, "/worker/attempt_3/key"), ("1", "/worker/attempt_3/key"), ("2", "key")])
def test_restarts_under_torchruns_agent_have_separate_keys(agent, monkeypatch, groups, expected):
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "3")
    if groups:
        monkeypatch.setenv("GROUP_WORLD_SIZE", groups)
    next(rendezvous.rendezvous("env://"))[0].set("key", "x")
    assert agent.get(expected, timeout=5) == b"x"


def test_rank_0_serves_a_store_at_an_address_other_than_the_agents(agent):
    store = next(rendezvous.rendezvous(f"tcp://{LOOPBACK}:{reserve_port()}", 0, 1))[0]
    store.set("key", "x")
    assert agent.try_get("key") is None


def test_store_of_torchruns_agent_serves_repeated_rendezvous(agent, ranks):
    def member(rank):
        sums = []
        for _ in range(3):
            meeting = meet("env://", rank, 2, timeout=20)
            assert meeting.store.add("times", 1) <= 2
            sums.append(rendezvous_workers.sum_over(meeting))
            meeting.close()
        return sums

    assert ranks(member, 2) == [[3, 3, 3]] * 2


# ---- a listening descriptor


@pytest.mark.parametrize("way", ["argument", "query", "environment"])
def test_rank_0_can_take_a_listening_socket_from_its_parent(monkeypatch, listener, way):
    at = listener.getsockname()[1]
    fd = listener.fileno()
    early = socket.create_connection((LOOPBACK, at))  # before the store exists
    if way == "environment":
        for name, value in (ENVIRONMENT | {"MASTER_PORT": str(at), "DLDIST_MASTER_FD": str(fd)}).items():
            monkeypatch.setenv(name, value)
        args, more = ("env://",), {}
    elif way == "query":
        args, more = (f"tcp://{LOOPBACK}:{at}?rank=0&world_size=1&listen_fd={fd}",), {}
    else:
        args, more = (f"tcp://{LOOPBACK}:{at}", 0, 1), {"listen_fd": fd}
    for number in range(3):  # the port stays reserved between the stores
        store = next(rendezvous.rendezvous(*args, **more))[0]
        assert store.try_get("key") is None, "that was the store before"
        store.set("key", str(number))
        client = dldist.TCPStore(LOOPBACK, at, timeout=5)
        assert client.get("key") == str(number).encode()
        del store, client
    early.close()


def test_stores_at_the_same_time_share_the_server_of_a_listening_socket(listener):
    url = f"tcp://{LOOPBACK}:{listener.getsockname()[1]}?rank=0&world_size=1&listen_fd={listener.fileno()}"
    before = fd_count()
    stores = [next(rendezvous.rendezvous(url))[0] for _ in range(3)]
    stores[0].set("key", "x")
    assert [store.get("key") for store in stores] == [b"x"] * 3
    del stores
    wait_for_descriptors(before)


def test_inherited_listening_socket_of_another_port_is_rejected(listener):
    url = f"tcp://{LOOPBACK}:{reserve_port()}?rank=0&world_size=1&listen_fd={listener.fileno()}"
    before = fd_count()
    with pytest.raises(ValueError, match="expected to be bound to port"):
        next(rendezvous.rendezvous(url))
    wait_for_descriptors(before)


# ---- addresses to listen on


@pytest.mark.parametrize(
    ("host", "is_own"),
    [("127.0.0.1", True), ("localhost", True), ("0.0.0.0", True), ("192.0.2.1", False), ("no.such.host.invalid", False)],
)
def test_addresses_of_this_machine_are_recognised(host, is_own):
    """Only this machine's addresses may be listened on exclusively, not others or unknown names."""
    assert urls._is_own_address(host) is is_own


def test_serving_a_rendezvous_store_imports_few_modules():
    """Imports must be few, because all other ranks wait for rank 0."""
    code = (
        "import sys, dldist; before = set(sys.modules)\n"
        "dldist.init_process_group(init_method='tcp://127.0.0.1:0', rank=0, world_size=1); dldist.destroy_process_group()\n"
        "print(sorted({'socket', 'selectors', 'encodings.idna'} & (set(sys.modules) - before)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_rendezvous_server_listens_on_its_address_if_local_and_else_on_all(monkeypatch):
    store = next(rendezvous.rendezvous(f"tcp://{LOOPBACK}:0", 0, 1))[0]
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", store.port), 2)
    monkeypatch.setattr(urls, "_is_own_address", lambda host: False)
    store = next(rendezvous.rendezvous(f"tcp://{LOOPBACK}:0", 0, 1))[0]
    socket.create_connection(("127.0.0.2", store.port), 2).close()
    assert store.host == LOOPBACK


# ---- a range of ports


@pytest.fixture
def taken_range():
    """Return three consecutive ports that were all free just now. The first of them is taken."""
    for _ in range(100):
        with contextlib.ExitStack() as stack:
            try:
                first = stack.enter_context(socket.create_server((LOOPBACK, 0)))
                port = first.getsockname()[1]
                for other in (port + 1, port + 2):
                    socket.create_server((LOOPBACK, other)).close()
            except (OSError, OverflowError):
                continue
            yield port, f"{port}-{port + 2}"
            return
    pytest.fail("no three free ports in a row were found in 100 tries")


def test_port_range_finds_the_first_free_port(ranks, taken_range):
    first, ports = taken_range
    url = f"tcp://{LOOPBACK}:{ports}?job=a"

    def member(rank):
        meeting = meet(url, rank, 2, timeout=20)
        result = rendezvous_workers.sum_over(meeting), meeting._raw.port
        meeting.close()
        return result

    results = ranks(member, 2)
    assert results[0] == results[1]
    assert results[0][0] == 3
    assert first < results[0][1] <= first + 2


def test_port_range_skips_another_job(taken_range):
    _, ports = taken_range
    one, other = (next(rendezvous.rendezvous(f"tcp://{LOOPBACK}:{ports}?job={job}", 0, 2))[0] for job in "ab")
    assert one.port != other.port
    rank_1 = next(rendezvous.rendezvous(f"tcp://{LOOPBACK}:{ports}?job=b", 1, 2))[0]
    assert rank_1.port == other.port
    with pytest.raises(dldist.DistNetworkError, match=f"no free port on {LOOPBACK} in {ports}"):
        next(rendezvous.rendezvous(f"tcp://{LOOPBACK}:{ports}?job=c", 0, 2))
    with pytest.raises(dldist.DistNetworkTimeoutError, match=f"rank 1 found no server of job 'c' at {LOOPBACK}, ports {ports}"):
        next(rendezvous.rendezvous(f"tcp://{LOOPBACK}:{ports}?job=c", 1, 2, timeout=0.3))


# ---- no settings


def test_environment_without_launcher_variables_is_a_world_of_one_rank():
    store, rank, world_size = next(rendezvous.auto())
    assert (type(store), rank, world_size) == (dldist.HashStore, 0, 1)
    assert next(rendezvous.auto(0, 1))[1:] == (0, 1)
    meeting = meet(timeout=5)
    assert rendezvous_workers.sum_over(meeting) == 1
    meeting.close()


@pytest.mark.parametrize(
    ("variables", "args", "missing"),
    [
        ({"RANK": "0"}, (), "WORLD_SIZE"),
        ({"WORLD_SIZE": "2"}, (), "RANK"),
        ({"MASTER_ADDR": "x"}, (), "RANK"),
        ({"MASTER_PORT": "1"}, (), "RANK"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, (), "MASTER_ADDR"),
        ({}, (1, 2), "MASTER_ADDR"),
    ],
)
def test_incomplete_launcher_environment_names_the_missing_variables(monkeypatch, variables, args, missing):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=f"environment variable {missing} expected, but not set"):
        next(rendezvous.auto(*args))


# ---- meeting


@pytest.mark.parametrize("rank", [-1, 2, 5])
def test_rank_must_be_within_the_world(rank):
    with pytest.raises(ValueError, match=f"'rank' is out of range: got {rank}, expected 0 to 1"):
        meet(store=dldist.HashStore(), rank=rank, world_size=2, timeout=1)


def test_every_rendezvous_has_its_own_keys(ranks):
    place = dldist.HashStore(timeout=20)

    def member(rank):
        seen = []
        for _ in range(3):
            meeting = meet(store=place.clone(), rank=rank, world_size=3, timeout=20)
            assert rendezvous_workers.sum_over(meeting) == 7
            seen.append(meeting.store.add("times", 1) <= 3)
            meeting.close()
        return seen

    assert ranks(member, 3) == [[True] * 3] * 3


def test_worlds_with_different_names_may_meet_at_one_address(ranks):
    place = dldist.HashStore(timeout=20)

    def member(rank):
        names = ["a", "b"] if rank == 0 else ["b", "a"]
        meetings = {name: meet(store=place.clone(), rank=rank, world_size=2, timeout=20, name=name) for name in names}
        return sum(rendezvous_workers.sum_over(meetings[name]) for name in "ab")

    assert ranks(member, 2) == [6, 6]


def test_rendezvous_can_succeed_after_a_failed_attempt(ranks):
    place = dldist.HashStore(timeout=20)
    # any number of failed attempts by rank 0
    for attempt in range(2):
        meeting = meet(store=place.clone(), rank=0, world_size=3, timeout=20)
        if attempt == 0:
            lonely = meet(store=place.clone(), rank=2, world_size=3, timeout=20)
        with pytest.raises(dldist.DistTimeoutError, match="1 of 3 have joined.*missing: 1, 2"):
            dldist.Group(meeting.store, 0, 3, timeout=0.1)
        meeting.close()
    lonely.close()
    # Rank 0's last attempt dies without a leave message.
    meet(store=place.clone(), rank=0, world_size=3, timeout=20)

    def member(rank):
        # Other ranks would join any open meeting, and the dead rank's is open until rank 0 joins.
        while rank != 0 and place.add("dldist/open/default_pg/count", 0) < 7:
            time.sleep(0.001)
        return rendezvous_workers.sum_over(meet(store=place.clone(), rank=rank, world_size=3, timeout=20))

    assert place.add("dldist/open/default_pg/count", 0) == 5
    assert ranks(member, 3) == [7, 7, 7]


def test_late_rank_does_not_join_a_rendezvous_that_rank_0_has_left(ranks):
    place = dldist.HashStore(timeout=20)
    meet(store=place.clone(), rank=0, world_size=2, timeout=20).close()
    with pytest.raises(dldist.DistStoreTimeoutError, match=r"1 of 2 have joined: 1 \(.*\); missing: 0"):
        meet(store=place.clone(), rank=1, world_size=2, timeout=0.1)

    def member(rank):
        return rendezvous_workers.sum_over(meet(store=place.clone(), rank=rank, world_size=2, timeout=20))

    assert ranks(member, 2) == [3, 3]


def test_rendezvous_names_a_missing_rank_0_and_the_ranks_that_have_joined(ranks):
    place = dldist.HashStore(timeout=20)

    def member(rank):
        if rank not in (1, 3):
            return None
        with pytest.raises(dldist.DistStoreTimeoutError) as caught:
            meet(store=place.clone(), rank=rank, world_size=4, timeout=0.5)
        return str(caught.value)

    texts = [text for text in ranks(member, 4) if text]
    process = f"{os.uname().nodename}, pid {os.getpid()}"
    assert any(f"2 of 4 have joined: 1 ({process}), 3 ({process}); missing: 0, 2" in text for text in texts)


def test_rendezvous_names_a_missing_rank(procs, port):
    """Rank 0, the server, must not exit before the other ranks have also received the error."""
    url = f"tcp://{LOOPBACK}:{port}"
    children = [procs.start(rendezvous_workers.time_out_without_peers, url, rank, 3, 1.5) for rank in range(2)]
    for child in children:
        assert child.recv() == "begin"
    for child in children:
        child.send("go")
    for kind, text, seconds in [child.result() for child in children]:
        assert kind == "DistTimeoutError"
        assert "2 of 3 have joined" in text
        assert text.endswith("missing: 2 (timeout)")
        assert seconds < 10


@pytest.mark.deadline(60)
@pytest.mark.parametrize(("scheme", "second"), [("tcp", 1), ("file", 1), ("file", 0)])
def test_rank_that_is_started_twice_is_reported_to_all_ranks(procs, port, tmp_path, scheme, second):
    path = str(tmp_path / "meeting")
    url = f"tcp://{LOOPBACK}:{port}" if scheme == "tcp" else f"file://{path}"
    children = [procs.start(rendezvous_workers.time_out_without_peers, url, rank, 3, 50) for rank in (0, 1, second)]
    for child in children:
        assert child.recv() == "begin"
    for child in children[:2]:
        child.send("go")
    store = dldist.TCPStore(LOOPBACK, port, timeout=20) if scheme == "tcp" else dldist.FileStore(path, 3, timeout=20)
    store.wait(["dldist/open/default_pg/1", "dldist/open/default_pg/rank/1"])
    children[2].send("go")
    first, again = children[second], children[2]
    for kind, text, seconds in [child.result() for child in children]:
        assert kind == "DistMismatchError"
        assert f"rank {second} was started twice: got (" in text
        assert f"pid {first.pid})" in text and f"pid {again.pid}), expected one process for each rank" in text
        assert seconds < under_load(10)


@pytest.mark.deadline(60)
def test_rank_that_is_started_again_while_its_group_exists_receives_an_error(procs, port):
    url = f"tcp://{LOOPBACK}:{port}"
    members = [procs.start(rendezvous_workers.hold_group, url, rank, 2) for rank in range(2)]
    pids = [child.recv() for child in members]
    late = procs.start(rendezvous_workers.time_out_without_peers, url, 1, 2, 50)
    assert late.recv() == "begin"
    late.send("go")
    kind, text, seconds = late.result()
    assert kind == "DistArgumentError"
    assert text.startswith("rank 1 of 2 was started twice: got (") and f", pid {pids[1]}), whose group exists" in text
    assert seconds < under_load(10)
    for child in members:
        child.send("end")
        child.result()


@pytest.mark.deadline(60)
def test_rank_waits_for_the_next_group_while_its_former_process_runs_without_the_last_one(procs, port):
    url = f"tcp://{LOOPBACK}:{port}"
    workers = rendezvous_workers.hold_group, rendezvous_workers.outlive_group
    members = [procs.start(worker, url, rank, 2) for rank, worker in enumerate(workers)]
    for child in members:
        child.recv()
    members[1].send("end")
    assert members[1].recv() == "closed"
    successors = [procs.start(rendezvous_workers.meet_once, url, 1, 2)]
    store = dldist.TCPStore(LOOPBACK, port, timeout=20)
    poll_until(lambda: store.try_get("dldist/open/default_pg/here/1"), description="rank 1 to wait for the next group")
    members[0].send("end")
    members[0].result()
    successors.append(procs.start(rendezvous_workers.meet_once, url, 0, 2))
    assert [child.result() for child in successors] == [(1, 2, 3.0), (0, 2, 3.0)]
    members[1].send("end")
    members[1].result()


def test_rendezvous_names_a_missing_rank_0(port):
    with pytest.raises(dldist.DistNetworkTimeoutError) as caught:
        meet(f"tcp://{LOOPBACK}:{port}", 1, 2, timeout=0.3)
    assert str(caught.value).startswith("rank 1 of 2 waited for rank 0, which serves the store: The client socket has timed out")


def test_rank_0_waits_at_exit_for_ranks_that_have_not_finished(port):
    host = meet(f"tcp://{LOOPBACK}:{port}", 0, 2, timeout=20)
    rank_1 = meet(f"tcp://{LOOPBACK}:{port}", 1, 2, timeout=20)
    closing = threading.Thread(target=host.close)
    closing.start()
    closing.join(0.3)  # longer than it takes to detect that no rank waits
    assert closing.is_alive()
    rank_1.mark_connected()
    closing.join(2)
    assert not closing.is_alive()
    rank_1.close()
    host.close()
    assert host.store is None


def test_rank_0_waits_at_exit_only_for_joined_ranks_and_with_a_limit(port):
    url = f"tcp://{LOOPBACK}:{port}"
    began = time.monotonic()
    meet(url, 0, 2, timeout=20).close()
    assert time.monotonic() - began < under_load(2)
    host = meet(url, 0, 2, timeout=20)
    rank_1 = meet(url, 1, 2, timeout=20)
    host.close(linger=0.5)
    assert time.monotonic() - began < under_load(4)
    rank_1.close()


def test_rank_0_does_not_wait_for_ranks_of_a_world_of_another_size(port):
    url = f"tcp://{LOOPBACK}:{port}"
    host, rank_1 = meet(url, 0, 3, timeout=20), meet(url, 1, 2, timeout=20)
    rank_1.close()
    began = time.monotonic()
    host.close(linger=20)
    assert time.monotonic() - began < 5
    began = time.monotonic()
    meet(url, 0, 10**18, timeout=20).close(linger=0.5)
    assert time.monotonic() - began < 5


def test_rank_that_joins_while_the_old_server_closes_finds_the_new_one(procs, port):
    url = f"tcp://{LOOPBACK}:{port}"
    host, rank_1 = meet(url, 0, 2, timeout=20), meet(url, 1, 2, timeout=20)
    rank_1.close()
    again = concurrent.futures.ThreadPoolExecutor(1).submit(meet, url, 1, 2, timeout=20)
    key = "dldist/open/default_pg/here/1"
    while not host._raw.try_get(key):  # the guest waits in the server that is about to close
        time.sleep(0.001)
    host.close()
    assert not again.done()
    host = meet(url, 0, 2, timeout=20)
    rank_1 = again.result(20)
    rank_1.store.set("key", "v")
    assert host.store.get("key") == b"v"
    rank_1.close()
    host.close()


def test_error_of_an_early_rank_names_the_process_that_serves_the_store():
    """Rank 0 opens the meeting, and publishes its identity later."""
    server = dldist.TCPStore(LOOPBACK, 0, is_master=True, timeout=20)
    assert server.add("dldist/open/default_pg/count", 1) == 1
    coming = concurrent.futures.ThreadPoolExecutor(1).submit(meet, f"tcp://{LOOPBACK}:{server.port}", 1, 2, timeout=20)
    poll_until(lambda: server.try_get("dldist/open/default_pg/rank/1"))
    server.set("dldist/open/default_pg/1", "4711 node-a")
    rank_1 = coming.result(20)
    server = None
    with pytest.raises(dldist.DistPeerLostError, match=r"lost rank 0 \(node-a, pid 4711\), which served the store"), rank_1:
        rank_1.store.get("key")


@pytest.mark.deadline(60)
def test_repeated_rendezvous_leaks_no_descriptors(procs, port):
    url = f"tcp://{LOOPBACK}:{port}"
    children = [procs.start(rendezvous_workers.meet_repeatedly, url, rank, 2, 50, rank) for rank in range(2)]
    descriptors = [child.result(50) for child in children]
    assert max(descriptors) < 30
