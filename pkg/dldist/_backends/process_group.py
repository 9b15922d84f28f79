"""ProcessGroup: a set of ranks with a backend for each type of device."""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from dldist import _core
from dldist._backends import registry
from dldist._backends.backend_base import Backend, BackendOptions, Member
from dldist._backends.backend_names import default_timeout, device_type_of
from dldist._backends.dispatcher import BackendCalls, Dispatcher
from dldist._backends.health_check import HealthCheckHook
from dldist._backends.hook_args import CompletionHookArgs, PostHookArgs, PreHookArgs, WorkInfo
from dldist._base import argument_names
from dldist._base.operations import first_of
from dldist._base.options import BackendType, ReconfigureOptions, _Options, as_int, as_timedelta
from dldist.world import call_all

if TYPE_CHECKING:
    from dldist._backends.hooks import Hooks

# The device type of each DLPack device number.
_DLPACK_DEVICES = {1: "cpu", 2: "cuda", 3: "cpu", 10: "cuda", 11: "cpu", 13: "cuda", 14: "xpu"}


def device_of(tensor: Any) -> str:
    """Return the device type of a tensor; "cpu" for objects without __dlpack_device__."""
    get_device = getattr(tensor, "__dlpack_device__", None)
    if get_device is None:
        return "cpu"
    number = int(get_device()[0])
    return _DLPACK_DEVICES.get(number, f"DLPack device type {number}")


class DistributedBackendOptions:
    """The argument that a registered backend's creator gets with the extended API."""

    def __init__(self) -> None:
        self.store: _core.Store | None = None
        self.group_rank = -1
        self.group_size = -1
        self.timeout: timedelta | None = None
        self.group_id = ""
        self.global_ranks_in_group: list[int] = []
        self.process_group: ProcessGroup | None = None
        self.split_from: Any = None
        self.enable_reconfigure = False


def _if_all_backends(name: str) -> Any:
    """Create a property that is True if there are backends and all of them have the property."""

    def is_true(pg: ProcessGroup) -> bool:
        backends = pg._distinct_backends()
        return bool(backends) and all(getattr(backend, name) for backend in backends)

    return property(is_true)


def _for_every_backend(name: str) -> Any:
    """Create a method that calls the method of this name of every backend."""

    def call(pg: ProcessGroup, *args: Any, **named: Any) -> None:
        for backend in pg._distinct_backends():
            getattr(backend, name)(*args, **named)

    return _copy_metadata(name, call)


def _for_one_backend(name: str) -> Any:
    """Create a method that calls the method of the only backend, or of the CPU's backend if there
    are several."""

    def call(pg: ProcessGroup, *args: Any, **named: Any) -> Any:
        return getattr(pg._backend_for(name, ()), name)(*args, **named)

    return _copy_metadata(name, call)


def _copy_metadata(name: str, call: Any) -> Any:
    """Give `call` the name, signature and documentation of Backend's method, and return it."""
    functools.update_wrapper(call, getattr(Backend, name))
    call.__module__, call.__qualname__ = __name__, f"ProcessGroup.{name}"
    return call


