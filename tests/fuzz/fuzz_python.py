#!/usr/bin/env python3
"""Feed untrusted bytes and texts to the parsers in Python: objects and their frames (from other
ranks), dumps of flight recorders (files), URLs and the variables of launchers (the environment).

    PYTHONPATH=pkg python tests/fuzz/fuzz_python.py objects --seconds 600

Seeds are valid inputs. Each input made from them must be read, or rejected with the documented
error. A failure writes the input to <parser>-failure.bin and prints the seed.
"""

import argparse
import enum
import io
import json
import pathlib
import pickle
import random
import struct
import sys
import tempfile
import time
import uuid
import warnings
from collections import OrderedDict, namedtuple
from datetime import date, datetime, timedelta, timezone
from datetime import time as clock_time
from decimal import Decimal
from fractions import Fraction
from pathlib import PurePosixPath
from zoneinfo import ZoneInfo

import dldist
import numpy as np
from dldist import trace
from dldist._base import settings
from dldist._launch import options
from dldist._objects import codec, frames
from dldist._rendezvous import launchers, urls
from mutate import mutated

SAFE = codec.find("safe")
PLACED_BYTES = 1 << 20  # buffers beyond this announced size are not allocated

Color = enum.Enum("Color", "RED GREEN", module=__name__)
Point = namedtuple("Point", "x y")  # noqa: PYI024
dldist.allow_classes(Color, Point)

OBJECTS = [
    None,
    [True, False, -1, 2**63, -(2**70), 1.5, 2j, "text \udcff \U0001f511", b"bytes", bytearray(b"more")],
    {"key": (1, [2, {3: {4}}]), "frozen": frozenset([1]), (1, "b"): OrderedDict(a=timedelta(1, 2, 3))},
    [[[[[[[[]]]]]]]],
    [np.arange(6, dtype="int32").reshape(2, 3), np.float64(2.5), np.zeros((0, 3), "uint8"), np.ones((2, 2), "bool")],
    [date(2024, 2, 29), clock_time(1, 2, fold=1), datetime(2024, 1, 1, tzinfo=ZoneInfo("UTC")), timezone(timedelta(hours=1), "x")],
    [Decimal("-1.5e99"), Fraction(1, 3), PurePosixPath("a/b"), uuid.UUID(int=5), range(1, 9, 2), Point(Color.RED, Point(1, [2]))],
    [np.array(["ab", "c"]), np.zeros(2, "S3"), np.zeros(2, "M8[25s]"), np.str_("x")],
    np.zeros(codec.IN_BAND_BYTES, "uint8"),
]
BYTEARRAY = pickle.BYTEARRAY8 + struct.pack("<Q", 2**31)  # far too much
NUMBERS = [struct.pack("<Q", number) for number in (0, 1, 5, 255, 2**16, 2**31, 2**32 - 1, 2**63, 2**64 - 1)]


# ---- objects: the number of buffers, their sizes, and the head


def written(obj):
    head = io.BytesIO()
    sizes = [buffer.nbytes for buffer in SAFE.write(obj, head)]
    return head.getvalue(), sizes


def object_seeds():
    for head, sizes in map(written, OBJECTS):
        yield bytes([len(sizes)]) + b"".join(struct.pack("<I", size) for size in sizes) + head


def read_object(data):
    """Return None, or a tuple with the object that was read."""
    count = data[0] % 4 if data else 0
    sizes = [int.from_bytes(data[1 + 4 * i : 5 + 4 * i], "little") % (4 * codec.IN_BAND_BYTES) for i in range(count)]
    try:
        return (SAFE.read(memoryview(data[1 + 4 * count :]), [memoryview(bytearray(size)) for size in sizes]),)
    except dldist.DistError:
        return None


def check_object(data):
    """An object that was read must be written and read again unchanged."""
    found = read_object(data)
    if found is not None:
        head, sizes = written(found[0])
        again = SAFE.read(memoryview(head), [memoryview(bytearray(size)) for size in sizes])
        if not {b"S"[0], b"Z"[0]} & set(head):  # the order of a set is arbitrary
            assert written(again)[0] == head


# ---- frames: a prefix and the data after it


