"""python -m dldist.trace on synthetic dumps: verdicts, rejected files, the timeline."""

import importlib.util
import json
import os
import pickle
import pickletools
import subprocess
import sys

import dldist
import pytest
import trace_dumps
from dldist import trace
from dldist.trace import read
from trace_dumps import SECOND, START, Group, dump, entry

WORLD = Group("0", "default_pg", [0, 1, 2])


def run(*args):
    done = subprocess.run([sys.executable, "-m", "dldist.trace", *map(str, args)], capture_output=True, text=True, timeout=30)
    return done.returncode, done.stdout, done.stderr


def three(*per_rank):
    return {rank: dump([WORLD], entries) for rank, entries in enumerate(per_rank)}


def first(dumps, **how):
    analysis = trace.analyse(dumps, **how)
    return analysis.verdicts[0]


# ---- verdicts


def test_trace_names_the_last_call_of_a_missing_rank():
    def calls(rank):
        yield entry(0, WORLD, "all_reduce", 1, line=10)
        yield entry(1, WORLD, "broadcast", 2, line=17, state="completed")
        if rank != 2:
            yield entry(2, WORLD, "all_reduce", 3, line=31, state="started")

    verdict = first(three(*(list(calls(rank)) for rank in range(3))))
    assert (verdict.kind, verdict.culprits, verdict.others, verdict.seq) == ("missing_rank", [2], [0, 1], 3)
    assert verdict.text == (
        'Rank 2 is missing: it has not called all_reduce #3 of group "default"; it is at broadcast #2 '
        "(train.py:17 in step()), completed. Ranks 0 and 1 wait in it (train.py:31 in step())."
    )


def test_trace_shows_call_sites_up_to_the_first_different_frame():
    def call(rank, op, caller):
        stack = trace_dumps.frames(3, "helper", "/p/util.py")[:2] + trace_dumps.frames(caller, "main", "/p/a.py")[1:]
        return [entry(0, WORLD, op, 1, state="started", frames=stack)]

    verdict = first(three(call(0, "all_reduce", 5), call(1, "all_reduce", 5), call(2, "broadcast", 9)))
    assert (verdict.kind, verdict.culprits) == ("wrong_op", [2])
    assert "call all_reduce at util.py:3 in helper(), called from a.py:5 in main()" in verdict.text
    assert "rank 2 calls broadcast at util.py:3 in helper(), called from a.py:9 in main()" in verdict.text


def test_trace_distinguishes_files_with_the_same_name():
    def call(file):
        return [entry(0, WORLD, "barrier", 1, sizes=([], []), frames=trace_dumps.frames(3, "f", file), state="started")]

    sites = first(three(call("/x/one/a.py"), call("/x/two/a.py"), call("/x/b.py"))).sites
    assert sites == {0: "one/a.py:3 in f()", 1: "two/a.py:3 in f()", 2: "b.py:3 in f()"}


def test_trace_distinguishes_a_missing_from_an_additional_call():
    ops = ["all_reduce", "broadcast", "barrier", "reduce"]

    def calls(names):
        return [entry(i, WORLD, op, i + 1, sizes=([], []), state="started") for i, op in enumerate(names)]

    verdict = first(three(calls(ops), calls(ops[1:]), calls(ops)))
    assert (verdict.kind, verdict.culprits, verdict.seq) == ("wrong_op", [1], 1)
    assert "It looks as if rank 1 has left out the all_reduce" in verdict.text
    verdict = first(three(calls(ops), calls(["scatter", *ops]), calls(ops)))
    assert "It looks as if rank 1 has called one scatter too many" in verdict.text


def test_trace_names_a_rank_that_called_with_another_root():
    def gather(i, is_root):
        outputs = [[3, 4]] if is_root else []
        return [entry(0, WORLD, "gather", 1, sizes=([[4]], outputs), state="started")]

    verdict = first(three(gather(0, True), gather(1, False), gather(2, True)))
    assert (verdict.kind, verdict.culprits) == ("wrong_root", [2])
    assert "rank 1 calls gather of Float[4], not as the root" in verdict.text
    assert trace.analyse(three(gather(0, True), gather(1, False), gather(2, False))).verdicts[0].kind != "wrong_root"


