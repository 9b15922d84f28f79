"""The serializer "safe": plain values, arrays, and objects of the kinds that the receiver has.

docs/objects.md describes the format. Imported when first used.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Callable, Iterable
from datetime import timedelta
from functools import partial
from io import BytesIO
from pickle import PickleBuffer
from typing import Any

from dldist._core import DistError
from dldist._objects import arrays, codec, kinds

name = "safe"
number = 1

MAX_DEPTH = 100
"""The maximum nesting depth of containers."""

_COUNT = struct.Struct("<Q")
_INT = struct.Struct("<q")
_IN_BAND, _OUT_OF_BAND = 0, 1

# The first byte of an object is its type. These types have no further data.
_CONSTANTS = {None: b"N", True: b"T", False: b"F"}
# These types' byte is followed by numbers.
_NUMBERS: dict[type, tuple[bytes, struct.Struct, Callable[[Any], tuple[float, ...]]]] = {
    float: (b"f", struct.Struct("<d"), lambda value: (value,)),
    complex: (b"c", struct.Struct("<dd"), lambda value: (value.real, value.imag)),
    timedelta: (b"D", struct.Struct("<qqq"), lambda value: (value.days, value.seconds, value.microseconds)),
}
# These types' byte is followed by memory.
_BYTES: dict[type, bytes] = {bytes: b"b", bytearray: b"B"}
# These types' byte is followed by items, or by keys and values.
_SEQUENCES: dict[type, bytes] = {list: b"l", tuple: b"t", set: b"S", frozenset: b"Z"}
_MAPPINGS: dict[type, bytes] = {dict: b"d", OrderedDict: b"O"}


def write(obj: Any, head: BytesIO) -> list[memoryview]:
    """Write an object of the types in docs/objects.md. A TypeError shows where another type is."""
    writer = _Writer(head)
    try:
        writer.write(obj)
    except _Refused as refused:
        location = "obj" + "".join(reversed(refused.path))
        if len(location) > 120:
            location = f"{location[:60]} ... {location[-50:]}"
        raise refused.kind(f"{location} {refused.reason}") from None
    return writer.buffers


def read(head: memoryview, buffers: list[memoryview]) -> Any:
    """Read an object. Raises DistError if the bytes are malformed."""
    reader = _Reader(head, buffers)
    try:
        obj = reader.read()
    except DistError:
        raise
    except Exception as error:
        # Causes are invalid UTF-8, an unhashable key, or parts that a library rejects.
        raise DistError(f"malformed object: {error} (at byte {reader.position})") from error
    reader.check_end()
    return obj


class _Refused(Exception):
    """Raised if a value cannot be written. `path` leads to the value, from the inside out."""

    def __init__(self, kind: type[Exception], reason: str) -> None:
        self.kind = kind
        self.reason = reason
        self.path: list[str] = []


class _Writer:
    def __init__(self, head: BytesIO) -> None:
        self._put = head.write
        self.buffers: list[memoryview] = []
        self._depth = 0

    def write(self, obj: Any) -> None:
        method = _WRITERS.get(type(obj))
        if method is not None:
            method(self, obj)
        elif (kind := kinds.find(type(obj))) is not None:
            self._parts(obj, kind)
        else:
            self._array(obj)

    def _constant(self, value: bool | None) -> None:
        self._put(_CONSTANTS[value])

    def _int(self, value: int) -> None:
        if -(1 << 63) <= value < 1 << 63:
            self._put(b"i" + _INT.pack(value))
        else:
            nbytes = value.bit_length() // 8 + 1
            self._put(b"I" + _COUNT.pack(nbytes) + value.to_bytes(nbytes, "little", signed=True))

    def _numbers(self, value: Any) -> None:
        tag, layout, numbers_of = _NUMBERS[type(value)]
        self._put(tag + layout.pack(*numbers_of(value)))

    def _str(self, value: str) -> None:
        self._text(b"s", value)

    def _text(self, tag: bytes, value: str) -> None:
        data = value.encode("utf-8", "surrogatepass")
        self._put(tag + _COUNT.pack(len(data)))
        self._put(data)

    def _bytes(self, value: bytes | bytearray) -> None:
        self._put(_BYTES[type(value)])
        self._memory(PickleBuffer(value).raw())

    def _memory(self, raw: memoryview) -> None:
        is_large = raw.nbytes >= codec.IN_BAND_BYTES
        self._put(bytes([_OUT_OF_BAND if is_large else _IN_BAND]) + _COUNT.pack(raw.nbytes))
        if is_large:
            self.buffers.append(raw)
        else:
            self._put(raw)

    def _enter(self) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise _Refused(ValueError, f"is nested too deeply for serializer='safe': expected at most {MAX_DEPTH} containers around it (a cycle?)")

    def _sequence(self, items: Any) -> None:
        self._put(_SEQUENCES[type(items)])
        self._items(items, lambda index: f"[{index}]" if type(items) in (list, tuple) else "{...}")

    def _parts(self, obj: Any, kind: kinds.Kind) -> None:
        try:
            parts = kind.checked(kind.split(obj))
        except (ValueError, AttributeError) as error:
            raise _Refused(ValueError, f"cannot be sent with serializer='safe': {error}") from error
        self._text(b"v", kind.name)
        self._items(parts, lambda index: kind.labels[index])

    def _items(self, items: Any, label_of: Callable[[int], str]) -> None:
        self._enter()
        self._put(_COUNT.pack(len(items)))
        index = 0
        try:
            for item in items:
                self.write(item)
                index += 1
        except _Refused as refused:
            refused.path.append(label_of(index))
            raise
        self._depth -= 1

    def _mapping(self, items: dict[Any, Any]) -> None:
        self._enter()
        self._put(_MAPPINGS[type(items)] + _COUNT.pack(len(items)))
        location = ""
        try:
            for key, value in items.items():
                location = ".keys()"
                self.write(key)
                location = ""
                self.write(value)
        except _Refused as refused:
            refused.path.append(location or f"[{_shorten(key)}]")
            raise
        self._depth -= 1

    def _array(self, obj: Any) -> None:
        try:
            array = arrays.describe(obj)
        except (TypeError, ValueError) as error:
            raise _Refused(type(error), str(error)) from error
        if array is None:
            kind = type(obj)
            allow = f"call dldist.allow_classes({kind.__qualname__}) on all ranks; or " if kinds.is_allowable(kind) else ""
            raise _Refused(
                TypeError,
                f"has an unsupported type for serializer='safe': got {kind.__module__}.{kind.__qualname__}; {allow}serializer='pickle' "
                "accepts any object that can be pickled, but its sender can then run code on the receiver",
            )
        name = array.dtype.encode()
        self._put(b"a" + array.library + bytes([len(name)]) + name + bytes([len(array.shape)]))
        for extent in array.shape:
            self._put(_COUNT.pack(extent))
        self._memory(array.raw)


def _shorten(key: Any) -> str:
    text = repr(key) if type(key) in (str, int, bytes, float, bool) else f"<{type(key).__name__}>"
    return text if len(text) <= 40 else text[:37] + "..."


_WRITERS: dict[type, Callable[[_Writer, Any], None]] = {
    type(None): _Writer._constant,
    bool: _Writer._constant,
    int: _Writer._int,
    str: _Writer._str,
    **dict.fromkeys(_NUMBERS, _Writer._numbers),
    **dict.fromkeys(_BYTES, _Writer._bytes),
    **dict.fromkeys(_SEQUENCES, _Writer._sequence),
    **dict.fromkeys(_MAPPINGS, _Writer._mapping),
}


class _Reader:
    """Reads an object from untrusted bytes. Every count is checked against the remaining bytes."""

    def __init__(self, head: memoryview, buffers: list[memoryview]) -> None:
        self._head = head
        self._buffers = buffers
        self._used = 0
        self._depth = 0
        self.position = 0

    def read(self) -> Any:
        method = _READERS.get(bytes(self._take(1)))
        if method is None:
            raise ValueError("unknown type number")
        return method(self)

    def check_end(self) -> None:
        if self.position != len(self._head) or self._used != len(self._buffers):
            raise DistError(f"malformed object: {len(self._head) - self.position} bytes and {len(self._buffers) - self._used} buffers are left over")

    def _take(self, nbytes: int) -> memoryview:
        stop = self.position + nbytes
        if stop > len(self._head):
            raise ValueError(f"truncated: got {len(self._head) - self.position} bytes, expected {nbytes}")
        data = self._head[self.position : stop]
        self.position = stop
        return data

    def _byte(self) -> int:
        return self._take(1)[0]

    def _numbers(self, layout: struct.Struct) -> tuple[Any, ...]:
        return layout.unpack(self._take(layout.size))

    def _count(self) -> int:
        count: int = self._numbers(_COUNT)[0]
        return count

    def _read_numbers(self, kind: Callable[..., Any], layout: struct.Struct) -> Any:
        return kind(*self._numbers(layout))

    def _large_int(self) -> int:
        return int.from_bytes(self._take(self._count()), "little", signed=True)

    def _str(self) -> str:
        return str(self._take(self._count()), "utf-8", "surrogatepass")

    def _memory(self) -> memoryview:
        """Return a piece of memory, which the head contains or refers to as one of the buffers."""
        location, nbytes = self._byte(), self._count()
        if location == _IN_BAND:
            return self._take(nbytes)
        if location != _OUT_OF_BAND or self._used == len(self._buffers):
            raise ValueError(f"missing buffer: got {len(self._buffers)}, expected more")
        buffer = self._buffers[self._used]
        if buffer.nbytes != nbytes:
            raise ValueError(f"buffer has another size: got {buffer.nbytes} bytes, expected {nbytes}")
        self._used += 1
        return buffer

    def _read_bytes(self, kind: Callable[[memoryview], Any]) -> Any:
        return kind(self._memory())

    def _read_items(self, kind: Callable[[Iterable[Any]], Any], min_item_bytes: int) -> Any:
        return kind(self._items(min_item_bytes))

    def _items(self, min_item_bytes: int) -> Iterable[Any]:
        """Yield the announced number of items; raise if the remaining bytes cannot hold them."""
        count = self._count()
        most = (len(self._head) - self.position) // min_item_bytes
        if count > most:
            raise ValueError(f"too many elements: got {count}, expected at most {most}")
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise ValueError(f"containers are nested too deeply: expected at most {MAX_DEPTH}")
        for _ in range(count):
            yield self.read() if min_item_bytes == 1 else (self.read(), self.read())
        self._depth -= 1

    def _value(self) -> Any:
        kind = kinds.named(self._str())
        return kind.make(*kind.checked(tuple(self._items(1))))

    def _array(self) -> Any:
        library = bytes(self._take(1))
        dtype = str(self._take(self._byte()), "ascii")
        shape = tuple(self._count() for _ in range(self._byte()))
        nbytes = arrays.count_bytes(library, dtype, shape)
        is_own = self._head[self.position : self.position + 1] == bytes([_OUT_OF_BAND])
        raw = self._memory()
        if raw.nbytes != nbytes:
            raise ValueError(f"array {dtype}{list(shape)} has another size: got {raw.nbytes} bytes")
        return arrays.make(library, dtype, shape, raw if is_own else memoryview(bytearray(raw)))


_READERS: dict[bytes, Callable[[_Reader], Any]] = {
    b"N": lambda _: None,
    b"T": lambda _: True,
    b"F": lambda _: False,
    b"i": lambda reader: reader._numbers(_INT)[0],
    b"I": _Reader._large_int,
    b"s": _Reader._str,
    b"a": _Reader._array,
    b"v": _Reader._value,
    **{tag: partial(_Reader._read_numbers, kind=kind, layout=layout) for kind, (tag, layout, _) in _NUMBERS.items()},
    **{tag: partial(_Reader._read_bytes, kind=kind) for kind, tag in _BYTES.items()},
    **{tag: partial(_Reader._read_items, kind=kind, min_item_bytes=1) for kind, tag in _SEQUENCES.items()},
    **{tag: partial(_Reader._read_items, kind=kind, min_item_bytes=2) for kind, tag in _MAPPINGS.items()},
}
