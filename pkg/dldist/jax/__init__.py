"""JAX's own collectives on dldist: psum, all_gather and the like between processes, on CPUs, by an unmodified JAX.

    import dldist.jax

    dldist.jax.initialize()             # under dlrun, torchrun, Slurm or mpirun; before anything else imports jax
    import jax                          # jax.devices() are those of all processes

or, where a program calls jax.distributed.initialize() itself, dldist.jax.install() before it imports jax, or for programs that are not to
be changed, `eval "$(python -m dldist.jax --env)"` before they start. docs/jax.md says how it works, and what it cannot do.
"""

from __future__ import annotations

import logging
import os
import sys
from array import array
from threading import Lock

from dldist import _core

TYPE_CHECKING = False  # typing takes longer to import than all of this package
if TYPE_CHECKING:
    from typing import Any

    from dldist.types import Timeout
    from dldist.world import World

__all__ = ["environment", "initialize", "install", "library"]

_STORE_KEY = "dldist/store"
_MEET_S = 300.0

_world: World | None = None
_parts: list[World] = []  # XLA keeps its communicators until the process ends
_splitting = Lock()


# ---- before JAX begins


def library() -> str:
    """The path of the library that JAX loads as its MPI."""
    from importlib.util import find_spec

    found = find_spec("dldist.jax._mpi")
    if found is None or found.origin is None:
        raise RuntimeError("this installation of dldist has no library for JAX (dldist/jax/_mpi): install it again")
    return found.origin


def environment() -> dict[str, str]:
    """The environment variables that make JAX use dldist, where they are set before it is imported.

    Example:
        >>> sorted(environment())
        ['JAX_CPU_COLLECTIVES_IMPLEMENTATION', 'MPITRAMPOLINE_LIB']
    """
    return {"JAX_CPU_COLLECTIVES_IMPLEMENTATION": "mpi", "MPITRAMPOLINE_LIB": library()}


def install() -> None:
    """Make JAX use dldist, from its import on. Twice is fine.

    Raises:
        RuntimeError: JAX has been imported before, and looks for its MPI no more.
    """
    wanted = environment()
    if "jaxlib" in sys.modules and any(os.environ.get(name) != value for name, value in wanted.items()):
        raise RuntimeError("dldist.jax.install() comes too late: JAX has been imported, and looks for its MPI at its import alone")
    os.environ.update(wanted)


def initialize(timeout: Timeout = 300.0, **options: Any) -> None:
    """install() and jax.distributed.initialize() in one. The ranks find each other as those of a dldist.World do.

    Args:
        timeout: Seconds or a timedelta, for the ranks to meet, and for each collective later.
        options: For jax.distributed.initialize().

    Raises:
        RuntimeError: JAX has been imported before.
        DistTimeoutError: Ranks have not come in time; the text names them.
    """
    global _world
    install()
    from dldist.world import World

    _world = World(name="jax", timeout=timeout)
    if _world.size > 1:
        import jax

        address = _world.broadcast_object(_free_address(_world) if _world.rank == 0 else None)
        jax.distributed.initialize(address, _world.size, _world.rank, **options)


def _free_address(world: World) -> str:
    """Where JAX's coordinator may listen, on this machine."""
    import socket

    host = "127.0.0.1" if all(member.is_same_host for member in world.members) else os.environ.get("MASTER_ADDR") or socket.getfqdn()
    with socket.socket() as listener:
        listener.bind(("", 0))
        return f"{host}:{listener.getsockname()[1]}"


# ---- when JAX begins


def _open_world() -> object:
    """Called once by MPI_Init_thread (csrc/trampoline/calls.c): what carries out XLA's calls. XLA does not look at what that returns, so
    that a failure is told by the log, and then by each collective."""
    global _world
    try:
        _world = _world or _meet()
    except Exception as error:
        reason = f"dldist.jax has no world: {type(error).__name__}: {error}"
        logging.getLogger("dldist").error(reason)

        def refuse(*_: int) -> World:
            raise RuntimeError(reason)

        return _core._mpi_calls(reason, refuse)
    _help_float16()
    return _core._mpi_calls(_world, _split)


def _help_float16() -> None:
    """As far as it can be done: another JAX may look otherwise inside, and then says of float16 what XLA says."""
    try:
        from dldist.jax import _float16

        _float16.install()
    except (ImportError, AttributeError, KeyError) as error:
        logging.getLogger("dldist").warning("reductions of float16 will fail: this JAX is not known (%s: %s)", type(error).__name__, error)


def _meet() -> World:
    """A world of the processes of jax.distributed. They meet in a store of process 0, which tells the others its port by way of JAX's
    coordinator."""
    from jax._src import distributed  # its state has no public name

    from dldist.world import World

    state = distributed.global_state
    if state.client is None:
        return World(store=_core.HashStore(), rank=0, world_size=1, name="jax")
    host = state.coordinator_address.rpartition(":")[0].strip("[]")
    store = (_serve if state.process_id == 0 else _connect)(state.client, host, state.num_processes)
    return World(store=store, rank=state.process_id, world_size=state.num_processes, name="jax")


def _serve(client: Any, host: str, size: int) -> _core.Store:
    try:
        store = _core.TCPStore(host, 0, size, True, _MEET_S, wait_for_workers=False)
    except Exception as error:
        client.key_value_set(_STORE_KEY, f"process 0 has no store: {type(error).__name__}: {error}")
        raise
    client.key_value_set(_STORE_KEY, str(store.port))
    return store


def _connect(client: Any, host: str, size: int) -> _core.Store:
    told = client.blocking_key_value_get(_STORE_KEY, int(1000 * _MEET_S))
    if not told.isdigit():
        raise RuntimeError(told)
    return _core.TCPStore(host, int(told), size, False, _MEET_S)


def _split(color: int, key: int) -> World:
    """MPI_Comm_split of the world, which all of its processes call: those of one color are a part, in the order of their keys. XLA's colors
    are the first devices of the parts, and its keys the places in them."""
    assert _world is not None
    with _splitting:
        mine, all_of_them = array("q", [color, key]), array("q", bytes(16 * _world.size))
        _world.all_gather_single(all_of_them, mine)
        places = sorted((all_of_them[2 * rank + 1], rank) for rank in range(_world.size) if all_of_them[2 * rank] == color)
        ranks = [rank for _, rank in places]
        if [place for place, _ in places] != list(range(len(places))):
            raise ValueError(
                f"XLA wants a communicator from device {color} on in which ranks {ranks} have the places {[place for place, _ in places]}: "
                "either a process has several devices, which XLA's MPI cannot serve, or the processes run different programs"
            )
        _parts.append(_world.split(ranks))
        return _parts[-1]
