"""The serializers: accepted objects, results, and the resistance of "safe" to hostile bytes."""

import array
import collections
import ctypes
import dataclasses
import enum
import importlib.util
import io
import math
import random
import struct
import sys
import threading
import tracemalloc
import uuid
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from pathlib import Path, PurePosixPath, PureWindowsPath
from zoneinfo import ZoneInfo

import dldist
import pytest
from dldist._objects import codec, frames, kinds
from dldist._objects.frames import PREFIX_BYTES, Incoming, Outgoing
from dldist._objects.safe_codec import MAX_DEPTH

SAFE, PICKLE = codec.find("safe"), codec.find("pickle")
both = pytest.mark.parametrize("serializer", [SAFE, PICKLE], ids=["safe", "pickle"])
LARGE = 2 * codec.IN_BAND_BYTES
TEXT = "w" if "w" in array.typecodes else "u"  # Python 3.13 deprecates "u" and adds "w"


def need(module):
    return pytest.mark.skipif(importlib.util.find_spec(module) is None, reason=f"{module} is not installed")


def encode(serializer, obj):
    """Return the head and copies of the buffers, as if received."""
    head = io.BytesIO()
    buffers = serializer.write(obj, head)
    return head.getvalue(), [bytearray(buffer) for buffer in buffers]


def decode(serializer, head, buffers):
    return serializer.read(memoryview(head), [memoryview(buffer) for buffer in buffers])


def round_trip(serializer, obj):
    return decode(serializer, *encode(serializer, obj))


def nested(depth):
    obj = []
    for _ in range(depth - 1):
        obj = [obj]
    return obj


PLAIN = {
    "none": None,
    "true": True,
    "false": False,
    "zero": 0,
    "smallest of 64 bits": -(1 << 63),
    "largest of 64 bits": (1 << 63) - 1,
    "above 64 bits": 1 << 63,
    "below 64 bits": -(1 << 63) - 1,
    "huge": -(3**5000),
    "float": -0.1,
    "infinity": math.inf,
    "complex": complex(-0.0, math.inf),
    "empty string": "",
    "string": "a\0\u00e9\u20ac\U0001f600",
    "half a surrogate": "\ud800",
    "long string": "\u20ac" * LARGE,
    "bytes": b"\0\xff",
    "large bytes": b"x" * LARGE,
    "bytearray": bytearray(b"abc"),
    "large bytearray": bytearray(LARGE),
    "list": [1, [2.0, ["three"]], []],
    "tuple": (1, (), (None,)),
    "dict": {"a": 1, 2: "b", (3, None): {}, b"": [True], False: -1},
    "order": dict.fromkeys("zyxabc"),
    "ordered dict": collections.OrderedDict([("b", 1), ("a", 2)]),
    "set": {1, "a", (2, 3)},
    "frozenset": frozenset({frozenset(), 1}),
    "timedelta": timedelta(-3, 5, 7),
    "deep": nested(MAX_DEPTH),
    "wide": list(range(1000)),
}


@both
@pytest.mark.parametrize("obj", PLAIN.values(), ids=PLAIN)
def test_plain_objects_are_equal_after_serialization(serializer, obj):
    back = round_trip(serializer, obj)
    assert back == obj
    assert type(back) is type(obj)
    if isinstance(obj, dict):
        assert list(back) == list(obj)


class Color(enum.Enum):
    RED = 1
    GREEN = "g"


class Access(enum.Flag):
    READ = 1
    WRITE = 2


class Level(enum.IntEnum):
    LOW = 1


Point = collections.namedtuple("Point", "x y")  # noqa: PYI024


@dataclasses.dataclass(frozen=True, slots=True)
class Config:
    lr: float
    origin: object = None


@dataclasses.dataclass
class Counted:
    count: int
    twice: int = dataclasses.field(init=False)

    def __post_init__(self):
        self.twice = 2 * self.count


class Open(enum.Enum):
    """A class that is not allowed."""

    DOOR = 1


dldist.allow_classes(Color, Access, Level, Point, Config, Counted)

