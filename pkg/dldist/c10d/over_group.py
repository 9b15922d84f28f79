"""The common part of backends over a group of the extension: c10d's low-level calls become calls of that group."""

from __future__ import annotations

from dldist import _core
from dldist.c10d.backend_base import Backend
from dldist.c10d.low_level import CALLS, NotOneTensor
from dldist.c10d.options import timeout_of

TYPE_CHECKING = False  # typing takes longer to import than all of this package
if TYPE_CHECKING:
    from typing import Any


class OverGroup(Backend):
    """A backend whose `group` has the methods of dldist.Group."""

    group: Any

    def _require_group(self) -> Any:
        """The group; raises if there is none yet."""
        return self.group

    def _op(self, opts: Any) -> Any:
        """The reduction that options ask for, in the form that the group takes."""
        return getattr(opts, "reduceOp", None)

    def _how(self, opts: Any) -> dict[str, Any]:
        """The group's keyword arguments for a call: its time-out, and whether it is asynchronous."""
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
            return run(*call.raised(self, arguments, self._op(opts)), **self._how(opts))
        except (NotOneTensor, _core.DistArgumentError, TypeError) as refusal:
            return self._run_otherwise(method, arguments, refusal)

    def _run_otherwise(self, method: str, arguments: tuple[Any, ...], refusal: Exception) -> Any:
        """For a backend that takes more than its group does."""
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
