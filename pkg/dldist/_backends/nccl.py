"""NCCL under c10d's name: ProcessGroupNCCL, which uses an NcclGroup, and its options."""

from __future__ import annotations

import sys
from copy import copy
from datetime import timedelta
from typing import Any

from dldist import _core
from dldist._backends.backend_base import BackendOptions
from dldist._backends.group_backend import GroupBackend
from dldist._backends.nccl_window import NcclGroupWindow
from dldist._backends.process_group import ProcessGroup
from dldist._base.options import ErrorType
from dldist.nccl import Allocator, library

UNIQUE_ID_NBYTES = 128
_DEFAULT_TIMEOUT_S = 600.0


class NCCLConfig:
    """The configuration of NCCL's communicators. A value of None leaves the choice to NCCL.

    The attributes are the fields that the loaded NCCL has, named as in c10d: blocking, min_ctas ...
    """

    @staticmethod
    def _fields() -> dict[str, bool]:
        """Return the names of the fields, each with True if the field's value is text."""
        info = _core._nccl_info()
        version = None if info is None else info["version"]
        fields = _core._nccl_config_fields()
        return {name: is_text for name, since, is_text in fields if version is None or since <= version}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name not in self._fields():
            raise AttributeError(_unknown_field_text(name, self._fields()))
        return None

    def __setattr__(self, name: str, value: Any) -> None:
        fields = self._fields()
        if name not in fields:
            raise AttributeError(_unknown_field_text(name, fields))
        is_valid = isinstance(value, str) if fields[name] else hasattr(value, "__index__")
        if value is not None and not is_valid:
            kind = "a str" if fields[name] else "an int"
            raise TypeError(f"NCCLConfig.{name} must be {kind} or None, not {value!r}")
        vars(self)[name] = value if value is None or fields[name] else value.__index__()

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._fields()]

    def __eq__(self, other: object) -> bool:
        return self._set_fields() == other._set_fields() if isinstance(other, NCCLConfig) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"NCCLConfig({', '.join(f'{name}={value!r}' for name, value in self._set_fields().items())})"

    def _set_fields(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if value is not None}

    def unsafe_get_ptr(self) -> int:
        """Raise NotImplementedError: the C struct exists only while a communicator is being created."""
        raise NotImplementedError("NCCLConfig.unsafe_get_ptr(): the struct exists only while a communicator is being created")


def _unknown_field_text(name: str, fields: dict[str, bool]) -> str:
    first_version = {field: version for field, version, _ in _core._nccl_config_fields()}.get(name)
    if first_version is None:
        return f"NCCLConfig has no {name!r}: this NCCL supports {', '.join(fields)}"
    needed, loaded = (".".join(map(str, version)) for version in (library.version_of(first_version), library.version()))
    return f"NCCLConfig.{name} needs NCCL {needed}, but {loaded} is loaded"


class NCCLOptions(BackendOptions):
    """ProcessGroupNCCL.Options."""

    def __init__(self, is_high_priority_stream: bool = False) -> None:
        super().__init__("nccl", _DEFAULT_TIMEOUT_S)
        self.is_high_priority_stream = bool(is_high_priority_stream)
        self.config = NCCLConfig()
        self.split_from: Any = None
        self.split_color = -1
        self.use_pg_for_symm_mem_rendezvous = False

    def __deepcopy__(self, memo: Any) -> NCCLOptions:
        """Copy the options, their configuration and ranks, but keep the same `split_from`."""
        other = copy(self)
        other.config = copy(self.config)
        other.global_ranks_in_group = list(self.global_ranks_in_group)
        return other


def device_index(device: Any) -> int | None:
    """Return the number of a CUDA device: an int, "cuda:1", or an object such as torch.device.
    Return None if the device has no number."""
    if device is None:
        return None
    index = device if isinstance(device, int) else getattr(device, "index", None)
    if isinstance(index, int):
        return int(index)
    text = device if isinstance(device, str) else str(device)
    kind, _, number = text.partition(":")
    if kind != "cuda":
        raise ValueError(f"argument 'device' is not a GPU: got {text!r}, expected a CUDA device, such as cuda:0")
    return int(number) if number else None


def _group_method(name: str) -> Any:
    """Create a method that calls the method of this name of the backend's NcclGroup."""

    def call(self: ProcessGroupNCCL, *args: Any, **named: Any) -> Any:
        return getattr(self.group, name)(*args, **named)

    call.__name__, call.__doc__ = name, getattr(_core.NcclGroup, name).__doc__
    return call