VALUES = {
    "date": date(2024, 2, 29),
    "last date": date.max,
    "time": time(23, 59, 58, 7),
    "second time of an hour": time(1, 30, fold=1),
    "datetime": datetime(1, 2, 3, 4, 5, 6, 7),
    "utc": UTC,
    "datetime of a zone": datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin")),
    "datetime of a fixed offset": datetime(2024, 1, 1, tzinfo=timezone(timedelta(hours=-3, seconds=1))),
    "named offset": timezone(timedelta(hours=1), "work"),
    "negative zero": Decimal("-0.00"),
    "large exponent": Decimal("1.5e999999"),
    "not a number": Decimal("NaN12"),
    "fraction": Fraction(-3, 7),
    "path": Path("/a/../b"),
    "empty path": Path(),
    "pure path": PurePosixPath("a/\udcff"),
    "path of Windows": PureWindowsPath("C:/a"),
    "uuid": uuid.UUID(int=1 << 100),
    "range": range(5, -(1 << 70), -3),
    "enum": Color.GREEN,
    "flags": Access.READ | Access.WRITE,
    "no flag": Access(0),
    "int enum": Level.LOW,
    "named tuple": Point(1, [2]),
    "dataclass": Config(0.5, Point(Color.RED, {"a": Config(1.0)})),
}


@both
@pytest.mark.parametrize("obj", VALUES.values(), ids=VALUES)
def test_values_of_standard_types_and_allowed_classes_are_serialized_unchanged(serializer, obj):
    back = round_trip(serializer, [obj])[0]
    assert type(back) is type(obj) and repr(back) == repr(obj)
    assert back == obj or back != back
    if isinstance(obj, (time, datetime)):
        assert back.fold == obj.fold and back.tzinfo == obj.tzinfo


def test_dataclass_is_received_without_running_its_code():
    obj = Counted(3)
    obj.twice = 7
    back = round_trip(SAFE, obj)
    assert back == obj and vars(back) == {"count": 3, "twice": 7}
    obj.extra = 1
    with pytest.raises(ValueError, match="obj cannot be sent .* not a field of test_serializers.Counted: got 'extra', expected count, twice"):
        round_trip(SAFE, obj)
    del obj.extra, obj.twice
    with pytest.raises(ValueError, match="obj cannot be sent .* no attribute 'twice'"):
        round_trip(SAFE, obj)


def test_receiver_decides_of_which_classes_objects_are_created(monkeypatch):
    head, buffers = encode(SAFE, [Point(1, 2), Color.RED])
    monkeypatch.setattr(kinds, "_by_name", {})
    with pytest.raises(dldist.DistError, match=r"object of class test_serializers.Point: not allowed here; call dldist.allow_classes\(\)"):
        decode(SAFE, head, buffers)
    dldist.allow_classes(Color, collections.namedtuple("Point", "y x", module=__name__))  # noqa: PYI024
    with pytest.raises(dldist.DistError, match=r"other fields here: got test_serializers.Point\(x,y\), expected test_serializers.Point\(y,x\)"):
        decode(SAFE, head, buffers)
    monkeypatch.setattr(kinds, "_by_type", dict(kinds._by_type))
    dldist.allow_classes(Point)
    assert decode(SAFE, head, buffers) == [Point(1, 2), Color.RED]


def test_sender_cannot_make_the_receiver_import_a_module():
    for name in ("os.system", "builtins.eval", "datetime", "test_serializers.Open", "subprocess.Popen(args)", ""):
        head = b"v" + struct.pack("<Q", len(name)) + name.encode() + struct.pack("<Q", 1) + b"s" + bytes(8)
        assert read_hostile(head, [])


def test_allow_classes_rejects_unsupported_classes():
    failure = dataclasses.make_dataclass("failure", ["code"], bases=(Exception,))
    table = dataclasses.make_dataclass("table", ["name"], bases=(dict,))
    for wrong in (int, 5, Thing, enum.Enum, failure, table):
        with pytest.raises(TypeError, match=r"allow_classes\(\): argument 'classes\[1\]' has a wrong type: got .*expected an enum, a"):
            dldist.allow_classes(Color, wrong)


