#!/usr/bin/env python3
"""Checks that a type of csrc/ has one meaning: no two files define a struct, a union, an enum or a typedef of one name differently.

A compiler minds only where both are included; a reader, a debugger and a search mind always. So a type of one .c file counts as well.
"""
import re
import sys
from collections import defaultdict
from pathlib import Path

# Comments, and the preprocessor's lines with those they go on in: a macro's text is no definition.
NOISE = re.compile(r"/\*.*?\*/|//[^\n]*|^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.DOTALL | re.MULTILINE)
TAGGED = re.compile(r"\b(?:struct|union|enum)(?:\s+__attribute__\(\(.*?\)\))?\s+(\w+)\s*\{")
TYPEDEF = re.compile(r"^typedef\b", re.MULTILINE)


def end_of(text: str, start: int, closer: str) -> int:
    """Behind the closer that is at the level of `start`."""
    depth = 0
    for at in range(start, len(text)):
        depth += text[at] in "{(["
        depth -= text[at] in "})]"
        if text[at] == closer and depth == 0:
            return at + 1
    return len(text)


def typedef_name(definition: str) -> str | None:
    """Of `typedef ... name;`, `typedef ... name[n];`, `typedef ... name(...);` and `typedef ... (*name)(...);`."""
    match = re.search(r"\(\*(?:\w+ )?(\w+)\)", definition) or re.search(r"(\w+)\s*(?:\[[^;]*\]|\([^;]*\))?;$", definition)
    return match[1] if match else None


def definitions(text: str) -> dict[str, set[str]]:
    """By the names of types: what the file says they are. More than one is one of several platforms."""
    text = NOISE.sub(" ", text)
    found = defaultdict(set)
    for match in TAGGED.finditer(text):
        body = text[match.end() - 1 : end_of(text, match.end() - 1, "}")]
        found[match[1]].add(" ".join(body.split()))
    for match in TYPEDEF.finditer(text):
        definition = " ".join(text[match.start() : end_of(text, match.start(), ";")].split())
        name = typedef_name(re.sub(r"\{.*\}", "", definition))
        is_tag = re.match(rf"typedef (?:struct|union|enum) {name}\b", definition) is not None
        if name and not is_tag:  # else it is the tag's, which is looked at above or stands for itself
            found[name].add(definition)
    return found


def main() -> int:
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent.parent / "csrc")
    files = sorted(path for path in root.rglob("*") if path.suffix in (".c", ".h"))
    meanings = defaultdict(dict)
    for path in files:
        for name, texts in definitions(path.read_text(encoding="utf-8")).items():
            meanings[name][path.relative_to(root).as_posix()] = texts
    differing = {name: where for name, where in meanings.items()
                 if any(texts != next(iter(where.values())) for texts in where.values())}
    problems = [f"{name} is defined differently in {', '.join(where)}: rename all but one"
                for name, where in sorted(differing.items())]
    if not meanings:
        problems.append(f"{root}: no types")
    for problem in problems:
        print(problem)
    print(f"names: {len(meanings)} types, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
