"""Groups over several hosts (network namespaces, netns.py): shared memory within a host, TCP
between hosts."""

import array
import struct
import time

import host_workers
import netns
import procs as procs_module
import pytest

pytestmark = pytest.mark.skipif(netns.why_unavailable() is not None, reason=f"no hosts: {netns.why_unavailable()}")

# The host of each rank.
TWO_BY_TWO = (0, 0, 1, 1)
LAYOUTS = [(0, 1), (0, 1, 2), (0, 0, 1), (0, 1, 1), TWO_BY_TWO, (0, 1, 0, 1), (1, 0, 0, 1, 0)]


class Team:
    """One process per rank, distributed over hosts."""

    def __init__(self, procs, hosts, layout, job, *args, env=None, **options):
        self.hosts, self.layout = hosts, layout
        address = hosts.address(layout[0])
        self.children = [
            hosts.start(
                procs, host, host_workers.start, job, rank, len(layout), address, args, options,
                env=env[rank] if isinstance(env, list) else env,
            )  # fmt: skip
            for rank, host in enumerate(layout)
        ]
        self.port = self.children[0].recv()
        for child in self.children:
            child.send(self.port)

    def recv(self, timeout=20):
        return [child.recv(timeout) for child in self.children]

    def send(self, message="go"):
        for child in self.children:
            child.send(message)

    def results(self, timeout=30):
        """Return all results; a failure shows the outcome of every rank."""
        results, failures = [], []
        deadline = time.monotonic() + timeout
        for rank, child in enumerate(self.children):
            try:
                results.append(child.result(max(deadline - time.monotonic(), 0.5)))
            except procs_module.ChildFailed as failure:
                failures.append(f"rank {rank}: {failure}")
        assert not failures, "\n".join(failures)
        return results

    def ranks_of(self, host):
        return [rank for rank, its_host in enumerate(self.layout) if its_host == host]

    def others_of(self, rank):
        return [other for other, host in enumerate(self.layout) if host != self.layout[rank]]


@pytest.fixture
def hosts(procs):
    """hosts(count); removed after the children."""
    made = []

    def make(count):
        made.append(netns.Hosts(count))
        return made[-1]

    yield make
    procs.close()
    for one in made:
        one.close()


@pytest.fixture
def team(procs, hosts):
    def make(layout, job, *args, **options):
        return Team(procs, hosts(max(layout) + 1), layout, job, *args, **options)

    return make


def name(layout):
    return "hosts " + "".join(str(host) for host in layout)


# ---- results


@pytest.mark.exhaustive(every=5)
@pytest.mark.deadline(90)
@pytest.mark.parametrize("algorithm", ["", "flat"])
@pytest.mark.parametrize("layout", LAYOUTS, ids=name)
def test_every_collective_between_hosts_is_correct(team, layout, algorithm):
    ranks_team = team(layout, "every_collective", env={"DLDIST_ALGORITHM": algorithm})
    for rank, members in enumerate(ranks_team.results(80)):
        assert [host for host, _, _ in members] == [ranks_team.hosts.name(host) for host in layout]
        assert [pid for _, pid, _ in members] == [child.pid for child in ranks_team.children]
        for other, (_, _, transport) in enumerate(members):
            if other == rank:
                assert transport == "self"
            else:
                assert transport == ("shared memory" if layout[other] == layout[rank] else "TCP")


@pytest.mark.exhaustive(every=3)
@pytest.mark.deadline(90)
@pytest.mark.parametrize("layout", [(0, 1), (0, 0, 1), TWO_BY_TWO], ids=name)
def test_collectives_of_large_blocks_between_hosts_are_correct(team, layout):
    team(layout, "large_blocks", [100_000, 1_500_000]).results(80)


@pytest.mark.exhaustive(every=4)
@pytest.mark.deadline(60)
@pytest.mark.parametrize("algorithm", ["", "flat", "reduce=direct"])
@pytest.mark.parametrize("layout", [(0, 1), (0, 1, 2), TWO_BY_TWO], ids=name)
def test_rank_may_close_right_after_its_last_call(team, layout, algorithm):
    team(layout, "leave_after_the_last_call", 60, env={"DLDIST_ALGORITHM": algorithm}).results(50)


