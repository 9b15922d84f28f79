"""The CPU backend under c10d's name: c10d's low-level calls over a World."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from dldist import _core
from dldist._backends.backend_base import BackendOptions
from dldist._backends.process_group import ProcessGroup
from dldist._backends.world_backend import WorldBackend, close
from dldist._base.options import ReconfigureOptions, timeout_of
from dldist._base.works import done_work
from dldist.world import World


class GlooDevice:
    """ProcessGroupGloo.Device, the result of create_device(): a local address, without effect."""

    def __init__(self, hostname: str = "", interface: str = "") -> None:
        self.hostname = hostname
        self.interface = interface

    def __repr__(self) -> str:
        return f"<ProcessGroupGloo.Device hostname={self.hostname!r} interface={self.interface!r}>"


def _as_devices(where: str, devices: Any) -> list[GlooDevice]:
    devices = list(devices)
    wrong = next((each for each in devices if not isinstance(each, GlooDevice)), None)
    if wrong is not None:
        raise TypeError(f"{where} must be a list of ProcessGroupGloo.Device: got a {type(wrong).__name__} in it")
    return devices


class GlooOptions(BackendOptions):
    """ProcessGroupGloo._Options. Devices and numbers of threads have no effect: environment
    variables select interfaces, and the thread that waits does the work."""

    _checks = {**BackendOptions._checks, "_devices": _as_devices}

    def __init__(self, timeout: timedelta | None = None) -> None:
        super().__init__("gloo", timeout)
        self._devices: list[GlooDevice] = []
        self._threads = 2


class ProcessGroupGloo(WorldBackend):
    """c10d's CPU backend. `group` is the World that runs the calls.

    With enable_reconfigure, each reconfigure() creates a World; before that, `group` is None.
    """

    _name = "gloo"
    Options = GlooOptions
    _Options = GlooOptions
    Device = GlooDevice

    supports_reconfigure = True

    # The store for reconfigure(); None if the group's members cannot change.
    _store: _core.Store | None = None
    _handle = ""
    _on_reconfigured: Callable[[ProcessGroupGloo], object] | None = None

    @classmethod
    def _without_group(cls, store: _core.Store | None, pg: ProcessGroup, timeout: timedelta) -> ProcessGroupGloo:
        """Create the backend of a group whose members will be set by reconfigure()."""
        if store is None:
            raise RuntimeError("init_process_group(): enable_reconfigure=True needs a store: got none, expected argument 'store'")
        self = cls(store, pg.rank(), pg.size(), timeout=timeout, enable_reconfigure=True)
        self.options.group_name = pg.group_name
        self._on_reconfigured = pg._on_reconfigured
        return self

    def _require_group(self) -> Any:
        if self.group is None:
            raise RuntimeError(
                "ProcessGroupGloo has not been initialized. Call reconfigure() before issuing collectives when enable_reconfigure=True."
            )
        return self.group

    def _create_group(self, store: _core.Store, opts: Any) -> World | None:
        if not opts.enable_reconfigure:
            return super()._create_group(store, opts)
        self._allow_reconfigure(store)
        return None

    def _allow_reconfigure(self, store: _core.Store) -> None:
        """Keep `store` for reconfigure(), and create this process's handle at the first call."""
        if self._store is None:
            from uuid import uuid4

            self._store = store
            self._handle = uuid4().hex

    def _run_refused(self, method: str, arguments: tuple[Any, ...], refusal: Exception) -> Any:
        from dldist._backends import gloo_collectives

        return gloo_collectives.run(self, method, arguments, refusal)

    def _run_allreduce_sparse(self, tensors: Any, opts: Any) -> Any:
        from dldist._backends import gloo_collectives

        refusal = RuntimeError("ProcessGroupGloo::allreduce_sparse: got a dense tensor, expected a sparse one")
        return gloo_collectives.run(self, "allreduce_sparse", (tensors, opts), refusal)

    @staticmethod
    def create_device(hostname: str = "", interface: str = "", lazy_init: bool | None = None) -> GlooDevice:
        """Create a device for the options. No effect: DLDIST_SOCKET_IFNAME selects interfaces."""
        if interface:
            _check_interface(interface)
        elif hostname:
            _check_local(hostname)
        else:
            raise ValueError("Specify either `hostname` or `interface` argument.")
        return GlooDevice(hostname, interface)

    @staticmethod
    def create_default_device(lazy_init: bool | None = None) -> GlooDevice:
        """Create a device for the options. It has no effect."""
        return GlooDevice()

    def _wait_for_pending_works(self) -> None:
        """Do nothing: each work keeps its own resources until it has ended."""

    def _enable_collectives_timing(self) -> None:
        """Do nothing: works always measure their time."""

    def get_reconfigure_handle(self) -> str:
        """Return the handle that identifies this process in reconfigure()."""
        if self._store is None:
            raise self._unsupported("get_reconfigure_handle without enable_reconfigure=True")
        return self._handle

    def reconfigure(self, opts: ReconfigureOptions) -> Any:
        """Close the current group, and create one of the processes with the handles in `opts`.

        All these processes must call this, with an unused uuid. A list gives the ranks' order; a
        set is sorted.
        """
        if self._store is None:
            raise self._unsupported("reconfigure without enable_reconfigure=True")
        handles = _check_handles(opts.handles, self._handle)
        previous, self.group = self.group, None
        if previous is not None:
            close(previous, 0)  # 0: do not wait, as other members' operations are unaffected
        rank, size = handles.index(self._handle), len(handles)
        store = _core.PrefixStore(f"reconfigure/{opts.uuid}/", self._store)
        name = self.options.group_name or "gloo"
        try:
            self.group = World(
                store, rank, size, timeout=self.options._timeout, connect_timeout=timeout_of(opts), name=name
            )
            self._rank, self._size = rank, size
        finally:
            if self._on_reconfigured is not None:
                self._on_reconfigured(self)
        return done_work([])


def _check_interface(name: str) -> None:
    import socket

    names = [each for _, each in socket.if_nameindex()]
    if name not in names:
        raise RuntimeError(f"Unable to find address for: {name}: expected an interface of this host: {', '.join(names)}")


def _check_local(hostname: str) -> None:
    """Raise RuntimeError if no socket can listen at this address, as it is not of this host."""
    import socket

    try:
        for family, kind, protocol, _, address in socket.getaddrinfo(hostname, 0, type=socket.SOCK_STREAM):
            with socket.socket(family, kind, protocol) as probe:
                probe.bind(address)
                return
    except TypeError:
        raise TypeError(f"create_device(): argument 'hostname' must be str, not {type(hostname).__name__}") from None
    except OSError as error:
        raise RuntimeError(f"Cannot resolve {hostname} to a (local) address: {error}") from error


def _check_handles(handles: Any, own: str) -> list[str]:
    if not isinstance(handles, (list, tuple, set, frozenset)) or not all(isinstance(handle, str) for handle in handles):
        raise TypeError(f"reconfigure(): argument 'handles' must be a list or set of handles from get_reconfigure_handle(), not {handles!r}")
    ordered = sorted(handles) if isinstance(handles, (set, frozenset)) else list(handles)
    if len(set(ordered)) != len(ordered):
        raise ValueError(f"reconfigure(): argument 'handles' has a handle twice: got {ordered}, expected different handles")
    if own not in ordered:
        raise ValueError(f"reconfigure(): argument 'handles' lacks the handle of this process: got {ordered}, expected {own} among them")
    return ordered