def test_trace_accepts_parts_of_uneven_sizes():
    counts = [1, 5, 2]

    def calls(rank, op, parts, own):
        sizes = (own, parts) if op == "all_gather" else (parts, own)
        return [entry(0, WORLD, op, 1, sizes=sizes)]

    def all_of(op, odd=None):
        parts = [[n] for n in counts]
        own = [[[n]] for n in counts]
        if odd is not None:
            own[odd] = [[9]]
        return trace.analyse(three(*(calls(rank, op, parts, own[rank]) for rank in range(3))))

    for op in ("all_gather", "reduce_scatter"):
        assert not all_of(op).problems
        assert [(v.kind, v.culprits) for v in all_of(op, 1).problems] == [("wrong_size", [1])]


def test_trace_finds_wrong_all_to_all_sizes_by_parts_and_by_totals():
    sends = [[1, 2, 3], [4, 5, 6], [7, 8, 9]]

    def calls(rank, wrong):
        outputs = [[sends[peer][rank] + (1 if rank == wrong and peer == 0 else 0)] for peer in range(3)]
        return [entry(0, WORLD, "all_to_all", 1, sizes=([[n] for n in sends[rank]], outputs))]

    assert not trace.analyse(three(*(calls(rank, None) for rank in range(3)))).problems
    (problem,) = trace.analyse(three(*(calls(rank, 2) for rank in range(3)))).problems
    assert problem.kind == "wrong_size" and 2 in problem.culprits
    totals = [[entry(0, WORLD, "all_to_all", 1, sizes=([[6]], [[6 + (rank == 1)]]))] for rank in range(3)]
    assert [(v.kind, v.culprits) for v in trace.analyse(three(*totals)).problems] == [("wrong_size", [1])]


def test_trace_accepts_different_shapes_of_the_same_size():
    analysis = trace.analyse(
        three(*([entry(0, WORLD, "all_reduce", 1, sizes=(shape, shape))] for shape in ([[6]], [[2, 3]], [[6]])))
    )
    assert [(v.kind, v.culprits, v.is_problem) for v in analysis] == [("different_shape", [1], False)]
    assert analysis.exit_status == 0


def test_trace_reports_a_slow_completed_call_as_a_note():
    def calls(late):
        early = entry(0, WORLD, "barrier", 1, sizes=([], []), created=START)
        done = START + 20 * SECOND
        return [early, entry(1, WORLD, "all_reduce", 2, created=START + SECOND + late, time_discovered_completed_ns=done)]

    analysis = trace.analyse(three(calls(0), calls(0), calls(12_400_000_000)))
    (verdict,) = analysis
    assert (verdict.kind, verdict.culprits, verdict.is_problem, analysis.exit_status) == ("slow_rank", [2], False, 0)
    assert "12.4 s after the others" in verdict.text
    assert not trace.analyse(three(calls(0), calls(0), calls(12_400_000_000)), slow_s=13).verdicts


def test_trace_reports_a_rank_that_is_in_an_earlier_call_as_slow():
    states = ["completed", "completed", "started"]
    verdict = first(three(*([entry(0, WORLD, "all_reduce", 1, state=state)] for state in states)))
    assert (verdict.kind, verdict.culprits) == ("slow_rank", [2])
    assert "still in all_reduce #1" in verdict.text


def test_trace_reports_no_fault_if_all_ranks_are_in_the_same_call():
    verdict = first(three(*([entry(0, WORLD, "all_reduce", 1, state="started")] for _ in range(3))))
    assert (verdict.kind, verdict.culprits) == ("stuck", [0, 1, 2])
    assert "nothing disagrees" in verdict.text