@pytest.mark.exhaustive
@pytest.mark.deadline(90)
def test_integer_results_do_not_depend_on_the_algorithm(team):
    ways = [
        (TWO_BY_TWO, ""), (TWO_BY_TWO, "flat"), ((0, 1, 0, 1), ""), ((0, 0, 0, 0), ""), ((0, 1, 2, 3), ""),
        (TWO_BY_TWO, "flat,all_reduce=ring,reduce=direct,reduce_scatter=ring"),
    ]  # fmt: skip
    hashes = [team(layout, "integer_results", env={"DLDIST_ALGORITHM": text}).results() for layout, text in ways]
    # A rank's results must not depend on the transport. Arrays, and so hashes, differ by rank after
    # reduce.
    assert all(one == hashes[0] for one in hashes)


def fold(parts):
    """Return the sum of float arrays in their order, rounded at every step."""
    total = parts[0]
    for part in parts[1:]:
        total = array.array(total.typecode, (a + b for a, b in zip(total, part, strict=True)))
    return total


FLOAT_COUNTS = [1, 7, 1000, 40_000]


def expected_sum(code, count, order):
    """Return the expected sum. `order`: lists of ranks, each summed first, then over the lists."""
    is_narrow = code == "bf16"

    def of(rank):
        data = host_workers.noise(rank, count, code)
        if is_narrow:
            data = b"".join(b"\0\0" + data[i : i + 2] for i in range(0, len(data), 2))
        return array.array("f" if is_narrow else code, data)

    total = fold([fold([of(rank) for rank in ranks]) for ranks in order])
    if not is_narrow:
        return total.tobytes()
    bits = struct.unpack(f"<{count}I", total.tobytes())
    return struct.pack(f"<{count}H", *((word + 0x7FFF + (word >> 16 & 1)) >> 16 for word in bits))


@pytest.mark.exhaustive(every=3)
@pytest.mark.deadline(90)
@pytest.mark.parametrize(
    "layout, algorithm, order",
    [
        (TWO_BY_TWO, "", [[0, 1], [2, 3]]),
        ((0, 1, 0, 1), "", [[0, 2], [1, 3]]),
        ((0, 0, 1), "", [[0, 1], [2]]),
        ((1, 0, 0, 1, 0), "", [[0, 3], [1, 2, 4]]),
        ((0, 1, 2), "all_reduce=exchange,reduce=direct", [[0, 1, 2]]),
        (TWO_BY_TWO, "flat,all_reduce=exchange,reduce=direct", [[0, 1, 2, 3]]),
    ],
)
def test_floats_are_summed_in_the_order_of_the_algorithm(team, layout, algorithm, order):
    ranks_team = team(layout, "float_bits", FLOAT_COUNTS, ["f", "d", "bf16"], env={"DLDIST_ALGORITHM": algorithm})
    results = ranks_team.results(60)
    assert all(result == results[0] for result in results)
    for (code, count), got in results[0].items():
        assert got == expected_sum(code, count, order), f"{count} {code}"


@pytest.mark.exhaustive(every=2)
@pytest.mark.deadline(60)
@pytest.mark.parametrize("algorithm", ["all_reduce=ring", "all_reduce=doubling"])
def test_results_of_floats_have_the_same_bits_on_all_ranks(team, algorithm):
    env = {"DLDIST_ALGORITHM": f"flat,{algorithm},reduce=direct"}
    # reduce and all_reduce differ here, so only results that all ranks have are compared.
    ranks_team = team((0, 1, 2), "float_bits_of_all_reduce", FLOAT_COUNTS, ["f", "bf16"], env=env)
    results = ranks_team.results(50)
    assert all(result == results[0] for result in results)


# ---- transports