@need("numpy")
@both
def test_numpy_strings_and_dates_are_equal_after_serialization(serializer):
    numpy = pytest.importorskip("numpy")
    for x in [
        numpy.array([["abc", ""], ["\U0001f511", "d"]]),
        numpy.array([b"a", b"bc"]),
        numpy.zeros((0, 3), "U5"),
        numpy.full(LARGE, "text"),
        numpy.array(["2024-02-29", "NaT"], "datetime64[D]"),
        numpy.arange(6).reshape(2, 3).astype("timedelta64[25s]")[:, ::2],
    ]:
        back = round_trip(serializer, [x])[0]
        assert type(back) is type(x) and back.dtype == x.dtype and back.shape == x.shape and back.flags.writeable
        assert back.tolist() == x.tolist()
    for x in [numpy.str_("ab"), numpy.str_(""), numpy.bytes_(b"x"), numpy.datetime64("2024", "Y"), numpy.timedelta64(3), numpy.timedelta64(3, "ns")]:
        back = round_trip(serializer, [x])[0]
        assert type(back) is type(x) and back == x and repr(back) == repr(x)


@both
def test_serialization_preserves_types_and_signs_of_numbers(serializer):
    back = round_trip(serializer, [-0.0, math.nan, True, 1, {0: None}])
    assert math.copysign(1, back[0]) == -1 and math.isnan(back[1])
    assert back[2] is True and type(back[3]) is int


# ---- arrays


@need("numpy")
@both
@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64",
                                   "float16", "float32", "float64", "complex64", "complex128"])  # fmt: skip
@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (7,), (2, 3, 4), (400, 401)], ids=str)
def test_numpy_arrays_are_equal_after_serialization(serializer, dtype, shape):
    import numpy

    x = (numpy.arange(math.prod(shape)) % 100).reshape(shape).astype(dtype)
    back = round_trip(serializer, {"x": x})["x"]
    assert type(back) is type(x) and back.dtype == x.dtype and back.shape == shape
    assert numpy.array_equal(back, x) and back.flags.writeable
    scalar = x.dtype.type(1)
    assert type(round_trip(serializer, scalar)) is type(scalar) and round_trip(serializer, scalar) == scalar


@need("numpy")
@both
def test_numpy_arrays_of_every_layout_are_equal_after_serialization(serializer):
    import numpy

    x = numpy.arange(120_000.0).reshape(300, 400)
    for view in (x.T, x[::2, 1:], x[:, 5], numpy.asfortranarray(x), x[::-1], numpy.broadcast_to(x[0], (9, 400))):
        assert numpy.array_equal(round_trip(serializer, view), view)


@need("numpy")
@both
def test_arrays_of_ml_dtypes_are_equal_after_serialization(serializer):
    numpy, ml_dtypes = pytest.importorskip("numpy"), pytest.importorskip("ml_dtypes")
    for dtype in (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2):
        for count in (0, 3, LARGE):
            x = numpy.ones((2, count), dtype)
            back = round_trip(serializer, x)
            assert back.dtype == x.dtype and numpy.array_equal(back, x) and back.flags.writeable
        assert round_trip(serializer, dtype(2)) == dtype(2)


@need("torch")
@both
def test_torch_tensors_are_equal_after_serialization(serializer):
    torch = pytest.importorskip("torch")
    large = torch.arange(90_000.0).reshape(300, 300)
    for x in (large, large.t(), large[::2, 3:], torch.tensor(3), torch.zeros(0, 2), torch.ones(3, dtype=torch.bfloat16),
              torch.ones(LARGE).to(torch.float8_e5m2), torch.tensor([1 + 2j]).conj(),
              torch.tensor([True, False])):  # fmt: skip
        back = round_trip(serializer, [x])[0]
        assert type(back) is torch.Tensor and back.dtype == x.dtype and back.shape == x.shape
        assert torch.equal(back.to(torch.complex128), x.to(torch.complex128))
        back.zero_()


@need("torch")
def test_serialization_preserves_torch_views_and_parameters():
    torch = pytest.importorskip("torch")
    x = torch.zeros(LARGE)
    whole, part, parameter = round_trip(PICKLE, [x, x[10:20], torch.nn.Parameter(torch.ones(3))])
    part.fill_(1)
    assert whole.sum() == 10
    assert type(parameter) is torch.nn.Parameter and parameter.requires_grad
    state = torch.nn.Linear(200, 100).state_dict()
    for serializer in (SAFE, PICKLE):
        back = round_trip(serializer, state)
        assert type(back) is collections.OrderedDict
        assert all(torch.equal(back[name], value) for name, value in state.items())


