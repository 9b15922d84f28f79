"""Create and destroy groups: init_process_group, new_group and related calls."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from dldist import _core
from dldist._api.group_factory import GroupFactory, check_timeout
from dldist._api.ranks import get_process_group_ranks, group_or_default, is_non_member
from dldist._backends import registry
from dldist._backends.backend_base import Backend as BackendImpl
from dldist._backends.backend_names import Backend, device_type_of, is_nccl_available, warn
from dldist._backends.process_group import ProcessGroup, abort_with_reason
from dldist._backends.registry import NON_GROUP_MEMBER, default_group
from dldist._backends.world_backend import world_of_group
from dldist._base import argument_names, uncaught
from dldist._base.options import as_int
from dldist.types import AnyGroup
from dldist.world import World, call_all

SHRINK_DEFAULT = 0
SHRINK_ABORT = 1
REVOKE_DEFAULT = 0


def is_initialized() -> bool:
    """Return True if the default world exists: it was initialised, and not yet destroyed."""
    return registry._world.default_pg is not None


# ---- timeouts


def set_timeout(timeout: timedelta | float, group: AnyGroup | None = None) -> None:
    """Set the timeout of a group's later operations, on this rank.

    Args:
        timeout: Seconds or a timedelta.
        group: The group, or None for the default world.

    Raises:
        ValueError: The time is negative, or this process is not in the group.
        TypeError: `timeout` is neither a number nor a timedelta.

    Example:
        >>> dist.set_timeout(60)
    """
    if is_non_member(group):
        raise ValueError("Invalid process group specified")
    pg = group_or_default(group)
    if isinstance(pg, _core.Group):
        pg.timeout = check_timeout(timeout)
    elif isinstance(pg, ProcessGroup):
        pg.set_timeout(check_timeout(timeout))
    else:
        raise AssertionError(f"Expected ProcessGroup, got {type(pg).__name__}")


# ---- the default world


def init_process_group(
    backend: str | None = None,
    init_method: str | None = None,
    timeout: timedelta | float | None = None,
    world_size: int = -1,
    rank: int = -1,
    store: _core.Store | None = None,
    group_name: str = "",
    pg_options: Any = None,
    device_id: Any = None,
    _ranks: list[int] | None = None,
    enable_reconfigure: bool = False,
) -> None:
    """Create the default world of this process, with all ranks of the job.

    The rendezvous of the ranks uses `store`, the URL `init_method`, or settings of the launcher
    (torchrun, dlrun, Slurm, mpirun). A process without a launcher is a world of one.

    Args:
        backend: "cpu" or "gloo" for the CPU (the default), "nccl" for GPUs, "mpi", "ucc" or "xccl"
            for a library that moves the data (docs/carriers.md), "fake", the name of a registered
            backend, or one for each device: "cpu:gloo,cuda:nccl".
        init_method: A URL: "env://", "tcp://host:port", "file:///path", or of a registered scheme.
        timeout: Seconds or a timedelta, for rendezvous and operations; 30 minutes, for NCCL 10.
        world_size: The number of ranks, if neither the URL nor the launcher gives it.
        rank: The rank of this process, from 0, if neither the URL nor the launcher gives it.
        store: The store for the rendezvous, instead of a URL. Needs `rank` and `world_size`.
        group_name: Ignored; accepted for compatibility.
        pg_options: Options of the backend, such as ProcessGroupNCCL.Options.
        device_id: The device to bind the world to, for NCCL: an int, "cuda:0" or a torch.device.
        enable_reconfigure: Allow later changes of the members.

    Raises:
        ValueError: The default world exists, or the rank or size is missing or invalid.
        RuntimeError: The backend cannot be used here; the text gives the reason.
        DistTimeoutError: Ranks did not join before the timeout; the text names them.
        DistPeerLostError: A rank was lost during the rendezvous.

    Example:
        >>> dist.init_process_group()
        >>> dist.get_rank(), dist.get_world_size()
        (0, 1)
    """
    world = registry._world
    if world.default_pg is not None:
        if world.pid != os.getpid():
            raise ValueError(
                f"init_process_group(): this process was forked from process {world.pid} after init_process_group() there; "
                "make a dldist.World here, or start the process with multiprocessing's start method 'spawn'"
            )
        raise ValueError("trying to initialize the default process group twice!")
    _check_rendezvous_arguments(init_method, store, world_size, rank)
    device = _check_device_id(device_id)
    if backend is None and device is not None:
        backend = Backend.default_device_backend_map.get(device_type_of(device))
    factory = GroupFactory(Backend.UNDEFINED if backend is None else backend, timeout, pg_options, device, "default_pg", enable_reconfigure)
    if factory.backend == Backend.MPI and (world_size != -1 or rank != -1):
        warn(f"For MPI backend, world_size ({world_size}) and rank ({rank}) are ignored since they are assigned by the MPI runtime.")
    name = world.next_member_name(_ranks) if _ranks else world.next_name()
    try:
        pg = factory.create_default(init_method, store, rank, world_size, name)
    except BaseException:
        # Also reset group names: the next attempt must use the same names as the other ranks.
        world.clear()
        raise
    world.default_pg = pg
    world.init_method = init_method
    uncaught.aborts[_abort_all_groups] = None
    uncaught.install(f"[rank{pg.rank()}]: ")
    try:
        _barrier_if_enabled(pg.rank(), world.pg_map[pg][1], name, pg.size(), factory.timeout)
    except BaseException as error:
        abort(None, f"init_process_group: {error}")
        raise


def _check_rendezvous_arguments(init_method: Any, store: Any, world_size: int, rank: int) -> None:
    if store is None:
        return
    if init_method is not None:
        raise AssertionError("Cannot specify both init_method and store.")
    if not isinstance(store, _core.Store):
        raise TypeError(f"init_process_group(): argument 'store' must be a Store, not {argument_names.type_name(store)}")
    for name, value in (("world_size", world_size), ("rank", rank)):
        as_int(f"init_process_group(): argument {name!r}", value)
    if not world_size > 0:
        raise AssertionError(f"world_size must be positive if using store: got {world_size}")
    if not rank >= 0:
        raise AssertionError(f"rank must be non-negative if using store: got {rank}")
    if rank >= world_size:
        raise ValueError(f"init_process_group(): argument 'rank' is out of range: got {rank}, expected 0 to {world_size - 1}")


def _check_device_id(device_id: Any) -> Any:
    """Return the device to bind a group to. Raise unless it is a usable accelerator."""
    if device_id is None:
        return None
    if isinstance(device_id, int):
        if not is_nccl_available():
            raise ValueError(f"device_id is an int, but no accelerator support is found: got {device_id}, expected None")
        return f"cuda:{device_id}"
    try:
        kind = device_type_of(device_id, "device_id")
    except TypeError as error:
        raise ValueError(str(error)) from None
    if kind == "cpu":
        raise ValueError(f"device_id is not an accelerator: got {device_id}, expected a device with an index, such as cuda:0")
    if kind != "cuda" or not is_nccl_available():
        raise ValueError(f"device_id does not match a supported accelerator: got {device_id}, expected {'cuda:0' if is_nccl_available() else None}")
    if getattr(device_id, "index", 0) is None or device_id == "cuda":
        raise ValueError(f"device_id has no index: got {device_id}, expected a device such as cuda:0")
    return device_id


# ---- a barrier in the store

STORE_BASED_BARRIER_PREFIX = "store_based_barrier_key"


def _is_barrier_after_init() -> int:
    """Return 1 if new groups must pass a barrier in the store (TORCH_DIST_INIT_BARRIER=1)."""
    return int(os.environ.get("TORCH_DIST_INIT_BARRIER") or 0)


def _barrier_if_enabled(rank: int, store: _core.Store, group_name: str, count: int, timeout: timedelta) -> None:
    if _is_barrier_after_init() == 1:
        store_based_barrier(rank, store, group_name, count, timeout)


def store_based_barrier(
    rank: int, store: _core.Store, group_name: str, rendezvous_count: int, timeout: Any, logging_interval: Any = None
) -> None:
    """Wait until `rendezvous_count` processes have called this. `logging_interval` is ignored."""
    key = f"{STORE_BASED_BARRIER_PREFIX}:{group_name}"
    try:
        store.barrier(key, rendezvous_count, timeout)
    except _core.DistTimeoutError as error:
        raise _core.DistStoreTimeoutError(
            f"Timed out initializing process group in store based barrier on rank {rank}, for key: {key} "
            f"(world_size={rendezvous_count}, timeout={timeout}): {error}"
        ) from error


# ---- groups of some ranks


def new_group(
    ranks: Sequence[int] | None = None,
    timeout: timedelta | float | None = None,
    backend: str | None = None,
    pg_options: Any = None,
    use_local_synchronization: bool = False,
    group_desc: str | None = None,
    device_id: Any = None,
    sort_ranks: bool = True,
) -> ProcessGroup | Any:
    """Create a group of some ranks. All ranks of the default world call it, in the same order.

    Args:
        ranks: The members, as ranks of the default world; all by default.
        timeout: Seconds or a timedelta for the group's operations; the backend's default if None.
        backend: As in init_process_group; the default world's backend if None.
        pg_options: Options of the backend.
        use_local_synchronization: Only the members need to call; other callers get None.
        group_desc: A description of the group, for the flight recorder.
        device_id: The default world's device, or None; any other device is an error.
        sort_ranks: True to order the members by world rank; False to keep the order of `ranks`.

    Returns:
        The group; for non-members NON_GROUP_MEMBER, with which calls warn and do nothing.

    Raises:
        ValueError: There is no default world, or ranks are repeated or not in it.
        DistTimeoutError: Members did not join before the timeout.

    Example:
        >>> first = dist.new_group([0], timeout=60)
        >>> if dist.get_rank() == 0:
        ...     dist.barrier(first)
    """
    return _new_group_with_tag(
        ranks, timeout, backend, pg_options, None, use_local_synchronization, group_desc, device_id, sort_ranks
    )


def _new_group_with_tag(
    ranks: Sequence[int] | None = None,
    timeout: timedelta | float | None = None,
    backend: str | None = None,
    backend_options: Any = None,
    pg_tag: str | None = None,
    use_local_synchronization: bool = False,
    group_desc: str | None = None,
    device_id: Any = None,
    sort_ranks: bool = True,
) -> ProcessGroup | Any:
    """Return the group with this tag and these ranks if it exists; otherwise run new_group."""
    world, parent = registry._world, default_group()
    default_backend, default_store = world.pg_map[parent]
    name, is_local = Backend(default_backend if backend is None else backend), use_local_synchronization
    if device_id is not None and device_id != parent.bound_device_id:
        raise AssertionError("Mismatched bound device between new pg and the default pg.")
    if name == Backend.MPI and is_local:
        raise ValueError("MPI backend doesn't support use_local_synchronization=True")
    factory = GroupFactory(name, timeout, backend_options, parent.bound_device_id, group_desc)
    members = _check_ranks(ranks, parent.size(), sort_ranks)
    if pg_tag and (found := _find_pg_by_ranks_and_tag(pg_tag, members)) is not None:
        return found
    new_name = world.next_member_name(members) if is_local else world.next_name()
    pg: Any = NON_GROUP_MEMBER
    if parent.rank() in members:
        factory.split_source = _split_source(parent, members)
        if not is_local:
            factory.create_nccl_from_parent = _nccl_split(parent, members, factory)
        pg = factory.create(default_store, members.index(parent.rank()), members, new_name, pg_tag)
    elif is_local:
        return None
    else:
        _skip_nccl_split(parent, factory)
    try:
        # All callers must pass this barrier, including those that are not members.
        count = len(members) if is_local else parent.size()
        _barrier_if_enabled(parent.rank(), default_store, new_name, count, factory.timeout)
    except BaseException as error:
        abort(pg, f"new_group: {error}")
        raise
    return pg


def _check_ranks(ranks: Any, world_size: int, is_sorted: bool) -> list[int]:
    if ranks is None:
        return list(range(world_size))
    try:
        members = [rank.__index__() for rank in argument_names.read_ranks(ranks, world_size)]
    except (TypeError, AttributeError):
        raise TypeError(f"{argument_names.title('ranks')} must be a sequence of integers, not {ranks!r}") from None
    if not members:
        raise ValueError(f"{argument_names.title('ranks')} must not be empty: got [], expected at least one rank")
    if len(members) > world_size:
        count = len(ranks) if hasattr(ranks, "__len__") else f"more than {world_size}"
        text = "the new group's world size should be less or equal to the world size set by init_process_group"
        raise ValueError(f"{argument_names.title('ranks')}: {text}: got {count} ranks, expected at most {world_size}")
    for rank in members:
        if not 0 <= rank < world_size:
            text = "The new group's rank should be within the world_size set by init_process_group"
            raise ValueError(f"{argument_names.title('ranks')}: {text}: got {rank}, expected 0 to {world_size - 1}")
    if len(set(members)) != len(members):
        raise ValueError(f"{argument_names.title('ranks')} has a rank twice: got {members}, expected different ranks")
    return sorted(members) if is_sorted else members


def _split_source(pg: ProcessGroup, ranks: list[int]) -> tuple[_core.Group, list[int]] | None:
    """Return pg's CPU group, to split a new group from, and `ranks`; None if there is none."""
    group = world_of_group(pg)
    return None if group is None else (group, ranks)


