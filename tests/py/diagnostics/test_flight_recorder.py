"""The flight recorder's entries for every operation must have c10d's format, as torch reads it."""

import array
import json
import os
import pickle
import sys
import threading
import time

import dldist
import flight_recorder_workers as workers
import group_team
import procs
import pytest
from dldist import distributed_c10d, flight_recorder

TENSOR = array.array("f", [1.0, 2.0])


@pytest.fixture
def group():
    flight_recorder.reset()
    with dldist.Group(None, 0, 1, name="alone") as group:
        yield group
    flight_recorder.reset()


@pytest.fixture
def children():
    children = procs.Group()
    yield children
    children.close()


def run(children, worker, size, *args, env=None):
    """Start the ranks of a worker; return the children and the store."""
    ranks, store = group_team.start_ranks(children, worker, size, *args, env=env)
    return ranks, store


def last(**options):
    return flight_recorder.entries(**options)[-1]


# ---- entries


def line_number():
    return sys._getframe(1).f_lineno


def test_entry_of_the_flight_recorder_has_the_fields_of_its_call(group):
    before = time.time_ns()
    group.all_reduce(TENSOR)
    line = line_number() - 1
    after = time.time_ns()
    entry = last()
    frames = entry.pop("frames")
    times = [entry.pop(f"time_{name}_ns") for name in ("created", "discovered_started", "discovered_completed")]
    assert times == sorted(times) and before - 1000 <= times[0] <= times[-1] <= after + 1_000_000
    assert entry.pop("duration_ms") == pytest.approx((times[2] - times[1]) / 1e6)
    assert entry.pop("pg_id") >= 0
    assert entry == {
        "record_id": 0, "process_group": ("alone", "undefined"), "thread_name": entry["thread_name"],
        "thread_id": str(threading.get_ident()), "collective_seq_id": 1, "p2p_seq_id": 0, "op_id": 1,
        "profiling_name": "gloo:all_reduce", "input_sizes": [[2]], "input_dtypes": ["Float"], "output_sizes": [[2]],
        "output_dtypes": ["Float"], "state": "completed", "retired": True, "timeout_ms": 1800000, "is_p2p": False,
    }  # fmt: skip
    assert frames[0] == {"name": "test_entry_of_the_flight_recorder_has_the_fields_of_its_call", "filename": __file__, "line": line}
    assert len(frames) == 4


def test_flight_recorder_uses_torchs_names_of_dtypes(group):
    numpy = pytest.importorskip("numpy")
    names = {"bool": "Bool", "int8": "Char", "uint8": "Byte", "int16": "Short", "int32": "Int", "int64": "Long",
             "float16": "Half", "float32": "Float", "float64": "Double", "complex64": "ComplexFloat",
             "complex128": "ComplexDouble", "uint16": "UInt16", "uint32": "UInt32", "uint64": "UInt64"}  # fmt: skip
    for dtype, name in names.items():
        group.broadcast(numpy.zeros((2, 0, 3), dtype))
        assert last()["input_dtypes"] == [name] and last()["output_sizes"] == [[2, 0, 3]]
    group.broadcast(numpy.zeros((), "int64"))
    assert last()["input_sizes"] == [[]]


def test_recorded_stacks_omit_frames_of_dldist_and_have_the_given_depth(group):
    def deeper(n):
        if n > 0:
            deeper(n - 1)
        else:
            dldist.all_reduce(TENSOR, group=world)

    with dldist.World(dldist.HashStore(), 0, 1) as world:
        deeper(10)
        frames = last()["frames"]
    assert [frame["name"] for frame in frames] == ["deeper"] * 4
    assert last(stacks=False).get("frames") is None


def test_recorded_stacks_may_be_truncated_but_are_never_wrong(children):
    """With more code objects than the recorder keeps, stacks may be truncated, but never wrong."""
    seen = only(children, workers.make_code, 6000)
    assert seen[0] == ["f0", "<module>", "make_code", seen[0][3]]
    for i, names in enumerate(seen[:-1]):
        assert names == [] or names[0] == f"f{500 * i}"
    assert seen[-1] == []


