#!/usr/bin/env python3
"""Check that the folders of csrc/ include each other in one direction only.

A layer may include itself and the lower layers named for it. The folders of a layer may have an
order as well. Further rules: a header named internal.h or x_internal.h (or layout.h or state.h,
outside the binding) may be included only from its own folder, its subfolders, and later folders in
such an order. Only csrc/python/base/api.h may include Python.h. The binding uses Python's limited
API, without functions that return borrowed references.
"""
import re
import sys
from pathlib import Path

LADDER = ["core", "net", "store", "meet", "transport", "collective", "group", "window", "python", "trampoline"]
SIDE = ["kernels", "work", "observe"]  # depend on core only
BESIDE = {  # used by the binding besides groups
    "nccl": {"core", "store", "meet", "collective", "nccl", *SIDE},
    "watch": {"core", "store", "observe", "watch"},
    "xla": {*LADDER[:7], *SIDE, "xla"},
    "mpi": {*LADDER[:7], *SIDE, "mpi"},
    "ucc": {*LADDER[:7], *SIDE, "ucc"},
    "xccl": {*LADDER[:7], *SIDE, "nccl", "xccl"},
}

ALLOWED = {layer: set(LADDER[: i + 1]) for i, layer in enumerate(LADDER)}
ALLOWED |= {layer: {"core", layer} for layer in SIDE}
for mover in ("net", "transport"):  # for copy.h
    ALLOWED[mover] |= {"kernels"}
ALLOWED["collective"] |= {"kernels", "work"}
ALLOWED["group"] |= set(SIDE)
ALLOWED["window"] |= set(SIDE)
ALLOWED |= BESIDE
for binding in ("python", "trampoline"):
    ALLOWED[binding] |= {*SIDE, *BESIDE}

FOLDERS = {"nccl": ["driver", "comm", "group", "call", "lifecycle"]}  # in include order

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
PYTHON_DOOR = "python/base/api.h"
NOT_IN_THE_BINDING = {
    "dlsym": "do not bypass the limited API",
    "PyWeakref_GetObject": "returns a borrowed reference that another thread may free",
}
FORBIDDEN = re.compile(rf"\b({'|'.join(NOT_IN_THE_BINDING)})\b")


def place_in(path: Path) -> tuple[list[str], int]:
    """Return the order of the folders of the path's layer, and the index of its own folder; -1 if
    none."""
    order = FOLDERS.get(path.parts[0], [])
    return order, order.index(path.parts[1]) if path.parts[1] in order else -1


def problem(source: Path, is_quoted: bool, target: str, root: Path) -> str | None:
    """Return why the line is not allowed, or None. `source` is relative to root (csrc/)."""
    layer = source.parts[0]
    if target == "Python.h":
        return None if source.as_posix() == PYTHON_DOOR else f"only {PYTHON_DOOR} includes Python.h"
    if not is_quoted:
        return None
    if "/" not in target or not (root / target).is_file():
        return "write the path from csrc/, as in \"core/status.h\", of a header that exists"
    target_layer = Path(target).parts[0]
    is_internal = bool(re.search(r"[/_]internal\.h$", target)) or (target_layer != "python" and target.endswith(("/layout.h", "/state.h")))
    order, place = place_in(source)
    target_place = place_in(Path(target))[1]
    is_below = target_layer == layer and -1 < target_place < place
    if is_internal and not is_below and Path(target).parent not in source.parents:
        return "internal headers are for their folder, its subfolders and later folders only"
    if target_layer == layer and target_place > place >= 0:
        return f"the folders of {layer} include only earlier ones, in this order: {', '.join(order)}"
    if target_layer not in ALLOWED[layer]:
        return f"{layer} may include {', '.join(sorted(ALLOWED[layer]))}; not {target_layer}"
    return None


def height(layer: str) -> int:
    """Return the number of layers up to this one."""
    return 1 + max((height(below) for below in ALLOWED[layer] - {layer}), default=0)


def drawing() -> str:
    """Return the layers as text: each depends on lower lines only."""
    lines: dict[int, list[str]] = {}
    for layer in ALLOWED:
        lines.setdefault(height(layer), []).append(layer)
    return "".join("    " + "".join(f"{layer:12}" for layer in lines[n]).rstrip() + "\n" for n in sorted(lines, reverse=True))


def main() -> int:
    if "--drawing" in sys.argv:
        print(drawing(), end="")
        return 0
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent.parent / "csrc")
    failures = 0
    files = sorted(p for p in root.rglob("*") if p.suffix in (".c", ".h"))
    for path in files:
        source = path.relative_to(root)
        if source.parts[0] not in ALLOWED or len(source.parts) < 2:
            print(f"{path}: {source.parts[0]} is not a layer; add it to {Path(__file__).name}")
            failures += 1
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            match = INCLUDE.match(line)
            why = match and problem(source, match[1] == '"', match[2], root)
            if why:
                print(f"{path}:{number}: {match[2]}: {why}")
                failures += 1
            if source.parts[0] == "python" and (name := FORBIDDEN.search(line)):
                print(f"{path}:{number}: {name[0]}: {NOT_IN_THE_BINDING[name[0]]}")
                failures += 1
    if not files:
        print(f"{root}: no C files")
        failures += 1
    page = Path(__file__).parent.parent / "docs" / "contributing" / "architecture.md"
    if drawing() not in page.read_text(encoding="utf-8"):
        print(f"{page}: the drawing of the layers differs from tools/check_layers.py --drawing")
        failures += 1
    print(f"layers: {len(files)} files, {failures} problems")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