def test_trace_shows_the_error_of_a_failed_call():
    made = [[entry(0, WORLD, "all_reduce", 1, state="started", retired=True, error="connection lost")] for _ in range(3)]
    verdict = first(three(*made))
    assert verdict.kind == "failed" and "on ranks 0 to 2: connection lost" in verdict.text


def test_trace_reports_a_rank_without_a_dump_as_dead():
    dumps = three(*([entry(0, WORLD, "all_reduce", 1, state="started")] for _ in range(3)))
    del dumps[1]
    analysis = trace.analyse(dumps)
    assert [(v.kind, v.culprits) for v in analysis] == [("dead_rank", [1])]
    assert analysis.case.lost == [1]
    done = three(*([entry(0, WORLD, "all_reduce", 1)] for _ in range(3)))
    del done[1]
    assert [(v.kind, v.culprits) for v in trace.analyse(done)] == [("dead_rank", [1])]


def test_trace_does_not_report_a_rank_with_an_older_dump_as_missing():
    def calls(count):
        return [entry(i, WORLD, "all_reduce", i + 1) for i in range(count)]

    (verdict,) = trace.analyse(three(calls(5), calls(5), calls(3)))
    assert (verdict.kind, verdict.culprits, verdict.is_problem) == ("old_dump", [2], False)


def test_dumps_of_a_trace_may_begin_at_different_calls():
    def calls(begin, end):
        return [entry(i, WORLD, "all_reduce", i + 1, state="completed" if i < 40 else "started") for i in range(begin, end)]

    analysis = trace.analyse(three(calls(0, 41), calls(30, 41), calls(35, 40)))
    (verdict,) = analysis
    assert (verdict.kind, verdict.culprits, verdict.seq) == ("missing_rank", [2], 41)
    assert analysis.case.groups[0].matched == list(range(1, 41))


def test_dumps_of_a_trace_may_have_only_active_calls():
    content = three(
        *([entry(i, WORLD, "all_reduce", i + 1, state="completed" if i < 4 else "started") for i in range(5)] for _ in range(3))
    )
    content[1]["entries"] = content[1]["entries"][4:]
    assert [v.kind for v in trace.analyse(content)] == ["stuck"]
    content[1]["entries"] = []
    content[1]["pg_status"] = {"0": {"last_enqueued_collective": "5", "last_completed_collective": "4"}}
    assert [v.kind for v in trace.analyse(content)] == ["stuck"]


def test_trace_reports_a_cause_before_its_consequence():
    """Rank 1 waits for rank 2 in one group, so rank 0 waits for rank 1 in another: the verdict must
    name the cause first."""
    left, right = Group("1", "left", [0, 1]), Group("2", "right", [1, 2])
    dumps = {
        0: dump([left], [entry(0, left, "all_reduce", 1, state="started")]),
        1: dump([left, right], [entry(0, right, "broadcast", 1, state="started", line=77)]),
        2: dump([right], []),
    }
    causes = trace.analyse(dumps).verdicts
    assert [(v.group, v.culprits, v.because is None) for v in causes] == [("2", [2], True), ("1", [1], False)]
    assert causes[1].because is causes[0]
    assert 'it is in broadcast #1 of group "2" (right) (train.py:77 in step())' in causes[1].text


def test_trace_finds_ranks_that_wait_for_each_other_in_a_circle():
    left, right = Group("1", "left", [0, 1]), Group("2", "right", [0, 1])
    dumps = {
        0: dump([left, right], [entry(0, left, "all_reduce", 1, state="started")]),
        1: dump([left, right], [entry(0, right, "all_reduce", 1, state="started")]),
    }
    analysis = trace.analyse(dumps)
    assert analysis.verdicts[0].text.startswith("Ranks 0 and 1 wait for each other in a circle. ")
    assert "One more problem follows from this." in analysis.summary


def test_trace_finds_ranks_that_disagree_on_the_members_of_a_group():
    of_two, of_three = Group("5", "g", [0, 1]), Group("5", "g", [0, 1, 2])
    made = [entry(0, of_two, "all_reduce", 1, state="started")]
    dumps = {0: dump([of_two], made), 1: dump([of_three], made), 2: dump([of_three], made)}
    assert "wrong_members" in [v.kind for v in trace.analyse(dumps)]


