#!/usr/bin/env python3
"""Writes what can be told from elsewhere into the stubs.

From the table of operations, csrc/python/group/operations.h: the methods of Group in _core.pyi, and all of _backends/low_level.pyi. From
the functions of a module: _api/collectives.pyi and functional/__init__.pyi, with an overload for each kind of async_op. From the
tables of names, _api/namespace.py: __init__.pyi and distributed_c10d.pyi, which hand on what is elsewhere.

    python tools/make_stubs.py           write them
    python tools/make_stubs.py --check   fail where a stub is not what would be written

The extension must have been built.
"""
import sys
from pathlib import Path

from overloads import definition, module_stub, results_by_flag

PACKAGE = Path(__file__).resolve().parent.parent / "pkg" / "dldist"
BEGIN = "    # The operations: made by tools/make_stubs.py.\n"
END = "    # End of the operations.\n"
# With the private names that other modules use.
MODULES = {
    "_api/collectives.py": ("_all_gather_base", "_make_nccl_premul_sum", "_reduce_op", "_reduce_scatter_base"),
    "functional/__init__.py": (),
}

TYPES = {
    "one": "Tensor",
    "whole": "Tensor",
    "many": "Tensors",
    "ranks": "Tensors",
    "wholes": "Tensors",
    "lists": "Sequence[Tensors]",
    "op": "Op",
    "root": "SupportsIndex",
}
DEFAULTS = {"op": '"sum"', "root": "0"}
TIMEOUT = "timeout: Timeout | None = None"


def method(name: str, parameters: list[str], result: str) -> str:
    return definition(name, ["self", *parameters], result, "    ")


def parameter_of(operation, place: int) -> str:
    name = operation.parameters[place]
    kind = next((kind for kind, at in (operation.input, operation.output) if at == place), None)
    hint = TYPES[kind or name] if kind or name in TYPES else "_Ints | None"
    if place < operation.nrequired:
        return f"{name}: {hint}"
    default = DEFAULTS.get(name, "None")
    return f"{name}: {hint}{' | None' if kind else ''} = {default}"


def methods(operation) -> str:
    parameters = [parameter_of(operation, place) for place in range(len(operation.parameters))] + ["*", TIMEOUT]
    text = "".join(
        "    @overload\n" + method(operation.name, [*parameters, f"async_op: {flag}"], result)
        for flag, result in results_by_flag("Work", "None").items()
    )
    return text + method(f"plan_{operation.name}", parameters, "Plan")


def core_stub(before: str, operations) -> str:
    head, rest = before.split(BEGIN)
    return head + BEGIN + "".join(map(methods, operations)) + END + rest.split(END)[1]


LOW_LEVEL_HEAD = '''# Made by tools/make_stubs.py from the table of operations.
from datetime import timedelta
from typing import Any

from dldist._base.operations import Operation

class NotOneTensor(RuntimeError): ...

class Side:
    kind: str
    parameter: int
    what: str
    is_wrapped: bool
    is_for_root: bool
    names: tuple[str, ...]

class Call:
    name: str
    former_name: str
    operation: Operation
    options: Any
    sides: list[Side]
    splits: list[str]
    def arranged(self, called: str, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]: ...
    def lowered(self, values: list[Any], opts: Any) -> tuple[Any, ...]: ...
    def raised(self, backend: Any, arguments: tuple[Any, ...], op: Any) -> list[Any]: ...
    def tensors(self, arguments: tuple[Any, ...]) -> tuple[Any, Any]: ...

CALLS: dict[str, Call]
CALL_OF: dict[str, Call]

class LowLevelCalls:
    def _perform(self, method: str, *arguments: Any) -> Any: ...
    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None: ...
    def send(self, tensors: Any, dstRank: int, tag: int) -> Any: ...
    def recv(self, tensors: Any, srcRank: int, tag: int) -> Any: ...
    def recv_anysource(self, tensors: Any, tag: int) -> Any: ...
'''


def low_level_stub(calls) -> str:
    text = LOW_LEVEL_HEAD
    for name, call in calls.items():
        by_position, by_name = call.parameters()
        parameters = [f"{each}: Any = None" for each in by_position] + ["*"] + [f"{each}: Any = None" for each in by_name]
        text += method(name, parameters if by_name else parameters[:-1], "Any")
    return text


PACKAGE_HEAD = """
from dldist import rendezvous as rendezvous

__all__: list[str]
__version__: str

def set_log_level(level: str) -> None: ...
"""
C10D_HEAD = """
from dldist.rendezvous import rendezvous as rendezvous

__all__: list[str]
_world: _World
"""


def names_stub(head: str, tables) -> str:
    """The stub of a module that has what is in others."""
    from dldist._api import namespace, torch_private

    lines, of_moment = {}, ""
    for name, module, other in namespace.names_of(*tables):
        if f"{module.removeprefix('dldist.').replace('.', '/')}.py" in MODULES and not name.startswith("_"):
            lines[f"from {module} import *\n"] = None
        elif module == torch_private.__name__ and other not in vars(torch_private):
            of_moment += f"{name}: Any\n"
        elif name != "rendezvous":  # which is the module in one of them, and the function in the other
            lines[f"from {module} import {other} as {name}\n"] = None
    text = "# Made by tools/make_stubs.py from _api/namespace.py.\nfrom typing import Any\n\n"
    return text + "".join(lines) + head + "\n" + of_moment


def main() -> int:
    sys.path.append(str(PACKAGE.parent))  # where it is not installed
    from dldist._api import namespace
    from dldist._backends.low_level import CALLS
    from dldist._base.operations import OPERATIONS

    core, low_level = PACKAGE / "_core.pyi", PACKAGE / "_backends" / "low_level.pyi"
    stubs = {core: core_stub(core.read_text(), OPERATIONS.values()), low_level: low_level_stub(CALLS)}
    common = namespace.C10D, namespace.PACKAGE, namespace.BESIDE
    stubs[PACKAGE / "__init__.pyi"] = names_stub(PACKAGE_HEAD, common)
    stubs[PACKAGE / "distributed_c10d.pyi"] = names_stub(C10D_HEAD, (*common, namespace.OF_C10D))
    for module, private in MODULES.items():
        stubs[(PACKAGE / module).with_suffix(".pyi")] = module_stub(PACKAGE / module, private)
    differ = [path for path, text in stubs.items() if not path.exists() or path.read_text() != text]
    if "--check" in sys.argv:
        for path in differ:
            print(f"{path}: not what it would be made: run tools/make_stubs.py")
        return 1 if differ else 0
    for path in differ:
        path.write_text(stubs[path])
    return 0


if __name__ == "__main__":
    sys.exit(main())