@pytest.mark.exhaustive(every=3)
@pytest.mark.deadline(60)
@pytest.mark.parametrize("layout", [(0, 1), TWO_BY_TWO, (0, 1, 0, 1, 0, 1)], ids=name)
def test_all_reduce_between_two_hosts_sends_every_byte_once(team, layout):
    """Between two hosts, an all_reduce must move the array once in each direction."""
    count, times = 1_000_000, 4
    ranks_team = team(layout, "all_reduce_nbytes", count, times)
    ranks_team.recv()
    before = [ranks_team.hosts.sent_bytes(host) for host in range(2)]
    ranks_team.send()
    ranks_team.recv()
    after = [ranks_team.hosts.sent_bytes(host) for host in range(2)]
    ranks_team.send()
    ranks_team.results()
    for host in range(2):
        share = (after[host] - before[host]) / (4 * count * times)
        assert 1.0 <= share < 1.06, f"host {host} sent {share:.3f} times the array"


@pytest.mark.deadline(60)
def test_network_interfaces_are_chosen_by_name(procs, hosts):
    two = hosts(2)
    for host in range(2):
        # Both hosts have the same address, like container bridges.
        two.add_interface(host, "aaa0", "10.213.0.1/24")
    for env in ({"DLDIST_SOCKET_IFNAME": "veth0"}, {"GLOO_SOCKET_IFNAME": "veth0"}, {}):
        for _found, members in Team(procs, two, (0, 1), "listening", env=env).results():
            assert members[0][2] == "TCP" or members[1][2] == "TCP"


def test_unknown_interface_error_lists_the_interfaces(procs, hosts):
    env = [{}, {"DLDIST_SOCKET_IFNAME": "eth7"}]
    ranks_team = Team(procs, hosts(2), (0, 1), "listening", env=env, connect_timeout=3)
    with pytest.raises(AssertionError, match="eth7") as failure:
        ranks_team.children[1].result()
    assert "veth0" in str(failure.value)
    with pytest.raises(AssertionError, match="DistTimeoutError: .*missing: 1"):
        ranks_team.children[0].result()


def test_unconnected_interface_is_an_error_before_the_deadline(procs, hosts):
    two = hosts(2)
    for host in range(2):
        two.add_interface(host, "aaa0", f"10.213.{host}.1/24")
    began = time.monotonic()
    ranks_team = Team(procs, two, (0, 1), "listening", env={"DLDIST_SOCKET_IFNAME": "aaa0"}, timeout=3, connect_timeout=3)
    texts = []
    for child in ranks_team.children:
        with pytest.raises(AssertionError) as failure:
            child.result()
        texts.append(str(failure.value))
    assert time.monotonic() - began < 15
    assert any("10.213." in text for text in texts), texts


@pytest.mark.deadline(60)
def test_listening_ports_are_in_the_given_range(team):
    ranks_team = team((0, 1, 1, 0), "listening", env={"DLDIST_PORT_RANGE": "40100-40109"})
    for found, _members in ranks_team.results():
        ports = [port for _, port in found if port != ranks_team.port]
        assert ports and all(40100 <= port <= 40109 for port in ports)


# ---- failures


@pytest.mark.exhaustive(every=3)
@pytest.mark.deadline(60)
@pytest.mark.parametrize("algorithm", ["", "flat"])
@pytest.mark.parametrize("layout", [(0, 1), (0, 0, 1), TWO_BY_TWO], ids=name)
def test_calls_over_a_cut_cable_time_out_and_name_the_missing_ranks(team, layout, algorithm):
    ranks_team = team(layout, "all_reduce_until_error", 2.0, env={"DLDIST_ALGORITHM": algorithm})
    ranks_team.recv()
    ranks_team.recv()  # the operations are running
    ranks_team.hosts.cut(1)
    cut_at = time.monotonic()
    for rank, result in enumerate(ranks_team.results()):
        assert result["calls"] > 1
        for error in (result["first"], result["other"], result["again"]):
            assert error is not None
            assert error["kind"] == "DistTimeoutError", error
            assert error["rank"] in ranks_team.others_of(rank), error
        assert 1.0 < result["first"]["at"] - cut_at < 5.0
        assert ranks_team.hosts.name(1 - layout[rank]) in result["first"]["text"]
        for other in ranks_team.others_of(rank):
            assert f"{other}" in result["first"]["text"]


def check_blames_path(ranks_team, error, near, far):
    """Check the error of a transfer between the ranks `near` and `far` that lost large packets."""
    assert error["kind"] == "DistTimeoutError", error
    assert error["rank"] in (near, far), error
    assert "which have not arrived" in error["text"] and "MTU" in error["text"], error
    for rank in (near, far):
        assert ranks_team.hosts.address(ranks_team.layout[rank]) in error["text"], error
        assert f"rank {rank} ({ranks_team.hosts.name(ranks_team.layout[rank])}, pid " in error["text"], error