# ---- messages


def message(record, label, count=4, state="started", **more):
    sizes = ([[count]], []) if label.startswith("send") else ([], [[count]])
    return entry(record, WORLD, label, 0, sizes=sizes, state=state, **more)


def test_trace_accepts_matching_messages():
    done = three([message(0, "send 0->1", state="completed")], [message(0, "recv 1<-0", state="completed")], [])
    assert not trace.analyse(done).verdicts


def test_trace_blames_the_sender_for_a_recv_without_a_send():
    verdict = first(three([], [message(0, "recv 1<-0", line=33)], []))
    assert (verdict.kind, verdict.culprits, verdict.others) == ("unmatched_recv", [0], [1])
    assert "rank 0 has not called the send" in verdict.text and "train.py:33" in verdict.text


def test_trace_blames_the_receiver_for_a_send_without_a_recv():
    verdict = first(three([message(0, "send 0->2")], [], []))
    assert (verdict.kind, verdict.culprits, verdict.others, verdict.is_problem) == ("unmatched_send", [2], [0], True)
    assert not first(three([message(0, "send 0->2", state="completed")], [], [])).is_problem
    taken = three([message(0, "send 0->2", state="completed")], [], [message(0, "recv 2<--1", state="completed")])
    assert not trace.analyse(taken).verdicts


def test_trace_finds_messages_of_different_sizes():
    verdict = first(three([message(0, "send 0->1", 4)], [message(0, "recv 1<-0", 5)], []))
    assert (verdict.kind, verdict.culprits) == ("wrong_size", [1])
    assert "Float[4]" in verdict.text and "Float[5]" in verdict.text
    swapped = three(
        [message(0, "send 0->1", 4, "completed"), message(1, "send 0->1", 5, "completed")],
        [message(0, "recv 1<-0", 5, "completed"), message(1, "recv 1<-0", 4, "completed")],
        [],
    )
    assert not trace.analyse(swapped).verdicts, "messages with tags may be received in another order"


def test_trace_reads_ranks_of_messages_relative_to_their_group():
    group = Group("3", "pair", [2, 5])
    dumps = {2: dump([group], [entry(0, group, "recv 0<-1", 0, sizes=([], [[4]]), state="started")]), 5: dump([group], [])}
    assert "from rank 5" in first(dumps).text


def test_trace_names_a_rank_in_a_recv_as_missing_in_a_collective():
    dumps = three(
        [entry(0, WORLD, "all_reduce", 1, state="started")],
        [entry(0, WORLD, "all_reduce", 1, state="started")],
        [message(0, "recv 2<-0", line=50)],
    )
    analysis = trace.analyse(dumps)
    assert analysis.verdicts[0].text.startswith("Ranks 0 and 2 wait for each other in a circle.")


def test_trace_does_not_take_coalesced_messages_for_a_collective():
    def block(*messages):
        end = entry(len(messages), WORLD, "coalesced", 1, sizes=([], []))
        return [*messages, end]

    dumps = three(block(message(0, "send 0->1", state="completed")), block(message(0, "recv 1<-0", state="completed")), [])
    assert not trace.analyse(dumps).verdicts
    # A rank that has made no other call, next to ranks with a problem.
    alone = block(message(0, "send 0->1", state="completed"))
    stuck = [entry(0, WORLD, "all_reduce", 1, state="started")]
    assert first(three(alone, stuck, stuck)).kind == "missing_rank"
    assert "all_reduce #1" in trace.analyse(three(alone, stuck, stuck)).text(3)