def _nccl_backend(pg: ProcessGroup) -> Any:
    """Return the NCCL backend of a group, or None."""
    if "cuda" not in pg._device_types:
        return None
    from dldist._backends.nccl import ProcessGroupNCCL

    backend = pg._backend_of_device("cuda")
    backend = getattr(backend, "wrapped_pg", backend)
    return backend if isinstance(backend, ProcessGroupNCCL) else None


def _splittable_nccl_backend(pg: ProcessGroup) -> Any:
    """Return the NCCL backend of a group if it is bound to a device, else None."""
    backend = _nccl_backend(pg)
    return backend if backend is not None and backend.bound_device_id is not None else None


def _nccl_split(pg: ProcessGroup, ranks: list[int], factory: GroupFactory) -> Any:
    """Return f(options), which splits a backend of `ranks` from pg's NCCL backend, or None."""
    backend = _splittable_nccl_backend(pg) if factory.uses_nccl else None
    return None if backend is None else lambda opts: backend._split(ranks, opts)


def _nccl_shrink(pg: ProcessGroup, members: list[int], flags: int, shrink_store: _core.Store, limit: Any) -> Any:
    """Return a backend of the members, shrunk from pg's NCCL backend, or None if a member's backend
    cannot shrink."""
    backend = _nccl_backend(pg)
    if backend is None:
        return None
    ranks = get_process_group_ranks(pg)
    keys = {rank: f"nccl/can_shrink/{rank}" for rank in members}
    shrink_store.set(keys[ranks[pg.rank()]], b"1" if backend._can_shrink() else b"0")
    shrink_store.wait(list(keys.values()), limit)
    if any(value != b"1" for value in shrink_store.multi_get(list(keys.values()))):
        return None
    return backend.shrink([ranks.index(rank) for rank in ranks if rank not in members], flags)


