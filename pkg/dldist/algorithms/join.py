"""Loops with collectives that end earlier on ranks with fewer inputs.

    with Join([counter]):                    # a Joinable
        for batch in batches:
            counter.step(batch)              # begins with Join.notify_join_context(counter)

A rank that has left the loop calls hooks, which take part in the collectives of the remaining
ranks, until every rank has left. In each iteration, an all-reduce counts the ranks in the loop.
Names and the order of calls are those of torch.distributed.algorithms.join.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple

from dldist import _core
from dldist._api.ranks import get_rank
from dldist._backends import registry
from dldist._backends.backend_names import warn

__all__ = ["Join", "JoinHook", "Joinable"]

_WARN_AFTER_PASSES = 1000


class JoinHook:
    """Hooks of a rank that has left the loop before other ranks. By default, they do nothing."""

    def main_hook(self) -> None:
        """Take part in the remaining ranks' collectives of one iteration."""

    def post_hook(self, is_last_joiner: bool) -> None:
        """Finish after all ranks have left the loop.

        Args:
            is_last_joiner: True if this rank was among the last to leave.
        """


class _JoinConfig(NamedTuple):
    """The settings that a Join passes to its Joinables."""

    enable: bool
    throw_on_early_termination: bool
    is_first_joinable: bool

    @staticmethod
    def construct_disabled_join_config() -> _JoinConfig:
        """Return the settings of a Joinable that is not in a Join."""
        return _JoinConfig(enable=False, throw_on_early_termination=False, is_first_joinable=False)


class Joinable(ABC):
    """Base class of an object that calls collectives in each iteration of a loop. Subclasses must
    call this constructor, and Join.notify_join_context(self) at the start of each iteration."""

    @abstractmethod
    def __init__(self) -> None:
        super().__init__()
        self._join_config = _JoinConfig.construct_disabled_join_config()

    @abstractmethod
    def join_hook(self, **kwargs: Any) -> JoinHook:
        """Return the hook of this rank.

        Args:
            kwargs: The additional arguments of the Join.
        """

    @property
    @abstractmethod
    def join_device(self) -> Any:
        """The device of the object's collectives. Join itself counts ranks in host memory."""

    @property
    @abstractmethod
    def join_process_group(self) -> Any:
        """The group of the object's collectives: a torch.distributed group or a World."""


class Join:
    """A context manager around a loop that ranks may leave at different times.

    Args:
        joinables: Objects that call collectives, all with the same group; hooks run in this order.
        enable: False disables the Join, for loops known to have the same length on all ranks.
        throw_on_early_termination: True raises an error on all ranks once a rank has left.
        kwargs: Passed to the join_hook() of each joinable.

    Raises:
        ValueError: `joinables` is empty, or the groups differ.
        RuntimeError: A rank has left, and throw_on_early_termination is true.

    Example:
        >>> from dldist.algorithms.join import Join, Joinable, JoinHook
        >>> class Nothing(Joinable):
        ...     def __init__(self): super().__init__()
        ...     def join_hook(self): return JoinHook()
        ...     join_device, join_process_group = "cpu", None
        >>> with Join([Nothing()]):
        ...     pass
    """

    def __init__(
        self,
        joinables: Sequence[Joinable],
        enable: bool = True,
        throw_on_early_termination: bool = False,
        **kwargs: Any,
    ) -> None:
        if not joinables:
            raise ValueError(f"Join(): argument 'joinables': The join context manager requires at least one joinable: got {joinables}, expected one")
        self._joinables = joinables
        self._join_hooks = [joinable.join_hook(**kwargs) for joinable in joinables]
        self._enable = enable
        self._throw_on_early_termination = throw_on_early_termination
        for joinable in joinables:
            joinable._join_config = _JoinConfig(enable, throw_on_early_termination, joinable is joinables[0])
        self._process_group = joinables[0].join_process_group
        if any(joinable.join_process_group != self._process_group for joinable in joinables):
            raise ValueError("Using join context manager with multiple process groups")
        self._rank = get_rank(self._process_group)

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        if not self._enable or kind is not None:
            return
        npasses = 0
        while _sum_of(0, self._process_group):  # _sum_of returns the number of ranks in the loop
            if self._throw_on_early_termination:
                _sum_of(1, self._process_group)  # matches the all-reduce in notify_join_context
                raise RuntimeError(f"Rank {self._rank} exhausted all inputs.")
            for hook in self._join_hooks:
                hook.main_hook()
            npasses += 1
            if npasses == _WARN_AFTER_PASSES:
                warn(
                    f"Join: rank {self._rank} has ended {_WARN_AFTER_PASSES} iterations before other ranks, and waits for them: "
                    "expected about as many inputs on each rank"
                )
        for hook in self._join_hooks:
            hook.post_hook(npasses == 0)

    @staticmethod
    def notify_join_context(joinable: Joinable) -> _core.Work | None:
        """Count this rank as still in the loop. A Joinable calls it at the start of each iteration.
        Return a Work that ends once every rank has called this or left; None if the joinable is not
        the first of its Join, or the Join is disabled.

        Args:
            joinable: The calling object.

        Raises:
            RuntimeError: A rank has left, and throw_on_early_termination is true.
            TypeError: The class of `joinable` does not call the constructor of Joinable.

        Example:
            >>> from dldist.algorithms.join import Join, Joinable, JoinHook
            >>> class Nothing(Joinable):
            ...     def __init__(self): super().__init__()
            ...     def join_hook(self): return JoinHook()
            ...     join_device, join_process_group = "cpu", None
            >>> Join.notify_join_context(Nothing())         # without a Join
        """
        config = getattr(joinable, "_join_config", None)
        if config is None:
            raise TypeError(f"notify_join_context(): the constructor of {type(joinable).__name__} did not call Joinable.__init__()")
        if not config.is_first_joinable or not config.enable:
            return None
        work: _core.Work = _host_calls(joinable.join_process_group).all_reduce(array("i", [1]), async_op=True)
        if config.throw_on_early_termination and _sum_of(0, joinable.join_process_group):
            raise RuntimeError("Detected at least one rank that exhausted inputs. Throwing across all ranks.")
        return work


def _host_calls(group: Any) -> Any:
    """Return an object that all-reduces host memory in the group, even in a group of devices."""
    calls = registry.operations(group)
    view = getattr(calls, "_host_view", None)
    return calls if view is None else view()


def _sum_of(number: int, group: Any) -> int:
    total = array("i", [number])
    _host_calls(group).all_reduce(total)
    return total[0]
