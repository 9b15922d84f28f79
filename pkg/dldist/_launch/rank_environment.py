"""Variables for the environment of ranks, named like torchrun's: dlrun, spawn, dldist.testing."""

from __future__ import annotations

import os
import secrets

from dldist import _core
from dldist._base import settings


def rank_variables(rank: int, size: int, local_rank: int, local_size: int, node: int = 0, nnodes: int = 1) -> dict[str, str]:
    """Return the variables with a rank's numbers: RANK, WORLD_SIZE and so on."""
    numbers = {
        "RANK": rank,
        "WORLD_SIZE": size,
        "LOCAL_RANK": local_rank,
        "LOCAL_WORLD_SIZE": local_size,
        "GROUP_RANK": node,
        "GROUP_WORLD_SIZE": nnodes,
    }
    return {name: str(number) for name, number in numbers.items()}


def store_variables(host: str, port: int, attempt: int = 0) -> dict[str, str]:
    """Return the variables with the address of the launcher's store."""
    return {
        "MASTER_ADDR": host,
        "MASTER_PORT": str(port),
        # TORCHELASTIC_USE_AGENT_STORE: the launcher serves the store, so no rank does.
        # DLDIST_AGENT_STORE repeats the address: a program that changes MASTER_ADDR or MASTER_PORT
        # needs its own store.
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "DLDIST_AGENT_STORE": f"{host}:{port}",
        "TORCHELASTIC_RESTART_COUNT": str(attempt),
    }


def serve_store(size: int) -> tuple[_core.TCPStore, list[dict[str, str]]]:
    """Serve a store for `size` processes of this host. Return it and each process's environment."""
    secret = os.fsdecode(settings.secret()) or secrets.token_hex(16)
    store = _core.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, secret=secret)
    shared = {**store_variables("127.0.0.1", store.port), "DLDIST_SECRET": secret}
    return store, [shared | rank_variables(rank, size, rank, size) for rank in range(size)]
