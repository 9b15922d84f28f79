"""Selects a serializer, and allocates the memory that arrays are received in.

A serializer writes an object as a *head*, a stream of bytes, and *buffers*, the memory of the
object's larger arrays, which is not copied. A reader takes the head and buffers of the same sizes;
the buffers become the memory of the new arrays. docs/objects.md lists the types that each
serializer accepts, and describes the format of "safe".
"""

from __future__ import annotations

import sys
from typing import Any

from dldist._base import argument_names

IN_BAND_BYTES = 1 << 16
"""Arrays of fewer bytes are copied into the head, because a copy costs less than a message."""


MODULES = {"safe": "dldist._objects.safe_codec", "pickle": "dldist._objects.pickle_codec"}


def check(name: str) -> str:
    """Return the name of a serializer. Raise ValueError if there is none of this name."""
    if name not in MODULES:
        raise ValueError(f"{argument_names.title('serializer')} is unknown: got {name!r}, expected 'safe' or 'pickle'")
    return name


def find(name: str) -> Any:
    """Return a serializer's module. `write(obj, head)` writes the head to a BytesIO and returns the
    buffers; `read(head, buffers)` returns the object; `number` identifies the serializer in a
    prefix."""
    return __import__(MODULES[check(name)], fromlist=("write",))


def new_buffer(nbytes: int) -> memoryview:
    """Allocate writable memory, which is not initialised if the program uses NumPy."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return memoryview(bytearray(nbytes))
    return memoryview(numpy.empty(nbytes, numpy.uint8))


def memory_at(address: int, nbytes: int, owner: object) -> Any:
    """Return a buffer over `nbytes` of memory at an address. The buffer keeps `owner` alive."""
    import ctypes

    memory = (ctypes.c_ubyte * nbytes).from_address(address)
    memory.owner = owner  # type: ignore[attr-defined]
    return memory
