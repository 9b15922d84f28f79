"""Objects to bytes and back: the two serializers, and the memory that arrays arrive in.

A serializer writes an object as a *head* and *buffers*. The head is a stream of bytes. The buffers are the memory of the
object's larger arrays, which is neither copied nor part of the head. To read the object, the serializer takes the head and
buffers of the same sizes, which become the memory of the new arrays. docs/objects.md says what each serializer takes, and
describes the format of "safe".
"""

from __future__ import annotations

import sys
from typing import Any

IN_BAND_BYTES = 1 << 16
"""Arrays smaller than this are copied into the head: saving a message is worth more than avoiding the copy."""


MODULES = {"safe": "dldist._objects.safe_codec", "pickle": "dldist._objects.pickle_codec"}


def find(name: str) -> Any:
    """The serializer of this name: a module. `write(obj, head)` writes the head to a file in memory and returns the buffers;
    `read(head, buffers)` gives the object; `number` stands for the serializer in a prefix."""
    if name not in MODULES:
        raise ValueError(f"serializer must be 'safe' or 'pickle', not {name!r}")
    return __import__(MODULES[name], fromlist=("write",))


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
