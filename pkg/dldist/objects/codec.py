"""Objects to bytes and back: the two serializers, and the memory that arrays arrive in.

A serializer writes an object as a *head* and *buffers*. The head is a stream of bytes. The buffers are the memory of the
object's larger arrays, which is neither copied nor part of the head. To read the object, the serializer takes the head and
buffers of the same sizes, which become the memory of the new arrays. docs/objects.md says what each serializer takes, and
describes the format of "safe".
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # typing takes longer to import than all of this package
if TYPE_CHECKING:
    from collections.abc import Callable
    from io import BytesIO
    from typing import Any

IN_BAND_BYTES = 1 << 16
"""Arrays smaller than this are copied into the head: saving a message is worth more than avoiding the copy."""


class Serializer:
    """`write(obj, head)` writes the head to a file in memory and returns the buffers; `read(head, buffers)` gives the object."""

    __slots__ = ("name", "number", "read", "write")

    def __init__(
        self,
        name: str,
        number: int,
        write: Callable[[Any, BytesIO], list[memoryview]],
        read: Callable[[memoryview, list[memoryview]], Any],
    ) -> None:
        self.name = name
        self.number = number
        """The number that stands for this serializer in a prefix."""
        self.write = write
        self.read = read


NAMES = {1: "safe", 2: "pickle"}


def find(name: str) -> Serializer:
    """The serializer of this name."""
    if name == "pickle":
        from dldist.objects import pickles

        return Serializer(name, 2, pickles.write, pickles.read)
    if name == "safe":
        from dldist.objects import safe

        return Serializer(name, 1, safe.write, safe.read)
    raise ValueError(f"serializer must be 'safe' or 'pickle', not {name!r}")


def new_buffer(nbytes: int) -> memoryview:
    """Writable memory. If the program uses NumPy, its pages have not been touched yet."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return memoryview(bytearray(nbytes))
    return memoryview(numpy.empty(nbytes, numpy.uint8))


def memory_at(address: int, nbytes: int, owner: object) -> Any:
    """The memory of an object without the buffer protocol, as a buffer that keeps that object alive."""
    import ctypes

    memory = (ctypes.c_ubyte * nbytes).from_address(address)
    memory.owner = owner  # type: ignore[attr-defined]
    return memory
