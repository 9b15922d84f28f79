"""The CPU backend under c10d's name: c10d's low-level calls over a World."""

from __future__ import annotations

from dldist import _core
from dldist.c10d.backend_base import BackendOptions
from dldist.c10d.options import ReconfigureOptions, timeout_of
from dldist.c10d.over_group import OverGroup
from dldist.world import CLOSE_TIMEOUT_S, World

TYPE_CHECKING = False  # typing takes longer to import than all of this package
if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta
    from typing import Any

    from dldist.c10d.process_group import ProcessGroup
    from dldist.c10d.window import Window


class GlooDevice:
    """ProcessGroupGloo.Device, which create_device returns: an address of this host. Groups do not use it."""

    def __init__(self, hostname: str = "", interface: str = "") -> None:
        self.hostname = hostname
        self.interface = interface

    def __repr__(self) -> str:
        return f"<ProcessGroupGloo.Device hostname={self.hostname!r} interface={self.interface!r}>"


def _as_devices(where: str, devices: Any) -> list[GlooDevice]:
    devices = list(devices)
    wrong = next((each for each in devices if not isinstance(each, GlooDevice)), None)
    if wrong is not None:
        raise TypeError(f"{where} must be a list of ProcessGroupGloo.Device, but has a {type(wrong).__name__}")
    return devices


class GlooOptions(BackendOptions):
    """ProcessGroupGloo._Options. Devices and threads are accepted but have no effect: environment variables choose the
    interfaces, and the thread that waits does the work. So the list of devices may be empty."""

    _checks = {**BackendOptions._checks, "_devices": _as_devices}

    def __init__(self, timeout: timedelta | None = None) -> None:
        super().__init__("gloo", timeout)
        self._devices: list[GlooDevice] = []
        self._threads = 2


class ProcessGroupGloo(OverGroup):
    """c10d's CPU backend. `group` is the World behind it.

    With enable_reconfigure it has no World at first. Each call of reconfigure() names the members and makes a new World.
    """

    Options = GlooOptions
    _Options = GlooOptions
    Device = GlooDevice

    supports_reconfigure = True
    supports_window = True

    group: Any
    """The World behind it; None before reconfigure()."""
    # These are only for backends that can be reconfigured.
    _store: _core.Store | None = None
    _handle = ""
    _when_reconfigured: Callable[[ProcessGroupGloo], object] | None = None

    def _open(self, store: _core.Store, opts: GlooOptions) -> World | None:
        if not opts.enable_reconfigure:
            return World(store, self._rank, self._size, timeout=opts._timeout, name="gloo")
        from uuid import uuid4

        self._store = store
        self._handle = uuid4().hex
        return None

    @classmethod
    def _make(
        cls,
        store: _core.Store | None,
        pg: ProcessGroup,
        timeout: timedelta,
        source: tuple[_core.Group, list[int]] | None,
        ranks: list[int],
    ) -> ProcessGroupGloo:
        """The backend for a group that is being made. It is split off from `source` if there is one; else the ranks meet in the
        store."""
        desc = pg.group_desc
        label = "default" if desc == "default_pg" else pg.group_name if desc in ("", "undefined") else desc
        if source is not None:
            group = _split(source[0], source[1], label, timeout)
        elif pg.size() == 1:
            group = World(_core.HashStore(), 0, 1, timeout=timeout, name=label)
        else:
            group = World(store, pg.rank(), pg.size(), timeout=timeout, name=label)
        group._describe(pg.group_name, desc, ranks)
        return cls._of(group, GlooOptions()._for(timeout, ranks, pg.group_name))

    @classmethod
    def _unconnected(cls, store: _core.Store | None, pg: ProcessGroup, timeout: timedelta) -> ProcessGroupGloo:
        """The backend for a group whose members reconfigure() will name."""
        if store is None:
            raise RuntimeError("enable_reconfigure=True needs a store")
        self = cls(store, pg.rank(), pg.size(), timeout=timeout, enable_reconfigure=True)
        self.options.group_name = pg.group_name
        self._when_reconfigured = pg._reconfigured
        return self

    def _require_group(self) -> Any:
        if self.group is None:
            raise RuntimeError(
                "ProcessGroupGloo has not been initialized. Call reconfigure() before issuing collectives when "
                "enable_reconfigure=True."
            )
        return self.group

    # ---- several tensors in a call, and sparse ones

    def _run_otherwise(self, method: str, arguments: tuple[Any, ...], refusal: Exception) -> Any:
        from dldist.c10d import gloo_forms

        return gloo_forms.run(self, method, arguments, refusal)

    def _run_allreduce_sparse(self, tensors: Any, opts: Any) -> Any:
        from dldist.c10d import gloo_forms

        refusal = RuntimeError("ProcessGroupGloo::allreduce_sparse: the tensor is not sparse")
        return gloo_forms.run(self, "allreduce_sparse", (tensors, opts), refusal)

    # ---- devices, which groups do not use

    @staticmethod
    def create_device(hostname: str = "", interface: str = "", lazy_init: bool | None = None) -> GlooDevice:
        """An object for the options, for an interface or an address of this host. DLDIST_SOCKET_IFNAME says which are used."""
        if interface:
            _check_interface(interface)
        elif hostname:
            _check_local(hostname)
        else:
            raise ValueError("Specify either `hostname` or `interface` argument.")
        return GlooDevice(hostname, interface)

    @staticmethod
    def create_default_device(lazy_init: bool | None = None) -> GlooDevice:
        """An object for the options."""
        return GlooDevice()

    # ---- the group

    def getBackendName(self) -> str:
        return "gloo"

    def _wait_for_pending_works(self) -> None:
        """Nothing to do: each work keeps what it needs."""

    def _enable_collectives_timing(self) -> None:
        """Nothing to do: works always measure their time."""

    def shutdown(self) -> None:
        if self.group is not None:
            _close(self.group, CLOSE_TIMEOUT_S)

    def new_window(self, tensor: Any = None) -> Window:
        from dldist.c10d.window import Window

        return Window(self._require_group(), tensor)

    # ---- other members

    def split(self, store: _core.Store | None, ranks: list[int], opts: Any = None) -> ProcessGroupGloo | None:
        """The backend for some of the ranks. Only those need to call this."""
        group = self._require_group()
        if self._rank not in ranks:
            return None
        part = _split(group, list(ranks), None, None if opts is None else opts._timeout)
        name = "" if opts is None else opts.group_name
        return ProcessGroupGloo._of(part, GlooOptions()._for(part.timeout, list(ranks), name))

    def merge(self, store: _core.Store, opts: Any, rank: int, size: int) -> ProcessGroupGloo:
        """A backend for these ranks and more. All of them meet in `store`."""
        return ProcessGroupGloo(store, rank, size, self.options._timeout if opts is None else opts._timeout)

    def get_reconfigure_handle(self) -> str:
        """The handle that names this process in reconfigure()."""
        if self._store is None:
            raise self._unsupported("get_reconfigure_handle without enable_reconfigure=True")
        return self._handle

    def reconfigure(self, opts: ReconfigureOptions) -> Any:
        """Become a group of the processes whose handles are given. The previous group ends.

        All of these processes call it with the same uuid, which may be used only once. A list of handles is in the order of the
        ranks; a set is sorted.
        """
        if self._store is None:
            raise self._unsupported("reconfigure without enable_reconfigure=True")
        handles = _check_handles(opts.handles, self._handle)
        before, self.group = self.group, None
        if before is not None:
            _close(before, 0)  # at once; this does no harm to members that are still in an operation that has ended here
        rank, size = handles.index(self._handle), len(handles)
        store = _core.PrefixStore(f"reconfigure/{opts.uuid}/", self._store)
        name = self.options.group_name or "gloo"
        try:
            self.group = World(
                store, rank, size, timeout=self.options._timeout, connect_timeout=timeout_of(opts), name=name
            )
            self._rank, self._size = rank, size
        finally:
            if self._when_reconfigured is not None:
                self._when_reconfigured(self)
        from dldist.c10d.work import done_work

        return done_work([])