def _skip_nccl_split(pg: ProcessGroup, factory: GroupFactory) -> None:
    """Take part in an NCCL split as a non-member, because NCCL requires all ranks of the parent."""
    backend = _splittable_nccl_backend(pg) if factory.uses_nccl else None
    if backend is not None:
        backend.perform_nocolor_split(backend.bound_device_id)


def _find_pg_by_ranks_and_tag(tag: str, ranks: list[int]) -> ProcessGroup | None:
    """Return the group with this tag and these ranks, or None."""
    full_tag = tag if not tag or tag.startswith(("ptd:", "user:")) else f"user:{tag}"
    for pg in registry._world.tags_to_pg.get(full_tag, []):
        if set(get_process_group_ranks(pg)) == set(ranks):
            return pg
    return None


def new_subgroups(
    group_size: int | None = None,
    group: AnyGroup | None = None,
    timeout: timedelta | float | None = None,
    backend: str | None = None,
    pg_options: Any = None,
    group_desc: str | None = None,
) -> tuple[ProcessGroup | Any, list[ProcessGroup | Any]]:
    """Divide a group into groups of consecutive ranks. Every rank of the world calls it, and gets
    its group and a list of all groups.

    Args:
        group_size: The number of ranks in each new group. It must divide the group's size.
        group: The group to divide, or None for the default world.
        timeout: As in new_group, like `backend`, `pg_options` and `group_desc`.

    Raises:
        ValueError: `group_size` is missing or does not divide the group's size.

    Example:
        >>> mine, every = dist.new_subgroups(1)
        >>> len(every) == dist.get_world_size()
        True
    """
    if group_size is None:
        raise ValueError("Default group size only takes effect when an accelerator is available: got None, expected group_size")
    where = "new_subgroups(): argument 'group_size'"
    if as_int(where, group_size) <= 0:
        raise ValueError(f"{where} must be positive: got {group_size}, expected 1 or more")
    ranks = get_process_group_ranks(group)
    if len(ranks) < group_size:
        raise ValueError(f"{where} must not exceed the world size: got {group_size}, expected at most {len(ranks)}")
    if len(ranks) % group_size != 0:
        raise ValueError(f"{where}: The world size ({len(ranks)}) must be divisible by 'group_size={group_size}': expected a divisor")
    parts = [ranks[first : first + group_size] for first in range(0, len(ranks), group_size)]
    return new_subgroups_by_enumeration(parts, timeout, backend, pg_options, group_desc)


