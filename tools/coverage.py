#!/usr/bin/env python3
"""Prints the line coverage of csrc/, file by file, from what gcov says about a build.

    python tools/coverage.py gcov build/coverage
"""
import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path


def line_counts(gcov: str, build: Path) -> dict[str, dict[int, int]]:
    """File -> line -> how often it ran. A header counts once, whoever includes it."""
    counts: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    # The notes, not the data: a file that never ran has notes only, and counts as 0.
    for notes in sorted(build.rglob("*.gcno")):
        text = subprocess.run([gcov, "-j", "-t", str(notes)], check=True, capture_output=True, text=True).stdout
        for report in filter(None, text.splitlines()):
            for file in json.loads(report)["files"]:
                if file["file"].startswith("csrc/") and Path(file["file"]).is_file():
                    for line in file["lines"]:
                        counts[file["file"]][line["line_number"]] += line["count"]
    return counts


def ranges(lines: list[int]) -> str:
    """[3, 4, 5, 9] as "3-5 9"."""
    parts: list[list[int]] = []
    for line in lines:
        if parts and line == parts[-1][1] + 1:
            parts[-1][1] = line
        else:
            parts.append([line, line])
    return " ".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def main() -> int:
    counts = line_counts(sys.argv[1], Path(sys.argv[2]))
    if not counts:
        print("coverage: gcov knows nothing of csrc/ here")
        return 1
    total = ran = 0
    for name, lines in sorted(counts.items()):
        missed = sorted(n for n, count in lines.items() if count == 0)
        total += len(lines)
        ran += len(lines) - len(missed)
        share = 100 * (len(lines) - len(missed)) / len(lines)
        print(f"{share:6.1f} %  {name:<34} {ranges(missed)}".rstrip())
    print(f"{100 * ran / total:6.1f} %  all ({ran} of {total} lines)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