@need("jax")
@both
def test_jax_arrays_are_equal_after_serialization(serializer):
    jnp = pytest.importorskip("jax.numpy")
    for x in (jnp.arange(5), jnp.ones((300, 300)), jnp.zeros(3, "bfloat16")):
        back = round_trip(serializer, x)
        assert back.dtype == x.dtype and (back == x).all()


def values(array_):
    return array_.tolist()


def test_standard_library_arrays_are_equal_after_serialization():
    for x in (array.array("d", [1.5, 2]), memoryview(b"abc"), memoryview(bytes(8)).cast("h")[::2], (ctypes.c_int * 3)(1, 2, 3)):
        assert values(round_trip(SAFE, x)) == list(x)
    x = memoryview(array.array("f", range(6))).cast("B").cast("f", (2, 3))
    assert values(round_trip(SAFE, x)) == [[0, 1, 2], [3, 4, 5]]


def test_receiver_without_numpy_and_torch_can_read_arrays(monkeypatch):
    """A receiver must be able to read arrays with neither NumPy nor torch."""
    head, buffers = encode(SAFE, [memoryview(array.array("f", range(6))).cast("B").cast("f", (2, 3)), array.array("d"), b""])
    bfloat16 = b"a" + b"o" + b"\x08bfloat16" + b"\0" + b"\0" + struct.pack("<Q", 2) + b"\0\0"
    for name in ("numpy", "torch", "ml_dtypes"):
        monkeypatch.setitem(sys.modules, name, None)
    matrix, empty, _ = decode(SAFE, head, buffers)
    assert type(matrix) is memoryview and matrix.tolist() == [[0, 1, 2], [3, 4, 5]] and not matrix.readonly
    assert empty.tolist() == [] and empty.format == "d"
    with pytest.raises(dldist.DistError, match="received an array of bfloat16: no library for it; install NumPy"):
        decode(SAFE, bfloat16, [])


# ---- no copies


@need("numpy")
@both
def test_arrays_in_objects_are_sent_and_received_without_copies(serializer):
    numpy = pytest.importorskip("numpy")
    x = numpy.arange(LARGE)
    buffers = serializer.write([x, "and"], io.BytesIO())
    assert [numpy.frombuffer(buffer, "u1").ctypes.data for buffer in buffers] == [x.ctypes.data]
    head, (copy,) = encode(serializer, [x, "and"])
    back = decode(serializer, head, [copy])[0]
    assert back.ctypes.data == numpy.frombuffer(copy, "u1").ctypes.data
    assert len(head) < 500


@need("torch")
@both
def test_torch_tensors_in_objects_are_sent_and_received_without_copies(serializer):
    torch, numpy = pytest.importorskip("torch"), pytest.importorskip("numpy")
    x = torch.arange(LARGE)
    buffers = serializer.write([x], io.BytesIO())
    assert [numpy.frombuffer(buffer, "u1").ctypes.data for buffer in buffers] == [x.data_ptr()]
    head, (copy,) = encode(serializer, [x])
    back = decode(serializer, head, [copy])[0]
    assert back.data_ptr() == numpy.frombuffer(copy, "u1").ctypes.data


@need("numpy")
def test_small_arrays_are_sent_together_with_the_object():
    numpy = pytest.importorskip("numpy")
    for serializer in (SAFE, PICKLE):
        head, buffers = encode(serializer, numpy.zeros(codec.IN_BAND_BYTES - 1, "u1"))
        assert not buffers and len(head) >= codec.IN_BAND_BYTES
        assert len(encode(serializer, numpy.zeros(codec.IN_BAND_BYTES, "u1"))[1]) == 1


# ---- objects that "safe" refuses


class Thing:
    pass


class Bytes(bytes):
    pass


class Array(array.array):
    pass


class Unspeakable(Exception):
    def __str__(self):
        raise ZeroDivisionError

    def __reduce__(self):
        raise self


class Zone(type(UTC).__base__):
    """A time zone of the program."""


ZONE = b"TZif" + bytes(16) + struct.pack(">6I", 0, 0, 0, 0, 1, 4) + bytes(6) + b"UTC\0"