def new_subgroups_by_enumeration(
    ranks_per_subgroup_list: Sequence[Sequence[int]],
    timeout: timedelta | float | None = None,
    backend: str | None = None,
    pg_options: Any = None,
    group_desc: str | None = None,
) -> tuple[ProcessGroup | Any, list[ProcessGroup | Any]]:
    """Create a group for each list of ranks. Every rank of the world calls it, and gets its group
    (None if no list has the rank) and a list of all groups.

    Args:
        ranks_per_subgroup_list: Disjoint lists of ranks of the default world.
        timeout: As in new_group, like `backend`, `pg_options` and `group_desc`.

    Raises:
        ValueError: There is no list, or a rank is in two lists.

    Example:
        >>> mine, every = dist.new_subgroups_by_enumeration([[rank] for rank in range(dist.get_world_size())])
        >>> mine.size()
        1
    """
    if not ranks_per_subgroup_list:
        raise ValueError("new_subgroups_by_enumeration(): The arg 'ranks_per_subgroup_list' cannot be empty: got no list, expected at least one")
    seen: dict[int, Sequence[int]] = {}
    size = default_group().size()
    for ranks in ranks_per_subgroup_list:
        for rank in argument_names.read_ranks(ranks, size):
            if rank in seen:
                text = f"Rank {rank} has appeared in both subgroup {seen[rank]} and {ranks}: got it twice, expected each rank once"
                raise ValueError(f"{argument_names.title('ranks')}: {text}")
            seen[rank] = ranks
    mine, groups = None, []
    for ranks in ranks_per_subgroup_list:
        made = new_group(ranks, timeout, backend, pg_options, group_desc=group_desc)
        groups.append(made)
        mine = mine if is_non_member(made) else made
    return mine, groups


