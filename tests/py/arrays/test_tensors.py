"""The objects accepted as tensors, how they are read, and that everything borrowed is released."""

import array
import contextlib
import ctypes
import gc
import struct
import sys
import weakref

import dlpack_producer as dl
import pytest
from dldist import _core

NATIVE_FORMATS = {
    "?": "bool",
    "b": "int8",
    "B": "uint8",
    "c": "uint8",
    "h": "int16",
    "H": "uint16",
    "i": "int32",
    "I": "uint32",
    "l": f"int{8 * struct.calcsize('l')}",
    "L": f"uint{8 * struct.calcsize('L')}",
    "q": "int64",
    "Q": "uint64",
    "n": f"int{8 * struct.calcsize('n')}",
    "N": f"uint{8 * struct.calcsize('N')}",
    "f": "float32",
    "d": "float64",
}
OURS, OTHERS = ("<", ">") if sys.byteorder == "little" else (">", "<")


def see(tensor, writable=False):
    return _core._describe_tensor(tensor, writable)


def floats(*values):
    return bytearray(struct.pack(f"{len(values)}f", *values))


def copy_out(tensor, nbytes):
    """Return the elements in row-major order, as raw bytes of float32."""
    packed = memoryview(bytearray(nbytes)).cast("f")
    _core._copy_tensor(packed, tensor)
    return packed.tolist()


def test_ctrl_c_while_an_attribute_of_a_tensor_is_looked_up_is_raised():
    """Lookups, as of a class's exchange API, run an object's own code. Exceptions other than Ctrl-C
    mean that it has none."""

    class Meta(type):
        def __getattr__(cls, name):
            raise error

    class Odd(metaclass=Meta):
        pass

    error = RuntimeError
    with pytest.raises(TypeError):
        see(Odd())
    error = KeyboardInterrupt

    class Interrupted(metaclass=Meta):
        pass

    with pytest.raises(KeyboardInterrupt):  # noqa: PT012  the signal may be handled after the call
        with contextlib.suppress(TypeError):
            see(Interrupted())
        for _ in range(10):
            pass


# The buffer protocol


@pytest.mark.parametrize("code", NATIVE_FORMATS)
def test_buffers_of_native_formats_are_read_as_their_dtypes(code):
    view = memoryview(bytearray(3 * struct.calcsize(code))).cast(code)
    seen = see(view, True)
    assert (seen["dtype"], seen["shape"], seen["route"]) == (NATIVE_FORMATS[code], (3,), "buffer")
    assert seen["strides"] == (struct.calcsize(code),)
    assert not seen["is_readonly"] and seen["is_contiguous"] and seen["device"] == "cpu"


@pytest.mark.parametrize("code", "bBhHiIlLqQfd")
def test_standard_library_arrays_are_tensors(code):
    assert see(array.array(code, [1, 2]), True)["count"] == 2


@pytest.mark.parametrize(
    "kind,dtype",
    [
        (ctypes.c_float, "float32"),
        (ctypes.c_double, "float64"),
        (ctypes.c_bool, "bool"),
        (ctypes.c_char, "uint8"),
        (ctypes.c_byte, "int8"),
        (ctypes.c_short, "int16"),
        (ctypes.c_int, "int32"),
        (ctypes.c_long, f"int{8 * ctypes.sizeof(ctypes.c_long)}"),
        (ctypes.c_ulonglong, "uint64"),
        (ctypes.c_size_t, f"uint{8 * ctypes.sizeof(ctypes.c_size_t)}"),
    ],
)
def test_ctypes_arrays_are_tensors(kind, dtype):
    seen = see((kind * 3 * 2)(), True)
    assert (seen["dtype"], seen["shape"], seen["is_contiguous"]) == (dtype, (2, 3), True)
    assert see(kind(), True)["shape"] == ()


def test_bytes_objects_are_rejected_as_outputs():
    assert see(b"abc")["is_readonly"]
    with pytest.raises(ValueError, match=r"argument 'object' is an output: got a read-only bytes, expected a writable"):
        see(b"abc", True)
    with pytest.raises(ValueError, match="got a read-only memoryview"):
        see(memoryview(bytearray(4)).toreadonly(), True)


def test_buffers_of_another_byte_order_are_rejected():
    kind = ctypes.c_float.__ctype_be__ if sys.byteorder == "little" else ctypes.c_float.__ctype_le__
    with pytest.raises(TypeError, match=f"a non-native byte order: got format '{OTHERS}f', expected .*; convert it first"):
        see((kind * 2)())


@pytest.mark.parametrize("kind", [ctypes.c_longdouble, ctypes.c_void_p, ctypes.c_wchar, ctypes.py_object])
def test_buffers_of_unsupported_formats_are_rejected(kind):
    with pytest.raises(TypeError, match="has an unsupported dtype"):
        see((kind * 2)())


def test_buffers_of_c_structures_are_rejected():
    class Pair(ctypes.Structure):
        _fields_ = [("a", ctypes.c_int), ("b", ctypes.c_float)]

    with pytest.raises(TypeError, match="has an unsupported dtype"):
        see((Pair * 2)())


def test_strided_buffers_are_copied_in_order():
    memory = memoryview(bytearray(range(8)))
    seen = see(memory[6::-2], True)
    assert (seen["shape"], seen["strides"], seen["is_contiguous"]) == ((4,), (-2,), False)
    out = bytearray(4)
    _core._copy_tensor(out, memory[6::-2])
    assert out == bytes([6, 4, 2, 0])
    _core._copy_tensor(memory[::2], b"wxyz")
    assert bytes(memory) == b"w\x01x\x03y\x05z\x07"


def test_empty_and_scalar_buffers_count_as_contiguous():
    seen = see(bytearray(), True)
    assert (seen["count"], seen["is_contiguous"]) == (0, True)
    seen = see(memoryview(bytearray(4)).cast("f", ()), True)
    assert (seen["count"], seen["shape"], seen["is_contiguous"]) == (1, (), True)
    seen = see(memoryview(bytearray(4)).cast("f", (1, 1, 1)), True)
    assert (seen["count"], seen["is_contiguous"]) == (1, True)
    _core._copy_tensor(bytearray(), b"")


def test_unaligned_buffers_are_copied():
    memory = memoryview(bytearray(9))[1:].cast("f")
    seen = see(memory, True)
    assert seen["is_contiguous"] == (seen["data"] % 4 == 0)
    _core._copy_tensor(memory, array.array("f", [1, 2]))
    assert memory.tolist() == [1, 2]


def test_buffers_are_released_after_the_call():
    memory = bytearray(4)
    see(memory, True)
    with pytest.raises(ValueError):
        _core._copy_tensor(memory, bytes(3))
    with pytest.raises(TypeError):
        _core._copy_tensor(memory, 3)
    memory.append(0)  # BufferError while it is exported


def test_released_memoryviews_are_rejected():
    view = memoryview(bytearray(4))
    view.release()
    with pytest.raises(ValueError, match="cannot be exported as a buffer: operation forbidden on released") as caught:
        see(view)
    assert isinstance(caught.value.__cause__, ValueError)


@pytest.mark.parametrize("thing", [3, 2.5, True, 1j, None, [1.0, 2.0], (1,), "text", {}, object(), dl.Producer])
def test_objects_that_are_no_tensors_are_rejected(thing):
    wanted = r"_describe_tensor\(\): argument 'object' must be a tensor \(an object with __dlpack__ or the buffer"
    with pytest.raises(TypeError, match=wanted + f".*, not {type(thing).__name__}$"):
        see(thing)


# DLPack by capsules

PRODUCERS = [dl.Producer, dl.Legacy, dl.Old]


@pytest.mark.parametrize("kind", PRODUCERS)
def test_dlpack_capsules_are_read_and_marked_as_used(kind):
    producer = kind(floats(1, 2, 3, 4, 5, 6), (2, 3))
    seen = see(producer, True)
    assert (seen["dtype"], seen["shape"], seen["strides"]) == ("float32", (2, 3), (12, 4))
    assert seen["is_contiguous"] and not seen["is_readonly"] and seen["device"] == "cpu"
    assert seen["route"] == ("dlpack" if kind is dl.Producer else "dlpack_legacy")
    assert producer.deleted == 1
    assert producer.requested == ([{}] if kind is dl.Old else [{"max_version": (1, 3)}])
    [capsule] = producer.capsules
    assert dl.capsule_name(capsule) == ("used_dltensor_versioned" if kind is dl.Producer else "used_dltensor")


