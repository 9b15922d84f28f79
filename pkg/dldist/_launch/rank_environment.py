"""Variables for the environment of ranks, named like torchrun's: dlrun, spawn, dldist.testing."""

from __future__ import annotations

import os
import secrets

from dldist import _core
from dldist._base import settings


def rank_variables(rank: int, size: int, local_rank: int, local_size: int, node: int = 0, nnodes: int = 1) -> dict[str, str]:
    """Return the variables with a rank's numbers: RANK, WORLD_SIZE and so on."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")
    return dict(zip(names, map(str, (rank, size, local_rank, local_size, node, nnodes))))


def store_variables(host: str, port: int, attempt: int = 0) -> dict[str, str]:
    """Return the variables with the address of the launcher's store."""
    return {
        "MASTER_ADDR": host,
        "MASTER_PORT": str(port),
        # With TORCHELASTIC_USE_AGENT_STORE, ranks use the launcher's store and serve none.
        # DLDIST_AGENT_STORE repeats the store's address, so that a program that changes MASTER_ADDR
        # or MASTER_PORT gets its own store.
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "DLDIST_AGENT_STORE": f"{host}:{port}",
        "TORCHELASTIC_RESTART_COUNT": str(attempt),
    }


def serve(host: str, port: int, secret: str, timeout: float = 300.0) -> _core.TCPStore:
    """Serve a launcher's store. It also accepts PyTorch's clients, which cannot prove the secret, if
    they are processes of this user on this host."""
    return _core.TCPStore(host, port, is_master=True, timeout=timeout, wait_for_workers=False, secret=secret, _is_open_to_own_torch=True)


def serve_store(size: int) -> tuple[_core.TCPStore, list[dict[str, str]]]:
    """Serve a store for `size` processes of this host. Return the store and their environments."""
    secret = os.fsdecode(settings.secret()) or secrets.token_hex(16)
    store = serve("127.0.0.1", 0, secret)
    shared = {**store_variables("127.0.0.1", store.port), "DLDIST_SECRET": secret}
    return store, [shared | rank_variables(rank, size, rank, size) for rank in range(size)]
