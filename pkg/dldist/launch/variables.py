"""What ranks find in their environment, under torchrun's names; for dlrun, spawn() and dldist.testing."""

from __future__ import annotations

import secrets

from dldist import _core
from dldist.base import settings


def of_rank(rank: int, size: int, local_rank: int, local_size: int, node: int = 0, nnodes: int = 1) -> dict[str, str]:
    """Its numbers."""
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
    """Where a store is that the launcher serves."""
    return {
        "MASTER_ADDR": host,
        "MASTER_PORT": str(port),
        # The store is there: no rank is to serve one. The second says where, for a program that changes MASTER_ADDR or
        # MASTER_PORT afterwards and means a store of its own.
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "DLDIST_AGENT_STORE": f"{host}:{port}",
        "TORCHELASTIC_RESTART_COUNT": str(attempt),
    }


def serve_store(size: int) -> tuple[_core.TCPStore, list[dict[str, str]]]:
    """A store for so many processes of this host, and what each has in its environment to find it."""
    secret = settings.value("secret") or secrets.token_hex(16)
    store = _core.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, secret=secret)
    where = {**of_store("127.0.0.1", store.port), "DLDIST_SECRET": secret}
    return store, [where | of_rank(rank, size, rank, size) for rank in range(size)]
