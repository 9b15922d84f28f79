"""The private PyTorch names that the backend "dldist" uses: all must be listed and present, and
none indispensable."""

import ast
import os
import pathlib
import subprocess
import sys

import _dldist_torch_names as names
import dldist
import pytest

pytestmark = [pytest.mark.torch, pytest.mark.deadline(120)]

PACKAGES = pathlib.Path(dldist.__file__).parents[1]
SOURCES = [PACKAGES / "_dldist_torch.py", *sorted((PACKAGES / "dldist" / "torch").glob("*.py"))]
MODULES = {
    "torch": "torch",
    "dist": "torch.distributed",
    "distributed_c10d": "torch.distributed.distributed_c10d",
    "c10d": "torch._C._distributed_c10d",
    "_distributed_c10d": "torch._C._distributed_c10d",
}
"""The names under which the sources import PyTorch's modules."""

MAKES_GROUPS = """
import sys, warnings
import torch
import torch.distributed as dist

import _dldist_torch_names as names
{hide}
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always", RuntimeWarning)
    import dldist.torch
    dist.init_process_group("dldist", store=dist.HashStore(), rank=0, world_size=1)
    for group in (dist.group.WORLD, dist.new_group([0])):
        x = torch.ones(2)
        dist.all_reduce(x, group=group)
        work = dist.all_reduce(x, group=group, async_op=True)
        work.get_future().wait()
        work.wait()
        with dist._coalescing_manager(group=group, device=torch.device("cpu"), async_ops=True) as manager:
            dist.broadcast(x, 0, group=group, async_op=True)
        manager.works[0].get_future().wait()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
            dist.barrier(group)
        seen_objects = [None]
        dist.all_gather_object(seen_objects, {{"a": 1}}, group=group)
        assert x.tolist() == [1.0, 1.0] and seen_objects == [{{"a": 1}}]
    dist.destroy_process_group()
for warning in seen:
    if issubclass(warning.category, RuntimeWarning):
        print(warning.message)
"""
HIDES_ALL = """
kept = {name.path: names.find(name.path) for name in names.NAMES if name.purpose == "compiling the backend in C++"}
names._object_at = kept.get  # without those it would be compiled for this test
dist.distributed_c10d._maybe_attach_flight_recorder = lambda *_: None  # 2.15 would fail by itself where dldist does not replace it
"""
REMOVES_ONE = "del dist.distributed_c10d._set_pg_timeout"


def warnings_of(hide, way):
    """Run a program that makes groups, after the line `hide`; return the lines of its warnings."""
    environment = dict(os.environ, PYTHONPATH=str(PACKAGES), DLDIST_TORCH_BACKEND=way)
    command = [sys.executable, "-c", MAKES_GROUPS.format(hide=hide)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def private_paths_in(source):
    """Yield the private names of PyTorch's modules that a source uses, each as a path that starts
    with "torch"."""
    for node in ast.walk(ast.parse(source.read_text())):
        parts = []
        while isinstance(node, ast.Attribute):
            parts.insert(0, node.attr)
            node = node.value
        if isinstance(node, ast.Name) and node.id in MODULES and any(part[0] == "_" != part[1] for part in parts):
            yield ".".join([MODULES[node.id], *parts])


def is_listed(path):
    """Return True if the table has the name, its owner or one of its parts."""
    return any(f"{name.path}.".startswith(f"{path}.") or f"{path}.".startswith(f"{name.path}.") for name in names.NAMES)


def test_private_names_of_torch_are_present():
    import torch

    lacked = [f"{name.path}: {name.purpose}" for name in names.absent(torch.__version__)]
    assert not lacked, f"PyTorch {torch.__version__} lacks\n" + "\n".join(lacked)


def test_listed_first_release_of_each_private_torch_name_is_correct():
    """The release that introduces a name must be right for the installed PyTorch."""
    import torch

    early = [name for name in names.NAMES if not name.until and not name.is_expected_in(torch.__version__)]
    assert [name.path for name in early if names.find(name.path) is not None] == []


def test_each_private_torch_name_that_is_used_is_listed():
    unlisted = {f"{source.name}: {path}" for source in SOURCES for path in private_paths_in(source) if not is_listed(path)}
    assert unlisted == set()


def test_lookup_of_an_unlisted_private_torch_name_is_rejected():
    with pytest.raises(KeyError, match="torch.not_listed"):
        names.find("torch.not_listed")


@pytest.mark.parametrize("way", ["c++", "python"])
def test_torch_groups_work_without_any_private_name_of_torch(way):
    (warning,) = warnings_of(HIDES_ALL, way)
    assert "_create_work_from_future" in warning and "share_buckets()" in warning


@pytest.mark.parametrize("way", ["c++", "python"])
def test_absent_private_name_of_torch_causes_one_warning(way):
    import torch

    path = "torch.distributed.distributed_c10d._set_pg_timeout"
    assert warnings_of(REMOVES_ONE, way) == [
        f"dldist: PyTorch {torch.__version__} lacks {path}: unavailable or limited: {path}(); a newer dldist may support this PyTorch"
    ]


def test_no_warning_is_given_if_torch_has_all_private_names():
    assert warnings_of("", "python") == []