def test_error_about_an_unsupported_object_names_its_type_and_place():
    point = collections.namedtuple("point", "x")  # noqa: PYI024
    for obj, where, name in [
        (Thing(), "obj", "test_serializers.Thing"),
        ({"a": [0, 1, 2, Thing()]}, "obj['a'][3]", "test_serializers.Thing"),
        ({"a": {1: ({2: threading.Lock()},)}}, "obj['a'][1][0][2]", "_thread.lock"),
        ({(1, 2): len}, "obj[<tuple>]", "builtins.builtin_function_or_method"),
        ({Thing(): 1}, "obj.keys()", "test_serializers.Thing"),
        ([{Thing()}], "obj[0]{...}", "test_serializers.Thing"),
        ({"k" * 100: Thing}, f"obj['{'k' * 36}...]", "builtins.type"),
        (point(1), "obj", "test_serializers.point"),
        (collections.defaultdict(list), "obj", "collections.defaultdict"),
        (slice(3), "obj", "builtins.slice"),
        (Bytes(b"x"), "obj", "test_serializers.Bytes"),
        (Array("i", [1]), "obj", "test_serializers.Array"),
    ]:
        with pytest.raises(TypeError) as caught:
            round_trip(SAFE, obj)
        assert str(caught.value).startswith(f"{where} has an unsupported type for serializer='safe': got {name};"), caught.value
        is_allowable = isinstance(obj, point)
        assert ("call dldist.allow_classes(point) on all ranks; or serializer='pickle'" in str(caught.value)) == is_allowable
    for obj, where in [
        ({"now": datetime(2024, 1, 1, tzinfo=Zone())}, "obj['now'].tzinfo has an unsupported type"),
        ([Config(1.0, Point(0, Open.DOOR))], "obj[0].origin.y has an unsupported type for serializer='safe': got test_serializers.Open; call"),
    ]:
        with pytest.raises(TypeError) as caught:
            round_trip(SAFE, obj)
        assert str(caught.value).startswith(where), caught.value
    with pytest.raises(ValueError, match=r"^obj\[0\] cannot be sent with serializer='safe': a Fraction has numbers that are too large"):
        round_trip(SAFE, [Fraction(1, 1 << 70_000)])
    with pytest.raises(ValueError, match=r"^obj cannot be sent with serializer='safe': invalid parts of ZoneInfo: got NoneType"):
        round_trip(SAFE, ZoneInfo.from_file(io.BytesIO(ZONE)))


def test_depth_of_serialized_objects_is_limited():
    for obj in (nested(MAX_DEPTH + 1), nested(100_000)):
        with pytest.raises(ValueError, match="expected at most 100 containers around it"):
            round_trip(SAFE, obj)
    cycle = {}
    cycle["me"] = cycle
    with pytest.raises(ValueError, match="a cycle"):
        round_trip(SAFE, cycle)


@need("numpy")
def test_arrays_that_cannot_be_serialized_are_rejected():
    numpy = pytest.importorskip("numpy")
    for x, why in [
        (numpy.zeros(2, ">i4"), "dtype '>i4' (int32), which serializer='safe' does not take; pass x.astype('int32')"),
        (numpy.zeros(2, ">U4"), "dtype '>U4'"),
        (numpy.array([Thing()]), "(object), which serializer='safe' does not take; convert it to a list or another dtype, or pass"),
        (numpy.zeros(2, [("a", "i4")]), "which serializer='safe' does not take"),
        (numpy.str_("a\0"), "ends with a null character, which NumPy's arrays do not keep; pass a str or bytes"),
        (numpy.ma.zeros(3), "numpy.ma.MaskedArray; serializer='pickle'"),
        (array.array(TEXT, "ab"), "is an unsupported buffer: got a array"),
    ]:
        with pytest.raises(TypeError) as caught:
            round_trip(SAFE, ["x", x])
        assert str(caught.value).startswith("obj[1] ") and why in str(caught.value), caught.value


def test_unknown_serializers_are_rejected():
    for name in ("json", "", None, 2):
        with pytest.raises(ValueError, match="argument 'serializer' is unknown: got .*, expected 'safe' or 'pickle'"):
            codec.find(name)


