"""The environment of ranks, under torchrun's names; for dlrun, spawn() and dldist.testing."""

from __future__ import annotations

import os
import secrets

from dldist import _core
from dldist._base import settings


def of_rank(rank: int, size: int, local_rank: int, local_size: int, node: int = 0, nnodes: int = 1) -> dict[str, str]:
    """The variables for the numbers of a rank."""
    numbers = {
        "RANK": rank,
        "WORLD_SIZE": size,
        "LOCAL_RANK": local_rank,
        "LOCAL_WORLD_SIZE": local_size,
        "GROUP_RANK": node,
        "GROUP_WORLD_SIZE": nnodes,
    }
    return {name: str(number) for name, number in numbers.items()}


def of_store(host: str, port: int, attempt: int = 0) -> dict[str, str]:
    """The variables for the address of the launcher's store."""
    return {
        "MASTER_ADDR": host,
        "MASTER_PORT": str(port),
        # The store exists already, so no rank serves one. The second variable has its address too, because a program that changes
        # MASTER_ADDR or MASTER_PORT wants a store of its own.
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "DLDIST_AGENT_STORE": f"{host}:{port}",
        "TORCHELASTIC_RESTART_COUNT": str(attempt),
    }


def serve_store(size: int) -> tuple[_core.TCPStore, list[dict[str, str]]]:
    """A store for `size` processes of this host, and the environment by which each of them finds it."""
    secret = os.fsdecode(settings.secret()) or secrets.token_hex(16)
    store = _core.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, secret=secret)
    where = {**of_store("127.0.0.1", store.port), "DLDIST_SECRET": secret}
    return store, [where | of_rank(rank, size, rank, size) for rank in range(size)]