def test_trace_finds_a_wrong_operation_in_a_coalesced_block():
    def block(*ops):
        made = [entry(i, WORLD, op, 1, state="started") for i, op in enumerate(ops)]
        return [*made, entry(len(ops), WORLD, "allreduce_coalesced", 1, state="started")]

    verdict = first(three(block("all_reduce", "all_reduce"), block("all_reduce", "all_reduce"), block("all_reduce", "reduce")))
    assert (verdict.kind, verdict.culprits) == ("wrong_op", [2])


# ---- clocks


def test_trace_corrects_differences_between_the_clocks_of_hosts():
    ahead = [0, 7 * SECOND, -90 * SECOND]

    def calls(rank):
        for i in range(20):
            yield entry(i, WORLD, "all_reduce", i + 1, created=START + i * SECOND + ahead[rank])

    analysis = trace.analyse(three(*(list(calls(rank)) for rank in range(3))))
    for rank in range(3):
        assert abs(analysis.case.clocks.offsets[rank] - ahead[rank]) < 1_000_000
    assert not analysis.verdicts
    text = analysis.text()
    assert "that of rank 1 is 7 s ahead of rank 0's" in text and "that of rank 2 is 90 s behind rank 0's" in text


# ---- reading


def test_trace_finds_dumps_by_their_file_names(tmp_path):
    dumps = three(*([entry(0, WORLD, "all_reduce", 1)] for _ in range(3)))
    trace_dumps.write(tmp_path, dumps, "nccl_trace_rank_")
    (tmp_path / "notes2.txt").write_text("no dump")
    (tmp_path / "core.123").write_bytes(b"\x7fELF")
    assert not trace.analyse(tmp_path).verdicts
    trace_dumps.write(tmp_path, dumps, "other_")
    with pytest.raises(trace.DumpError, match="'nccl_trace_rank_', 'other_'; pass one of them as --prefix"):
        trace.analyse(tmp_path)
    assert not trace.analyse(tmp_path, prefix="other_").verdicts
    trace_dumps.write(tmp_path / "digits", dumps, "run1_7")
    assert sorted(trace.analyse(tmp_path / "digits", prefix="run1_7").case.dumps) == [0, 1, 2]


def test_trace_detects_the_format_of_a_dump_by_its_content(tmp_path):
    dumps = three(*([entry(0, WORLD, "all_reduce", 1)] for _ in range(3)))
    trace_dumps.write(tmp_path, dumps, as_json=(1,))
    assert trace.analyse(tmp_path).exit_status == 0
    assert trace.analyse([pickle.dumps(dumps[0], 2), json.dumps(dumps[1]).encode(), dumps[2]]).exit_status == 0