# ---- hostile bytes


def samples():
    yield list(PLAIN.values())[:-2]
    yield nested(MAX_DEPTH)
    yield list(VALUES.values())
    yield [array.array("d", [1.0, 2.0]), bytes(LARGE), array.array("i", range(LARGE)), (b"", {"x": {frozenset([1])} and {1}})]
    if importlib.util.find_spec("numpy"):
        import numpy

        yield [numpy.array(["ab", "c"]), numpy.zeros((2, 2), "S3"), numpy.zeros(3, "M8[25s]"), numpy.timedelta64(1, "ns"), numpy.str_("x")]
        yield {"a": numpy.ones((2, 3), "f4"), "s": numpy.float64(1), "b": numpy.zeros((200, 300), "complex64")}
    if importlib.util.find_spec("torch"):
        import torch

        yield [torch.ones(3, 2), torch.zeros(LARGE, dtype=torch.bfloat16)]


def read_hostile(head, buffers):
    """Decoding must yield an object or a DistError, and nothing else, and use little memory."""
    try:
        decode(SAFE, head, buffers)
    except dldist.DistError as error:
        assert str(error).startswith(("malformed", "cannot read an object"))
        return True
    return False


@pytest.mark.deadline(60)
@pytest.mark.exhaustive
def test_changed_bytes_of_a_serialized_object_end_in_an_error():
    rng = random.Random(4)
    refused = tried = 0
    for sample in samples():
        whole, buffers = encode(SAFE, sample)
        # All bytes of a small object, and some of a large one.
        places = range(len(whole)) if len(whole) < 3000 else sorted(rng.sample(range(len(whole)), 1500))
        for place in places:
            flipped = bytearray(whole)
            for value in (whole[place] ^ 1, whole[place] ^ 0xFF, rng.randrange(256), ord("l"), ord("a")):
                flipped[place] = value
                refused += read_hostile(flipped, buffers)
            refused += read_hostile(whole[:place], buffers)
            refused += read_hostile(whole[:place] + whole[place + 1 :], buffers)
            tried += 7
        assert read_hostile(whole + b"N", buffers)
        if buffers:
            assert read_hostile(whole, buffers[:-1])
            assert read_hostile(whole, [*buffers[:-1], buffers[-1][1:]])
        assert read_hostile(whole, [*buffers, b""])
    assert refused > tried / 4


def test_random_bytes_instead_of_a_serialized_object_end_in_an_error():
    rng = random.Random(5)
    tags = b"NTFiIfcDsbBltSZdOav" + bytes(8)
    for _ in range(5000):
        length = rng.randrange(60)
        read_hostile(bytes(rng.choice(tags) if rng.random() < 0.7 else rng.randrange(256) for _ in range(length)), [])


def test_false_sizes_in_a_serialized_object_allocate_no_memory():
    huge = struct.pack("<Q", 1 << 40)
    lies = [tag + huge for tag in (b"l", b"t", b"S", b"Z", b"d", b"O", b"s", b"I", b"b\0", b"b\1", b"B\0")]
    lies += [b"l" + struct.pack("<Q", 1) * 1 + b"l" + huge, (b"l" + struct.pack("<Q", 1)) * (1 << 16)]
    lies += [b"an\x07float32\x01" + huge + b"\0" + huge, b"at\x07float32\x02" + huge + bytes(8) + b"\0" + bytes(8)]
    tracemalloc.start()
    try:
        for lie in lies:
            read_hostile(lie, [])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 << 20


def value(name, *parts):
    """Return the bytes of a value with these parts, which the sender may choose freely."""
    head = io.BytesIO()
    for part in parts:
        SAFE.write(part, head)
    return b"v" + struct.pack("<Q", len(name)) + name.encode() + struct.pack("<Q", len(parts)) + head.getvalue()


