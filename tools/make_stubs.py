#!/usr/bin/env python3
"""Write the type stubs of the package, which are not in the repository. setup.py runs this.

The table of operations, csrc/python/group/operations.h, provides the methods of Group and Plans in
_core.pyi, whose other parts are in _core.pyi.in, and all of _backends/low_level.pyi. In _core.pyi.in,
`name: property[T]` stands for a read-only property. The functions of a module provide
_api/collectives.pyi and functional/__init__.pyi, with an overload for each kind of async_op. The
tables of names in _api/namespace.py provide __init__.pyi and distributed_c10d.pyi, which re-export
names.

    python tools/make_stubs.py                 write them
    python tools/make_stubs.py --check FOLDER  fail if a stub of the package in FOLDER is outdated

The extension need not be built: it may be for another architecture.
"""
import ast
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from overloads import definition, module_stub, results_by_flag, with_overloads

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "pkg" / "dldist"
OPERATIONS_HEADER = ROOT / "csrc" / "python" / "group" / "operations.h"
PLACE_OF_OPERATIONS = "    # tools/make_stubs.py puts the operations here.\n"
PLACE_OF_PLANS = "class Plans: ...\n"
PROPERTY = re.compile(r"^    (\w+): property\[(.*)\]\n", re.M)
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


def parameters_of(operation) -> list[str]:
    return [parameter_of(operation, place) for place in range(len(operation.parameters))] + ["*", TIMEOUT]


def methods(operation) -> str:
    return "".join(
        "    @overload\n" + method(operation.name, [*parameters_of(operation), f"async_op: {flag}"], result)
        for flag, result in results_by_flag("Work", "None").items()
    )


def plan_method(operation) -> str:
    return method(operation.name, parameters_of(operation), "Plan")


def core_stub(template: str, operations) -> str:
    template = PROPERTY.sub(r"    @property\n    def \1(self) -> \2: ...\n", template)
    text = with_overloads(template).replace(PLACE_OF_OPERATIONS, "".join(map(methods, operations)))
    text = text.replace(PLACE_OF_PLANS, PLACE_OF_PLANS.replace(" ...", "") + "".join(map(plan_method, operations)))
    return f"# Made by tools/make_stubs.py from _core.pyi.in.\n{text}"


class _Words(dict):
    """The names in the rows of the C table, with the values that the extension passes."""

    def __init__(self) -> None:
        def side(kind: str) -> Any:
            return lambda parameter, *_: (kind, parameter)

        def name(word: str, *_: Any) -> str:
            return word

        super().__init__({kind.upper(): side(kind) for kind in ("one", "many", "ranks", "lists", "whole", "wholes")})
        self.update(NOTHING=("nothing", -1), WHOLE_BY=side("whole"), PY_TENSORS=name, PY_OTHER=name, PY_REDUCTION="op", PY_ROOT="root")
        self["X"] = self.row

    def __missing__(self, word: str) -> str:
        return word.lower()

    @staticmethod
    def row(name, collective, op_type, call, former, recorded, as_one, nrequired, parameters, source, result, *_) -> tuple[Any, ...]:
        return name, collective, op_type, recorded, call, former, as_one, parameters, nrequired, source, result


def operation_rows(header: str) -> list[tuple[Any, ...]]:
    """Return the rows of the C table like _core._operations(). Each row is also a Python
    expression."""
    table = header.partition("#define PY_OPERATION_LIST(X)")[2].partition("/* clang-format on */")[0]
    rows = re.sub(r"\)\s+X\(", "), X(", table.replace("\\\n", " "))
    return eval(f"[{rows.strip()}]", {}, _Words())  # noqa: S307


def stand_in(name: str, **attributes: Any) -> ModuleType:
    """Register a module to be imported instead of one that needs the extension."""
    sys.modules[name] = module = ModuleType(name)
    vars(module).update(attributes)
    return module


LOW_LEVEL_HEAD = '''# Made by tools/make_stubs.py from the table of operations.
from datetime import timedelta
from typing import Any

from dldist._base.operations import Operation

class TensorCountError(RuntimeError): ...

class Side:
    kind: str
    parameter: int
    label: str
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
    def to_list_form(self, method: str, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]: ...
    def to_call_arguments(self, values: list[Any], opts: Any) -> tuple[Any, ...]: ...
    def to_operation_values(self, backend: Any, arguments: tuple[Any, ...], op: Any) -> list[Any]: ...
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
from dldist import functional as functional
from dldist import rendezvous as rendezvous
from dldist import testing as testing

__all__: list[str]
__version__: str

def set_log_level(level: str) -> None: ...
"""
C10D_HEAD = """
from dldist.rendezvous import rendezvous as rendezvous

__all__: list[str]
_world: _World
"""


def source_of(module: str) -> str:
    return f"{module.removeprefix('dldist.').replace('.', '/')}.py"


def defined_in(module: str) -> list[str]:
    """Return the names of functions, classes and values that a module defines."""
    tree = ast.parse((PACKAGE / source_of(module)).read_text(encoding="utf-8"))
    names = []
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.append(node.name)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names += [each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)]
    return names


def names_stub(head: str, tables) -> str:
    """Return the stub of a module that re-exports names."""
    from dldist._api import namespace

    lines, of_moment = {}, ""
    for module, names in ((module, names) for table in tables for module, names in table.items()):
        defined = defined_in(module) if module == namespace.UNCACHED_MODULE else []
        for name, _, other in namespace.parse_names({module: names}):
            if module == namespace.UNCACHED_MODULE and other not in defined:
                of_moment += f"{name}: Any\n"
            elif name != "rendezvous":  # a module in one of them, a function in the other
                lines[f"from {module} import {other} as {name}\n"] = None
    text = "# Made by tools/make_stubs.py from _api/namespace.py.\nfrom typing import Any\n\n"
    return text + "".join(lines) + head + "\n" + of_moment


def made_stubs() -> dict[str, str]:
    """Return the text of each stub, by its path in the package."""
    stand_in("dldist", __path__=[str(PACKAGE)])
    stand_in("dldist._core", _operations=lambda: operation_rows(OPERATIONS_HEADER.read_text(encoding="utf-8")))
    sys.modules["dldist"]._core = sys.modules["dldist._core"]
    stand_in("dldist._base.options", __getattr__=lambda name: object)
    from dldist._api import namespace
    from dldist._backends.low_level import CALLS
    from dldist._base.operations import OPERATIONS

    common = namespace.C10D, namespace.PACKAGE, namespace.PRIVATE
    stubs = {
        "_core.pyi": core_stub((PACKAGE / "_core.pyi.in").read_text(encoding="utf-8"), OPERATIONS.values()),
        "_backends/low_level.pyi": low_level_stub(CALLS),
        "__init__.pyi": names_stub(PACKAGE_HEAD, common),
        "distributed_c10d.pyi": names_stub(C10D_HEAD, (*common, namespace.C10D_ONLY)),
    }
    return stubs | {f"{module}i": module_stub(PACKAGE / module, private) for module, private in MODULES.items()}


def main() -> int:
    folder = Path(sys.argv[2]) if "--check" in sys.argv else PACKAGE
    stubs = {folder / name: text for name, text in made_stubs().items()}
    differ = [path for path, text in stubs.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    if "--check" in sys.argv:
        for path in differ:
            print(f"{path}: out of date: build dldist again")
        return 1 if differ else 0
    for path in differ:
        path.write_text(stubs[path], encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
