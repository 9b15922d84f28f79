"""Creates arrays of the caller's type, for any array library.

No library is imported here: a program that passes an array has imported its library. A Family reads
and creates the arrays of one library. The extension reads and writes buffers and DLPack objects, so
a result takes three steps: empty_like() creates a writable buffer, an operation fills the buffer,
and finish() makes the array.
"""

from __future__ import annotations

import array
import math
import sys
from collections.abc import Iterator
from typing import Any

from dldist import _core
from dldist._base.argument_names import title

Shape = tuple[int, ...]


class Family:
    """Reads and creates the arrays of one library. The base class fits libraries like NumPy."""

    has_slices = True

    def shape(self, x: Any) -> Shape:
        return tuple(x.shape)

    def source(self, x: Any) -> Any:
        """Return the array x in a form that the extension can read."""
        return x

    def write(self, x: Any, content: Any) -> None:
        """Copy `content` into the array x. Raise ValueError if x is read-only."""
        _core._copy_tensor(self.source(x), content)

    def empty_like(self, x: Any, shape: Shape) -> Any:
        """Create a writable buffer with x's dtype, on x's device."""
        raise NotImplementedError

    def clear(self, buffer: Any) -> None:
        """Fill a new buffer with zeros."""
        buffer[...] = 0

    def finish(self, buffer: Any, x: Any) -> Any:
        """Convert a buffer to an array of x's type. Do not write to the buffer afterwards."""
        return buffer

    def view(self, memory: Any, x: Any) -> Any:
        """Return a writable array over dldist's memory: of x's library, or of NumPy if arrays of
        x's library are immutable."""
        return _numpy_view(memory)


def _numpy_view(memory: Any) -> Any:
    numpy = sys.modules["numpy"]
    if not memory.nbytes:
        return numpy.empty(memory.shape, memory.dtype)
    # Use numpy.frombuffer, as it accepts dtypes that the buffer protocol or NumPy's DLPack lacks.
    return numpy.frombuffer(memory, memory.dtype).reshape(memory.shape)


class _Numpy(Family):
    def source(self, x: Any) -> Any:
        return sys.modules["numpy"].asarray(x)

    def write(self, x: Any, content: Any) -> None:
        if isinstance(x, sys.modules["numpy"].generic):
            raise ValueError("argument 'x' is read-only: got a NumPy scalar, expected an array")
        super().write(x, content)

    def empty_like(self, x: Any, shape: Shape) -> Any:
        return sys.modules["numpy"].empty(shape, x.dtype)

    def clear(self, buffer: Any) -> None:
        buffer[...] = sys.modules["numpy"].zeros((), buffer.dtype)

    def finish(self, buffer: Any, x: Any) -> Any:
        is_scalar = isinstance(x, sys.modules["numpy"].generic) and buffer.ndim == 0
        return buffer[()] if is_scalar else buffer


_IS_MASKED = "is a masked array: expected an array without a mask; pass x.filled(0), or x.data and x.mask"


class _Masked(_Numpy):
    """NumPy's masked arrays, which are refused because the mask would be lost."""

    def source(self, x: Any) -> Any:
        raise _core.DistTypeError(f"{title('x')} {_IS_MASKED}")


class _Torch(Family):
    def source(self, x: Any) -> Any:
        if not (x.requires_grad or x.is_conj() or x.is_neg()):
            return x
        # DLPack cannot export tensors that require gradients or are lazily conjugated or negated.
        return x.detach().resolve_conj().resolve_neg()

    def write(self, x: Any, content: Any) -> None:
        values = self.source(x)
        _core._copy_tensor(values, content)
        if x.is_conj() or x.is_neg():  # `values` is a resolved copy of x: copy it back
            x.detach().copy_(values)

    def empty_like(self, x: Any, shape: Shape) -> Any:
        return sys.modules["torch"].empty(shape, dtype=x.dtype, device=x.device)

    def view(self, memory: Any, x: Any) -> Any:
        return sys.modules["torch"].from_dlpack(memory)


class _Jax(Family):
    """JAX arrays, which are immutable: results are built in NumPy's memory, on GPUs in NCCL's."""

    def source(self, x: Any) -> Any:
        # On the CPU, asarray waits until x is computed and returns x's memory without a copy.
        return x if _is_on_gpu(x) else sys.modules["numpy"].asarray(x)

    def empty_like(self, x: Any, shape: Shape) -> Any:
        if _is_on_gpu(x):
            # Only groups can allocate memory. The memory outlives this temporary group.
            return _core.NcclGroup(None, 0, 1, device=x.__dlpack_device__()[1]).empty(shape, str(x.dtype))
        return sys.modules["numpy"].empty(shape, x.dtype)

    def finish(self, buffer: Any, x: Any) -> Any:
        if _is_on_gpu(x):
            return sys.modules["jax"].dlpack.from_dlpack(buffer)
        # If x is on several devices, its sharding fits only results of the same shape.
        is_like_x = len(x.devices()) == 1 or buffer.shape == x.shape
        return sys.modules["jax"].device_put(buffer, x.sharding if is_like_x else None)