def test_serialized_values_out_of_range_are_malformed():
    zero = timedelta(0)
    for head in [
        value("date", 0),
        value("date", 1 << 62),
        value("date", 1 << 80),
        value("date", True),
        value("date"),
        value("time", 24, 0, 0, 0, 0, None),
        value("time", 0, 0, 0, 0, 2, None),
        value("time", 0, 0, 0, 0, 0, 5),
        value("time", 0, 0, 0, 0, 0),
        value("datetime", 1, 0, 0, 0, 1 << 70, 0, None),
        value("timezone", timedelta(1), None),
        value("timezone", zero, 5),
        value("timezone", None, None),
        value("ZoneInfo", "../../etc/passwd"),
        value("ZoneInfo", "/etc/localtime"),
        value("ZoneInfo", "Europe"),
        value("ZoneInfo", "no/such zone"),
        value("ZoneInfo", "a\0b"),
        value("ZoneInfo", "\udcff"),
        value("Decimal", "1e" + "9" * 30),
        value("Decimal", "one"),
        value("Decimal", 1),
        value("Fraction", 1, 0),
        value("Fraction", "1e999999999", 1),
        value("Fraction", 1 << 66_000, 3),
        value("PosixPath", b"a"),
        value("UUID", b"short"),
        value("range", 0, 1, 0),
        value("range", 0.0, 1, 1),
        value("test_serializers.Color", "BLUE"),
        value("test_serializers.Color", "__class__"),
        value("test_serializers.Color", 1),
        value("test_serializers.Access", 1 << 90),
        value("test_serializers.Point(x,y)", 1),
        value("test_serializers.Config(lr,origin)", 1, 2, 3),
        b"S" + struct.pack("<Q", 1) + value("Decimal", "sNaN"),
        b"S" + struct.pack("<Q", 1) + value("test_serializers.Point(x,y)", 1, [2]),
        (b"v" + struct.pack("<Q", 27) + b"test_serializers.Point(x,y)" + struct.pack("<Q", 2) + b"N") * (MAX_DEPTH + 1),
        b"an\x03<U1\x01" + struct.pack("<Q", 1) + b"\0" + struct.pack("<Q", 4) + b"\xff\xff\xff\x7f",
        b"an\x07<M8[0s]\x01" + struct.pack("<Q", 1) + b"\0" + struct.pack("<Q", 8) + bytes(8),
        b"an\x07<M8[xx]\x01" + struct.pack("<Q", 1) + b"\0" + struct.pack("<Q", 8) + bytes(8),
        b"an\x03<U0\x01" + struct.pack("<Q", 1 << 60) + b"\0" + bytes(8),
    ]:
        assert read_hostile(head, []), head
    assert decode(SAFE, value("UUID", bytes(16)), []) == uuid.UUID(int=0)


def test_nested_values_of_any_kind_are_equal_after_serialization():
    hypothesis = pytest.importorskip("hypothesis")
    st = hypothesis.strategies
    zones = st.sampled_from([None, UTC, timezone(timedelta(minutes=-90), "x")])
    decimals = st.decimals(allow_nan=False).filter(lambda value: value.is_finite())
    numbers = [st.integers(), st.floats(allow_nan=False), st.fractions(), decimals]
    moments = [st.dates(), st.times(timezones=zones), st.datetimes(timezones=zones), st.timedeltas()]
    leaves = st.one_of(*numbers, *moments, st.text(), st.binary(), st.uuids(), st.sampled_from([*Color, *Level, Access(3), range(3), None]))
    paths = st.builds(PurePosixPath, st.text(alphabet="ab./"))

    def nest(inner):
        made = [st.builds(Point, inner, inner), st.builds(Config, st.floats(allow_nan=False), inner)]
        return st.one_of(st.lists(inner), st.dictionaries(st.one_of(leaves, paths), inner), st.tuples(inner, paths), *made)

    @hypothesis.settings(max_examples=200, deadline=None, database=None, suppress_health_check=list(hypothesis.HealthCheck))
    @hypothesis.given(st.recursive(leaves, nest, max_leaves=12))
    def check(obj):
        back = round_trip(SAFE, obj)
        assert back == obj and repr(back) == repr(obj)

    check()


def test_serialized_dict_with_an_unhashable_key_is_malformed():
    one = struct.pack("<Q", 1)
    for head in (b"d" + one + b"l" + bytes(8) + b"N", b"S" + one + b"d" + bytes(8), b"Z" + one + b"B\0" + bytes(8)):
        assert read_hostile(head, [])


# ---- frames