def test_tensors_that_an_entry_leaves_out_are_counted(group):
    numpy = pytest.importorskip("numpy")
    group.all_reduce_coalesced([numpy.zeros((i, 2), "float32") for i in range(1, 40)])
    entry = last()
    assert entry["profiling_name"] == "gloo:allreduce_coalesced"
    assert entry["input_sizes"] == [[i, 2] for i in range(1, 1 + len(entry["input_sizes"]))]
    assert len(entry["input_sizes"]) + entry["inputs_left_out"] == 39
    assert entry["output_sizes"] == entry["input_sizes"] and entry["outputs_left_out"] == entry["inputs_left_out"]
    group.all_reduce_coalesced([numpy.zeros((3, 2), "float32") for _ in range(500)])
    assert last()["input_sizes"] == [[3, 2]] * 500 and "inputs_left_out" not in last()


def test_rejected_calls_are_not_recorded_in_the_flight_recorder(group):
    with pytest.raises(ValueError):
        group.all_reduce(TENSOR, op="band")
    with pytest.raises(ValueError):
        group.send(TENSOR, 3)
    assert flight_recorder.entries() == []
    group.barrier()
    assert last()["collective_seq_id"] == 1


def test_recorded_message_is_active_until_it_completes(group):
    received = array.array("f", [0.0, 0.0])
    work = group.irecv(received, None, 7)
    assert last()["state"] == "started" and not last()["retired"]
    assert flight_recorder.entries(only_active=True)[-1]["profiling_name"] == "gloo:recv 0<--1"
    group.send(TENSOR, 0, 7)
    work.wait()
    receive, send = flight_recorder.entries()
    assert (receive["profiling_name"], send["profiling_name"]) == ("gloo:recv 0<-0", "gloo:send 0->0")
    assert receive["output_sizes"] == send["input_sizes"] == [[2]] and receive["input_sizes"] == []
    assert [entry["p2p_seq_id"] for entry in (receive, send)] == [1, 2] and send["is_p2p"]
    assert flight_recorder.entries(only_active=True) == []


def test_failed_call_is_recorded_with_its_error(group):
    work = group.irecv(array.array("f", [0.0]), 0)
    group.abort('because "so"\n\u00e9')
    with pytest.raises(dldist.DistAbortedError):
        work.wait()
    (entry,) = flight_recorder.entries(only_active=True)
    assert entry["state"] == "started" and entry["retired"] and entry["time_discovered_completed_ns"] is None
    assert entry["time_created_ns"] < entry["time_ended_ns"] <= time.time_ns()
    assert 'because "so"\n\u00e9' in entry["error"] and entry["error_code"] == "ABORTED" and entry["culprit_rank"] == 0


# ---- dumps


def test_dumps_as_pickle_and_as_json_are_equal(group):
    group.all_reduce(TENSOR)
    work = group.irecv(array.array("f", [0.0]), 0, 3)
    pickled = pickle.loads(distributed_c10d._dump_fr_trace())
    text = json.loads(distributed_c10d._dump_fr_trace_json())
    assert pickled["version"] == text["version"] == "2.10"
    assert text["nccl_comm_state"] == {} and "nccl_comm_state" not in pickled
    assert pickled["pg_config"] == text["pg_config"] and "alone" in pickled["pg_config"]
    assert pickled["pg_config"]["alone"] == {"name": "alone", "desc": "undefined", "ranks": "[0]"}
    numbers = {key: {name: int(count) for name, count in counts.items()} for key, counts in text["pg_status"].items()}
    assert numbers == pickled["pg_status"]
    status = numbers[str(pickled["entries"][0]["pg_id"])]
    assert set(status.values()) == {1}
    for pickled_entry, json_entry in zip(pickled["entries"], text["entries"], strict=True):
        del pickled_entry["frames"]
        pickled_entry["process_group"] = list(pickled_entry["process_group"])
        for name in ("started", "completed"):
            pickled_entry[f"time_discovered_{name}_ns"] = pickled_entry[f"time_discovered_{name}_ns"] or 0
        for entry in (pickled_entry, json_entry):  # each dump reads the clocks again
            entry["times"] = [bool(entry.pop(name)) for name in list(entry) if name.startswith("time_")]
            entry["duration_ms"] = round(entry.get("duration_ms", 0), 6)
        assert pickled_entry == json_entry
    group.send(array.array("f", [0.0]), 0, 3)
    work.wait()


