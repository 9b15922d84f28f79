"""PyTorch must find the backend of an installed dldist, and otherwise be unaffected."""

import configparser
import os
import pathlib
import subprocess
import sys

import dldist
import pytest
from paths import ROOT

pytestmark = [pytest.mark.torch, pytest.mark.deadline(120)]

PACKAGES = pathlib.Path(dldist.__file__).parents[1]  # with the extension, built or installed
ENTRY_POINTS = "[torch.backends]\ndldist = _dldist_torch:autoload\n[torch.distributed.backends]\ndldist = _dldist_torch:register\n"

USES_IT = """
import sys, torch
import torch.distributed as dist
assert not [name for name in sys.modules if name.partition(".")[0] == "dldist"], "importing torch has imported dldist"
assert dist.is_backend_available("dldist") and dist.is_backend_available("cpu:dldist")
dist.init_process_group("dldist", store=dist.HashStore(), rank=0, world_size=1)
x = torch.ones(2)
dist.all_reduce(x)
print(dist.get_backend(), x.tolist())
dist.destroy_process_group()
import dldist.torch  # which finds that it is registered
"""


@pytest.fixture
def installed(tmp_path):
    """Return an environment in which dldist appears installed to PyTorch."""
    folder = tmp_path / "dldist-0.1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: dldist\nVersion: 0.1.0\n")
    (folder / "entry_points.txt").write_text(ENTRY_POINTS)
    return dict(os.environ, PYTHONPATH=os.pathsep.join([str(tmp_path), str(PACKAGES)]))


def python(program, environment):
    command = [sys.executable, "-W", "error::RuntimeWarning", "-c", program]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)


def test_the_package_declares_the_entry_points():
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    declared = configparser.ConfigParser()
    declared.read_string(ENTRY_POINTS)
    assert project["project"]["entry-points"] == {group: dict(declared[group]) for group in declared.sections()}
    assert project["tool"]["setuptools"]["py-modules"] == ["_dldist_torch", "_dldist_torch_names"]
    assert project["tool"]["setuptools"]["packages"] == {"find": {"where": ["pkg"]}}


def test_torch_init_process_group_finds_the_backend_without_an_import(installed):
    done = python(USES_IT, installed)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "dldist [1.0, 1.0]\n"


def test_autoloading_of_the_torch_backend_can_be_turned_off(installed):
    program = "import sys, torch; print('_dldist_torch' in sys.modules)"
    done = python(program, {**installed, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"})
    if done.stdout == "True\n":
        pytest.skip("dldist is installed for real, and something else has imported it")
    assert done.stdout == "False\n", done.stderr


def test_torch_registers_the_backend_on_demand(installed):
    """With autoloading off, torch must register the backend by the entry point of its name."""
    import torch.distributed as dist

    if not hasattr(dist.Backend, "_ensure_backend_registered"):
        pytest.skip('this PyTorch has no entry points "torch.distributed.backends" (new in 2.15)')
    done = python(USES_IT, {**installed, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"})
    assert done.returncode == 0, done.stderr
    assert done.stdout == "dldist [1.0, 1.0]\n"


def test_failed_autoload_of_the_torch_backend_is_a_warning(installed):
    program = (
        "import warnings, torch.distributed as dist, _dldist_torch\n"
        "def broken(*args, **named): raise TypeError('no such thing')\n"
        "dist.Backend.backend_list.clear()\n"
        "dist.Backend.register_backend = broken\n"
        "with warnings.catch_warnings(record=True) as seen:\n"
        "    warnings.simplefilter('always')\n"
        "    _dldist_torch.autoload()\n"
        "print(len(seen), seen[0].message)\n"
    )
    done = python(program, installed)
    assert "1 the backend \"dldist\" cannot be registered with torch.distributed: TypeError('no such thing')" in done.stdout, done.stderr


WITHOUT_DESTROY = """
import sys
import torch.distributed as dist
import dldist.torch
store = dist.FileStore(sys.argv[1], 2)
dist.init_process_group("dldist", store=store, rank=int(sys.argv[2]), world_size=2)
group = dist.new_group([0, 1])
dist.barrier(group)
"""


def test_torch_program_with_open_groups_exits_silently(installed, tmp_path):
    """Groups that are left open must end without output when the interpreter exits and modules are
    already unloaded."""
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", WITHOUT_DESTROY, str(tmp_path / "store"), str(rank)],
            env=dict(installed, TORCH_CPP_LOG_LEVEL="ERROR"),
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        noise = [rank.communicate(timeout=60)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert noise == ["", ""] and [rank.returncode for rank in ranks] == [0, 0]
