"""Join: a loop with collectives that some ranks leave sooner than others, because they have fewer inputs.

    with Join([counter]):                    # a Joinable
        for batch in batches:
            counter.step(batch)              # begins with Join.notify_join_context(counter)

Who has left takes part in the collectives of the others, by hooks, until all have. The names and the order of calls are those of
torch.distributed.algorithms.join. In every turn of the loop, all ranks of the group add up how many are still in it.
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

_MANY_TURNS = 1000


class JoinHook:
    """What a rank that has left the loop does while others are in it. Both methods do nothing unless overridden."""

    def main_hook(self) -> None:
        """Take part in the collectives of one turn of the others."""

    def post_hook(self, is_last_joiner: bool) -> None:
        """Do what is to be done when all ranks have left.

        Args:
            is_last_joiner: Whether this rank is one of those that have left last.
        """


class _JoinConfig(NamedTuple):
    """What a Joinable is told by the Join that it is in."""

    enable: bool
    throw_on_early_termination: bool
    is_first_joinable: bool

    @staticmethod
    def construct_disabled_join_config() -> _JoinConfig:
        """That of one that is in none."""
        return _JoinConfig(enable=False, throw_on_early_termination=False, is_first_joinable=False)


class Joinable(ABC):
    """Something whose turns have collectives. Subclasses call this constructor, and Join.notify_join_context(self) at the
    beginning of each turn."""

    @abstractmethod
    def __init__(self) -> None:
        super().__init__()
        self._join_config = _JoinConfig.construct_disabled_join_config()

    @abstractmethod
    def join_hook(self, **kwargs: Any) -> JoinHook:
        """The hook of this rank.

        Args:
            kwargs: What the Join was given besides.
        """

    @property
    @abstractmethod
    def join_device(self) -> Any:
        """The device of its collectives. Counting who is in the loop takes none: that goes by any group."""

    @property
    @abstractmethod
    def join_process_group(self) -> Any:
        """The group of its collectives: of c10d, or a World."""


class Join:
    """A `with` block around a loop that ranks may leave at different times.

    Args:
        joinables: What has collectives in the loop, all of the same group. Their hooks run in this order.
        enable: False does nothing, where all loops are known to be equally long.
        throw_on_early_termination: Have all ranks raise as soon as one has left, instead of going on without it.
        kwargs: For join_hook() of the joinables.

    Raises:
        ValueError: There is no joinable, or their groups differ.
        RuntimeError: At the end of the block or in notify_join_context, with throw_on_early_termination: a rank has left.

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
            raise ValueError("The join context manager requires at least one joinable")
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
        """Nothing is to be done."""

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        if not self._enable or kind is not None:
            return
        turns = 0
        while _sum_of(0, self._process_group):  # how many are in the loop
            if self._throw_on_early_termination:
                _sum_of(1, self._process_group)  # answers the question of those who are in it
                raise RuntimeError(f"Rank {self._rank} exhausted all inputs.")
            for hook in self._join_hooks:
                hook.main_hook()
            turns += 1
            if turns == _MANY_TURNS:
                warn(
                    f"Rank {self._rank} has left the loop {_MANY_TURNS} turns before others: its inputs are fewer by that many, "
                    "and it only waits for them"
                )
        for hook in self._join_hooks:
            hook.post_hook(turns == 0)

    @staticmethod
    def notify_join_context(joinable: Joinable) -> _core.Work | None:
        """Say that this rank is still in the loop; a Joinable does so at the beginning of each turn.

        Args:
            joinable: The one that calls it.

        Returns:
            A Work that ends when all ranks have said so or left; None of a joinable that is not the first of its Join.

        Raises:
            RuntimeError: A rank has left, and throw_on_early_termination is set.
            AssertionError: Its class does not call the constructor of Joinable.

        Example:
            >>> from dldist.algorithms.join import Join, Joinable, JoinHook
            >>> class Nothing(Joinable):
            ...     def __init__(self): super().__init__()
            ...     def join_hook(self): return JoinHook()
            ...     join_device, join_process_group = "cpu", None
            >>> Join.notify_join_context(Nothing())         # it is in no Join
        """
        config = getattr(joinable, "_join_config", None)
        if config is None:
            raise AssertionError(f"the constructor of {type(joinable).__name__} has to call that of Joinable")
        if not config.is_first_joinable or not config.enable:
            return None
        work: _core.Work = _counting(joinable.join_process_group).all_reduce(array("i", [1]), async_op=True)
        if config.throw_on_early_termination and _sum_of(0, joinable.join_process_group):
            raise RuntimeError("Detected at least one rank that exhausted inputs. Throwing across all ranks.")
        return work


def _counting(group: Any) -> Any:
    """What adds up numbers in host memory over the ranks of a group, whatever device the group is for."""
    calls = registry.operations(group)
    view = getattr(calls, "_host_view", None)
    return calls if view is None else view()


def _sum_of(number: int, group: Any) -> int:
    counted = array("i", [number])
    _counting(group).all_reduce(counted)
    return counted[0]
