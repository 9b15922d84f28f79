"""Runs JAX's own collectives, such as psum, between processes on CPUs, with an unmodified JAX.

    import dldist.jax

    dldist.jax.initialize()   # under dlrun, torchrun, Slurm or mpirun; before JAX is imported
    import jax                # jax.devices() has the devices of all processes

A program that calls jax.distributed.initialize() itself must call dldist.jax.install() before it
imports jax. For an unchanged program, run `eval "$(python -m dldist.jax --env)"` first. docs/jax.md
explains the implementation and its limits.
"""

from __future__ import annotations

import atexit
import ctypes
import logging
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

from dldist import _core
from dldist._base import uncaught
from dldist._base.array_types import Timeout
from dldist._base.options import to_timedelta
from dldist.world import World

__all__ = ["environment", "initialize", "install", "library"]

_MAX_NAMED = 8
_PREEMPTION = "JAX_ENABLE_PREEMPTION_SERVICE"
_STORE_KEY = "dldist/store"
_RENDEZVOUS_TIMEOUT_S = 300.0
_TIMEOUT_S = 1800.0
_COORDINATOR_DELAY_S = 0.3

_timeout: Timeout = _TIMEOUT_S

_clique_groups: list[World] = []  # never freed, as XLA uses communicators until exit


# ---- before JAX starts


def library() -> str:
    """Return the path of the library that JAX loads as its MPI."""
    from importlib.util import find_spec

    spec = find_spec("dldist.jax._mpi")
    if spec is None or spec.origin is None:
        raise RuntimeError("this installation of dldist has no library for JAX (dldist/jax/_mpi); reinstall dldist")
    return spec.origin


def environment() -> dict[str, str]:
    """Return the environment variables that make JAX use dldist. Set them before importing JAX.

    JAX's preemption service is off, so that SIGTERM ends a process, unless it is set already.

    Example:
        >>> sorted(environment())
        ['JAX_CPU_COLLECTIVES_IMPLEMENTATION', 'JAX_ENABLE_PREEMPTION_SERVICE', 'MPITRAMPOLINE_LIB']
    """
    service = os.environ.get(_PREEMPTION, "0")
    return {"JAX_CPU_COLLECTIVES_IMPLEMENTATION": "mpi", "MPITRAMPOLINE_LIB": library(), _PREEMPTION: service}


def install(timeout: Timeout = _TIMEOUT_S) -> None:
    """Make JAX use dldist. Call this before JAX is imported; it may be called again.

    Args:
        timeout: The timeout of each collective, in seconds or as a timedelta.

    Raises:
        RuntimeError: JAX has already been imported, and has chosen its MPI.
    """
    global _timeout
    limit = to_timedelta(timeout)
    variables = environment()
    if "jaxlib" in sys.modules and any(os.environ.get(name, "0") != value for name, value in variables.items()):
        raise RuntimeError("dldist.jax.install(): JAX is already imported; call dldist.jax.install() above `import jax`")
    if _PREEMPTION not in os.environ and getattr(getattr(sys.modules.get("jax"), "config", None), _PREEMPTION.lower(), False):
        text = f"SIGTERM will not end this process: {_PREEMPTION} is not set; set it to 0 (or to 1) before JAX is imported"
        warnings.warn(f"dldist.jax.install(): {text}", RuntimeWarning, stacklevel=2)
    os.environ.update(variables)
    _timeout = limit
    _prepare_for_failures()


def initialize(timeout: Timeout = _TIMEOUT_S, connect_timeout: Timeout = _RENDEZVOUS_TIMEOUT_S, **options: Any) -> None:
    """Call install() and jax.distributed.initialize(). The rendezvous works as for dldist.World.

    Args:
        timeout: The timeout of each collective, in seconds or as a timedelta.
        connect_timeout: The timeout of the rendezvous.
        options: Options of jax.distributed.initialize().

    Raises:
        RuntimeError: JAX has already been imported.
        DistTimeoutError: Ranks did not join before the timeout; the message names them.
    """
    limit = to_timedelta(connect_timeout, "initialize(): argument 'connect_timeout'")
    install(timeout)
    with World(name="jax", timeout=limit) as world:
        address = world.broadcast_object(_free_address(world) if world.rank == 0 else None)
        rank, size = world.rank, world.size
    if size > 1:
        import jax

        jax.distributed.initialize(address, size, rank, **options)


def _free_address(world: World) -> str:
    """Return an address on this machine for JAX's coordinator to listen on."""
    import socket

    host = "127.0.0.1" if all(member.is_same_host for member in world.members) else os.environ.get(
        "MASTER_ADDR"
    ) or socket.getfqdn()
    with socket.socket() as listener:
        listener.bind(("", 0))
        return f"{host}:{listener.getsockname()[1]}"


