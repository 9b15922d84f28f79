"""The table of operations, and the code generated from it."""

import os
import subprocess
import sys

import dldist
import pytest
from dldist import _core
from dldist._backends.dispatcher import Dispatcher
from dldist._backends.low_level import CALLS
from dldist._base.operations import OPERATIONS
from dldist._base.options import OpType
from paths import ROOT, TOOLS

SOURCES = [path for part, kinds in (("csrc", "ch"), ("pkg", ("py",))) for kind in kinds for path in (ROOT / part).rglob(f"*.{kind}")]


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_operation_in_the_table_has_all_its_methods(name):
    operation = OPERATIONS[name]
    assert callable(getattr(dldist.Group, name)) and callable(getattr(_core.Plans, name))
    assert callable(getattr(Dispatcher, name))
    assert OpType(operation.op_type)
    assert not operation.as_one or OPERATIONS[operation.as_one].collective == operation.collective
    if operation.call:
        assert CALLS[operation.call].operation is operation
        assert callable(getattr(dldist.ProcessGroup, operation.call))
    if operation.former_call:
        assert CALLS[operation.former_call] is CALLS[operation.call]


def test_type_stubs_are_generated_from_the_operation_table():
    """The stubs of the package in use must match, even if it is older than the sources."""
    command = [sys.executable, str(TOOLS / "make_stubs.py"), "--check", os.path.dirname(dldist.__file__)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_stub_generator_reads_the_same_table_as_the_extension(monkeypatch):
    """Stubs are generated without the extension, which may be for another processor."""
    monkeypatch.syspath_prepend(str(TOOLS))
    import make_stubs

    rows = make_stubs.operation_rows(make_stubs.OPERATIONS_HEADER.read_text(encoding="utf-8"))
    assert rows == list(_core._operations())


def test_operation_is_named_in_few_files_beside_the_table():
    """No file may name it except the table, the names of recorded calls, and the user-level
    functions, which have their own docs and types."""
    named = [path for path in SOURCES if "reduce_scatter_single" in path.read_text(encoding="utf-8")]
    assert len(named) <= 7, named


def test_arguments_of_an_operation_are_bound_as_in_a_python_call():
    reduce = OPERATIONS["reduce"]
    assert reduce.bind(("x",), {"op": "max"}) == ["x", None, "max"]
    for args, named, text in (
        (("x", 0, "sum", 1), {}, r"reduce\(\) takes at most 3 positional arguments \(4 given\)"),
        (("x",), {"tensor": "y"}, r"reduce\(\) got multiple values for argument 'tensor'"),
        (("x",), {"dst": 0}, r"reduce\(\) got an unexpected keyword argument 'dst'"),
        ((), {"root": 0}, r"reduce\(\) missing required argument 'tensor'"),
    ):
        with pytest.raises(TypeError, match=text):
            reduce.bind(args, named)
