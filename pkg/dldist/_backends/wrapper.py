"""_ProcessGroupWrapper: compares collectives between ranks before they run (debug level DETAIL)."""

from __future__ import annotations

from datetime import timedelta
from hashlib import sha256
from operator import attrgetter
from typing import Any, NamedTuple

from dldist import _core
from dldist._backends.backend_base import Backend
from dldist._backends.low_level import CALLS
from dldist._base.options import AllgatherOptions, OpType, timeout_of
from dldist.world import call_all

# c10d's names for dtypes. Dtypes that are not listed keep their names.
_DTYPES = {
    "bool": "Bool",
    "int8": "Char",
    "uint8": "Byte",
    "int16": "Short",
    "uint16": "UInt16",
    "int32": "Int",
    "uint32": "UInt32",
    "int64": "Long",
    "uint64": "UInt64",
    "float16": "Half",
    "bfloat16": "BFloat16",
    "float8_e4m3fn": "Float8_e4m3fn",
    "float8_e5m2": "Float8_e5m2",
    "float32": "Float",
    "float64": "Double",
    "complex64": "ComplexFloat",
    "complex128": "ComplexDouble",
}

_FIELD_LIMIT = 4096  # maximum characters of a field: the rest is replaced by a hash
_MESSAGE_LIMIT = 65536  # maximum bytes of a message, above any encoded fingerprint


def _shorten(field: str) -> str:
    if len(field) <= _FIELD_LIMIT:
        return field
    return f"{field[:_FIELD_LIMIT]}... (sha256 {sha256(field.encode()).hexdigest()})"


class Fingerprint(NamedTuple):
    """The properties of a collective that are compared between ranks, as text."""

    sequence: str
    op: str
    shapes: str = ""
    dtypes: str = ""
    devices: str = ""

    @classmethod
    def of(cls, sequence: int, method: str, arguments: tuple[Any, ...]) -> Fingerprint:
        call = CALLS[method]
        op = str(OpType(call.operation.op_type).name)
        tensors = [argument for side, argument in zip(call.sides, arguments) if side.kind in ("one", "many")]
        # Describe only the first side (inputs or outputs), which must be alike on all ranks.
        tensors = tensors[0] if tensors else []
        descriptions = [_describe(tensor) for tensor in (tensors if isinstance(tensors, (list, tuple)) else [tensors])]
        columns = (_shorten(", ".join(column)) for column in zip(*descriptions, strict=True))
        return cls(str(sequence), op, *columns)

    def __str__(self) -> str:
        if not self.shapes:
            return f"CollectiveFingerPrint(SequenceNumber={self.sequence}OpType={self.op})"
        return (
            f"CollectiveFingerPrint(SequenceNumber={self.sequence}, OpType={self.op}, TensorShape={self.shapes}, "
            f"TensorDtypes={self.dtypes}, TensorDeviceTypes={self.devices})"
        )

    def encode(self) -> bytes:
        return "\n".join(self).encode()

    @classmethod
    def decode(cls, data: bytes) -> Fingerprint | None:
        """Decode another rank's fingerprint, or return None if the bytes are malformed."""
        fields = data.decode("utf-8", "backslashreplace").split("\n")
        return cls(*fields) if len(fields) == len(cls._fields) else None

    def differences(self, other: Fingerprint) -> str:
        """Describe the fields that differ, in c10d's format."""
        names = ("Sequence number", "Op type", "Tensor Tensor shapes", "Tensor Tensor dtypes", "Tensor Tensor devices")
        differ = [f"\t {name}: {value}vs {other_value}" for name, value, other_value in zip(names, self, other, strict=True) if value != other_value]
        return " ".join(differ)


def _describe(tensor: Any) -> tuple[str, str, str]:
    """Return a tensor's shape, dtype and device type. For a non-tensor, the backend will raise."""
    try:
        description = _core._describe_tensor(tensor, False)
    except (TypeError, ValueError, BufferError):
        return "[unknown]", type(tensor).__name__, "unknown"
    # Compare only the device type, because device indices differ between ranks.
    return str(list(description["shape"])), _DTYPES.get(description["dtype"], description["dtype"]), description["device"].partition(":")[0]