@pytest.mark.parametrize("kind", PRODUCERS)
def test_data_is_copied_from_and_into_strided_dlpack_tensors(kind):
    source = kind(floats(1, 2, 3, 4, 5, 6), (3, 2), strides=(1, 3))
    assert copy_out(source, 24) == [1, 4, 2, 5, 3, 6]
    target = kind(floats(0, 0, 0, 0), (2,), strides=(2,), byte_offset=4)
    _core._copy_tensor(target, array.array("f", [7, 8]))
    assert target.memory == floats(0, 7, 0, 8)
    assert (source.deleted, target.deleted) == (1, 1)


@pytest.mark.parametrize(
    "dtype,name",
    [
        ((dl.BOOL, 8), "bool"),
        ((dl.INT, 8), "int8"),
        ((dl.INT, 16), "int16"),
        ((dl.INT, 32), "int32"),
        ((dl.INT, 64), "int64"),
        ((dl.UINT, 8), "uint8"),
        ((dl.UINT, 16), "uint16"),
        ((dl.UINT, 32), "uint32"),
        ((dl.UINT, 64), "uint64"),
        ((dl.FLOAT, 16), "float16"),
        ((dl.FLOAT, 32), "float32"),
        ((dl.FLOAT, 64), "float64"),
        ((dl.BFLOAT, 16), "bfloat16"),
        ((dl.FLOAT8_E4M3FN, 8), "float8_e4m3fn"),
        ((dl.FLOAT8_E5M2, 8), "float8_e5m2"),
        ((dl.COMPLEX, 64), "complex64"),
        ((dl.COMPLEX, 128), "complex128"),
    ],
)
def test_dlpack_dtypes_are_recognised(dtype, name):
    seen = see(dl.Producer(bytearray(64), (4,), dtype=dtype))
    assert (seen["dtype"], seen["strides"]) == (name, (dtype[1] // 8,))


UNUSABLE = [
    (dict(lanes=4), TypeError, "has an unsupported dtype: got vectors of 4 lanes"),
    (dict(lanes=0), TypeError, "has an unsupported dtype: got vectors of 0 lanes"),
    (dict(dtype=(13, 8)), TypeError, "has an unsupported dtype: got 8 bits of type code 13"),
    (dict(dtype=(dl.FLOAT, 128)), TypeError, "has an unsupported dtype: got 128 bits of type code 2"),
    (dict(dtype=(dl.BOOL, 1)), TypeError, "has an unsupported dtype: got 1 bits of type code 6"),
    (dict(shape=(1,) * 33), ValueError, "has a wrong number of dimensions: got 33, expected 0 to 32"),
    (dict(ndim=-1), ValueError, "has a wrong number of dimensions: got -1"),
    (dict(no_shape=True), ValueError, "has 1 dimensions and no shape"),
    (dict(shape=(-1,)), ValueError, "has an impossible shape"),
    (dict(shape=(2**40, 2**40), strides=(0, 0)), ValueError, "has an impossible shape"),
    (dict(shape=(2**40, 2**40)), ValueError, "has strides that do not fit"),
    (dict(shape=(1, 1), strides=(2**62, 1)), ValueError, "has strides that do not fit"),
    (dict(memory=None), ValueError, "has 2 elements and no memory"),
]


@pytest.mark.parametrize("kind", PRODUCERS)
@pytest.mark.parametrize("change,error,text", UNUSABLE, ids=[text for _, _, text in UNUSABLE])
def test_unusable_dlpack_capsules_are_released(kind, change, error, text):
    producer = kind(**{"memory": floats(1, 2), "shape": (2,), **change})
    with pytest.raises(error, match=r"_describe_tensor\(\): argument 'object' " + text):
        see(producer)
    assert producer.deleted == 1
    assert dl.capsule_name(producer.capsules[0]).startswith("used_dltensor")


def test_dlpack_capsule_of_an_unknown_major_version_is_released():
    producer = dl.Producer(floats(1), (1,))
    producer.version = (2, 7)
    with pytest.raises(ValueError, match="has an unsupported version of DLPack: got 2.7, expected 1.x or 0.x"):
        see(producer)
    assert producer.deleted == 1
    producer.version = (1, 99)
    assert see(producer)["count"] == 1
    assert producer.deleted == 2


@pytest.mark.parametrize("kind", PRODUCERS)
def test_dlpack_capsule_without_a_deleter_is_accepted(kind):
    producer = kind(floats(1), (1,))
    producer.has_deleter = False
    assert see(producer)["count"] == 1


@pytest.mark.parametrize("kind", PRODUCERS)
def test_empty_and_scalar_dlpack_tensors_are_accepted(kind):
    seen = see(kind(None, (0, 3)), True)
    assert (seen["count"], seen["shape"], seen["is_contiguous"]) == (0, (0, 3), True)
    seen = see(kind(None, (2**40, 0, 2**40), strides=(0, 0, 0)), True)
    assert (seen["count"], seen["is_contiguous"]) == (0, True)
    scalar = kind(floats(5), ())
    assert (see(scalar, True)["count"], copy_out(scalar, 4)) == (1, [5])


def test_strides_of_dimensions_of_size_one_do_not_matter():
    assert see(dl.Producer(floats(1, 2), (1, 2, 1), strides=(0, 1, -77)), True)["is_contiguous"]


def test_read_only_dlpack_tensor_is_rejected_as_an_output():
    producer = dl.Producer(floats(1), (1,), flags=dl.READ_ONLY)
    assert see(producer)["is_readonly"]
    with pytest.raises(ValueError, match="is an output: got a read-only Producer"):
        see(producer, True)
    assert producer.deleted == 2


def test_dlpack_tensor_that_is_a_copy_is_rejected_as_an_output():
    producer = dl.Producer(floats(1), (1,), flags=dl.IS_COPIED)
    assert see(producer)["count"] == 1
    with pytest.raises(ValueError, match="is an output: got a copy"):
        see(producer, True)
    assert producer.deleted == 2


def test_tensor_with_overlapping_elements_is_rejected_as_an_output():
    producer = dl.Producer(floats(1, 2), (2, 3), strides=(1, 0))
    assert copy_out(producer, 24) == [1, 1, 1, 2, 2, 2]
    with pytest.raises(ValueError, match="got stride 0 in dimension 1"):
        see(producer, True)
    assert producer.deleted == 2


@pytest.mark.parametrize("package,kind", [("jaxlib._jax", dl.Legacy), ("jax", dl.Old), ("tensorflow.python", dl.Old)])
def test_arrays_of_immutable_libraries_are_rejected_as_outputs(package, kind):
    immutable = type("ArrayImpl", (kind,), {"__module__": package})(floats(1), (1,))
    assert see(immutable)["is_readonly"]
    name = package.split("lib")[0].split(".")[0]
    wanted = rf"got an immutable array of {name} \(ArrayImpl\), expected a writable array"
    with pytest.raises(ValueError, match=wanted):
        see(immutable, True)
    assert immutable.deleted == 2
    mutable = type("Array", (kind,), {"__module__": "jaxtyping"})(floats(1), (1,))
    assert not see(mutable, True)["is_readonly"]


@pytest.mark.parametrize(
    "device,name,is_cpu",
    [
        ((dl.CUDA, 1), "cuda:1", False),
        ((dl.CUDA_HOST, 0), "cuda_host:0", True),
        ((10, 2), "rocm:2", False),
        ((13, 0), "cuda_managed:0", False),
        ((5, 3), "device type 5:3", False),
        ((99, 0), "device type 99:0", False),
        ((-1, 0), "device type -1:0", False),
    ],
)
def test_only_tensors_in_cpu_memory_are_copied(device, name, is_cpu):
    producer = dl.Producer(floats(1), (1,), device_type=device[0], device_id=device[1])
    seen = see(producer, True)
    assert (seen["device"], seen["device_type"], seen["device_id"]) == (name, *device)
    if is_cpu:
        assert copy_out(producer, 4) == [1]
    else:
        wanted = rf"argument 'src' is on a device without a backend: got {name}, expected cpu"
        with pytest.raises(ValueError, match=wanted):
            copy_out(producer, 4)
    assert producer.deleted == 2


def test_memory_of_other_devices_is_not_read():
    nowhere = dl.Producer(None, (4,), data=0xDEAD000, byte_offset=0x10, device_type=dl.CUDA)
    assert see(nowhere, True)["data"] == 0xDEAD010


def test_exceptions_of_dlpack_methods_are_raised():
    class Refusing:
        def __dlpack__(self, **keywords):
            raise BufferError("no thanks\nwith a long stack trace")

    wanted = r"argument 'object' \(Refusing\) cannot be exported by DLPack: no thanks$"
    with pytest.raises(ValueError, match=wanted) as caught:
        see(Refusing())
    assert isinstance(caught.value.__cause__, BufferError)

    class Once:
        ncalls = 0

        def __dlpack__(self, **keywords):
            Once.ncalls += 1
            raise TypeError("no thanks" if Once.ncalls == 1 else "second call")

    with pytest.raises(ValueError, match="cannot be exported by DLPack: no thanks$"):
        see(Once())
    assert Once.ncalls == 1

    class Interrupted:
        def __dlpack__(self, **keywords):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        see(Interrupted())

    class OutOfMemory:
        def __dlpack__(self, **keywords):
            raise MemoryError

    with pytest.raises(MemoryError):
        see(OutOfMemory())

    class Broken:
        @property
        def __dlpack__(self):
            raise RuntimeError("broken property")

    with pytest.raises(RuntimeError, match="broken property"):
        see(Broken())


def test_cached_knowledge_of_a_tensor_class_is_dropped_with_the_class():
    """Another class of another kind may be allocated at the same address."""

    def make_class(answer):
        class Tensor(dl.Producer):
            def is_neg(self):
                return answer

        return Tensor

    for turn in range(6):
        kind = make_class(turn % 2 == 0)
        tensor = kind(floats(1), (1,))
        if turn % 2 == 0:
            with pytest.raises(ValueError, match="negates"):
                see(tensor)
        else:
            see(tensor)
        died = weakref.ref(kind)
        del kind, tensor
        gc.collect()
        assert died() is None  # nothing here has kept it


def test_used_or_foreign_dlpack_capsules_are_rejected():
    producer = dl.Producer(floats(1), (1,))
    see(producer)

    class Stale:
        def __dlpack__(self, **keywords):
            return producer.capsules[0]

    with pytest.raises(TypeError, match="has a __dlpack__ that does not return a fresh capsule: <capsule object .used_dlt"):
        see(Stale())
    assert producer.deleted == 1

    class Wrong:
        def __dlpack__(self, **keywords):
            return 7

    with pytest.raises(TypeError, match="does not return a fresh capsule: 7"):
        see(Wrong())


# DLPack by the C exchange API


def test_dlpacks_c_exchange_api_is_preferred_to_its_python_method():
    kind, _ = dl.exchange_type()
    producer = kind(floats(1, 2), (2,))
    seen = see(producer, True)
    assert (seen["route"], seen["dtype"], seen["count"]) == ("exchange", "float32", 2)
    assert copy_out(producer, 8) == [1, 2]
    assert (producer.deleted, producer.requested) == (2, [])


def test_dlpacks_c_exchange_api_is_used_only_if_its_version_is_known():
    newer, table = dl.exchange_type(version=(2, 0))
    producer = newer(floats(1), (1,))
    assert see(producer)["route"] == "dlpack"
    _, older = dl.exchange_type(version=(1, 3))
    older.major, older.minor = 1, 3
    table.previous = dl.ctypes.addressof(older)
    assert see(producer)["route"] == "exchange"
    assert producer.deleted == 2


def test_failure_of_dlpacks_c_exchange_api_falls_back_to_the_python_method():
    kind, _ = dl.exchange_type(fails=True)
    producer = kind(floats(1), (1,))
    assert see(producer)["route"] == "dlpack"
    assert producer.deleted == 1


def test_malformed_c_exchange_api_of_dlpack_is_ignored():
    kind = type("Odd", (dl.Producer,), {"__dlpack_c_exchange_api__": 3})
    assert see(kind(floats(1), (1,)))["route"] == "dlpack"


def test_tensors_from_dlpacks_c_exchange_api_are_released():
    kind, _ = dl.exchange_type()
    for change in (dict(lanes=2), dict(flags=dl.READ_ONLY), dict(flags=dl.IS_COPIED), dict(ndim=99)):
        producer = kind(floats(1), (1,), **change)
        with pytest.raises((TypeError, ValueError)):
            see(producer, True)
        assert producer.deleted == 1
    producer = kind(floats(1), (1,))
    producer.version = (3, 0)
    with pytest.raises(ValueError, match="DLPack: got 3.0"):
        see(producer)
    assert producer.deleted == 1


@pytest.mark.parametrize("bit,hint", [("is_neg", "resolve_neg"), ("is_conj", "resolve_conj")])
@pytest.mark.parametrize("base", [dl.Producer, dl.Legacy, dl.exchange_type()[0]])
def test_lazily_conjugated_or_negated_tensors_are_rejected(bit, hint, base):
    kind = type("Lazy", (base,), {bit: lambda self: True})
    producer = kind(bytearray(8), (1,), dtype=(dl.COMPLEX, 64))
    with pytest.raises(ValueError, match=hint):
        see(producer)
    assert producer.deleted == 1
    calm = type("Calm", (base,), {bit: lambda self: False})(bytearray(8), (1,), dtype=(dl.COMPLEX, 64))
    assert see(calm)["count"] == 1
    counts = kind(bytearray(8), (1,), dtype=(dl.INT, 64))
    assert see(counts)["count"] == 1


# Lists


def test_lists_of_tensors_are_copied():
    outs = [bytearray(2), bytearray(3)]
    _core._copy_tensors(outs, (b"ab", b"cde"))
    assert outs == [b"ab", b"cde"]
    _core._copy_tensors([], ())


@pytest.mark.parametrize("thing", [bytearray(2), 3, None, "text", iter([b"a"]), {b"a"}])
def test_arguments_that_are_no_list_or_tuple_of_tensors_are_rejected(thing):
    wanted = f"argument 'srcs' must be a list or tuple of tensors, not {type(thing).__name__}"
    with pytest.raises(TypeError, match=wanted):
        _core._copy_tensors([], thing)


def test_wrong_item_of_a_list_is_named_and_all_items_are_released():
    producers = [dl.Producer(floats(i), (1,)) for i in range(3)]
    with pytest.raises(TypeError, match=r"_copy_tensors\(\): argument 'srcs\[3\]' must be a tensor .* not int"):
        _core._copy_tensors([], [*producers, 3, b"never reached"])
    assert [producer.deleted for producer in producers] == [1, 1, 1]
    with pytest.raises(ValueError, match=r"argument 'dsts\[1\]' is an output: got a read-only bytes"):
        _core._copy_tensors([bytearray(1), b"x"], [])


def test_list_of_tensors_may_change_while_it_is_read():
    class Emptying(dl.Producer):
        def __dlpack__(self, **keywords):
            tensors.clear()
            return super().__dlpack__(**keywords)

    producer = Emptying(floats(1), (1,))
    tensors = [producer, bytearray(3), dl.Producer(floats(2), (1,))]
    _core._copy_tensors([], tensors)
    assert (producer.deleted, tensors) == (1, [])


# Copies and leaks


def test_copying_a_tensor_requires_the_same_dtype_and_count():
    with pytest.raises(ValueError, match="got 2 elements of float32, expected 1 of float64"):
        _core._copy_tensor(array.array("d", [0]), array.array("f", [0, 0]))


ROUNDS = 2000


def test_rejected_calls_keep_no_reference_to_their_tensors():
    exchanged, _ = dl.exchange_type()
    producers = [kind(floats(1, 2), (2,)) for kind in (*PRODUCERS, exchanged)]
    memory = bytearray(8)
    objects = [memory, *producers]

    def use_all():
        for thing in objects:
            see(thing, True)
            with pytest.raises(ValueError):
                _core._copy_tensor(thing, b"abc")
            with pytest.raises(TypeError):
                _core._copy_tensors([thing, thing], [3])
        for producer in producers:
            producer.capsules.clear()
            producer.requested.clear()
            producer._keep.clear()

    use_all()
    gc.collect()
    before = [sys.getrefcount(thing) for thing in objects]
    blocks = sys.getallocatedblocks()
    for _ in range(ROUNDS):
        use_all()
    gc.collect()
    assert [sys.getrefcount(thing) for thing in objects] == before
    # Free lists and caches vary; a leak of any object would be one block per round.
    assert sys.getallocatedblocks() - blocks < ROUNDS * 3 // 4
    assert [producer.deleted for producer in producers] == [4 * (1 + ROUNDS)] * 4


# Other libraries


@pytest.fixture
def np():
    return pytest.importorskip("numpy", reason="NumPy is not installed")


def test_numpy_arrays_are_read_as_buffers(np):
    for name in ("bool", "int8", "uint16", "int64", "float16", "float32", "float64", "complex64", "complex128"):
        seen = see(np.zeros((2, 3), name).T, True)
        assert (seen["route"], seen["dtype"], seen["shape"]) == ("buffer", name, (3, 2))
    assert see(np.zeros(2, "longlong"))["dtype"] == "int64"
    assert see(np.zeros(2, OURS + "f4"))["dtype"] == "float32"
    assert see(np.float32(3))["shape"] == ()
    assert see(np.zeros((0, 3)), True)["count"] == 0
    assert see(np.array(3.0), True)["count"] == 1


def test_numpy_views_are_copied_in_order(np):
    array = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    spread = np.broadcast_to(array[:, :1], (2, 3, 4))
    for view in (array[::-1, :, ::2], array.transpose(2, 0, 1), spread, array[1, 1, 1]):
        assert copy_out(view, 4 * view.size) == view.ravel().tolist()
    target = np.zeros((4, 3, 2), np.float32)
    _core._copy_tensor(target.T[::-1], array)
    assert (target.T[::-1] == array).all()


def test_unsupported_numpy_arrays_are_rejected(np):
    with pytest.raises(TypeError, match="non-native byte order"):
        see(np.zeros(2, OTHERS + "f4"))
    with pytest.raises(TypeError, match="has an unsupported dtype"):
        see(np.zeros(2, object))
    with pytest.raises(ValueError, match="cannot be exported by DLPack"):
        see(np.zeros(2, "M8[s]"))
    with pytest.raises(ValueError, match="got a read-only float32"):
        see(np.float32(3), True)
    array = np.zeros(3)
    array.flags.writeable = False
    with pytest.raises(ValueError, match="got a read-only ndarray"):
        see(array, True)
    with pytest.raises(ValueError, match="got stride 0 in dimension 0"):
        see(np.lib.stride_tricks.as_strided(np.zeros(1), (3,), (0,)), True)


def test_unaligned_numpy_arrays_are_copied(np):
    array = np.zeros(9, np.uint8)[1:].view(np.float32)
    assert not see(array, True)["is_contiguous"]
    _core._copy_tensor(array, np.float32([1, 2]))
    assert array.tolist() == [1, 2]


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_arrays_of_ml_dtypes_are_read_with_their_dtype(np, name):
    kind = getattr(pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed"), name)
    array = np.arange(6).astype(kind).reshape(2, 3)
    seen = see(array, True)
    assert (seen["route"], seen["dtype"], seen["shape"]) == ("buffer", name, (2, 3))
    assert seen["data"] == array.ctypes.data and seen["is_contiguous"]
    target = np.zeros((2, 3), kind)
    _core._copy_tensor(target[::-1], array.T.copy().T)
    assert (target[::-1] == array).all()
    array.flags.writeable = False
    assert see(array)["is_readonly"]
    with pytest.raises(ValueError, match="read-only"):
        see(array, True)
    if array.itemsize > 1:
        with pytest.raises(ValueError, match="byte order"):
            # writable, because NumPy 2.0 would refuse a read-only array first
            see(array.copy().view(array.dtype.newbyteorder(OTHERS)))
    before = sys.getrefcount(array)
    for _ in range(100):
        see(array)
    assert sys.getrefcount(array) == before


@pytest.mark.parametrize("name", ["float32", "bool", "complex64", "bfloat16", "float8_e4m3fn"])
@pytest.mark.deadline(90)
def test_jax_arrays_are_rejected_as_outputs(np, name):
    jnp = pytest.importorskip("jax.numpy", reason="JAX is not installed")
    array = jnp.ones((2, 3)).astype(name)
    seen = see(array)
    assert (seen["dtype"], seen["shape"], seen["is_readonly"]) == (name, (2, 3), True)
    with pytest.raises(ValueError, match=r"got an immutable array of jax \(ArrayImpl\), expected a writable array"):
        see(array, True)
    target = np.zeros_like(np.asarray(array))
    _core._copy_tensor(target, array)
    assert (target == np.asarray(array)).all()


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="PyTorch is not installed")


@pytest.mark.torch
def test_torch_tensors_are_read_by_dlpacks_c_exchange_api(torch):
    for name in (
        "bool uint8 int8 int16 int32 int64 uint16 uint32 uint64 float16 bfloat16 float32 float64 complex64 complex128"
        " float8_e4m3fn float8_e5m2"
    ).split():
        tensor = torch.zeros((2, 3), dtype=getattr(torch, name)).t()
        seen = see(tensor, True)
        assert (seen["dtype"], seen["shape"], seen["data"]) == (name, (3, 2), tensor.data_ptr())
        assert not seen["is_contiguous"]
        if hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
            assert seen["route"] == "exchange"
    assert see(torch.tensor(3.0), True)["count"] == 1
    assert see(torch.zeros(0, 3), True)["count"] == 0


@pytest.mark.torch
def test_torch_views_are_copied_in_order(torch):
    source = torch.arange(24.0).reshape(2, 3, 4)
    target = torch.zeros(4, 3, 2)
    _core._copy_tensor(target.permute(2, 1, 0), source)
    assert torch.equal(target.permute(2, 1, 0), source)
    _core._copy_tensor(source[1:, ::2], torch.full((1, 2, 4), 7.0))
    assert source[1, ::2].eq(7).all() and source[1, 1].ne(7).all()


@pytest.mark.torch
def test_torch_parameters_are_written_in_place(torch):
    """Parameters may be reduced in place, as with c10d; without the exchange API PyTorch refuses to
    export them."""
    leaf = torch.nn.Parameter(torch.zeros(2))
    if not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
        with pytest.raises(ValueError, match="detach"):
            see(leaf, True)
        return
    _core._copy_tensor(leaf, torch.ones(2))
    assert leaf.requires_grad and leaf.tolist() == [1, 1]


@pytest.mark.torch
def test_unsupported_torch_tensors_are_rejected(torch):
    numbers = torch.zeros(3, dtype=torch.complex64)
    with pytest.raises(ValueError, match="conj"):
        see(numbers.conj())
    with pytest.raises(ValueError, match="resolve_neg"):
        see(numbers.conj().imag)
    with pytest.raises(ValueError, match="resolve_neg"):
        see(numbers[0].conj().imag)
    assert see(numbers.conj().resolve_conj())["count"] == 3
    for tensor, text in (
        (torch.eye(3).to_sparse(), "layout"),
        (torch.zeros(3, device="meta"), "meta"),
    ):
        with pytest.raises(ValueError, match=rf"argument 'object' \(Tensor\) cannot be exported by DLPack: .*{text}"):
            see(tensor)
    with pytest.raises(TypeError, match="has an unsupported dtype"):
        see(torch.zeros(3, dtype=torch.float8_e5m2fnuz))
    with pytest.raises(ValueError, match="got stride 0 in dimension 0"):
        see(torch.zeros(1).expand(4), True)
    with pytest.raises(TypeError, match="must be a tensor"):
        see(torch.Tensor)


@pytest.mark.torch
def test_torch_tensors_without_memory_are_rejected(torch):
    fake = pytest.importorskip("torch._subclasses.fake_tensor")
    with fake.FakeTensorMode():
        tensor = torch.zeros(3)
        with pytest.raises(ValueError, match="has 3 elements and no memory"):
            see(tensor)


@pytest.mark.torch
def test_reading_torch_tensors_leaks_nothing(torch):
    tensor = torch.zeros(4)
    before = sys.getrefcount(tensor)
    for _ in range(1000):
        see(tensor, True)
        with pytest.raises(ValueError):
            _core._copy_tensor(tensor, b"abc")
    assert sys.getrefcount(tensor) == before
    assert tensor.untyped_storage().resize_(64).nbytes() == 64
