"""What c10d asks of ProcessGroupNCCL beside operations, over the doubles of tests/stubs."""

import nccl_surface_workers
import pytest
from test_nccl_life import NOTHING
from test_nccl_life import run as run_ranks


def run(name, tmp_path, size=2, **options):
    return run_ranks(name, size, tmp_path, worker=nccl_surface_workers.member, **options)[0]


@pytest.mark.parametrize(
    "name", ["waits_alone", "timing_from_now_on", "tells_its_hook", "tells_its_hook_without_timing"]
)
def test_works(tmp_path, name):
    assert run(name, tmp_path) == [NOTHING] * 2