def split_group(
    parent_pg: ProcessGroup | None = None,
    split_ranks: Sequence[Sequence[int]] | None = None,
    timeout: timedelta | float | None = None,
    pg_options: Any = None,
    group_desc: str | None = None,
    backend: str | None = None,
) -> ProcessGroup | None:
    """Split a group; return this rank's part, or None. Unlike c10d's, this needs no accelerator.

    Only the members of a part need to call it. If the group is bound to a device and uses NCCL, all
    ranks of the group must call it.

    Args:
        parent_pg: The group to split, or None for the default world.
        split_ranks: A list of ranks of the parent for each part. The list's order gives the ranks
            within the part, as in torch 2.14; older releases of torch sort the list.
        timeout: Seconds or a timedelta for the part's operations; the parent's by default.
        pg_options: Options of the backend.
        group_desc: A description of the part, for the flight recorder.
        backend: As in init_process_group; the parent's by default.

    Raises:
        ValueError: A part is empty, or ranks are repeated or not in the parent.
        RuntimeError: The parent's backend cannot be split.
        DistTimeoutError: Members did not join before the timeout.

    Example:
        >>> half = dist.get_world_size() // 2
        >>> ranks = range(dist.get_world_size())
        >>> mine = dist.split_group(split_ranks=[part for part in (list(ranks[:half]), list(ranks[half:])) if part])
        >>> dist.barrier(mine)
    """
    if not split_ranks:
        raise ValueError("split_ranks cannot be None or empty")
    pg = _member_group(parent_pg)
    own_part = _check_split(split_ranks, pg)
    world = registry._world
    limit = pg.get_timeout() if timeout is None else timeout
    factory = GroupFactory(world.pg_map[pg][0] if backend is None else backend, limit, pg_options, pg.bound_device_id, group_desc)
    if own_part is None:
        world.count_group()
        _skip_nccl_split(pg, factory)
        return None
    parent_ranks = get_process_group_ranks(pg)
    members = [parent_ranks[rank] for rank in own_part]
    if group_desc is None:
        factory.desc = f"{pg.group_desc}:split:{_ranks_text(own_part)}"
    factory.split_source = _split_source(pg, own_part)
    if factory.split_source is None and not pg.supports_splitting:
        raise RuntimeError(f"No backend for the parent process group {pg.group_name} or its backend does not support splitting")
    new_name = world.next_member_name(members)
    unbound = _nccl_backend(pg) if _splittable_nccl_backend(pg) is None else None
    if factory.split_source is None and unbound is not None:
        # Create the part through the store, because only the part's members make this call.
        factory.pg_options = unbound._derived_options(pg_options)
    elif factory.split_source is None:
        split: Any = pg.split_group(own_part, factory.timeout, pg_options, new_name, factory.desc)
        config = world.pg_backend_config[pg]
        world.add(split, name=new_name, backend=factory.backend, config=config, store=world.pg_map[pg][1], ranks=members, tag=None)
        return split
    factory.create_nccl_from_parent = _nccl_split(pg, own_part, factory)
    return factory.create(world.pg_map[pg][1], own_part.index(pg.rank()), members, new_name)