class ProcessGroup(Member):
    """A set of ranks, with a backend per device type. Created by init_process_group and new_group.

    The methods are c10d's low-level calls. They take group ranks, and lists of tensors with options
    or the flat forms, and return a Work that must be waited for. Subclasses may override them.
    """

    BackendType = BackendType
    Options = BackendOptions

    bound_device_id: Any = None
    use_pg_for_symm_mem_rendezvous = False
    """No effect: symmetric memory always uses the group for its rendezvous."""

    supports_splitting = _if_all_backends("supports_splitting")
    supports_coalescing = _if_all_backends("supports_coalescing")
    supports_time_estimate = _if_all_backends("supports_time_estimate")
    _supports_time_estimate = _if_all_backends("_supports_time_estimate")
    supports_shrinking = _if_all_backends("supports_shrinking")
    supports_reconfigure = _if_all_backends("supports_reconfigure")
    supports_window = _if_all_backends("supports_window")
    supports_abort_hooks = _if_all_backends("supports_abort_hooks")
    supports_completion_hooks = True
    """True, because the group calls the hooks for backends that do not."""

    def __init__(self, *args: Any) -> None:
        """ProcessGroup(store, rank, size), or ProcessGroup(rank, size) without a store."""
        if len(args) not in (2, 3):
            raise TypeError(f"ProcessGroup(): incompatible constructor arguments: got {len(args)}, expected (store, rank, size) or (rank, size)")
        store = args[0] if len(args) == 3 else None
        if not isinstance(store, _core.Store | None):
            raise TypeError(f"ProcessGroup(): argument 'store' must be a Store, not {argument_names.type_name(store)}")
        super().__init__(*args[-2:])
        self._store: _core.Store | None = store
        self._name = ""
        self._desc = "undefined"
        self._backends: dict[str, Any] = {}
        self._backend_types: dict[str, Any] = {}
        self._default_type: Any = BackendType.UNDEFINED
        self._hooks: Hooks | None = None
        self._shutdown_calls: list[Callable[[], object]] = []

    # ---- identity

    def getBackendName(self) -> str:
        """Return the first backend's name, or "custom" if third-party (see get_backend())."""
        for kind, backend in self._backends.items():
            return "custom" if self._backend_types[kind] == BackendType.CUSTOM else backend.name()
        return "undefined"

    @property
    def group_name(self) -> str:
        return self.getGroupName()

    def getGroupName(self) -> str:
        return self._name

    def _set_group_name(self, name: str) -> None:
        self.setGroupName(name)

    def setGroupName(self, name: str) -> None:
        self._name = name

    @property
    def group_desc(self) -> str:
        return self.getGroupDesc()

    def getGroupDesc(self) -> str:
        return self._desc

    def _set_group_desc(self, desc: str) -> None:
        self.setGroupDesc(desc)

    def setGroupDesc(self, desc: str) -> None:
        self._desc = desc

    def get_group_store(self) -> Any:
        """Return the store of the group's rendezvous, prefixed with the group's own prefix."""
        return self._store

    def _id(self) -> int:
        return id(self)

    def boxed(self) -> ProcessGroup:
        """Return the group itself: torch's compiler needs a box for groups, dldist does not."""
        return self

    @staticmethod
    def unbox(boxed: ProcessGroup) -> ProcessGroup:
        """Return the group that boxed() was called on."""
        if not isinstance(boxed, ProcessGroup):
            raise RuntimeError(f"unbox(): got {type(boxed).__name__}, expected the result of ProcessGroup.boxed()")
        return boxed

    def __repr__(self) -> str:
        return f'<{type(self).__module__}.{type(self).__qualname__} "{self.group_name}", rank {self.rank()} of {self.size()}>'

    # ---- backends

    def _register_backend(self, device: Any, backend_type: Any, backend: Any = None) -> None:
        """Set the backend of a device type."""
        kind = device_type_of(device)
        self._backend_types[kind] = backend_type
        if backend is not None:
            self._backends[kind] = backend
        self._reset_operations()

    def get_backend(self, device: Any) -> Any:
        """Return the backend that serves this device."""
        kind = device_type_of(device)
        backend = self._backends.get(kind)
        if backend is None:
            names = ", ".join(f"{kind}:{backend.name()}" for kind, backend in self._backends.items()) or "none"
            raise RuntimeError(f"No backend type associated with device type {kind}: group {self.group_name!r} has {names}")
        return backend

    _get_backend = get_backend

    def _backend_of_device(self, kind: str) -> Any:
        return self._backends.get(kind)

    def _distinct_backends(self, kinds: list[str] | None = None) -> list[Any]:
        """List the different backends of some device types, or of all."""
        backends = self._backends.values() if kinds is None else map(self._get_backend, kinds)
        return list({id(backend): backend for backend in backends}.values())

    @property
    def _device_types(self) -> list[str]:
        return list(self._backends)

    def _set_default_backend(self, backend_type: Any) -> None:
        self._default_type = backend_type

    def _backend_id(self, backend_type: Any) -> int:
        return int(backend_type)

    @property
    def operations(self) -> Any:
        """The object that runs the operations, with methods like dldist.Group's.

        If dldist's own groups serve all devices and there are no hooks, this is the World, linked
        to the NcclGroup if any; else a Dispatcher, or BackendCalls for a subclass that overrides
        calls.
        """
        if self._operations is None:
            is_plain = type(self) is ProcessGroup
            self._operations = (self._single_group() or Dispatcher(self)) if is_plain else BackendCalls(self)
        return self._operations

    _operations: Any = None

    def _single_group(self) -> Any:
        """Return the one group that serves all devices, or None if a Dispatcher is needed."""
        if self._hooks or not self._backends.keys() <= {"cpu", "cuda", "xpu"}:
            return None
        groups: list[Any] = [getattr(backend, "group", None) for backend in self._distinct_backends()]
        if not groups or not all(isinstance(group, _core.Group) for group in groups):
            return None
        cpu_group, device_group = groups[0], groups[-1]
        if isinstance(cpu_group, _core.NcclGroup):
            return cpu_group if len(groups) == 1 else None
        is_pair = len(groups) == 2 and isinstance(device_group, _core.NcclGroup)
        cpu_group._device_group = device_group if is_pair else None
        return cpu_group if is_pair or len(groups) == 1 else None

    def _reset_operations(self) -> None:
        """Reset `operations`. Call this after a change of backends or hooks."""
        self._operations = None
        if registry._world.default_pg is self:
            registry._world.default_pg = self

    # ---- calls

    def _perform(self, method: str, *arguments: Any) -> Any:
        backend = self._backend_for(method, arguments)
        call = getattr(backend, method)
        if not self._hooks:
            return call(*arguments)
        return self._hooks.run_call(method, arguments, lambda: call(*arguments))

    def _backend_for(self, method: str, arguments: tuple[Any, ...]) -> Any:
        if method == "barrier":
            opts = arguments[0]
            if opts.device is not None:
                return self._get_backend(opts.device)
            if opts.device_ids and "cuda" in self._backends:
                return self._backends["cuda"]
        return self._backend_for_tensor(_first_tensor(arguments), method)

    def _backend_for_tensor(self, tensor: Any, method: str = "call") -> Any:
        """Return the backend for a tensor's device; for None, the CPU's backend if there is one."""
        backends = self._distinct_backends()
        if not backends:
            raise RuntimeError(f"{method}(): {type(self).__name__} {self.group_name!r} has no backend; register one, or override {method}")
        if len(backends) == 1:
            return backends[0]
        return self._backends.get("cpu", backends[0]) if tensor is None else self._get_backend(device_of(tensor))

    # ---- hooks

    def _ensure_hooks(self) -> Hooks:
        if self._hooks is None:
            from dldist._backends.hooks import Hooks

            self._hooks = Hooks()
        return self._hooks

    def register_pre_hook(self, hook_id: int, hook: Callable[[PreHookArgs], object]) -> None:
        """Register a hook to call with PreHookArgs before each operation; replaces hook `hook_id`.

        If the hook raises, the operation does not start, and the caller gets the error.
        """
        self._ensure_hooks().register_pre(hook_id, hook)
        self._reset_operations()

    def unregister_pre_hook(self, hook_id: int) -> None:
        self._ensure_hooks().unregister_pre(hook_id)
        self._reset_operations()

    def register_post_hook(self, hook_id: int, hook: Callable[[PostHookArgs], object]) -> None:
        """Register a hook to call with PostHookArgs after every operation has started."""
        self._ensure_hooks().register_post(hook_id, hook)
        self._reset_operations()

    def unregister_post_hook(self, hook_id: int) -> None:
        self._ensure_hooks().unregister_post(hook_id)
        self._reset_operations()

    def register_completion_hook(self, hook_id: int, hook: Callable[[CompletionHookArgs], object]) -> None:
        """Register a hook to call with CompletionHookArgs for each later operation that succeeds.

        The hook runs on the thread that notices the completion. Errors go to sys.unraisablehook.
        """
        backend = self._backend_with_completion_hooks()
        if backend is not None:
            backend.register_completion_hook(hook_id, hook)
            return
        self._ensure_hooks().ensure_completion().register(hook_id, hook)
        self._reset_operations()

    def unregister_completion_hook(self, hook_id: int) -> None:
        """Remove a completion hook. Does nothing if the id is unknown."""
        backend = self._backend_with_completion_hooks()
        if backend is not None:
            backend.unregister_completion_hook(hook_id)
            return
        self._ensure_hooks().ensure_completion().unregister(hook_id)
        self._reset_operations()

    def _backend_with_completion_hooks(self) -> Any:
        """Return the backend that calls completion hooks itself; None if the group must."""
        backends = self._distinct_backends()
        return backends[0] if len(backends) == 1 and backends[0].supports_completion_hooks else None

    register_abort_hook = _for_every_backend("register_abort_hook")
    unregister_abort_hook = _for_every_backend("unregister_abort_hook")

    def _has_hooks(self) -> bool:
        return bool(self._hooks)

    # ---- lifecycle

    def get_timeout(self) -> timedelta:
        """Return the default timeout of operations."""
        for backend in self._distinct_backends():
            try:
                timeout: timedelta = backend.options._timeout
                return timeout
            except (RuntimeError, AttributeError):
                pass  # this backend has no options, so no timeout
        return default_timeout("undefined")

    set_timeout = _for_every_backend("set_timeout")
    _add_ephemeral_timeout = _for_every_backend("_add_ephemeral_timeout")

    def shutdown(self) -> None:
        """Shut down cleanly: notify other ranks, and wait until completion hooks have returned."""
        calls = [backend.shutdown for backend in self._distinct_backends()]
        call_all([*calls, self._wait_for_completion_hooks, *self._take_shutdown_calls()])

    def abort(self, reason: str = "abort() was called") -> None:
        """End the group, and unfinished operations with errors. Other ranks receive the reason."""
        calls = [_abort_function(backend, reason) for backend in self._distinct_backends()]
        call_all([*calls, *self._take_shutdown_calls()])

    def revoke(self) -> None:
        """End unfinished operations with errors; the group can still create other groups."""
        call_all([backend.revoke for backend in self._distinct_backends()])

    def _on_shutdown(self, call: Callable[[], object]) -> None:
        """Register a function to call when the group ends."""
        self._shutdown_calls.append(call)

    def _take_shutdown_calls(self) -> list[Callable[[], object]]:
        calls, self._shutdown_calls = self._shutdown_calls, []
        return calls

    _set_sequence_number_for_group = _for_every_backend("_set_sequence_number_for_group")
    _get_sequence_number_for_group = _for_one_backend("_get_sequence_number_for_group")

    def _start_coalescing(self, device_type: Any) -> None:
        self._get_backend(device_type)._start_coalescing()

    def _end_coalescing(self, device_type: Any) -> Any:
        return self._end_coalescing_of(self._get_backend(device_type))

    def _end_coalescing_of(self, backend: Any) -> Any:
        """End the backend's coalescing and return its work. Completion hooks run once for it."""
        hooks = self._hooks
        return backend._end_coalescing() if not hooks else hooks.start_coalesced(backend._end_coalescing)

    def _register_on_completion_hook(self, hook: Callable[[WorkInfo], object]) -> None:
        """Register a completion hook that gets WorkInfo. Only one is allowed; it stays forever."""
        for backend in self._distinct_backends():
            if type(backend)._register_on_completion_hook is not Backend._register_on_completion_hook:
                backend._register_on_completion_hook(hook)  # a third-party backend with this method
                return
        self._ensure_hooks().ensure_completion().register_on_work_info(hook)
        self._reset_operations()

    def _wait_for_pending_works(self) -> None:
        """Wait until this rank's operations have ended and completion hooks have returned."""
        for backend in self._distinct_backends():
            backend._wait_for_pending_works()
        self._wait_for_completion_hooks()

    def _wait_for_completion_hooks(self) -> None:
        if self._hooks is not None and self._hooks.completion is not None:
            self._hooks.completion.wait(self.get_timeout())

    _enable_collectives_timing = _for_every_backend("_enable_collectives_timing")
    get_error = _for_one_backend("get_error")

    @property
    def options(self) -> Any:
        """The options of the only backend, or of the CPU's."""
        return self._backend_for("options", ()).options

    # ---- other members

    def split_group(
        self,
        ranks: list[int],
        timeout: timedelta | None = None,
        opts: Any = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: list[str] | None = None,
    ) -> ProcessGroup | None:
        """Create a group of some ranks, in this order; other ranks get None. The caller must end
        the group.

        If NCCL is a backend, all ranks must call this, to split communicators; else only members.
        """
        ranks = argument_names.read_ranks(ranks, self.size())
        if not ranks or len(set(ranks)) != len(ranks) or not all(rank in range(self.size()) for rank in ranks):
            raise ValueError(f"split_group(): argument 'ranks': got {ranks}, expected different ranks in 0 to {self.size() - 1}")
        kinds = self._device_types if device_types is None else device_types
        if self.rank() not in ranks:
            for backend in self._distinct_backends(kinds):
                # Non-members must also call split() if the backend needs all ranks.
                backend.split(self._store, ranks, opts)
            return None

        def split(backend: Any, name: str) -> Any:
            return backend.split(self._store, ranks, _options_for(backend, opts, timeout, name))

        return self._make_from_backends(split, kinds, ranks.index(self.rank()), len(ranks), "split", group_name, group_desc)

    def merge_remote_group(
        self,
        store: _core.Store,
        size: int,
        timeout: timedelta | None = None,
        group_name: str | None = None,
        group_desc: str | None = None,
    ) -> ProcessGroup:
        """Create a group of `size` ranks by merging all groups that call this with the same store.

        All ranks of each group must call this; they get consecutive ranks in the new group. The
        caller must end the new group.
        """
        first_rank = bytearray(8)
        if self.rank() == 0:
            first_rank[:] = (store.add("merge_remote_group/ranks", self.size()) - self.size()).to_bytes(8, "little")
        self.broadcast(first_rank, root=0).wait()
        rank = int.from_bytes(first_rank, "little") + self.rank()
        if rank >= size:
            raise ValueError(f"merge_remote_group(): argument 'size': too many ranks: got {rank + 1}, expected {size}")
        prefixed_store = _core.PrefixStore("merge_remote_group/", store)

        def merge(backend: Any, name: str) -> Any:
            return backend.merge(prefixed_store, _options_for(backend, None, timeout, name), rank, size)

        return self._make_from_backends(merge, self._device_types, rank, size, "merge", group_name, group_desc)

    def _make_from_backends(
        self, make: Callable[[Any, str], Any], kinds: list[str], rank: int, size: int, suffix: str, name: str | None, desc: str | None
    ) -> ProcessGroup:
        """Create a group. `make` creates its backends from this group's backends for `kinds`."""
        pg = ProcessGroup(rank, size) if self._store is None else ProcessGroup(self._store, rank, size)
        pg._set_group_name(f"{self.group_name}:{suffix}" if name is None else name)
        pg._set_group_desc(f"{self.group_desc}:{suffix}" if desc is None else desc)
        pg.bound_device_id = self.bound_device_id
        new_backends = {id(backend): make(backend, pg.group_name) for backend in self._distinct_backends(kinds)}
        for kind in kinds:
            pg._register_backend(kind, self._backend_types[device_type_of(kind)], new_backends[id(self._get_backend(kind))])
        HealthCheckHook.attach(pg)
        return pg

    get_reconfigure_handle = _for_one_backend("get_reconfigure_handle")

    def reconfigure(
        self,
        uuid: Any = None,
        handles: Any = None,
        timeout: timedelta | None = None,
        hints: dict[str, str] | None = None,
        *,
        opts: ReconfigureOptions | None = None,
    ) -> Any:
        """Change the members: see ProcessGroupGloo. Takes one ReconfigureOptions, or its fields."""
        if isinstance(uuid, ReconfigureOptions):
            opts = uuid
        if opts is None:
            opts = ReconfigureOptions()
            opts.uuid, opts.handles, opts.hints = as_int("reconfigure(): argument 'uuid'", uuid), handles, hints or {}
            if timeout is not None:
                opts.timeout = as_timedelta("reconfigure(): argument 'timeout'", timeout)
        return self._backend_for("reconfigure", ()).reconfigure(opts)

    def _on_reconfigured(self, backend: Any) -> None:
        """Take the new rank and size from a backend whose members have changed."""
        self._rank, self._size = backend.rank(), backend.size()
        ranks = registry._world.pg_group_ranks
        if self in ranks:
            ranks[self] = {rank: rank for rank in range(self._size)}
        self._reset_operations()

    shrink = _for_one_backend("shrink")

    # ---- memory, windows

    def new_window(self, tensor: Any = None) -> Any:
        """Create a dldist.Window: memory that other ranks can write. All ranks must call this."""
        return self._perform("new_window", tensor)

    @property
    def mem_allocator(self) -> Any:
        return self._backend_for("mem_allocator", ()).mem_allocator

    def supports_tensor_alloc(self, device: Any) -> bool:
        return self._get_backend(device).supports_tensor_alloc(device)

    def allocate_tensor(self, size: int, *, dtype: Any, device: Any) -> Any:
        return self._get_backend(device).allocate_tensor(size, dtype=dtype, device=device)

    def eager_connect_single_device(self, device: Any) -> None:
        self._get_backend(device).eager_connect_single_device(device)

    suspend = _for_every_backend("suspend")
    resume = _for_every_backend("resume")
    memory_stats = _for_one_backend("memory_stats")


for _name, _type in BackendType.__members__.items():
    setattr(ProcessGroup, _name, _type)  # as in pybind11, the class also has the enum's values


def _options_for(backend: Any, opts: Any, timeout: timedelta | None, group_name: str) -> Any:
    """Return options for a backend derived from `backend`: `opts`, else a copy of its options."""
    timeout = None if timeout is None else as_timedelta(argument_names.title("timeout"), timeout)
    if opts is None:
        opts = BackendOptions(backend.name(), backend.options._timeout if timeout is None else timeout)
        opts.group_name = group_name
    elif timeout is not None:
        opts._timeout = timeout
    return opts


def abort_with_reason(pg: ProcessGroup, reason: str) -> None:
    """Abort any group. If a subclass overrides abort(), call it without the reason, as in c10d."""
    if type(pg).abort is ProcessGroup.abort:
        pg.abort(reason)
    else:
        pg.abort()


def _abort_function(backend: Any, reason: str) -> Callable[[], object]:
    """Return a function that aborts a backend. dldist's own backends also get the reason."""

    def abort() -> None:
        group = getattr(getattr(backend, "wrapped_pg", backend), "group", None)
        if isinstance(group, _core.Group):
            group.abort(reason)  # first, because a group keeps its first reason
        backend.abort()

    return abort


def _first_tensor(arguments: tuple[Any, ...]) -> Any:
    """Return the first tensor in a call's arguments. Tensors must precede all other arguments."""
    for argument in arguments:
        first = first_of(argument)
        if first is not None and not isinstance(first, (_Options, int)):
            return first
    return None
