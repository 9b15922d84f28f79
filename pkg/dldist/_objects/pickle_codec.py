"""The serializer "pickle": protocol 5 with out-of-band buffers. Imported when first used."""

from __future__ import annotations

import pickle
import sys
from io import BytesIO
from typing import Any

from dldist._objects import codec, pickling

name = "pickle"
number = 2


def write(obj: Any, head: BytesIO) -> list[memoryview]:
    """Write any object that can be pickled: a pickle, and the memory of the larger arrays."""
    buffers: list[memoryview] = []

    def is_in_band(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes < codec.IN_BAND_BYTES:
            return True
        buffers.append(raw)
        return False

    kind = _ArrayPickler if "torch" in sys.modules or "ml_dtypes" in sys.modules else pickle.Pickler
    start = head.tell()
    try:
        kind(head, 5, buffer_callback=is_in_band).dump(obj)
    except Exception:
        by_value = _pickler_by_value()
        if by_value is None:
            raise
        head.seek(start)
        head.truncate()
        buffers.clear()
        by_value(head, 5, buffer_callback=is_in_band).dump(obj)
    return buffers


def _pickler_by_value() -> Any:
    """Return a pickler for objects that a new process cannot import; None if not needed."""
    module = pickling.cloudpickle() if not pickling.has_importable_main() else None
    if module is None:
        return None

    class Pickler(module.Pickler):  # type: ignore[misc, name-defined, unused-ignore]
        def reducer_override(self, obj: Any) -> Any:
            reduced = _reduce_array(obj)
            return super().reducer_override(obj) if reduced is NotImplemented else reduced

    return Pickler


def read(head: memoryview, buffers: list[memoryview]) -> Any:
    """Read an object. A pickle can run any code, so only read objects from trusted senders."""
    return pickle.loads(head, buffers=buffers)


class _ArrayPickler(pickle.Pickler):
    """A pickler that sends arrays as buffers if their own pickling would copy them."""

    def reducer_override(self, obj: Any) -> Any:
        return _reduce_array(obj)


def _reduce_array(obj: Any) -> Any:
    kind = type(obj)
    if kind.__module__ == "torch.storage":
        return _reduce_storage(obj)
    if kind.__module__ == "numpy" and kind.__name__ == "ndarray" and obj.dtype.isbuiltin == 2:
        return _reduce_extension_array(obj)
    return NotImplemented


def _reduce_storage(storage: Any) -> Any:
    # Replace storages, not tensors, so that views still share a storage after the transfer.
    torch = sys.modules["torch"]
    if type(storage) is torch.storage.TypedStorage and storage._untyped_storage.device.type == "cpu":
        return _make_typed_storage, (storage._untyped_storage, storage.dtype)
    if type(storage) is torch.UntypedStorage and storage.device.type == "cpu":
        memory = codec.memory_at(storage.data_ptr(), storage.nbytes(), storage)
        return _make_storage, (pickle.PickleBuffer(memory),)
    return NotImplemented


def _make_storage(buffer: Any) -> Any:
    import torch

    is_empty = memoryview(buffer).nbytes == 0
    tensor = torch.empty(0, dtype=torch.uint8) if is_empty else torch.frombuffer(buffer, dtype=torch.uint8)
    # torch rebuilds newer dtypes only from a TypedStorage, which it unwraps for other dtypes.
    typed: Any = torch.storage.TypedStorage
    return typed(wrap_storage=tensor.untyped_storage(), dtype=torch.uint8, _internal=True)


def _make_typed_storage(storage: Any, dtype: Any) -> Any:
    return type(storage)(wrap_storage=storage._untyped_storage, dtype=dtype, _internal=True)


def _reduce_extension_array(array: Any) -> Any:
    """Reduce an array whose dtype NumPy would copy when pickling, such as ml_dtypes' bfloat16."""
    if not array.flags.c_contiguous:
        return NotImplemented
    return _make_extension_array, (array.reshape(-1).view("uint8"), array.dtype, array.shape)


def _make_extension_array(raw: Any, dtype: Any, shape: tuple[int, ...]) -> Any:
    return raw.view(dtype).reshape(shape)
