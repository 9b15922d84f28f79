"""Convert objects to byte tensors and back by pickle, for libraries that send tensors."""

from __future__ import annotations

import io
import pickle
from array import array
from typing import Any

from dldist._backends.backend_names import device_type_of

_pickler = pickle.Pickler
_unpickler = pickle.Unpickler


def _object_to_tensor(obj: Any, device: Any, group: Any, weights_only: bool = False) -> tuple[bytearray, array[int]]:
    """Return the pickle of an object as bytes, and its size as an int64 array, in CPU memory."""
    _refuse_weights_only("_object_to_tensor", weights_only)
    if device is not None and device_type_of(device) != "cpu":
        raise ValueError(f"_object_to_tensor(): argument 'device' is unsupported: got {device}, expected cpu")
    file = io.BytesIO()
    _pickler(file).dump(obj)
    pickled = bytearray(file.getbuffer())
    return pickled, array("q", [len(pickled)])


def _refuse_weights_only(name: str, weights_only: bool) -> None:
    if weights_only:
        raise NotImplementedError(f"{name}(): argument 'weights_only': got True, expected False; only calls that send objects take it")


def _tensor_to_object(tensor: Any, tensor_size: Any, group: Any, weights_only: bool = False) -> Any:
    """Unpickle the first `tensor_size` bytes of a tensor. Pickles run code: trust the sender."""
    _refuse_weights_only("_tensor_to_object", weights_only)
    with memoryview(tensor) as view:
        return _unpickler(io.BytesIO(view.cast("B")[: int(tensor_size)])).load()
