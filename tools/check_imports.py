#!/usr/bin/env python3
"""Check that the modules of pkg/dldist import downward, without large circles.

All imports count, also those inside functions, except imports for type checkers. A module may
import from its own layer and from lower layers. --all also prints the small circles.
"""
import ast
import sys
from collections.abc import Iterator
from pathlib import Path

from check_circles import MOST, circles

PUBLIC = "the other modules"
LADDER = [
    ["_core"],
    ["_base"],
    ["_objects", "_rendezvous"],
    ["_windows", "carriers", "nccl", "rendezvous"],
    ["world"],
    ["_backends"],
    ["types"],
    ["_api"],
    [PUBLIC, "dldist"],
]
RUNGS = {name: rung for rung, names in enumerate(LADDER) for name in names}


def part_of(module: str) -> str:
    """Return the folder or module of the package that contains a module."""
    name = module.removeprefix("dldist.").partition(".")[0]
    return name if name in RUNGS else PUBLIC


def modules_in(package: Path) -> dict[str, Path]:
    found = {}
    for path in sorted(package.rglob("*.py")):
        name = ".".join(path.relative_to(package.parent).with_suffix("").parts)
        found[name.removesuffix(".__init__")] = path
    return found


def imports_of(node: ast.AST) -> Iterator[str]:
    """Yield the names of imported modules, and of the names imported from them."""
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
    for child in ast.iter_child_nodes(node):
        yield from imports_of(child)


def module_of(name: str, modules: set[str]) -> str | None:
    """Return the module that an imported name is, or is defined in."""
    return next((each for each in (name, name.rpartition(".")[0]) if each in modules), None)


def needs(package: Path) -> dict[str, set[str]]:
    """Return the modules that each module imports."""
    paths = modules_in(package)
    known = {*paths, "dldist._core"}
    graph: dict[str, set[str]] = {"dldist._core": set()}
    for module, path in paths.items():
        names = imports_of(ast.parse(path.read_text(encoding="utf-8")))
        graph[module] = {other for name in names if (other := module_of(name, known)) and other != module}
    return graph


def main() -> int:
    arguments = [argument for argument in sys.argv[1:] if not argument.startswith("-")]
    graph = needs(Path(arguments[0] if arguments else Path(__file__).parent.parent / "pkg" / "dldist"))
    problems = [
        f"{module} imports {other}, which is of a higher layer"
        for module, others in graph.items() for other in sorted(others)
        if RUNGS[part_of(other)] > RUNGS[part_of(module)]
    ]  # fmt: skip
    found = circles(graph)
    problems += [f"{len(circle)} modules need each other, at most {MOST} may: {', '.join(circle)}" for circle in found if len(circle) > MOST]
    for problem in problems:
        print(f"pkg: {problem}")
    if "--all" in sys.argv:
        for circle in found:
            print(f"pkg: circle: {', '.join(circle)}")
    print(f"imports: {len(graph)} modules, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
