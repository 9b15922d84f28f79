"""ProcessGroup: ranks, and for every type of device the backend that moves its bytes."""

from __future__ import annotations

from dldist import _core
from dldist.c10d import registry
from dldist.c10d.backend_base import BackendOptions, LowLevelCalls
from dldist.c10d.dispatch import Dispatcher
from dldist.c10d.names import device_type_of
from dldist.c10d.options import BackendType, _Options

TYPE_CHECKING = False  # typing takes longer to import than all of this package
if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta
    from typing import Any

    from dldist.c10d.hooks import Hooks

# DLPack's device types.
_DLPACK_DEVICES = {1: "cpu", 2: "cuda", 3: "cpu", 10: "cuda", 11: "cpu", 13: "cuda", 14: "xpu"}


def device_of(tensor: Any) -> str:
    """The type of the device that a tensor is on; what says nothing about that is memory of the CPU."""
    ask = getattr(tensor, "__dlpack_device__", None)
    if ask is None:
        return "cpu"
    number = int(ask()[0])
    return _DLPACK_DEVICES.get(number, f"DLPack device type {number}")


class DistributedBackendOptions:
    """What the creator of a registered backend gets with the extended API."""

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


class ProcessGroup(LowLevelCalls):
    """A set of ranks, with a backend for each type of device. init_process_group and new_group make them.

    The methods are c10d's low-level calls: group ranks, lists of tensors and options (or the flat forms), and a Work that has to
    be waited for. A subclass that overrides them is a group of its own kind.
    """

    BackendType = BackendType
    Options = BackendOptions

    def __init__(self, *args: Any) -> None:
        """ProcessGroup(store, rank, size), or ProcessGroup(rank, size) without a store."""
        if len(args) not in (2, 3):
            raise TypeError(f"ProcessGroup(): incompatible constructor arguments: store, rank and size, not {len(args)}")
        self._store: _core.Store | None = args[0] if len(args) == 3 else None
        self._rank, self._size = args[-2], args[-1]
        self._name = ""
        self._desc = "undefined"
        self._backends: dict[str, Any] = {}
        self._backend_types: dict[str, Any] = {}
        self._default_type: Any = BackendType.UNDEFINED
        self._hooks: Hooks | None = None
        self._shutdown_calls: list[Callable[[], object]] = []
        self.bound_device_id: Any = None

    # ---- who it is

    def rank(self) -> int:
        """This process's rank in the group."""
        return self.getRank()

    def getRank(self) -> int:
        return self._rank

    def size(self) -> int:
        """How many ranks there are."""
        return self.getSize()

    def getSize(self) -> int:
        return self._size

    def name(self) -> str:
        """The name of the backend."""
        return self.getBackendName()

    def getBackendName(self) -> str:
        backends = self._distinct_backends()
        return backends[0].name() if backends else "undefined"

    def _get_backend_name(self) -> str:
        return self.getBackendName()

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
        """The store that its ranks met in, with a prefix of its own."""
        return self._store

    def _id(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        return f'<{type(self).__module__}.{type(self).__qualname__} "{self.group_name}", rank {self.rank()} of {self.size()}>'

    # ---- backends

    def _register_backend(self, device: Any, backend_type: Any, backend: Any = None) -> None:
        """Have this backend serve a type of device."""
        kind = device_type_of(device)
        self._backend_types[kind] = backend_type
        if backend is not None:
            self._backends[kind] = backend
        self._choose_operations()

    def _get_backend(self, device: Any) -> Any:
        """The backend that serves this device."""
        kind = device_type_of(device)
        backend = self._backends.get(kind)
        if backend is None:
            raise RuntimeError(
                f"No backend type associated with device type {kind}: group {self.group_name!r} has {self._backend_list()}"
            )
        return backend

    get_backend = _get_backend

    def _backend_of_device(self, kind: str) -> Any:
        return self._backends.get(kind)

    def _distinct_backends(self) -> list[Any]:
        return list({id(backend): backend for backend in self._backends.values()}.values())

    def _backend_list(self) -> str:
        return ", ".join(f"{kind}:{backend.name()}" for kind, backend in self._backends.items()) or "none"

    @property
    def _device_types(self) -> list[str]:
        return list(self._backends)

    def _set_default_backend(self, backend_type: Any) -> None:
        self._default_type = backend_type

    def _backend_id(self, backend_type: Any) -> int:
        return int(backend_type)

    @property
    def operations(self) -> Any:
        """What runs its operations, with methods as those of dldist.Group: the World of the CPU itself when there is nothing
        beside it to look after, which is the short way."""
        backends = self._distinct_backends()
        is_plain = type(self) is ProcessGroup and len(backends) == 1 and not self._hooks
        group = getattr(backends[0], "group", None) if is_plain else None
        if isinstance(group, _core.Group):
            return group
        if self._dispatcher is None:
            self._dispatcher = Dispatcher(self)
        return self._dispatcher

    _dispatcher: Dispatcher | None = None

    def _choose_operations(self) -> None:
        """Something that `operations` depends on is different now."""
        if registry._world.default_pg is self:
            registry._world.default_pg = self

    # ---- calls

    def _perform(self, method: str, *arguments: Any) -> Any:
        backend = self._backend_for(method, arguments)
        call = getattr(backend, method)
        if not self._hooks:
            return call(*arguments)
        return self._hooks.run(method, arguments, lambda: call(*arguments))

    def _backend_for(self, method: str, arguments: tuple[Any, ...]) -> Any:
        backends = self._distinct_backends()
        if not backends:
            raise RuntimeError(f"group {self.group_name!r} has no backend")
        if len(backends) == 1:
            return backends[0]
        if method == "barrier" and arguments[0].device is not None:
            return self._get_backend(arguments[0].device)
        tensor = _first_tensor(arguments)
        if tensor is not None:
            return self._get_backend(device_of(tensor))
        return self._backends.get("cpu", backends[0])

    # ---- hooks

    def _hooks_made(self) -> Hooks:
        if self._hooks is None:
            from dldist.c10d.hooks import Hooks

            self._hooks = Hooks()
        return self._hooks

    def register_pre_hook(self, id: int, fn: Callable[[Any], object]) -> None:
        """Have fn(args) called before every operation; what it raises the caller gets. An id is taken over by the latest."""
        self._hooks_made().register_pre(id, fn)
        self._choose_operations()

    def unregister_pre_hook(self, id: int) -> None:
        self._hooks_made().unregister_pre(id)
        self._choose_operations()

    def register_post_hook(self, id: int, fn: Callable[[Any], object]) -> None:
        """Have fn(args) called after every operation has been started."""
        self._hooks_made().register_post(id, fn)
        self._choose_operations()

    def unregister_post_hook(self, id: int) -> None:
        self._hooks_made().unregister_post(id)
        self._choose_operations()

    def register_abort_hook(self, id: int, fn: Callable[[], object]) -> None:
        """Have fn() called when a backend aborts."""
        for backend in self._distinct_backends():
            backend.register_abort_hook(id, fn)

    def unregister_abort_hook(self, id: int) -> None:
        for backend in self._distinct_backends():
            backend.unregister_abort_hook(id)

    def _has_hooks(self) -> bool:
        return bool(self._hooks)

    # ---- life

    def get_timeout(self) -> timedelta:
        """The time-out of operations that are given none."""
        from dldist.c10d.groups import default_timeout

        for backend in self._distinct_backends():
            timeout = getattr(getattr(backend, "options", None), "_timeout", None)
            if timeout is not None:
                return timeout
        return default_timeout("undefined")

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the time-out of later operations, in all backends."""
        for backend in self._distinct_backends():
            backend.set_timeout(timeout)

    def _set_default_timeout(self, timeout: timedelta) -> None:
        self.set_timeout(timeout)

    def shutdown(self) -> None:
        """End it in good order: say goodbye to the other ranks."""
        try:
            for backend in self._distinct_backends():
                backend.shutdown()
        finally:
            for call in self._take_shutdown_calls():
                call()

    def abort(self, reason: str = "abort() was called") -> None:
        """End it, and what is under way, at once; the other ranks hear the reason."""
        try:
            for backend in self._distinct_backends():
                abort_backend(backend, reason)
        finally:
            for call in self._take_shutdown_calls():
                call()

    def _on_shutdown(self, call: Callable[[], object]) -> None:
        """Have it called at the end of this group."""
        self._shutdown_calls.append(call)

    def _take_shutdown_calls(self) -> list[Callable[[], object]]:
        calls, self._shutdown_calls = self._shutdown_calls, []
        return calls

    def _set_sequence_number_for_group(self) -> None:
        for backend in self._distinct_backends():
            backend._set_sequence_number_for_group()

    def _get_sequence_number_for_group(self) -> int:
        return self._backends.get("cpu", self._distinct_backends()[0])._get_sequence_number_for_group()

    def _start_coalescing(self, device: Any) -> None:
        self._get_backend(device)._start_coalescing()

    def _end_coalescing(self, device: Any) -> Any:
        return self._get_backend(device)._end_coalescing()

    def _wait_for_pending_works(self) -> None:
        for backend in self._distinct_backends():
            backend._wait_for_pending_works()


def abort_backend(backend: Any, reason: str) -> None:
    """Abort; backends of other makers know no reason."""
    from dldist.c10d.gloo import ProcessGroupGloo

    if isinstance(backend, ProcessGroupGloo):
        backend.abort(reason)
    else:
        backend.abort()


def _first_tensor(arguments: tuple[Any, ...]) -> Any:
    """Of the arguments of a call: tensors, lists of them and lists of lists come before all else."""
    for argument in arguments:
        while isinstance(argument, (list, tuple)):
            argument = argument[0] if argument else None
        if argument is not None and not isinstance(argument, (_Options, int)):
            return argument
    return None
