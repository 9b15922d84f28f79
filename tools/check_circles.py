#!/usr/bin/env python3
"""Check that files in a folder of csrc/ do not depend on each other in large circles.

A file depends on another if it uses a function or an object defined there. Files that depend on
each other, directly or indirectly, form a circle, in which no file can be understood without the
others. Circles of up to three files are allowed. The folders of the binding are checked together.
--all also prints the small circles.
"""
import re
import sys
from pathlib import Path

from c_source import functions, read

MOST = 3

WORD = re.compile(r"[A-Za-z_]\w*")
OBJECT = re.compile(r"^(?P<type>(?:const |_Thread_local )*[A-Za-z_][\w ]*?[ *])(?P<name>\w+)(?:\[[^\]\n]*\])* =", re.MULTILINE)


def defined_in(text: str) -> set[str]:
    """Return the names that other files may use."""
    objects = {match["name"] for match in OBJECT.finditer(text) if "static" not in match["type"].split()}
    return objects | set(functions(text, static=False))


def needs(folder: Path) -> dict[str, set[str]]:
    """Return, for each file in the folder and its subfolders, the files whose names it uses."""
    texts = {path.relative_to(folder).with_suffix("").as_posix(): read(path)
             for path in sorted(folder.rglob("*.c"))}
    owner = {name: stem for stem, text in texts.items() for name in defined_in(text)}
    return {stem: {owner[word] for word in set(WORD.findall(text)) & owner.keys()} - {stem}
            for stem, text in texts.items()}


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the strongly connected components of more than one file, the largest first
    (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(graph[node]):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            place = stack.index(node)
            found.append(sorted(stack[place:]))
            del stack[place:]

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return sorted((circle for circle in found if len(circle) > 1), key=len, reverse=True)


def main() -> int:
    arguments = [argument for argument in sys.argv[1:] if not argument.startswith("-")]
    root = Path(arguments[0] if arguments else Path(__file__).parent.parent / "csrc")
    failures = 0
    for folder in sorted(path for path in root.iterdir() if path.is_dir()):
        found = circles(needs(folder))
        large = [circle for circle in found if len(circle) > MOST]
        failures += bool(large)
        for circle in large:
            print(f"csrc/{folder.name}: {len(circle)} files need each other, where {MOST} is the most: {', '.join(circle)}: "
                  "remove the dependencies in one direction")
        if "--all" in sys.argv:
            for circle in found:
                print(f"csrc/{folder.name}: {', '.join(circle)}")
    print(f"circles: {failures} folders fail")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