@pytest.mark.exhaustive(every=2)
@pytest.mark.deadline(60)
@pytest.mark.parametrize("layout", [(0, 1), (0, 0, 1)], ids=name)
def test_network_path_that_drops_large_packets_is_named_with_both_ends(procs, hosts, layout):
    two = hosts(2)
    two.swallow_large(1)
    ranks_team = Team(procs, two, layout, "all_reduce_until_error", 4.0)
    ranks_team.recv()
    last = len(layout) - 1
    errors = [result["first"] for result in ranks_team.results()]
    for rank, error in enumerate(errors):
        assert error["rank"] != rank and error["rank"] in (0, last), error
        if "MTU" in error["text"] or 0 < rank < last:
            check_blames_path(ranks_team, error, 0, last)
        else:
            # This rank has no pending operation and receives nothing: the peer's messages are lost.
            assert f"{error['rank']} (" in error["text"] and "does not answer" in error["text"], error
    assert any("MTU" in errors[rank]["text"] for rank in (0, last)), errors


@pytest.mark.deadline(60)
def test_path_that_drops_large_packets_is_named_by_ranks_that_do_not_use_it(procs, hosts):
    """Both hosts reach rank 0, so all ranks answer it, and it must find the lost path."""
    three = hosts(3)
    env = {"DLDIST_ALGORITHM": "flat,all_reduce=ring"}
    three.swallow_large(1)
    three.swallow_large(2)
    three.send_small(0, 1)
    three.send_small(0, 2)
    ranks_team = Team(procs, three, (0, 1, 2), "all_reduce_until_error", 4.0, env=env)
    ranks_team.recv()
    for rank, result in enumerate(ranks_team.results()):
        check_blames_path(ranks_team, result["first"], 1, 2)
        assert result["first"]["rank"] != rank


@pytest.mark.deadline(60)
def test_large_message_that_is_lost_blames_the_network_path(procs, hosts):
    two = hosts(2)
    two.swallow_large(1)
    ranks_team = Team(procs, two, (0, 1), "large_message", 1_000_000, 3.0)
    sender, receiver = ranks_team.results()
    check_blames_path(ranks_team, sender, 0, 1)
    assert sender["rank"] == 1 and receiver["rank"] == 0
    assert "; 0 of 1000000 bytes have arrived" in receiver["text"], receiver


@pytest.mark.deadline(60)
def test_disabled_network_interface_is_an_error_on_all_ranks(team):
    ranks_team = team(TWO_BY_TWO, "all_reduce_until_error", 2.0)
    ranks_team.recv()
    ranks_team.recv()
    ranks_team.hosts.set_down(1)
    for rank, result in enumerate(ranks_team.results()):
        error = result["first"]
        assert error["kind"] in ("DistTimeoutError", "DistPeerLostError"), error
        assert error["rank"] in ranks_team.others_of(rank)


@pytest.mark.exhaustive(every=2)
@pytest.mark.deadline(60)
@pytest.mark.parametrize("seconds", [0.5, 3.0])
def test_calls_succeed_if_a_cut_cable_is_restored_before_the_deadline(team, seconds):
    ranks_team = team(TWO_BY_TWO, "call_during_cut", 20.0)
    ranks_team.recv()
    ranks_team.hosts.cut(0)
    ranks_team.send()
    ranks_team.recv()
    time.sleep(seconds)
    ranks_team.hosts.restore_switch(0)
    for error, took in ranks_team.results():
        assert error is None, error
        assert took > seconds


