#!/usr/bin/env python3
"""Check that each type name in csrc/ has one meaning.

No two files may define a struct, union, enum or typedef of one name differently. A compiler rejects
that only if both are included; readers, debuggers and searches always stumble over it. Therefore
types of .c files count as well.
"""
import re
import sys
from collections import defaultdict
from pathlib import Path

# Comments, and preprocessor lines with their continuations: macro bodies are not definitions.
NOISE = re.compile(r"/\*.*?\*/|//[^\n]*|^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.DOTALL | re.MULTILINE)
TAGGED = re.compile(r"\b(?:struct|union|enum)(?:\s+__attribute__\(\(.*?\)\))?\s+(\w+)\s*\{")
TYPEDEF = re.compile(r"^typedef\b", re.MULTILINE)


def end_of(text: str, start: int, closer: str) -> int:
    """Return the index after the closer that matches the level of `start`."""
    depth = 0
    for at in range(start, len(text)):
        depth += text[at] in "{(["
        depth -= text[at] in "})]"
        if text[at] == closer and depth == 0:
            return at + 1
    return len(text)


def typedef_name(definition: str) -> str | None:
    """Return the name in `typedef ... name;`, `name[n];`, `name(...);` or `(*name)(...);`."""
    match = re.search(r"\(\*(?:\w+ )?(\w+)\)", definition) or re.search(r"(\w+)\s*(?:\[[^;]*\]|\([^;]*\))?;$", definition)
    return match[1] if match else None


def definitions(text: str) -> dict[str, set[str]]:
    """Return the definitions of each type name; several if they depend on the platform."""
    text = NOISE.sub(" ", text)
    found = defaultdict(set)
    for match in TAGGED.finditer(text):
        body = text[match.end() - 1 : end_of(text, match.end() - 1, "}")]
        found[match[1]].add(" ".join(body.split()))
    for match in TYPEDEF.finditer(text):
        definition = " ".join(text[match.start() : end_of(text, match.start(), ";")].split())
        name = typedef_name(re.sub(r"\{.*\}", "", definition))
        is_tag = re.match(rf"typedef (?:struct|union|enum) {name}\b", definition) is not None
        if name and not is_tag:  # otherwise its tag is checked above, or refers to itself
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