class ProcessGroupNCCL(GroupBackend):
    """c10d's backend for CUDA devices. `group` is the NcclGroup that runs the calls.

    Communicators are created by the first operation, or immediately if the group is bound to a
    device. A wait for a work blocks CUDA streams, not the host: see docs/nccl.md.
    """

    Options = NCCLOptions
    _Options = NCCLOptions
    NCCLConfig = NCCLConfig

    NCCL_CTA_POLICY_DEFAULT, NCCL_CTA_POLICY_EFFICIENCY, NCCL_CTA_POLICY_ZERO = range(3)

    supports_coalescing = True

    group: _core.NcclGroup
    _store_types = _core.Store | None

    def _create_group(self, store: _core.Store | None, opts: NCCLOptions) -> _core.NcclGroup:
        settings = library.group_settings()
        settings["config"] = {**settings["config"], **opts.config._set_fields()}
        settings["is_high_priority"] = settings["is_high_priority"] or opts.is_high_priority_stream
        name = opts.group_name or "nccl"
        return _core.NcclGroup(store, self._rank, self._size, timeout=opts._timeout, name=name, **settings)

    def _set_group(self, group: _core.NcclGroup, options: BackendOptions) -> None:
        super()._set_group(group, options)
        self._pools: dict[int, tuple[Any, bool, dict[tuple[int, int], int]]] = {}

    @classmethod
    def _make(
        cls, store: _core.Store | None, pg: ProcessGroup, timeout: timedelta, options: Any, ranks: list[int], create_from_parent: Any
    ) -> ProcessGroupNCCL:
        """Create the backend of a new group: by calling `create_from_parent` if given, which uses an
        existing communicator, else by a rendezvous in the store."""
        opts = (options if isinstance(options, NCCLOptions) else NCCLOptions())._set_identity(timeout, list(ranks), pg.group_name)
        device = device_index(pg.bound_device_id) if _is_cuda(pg.bound_device_id) else None
        if create_from_parent is not None:
            backend: ProcessGroupNCCL = create_from_parent(opts)
        else:
            backend = cls(store, pg.rank(), pg.size(), opts)
            if device is not None:
                backend.eager_connect_single_device(device)
        backend.bound_device_id = pg.bound_device_id
        backend.group._describe(pg.group_name, pg.group_desc, ranks)
        return backend

    # ---- identity

    def getBackendName(self) -> str:
        return "nccl"

    @property
    def uid(self) -> str:
        """The name of the communicators in the store, which identifies them."""
        return self.options.group_name or self.group.name

    @staticmethod
    def get_build_nccl_version() -> tuple[int, int, int]:
        """Return the newest NCCL version that dldist knows. dldist is built without NCCL."""
        return library.version_of(_core._NCCL_VERSION_KNOWN)

    @staticmethod
    def get_runtime_nccl_version() -> tuple[int, int, int]:
        """Return the version of the loaded NCCL."""
        return library.version()

    supports_shrinking = property(lambda self: self.get_runtime_nccl_version() >= (2, 27, 3))  # type: ignore[assignment]
    supports_window = property(lambda self: self.get_runtime_nccl_version() >= (2, 29, 2))  # type: ignore[assignment]

    # ---- time, sequence numbers, errors

    _add_ephemeral_timeout = _group_method("add_ephemeral_timeout")
    _set_enable_nan_check = _group_method("set_nan_check")
    _wait_for_pending_works = _group_method("_wait_for_works")

    def _verify_work_timeout(self, work: Any, timeout: timedelta) -> bool:
        """Return True if the work has this timeout."""
        return bool(work.timeout == timeout)

    def _enable_collectives_timing(self) -> None:
        """Measure the durations of works from now on."""
        self.group.set_timing(True)

    def get_error(self) -> Any:
        is_remote = getattr(self.group.error, "rank", None) not in (None, self._rank)
        return ErrorType.REMOTE_ERROR if is_remote else super().get_error()

    # ---- shutdown

    def shutdown(self) -> None:
        """Wait for all calls, up to their timeouts, and destroy the communicators.

        Raises the error of a failed operation unless a caller has already received the error.
        """
        self.group.close()

    _shutdown = shutdown

    # ---- communicators

    def eager_connect_single_device(self, device: Any) -> None:
        """Create a device's communicator now. All ranks must call this."""
        self.group.connect(device_index(device))

    def _is_initialized(self) -> bool:
        """Return True if the communicator has been created."""
        return self.group.comm_pointer() != 0

    _comm_ptr = _group_method("comm_pointer")
    comm_split_count = _group_method("split_count")

    def perform_nocolor_split(self, device: Any) -> None:
        """Join a split of the communicator as a rank that is in none of the new groups."""
        self.group.skip_split(device_index(device))

    def _split(self, ranks: list[int], opts: NCCLOptions) -> ProcessGroupNCCL:
        opts.split_from = self
        color = opts.split_color if opts.split_color >= 0 else None
        config = opts.config._set_fields() or None
        return self._derive(self.group.split(ranks, opts.group_name or None, opts._timeout, color=color, config=config), opts)

    def _derive(self, group: _core.NcclGroup, opts: NCCLOptions) -> ProcessGroupNCCL:
        """Create a backend over a group that was created from this backend's group."""
        backend = ProcessGroupNCCL._from_group(group, opts)
        backend.bound_device_id = self.bound_device_id
        return backend

    def split(self, store: Any, ranks: list[int], opts: Any = None) -> ProcessGroupNCCL | None:
        """Create a backend for some of the ranks. All ranks must call this; others get None."""
        ranks = list(ranks)
        if self._rank not in ranks:
            self.group.skip_split()
            return None
        return self._split(ranks, self._derived_options(opts))

    def shrink(self, ranks_to_exclude: list[int], shrink_flags: int = 0, opts_override: Any = None) -> ProcessGroupNCCL:
        """Create a backend without these ranks; all other ranks must call this. shrink_flags=1
        aborts this backend.
        """
        opts = self._derived_options(opts_override)
        group = self.group.shrink(
            list(ranks_to_exclude), opts.group_name or None, opts._timeout, is_abort=shrink_flags != 0,
            config=opts.config._set_fields() or None,
        )
        return self._derive(group, opts)

    def _replace_options(self, opts: NCCLOptions) -> ProcessGroupNCCL:
        """Set the options of the group that this backend was created for; return the backend."""
        self._options = opts
        self.set_timeout(opts._timeout)
        return self

    def _can_shrink(self) -> bool:
        """Return True if the communicator exists, has no error, and can be shrunk by this NCCL."""
        return self._is_initialized() and self.group.error is None and self.supports_shrinking

    def merge(self, store: _core.Store, opts: Any, rank: int, size: int) -> ProcessGroupNCCL:
        """Create a backend of these and other ranks, which must all call this with one `store`.

        With NCCL 2.29.2 or newer, the existing communicator grows if its ranks keep their numbers;
        end this backend then. Otherwise a new communicator is created.
        """
        opts = self._derived_options(opts)
        is_member = rank == self._rank
        can_grow = is_member and self._size < size and self._can_grow()
        version = f"{self.get_runtime_nccl_version()}{' with grouped messages' if self.group.grouped_messages else ''}"
        if rank == 0:
            payload = f"{version} ".encode() + self.group.grow_id() if can_grow else b"meet"
            store.set("nccl/grow", payload)
        else:
            store.wait(["nccl/grow"], opts._timeout)
            payload = store.get("nccl/grow")
        if payload == b"meet":
            return ProcessGroupNCCL(store, rank, size, opts)
        rank_0_version, id = payload[:-UNIQUE_ID_NBYTES].decode().strip(), payload[-UNIQUE_ID_NBYTES:]
        if rank_0_version != version:
            raise RuntimeError(f"merge(): NCCL versions differ: got {version} on rank {rank}, expected {rank_0_version}, as on rank 0")
        group = self.group.grow(
            store, size, id if rank == 0 or not is_member else None, None if is_member else rank,
            name=opts.group_name or f"{self.uid}:merge", timeout=opts._timeout, config=opts.config._set_fields() or None,
        )
        return ProcessGroupNCCL._from_group(group, opts)

    def _can_grow(self) -> bool:
        """Return True if NCCL can grow the communicator: it exists and has several ranks."""
        return self._size > 1 and self._is_initialized() and self.get_runtime_nccl_version() >= (2, 29, 2)

    def _derived_options(self, opts: Any) -> NCCLOptions:
        if isinstance(opts, NCCLOptions):
            return opts
        derived = self.options.__deepcopy__({})
        derived.group_name = ""
        if opts is not None:
            derived._timeout, derived.group_name = opts._timeout, opts.group_name
        return derived  # type: ignore[no-any-return]

    # ---- coalescing

    _start_coalescing = _group_start = _group_method("start_coalescing")
    _end_coalescing = _group_method("end_coalescing")
    _drop_coalesced = _group_method("drop_coalesced")

    def _group_end(self) -> None:
        work = self.group.end_coalescing()
        if work is not None:
            work.wait()

    def _run_recv_anysource(self, tensors: Any, tag: int) -> Any:
        raise self._unsupported("recv_anysource: NCCL cannot receive from any rank")

    def _run_barrier(self, opts: Any) -> Any:
        ids = list(opts.device_ids or ()) or ([device_index(opts.device)] if opts.device is not None else None)
        return self.group.barrier(device_ids=ids, **self._call_options(opts))

    # ---- time estimates

    @property
    def supports_time_estimate(self) -> bool:  # type: ignore[override]
        return self.get_runtime_nccl_version() >= (2, 22, 3)

    _start_time_estimate = _group_method("_start_time_estimate")
    _end_time_estimate = _group_method("_end_time_estimate")
    _drop_time_estimate = _group_method("_drop_time_estimate")

    # ---- memory

    def register_mem_pool(self, pool: Any, symm: bool = False) -> None:
        """Register the memory of a pool with NCCL: a MemPool, or an object whose `segments` are
        pairs of an address and bytes.

        The communicator must exist. Call this again after the pool has changed, to register new
        segments and deregister released ones. With `symm`, segments become windows: all ranks must
        call this, with equally many new segments.
        """
        _, is_window, registered = self._pools.get(id(pool), (pool, symm, {}))
        if is_window != symm:
            raise RuntimeError(f"register_mem_pool(): the pool is already registered with symm={is_window}; call deregister_mem_pool() first")
        self._pools[id(pool)] = (pool, symm, registered)
        segments = _segments_of(pool)
        for released in registered.keys() - set(segments):
            self.group.deregister(registered.pop(released), is_window=symm)
        try:
            for segment in segments:
                if segment not in registered:
                    registered[segment] = self.group.register(*segment, is_window=symm)
        except BaseException:
            self.deregister_mem_pool(pool)
            raise

    def deregister_mem_pool(self, pool: Any) -> None:
        """Deregister the memory that register_mem_pool has registered for this pool."""
        if id(pool) not in self._pools:
            raise RuntimeError("deregister_mem_pool(): argument 'pool' is not registered: expected a pool of register_mem_pool()")
        _, is_window, registered = self._pools.pop(id(pool))
        for registration in registered.values():
            self.group.deregister(registration, is_window=is_window)

    def register_tensor(self, tensor: Any, window: bool = False) -> int:
        """Register a contiguous tensor's memory with NCCL; return a handle for deregister_tensor.

        Keep the tensor until it is deregistered. With `window`, all ranks must call this, with
        memory from ncclMemAlloc; for other memory NCCL returns 0, and uses no window.
        """
        return self.group.register(tensor, is_window=window)

    def deregister_tensor(self, registration: int, window: bool = False) -> None:
        """Deregister memory; `registration` is the result of register_tensor."""
        self.group.deregister(registration, is_window=window)

    def supports_tensor_alloc(self, device: Any) -> bool:
        """Return True if allocate_tensor works: for CUDA devices, with NCCL 2.19 or newer."""
        return _is_cuda(device) and self.get_runtime_nccl_version() >= (2, 19, 0)

    def allocate_tensor(self, size: int, *, dtype: Any, device: Any) -> Any:
        """Allocate by ncclMemAlloc: a torch tensor if torch is imported, else an NcclArray."""
        array = self.group.empty(size, dtype, device_index(device))
        torch = sys.modules.get("torch")
        return array if torch is None else torch.from_dlpack(array)

    @property
    def mem_allocator(self) -> Any:
        """An Allocator of ncclMemAlloc, for torch.cuda.MemPool(backend.mem_allocator.torch())."""
        return Allocator()

    def new_window(self, tensor: Any = None) -> Any:
        """Create a dldist.Window over NCCL's one-sided messages. All ranks must call this."""
        if not self.supports_window:
            version = ".".join(map(str, self.get_runtime_nccl_version()))
            raise NotImplementedError(f"new_window(): NCCL is too old for windows: got {version}, expected 2.29.2 or newer")
        return NcclGroupWindow(self.group, tensor)


def _is_cuda(device: Any) -> bool:
    if device is None:
        return False
    return isinstance(device, int) or str(getattr(device, "type", device)).partition(":")[0] == "cuda"


def _segments_of(pool: Any) -> list[tuple[int, int]]:
    segments = getattr(pool, "segments", None)
    if segments is not None:
        return [(int(address), int(nbytes)) for address, nbytes in (segments() if callable(segments) else segments)]
    snapshot = getattr(pool, "snapshot", None)
    if snapshot is None:
        kind = type(pool).__name__
        raise TypeError(f"register_mem_pool(): argument 'pool' must have segments of (address, bytes) or be torch's, not {kind}")
    return [(int(segment["address"]), int(segment["total_size"])) for segment in snapshot()]