def _is_on_gpu(x: Any) -> bool:
    return all(device.platform == "gpu" for device in x.devices())


class _Cupy(Family):
    """CuPy arrays. Data stays on the device, so the group must accept device memory."""

    def empty_like(self, x: Any, shape: Shape) -> Any:
        return sys.modules["cupy"].empty(shape, x.dtype)


class _Flat(Family):
    """Python's one-dimensional buffers. New buffers are zeroed; only dimension 0 can be sliced."""

    has_slices = False

    def shape(self, x: Any) -> Shape:
        return (len(x),)

    def empty_like(self, x: Any, shape: Shape) -> Any:
        if len(shape) > 1:
            name = "an array.array" if isinstance(x, array.array) else f"a {type(x).__name__}"
            raise ValueError(f"argument 'x': got {name}, which has one dimension, expected a NumPy array for a result of shape {shape}")
        return self.zeros(x, math.prod(shape))

    def zeros(self, x: Any, count: int) -> Any:
        return bytearray(count)

    def clear(self, buffer: Any) -> None:
        pass

    def finish(self, buffer: Any, x: Any) -> Any:
        return bytes(buffer) if isinstance(x, bytes) else buffer

    def view(self, memory: Any, x: Any) -> Any:
        return memoryview(memory)


class _Array(_Flat):
    def zeros(self, x: Any, count: int) -> Any:
        return array.array(x.typecode, bytes(count * x.itemsize))


class _Memoryview(_Flat):
    def shape(self, x: Any) -> Shape:
        return tuple(x.shape)

    def empty_like(self, x: Any, shape: Shape) -> Any:
        memory = memoryview(bytearray(math.prod(shape) * x.itemsize))
        # Keep an empty view one-dimensional, because memoryview.cast() cannot set its shape.
        return memory.cast(x.format, shape) if memory.nbytes else memory.cast(x.format)


class _Dlpack(Family):
    """Arrays of other libraries. Their from_dlpack converts results from dldist's memory."""

    has_slices = False

    def shape(self, x: Any) -> Shape:
        return _core._describe_tensor(x, False)["shape"]

    def empty_like(self, x: Any, shape: Shape) -> Any:
        return private_memory(shape, _core._describe_tensor(x, False)["dtype"])

    def clear(self, buffer: Any) -> None:
        with memoryview(buffer) as view:
            if view.nbytes:
                view.cast("B")[:] = bytes(view.nbytes)

    def finish(self, buffer: Any, x: Any) -> Any:
        return self.namespace(x).from_dlpack(buffer)

    def view(self, memory: Any, x: Any) -> Any:
        return self.namespace(x).from_dlpack(memory)

    @staticmethod
    def namespace(x: Any) -> Any:
        """Return the module whose from_dlpack() makes arrays like x, or None."""
        get_namespace = getattr(x, "__array_namespace__", None)
        if get_namespace is not None:
            return get_namespace()
        parts = type(x).__module__.split(".")
        for count in range(1, len(parts) + 1):
            module = sys.modules.get(".".join(parts[:count]))
            if hasattr(module, "from_dlpack"):
                return module
        return None


class _Shared(_Dlpack):
    """Arrays in dldist's memory, from Group.empty. Results are not shared with other ranks."""

    def finish(self, buffer: Any, x: Any) -> Any:
        return buffer

    def view(self, memory: Any, x: Any) -> Any:
        return memory


class _Number(_Shared):
    """Python's numbers, with the dtypes that NumPy gives them. Results are numbers, or lists."""

    def shape(self, x: Any) -> Shape:
        return ()

    def source(self, x: Any) -> Any:
        source = self.empty_like(x, ())
        try:
            source[()] = x
        except OverflowError:
            raise OverflowError(f"{title('x')} is out of range: got {x}, expected a number that fits into int64") from None
        return source

    def empty_like(self, x: Any, shape: Shape) -> Any:
        return private_memory(shape, NUMBER_DTYPES[type(x)])

    def finish(self, buffer: Any, x: Any) -> Any:
        return buffer.tolist()


NUMBER_DTYPES: dict[type, str] = {bool: "bool", int: "int64", float: "float64", complex: "complex128"}

NUMPY = _Numpy()
TORCH = _Torch()
JAX = _Jax()
_CUPY = _Cupy()
_MASKED = _Masked()
_DLPACK = _Dlpack()

# For each library's top-level package: the names of its array classes, and its family.
_LIBRARIES = {
    "numpy": (("ndarray", "generic"), NUMPY),
    "torch": (("Tensor",), TORCH),
    "jax": (("Array",), JAX),
    "jaxlib": (("Array",), JAX),
    "cupy": (("ndarray",), _CUPY),
}
_MODULES: dict[Family, str] = {NUMPY: "numpy", TORCH: "torch", JAX: "jax.numpy", _CUPY: "cupy"}  # with a function full_like
_BUILTIN = {array.array: _Array(), bytes: _Flat(), bytearray: _Flat(), memoryview: _Memoryview(), _core.SharedArray: _Shared()}
_NUMBER = _Number()


