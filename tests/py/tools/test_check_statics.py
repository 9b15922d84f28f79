"""tools/check_statics.py: static functions must have unique names."""
import subprocess
import sys

from paths import TOOLS

TOOL = TOOLS / "check_statics.py"


def run_check(root):
    return subprocess.run([sys.executable, TOOL, root], capture_output=True, text=True)


def write(root, name, function):
    (root / name).parent.mkdir(exist_ok=True)
    (root / name).write_text(f"static int\n{function}(int x)\n{{\n    return x;\n}}\n")


def test_static_functions_of_the_same_name_in_two_files_are_reported(tmp_path):
    write(tmp_path, "nccl/a.c", "run")
    write(tmp_path, "xla/b.c", "run")
    ran = run_check(tmp_path)
    assert ran.returncode == 1
    assert "run() is static in nccl/a.c, xla/b.c: rename all but one" in ran.stdout


def test_unique_names_of_static_functions_are_accepted(tmp_path):
    write(tmp_path, "nccl/a.c", "watch_run")
    write(tmp_path, "xla/b.c", "program_run")
    assert run_check(tmp_path).returncode == 0