def _ranks_text(ranks: Sequence[int]) -> str:
    return ",".join(map(str, ranks)) if len(ranks) <= 8 else f"{len(ranks)} ranks"


def _check_split(split_ranks: Any, pg: ProcessGroup) -> list[int] | None:
    own_part, where = None, "split_group(): argument 'split_ranks'"
    for part in split_ranks:
        if not isinstance(part, (list, tuple, range)) or not all(isinstance(rank, int) for rank in argument_names.read_ranks(part, pg.size())):
            raise TypeError(f"{where} has another kind of item: got {part!r}, expected a list of ranks")
        if not part:
            raise ValueError(f"{where}: the split group cannot be empty: got {split_ranks}, expected ranks in each list")
        if len(part) > pg.size():
            text = "the split group's size should be less or equal to the world_size set by init_process_group"
            raise ValueError(f"{where}: {text}: got {len(part)} ranks, expected at most {pg.size()}")
        if len(set(part)) != len(part):
            raise ValueError(f"{where}: the split group cannot have duplicate ranks: got {list(part)}, expected different ranks")
        if not all(0 <= rank < pg.size() for rank in part):
            raise ValueError(f"{where} has a rank out of range: got {list(part)}, expected ranks in 0 to {pg.size() - 1}")
        if pg.rank() in part:
            own_part = list(part)
    return own_part


def shrink_group(
    ranks_to_exclude: list[int], group: AnyGroup | None = None, shrink_flags: int = SHRINK_DEFAULT, pg_options: Any = None
) -> ProcessGroup:
    """Replace a group by one without some ranks; return the new one. All remaining ranks call it.

    The excluded ranks may be lost, if the group's store still answers. Shrinking the default world
    destroys all other groups, and makes the new group the default world.

    Args:
        ranks_to_exclude: A list of the ranks to leave out, as ranks of the default world.
        group: The group to shrink, or None for the default world.
        shrink_flags: SHRINK_ABORT aborts the old group's unfinished operations first.
        pg_options: Options of the backend.

    Raises:
        ValueError: The ranks to exclude are none, all, repeated or not in the group.
        RuntimeError: This rank is excluded.
        DistTimeoutError: A remaining rank did not join before the timeout.

    Example:
        >>> if dist.get_world_size() > 2 and dist.get_rank() != 2:
        ...     rest = dist.shrink_group([2])
    """
    pg = group_or_default(group)
    members = _check_shrink(ranks_to_exclude, pg, shrink_flags)
    world = registry._world
    is_default = pg is world.default_pg
    own_rank = get_process_group_ranks(pg)[pg.rank()]
    if own_rank not in members:
        raise RuntimeError(f"shrink_group(): rank {own_rank}, which called it, is in ranks_to_exclude: expected calls of the remaining ranks only")
    backend, store = world.pg_map[pg]
    generation = f"{world.pg_names[pg]}:shrink:{_ranks_text(members)}"
    # The new group needs the store of this rank: take over the calls that the old group ends with.
    shutdown_calls = pg._take_shutdown_calls() if is_default else []
    ranks = list(range(len(members))) if is_default else members
    factory = GroupFactory(backend, pg.get_timeout(), pg_options, pg.bound_device_id, pg.group_desc)
    shrink_store = _core.PrefixStore(f"{generation}/", store)
    try:
        nccl_backend = _nccl_shrink(pg, members, shrink_flags, shrink_store, factory.timeout)
        if nccl_backend is not None:
            factory.create_nccl_from_parent = nccl_backend._replace_options
        if shrink_flags == SHRINK_ABORT:
            pg.abort()
        destroy_process_group(pg)
        shrunk_group = factory.create(shrink_store, members.index(own_rank), ranks, world.next_member_name(members))
    except BaseException:
        call_all(shutdown_calls)
        raise
    for call in shutdown_calls:
        shrunk_group._on_shutdown(call)
    if is_default:
        world.default_pg = shrunk_group
    return shrunk_group


