"""tools/check_circles.py: which files of a folder need each other."""
import subprocess
import sys
from pathlib import Path

TOOL = Path(__file__).parents[2] / "tools" / "check_circles.py"


def make_circle(root, folder, nfiles, *, keyword="", text=""):
    """Files that each call a function of the next one."""
    (root / folder).mkdir(exist_ok=True)
    for i in range(nfiles):
        body = f"    step_{(i + 1) % nfiles}();\n"
        source = f"{keyword}void\nstep_{i}(void)\n{{\n{text or body}}}\n"
        (root / folder / f"file_{i}.c").write_text(source, encoding="utf-8")


def run(root, *options):
    done = subprocess.run([sys.executable, TOOL, root, *options], capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout


def test_three_files_may_need_each_other(tmp_path):
    make_circle(tmp_path, "small", 3)
    code, text = run(tmp_path, "--all")
    assert code == 0
    assert "csrc/small: file_0, file_1, file_2" in text


def test_four_may_not(tmp_path):
    make_circle(tmp_path, "large", 4)
    code, text = run(tmp_path)
    assert code == 1
    assert "4 files need each other, where 3 is the most: file_0, file_1, file_2, file_3" in text


def test_what_is_static_or_said_in_a_comment_does_not_count(tmp_path):
    make_circle(tmp_path, "private", 4, keyword="static ")
    make_circle(tmp_path, "told", 4, text="    /* step_0 step_1 step_2 step_3 */ say(\"step_0 step_1 step_2 step_3\");\n")
    assert run(tmp_path)[0] == 0


def test_some_folders_are_only_told_of(tmp_path):
    make_circle(tmp_path, "nccl", 11)
    code, text = run(tmp_path)
    assert code == 0
    assert "nccl has 11" in text