def receive(prefix, pieces=()):
    incoming = Incoming(memoryview(prefix), 3, "call")
    for index in incoming.rounds:
        place = incoming.buffer_for(index)
        if index < len(pieces) and len(place) == len(pieces[index]):
            place[:] = pieces[index]
    return incoming


def frame_of(obj):
    outgoing = Outgoing(obj, SAFE)
    return outgoing.prefix(outgoing.rounds), [bytes(outgoing.piece(index)) for index in range(outgoing.rounds.stop)]


def test_objects_of_every_size_are_decoded_from_their_messages():
    for obj in (None, "x" * 440, "x" * 500, b"x" * LARGE, [b"x" * LARGE, bytearray(LARGE + 1), "x" * 500], [bytes(LARGE)] * 70):
        prefix, pieces = frame_of(obj)
        assert len(prefix) == PREFIX_BYTES
        incoming = receive(prefix, pieces)
        assert incoming.failure() is None and incoming.mismatch(SAFE) is None
        assert incoming.read(SAFE) == obj


def test_flipped_bit_in_the_header_of_an_object_ends_in_an_error():
    for obj in ("x", "x" * 500, [bytes(LARGE), "x" * 500]):
        prefix, pieces = frame_of(obj)
        for place in range(32):
            for bit in range(8):
                flipped = bytearray(prefix)
                flipped[place] ^= 1 << bit
                try:
                    incoming = Incoming(memoryview(flipped), 3, "call")
                    if incoming._head_bytes + incoming._buffer_bytes > 1 << 24:
                        continue  # the most that a rank may announce
                    incoming = receive(flipped, pieces)
                    if incoming.failure() is None and incoming.mismatch(SAFE) is None:
                        incoming.read(SAFE)
                except dldist.DistError as error:
                    assert error.rank in (3, None)


@pytest.mark.parametrize("has_company", [False, True])
def test_header_of_an_object_that_announces_too_many_messages_is_malformed(has_company):
    for obj in ("x", "x" * 500, [bytes(LARGE)] * 3):
        outgoing = Outgoing(obj, SAFE)
        more = range(0, frames.ROUNDS_MAX + 1)
        if has_company:
            assert Incoming(memoryview(outgoing.prefix(more)), 3, "call", True).rounds == more
        for rounds in (range(0, frames.ROUNDS_MAX + 2), range(0, (1 << 32) - 1), *([] if has_company else [more])):
            with pytest.raises(dldist.DistError, match="rank 3 sent a malformed object"):
                Incoming(memoryview(outgoing.prefix(rounds)), 3, "call", has_company)


def test_header_of_an_object_that_announces_too_little_data_is_malformed():
    prefix = bytearray(frame_of([bytes(LARGE)] * 3)[0])
    prefix[24:32] = struct.pack("<Q", 3 * codec.IN_BAND_BYTES - 1)
    with pytest.raises(dldist.DistError, match="rank 3 sent a malformed object"):
        Incoming(memoryview(prefix), 3, "call")


def test_object_with_too_many_arrays_is_rejected(monkeypatch):
    monkeypatch.setattr(frames, "ROUNDS_MAX", 2)
    outgoing = Outgoing([bytes(LARGE)] * 3, SAFE)
    assert isinstance(outgoing.error, ValueError) and not outgoing.rounds
    text = str(receive(outgoing.prefix(outgoing.rounds)).failure())
    assert "too many arrays of at least 65536 bytes: got 3, expected at most 2" in text


def test_error_of_serialization_is_sent_to_the_receiver():
    outgoing = Outgoing({"\u20ac" * 1000: [Thing()]}, SAFE)
    assert isinstance(outgoing.error, TypeError) and not outgoing.rounds
    failure = receive(outgoing.prefix(outgoing.rounds)).failure()
    assert str(failure).startswith("call(): rank 3 could not send its object: TypeError: obj['\u20ac") and failure.rank == 3


def test_error_of_serialization_is_sent_even_if_it_has_no_text():
    outgoing = Outgoing(Unspeakable(), PICKLE)
    assert isinstance(outgoing.error, Unspeakable)
    failure = receive(outgoing.prefix(outgoing.rounds)).failure()
    assert str(failure) == "call(): rank 3 could not send its object: Unspeakable, whose text could not be made"