def test_dump_leaves_out_optional_parts_on_request(group):
    group.barrier()
    assert "entries" not in pickle.loads(distributed_c10d._dump_nccl_trace(includeCollectives=False))
    assert "entries" not in json.loads(distributed_c10d._dump_nccl_trace_json(includeCollectives=False))
    assert "frames" not in pickle.loads(distributed_c10d._dump_fr_trace(includeStackTraces=False))["entries"][0]
    assert pickle.loads(distributed_c10d._dump_fr_trace(onlyActive=True))["entries"] == []
    assert json.loads(flight_recorder.dump_json())["entries"][0]["frames"][0]["name"] == "test_dump_leaves_out_optional_parts_on_request"


@pytest.mark.parametrize("name", ["", 'a"b\\', "\x00\n\x7f", "\u00e9\U0001f3b2\u2028", "x" * 5000])
def test_group_names_with_special_characters_are_escaped_in_dumps(group, name):
    group._describe(name, name, [7])
    group.barrier()
    for dump in (pickle.loads(flight_recorder.dump_pickle()), json.loads(flight_recorder.dump_json())):
        assert dump["pg_config"][name] == {"name": name, "desc": name, "ranks": "[7]"}
        assert tuple(dump["entries"][0]["process_group"]) == (name, name)


def test_reset_of_the_flight_recorder_removes_all_entries(group):
    group.barrier()
    distributed_c10d._reset_fr_recording_nccl()
    assert flight_recorder.entries() == []
    group.barrier()
    distributed_c10d._reset_fr_trace(backend="gloo")
    assert flight_recorder.entries() == []
    group.barrier()
    assert last()["record_id"] == 0 and last()["collective_seq_id"] == 3


def test_dump_is_written_to_a_file_or_to_a_registered_writer(group, tmp_path, monkeypatch):
    monkeypatch.setenv("DLDIST_FR_DUMP_FILE", str(tmp_path / "trace_"))
    group.barrier()
    assert distributed_c10d._dump_fr_trace_file(7) is None
    dump = pickle.loads((tmp_path / "trace_7").read_bytes())
    assert [entry["profiling_name"] for entry in dump["entries"]] == ["gloo:barrier"] and "frames" not in dump["entries"][0]
    written = []
    flight_recorder.register_writer(written.append)
    try:
        distributed_c10d._dump_fr_trace_file(8, includeCollectives=True, includeStackTraces=True, onlyActive=False, backend="gloo")
        distributed_c10d._dump_fr_trace_file(8, includeCollectives=False)
        distributed_c10d._dump_fr_trace_file(8, onlyActive=True)
    finally:
        flight_recorder.register_writer(None)
    whole, without, active = map(pickle.loads, written)
    assert whole["entries"][0]["frames"] and "entries" not in without and active["entries"] == []
    assert not (tmp_path / "trace_8").exists()


