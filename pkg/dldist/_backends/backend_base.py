"""The base class Backend, and the options to create a backend."""

from __future__ import annotations

from _operator import call
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Self

from dldist import _core
from dldist._backends.dispatcher import BackendCalls
from dldist._backends.hook_args import CompletionHookArgs, check_hook
from dldist._backends.low_level import LowLevelCalls
from dldist._base.options import Checked, as_int, as_timedelta

_DEFAULT_TIMEOUT_S = 1800.0


class BackendOptions(Checked):
    """Backend.Options: options to create a backend. `backend`, its name, is read-only."""

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

    def _set_identity(self, timeout: timedelta, ranks: list[int], name: str) -> Self:
        """Set the timeout, global ranks and name of a group in these options, and return them."""
        self._timeout = timeout
        self.global_ranks_in_group = ranks
        self.group_name = name
        return self

    def __repr__(self) -> str:
        return f"<{type(self).__qualname__} backend={self._backend!r} timeout={self._timeout}>"


class Member(LowLevelCalls):
    """Common base of Backend and ProcessGroup: one rank of several that run calls together."""

    def __init__(self, rank: int, size: int) -> None:
        kind = type(self).__name__
        self._rank = as_int(f"{kind}(): argument 'rank'", rank)
        self._size = as_int(f"{kind}(): argument 'size'", size)
        if not 0 <= self._rank < self._size:
            raise ValueError(f"{kind}(): argument 'rank' is out of range: got {rank}, expected 0 to {self._size - 1} ('size' is {size})")

    def rank(self) -> int:
        """Return this process's rank in the group."""
        return self.getRank()

    def getRank(self) -> int:
        return self._rank

    def size(self) -> int:
        """Return the number of ranks in the group."""
        return self.getSize()

    def getSize(self) -> int:
        return self._size

    def name(self) -> str:
        """Return the name of the backend."""
        return self.getBackendName()

    def getBackendName(self) -> str:
        return type(self).__name__

    def _get_backend_name(self) -> str:
        return self.getBackendName()

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the timeout of later operations."""
        raise NotImplementedError

    def _set_default_timeout(self, timeout: timedelta) -> None:
        self.set_timeout(timeout)

    def __repr__(self) -> str:
        return f"<{type(self).__module__}.{type(self).__qualname__} rank {self.rank()} of {self.size()}>"


class Backend(Member):
    """The base class of backends (dldist.Backend is another class, of names). A process group has
    one backend per device type.

    To write a backend, override getBackendName() and low-level calls, whose positional arguments
    are lists of tensors and options.
    """

    Options: type[Any] = BackendOptions

    bound_device_id: Any = None
    use_pg_for_symm_mem_rendezvous = False
    """No effect: symmetric memory always uses the group itself for its rendezvous."""

    supports_splitting = False
    supports_coalescing = False
    supports_time_estimate = False
    """Former name of `_supports_time_estimate`, up to torch 2.14. A subclass may set either."""
    supports_shrinking = False
    supports_reconfigure = False
    supports_window = False
    supports_abort_hooks = True
    """False in subclasses whose abort() runs no abort hooks: registering one then raises."""
    supports_completion_hooks = False
    """True in subclasses that call completion hooks. For other backends, groups call them."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self._options: BackendOptions | None = None
        self._abort_hooks: dict[int, Callable[[], object]] = {}
        self.__calls: BackendCalls | None = None

    def _perform(self, method: str, *arguments: Any) -> Any:
        """Call `_run_<method>`, which dldist's own backends define for the calls they support."""
        run = getattr(self, f"_run_{method}", None)
        if run is None:
            raise self._unsupported(method)
        return run(*arguments)

    def _unsupported(self, method: str) -> RuntimeError:
        return RuntimeError(f"Backend {self.name()} does not support {method}")

    @property
    def _supports_time_estimate(self) -> bool:
        """True if the backend can estimate the duration of calls."""
        return self.supports_time_estimate

    @property
    def options(self) -> Any:
        if self._options is None:
            raise RuntimeError(f"Backend {self.name()} does not implement getBackendOptions.")
        return self._options

    @property
    def _operations(self) -> Any:
        """Return the object that runs the operations, with methods like dldist.Group's. It must
        always be the same object, because coalescing stores its recorder there."""
        if self.__calls is None:
            from weakref import proxy  # a proxy, so that the backend is freed without a cycle

            self.__calls = BackendCalls(proxy(self))
        return self.__calls

    def setUsePgForSymmMemRendezvous(self, value: bool) -> None:
        self.use_pg_for_symm_mem_rendezvous = bool(value)

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the timeout of later operations."""
        if self._options is None:
            raise self._unsupported("set_timeout")
        self._options._timeout = as_timedelta("set_timeout(): argument 'timeout'", timeout)

    def shutdown(self) -> None:
        """Shut the backend down cleanly. Does nothing unless overridden."""

    def abort(self) -> None:
        """End unfinished operations with errors. Unless overridden, only run the abort hooks.

        Errors of hooks go to sys.unraisablehook, because an abort should not fail.
        """
        for hook in list(self._abort_hooks.values()):
            _core._call_and_report(call, hook)

    def register_abort_hook(self, hook_id: int, hook: Callable[[], object]) -> None:
        """Register a hook to call on abort(), maybe repeatedly. Replaces the hook with this id."""
        if not self.supports_abort_hooks:
            raise self._unsupported("register_abort_hook")
        self._abort_hooks[hook_id] = check_hook("register_abort_hook", hook)

    def unregister_abort_hook(self, hook_id: int) -> None:
        """Remove an abort hook. Does nothing if the id is unknown."""
        self._abort_hooks.pop(hook_id, None)

    def register_completion_hook(self, hook_id: int, hook: Callable[[CompletionHookArgs], object]) -> None:
        """Register a hook to call with CompletionHookArgs when an operation succeeds."""
        raise self._unsupported("register_completion_hook")

    def unregister_completion_hook(self, hook_id: int) -> None:
        """Remove a completion hook."""
        raise self._unsupported("unregister_completion_hook")

    def get_error(self) -> Any:
        """Return the backend's state as an ErrorType."""
        raise self._unsupported("get_error")

    def _start_time_estimate(self) -> None:
        """Estimate the duration of calls instead of running them, until _end_time_estimate()."""
        raise self._unsupported("_start_time_estimate")

    def _end_time_estimate(self) -> float:
        """End the estimate and return it in microseconds."""
        raise self._unsupported("_end_time_estimate")

    def _drop_time_estimate(self) -> None:
        """End the estimate after an exception in the estimating `with` block."""
        self._end_time_estimate()

    def revoke(self) -> None:
        """End unfinished operations with errors; the backend can still create other groups."""
        raise self._unsupported("revoke")

    def suspend(self) -> None:
        """Release the backend's memory until resume(). All ranks must call this."""
        raise self._unsupported("suspend")

    def resume(self) -> None:
        """Allocate the memory again that suspend() released. All ranks must call this."""
        raise self._unsupported("resume")

    def memory_stats(self) -> dict[str, int]:
        """Return the bytes of memory in use, by name."""
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

    def split(self, store: Any, ranks: list[int], opts: Any) -> Any:
        raise self._unsupported("split")

    def merge(self, store: Any, opts: Any, rank: int, size: int) -> Any:
        raise self._unsupported("merge")

    def shrink(self, ranks_to_exclude: list[int], shrink_flags: int = 0, opts_override: Any = None) -> Any:
        raise self._unsupported("shrink")

    def reconfigure(self, opts: Any) -> Any:
        raise self._unsupported("reconfigure")

    def get_reconfigure_handle(self) -> Any:
        """Return the handle that identifies this process in reconfigure()."""
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
