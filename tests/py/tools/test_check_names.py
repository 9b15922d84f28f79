"""tools/check_names.py: a type's name must have one meaning."""
import subprocess
import sys

import pytest
from paths import TOOLS

TOOL = TOOLS / "check_names.py"


def run(root, **files):
    for name, text in files.items():
        (root / f"{name}.c").write_text(text, encoding="utf-8")
    done = subprocess.run([sys.executable, TOOL, root], capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout


@pytest.mark.parametrize("one, other", [
    ("typedef struct frame {\n    int line; /* of a file */\n} frame;", "typedef struct frame {\n    long bytes;\n} frame;"),
    ("struct frame {\n    int line;\n};", "enum frame { A };"),
    ("typedef int frame;", "typedef long frame;"),
    ("typedef void frame(int a, int b);", "typedef void (*frame)(int a, int b);"),
    ("typedef struct frame {\n    struct {\n        int a;\n    } inner;\n    int b;\n} frame;",
     "typedef struct frame {\n    struct {\n        int a;\n    } inner;\n    int c;\n} frame;"),
])
def test_type_defined_differently_in_two_files_is_reported(tmp_path, one, other):
    code, text = run(tmp_path, first=one, second=other)
    assert code == 1
    assert "frame is defined differently in first.c, second.c" in text


@pytest.mark.parametrize("other", [
    "typedef struct frame frame;",  # declares the type
    "typedef struct frame { int   line; } frame;",  # the same definition
    "struct frame *make(struct frame *of);",
    "/* struct frame { long bytes; }; */",
    "#define MAKE(T) \\\n    struct frame { \\\n        T bytes; \\\n    };",
])
def test_opaque_and_equal_definitions_of_a_type_are_accepted(tmp_path, other):
    assert run(tmp_path, first="typedef struct frame {\n    int line;\n} frame;", second=other)[0] == 0


def test_one_file_may_define_a_type_for_each_platform(tmp_path):
    text = "#ifdef A\nstruct frame {\n    int a;\n};\n#else\nstruct frame {\n    int b;\n};\n#endif\n"
    assert run(tmp_path, only=text)[0] == 0


def test_sources_define_no_type_differently_in_two_files():
    done = subprocess.run([sys.executable, TOOL], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout
