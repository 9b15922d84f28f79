#!/usr/bin/env python3
"""Check that every non-static function in csrc/ has a caller there, and not only in tests.

A test that needs to see internal state includes the internal header; one that makes calls fail
wraps functions (tests/faults/).
"""
import re
import sys
from collections import Counter
from pathlib import Path

from c_source import functions, read

# Functions that only tests call, and the reason to keep them.
EXCEPTIONS = {
    "dd_arena_join": "ThreadSanitizer takes memory that is mapped twice for two memories, so ranks in one process share a mapping",
}
# Parts of names that the preprocessor builds, such as prefix##_close: functions with these suffixes
# count as called.
PASTED = re.compile(r"\b(\w*)##(_\w+)\b")

DECLARATION = re.compile(r"^(?!static\b)\w[\w *]*?\b(\w+)\((?=[^;{}]*;)", re.MULTILINE)


def main() -> int:
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent.parent / "csrc")
    texts = {path: read(path)
             for path in sorted(root.rglob("*")) if path.suffix in (".c", ".h", ".inc")}
    mentions, stated, pasted, defined = Counter(), Counter(), set(), {}
    for path, text in texts.items():
        mentions.update(re.findall(r"\w+", text))
        pasted.update(match[2] for match in PASTED.finditer(text))
        if path.suffix == ".h":
            stated.update(DECLARATION.findall(text))
        if path.suffix == ".c":
            names = functions(text, static=False)
            stated.update(names)
            defined.update((name, path) for name in names)
    unused = {name for name in defined if mentions[name] <= stated[name]
              and not any(name.endswith(end) for end in pasted) and name != "PyInit__core"}
    problems = [f"{defined[name].relative_to(root)}: only tests call {name}()" for name in sorted(unused - set(EXCEPTIONS))]
    problems += [f"EXCEPTIONS: {name} is called" for name in sorted(set(EXCEPTIONS) - unused)]
    problems += [] if defined else [f"{root}: no functions"]
    for problem in problems:
        print(problem)
    print(f"test-only functions: {len(defined)} functions, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
