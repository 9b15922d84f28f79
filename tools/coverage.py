#!/usr/bin/env python3
"""Print the line coverage of csrc/, file by file, from gcov data of builds.

    python tools/coverage.py "gcov build/coverage" "llvm-cov-14 gcov build/sim-coverage"

Each argument is a command and the folder of a build that it can read. Compilers differ in what
counts as a line, so the first build that has a file determines its lines. --below 90 prints only
files below 90 %, and fails if there are any.
"""

import argparse
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# gcov prints "        3:   17:code", "    #####:   17:code" for a line that never ran, and first "
# -:    0:Source:csrc/core/mem.c".
LINE = re.compile(r" *([^:]+): *(\d+):(.*)")


def counts_of(text: str) -> dict[str, dict[int, int]]:
    """Return file -> line -> execution count from `gcov -t` for one object. gcov prints the line
    first and, if a macro defines several functions in it, then each function."""
    counts: dict[str, dict[int, int]] = {}
    lines: dict[int, int] = {}
    for match in map(LINE.match, text.splitlines()):
        if match is None:
            continue
        count, number, rest = match.group(1), int(match.group(2)), match.group(3)
        if number == 0 and rest.startswith("Source:"):
            lines = counts.setdefault(rest.removeprefix("Source:"), {})
        elif number > 0 and count != "-":
            ran = int(count.rstrip("*")) if count[0].isdigit() else 0
            lines[number] = max(ran, lines.get(number, 0))
    return counts


def counts_of_build(command: list[str], build: Path) -> dict[str, dict[int, int]]:
    """Return the counts of a build. Headers count once. Reads notes files, as a file that never ran
    has no data file."""

    def ask(notes: Path) -> dict[str, dict[int, int]]:
        run = subprocess.run([*command, "-t", str(notes)], check=True, capture_output=True, text=True)
        return counts_of(run.stdout)

    total: dict[str, dict[int, int]] = {}
    with ThreadPoolExecutor() as pool:
        for counts in pool.map(ask, sorted(build.rglob("*.gcno"))):
            for name, lines in counts.items():
                if name.startswith("csrc/") and Path(name).is_file():
                    add(total.setdefault(name, {}), lines)
    return total


def add(total: dict[int, int], lines: dict[int, int]) -> None:
    for number, count in lines.items():
        total[number] = total.get(number, 0) + count


def counts_of_builds(builds: list[str]) -> dict[str, dict[int, int]]:
    total: dict[str, dict[int, int]] = {}
    for build in builds:
        *command, folder = build.split()
        for name, lines in counts_of_build(command, Path(folder)).items():
            known = total.setdefault(name, dict.fromkeys(lines, 0))
            add(known, {number: count for number, count in lines.items() if number in known})
    return total


def ranges(lines: list[int]) -> str:
    """Format line numbers: [3, 4, 5, 9] as "3-5 9"."""
    parts: list[list[int]] = []
    for line in lines:
        if parts and line == parts[-1][1] + 1:
            parts[-1][1] = line
        else:
            parts.append([line, line])
    return " ".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def main() -> int:
    parser = argparse.ArgumentParser(description="line coverage of csrc/")
    parser.add_argument("builds", nargs="+")
    parser.add_argument("--below", type=float, help="only files with lower coverage")
    asked = parser.parse_args()
    counts = counts_of_builds(asked.builds)
    if not counts:
        print("coverage: no data for csrc/ found")
        return 1
    total = ran = below = 0
    for name, lines in sorted(counts.items()):
        missed = sorted(number for number, count in lines.items() if count == 0)
        total += len(lines)
        ran += len(lines) - len(missed)
        share = 100 * (len(lines) - len(missed)) / len(lines)
        if asked.below is None or share < asked.below:
            below += 1
            print(f"{share:6.1f} %  {name:<34} {ranges(missed)}".rstrip())
    print(f"{100 * ran / total:6.1f} %  all ({ran} of {total} lines)")
    return 1 if asked.below is not None and below > 0 else 0


if __name__ == "__main__":
    sys.exit(main())
