"""The type stub must match the extension, the package must agree with it and with itself, and
programs pass the strictest checks."""

import ast
import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys

import dldist
import pytest
from dldist import functional
from paths import ROOT

PACKAGE = ROOT / "pkg" / "dldist"
PACKAGE_IN_USE = pathlib.Path(dldist.__file__).parent
PROGRAMS = pathlib.Path(__file__).parent / "typed_programs"
LIMIT_S = 240

needs_mypy = pytest.mark.skipif(importlib.util.find_spec("mypy") is None, reason="mypy is not installed")


def check(module, *args, cwd):
    """Run a checker; return the completed process."""
    environment = dict(os.environ, MYPY_CACHE_DIR=str(cwd))
    if "PYTHONPATH" in environment:  # set by a user who runs the tests without installing
        environment["PYTHONPATH"] = os.path.abspath(environment["PYTHONPATH"])
    command = [sys.executable, "-m", module, *args]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=LIMIT_S)


def run(module, *args, cwd):
    """Run a checker, which must succeed."""
    done = check(module, *args, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_mypy
@pytest.mark.deadline(LIMIT_S)
def test_type_stub_matches_the_extension(tmp_path):
    run("mypy.stubtest", "dldist._core", cwd=tmp_path)


@needs_mypy
@pytest.mark.deadline(LIMIT_S)
def test_type_annotations_of_the_package_pass_mypy(tmp_path):
    run("mypy", "--python-version", "3.11", "--ignore-missing-imports", str(PACKAGE), cwd=tmp_path)


@needs_mypy
@pytest.mark.deadline(LIMIT_S)
def test_function_bodies_agree_with_their_annotated_signatures(tmp_path):
    """Bodies must agree with signatures in modules with a generated stub, because checkers
    otherwise only read the stub."""
    modules = [str(PACKAGE / name) for name in ("__init__.py", "distributed_c10d.py", "_api/collectives.py", "functional/__init__.py")]
    run("mypy", "--python-version", "3.11", "--ignore-missing-imports", "--follow-imports=silent", *modules, cwd=tmp_path)


# ---- programs


def programs(*packages):
    """Return the programs that use only dldist, and those for the installed packages."""
    names = ["calls.py"]
    for name, needed in {"arrays.py": ["numpy"], "frameworks.py": ["torch", "jax"]}.items():
        wanted = set(needed) <= set(packages)
        missing = [each for each in needed if importlib.util.find_spec(each) is None]
        if wanted and not missing:
            names.append(name)
        elif wanted:
            print(f"{name} is left out: no {', '.join(missing)}")
    return [str(PROGRAMS / name) for name in names]


def marked_lines():
    """Return the line numbers of the errors in wrong.py."""
    lines = (PROGRAMS / "wrong.py").read_text().splitlines()
    return {number for number, line in enumerate(lines, 1) if line.endswith("# wrong")}


def test_typed_programs_use_all_public_names():
    tree = ast.parse((PROGRAMS / "calls.py").read_text())
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "dist"}
    assert set(dldist.__all__) - used == set()
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "F"}
    assert set(functional.__all__) - used == set()


STRICT = "--strict --follow-imports=silent --python-version 3.11".split()


@needs_mypy
@pytest.mark.deadline(LIMIT_S)
def test_typed_programs_pass_strict_mypy(tmp_path):
    """The programs must pass mypy's strict rules, which the package itself does not follow."""
    run("mypy", *STRICT, *programs("numpy"), cwd=tmp_path)
    wrong = check("mypy", *STRICT, str(PROGRAMS / "wrong.py"), cwd=tmp_path)
    found = {int(number) for number in re.findall(r"wrong\.py:(\d+): error", wrong.stdout)}
    assert found == marked_lines(), wrong.stdout


@pytest.mark.skipif(importlib.util.find_spec("basedpyright") is None, reason="basedpyright is not installed")
@pytest.mark.deadline(LIMIT_S)
@pytest.mark.parametrize("version", ["3.11", "3.13"])
def test_typed_programs_pass_strict_pyright(tmp_path, version):
    paths = programs("numpy", "torch", "jax")
    settings = {
        "typeCheckingMode": "strict",
        "pythonVersion": version,
        "extraPaths": [str(PACKAGE_IN_USE.parent)],
        "include": [*paths, str(PROGRAMS / "wrong.py")],
    }
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    done = check("basedpyright", "--outputjson", "--pythonpath", sys.executable, "-p", str(tmp_path), cwd=tmp_path)
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] == len(paths) + 1, done.stderr
    errors = [error for error in report["generalDiagnostics"] if error["severity"] == "error"]
    wrong = [error for error in errors if error["file"].endswith("wrong.py")]
    assert [error for error in errors if error not in wrong] == []
    assert {error["range"]["start"]["line"] + 1 for error in wrong} == marked_lines()