def frame_seeds():
    for obj in OBJECTS:
        outgoing = frames.Outgoing(obj, SAFE)
        yield outgoing.prefix(outgoing.rounds) + b"".join(bytes(outgoing.piece(index)) for index in outgoing.rounds)
    yield frames.Outgoing(frames.Refusal(ValueError("no")), SAFE).prefix(range(1, 1))


def check_frame(data):
    prefix, rest = data[: frames.PREFIX_BYTES].ljust(frames.PREFIX_BYTES, b"\0"), data[frames.PREFIX_BYTES :]
    try:
        incoming = frames.Incoming(memoryview(prefix), 3, "call")
        is_large = max(struct.unpack_from("<QQ", prefix, 16)) > PLACED_BYTES  # of the head, of all buffers
        if incoming.failure() or incoming.mismatch(SAFE) or is_large:
            return
        for index in range(incoming.rounds.start, min(incoming.rounds.stop, 64)):
            place = incoming.buffer_for(index)
            assert place.nbytes <= 2 * PLACED_BYTES
            piece, rest = rest[: place.nbytes], rest[place.nbytes :]
            place[: len(piece)] = piece
        if incoming.rounds.stop <= 64:
            incoming.read(SAFE)
    except dldist.DistError:
        pass


# ---- dumps


def dump_seeds():
    entry = {
        "record_id": 0,
        "pg_id": 0,
        "process_group": ["0", "default_pg"],
        "collective_seq_id": 1,
        "is_p2p": False,
        "op_id": 1,
        "profiling_name": "gloo:all_reduce",
        "time_created_ns": 10**18,
        "input_sizes": [[3, 4]],
        "input_dtypes": ["Float"],
        "output_sizes": [[3, 4]],
        "output_dtypes": ["Float"],
        "state": "scheduled",
        "timeout_ms": 600000,
        "frames": [{"name": "step", "filename": "train.py", "line": 7}],
    }
    message = {**entry, "record_id": 1, "is_p2p": True, "profiling_name": "nccl:send 0->1", "state": "completed", "retired": True}
    dump = {
        "version": "2.10",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
        "pg_status": {"0": {"last_enqueued_collective": 1, "last_started_collective": 1, "last_completed_collective": -1}},
        "entries": [entry, message],
    }
    return [json.dumps(dump).encode(), pickle.dumps(dump, 2), pickle.dumps(dump, 5)]


def check_dump(data):
    """Analyse the dump together with a valid one."""
    analysis = trace.analyse([dump_seeds()[1], data])
    assert analysis.text() and analysis.summary
    json.dumps(analysis.to_json())
    json.dumps(analysis.timeline())


# ---- texts


def check_url(data):
    url = data.decode("utf-8", "surrogateescape")
    for make_endpoint in (urls.tcp_endpoint, urls.file_endpoint):
        try:
            assert make_endpoint(url) is not None
        except (ValueError, AssertionError) as error:
            assert str(error), url


def environ_of(data):
    lines = data.decode("utf-8", "surrogateescape").replace("\0", "").split("\n")
    return {name: value for name, _, value in (line.partition("=") for line in lines) if name}


def check_environment(data):
    environ = environ_of(data)
    for look in (launchers.detect, launchers.detect_mpirun, launchers.local_rank, launchers.local_size):
        try:
            look(environ)
        except ValueError as error:
            assert "environment variable" in str(error) or "list of hosts" in str(error), error


def check_settings(data):
    environ = environ_of(data)
    warnings.simplefilter("ignore", FutureWarning)  # about old names
    for setting in settings._SETTINGS.values():
        try:
            settings._read(setting, environ)
        except ValueError as error:
            assert any(name in str(error) for name in setting.names + setting.old), error


def check_arguments(data):
    arguments = data.decode("utf-8", "surrogateescape").replace("\0", "").split("\n")
    with tempfile.TemporaryFile("w", errors="surrogateescape") as nowhere:
        before, sys.stderr, sys.stdout = (sys.stderr, sys.stdout), nowhere, nowhere
        try:
            options.parse(arguments)
        except SystemExit:
            pass
        finally:
            sys.stderr, sys.stdout = before


SLURM = "SLURM_STEP_ID=0\nSLURM_PROCID=1\nSLURM_STEP_NUM_TASKS=4\nSLURM_LOCALID=1\nSLURM_NODEID=0\nSLURM_STEP_TASKS_PER_NODE=2(x2)\n"
SLURM += "SLURM_JOB_ID=7\nSLURM_STEP_NODELIST=node[01-03,7],gpu5\nSLURM_RESTART_COUNT=1\n"
TORCHRUN = "RANK=0\nWORLD_SIZE=2\nLOCAL_RANK=0\nLOCAL_WORLD_SIZE=2\nGROUP_RANK=0\nTORCHELASTIC_RUN_ID=x\nMASTER_ADDR=h\nMASTER_PORT=29500\n"
MPI = "OMPI_COMM_WORLD_RANK=0\nOMPI_COMM_WORLD_SIZE=2\nOMPI_COMM_WORLD_LOCAL_RANK=0\nPMIX_NAMESPACE=n\nPMI_RANK=0\nPMI_SIZE=1\n"
URLS = ["tcp://host:29500?rank=0&world_size=2", "tcp://[::1]:1-9?job=j&rank=1&world_size=2#x", "file:///tmp/x?rank=0&world_size=1&use_libuv=1"]
ARGUMENTS = ["--nproc-per-node\n2\na.py\n--x", "--nnodes=2\n--node-rank=1\n--master-addr\nh\n-m\nmodule", "--rdzv-endpoint=[::1]:9\n--log-dir\nd\nx"]
TEXT_WORDS = [b"\n", b"=", b"-1", b"[", b"]", b"(x", b")", b",", b"[1-", b"99999999999999999999", b"&", b"?", b"%zz", b"\xd9\xa3", b"\xff", b"=0\n"]
BYTE_WORDS = [*NUMBERS, b"\0", b"\xff" * 8, b"l", b"d", b"a", b"I", b"n", b"t", b"s", b"int8", b"bfloat16", b"\x80", b"{", b"["]


def settings_seeds():
    for setting in settings._SETTINGS.values():
        yield "".join(f"{name}=1\n" for name in setting.names + setting.old).encode()
    yield b"DLDIST_PORTS=5000-5010\nDLDIST_LOG=debug\n"


PARSERS = {
    "objects": (check_object, list(object_seeds()), BYTE_WORDS),
    "frames": (check_frame, list(frame_seeds()), BYTE_WORDS),
    "dumps": (check_dump, dump_seeds(), [*BYTE_WORDS, b'"', b"null", b"-1", b"1e999", b'{"version":"2.1"}', b"N.", b"}", b"]", b"h\x00", BYTEARRAY]),
    "urls": (check_url, [url.encode() for url in URLS], TEXT_WORDS),
    "environment": (check_environment, [text.encode() for text in (SLURM, TORCHRUN, MPI)], TEXT_WORDS),
    "settings": (check_settings, list(settings_seeds()), TEXT_WORDS),
    "arguments": (check_arguments, [text.encode() for text in ARGUMENTS], TEXT_WORDS),
}


def fuzz(name, seconds, seed, most=None):
    """Return the number of inputs. Raise an exception for the first one that fails."""
    check, seeds, words = PARSERS[name]
    rng = random.Random(seed)
    until = time.monotonic() + seconds
    count = 0
    while time.monotonic() < until and count != most:
        data = mutated(rng, seeds, words, most_seeds=1 if name in ("dumps", "frames") else 2)
        began = time.monotonic()
        try:
            check(data)
            assert time.monotonic() - began < 5, "took too long"
        except BaseException:
            pathlib.Path(f"{name}-failure.bin").write_bytes(data)
            print(f"failed: {name} --seed {seed}, input {count}: {name}-failure.bin", file=sys.stderr)
            raise
        count += 1
    return count


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parser", choices=[*PARSERS, "all"])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--replay", type=pathlib.Path, help="one input again")
    args = parser.parse_args()
    if args.replay:
        PARSERS[args.parser][0](args.replay.read_bytes())
        return
    seed = random.randrange(2**32) if args.seed is None else args.seed
    for name in PARSERS if args.parser == "all" else [args.parser]:
        print(f"{name}: {fuzz(name, args.seconds, seed)} inputs, seed {seed}", flush=True)


if __name__ == "__main__":
    main()
