"""Everything here needs a GPU; without one each test says so."""

import os

import pytest

# Two ranks on one GPU; read by NCCL when it is loaded.
os.environ.setdefault("NCCL_MULTI_RANK_GPU_ENABLE", "1")
os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
os.environ.setdefault("NCCL_MAX_CTAS", "4")


def pytest_collection_modifyitems(items):
    import dldist.nccl

    why = dldist.nccl.why_not_available()
    if why:
        for item in items:
            item.add_marker(pytest.mark.skip(reason=why))