class Malicious:
    def __reduce__(self):
        return os.system, ("echo evil > /dev/null",)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "fr_0: the file is empty"),
        (b"hello", "fr_0: unknown format: got b'hello' at the start, expected JSON or a pickle"),
        (b"{", "fr_0: malformed or truncated JSON"),
        (b"[" * 100_000, "unknown format"),
        (b'{"a":' * 100_000, "malformed or truncated JSON"),
        (b"\x80\x02", "malformed or truncated pickle"),
        (b"\x80\x02.", "malformed or truncated pickle"),
        (b"\x80\x02Nr\xff\xff\xff\x7f.", "expected a dict, got None"),
        (b"\x80\x04\x8e" + b"\xff" * 8, "malformed or truncated pickle"),
        (pickle.dumps(Malicious()), "got posix.system; a dump has only"),
        (b"\x80\x05" + pickle.BYTEARRAY8 + (2**40).to_bytes(8, "little") + b".", "got a bytearray; a dump has only"),
        (pickle.dumps([1]), "the dump: expected a dict, got a list of 1"),
        (pickle.dumps({"a": 1}), "expected 'version' and 'entries'"),
        (pickle.dumps({"version": "3.0", "entries": []}), "unknown version of the format: got '3.0', expected 2.x"),
    ],
    ids=range(14),
)
def test_trace_rejects_files_that_are_no_dumps(tmp_path, data, says):
    trace_dumps.write(tmp_path, {0: data})
    with pytest.raises(trace.DumpError) as caught:
        trace.analyse(tmp_path)
    assert says in str(caught.value)
    code, out, err = run(tmp_path)
    assert (code, out) == (2, "") and "Traceback" not in err and "fr_0" in err


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("input_sizes", [[1], ["x"]], "entries[1].input_sizes[1][0]: expected a whole number, got 'x'"),
        ("input_sizes", 5, "entries[1].input_sizes: expected a list, got 5"),
        ("process_group", ("0",), "entries[1].process_group: expected name and description, got a tuple of 1"),
        ("collective_seq_id", 1 << 70, "entries[1].collective_seq_id: expected a whole number"),
        ("time_created_ns", None, "entries[1].time_created_ns: expected a whole number, got None"),
        ("state", None, "entries[1].state: expected text, got None"),
        ("profiling_name", 5, "entries[1].profiling_name: expected text, got 5"),
        ("frames", [{"name": 1}], "entries[1].frames[0].name: expected text, got 1"),
        ("input_dtypes", [None], "entries[1].input_dtypes[0]: expected text, got None"),
    ],
)
def test_trace_rejects_dumps_with_malformed_fields(tmp_path, field, value, says):
    dumps = three(*([entry(0, WORLD, "all_reduce", 1), entry(1, WORLD, "all_reduce", 2)] for _ in range(3)))
    dumps[1]["entries"][1][field] = value
    trace_dumps.write(tmp_path, dumps)
    analysis = trace.analyse(tmp_path)
    assert analysis.unreadable[1].startswith(f"fr_1: {says}")
    assert analysis.exit_status == 2 and analysis.case.lost == []
    assert f"fr_1: {says}" in analysis.text()


@pytest.mark.parametrize("ranks", ["[0, 1", "[0, 0]", "[-1]", '["a"]', "{}", 7, "[" * 100_000])
def test_trace_rejects_dumps_with_malformed_group_members(ranks):
    bad = dump([WORLD], [])
    bad["pg_config"]["0"]["ranks"] = ranks
    with pytest.raises(trace.DumpError, match=r"pg_config\['0'\]\.ranks"):
        trace.analyse([bad])


def test_trace_rejects_a_small_file_that_unpacks_to_many_values(monkeypatch):
    monkeypatch.setattr(read, "MAX_ITEMS", 10_000)
    shape = [1] * 100
    bad = dump([WORLD], [entry(0, WORLD, "all_reduce", 1, sizes=([shape] * 200, []))])
    with pytest.raises(trace.DumpError, match="too many values for a dump: expected at most 10000"):
        trace.analyse([pickle.dumps(bad)])


def test_trace_rejects_truncated_dumps(tmp_path):
    """Every truncated dump must raise DumpError."""
    data = pickle.dumps(dump([WORLD], [entry(0, WORLD, "all_reduce", 1)]), 2)
    for size in range(len(data)):
        with pytest.raises(trace.DumpError):
            trace.analyse([data[:size]])
    pickletools.optimize(data)
    assert len(trace.analyse([data]).case.dumps) == 1


def test_trace_rejects_or_reads_dumps_with_changed_bytes():
    good = pickle.dumps(dump([WORLD], [entry(0, WORLD, "all_reduce", 1)]), 2)
    for position in range(len(good)):
        bad = bytearray(good)
        bad[position] ^= 0x15
        try:
            trace.analyse([bytes(bad)]).text(5)
        except trace.DumpError:
            pass