def _check_interface(name: str) -> None:
    import socket

    names = [each for _, each in socket.if_nameindex()]
    if name not in names:
        raise RuntimeError(f"Unable to find address for: {name}: the interfaces of this host are {', '.join(names)}")


def _check_local(hostname: str) -> None:
    """Refuse what is not an address of this host: nothing can listen there."""
    import socket

    try:
        for family, kind, protocol, _, address in socket.getaddrinfo(hostname, 0, type=socket.SOCK_STREAM):
            with socket.socket(family, kind, protocol) as probe:
                probe.bind(address)
                return
    except OSError as error:
        raise RuntimeError(f"Cannot resolve {hostname} to a (local) address: {error}") from error


def _check_handles(handles: Any, own: str) -> list[str]:
    if not isinstance(handles, (list, tuple, set, frozenset)) or not all(isinstance(handle, str) for handle in handles):
        raise TypeError("reconfigure(): handles must be a list or a set of handles from get_reconfigure_handle()")
    ordered = sorted(handles) if isinstance(handles, (set, frozenset)) else list(handles)
    if len(set(ordered)) != len(ordered):
        raise ValueError("reconfigure(): handles must all be different")
    if own not in ordered:
        raise ValueError(f"reconfigure(): the handle of this process ({own}) is not among the {len(ordered)} given ones")
    return ordered


def _close(group: World, timeout_s: float) -> None:
    try:
        group.close(timeout_s)
    except _core.DistTimeoutError:
        pass  # waiters for unfinished works get the error


def _split(group: _core.Group, ranks: list[int], name: str | None, timeout: timedelta | None) -> World:
    """A group of some ranks that can outlive `group`: each of c10d's groups ends only when it is destroyed itself."""
    return _core.Group.split(group, ranks, name, timeout)  # type: ignore[return-value]


def group_behind(pg: ProcessGroup) -> World | None:
    """The World behind a process group, or None if its backend for the CPU is not ours."""
    backend = pg._backend_of_device("cpu")
    backend = getattr(backend, "wrapped_pg", backend)
    return backend.group if isinstance(backend, ProcessGroupGloo) else None
