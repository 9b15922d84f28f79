"""The base class Backend, and the options that a backend is made with."""

from __future__ import annotations

from _operator import call
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Self

from dldist import _core
from dldist._backends.dispatcher import BackendCalls
from dldist._backends.hook_args import CompletionHookArgs
from dldist._backends.low_level import LowLevelCalls
from dldist._base.options import Checked, as_int, as_timedelta

_DEFAULT_TIMEOUT_S = 1800.0


class BackendOptions(Checked):
    """Backend.Options, which a backend is made with. The name of the backend cannot be changed."""

    _checks = {"_timeout": as_timedelta}
    _timeout: Any

    def __init__(self, backend: str, timeout: timedelta | float | None = None) -> None:
        self._backend = backend
        self._timeout = _DEFAULT_TIMEOUT_S if timeout is None else timeout
        self.global_ranks_in_group: list[int] = []
        self.group_name = ""
        self.enable_reconfigure = False

    @property
    def backend(self) -> str:
        return self._backend

    def _for(self, timeout: timedelta, ranks: list[int], name: str) -> Self:
        """These options, now of a group with this time-out, these global ranks and this name."""
        self._timeout = timeout
        self.global_ranks_in_group = ranks
        self.group_name = name
        return self

    def __repr__(self) -> str:
        return f"<{type(self).__qualname__} backend={self._backend!r} timeout={self._timeout}>"


