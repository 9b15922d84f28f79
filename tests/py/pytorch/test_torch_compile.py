"""torch.compile with its default compiler over the backend "dldist" must work, with a cold and a
warm cache."""

import os
import shutil
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.deadline(280)]

COMPILE_S = 130  # the cold run takes about 25 seconds on an idle machine

PROGRAM = """
import torch
import torch.distributed as dist
import dldist.torch
import torch.distributed._functional_collectives as collectives
from torch._dynamo.utils import counters

dist.init_process_group("dldist", store=dist.HashStore(), rank=0, world_size=1)

@torch.compile
def program(x):
    return collectives.all_reduce(x * 2, "sum", dist.group.WORLD) + 1

print(program(torch.ones(4)).tolist(), counters["inductor"]["fxgraph_cache_hit"])
dist.destroy_process_group()
"""


@pytest.mark.skipif(not shutil.which(os.environ.get("CXX", "g++")), reason="inductor needs a C++ compiler, and there is none")
def test_program_under_torch_compile_is_correct_with_cold_and_warm_cache(tmp_path):
    environment = dict(os.environ, TORCHINDUCTOR_CACHE_DIR=str(tmp_path), TORCHINDUCTOR_COMPILE_THREADS="1")
    for hits in (0, 1):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=COMPILE_S, check=False
        )
        assert done.stdout == f"[3.0, 3.0, 3.0, 3.0] {hits}\n", done.stderr
