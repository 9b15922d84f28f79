"""Backends that convert c10d's low-level calls to calls of a group of dldist's extension."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Self

from dldist import _core
from dldist._backends.backend_base import Backend, BackendOptions
from dldist._backends.low_level import CALLS, TensorCountError
from dldist._base import argument_names
from dldist._base.options import ErrorType, as_timedelta, timeout_of


class GroupBackend(Backend):
    """A backend over `group`, an object with the methods of dldist.Group."""

    supports_splitting = True

    group: Any
    _store_types: Any = _core.Store
    """The types that the constructor accepts as `store`."""

    def __init__(
        self,
        store: _core.Store | None,
        rank: int,
        size: int,
        options: BackendOptions | timedelta | None = None,
        *,
        timeout: timedelta | None = None,
        enable_reconfigure: bool = False,
    ) -> None:
        if not isinstance(store, self._store_types):
            raise TypeError(f"{type(self).__name__}(): argument 'store' must be a Store, not {argument_names.type_name(store)}")
        super().__init__(rank, size)
        opts = self._make_options(options, timeout)
        opts.enable_reconfigure = opts.enable_reconfigure or enable_reconfigure
        if opts.enable_reconfigure and not self.supports_reconfigure:
            raise self._unsupported("reconfigure")
        self._set_group(self._create_group(store, opts), opts)

    def _create_group(self, store: Any, opts: Any) -> Any:
        """Create the group; `store` is used for the rendezvous of its ranks."""
        raise NotImplementedError

    def _set_group(self, group: Any, options: BackendOptions) -> None:
        self.group = group
        self._options = options

    @classmethod
    def _from_group(cls, group: Any, options: BackendOptions) -> Self:
        """Create a backend over an existing group."""
        self = cls.__new__(cls)
        Backend.__init__(self, group.rank, group.size)
        self._set_group(group, options)
        return self

    @classmethod
    def _make_options(cls, options: Any, timeout: Any) -> Any:
        """Return options made from the constructor's argument: options, a timeout or nothing."""
        if isinstance(options, cls.Options):
            return options
        result = cls.Options()
        value = timeout if options is None else options
        if value is not None:
            result._timeout = as_timedelta(f"{cls.__name__}(): argument '{'timeout' if options is None else 'options'}'", value)
        return result

    def _require_group(self) -> Any:
        """Return the group. Subclasses raise if it does not exist yet."""
        return self.group

    @property
    def _operations(self) -> Any:
        """Return the group, because it runs operations itself."""
        return self._require_group()

    def _op(self, opts: Any) -> Any:
        """Return the reduction in a call's options, in the form that the group accepts."""
        return getattr(opts, "reduceOp", None)

    def _call_options(self, opts: Any) -> dict[str, Any]:
        """Return the group's keyword arguments for a low-level call's options."""
        return {"timeout": timeout_of(opts), "async_op": True}

    def _perform(self, method: str, *arguments: Any) -> Any:
        self._require_group()
        call = CALLS.get(method)
        if call is None or hasattr(self, f"_run_{method}"):
            return super()._perform(method, *arguments)
        opts = arguments[-1]
        run = getattr(self.group, call.operation.name, None)
        if run is None:
            raise self._unsupported(method)
        try:
            return run(*call.to_operation_values(self, arguments, self._op(opts)), **self._call_options(opts))
        except (TensorCountError, _core.DistArgumentError, TypeError) as refusal:
            return self._run_refused(method, arguments, refusal)

    def _run_refused(self, method: str, arguments: tuple[Any, ...], refusal: Exception) -> Any:
        """Raise `refusal`: the group does not support this call. Subclasses that do override this method."""
        raise refusal

    def _run_monitored_barrier(self, timeout: Any, wait_all_ranks: bool) -> None:
        self.group.monitored_barrier(timeout, wait_all_ranks)

    def _run_send(self, tensors: Any, dst: int, tag: int) -> Any:
        return self.group.isend(self._message("send", tensors), dst, tag)

    def _run_recv(self, tensors: Any, src: int, tag: int) -> Any:
        return self.group.irecv(self._message("recv", tensors), src, tag)

    def _run_recv_anysource(self, tensors: Any, tag: int) -> Any:
        return self.group.irecv(self._message("recv_anysource", tensors), None, tag)

    def _message(self, method: str, tensors: Any) -> Any:
        if len(tensors) != 1:
            raise RuntimeError(f"{type(self).__name__}::{method} takes a single tensor, not {len(tensors)}")
        return tensors[0]

    def set_timeout(self, timeout: timedelta) -> None:
        super().set_timeout(timeout)
        if self.group is not None:
            self.group.timeout = timeout

    def _set_sequence_number_for_group(self) -> None:
        """Do nothing: sequence numbers start at 0 on all ranks."""

    def _get_sequence_number_for_group(self) -> int:
        return 0 if self.group is None else self.group.sequence

    def get_error(self) -> Any:
        error = None if self.group is None else self.group.error
        if error is None:
            return ErrorType.SUCCESS
        return ErrorType.TIMEOUT if isinstance(error, TimeoutError) else ErrorType.COMM_ERROR

    def revoke(self) -> None:
        if self.group is not None:
            self.group.revoke()

    def suspend(self) -> None:
        if self.group is not None:
            self.group.suspend()

    def resume(self) -> None:
        if self.group is not None:
            self.group.resume()

    def memory_stats(self) -> dict[str, int]:
        stats: dict[str, int] = {} if self.group is None else self.group.memory_stats()
        return stats

    def abort(self, reason: str = "abort() was called") -> None:
        if self.group is not None:
            self.group.abort(reason)
        super().abort()