class _ProcessGroupWrapper(Backend):
    """A backend that compares each collective between ranks before it runs, through `gloo_backend`.

    `gloo_backend` has the same ranks. A monitored barrier, which names missing ranks, is followed
    by an exchange of fingerprints. Each rank that finds a difference raises DistMismatchError (a
    RuntimeError) for the first difference. Point-to-point messages are not compared.
    """

    wrapped_pg: Any = None
    """The backend whose collectives are compared."""

    def __init__(self, backend: Backend, gloo_backend: Backend) -> None:
        if (backend.rank(), backend.size()) != (gloo_backend.rank(), gloo_backend.size()):
            raise ValueError(
                f"_ProcessGroupWrapper(): argument 'gloo_backend' is another rank: got {gloo_backend.rank()} of "
                f"{gloo_backend.size()}, expected {backend.rank()} of {backend.size()}"
            )
        super().__init__(backend.rank(), backend.size())
        self.wrapped_pg = backend
        self._gloo_backend = gloo_backend
        self._sequence = 0

    def _perform(self, method: str, *arguments: Any) -> Any:
        if method in CALLS:
            self._compare(method, arguments)
        return getattr(self.wrapped_pg, method)(*arguments)

    def _compare(self, method: str, arguments: tuple[Any, ...]) -> None:
        own = Fingerprint.of(self._sequence, method, arguments)
        timeout = timeout_of(arguments[-1])
        self._wait_for_all(own, timeout)
        for rank, other in enumerate(self._exchange(own, timeout)):
            if other != own:
                raise _core.DistMismatchError(
                    f"Detected mismatch between collectives on ranks. Rank {self._rank} is running collective: {own}, but "
                    f"Rank {rank} is running collective: {other}."
                    f"Collectives differ in the following aspects: {own.differences(other)}"
                )
        self._sequence += 1

    def _wait_for_all(self, own: Fingerprint, timeout: timedelta | None) -> None:
        try:
            self._gloo_backend.monitored_barrier(timeout, True)
        except RuntimeError as error:
            raise _with_collective(error, own) from error

    def _exchange(self, own: Fingerprint, timeout: timedelta | None) -> list[Fingerprint]:
        """Gather the fingerprints of all ranks."""
        encoded = own.encode()
        lengths = [int.from_bytes(length, "little") for length in self._all_gather(len(encoded).to_bytes(8, "little"), timeout)]
        longest = max(lengths)
        if longest > _MESSAGE_LIMIT:
            raise _core.DistMismatchError(
                f"malformed fingerprint of rank {lengths.index(longest)}: got {longest} bytes, expected at most {_MESSAGE_LIMIT}"
            )
        pieces = self._all_gather(encoded.ljust(longest, b"\0"), timeout)
        fingerprints = []
        for rank, (piece, length) in enumerate(zip(pieces, lengths, strict=True)):
            fingerprint = Fingerprint.decode(piece[:length])
            if fingerprint is None:
                raise _core.DistMismatchError(f"malformed fingerprint of rank {rank}: expected the fingerprint of a collective")
            fingerprints.append(fingerprint)
        return fingerprints

    def _all_gather(self, data: bytes, timeout: timedelta | None) -> list[bytes]:
        opts = AllgatherOptions()
        if timeout is not None:
            opts.timeout = timeout
        gathered = bytearray(len(data) * self._size)
        self._gloo_backend.all_gather_single(gathered, bytearray(data), opts).wait()
        return [bytes(gathered[start : start + len(data)]) for start in range(0, len(gathered), len(data))]

    def getBackendName(self) -> str:
        return self.wrapped_pg.name()  # type: ignore[no-any-return]

    @property
    def bound_device_id(self) -> Any:
        return self.wrapped_pg.bound_device_id

    @bound_device_id.setter
    def bound_device_id(self, device: Any) -> None:
        self.wrapped_pg.bound_device_id = device

    def set_timeout(self, timeout: timedelta) -> None:
        self.wrapped_pg.set_timeout(timeout)
        self._gloo_backend.set_timeout(timeout)

    def shutdown(self) -> None:
        call_all([self.wrapped_pg.shutdown, self._gloo_backend.shutdown])

    def abort(self) -> None:
        call_all([self.wrapped_pg.abort, self._gloo_backend.abort])

    def __getattr__(self, name: str) -> Any:
        """Forward attributes that Backend lacks to the wrapped backend."""
        if name in ("wrapped_pg", "group"):  # their calls would not be compared
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.wrapped_pg, name)


# Forward to the wrapped backend all of Backend's attributes that the wrapper does not define.
_NOT_FORWARDED = {"Options", "_operations", "_perform", "_unsupported", *vars(_ProcessGroupWrapper)}

for _name in vars(Backend).keys() - _NOT_FORWARDED:
    if not _name.startswith("__"):
        setattr(_ProcessGroupWrapper, _name, property(attrgetter(f"wrapped_pg.{_name}")))


def _with_collective(error: RuntimeError, own: Fingerprint) -> RuntimeError:
    """Return an error of the same type whose text also names this rank's collective."""
    text = f"ProcessGroupWrapper: Monitored Barrier encountered error running collective: {own}. Error: \n{error}"
    if not isinstance(error, _core.DistError):
        return RuntimeError(text)
    converted = type(error)(text)
    vars(converted).update(vars(error))
    return converted