# ---- when JAX starts


def _begin() -> object:
    """Create the object that runs XLA's calls. MPI_Init_thread (csrc/trampoline) calls this once.
    An error is logged here and raised by each collective, because XLA ignores errors of this call.
    """
    rank, size = 0, 1
    _prepare_for_failures()
    try:
        from dldist._base import jax_internals

        global_state = jax_internals.find("global_state")
        rank, size = global_state.process_id or 0, global_state.num_processes or 1
        create_group = _make_group_creator(global_state, rank, size)
    except Exception as error:
        reason = f"dldist.jax could not begin: {type(error).__name__}: {error}"
        logging.getLogger("dldist").error(reason)

        def create_group(first: int, index: int) -> World:
            raise RuntimeError(reason)

    return _core._mpi_calls(rank, size, create_group)


def _make_group_creator(global_state: Any, rank: int, size: int) -> Callable[[int, int], World]:
    """Return f(first device, this process's index), which creates the group of a clique."""
    from dldist.jax import _cliques

    programs = _cliques.Programs()
    _cliques.record_programs(programs)
    _support_float16()
    store = _find_store(global_state, rank, size)

    def create_group(first: int, index: int) -> World:
        import jax

        from dldist.world import World

        clique = programs.claim(first, index, {device.id for device in jax.local_devices(backend="cpu")})
        name = _clique_name(clique)
        group = World(store=_core.PrefixStore(name, store), rank=index, world_size=len(clique), name=name, timeout=_timeout)
        _clique_groups.append(group)
        return group

    return create_group


def _support_float16() -> None:
    """Support reductions of float16 if this JAX is known. Without this, XLA rejects float16."""
    try:
        from dldist.jax import _float16

        _float16.install()
    except (ImportError, AttributeError, KeyError) as error:
        logging.getLogger(
            "dldist"
        ).warning("reductions of float16 will fail: unknown version of JAX (%s: %s)", type(error).__name__, error)


def _clique_name(clique: tuple[int, ...]) -> str:
    """Return a name of the clique, which all its members derive and which no other clique has."""
    numbers = ",".join(map(str, clique))
    if len(clique) <= _MAX_NAMED:
        return f"jax/{numbers}"
    import hashlib

    return f"jax/{clique[0]}..{clique[-1]}, {len(clique)} devices, {hashlib.sha256(numbers.encode()).hexdigest()[:12]}"


def _find_store(global_state: Any, rank: int, size: int) -> _core.Store:
    """Serve a store in process 0; the others get the store's port from JAX's coordinator."""
    if size == 1:
        return _core.HashStore()
    host = global_state.coordinator_address.rpartition(":")[0].strip("[]")
    return (_serve if rank == 0 else _connect)(global_state.client, host, size)


def _serve(client: Any, host: str, size: int) -> _core.Store:
    try:
        store = _core.TCPStore(host, 0, size, True, _RENDEZVOUS_TIMEOUT_S, wait_for_workers=False)
    except Exception as error:
        client.key_value_set(_STORE_KEY, f"process 0 has no store: {type(error).__name__}: {error}")
        raise
    client.key_value_set(_STORE_KEY, str(store.port))
    return store


def _connect(client: Any, host: str, size: int) -> _core.Store:
    reply = client.blocking_key_value_get(_STORE_KEY, int(1000 * _RENDEZVOUS_TIMEOUT_S))
    if not reply.isdigit():
        raise RuntimeError(reply)
    return _core.TCPStore(host, int(reply), size, False, _RENDEZVOUS_TIMEOUT_S)


# ---- when the program fails


def _prepare_for_failures() -> None:
    uncaught.endings[_skip_exit_barrier] = None
    uncaught.install()


def _skip_exit_barrier() -> float:
    """Keep JAX's exit functions from waiting for the other processes, up to five minutes.

    Return seconds to delay the exit of process 0, because JAX then ends the other processes.
    """
    from dldist._base import jax_internals

    if "jax" not in sys.modules or (state := jax_internals.find("global_state")).client is None:
        return 0.0
    for name in ("clean_up", "wait_for_tokens"):
        atexit.unregister(jax_internals.find(name))
    delay_s = 0.0 if state.service is None else _COORDINATOR_DELAY_S
    for name in ("preemption_sync_manager", "client", "service"):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(getattr(state, name)))  # the destructors wait too
        setattr(state, name, None)
    return delay_s
