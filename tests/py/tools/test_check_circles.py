"""tools/check_circles.py and check_imports.py must find files that depend on each other."""
import subprocess
import sys

from paths import TOOLS

TOOL = TOOLS / "check_circles.py"
IMPORTS = TOOL.with_name("check_imports.py")


def make_circle(root, folder, nfiles, *, keyword="", text=""):
    """Make files that each call a function of the next one."""
    (root / folder).mkdir(exist_ok=True)
    for i in range(nfiles):
        body = f"    step_{(i + 1) % nfiles}();\n"
        source = f"{keyword}void\nstep_{i}(void)\n{{\n{text or body}}}\n"
        (root / folder / f"file_{i}.c").write_text(source, encoding="utf-8")


def run(root, *options, tool=TOOL):
    done = subprocess.run([sys.executable, tool, root, *options], capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout


def test_circle_of_three_c_files_is_accepted(tmp_path):
    make_circle(tmp_path, "small", 3)
    code, text = run(tmp_path, "--all")
    assert code == 0
    assert "csrc/small: file_0, file_1, file_2" in text


def test_circle_of_four_c_files_is_reported(tmp_path):
    make_circle(tmp_path, "large", 4)
    code, text = run(tmp_path)
    assert code == 1
    assert "4 files need each other, where 3 is the most: file_0, file_1, file_2, file_3" in text


def test_static_functions_and_comments_make_no_dependency(tmp_path):
    make_circle(tmp_path, "private", 4, keyword="static ")
    make_circle(tmp_path, "told", 4, text="    /* step_0 step_1 step_2 step_3 */ say(\"step_0 step_1 step_2 step_3\");\n")
    assert run(tmp_path)[0] == 0


def make_package(root, **modules):
    package = root / "dldist"
    for name, text in {"__init__": "", "_base/__init__": "", "_api/__init__": "", **modules}.items():
        path = package / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return package


def import_in_function(module):
    return f"def run():\n    from dldist import {module}\n"


def test_upward_import_of_a_module_is_reported_even_in_a_function(tmp_path):
    upward = {"_base/low": "def run():\n    from dldist._api import high\n", "_api/high": "from dldist._base import low\n"}
    code, text = run(make_package(tmp_path, **upward), tool=IMPORTS)
    assert code == 1
    assert "dldist._base.low imports dldist._api.high, which is of a higher layer" in text


def test_circle_of_four_modules_is_reported(tmp_path):
    ring = {f"m{i}": import_in_function(f"m{(i + 1) % 4}") for i in range(4)}
    code, text = run(make_package(tmp_path, **ring), tool=IMPORTS)
    assert code == 1
    assert "4 modules need each other, at most 3 may: dldist.m0, dldist.m1, dldist.m2, dldist.m3" in text


def test_imports_for_type_checkers_make_no_dependency(tmp_path):
    ring = {f"m{i}": f"if TYPE_CHECKING:\n    from dldist import m{(i + 1) % 4}\n" for i in range(4)}
    assert run(make_package(tmp_path, **ring), tool=IMPORTS)[0] == 0