TORCH_PROGRAM = """
import json, os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
for _ in range(3):
    dist.all_reduce(torch.ones(3))
dist.barrier()
c10d = torch._C._distributed_c10d
deadline = time.monotonic() + 30  # who has waited for a call may be there before the recorder has its end
while not all(entry["retired"] for entry in json.loads(c10d._dump_fr_trace_json())["entries"]):
    assert time.monotonic() < deadline
    time.sleep(0.01)
for name, data in ("a_0", c10d._dump_fr_trace()), ("b_0", c10d._dump_fr_trace_json()):
    with open(os.path.join(sys.argv[1], name), "wb") as file:
        file.write(data)
"""


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch's recorder")
def test_trace_reads_dumps_of_torch(tmp_path):
    done = subprocess.run([sys.executable, "-c", TORCH_PROGRAM, tmp_path], capture_output=True, text=True, timeout=60)
    if "has no attribute '_dump_fr_trace" in done.stderr:
        pytest.skip("this torch records nothing of Gloo")
    assert done.returncode == 0, done.stderr
    for prefix in ("a_", "b_"):
        analysis = trace.analyse(tmp_path, prefix=prefix)
        # this group refers to another one, without a name
        (group,) = (group for group in analysis.case.groups if group.name == "0")
        assert (group.desc, group.ranks, group.is_inferred) == ("default_pg", (0,), True)
        assert (analysis.exit_status, group.matched) == (0, [1, 2, 3, 4])
    assert trace.analyse(tmp_path, prefix="a_").case.dumps[0].entries[0].frames[-1].file == "<string>"


# ---- the command


def test_trace_of_an_empty_or_missing_folder_is_an_error(tmp_path):
    code, out, err = run(tmp_path)
    assert (code, out) == (2, "") and "the folder is empty; dumps are files named PREFIX followed by the rank" in err
    code, _, err = run(tmp_path / "none")
    assert code == 2 and "No such file or directory" in err and "Traceback" not in err
    (tmp_path / "readme").write_text("x")
    assert "no dumps here: of 1 file none" in run(tmp_path)[2]


def test_trace_command_prints_its_version_and_help():
    assert run("--version")[:2] == (0, f"dldist {dldist.__version__}\n")
    code, out, _ = run("--help")
    assert code == 0 and "exit status: 0 all matched and done, 1 a problem was found, 2 dumps could not be read" in out
    assert run("--slow", "x", ".")[0] == 2 and run("-n", "0", ".")[0] == 2


def test_trace_report_of_a_hang_names_the_missing_rank(tmp_path):
    def calls(rank):
        for i in range(3):
            yield entry(i, WORLD, "all_reduce", i + 1)
        if rank:
            yield entry(3, WORLD, "broadcast", 4, state="started")

    trace_dumps.write(tmp_path, three(*(list(calls(rank)) for rank in range(3))))
    code, out, err = run(tmp_path, "--verbose", "--last", "2", "--timeline", tmp_path / "timeline.json")
    assert (code, err) == (1, "")
    assert out.startswith("Rank 0 is missing: it has not called broadcast #4")
    assert "collectives that match and are completed: #1 to #3" in out
    table = out[out.index("            rank 0") :].splitlines()
    assert [line.split() for line in table[1:3]] == [
        ["#3", "all_reduce", "done", "done", "done"],
        ["#4", "broadcast", "-", "started", "started"],
    ]
    assert json.loads((tmp_path / "timeline.json").read_text())["traceEvents"]
    os.remove(tmp_path / "timeline.json")
    code, out, _ = run(tmp_path, "--json")
    found = json.loads(out)
    assert (code, found["exit_status"], found["ranks"]) == (1, 1, [0, 1, 2])
    (verdict,) = found["verdicts"]
    assert set(verdict) == {
        "kind", "text", "group", "desc", "seq", "op", "culprits", "others", "waiting", "is_problem", "sites", "because",
    }  # fmt: skip
    assert (verdict["kind"], verdict["culprits"], verdict["waiting"]) == ("missing_rank", [0], [1, 2])
    assert found["groups"][0]["last_called"] == {"0": 3, "1": 4, "2": 4}


# ---- the timeline


