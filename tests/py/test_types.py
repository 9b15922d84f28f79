"""The type stub says what the extension has, and the annotations of the package agree with it and with themselves."""

import importlib.util
import os
import pathlib
import subprocess
import sys

import pytest

PACKAGE = pathlib.Path(__file__).parents[2] / "pkg" / "dldist"
LIMIT_S = 240

needs_mypy = pytest.mark.skipif(importlib.util.find_spec("mypy") is None, reason="mypy is not installed")


def run(module, *args, cwd):
    """What a checker says, which has to be nothing but that all is well."""
    environment = dict(os.environ, MYPY_CACHE_DIR=str(cwd))
    if "PYTHONPATH" in environment:  # of somebody who runs the tests without installing
        environment["PYTHONPATH"] = os.path.abspath(environment["PYTHONPATH"])
    command = [sys.executable, "-m", module, *args]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_mypy
@pytest.mark.deadline(LIMIT_S)
def test_stub_is_true(tmp_path):
    run("mypy.stubtest", "dldist._core", cwd=tmp_path)


@needs_mypy
@pytest.mark.deadline(LIMIT_S)
def test_annotations_agree(tmp_path):
    run("mypy", "--python-version", "3.11", "--ignore-missing-imports", str(PACKAGE), cwd=tmp_path)


PROGRAM = """
from typing import assert_type

import dldist
from dldist._core import Work

world = dldist.World()
x = bytearray(8)
work = world.all_reduce(x, async_op=True)
work.wait()
world.barrier(async_op=True).wait()


def either(flag: bool) -> None:
    assert_type(world.broadcast(x, async_op=flag), Work | None)
"""


@needs_mypy
@pytest.mark.deadline(LIMIT_S)
def test_works_need_no_check_for_none(tmp_path):
    """Of a program, by the strict rules; those do not hold in the package itself."""
    (tmp_path / "program.py").write_text(PROGRAM)
    run("mypy", "--strict", "--follow-imports=silent", "--python-version", "3.11", "program.py", cwd=tmp_path)