def _check_shrink(ranks_to_exclude: Any, pg: ProcessGroup, flags: int) -> list[int]:
    where = "shrink_group(): argument 'ranks_to_exclude'"
    if not isinstance(ranks_to_exclude, list):
        raise TypeError(f"{where} must be a list, not {type(ranks_to_exclude).__name__}")
    if not ranks_to_exclude:
        raise ValueError(f"{where}: ranks_to_exclude cannot be empty: got [], expected at least one rank")
    if not all(type(rank) is int for rank in ranks_to_exclude):
        raise TypeError(f"{where}: all elements must be integers, not {ranks_to_exclude}")
    if flags not in (SHRINK_DEFAULT, SHRINK_ABORT):
        names = f"SHRINK_DEFAULT ({SHRINK_DEFAULT}) or SHRINK_ABORT ({SHRINK_ABORT})"
        raise ValueError(f"shrink_group(): argument 'shrink_flags': Invalid shrink_flags: got {flags!r}, expected {names}")
    if is_non_member(pg):
        raise ValueError("Invalid process group specified")
    ranks = get_process_group_ranks(pg)
    for rank in ranks_to_exclude:
        if rank not in ranks:
            raise ValueError(f"{where}: Rank {rank} is not part of the group: got {ranks_to_exclude}, expected ranks of {_ranks_text(ranks)}")
    if len(set(ranks_to_exclude)) != len(ranks_to_exclude):
        raise ValueError(f"{where} contains duplicate ranks: got {ranks_to_exclude}, expected different ranks")
    if len(ranks_to_exclude) >= len(ranks):
        raise ValueError(f"{where}: Cannot exclude all ranks of the group: got {ranks_to_exclude}, expected at most {len(ranks) - 1} of {len(ranks)}")
    return [rank for rank in ranks if rank not in ranks_to_exclude]


# ---- shutdown


def destroy_process_group(group: AnyGroup | None = None) -> None:
    """Close a group once its operations have ended. The default world closes with all other groups.

    Args:
        group: The group, or None for the default world.

    Raises:
        ValueError: The group does not exist or has been destroyed.

    Example:
        >>> part = dist.new_group([dist.get_rank()])
        >>> dist.destroy_process_group(part)
    """
    if is_non_member(group):
        return
    _unregister_and_end(group, lambda pg: pg.shutdown(), _start_shutdowns)


def abort(group: AnyGroup | None = None, reason: str = "abort() was called") -> None:
    """Abort a group (with the default world: all groups) and its operations, from any thread.

    Args:
        group: The group, or None for the default world.
        reason: The text for the DistAbortedError of the other ranks.

    Example:
        >>> part = dist.new_group([dist.get_rank()])
        >>> dist.abort(part, "the loss is not a number")
    """
    if is_non_member(group):
        return
    _unregister_and_end(group, lambda pg: abort_with_reason(pg, reason), lambda groups: _start_aborts(groups, reason))


def revoke_process_group(group: AnyGroup | None = None, flags: int = REVOKE_DEFAULT) -> None:
    """End all operations of a group, which can then only be split or shrunk. Callable from any
    thread.

    Unfinished and later operations raise a DistAbortedError that names the revoking rank. On the
    CPU, one call is enough: the other ranks are notified. With NCCL, every rank must call it. Other
    groups and processes are not affected. split_group and shrink_group accept a revoked group,
    destroy_process_group and abort end it, and revoking it again has no effect.

    Args:
        group: The group, or None for the default world, which is revoked without other groups.
        flags: REVOKE_DEFAULT, the only value.

    Raises:
        ValueError: `flags` is another value, or the group does not exist.
        NotImplementedError: The backend does not support this. NCCL needs 2.28.7 or newer.

    Example:
        >>> part = dist.new_group([dist.get_rank()])
        >>> dist.revoke_process_group(part)
        >>> dist.destroy_process_group(part)
    """
    if flags != REVOKE_DEFAULT:
        raise ValueError(f"revoke_process_group(): argument 'flags' is unknown: got {flags!r}, expected REVOKE_DEFAULT ({REVOKE_DEFAULT})")
    if is_non_member(group):
        return
    _registered_group(group).revoke()


def _start_shutdowns(groups: list[ProcessGroup]) -> None:
    """Start to close all NCCL groups in parallel, because each communicator takes half a second."""
    nccl_groups = _nccl_groups([pg for pg in groups if type(pg).shutdown is ProcessGroup.shutdown], "shutdown")
    if nccl_groups:
        _core._post_close(nccl_groups)


def _start_aborts(groups: list[ProcessGroup], reason: str) -> None:
    """Start to abort the NCCL groups, without waiting for the ends."""
    for group in _nccl_groups([pg for pg in groups if type(pg).abort is ProcessGroup.abort], "abort"):
        if not group.is_closed:
            group.abort(reason, 0)


