"""The errors when the extension cannot be compiled."""

import os
import shutil
import subprocess
import sys

import pytest
from paths import ROOT


def test_error_of_a_build_without_a_compiler_is_one_line(tmp_path):
    pytest.importorskip("setuptools", minversion="77")
    done = subprocess.run(
        [sys.executable, "setup.py", "build_ext", "--build-temp", str(tmp_path), "--build-lib", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "CC": "no-such-compiler"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(
        "error: dldist is compiled when it is installed, and there is no C compiler: there is no no-such-compiler. "
    )
    assert "no-such-compiler -" not in done.stdout + done.stderr, done.stdout


def copy_tree(tree, folders, *ignored):
    for folder in folders:
        shutil.copytree(ROOT / folder, tree / folder, ignore=shutil.ignore_patterns("*.so", "*.pyi", "__pycache__", *ignored))
    for name in ("setup.py", "pyproject.toml", "README.md", *(path.name for path in ROOT.glob("LICENSE*"))):
        shutil.copy(ROOT / name, tree)


def test_type_stubs_are_written_only_by_builds(tmp_path):
    pytest.importorskip("setuptools", minversion="77")
    tree = tmp_path / "tree"
    copy_tree(tree, ("pkg", "tools", "csrc/python/group"), "*.c")

    def setup(*command):
        subprocess.run([sys.executable, "setup.py", "-q", *command], cwd=tree, check=True, timeout=60)

    setup("egg_info")
    assert list(tree.rglob("*.pyi")) == []
    setup("build_py", "--build-lib", str(tmp_path / "lib"))
    assert {"_core.pyi", "__init__.pyi"} <= {path.name for path in (tmp_path / "lib" / "dldist").glob("*.pyi")}


COMPILER = """#!/bin/sh
[ $# -eq 0 ] || echo "$*" >>"$COMPILER_LOG"
while [ $# -gt 1 ]; do
    [ "$1" != -o ] || : >"$2"
    shift
done
"""


@pytest.mark.parametrize(
    "arguments, setting, is_wanted",
    [("", "", True), ("--inplace", "", False), ("", "0", False), ("--inplace", "1", True)],
    ids=["installed", "in place", "refused", "in place, wanted"],
)
def test_builds_for_installation_use_link_time_optimisation(tmp_path, arguments, setting, is_wanted):
    pytest.importorskip("setuptools", minversion="77")
    tree = tmp_path / "tree"
    copy_tree(tree, ("pkg", "tools", "csrc"))
    compiler = tmp_path / "compiler"
    compiler.write_text(COMPILER)
    compiler.chmod(0o755)
    log = tmp_path / "log"
    env = {name: value for name, value in os.environ.items() if not name.startswith("DLDIST_")}
    subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", "--build-temp", tmp_path / "temp", *(arguments or f"--build-lib={tmp_path}").split()],
        cwd=tree,
        env={**env, "CC": str(compiler), "COMPILER_LOG": str(log), "DLDIST_LTO": setting},
        check=True,
        timeout=120,
    )
    commands = [line for line in log.read_text().splitlines() if "probe" not in line]
    assert len(commands) > 100
    assert {"-flto" in line for line in commands} == {is_wanted}


def test_scripts_print_progress_while_they_run_long_steps(tmp_path):
    """The command's output and exit code must be passed on, and the ticker be stopped."""
    script = "set -e; source scripts/common.sh; patiently bash -c 'echo out; exit 3' || echo $?; patiently true; jobs"
    done = subprocess.run(["bash", "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "out\n3\n", "")