class Member(LowLevelCalls):
    """What a backend and a process group are both: one of the ranks that run calls together."""

    def __init__(self, rank: int, size: int) -> None:
        kind = type(self).__name__
        self._rank = as_int(f"{kind}(): argument 'rank'", rank)
        self._size = as_int(f"{kind}(): argument 'size'", size)
        if not 0 <= self._rank < self._size:
            raise ValueError(f"{kind}(): rank {rank} is not in a group of {size}")

    def rank(self) -> int:
        """This process's rank in the group."""
        return self.getRank()

    def getRank(self) -> int:
        return self._rank

    def size(self) -> int:
        """The number of ranks in the group."""
        return self.getSize()

    def getSize(self) -> int:
        return self._size

    def name(self) -> str:
        """The name of the backend."""
        return self.getBackendName()

    def getBackendName(self) -> str:
        return type(self).__name__

    def _get_backend_name(self) -> str:
        return self.getBackendName()

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the time-out of later operations."""
        raise NotImplementedError

    def _set_default_timeout(self, timeout: timedelta) -> None:
        self.set_timeout(timeout)

    def __repr__(self) -> str:
        return f"<{type(self).__module__}.{type(self).__qualname__} rank {self.rank()} of {self.size()}>"


class Backend(Member):
    """c10d's backend (not the str class of that name). A process group has one for each type of device.

    To write a backend, subclass this and override getBackendName() and calls, which get (lists, opts) by position. Calls that are
    not overridden raise RuntimeError.
    """

    Options: type[Any] = BackendOptions

    bound_device_id: Any = None
    use_pg_for_symm_mem_rendezvous = False
    """Taken, and of no effect: symmetric memory meets by the group anyway."""

    supports_splitting = False
    supports_coalescing = False
    supports_time_estimate = False
    """The name of `_supports_time_estimate` up to torch 2.14. A subclass may set either."""
    supports_shrinking = False
    supports_reconfigure = False
    supports_window = False
    supports_abort_hooks = True
    """False in a subclass whose abort() does not run the abort hooks: registering one then raises."""
    supports_completion_hooks = False
    """True in a subclass that calls completion hooks itself. Groups call the hooks for other backends."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self._options: BackendOptions | None = None
        self._abort_hooks: dict[int, Callable[[], object]] = {}
        self.__calls: BackendCalls | None = None

    def _perform(self, method: str, *arguments: Any) -> Any:
        """Run the method `_run_<method>` if the class has one. dldist's own backends define their calls in this way."""
        run = getattr(self, f"_run_{method}", None)
        if run is None:
            raise self._unsupported(method)
        return run(*arguments)

    def _unsupported(self, method: str) -> RuntimeError:
        return RuntimeError(f"Backend {self.name()} does not support {method}")

    @property
    def _supports_time_estimate(self) -> bool:
        """True if the backend can estimate how long calls would take."""
        return self.supports_time_estimate

    @property
    def options(self) -> Any:
        if self._options is None:
            raise RuntimeError(f"Backend {self.name()} does not implement getBackendOptions.")
        return self._options

    @property
    def _operations(self) -> Any:
        """An object that runs its operations, with methods like those of dldist.Group. It is the same one each time, because
        coalescing keeps its recorder in it."""
        if self.__calls is None:
            from weakref import proxy  # the backend has to end when its last user lets it go

            self.__calls = BackendCalls(proxy(self))
        return self.__calls

    def setUsePgForSymmMemRendezvous(self, value: bool) -> None:
        self.use_pg_for_symm_mem_rendezvous = bool(value)

    # Life.

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the time-out of later operations."""
        if self._options is None:
            raise self._unsupported("set_timeout")
        self._options._timeout = as_timedelta("set_timeout(): argument 'timeout'", timeout)

    def shutdown(self) -> None:
        """End in good order. Does nothing unless overridden."""

    def abort(self) -> None:
        """End unfinished operations with errors. Only runs the abort hooks unless overridden."""
        self._run_abort_hooks()

    def register_abort_hook(self, hook_id: int, hook: Callable[[], object]) -> None:
        """Have hook() called when this backend aborts, perhaps more than once. It replaces a hook of this id."""
        if not self.supports_abort_hooks:
            raise self._unsupported("register_abort_hook")
        if not callable(hook):
            raise TypeError(f"register_abort_hook(): argument 'hook' must be callable, not {type(hook).__name__}")
        self._abort_hooks[hook_id] = hook

    def unregister_abort_hook(self, hook_id: int) -> None:
        """Stop calling an abort hook. Does nothing if there is none of this id."""
        self._abort_hooks.pop(hook_id, None)

    def register_completion_hook(self, hook_id: int, hook: Callable[[CompletionHookArgs], object]) -> None:
        """Have hook(CompletionHookArgs) called when an operation has completed successfully, for subclasses that can."""
        raise self._unsupported("register_completion_hook")

    def unregister_completion_hook(self, hook_id: int) -> None:
        """Stop calling a completion hook."""
        raise self._unsupported("unregister_completion_hook")

    def _run_abort_hooks(self) -> None:
        """Run the abort hooks, for subclasses that override abort(). An error of a hook goes to sys.unraisablehook, because an
        abort should not fail."""
        for fn in list(self._abort_hooks.values()):
            _core._call_and_report(call, fn)

    def get_error(self) -> Any:
        """How it is, as an ErrorType."""
        raise self._unsupported("get_error")

    def _start_time_estimate(self) -> None:
        """Estimate how long later calls would take instead of running them, until _end_time_estimate()."""
        raise self._unsupported("_start_time_estimate")

    def _end_time_estimate(self) -> float:
        """The estimate, in microseconds."""
        raise self._unsupported("_end_time_estimate")

    def _drop_time_estimate(self) -> None:
        """End an estimate whose block has raised."""
        self._end_time_estimate()

    def revoke(self) -> None:
        """End unfinished operations with errors, and be of use for making other groups."""
        raise self._unsupported("revoke")

    def suspend(self) -> None:
        """Give memory back until resume(). All ranks call this."""
        raise self._unsupported("suspend")

    def resume(self) -> None:
        """End suspend(). All ranks call this."""
        raise self._unsupported("resume")

    def memory_stats(self) -> dict[str, int]:
        """How many bytes it uses, by name."""
        raise self._unsupported("memory_stats")

    def eager_connect_single_device(self, device: Any) -> None:
        raise self._unsupported("eager_connect_single_device")

    def _add_ephemeral_timeout(self, timeout: timedelta) -> None:
        raise self._unsupported("_add_ephemeral_timeout")

    def _set_group_uid(self, pg_uid: str) -> None:
        self._group_uid = pg_uid

    def _set_sequence_number_for_group(self) -> None:
        raise RuntimeError(f"Backend {self.name()} does not yet support sequence numbers.")

    def _get_sequence_number_for_group(self) -> int:
        raise RuntimeError(f"Backend {self.name()} does not yet support sequence numbers.")

    def _start_coalescing(self) -> None:
        raise RuntimeError(f"Backend {self.name()} does not implement startCoalescing")

    def _end_coalescing(self) -> Any:
        raise RuntimeError(f"Backend {self.name()} does not implement endCoalescing")

    def _wait_for_pending_works(self) -> None:
        raise self._unsupported("_wait_for_pending_works")

    def _register_on_completion_hook(self, hook: Any) -> None:
        raise self._unsupported("_register_on_completion_hook")

    def _enable_collectives_timing(self) -> None:
        raise self._unsupported("_enable_collectives_timing")

    # Other groups of the same kind, memory, windows.

    def split(self, store: Any, ranks: list[int], opts: Any) -> Any:
        raise self._unsupported("split")

    def merge(self, store: Any, opts: Any, rank: int, size: int) -> Any:
        raise self._unsupported("merge")

    def shrink(self, ranks_to_exclude: list[int], shrink_flags: int = 0, opts_override: Any = None) -> Any:
        raise self._unsupported("shrink")

    def reconfigure(self, opts: Any) -> Any:
        raise self._unsupported("reconfigure")

    def get_reconfigure_handle(self) -> Any:
        """The handle that names this process in reconfigure()."""
        raise self._unsupported("get_reconfigure_handle")

    def new_window(self, tensor: Any = None) -> Any:
        raise self._unsupported("new_window")

    @property
    def mem_allocator(self) -> Any:
        raise self._unsupported("mem_allocator")

    def supports_tensor_alloc(self, device: Any) -> bool:
        return False

    def allocate_tensor(self, size: int, *, dtype: Any, device: Any) -> Any:
        raise self._unsupported("allocate_tensor")