def family_of(x: Any, call: str, path: str = "", others: str = "") -> Family:
    """Return the family of the array x. If x is no array, raise a TypeError that names `call`."""
    family = find_family(x)
    if family is None:
        raise TypeError(
            f"{title('x', call)}{path} must be an array (of NumPy, PyTorch, JAX, CuPy or another library with __dlpack__ and "
            f"from_dlpack, an array.array, bytes, a bytearray or a memoryview){others}, not {type(x).__name__}"
        )
    if family is _MASKED:
        raise _core.DistTypeError(f"{title('x', call)}{path} {_IS_MASKED}")
    return family


def value_family_of(x: Any, call: str, path: str = "") -> Family:
    """Return the family of an array, as family_of does, or of a Python number."""
    return _NUMBER if type(x) in NUMBER_DTYPES else family_of(x, call, path, " or a number")


def as_value(x: Any) -> Any:
    """Convert an object that only has __array__, such as a pandas or polars column, to a NumPy array. Return other objects unchanged."""
    if type(x) in NUMBER_DTYPES or find_family(x) is not None or isinstance(x, type) or not hasattr(x, "__array__"):
        return x
    import numpy

    return numpy.asarray(x)


_families: dict[type, Family] = {}  # cache: the family of each array class used so far


def find_family(x: Any) -> Family | None:
    """Return the family of an array, or None if x is not an array."""
    family = _families.get(type(x))
    if family is None:
        family = _detect_family(x)
        if family is not None:
            _families[type(x)] = family
    return family


def source_of(x: Any) -> Any:
    """Return the array x in a form that the extension can read, or x if it is not an array."""
    family = find_family(x)
    return x if family is None else family.source(x)


def _detect_family(x: Any) -> Family | None:
    for kind in type(x).__mro__:
        if kind in _BUILTIN:
            return _BUILTIN[kind]
        package = kind.__module__.partition(".")[0]
        if package in _LIBRARIES:
            names, family = _LIBRARIES[package]
            if isinstance(x, tuple(_classes("jax" if package == "jaxlib" else package, names))):
                return _MASKED if family is NUMPY and hasattr(type(x), "mask") else family
    if hasattr(x, "__dlpack__") and _DLPACK.namespace(x) is not None:
        return _DLPACK
    return None


def dtype_name(x: Any) -> str:
    """Return the name of an array's dtype; for NumPy's dates, which the extension does not describe, NumPy's name."""
    dtype: Any = getattr(x, "dtype", None)
    name: str = dtype.str if getattr(dtype, "kind", None) in ("m", "M") else _core._describe_tensor(x, False)["dtype"]
    return name


def prototype_of(template: Any) -> Any:
    """Create an empty array with the template's dtype: JAX's for a JAX template, else NumPy's."""
    name = "jax.numpy" if type(template).__module__.partition(".")[0] == "jax" else "numpy"
    return __import__(name, fromlist=("zeros",)).zeros(0, template.dtype)


def _classes(package: str, names: tuple[str, ...]) -> Iterator[type]:
    module = sys.modules.get(package)
    for name in names:
        if hasattr(module, name):
            yield getattr(module, name)


def is_traced(x: Any) -> bool:
    """True if x is a JAX tracer, as in jax.jit and jax.grad, which has no value yet."""
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(x, jax.core.Tracer)


def pieces(buffer: Any, axis: int, sizes: list[int]) -> list[Any]:
    """Split a buffer along an axis into views of these sizes."""
    views = []
    start = 0
    for size in sizes:
        part = slice(start, start + size)
        views.append(buffer[(slice(None),) * axis + (part,) if axis > 0 else part])
        start += size
    return views


def new_array(family: Family, x: Any, content: Any) -> Any:
    """Create an array like x (library, dtype, device) with this content."""
    buffer = family.empty_like(x, content.shape)
    _core._copy_tensor(buffer, content)
    return family.finish(buffer, x)


def write_or_replace(family: Family, x: Any, content: Any) -> Any:
    """Copy the content into x and return x. If x is read-only, return a new array like x."""
    try:
        family.write(x, content)
    except ValueError:
        return new_array(family, x, content)
    return x


def full_like(x: Any, value: float) -> Any:
    """Return an array like x, which may be traced, or a number, with this value in all elements."""
    family = value_family_of(x, "full_like")
    if family in _MODULES:
        result = sys.modules[_MODULES[family]].full_like(x, value)
        return NUMPY.finish(result, x) if family is NUMPY else result
    shape = family.shape(x)
    count = math.prod(shape)
    content = private_memory(count, NUMBER_DTYPES.get(type(x)) or dtype_name(x))
    if count > 0:
        content[0] = value
    done = 1
    while done < count:
        size = min(done, count - done)
        _core._copy_tensor(content.part(done, size), content.part(0, size))
        done += size
    return new_array(family, x, content.part(0, shape))


def private_memory(shape: Any, dtype: Any) -> _core.SharedArray:
    """Allocate zeros that are not shared with other ranks. They outlive the temporary group."""
    return _core.Group(None, 0, 1).empty(shape, dtype)