def _abort_all_groups(reason: str) -> None:
    """Abort the groups of the default world, which stay registered for exit functions."""
    groups = registry._world.newest_first()
    _start_aborts(groups, reason)
    call_all([world.abort for pg in groups if (world := world_of_group(pg)) is not None], reason)


def _nccl_groups(groups: list[ProcessGroup], method: str) -> list[_core.NcclGroup]:
    """List the NCCL groups of process groups, except of backends that override `method`."""
    nccl_groups = []
    for pg in groups:
        for backend in pg._distinct_backends():
            inner = getattr(backend, "wrapped_pg", backend)
            is_builtin = getattr(type(inner), method).__module__.startswith("dldist._")
            if isinstance(getattr(inner, "group", None), _core.NcclGroup) and is_builtin:
                nccl_groups.append(inner.group)
    return nccl_groups


def _unregister_and_end(group: Any, end: Callable[[ProcessGroup], object], start_all: Callable[[list[ProcessGroup]], None]) -> None:
    """Unregister and end() a group; for the default world, all groups, after start_all(groups)."""
    world = registry._world
    pg = _registered_group(group)
    if pg is not world.default_pg:
        world.remove(pg)
        end(pg)
        return
    groups = world.newest_first()
    names = dict(world.pg_names)
    world.clear()
    start_all(groups)
    end_calls = [functools.partial(_end_with_note, end, each, names[each]) for each in groups]
    # A subclass's shutdown() or abort() may not have run the shutdown calls.
    call_all([*end_calls, lambda: call_all(pg._take_shutdown_calls())])


def _end_with_note(end: Callable[[ProcessGroup], object], pg: ProcessGroup, name: str) -> None:
    """Call end(pg). If it raises, add the group's name to the exception's notes."""
    try:
        end(pg)
    except Exception as error:
        error.add_note(f"while destroying group {name!r} ({pg.group_desc})")
        raise


def _registered_group(group: Any) -> ProcessGroup:
    pg = registry._world.default_pg if group is None else group
    if pg is None:
        raise AssertionError("Process group cannot be None")
    if pg not in registry._world.pg_map:
        raise ValueError("Invalid process group specified")
    return pg


def _abort_process_group(group: AnyGroup | None = None) -> None:
    """Abort a group and its unfinished operations."""
    abort(group)


# ---- queries


def get_backend(group: AnyGroup | None = None) -> str:
    """Return the backend's name as given, in lower case; "undefined" if none was given.

    Args:
        group: The group, or None for the default world.

    Raises:
        ValueError: This process is not in the group.
    """
    return registry._world.pg_map[_member_group(group)][0]


def get_backend_config(group: AnyGroup | None = None) -> str:
    """Return the backends by device, as in "cpu:gloo,cuda:nccl".

    Args:
        group: The group, or None for the default world.

    Raises:
        ValueError: This process is not in the group.

    Example:
        >>> dist.get_backend_config()
        'cpu:gloo'
    """
    return registry._world.pg_backend_config[_member_group(group)]


def get_backend_impl(group: AnyGroup | None = None, device: Any = None) -> BackendImpl:
    """Return the object that runs a group's calls on a device.

    Args:
        group: The group, or None for the default world.
        device: "cpu", "cuda" or the like; optional if the group has one backend.

    Raises:
        ValueError: This process is not in the group, or a group of several backends needs `device`.
    """
    pg = _member_group(group)
    if device is not None:
        return pg._get_backend(device)
    backends = pg._distinct_backends()
    if len(backends) != 1:
        raise ValueError(
            f"get_backend_impl(): argument 'device' is missing: got None for a group of {len(backends)} backends, expected a "
            f"device of {get_backend_config(group)}"
        )
    return backends[0]


def _member_group(group: Any) -> ProcessGroup:
    pg = group_or_default(group)
    if is_non_member(pg) or pg not in registry._world.pg_map:
        raise ValueError("Invalid process group specified")
    return pg


def get_pg_count() -> int:
    """Return the number of groups that this process has created or tried to create."""
    return registry._world.group_count


def default_world() -> World | None:
    """Return the World of the default group. Its methods are the calls without a `group` argument.

    Returns:
        The World, or None if the default group does not use dldist's CPU backend. The backend
        "fake", for example, has no World, because it does not communicate.

    Example:
        >>> dist.default_world().all_gather_object("hello")
        ['hello']
    """
    return world_of_group(default_group())