def test_path_of_dumps_is_read_from_the_environment(group, tmp_path, monkeypatch):
    group.barrier()
    monkeypatch.setenv("TORCH_FR_DUMP_TEMP_FILE", str(tmp_path / "torch_"))
    monkeypatch.setenv("DLDIST_FR_DUMP_FILE", str(tmp_path / "some" / "trace_"))
    monkeypatch.setenv("RANK", "3")
    path = flight_recorder.dump()
    assert path == str(tmp_path / "some" / "trace_3") and os.listdir(tmp_path / "some") == ["trace_3"]
    with open(path, "rb") as file:
        assert pickle.load(file)["entries"][0]["profiling_name"] == "gloo:barrier"
    assert flight_recorder.dump(tmp_path / "x.json", json=True) == str(tmp_path / "x.json")
    assert json.loads((tmp_path / "x.json").read_bytes())["entries"]
    monkeypatch.delenv("DLDIST_FR_DUMP_FILE")
    assert flight_recorder.default_path(5) == str(tmp_path / "torch_5")
    monkeypatch.delenv("TORCH_FR_DUMP_TEMP_FILE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert flight_recorder.default_path() == str(tmp_path / "torch" / "comm_lib_trace_rank_3")
    with pytest.raises(Exception, match="writing a dump"):
        flight_recorder.dump(tmp_path / "x.json" / "below")


def test_writer_registered_for_dumps_gets_them(group, tmp_path):
    group.barrier()
    got = []
    flight_recorder.register_writer(got.append)
    try:
        assert flight_recorder.registered_writer() == got.append
        assert flight_recorder.dump() == ""
        flight_recorder.dump(tmp_path / "file")
    finally:
        flight_recorder.register_writer(None)
    assert len(got) == 1 and pickle.loads(got[0])["entries"] and (tmp_path / "file").exists()
    with pytest.raises(TypeError):
        flight_recorder.register_writer(3)


@pytest.mark.exhaustive
def test_dump_is_valid_while_threads_make_calls(group):
    is_over = threading.Event()

    def call():
        with dldist.Group(None, 0, 1, name="beside") as own:
            while not is_over.is_set():
                own.all_reduce(TENSOR)

    threads = [threading.Thread(target=call) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(20):
            for entry in pickle.loads(flight_recorder.dump_pickle())["entries"]:
                assert entry["input_sizes"] == [[2]] and entry["frames"][0]["name"] == "call"
    finally:
        is_over.set()
        for thread in threads:
            thread.join()


# ---- several ranks


# name, inputs and outputs of rank 0 of 2
OPERATIONS = [
    ("all_reduce", [[2]], [[2]]),
    ("allreduce_coalesced", [[1], [2]], [[1], [2]]),
    ("broadcast", [[2]], [[2]]),
    ("reduce", [[2]], [[2]]),
    ("all_gather", [[2]], [[2, 2]]),
    ("all_gather_single", [[2]], [[4]]),
    ("ALLGATHER_coalesced", [[1], [2]], [[1], [2], [1], [2]]),
    ("all_gather_into_tensor_coalesced", [[2]], [[4]]),
    ("gather", [[2]], [[2, 2]]),
    ("gather", [[2]], [[4]]),
    ("scatter", [[2, 2]], [[2]]),
    ("scatter", [[4]], [[2]]),
    ("reduce_scatter", [[2, 2]], [[2]]),
    ("reduce_scatter_single", [[4]], [[2]]),
    ("reduce_scatter_tensor_coalesced", [[4]], [[2]]),
    ("all_to_all", [[2, 2]], [[2, 2]]),
    ("all_to_all", [[2]], [[2]]),
    ("barrier", [], []),
    ("all_reduce", [[1]], [[1]]),
]


def analyse(folder, prefix="trace_"):
    """Run torch's analysis of the files; return its database and its messages."""
    pytest.importorskip("torch")
    fr_trace = pytest.importorskip("torch.distributed.flight_recorder.fr_trace")
    from torch.distributed.flight_recorder.components.builder import build_db
    from torch.distributed.flight_recorder.components.config_manager import JobConfig
    from torch.distributed.flight_recorder.components.loader import read_dir

    assert fr_trace.main is not None
    arguments = JobConfig().parse_args([str(folder), "--prefix", prefix])
    details, version = read_dir(arguments)
    return build_db(details, arguments, version)


def test_flight_recorder_records_every_operation(children, tmp_path):
    ranks, _store = run(children, workers.record_all, 2, f"{tmp_path}/trace_")
    entries = [child.recv() for child in ranks]
    for child in ranks:
        child.recv()
        child.result()
    names = [f"gloo:{name}" for name, _, _ in OPERATIONS]
    for rank in range(2):
        assert [entry["profiling_name"] for entry in entries[rank]] == names
        assert [entry["collective_seq_id"] for entry in entries[rank]] == list(range(1, len(names) + 1))
        assert {entry["state"] for entry in entries[rank]} == {"completed"}
        assert {entry["frames"][0]["name"] for entry in entries[rank]} == {"every_operation", "record_all"}
    for entry, (name, inputs, outputs) in zip(entries[0], OPERATIONS, strict=True):
        assert (name, entry["input_sizes"], entry["output_sizes"]) == (name, inputs, outputs)
        assert entry["input_dtypes"] == ["Float"] * len(inputs) and entry["output_dtypes"] == ["Float"] * len(outputs)
    for entry, (name, _, _) in zip(entries[1], OPERATIONS, strict=True):
        assert entry["output_sizes"] == [] if name in ("gather", "barrier") else entry["output_sizes"]
        assert entry["input_sizes"] == [] if name in ("scatter", "barrier") else entry["input_sizes"]
    database = analyse(tmp_path)
    assert [call.collective_name for call in database.collectives] == names
    assert all(call.pass_check for call in database.collectives)


def test_recorded_messages_of_two_ranks_have_matching_numbers(children, tmp_path):
    ranks, _store = run(children, workers.send_and_receive, 2, f"{tmp_path}/trace_")
    entries = [child.recv() for child in ranks]
    for child in ranks:
        child.recv()
        child.result()
    assert [entry["profiling_name"] for entry in entries[0]] == ["gloo:send 0->1"] * 2
    assert [entry["profiling_name"] for entry in entries[1]] == ["gloo:recv 1<-0"] * 2
    assert [entry["input_sizes"] for entry in entries[0]] == [entry["output_sizes"] for entry in entries[1]] == [[[2]], [[3]]]
    database = analyse(tmp_path)
    assert len(database.collectives) == 2 and all(call.pass_check for call in database.collectives)


def test_recorded_messages_between_collectives_have_matching_numbers(children, tmp_path):
    """torch's analyser takes adjacent entries with the same number for parts of one call, so there
    must be none."""
    ranks, _store = run(children, workers.send_between_collectives, 2, f"{tmp_path}/trace_")
    entries = [child.recv() for child in ranks]
    for child in ranks:
        child.recv()
        child.result()
    names = ["all_reduce", "send 0->1", "all_reduce", "send 0->1", "send 0->1", "all_reduce"]
    assert [entry["profiling_name"] for entry in entries[0]] == [f"gloo:{name}" for name in names]
    for rank_entries in entries:
        assert [entry["collective_seq_id"] for entry in rank_entries] == [1, 1, 2, 2, 2, 3]
        assert [entry["p2p_seq_id"] for entry in rank_entries] == [0, 4, 4, 5, 6, 6]
        assert [entry["op_id"] for entry in rank_entries] == [1, 2, 3, 4, 5, 6]
    database = analyse(tmp_path)
    assert len(database.collectives) == 6 and all(call.pass_check for call in database.collectives)


def test_recorded_stacks_distinguish_the_callers_of_a_helper(group):
    def helper():
        group.all_reduce(TENSOR)

    def first():
        helper()

    def second():
        helper()
        helper()

    for _ in range(3):
        flight_recorder.reset()
        first()
        second()
        frames = [entry["frames"] for entry in flight_recorder.entries()]
        assert [[frame["name"] for frame in stack[:3]] for stack in frames] == [
            ["helper", caller, "test_recorded_stacks_distinguish_the_callers_of_a_helper"] for caller in ("first", "second", "second")
        ]
        line = second.__code__.co_firstlineno
        assert [stack[1]["line"] for stack in frames] == [first.__code__.co_firstlineno + 1, line + 1, line + 2]


def test_recorded_stacks_include_generators_and_callbacks(group):
    def generate():
        group.all_reduce(TENSOR)
        yield

    class Ending:
        def __del__(self):
            group.all_reduce(TENSOR)

    def end():
        ending = Ending()
        assert ending

    def many(depth):
        if depth > 0:
            return many(depth - 1)
        return list(map(lambda _: group.all_reduce(TENSOR), range(1)))

    for _ in range(2):
        flight_recorder.reset()
        list(generate())
        end()
        many(40)
        many(3)
        names = [[frame["name"] for frame in entry["frames"]] for entry in flight_recorder.entries()]
        assert names[0][:2] == ["generate", "test_recorded_stacks_include_generators_and_callbacks"]
        assert names[1][:2] in (["__del__", "end"], ["__del__", "test_recorded_stacks_include_generators_and_callbacks"])
        assert names[2][:3] == ["<lambda>", "many", "many"] and set(names[2][1:]) == {"many"}
        assert names[3] == ["<lambda>", "many", "many", "many"]


def test_entries_of_several_ranks_show_which_rank_is_missing(children, tmp_path, caplog):
    ranks, _store = run(children, workers.omit_the_last_rank, 3, f"{tmp_path}/trace_")
    errors = [child.recv() for child in ranks]
    for child in ranks:
        child.send("go on")
    active = [child.recv() for child in ranks]
    for child in ranks:
        child.recv()
        child.result()
    for rank in range(2):
        (entry,) = active[rank]
        assert entry["state"] == "started" and entry["retired"] and entry["input_sizes"] == [[3]]
        assert entry["error"] in errors[rank] or errors[rank] in entry["error"]
    assert {active[rank][0]["error_code"] for rank in range(2)} == {"OP_TIMED_OUT"}
    assert active[0][0]["culprit_rank"] == 2 and active[2] == []
    database = analyse(tmp_path)
    assert [call.pass_check for call in database.collectives][0] is True
    assert database.collectives[-1].missing_ranks == {2}


def test_dumps_have_the_group_names_of_torch_distributed(children):
    ranks, _store = run(children, workers.c10d_names, 3)
    dumps = [pickle.loads(child.recv()) for child in ranks]
    for child in ranks:
        child.result()
    for dump in dumps:
        assert dump["pg_config"]["0"] == {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2]"}
        assert dump["entries"][0]["process_group"] == ("0", "default_pg")
        assert dump["entries"][0]["frames"][0]["name"] == "c10d_names"
    for dump in dumps[1:]:
        entry = dump["entries"][-1]
        name, desc = entry["process_group"]
        assert desc == "mine" and dump["pg_config"][name] == {"name": name, "desc": "mine", "ranks": "[1, 2]"}


# ---- settings


def only(children, worker, *args, **env):
    child = children.start(worker, *args, env=env)
    message = child.recv()
    child.result()
    return message


def test_flight_recorder_settings_are_read_from_the_environment(children):
    is_on, entries, path = only(children, workers.settings, DLDIST_FR_BUFFER_SIZE="0", DLDIST_FR_DUMP_FILE="/x/y", RANK="2")
    assert not is_on and entries == [] and path == "/x/y2"
    is_on, entries, _ = only(children, workers.settings, TORCH_FR_BUFFER_SIZE="3", DLDIST_FR_STACK_DEPTH="0")
    assert is_on and [entry["record_id"] for entry in entries] == [2, 3, 4]
    assert [entry["frames"] for entry in entries] == [[]] * 3
    _, entries, _ = only(children, workers.settings, TORCH_NCCL_TRACE_BUFFER_SIZE="2", DLDIST_FR_STACK_DEPTH="1")
    assert len(entries) == 2 and [len(entry["frames"]) for entry in entries] == [1, 1]
    text = only(children, workers.fail_settings, DLDIST_FR_BUFFER_SIZE="many")
    assert text == "DLDIST_FR_BUFFER_SIZE must be a number, 0 or more, not 'many'"


def test_forked_child_has_its_own_flight_recorder(children):
    assert only(children, workers.after_fork) == ("gloo:barrier", 1)


def test_recording_a_call_in_the_flight_recorder_is_fast(children):
    """A rough limit, to detect accidents. benchmarks/recorder.py measures."""
    calls = 20000
    off = min(only(children, workers.time_calls, calls, DLDIST_FR_BUFFER_SIZE="0") for _ in range(3))
    on = min(only(children, workers.time_calls, calls) for _ in range(3))
    assert (on - off) / calls < 2e-6