@pytest.mark.exhaustive(every=3)
@pytest.mark.deadline(60)
@pytest.mark.parametrize("algorithm", ["", "flat"])
@pytest.mark.parametrize("layout", [(0, 1), TWO_BY_TWO, (0, 1, 2)], ids=name)
def test_killed_process_on_another_host_is_named(team, layout, algorithm):
    ranks_team = team(layout, "all_reduce_until_error", 15.0, env={"DLDIST_ALGORITHM": algorithm})
    pid = ranks_team.recv()[-1]["pid"]
    ranks_team.recv()
    victim = len(layout) - 1
    killed_at = time.monotonic()
    ranks_team.children[victim].kill()
    for child in ranks_team.children[:-1]:
        result = child.result()
        for error in (result["first"], result["other"], result["again"]):
            assert error["kind"] == "DistPeerLostError", error
            assert (error["rank"], error["host"], error["pid"]) == (victim, ranks_team.hosts.name(layout[victim]), pid)
        assert result["first"]["at"] - killed_at < procs_module.under_load(3)
        assert result["other"]["at"] - killed_at < procs_module.under_load(3)


@pytest.mark.deadline(60)
def test_rank_that_died_while_all_were_idle_is_named_by_the_next_call(team):
    ranks_team = team(TWO_BY_TWO, "idle_then_barrier", 15.0)
    pid = ranks_team.recv()[3]["pid"]
    ranks_team.children[3].kill()
    time.sleep(1.0)
    for child in ranks_team.children[:3]:
        child.send("go")
    for child in ranks_team.children[:3]:
        error = child.result()
        assert error["kind"] == "DistPeerLostError", error
        assert (error["rank"], error["host"], error["pid"]) == (3, "host1", pid)
        assert error["took"] < procs_module.under_load(3)


@pytest.mark.exhaustive(every=3)
@pytest.mark.deadline(60)
@pytest.mark.parametrize("layout", [(0, 1), (0, 1, 2, 3, 4), (0, 0, 1)], ids=name)
def test_rank_that_dies_before_the_first_message_is_named(team, layout):
    ranks_team = team(layout, "message_to_the_last", 15.0)
    pid = ranks_team.recv()[-1]["pid"]
    ranks_team.children[-1].kill()
    time.sleep(1.0)
    for child in ranks_team.children[:-1]:
        child.send("go")
    for child in ranks_team.children[:-1]:
        error = child.result()
        assert error["kind"] == "DistPeerLostError", error
        assert (error["rank"], error["host"], error["pid"]) == (len(layout) - 1, ranks_team.hosts.name(layout[-1]), pid)
        assert error["took"] < procs_module.under_load(3)


@pytest.mark.deadline(60)
def test_monitored_barrier_names_the_unreachable_ranks(team):
    ranks_team = team(TWO_BY_TWO, "monitored_barrier_error", 2.0)
    ranks_team.recv()
    ranks_team.hosts.cut(1)
    ranks_team.send()
    errors = ranks_team.results()
    assert errors[0]["kind"] == "DistTimeoutError", errors[0]
    assert errors[0]["rank"] == 2
    assert "2" in errors[0]["text"] and "3" in errors[0]["text"]
    assert errors[0]["host"] == "host1"
    assert all(error is not None for error in errors)


# ---- one-sided access


@pytest.mark.exhaustive(every=3)
@pytest.mark.deadline(60)
@pytest.mark.parametrize("layout", [(0, 1), (0, 0, 1), TWO_BY_TWO], ids=name)
def test_symmetric_memory_is_shared_with_ranks_of_the_same_host(team, layout):
    for rank, seen in enumerate(team(layout, "one_sided").results(50)):
        assert seen == [other for other in range(len(layout)) if layout[other] == layout[rank]]


@pytest.mark.deadline(60)
def test_windows_of_ranks_on_other_hosts_have_separate_memory(team):
    unified, separate = 0, 1
    for rank, kinds in enumerate(team(TWO_BY_TWO, "one_sided_windows").results(50)):
        assert kinds == [unified if other == rank else separate for other in range(4)]


def test_waiting_for_the_signal_of_a_dead_rank_of_another_host_is_an_error(team):
    """A rank that waits for the peer's signal must get an error within a second."""
    ranks_team = team((0, 1), "wait_for_the_dead")
    assert ranks_team.recv() == ["ready"] * 2
    time.sleep(0.1)
    killed = time.monotonic()
    ranks_team.children[1].process.kill()
    failure = ranks_team.children[0].recv()
    assert failure["kind"] == "DistPeerLostError" and failure["rank"] == 1
    assert failure["at"] - killed < procs_module.under_load(3)
