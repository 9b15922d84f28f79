"""Create process groups: check the timeout and the backends, then create the backends."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from dldist import _core, rendezvous
from dldist._backends import registry
from dldist._backends.backend_base import Member
from dldist._backends.backend_names import CHECKS, Backend, BackendConfig, default_timeout
from dldist._backends.cpu import ProcessGroupGloo
from dldist._backends.health_check import HealthCheckHook
from dldist._backends.process_group import DistributedBackendOptions, ProcessGroup, abort_with_reason
from dldist._backends.registry import NON_GROUP_MEMBER
from dldist._base import argument_names, settings
from dldist._base.options import DebugLevel, get_debug_level
from dldist._rendezvous.urls import Endpoint

_CARRIER_BACKENDS = (Backend.MPI, Backend.UCC, Backend.XCCL)
"""Names of the backends whose data a third-party library moves (dldist.carriers)."""


def check_timeout(timeout: Any) -> timedelta:
    """Return a timeout as a timedelta; numbers are seconds."""
    if isinstance(timeout, (int, float)) and not isinstance(timeout, bool):
        try:
            timeout = timedelta(seconds=timeout)
        except (ValueError, OverflowError):
            raise ValueError(f"{argument_names.title('timeout')} is not a valid time: got {timeout}, expected a finite number of seconds") from None
    if not isinstance(timeout, timedelta):
        raise TypeError(f"{argument_names.title('timeout')}: Expected timeout argument to be of type datetime.timedelta, got {timeout!r}")
    if timeout.days < 0:
        raise ValueError(f"{argument_names.title('timeout')} is not a valid time: got {timeout!r}, expected 0 or more")
    return timeout


def check_backend(name: str) -> None:
    """Raise if this process cannot create the backend. Call this before the rendezvous."""
    if name == Backend.UNDEFINED:
        return
    if ":" not in name and "," not in name and name not in Backend.backend_type_map:
        raise AssertionError(f"Unknown backend type {name}: expected one of {', '.join(Backend.backend_list)}")
    for each in BackendConfig(name).get_device_backend_map().values():
        if each.upper() in Backend._plugins or each in (Backend.GLOO, Backend.FAKE):
            continue
        if not (each in CHECKS and CHECKS[each]()):
            _raise_unavailable(each)


def _raise_unavailable(name: str) -> None:
    if name == Backend.NCCL:
        from dldist.nccl import library

        raise RuntimeError(
            f"backend 'nccl' is unavailable: {library.why_not()}; it needs NVIDIA's driver (libcuda.so.1) and NCCL (libnccl.so.2): "
            "pip install nvidia-nccl-cu13 (or -cu12), or set DLDIST_NCCL_LIBRARY"
        )
    if name in _CARRIER_BACKENDS:
        from dldist import carriers

        raise RuntimeError(f"Distributed package doesn't have {name.upper()} built in: {carriers.why_not(name)}")
    raise AssertionError(f"Unknown c10d backend type {name.upper()}")


class GroupFactory:
    """The parameters of a new group except its members: backends, timeout, options.

    The constructor raises if a backend cannot be made. A timeout of None is the backend's default.
    """

    def __init__(
        self, backend: str, timeout: Any, pg_options: Any, device: Any, desc: str | None, is_reconfigurable: bool = False
    ) -> None:
        self.backend = Backend(backend)
        self.timeout = default_timeout(self.backend) if timeout is None else check_timeout(timeout)
        check_backend(self.backend)
        self.config = BackendConfig(self.backend)
        self.pg_options = pg_options
        self.device = device
        self.desc = "undefined" if desc is None else desc
        self.is_reconfigurable = is_reconfigurable
        self.split_source: tuple[_core.Group, list[int]] | None = None
        """A CPU group to split the new group from, and its ranks that are members; or None."""
        self.create_nccl_from_parent: Any = None
        """f(options), which creates ProcessGroupNCCL from another communicator, or None."""

    @property
    def uses_nccl(self) -> bool:
        return Backend.NCCL in self.config.get_device_backend_map().values()

    def create_default(
        self, init_method: str | None, store: _core.Store | None, rank: int, world_size: int, name: str
    ) -> ProcessGroup:
        """Create the default group, of all ranks, and register it."""
        if store is None and self.backend == Backend.FAKE:
            from dldist._backends.fake import FakeStore

            store, rank, world_size = FakeStore(), max(rank, 0), max(world_size, 1)
        endpoint = self._mpi_endpoint()
        if endpoint is not None:
            rank, world_size = endpoint.rank, endpoint.world_size
        if store is not None:
            return self.create(store, rank, list(range(world_size)), name)
        if init_method is not None:
            endpoint = None
        meeting = rendezvous.meet(init_method, rank, world_size, timeout=self.timeout, endpoint=endpoint)
        with meeting:
            pg = self.create(meeting.store, meeting.rank, list(range(meeting.world_size)), name)
            meeting.mark_connected()
            pg._on_shutdown(meeting.close)
        return pg

    def _mpi_endpoint(self) -> Endpoint | None:
        """Return this process's rank and size in MPI (an Endpoint), or None if no backend is MPI."""
        if Backend.MPI not in self.config.get_device_backend_map().values():
            return None
        from dldist.carriers import _mpi

        return _mpi.world_endpoint(-1, -1)

    def create(
        self, store: _core.Store | None, rank: int, ranks: list[int], name: str, tag: str | None = None
    ) -> ProcessGroup:
        """Create and register a group that this process is a member of; `ranks` are global."""
        group_store = None if store is None else _core.PrefixStore(f"{name}/", store)
        pg = ProcessGroup(group_store, rank, len(ranks))
        pg._set_group_name(name)
        pg._set_group_desc(self.desc)
        pg.bound_device_id = self.device
        try:
            result = self._add_backends(pg, ranks)
            if result is None and self.desc == "default_pg":
                raise RuntimeError(f"backend {self.backend!r}: its creator returned None for rank {rank}, of the default group: expected a backend")
            if result is None:
                return NON_GROUP_MEMBER  # type: ignore[return-value]
            pg = result
            registry._world.add(
                pg, name=name, backend=self.backend, config=repr(self.config), store=group_store, ranks=ranks, tag=tag
            )
            _attach_nan_check(pg)
            HealthCheckHook.attach(pg)
        except BaseException as error:
            _abort_failed(pg, error)
            raise
        return pg

    def _add_backends(self, pg: ProcessGroup, ranks: list[int]) -> ProcessGroup | None:
        """Create the backends of pg. Return pg; but if a backend's creator returned a ProcessGroup
        or None, return that result.
        """
        backends: dict[str, Any] = {}
        for device, backend in self.config.get_device_backend_map().items():
            if backend not in backends:
                backends[backend] = self._make_backend(backend, device, pg, ranks)
            if backends[backend] is None:
                return None
            if isinstance(backends[backend], ProcessGroup):
                custom_group: ProcessGroup = backends[backend]
                custom_group._set_group_name(pg.group_name)
                custom_group._set_group_desc(self.desc)
                return custom_group
            pg._register_backend(device, Backend.backend_type_map[backend], backends[backend])
        return pg

    def _make_backend(self, backend: str, device: str, pg: ProcessGroup, ranks: list[int]) -> Any:
        store = pg.get_group_store()
        prefixed = None if store is None else _core.PrefixStore(f"{device}/", store)
        if backend.upper() in Backend._plugins:
            new_backend = self._make_plugin(backend, prefixed, pg, ranks)
        elif backend == Backend.GLOO:
            if self.is_reconfigurable:
                return ProcessGroupGloo._without_group(prefixed, pg, self.timeout)
            new_backend = ProcessGroupGloo._make(prefixed, pg, self.timeout, self.split_source, ranks)
        elif backend == Backend.NCCL:
            from dldist._backends.nccl import ProcessGroupNCCL

            new_backend = ProcessGroupNCCL._make(prefixed, pg, self.timeout, self.pg_options, ranks, self.create_nccl_from_parent)
        elif backend in _CARRIER_BACKENDS:
            from dldist._backends.carrier_backends import BACKENDS

            new_backend = BACKENDS[backend]._make(prefixed, pg, self.timeout, self.split_source, ranks)
        elif backend == Backend.FAKE:
            from dldist._backends.fake import FakeProcessGroup

            new_backend = FakeProcessGroup._create_internal(pg.rank(), pg.size(), self.pg_options or None)
        else:
            return _raise_unavailable(backend)
        return new_backend if isinstance(new_backend, ProcessGroup) else self._wrap_for_checks(new_backend, prefixed, pg)

    def _make_plugin(self, backend: str, store: _core.Store | None, pg: ProcessGroup, ranks: list[int]) -> Any:
        new_backend = self._call_creator(backend, store, pg, ranks)
        if new_backend is not None and not isinstance(new_backend, Member):
            raise TypeError(
                f"backend {backend!r}: its creator returned an object of another type: got {type(new_backend).__name__}, "
                "expected a subclass of dldist._Backend or a ProcessGroup"
            )
        return new_backend

    def _call_creator(self, backend: str, store: _core.Store | None, pg: ProcessGroup, ranks: list[int]) -> Any:
        plugin = Backend._plugins[backend.upper()]
        if not plugin.extended_api:
            return plugin.creator_fn(store, pg.rank(), pg.size(), self.timeout)
        opts = DistributedBackendOptions()
        opts.store = store
        opts.group_rank, opts.group_size = pg.rank(), pg.size()
        opts.timeout = self.timeout
        opts.group_id = pg.group_name
        opts.global_ranks_in_group = ranks
        opts.process_group = pg
        opts.enable_reconfigure = self.is_reconfigurable
        return plugin.creator_fn(opts, self.pg_options)

    def _wrap_for_checks(self, backend: Any, store: _core.Store | None, pg: ProcessGroup) -> Any:
        """At debug level DETAIL, wrap a backend to compare collectives between ranks first."""
        if get_debug_level() is not DebugLevel.DETAIL or backend is None or pg.size() == 1:
            return backend
        return create_process_group_wrapper(backend, pg.group_name, store, pg.rank(), pg.size(), self.timeout)


def _attach_nan_check(pg: ProcessGroup) -> None:
    if settings.value("nan_check_of_all") == "1":
        from dldist._backends.hooks import NanCheckHook

        NanCheckHook.attach(pg)


def _abort_failed(pg: ProcessGroup, error: BaseException) -> None:
    """Abort the backends of a group whose creation failed."""
    try:
        abort_with_reason(pg, f"group {pg.group_name} could not be made: {type(error).__name__}: {error}")
    except Exception:
        pass  # ignored: the caller raises the first error


PG_WRAPPER_STORE_PREFIX = "pg_wrapper"


def create_process_group_wrapper(
    wrapped_pg: Any, store_prefix: str, store: Any, rank: int, world_size: int, timeout: Any = None
) -> Any:
    """Wrap a backend, so that ranks compare collectives through a Gloo group before they run."""
    from dldist._backends.wrapper import _ProcessGroupWrapper

    limit = default_timeout(Backend.GLOO) if timeout is None else timeout
    helper_store = _core.PrefixStore(f"{PG_WRAPPER_STORE_PREFIX}:{store_prefix}", store)
    return _ProcessGroupWrapper(wrapped_pg, ProcessGroupGloo(helper_store, rank, world_size, timeout=limit))