def check_timeline(document):
    """Check the rules of Chrome's trace event format, and dldist's own."""
    assert json.loads(json.dumps(document)) == document
    slices, flows, names = {}, {}, {}
    for event in document["traceEvents"]:
        assert event["ph"] in "MXstf" and isinstance(event["pid"], int) and isinstance(event["tid"], int) and event["name"]
        if event["ph"] == "M":
            names[event["pid"], event["tid"], event["name"]] = event["args"]
            continue
        assert isinstance(event["ts"], float) and event["ts"] >= 0 and event["cat"]
        if event["ph"] == "X":
            assert event["dur"] > 0 and isinstance(event["args"], dict)
            slices.setdefault((event["pid"], event["tid"]), []).append(event)
        else:
            flows.setdefault(event["id"], []).append(event)
    for (pid, tid), events in slices.items():
        assert (pid, 0, "process_name") in names and (pid, tid, "thread_name") in names
        open_ends = []
        for event in sorted(events, key=lambda event: (event["ts"], -event["dur"])):
            end = event["ts"] + event["dur"]
            while open_ends and open_ends[-1] <= event["ts"] + 1e-6:
                open_ends.pop()
            assert not open_ends or end <= open_ends[-1] + 1e-3, f"slices of a track nest: {event}"
            open_ends.append(end)
    for events in flows.values():
        assert [event["ph"] for event in events] == ["s", *["t"] * (len(events) - 2), "f"]
        assert [event["ts"] for event in events] == sorted(event["ts"] for event in events)
        assert events[-1]["bp"] == "e"
        for event in events:
            around = slices[event["pid"], event["tid"]]
            assert any(s["ts"] <= event["ts"] <= s["ts"] + s["dur"] for s in around), "an arrow begins and ends at slices"
    return slices, flows, names


def test_trace_timeline_has_the_calls_of_all_ranks():
    def calls(rank):
        yield entry(0, WORLD, "all_reduce", 1, created=START + rank * 1000)
        yield entry(1, WORLD, "barrier", 2, sizes=([], []), created=START + 2 * SECOND, state="started")
        yield entry(2, WORLD, "all_reduce", 3, created=START + 3 * SECOND, state="scheduled")
        if rank == 0:
            yield message(3, "send 0->1", created=START + SECOND)
        if rank == 1:
            yield message(3, "recv 1<-0", created=START + SECOND)

    document = trace.analyse(three(*(list(calls(rank)) for rank in range(3)))).timeline()
    slices, flows, names = check_timeline(document)
    assert [names[rank + 1, 0, "process_name"]["name"] for rank in range(3)] == ["rank 0", "rank 1", "rank 2"]
    tracks = sorted(args["name"] for (pid, _, kind), args in names.items() if pid == 1 and kind == "thread_name")
    assert tracks == ['group "default"', 'group "default" (2)', 'group "default", send to 1']
    found = {event["name"]: event for events in slices.values() for event in events}
    assert {"all_reduce #1", "barrier #2 (unfinished)", "all_reduce #3 (unfinished)", "send 0->1 (unfinished)"} <= set(found)
    assert found["barrier #2 (unfinished)"]["cname"] == "terrible" and found["barrier #2 (unfinished)"]["dur"] >= 1e6
    args = found["all_reduce #1"]["args"]
    assert (args["seq"], args["input_sizes"], args["input_dtypes"]) == (1, [[4]], ["Float"])
    assert args["call_site"] == "train.py:10 in step()"
    assert sorted(len(events) for events in flows.values()) == [2, 3, 3, 3]


def test_trace_timeline_of_any_program_is_valid():
    for seed in range(10):
        for fault in trace_dumps.FAULTS:
            case = trace_dumps.make_faulty_dumps(fault, 2 + seed % 5, seed, keep=None if seed % 2 else 9)
            check_timeline(trace.analyse(case.dumps).timeline())


def test_trace_command_prints_no_traceback_for_a_closed_output_pipe(tmp_path):
    trace_dumps.write(tmp_path, three(*([entry(0, WORLD, "all_reduce", 1)] for _ in range(3))))
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "wb") as closed:
        done = subprocess.run(
            [sys.executable, "-m", "dldist.trace", str(tmp_path)], stdout=closed, stderr=subprocess.PIPE, text=True, timeout=30
        )
    assert "Traceback" not in done.stderr
