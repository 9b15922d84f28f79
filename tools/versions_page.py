#!/usr/bin/env python3
"""Print the results of scripts/test_versions.sh as a table, and insert it into a page.

    tools/versions_page.py [--page FILE] FOLDER ROW:PYTHON:TESTS...

FOLDER has ROW.xml, pytest's report in JUnit format, and ROW.txt, the output of `pip freeze`. The
page keeps the lines of rows that are not named, so rows can be tested on different days and
machines.
"""

from __future__ import annotations

import argparse
import collections
import datetime
import pathlib
import re
import xml.etree.ElementTree as ElementTree

NAMED_PACKAGES = ("torch", "jax", "jaxlib", "numpy")
HEAD = "| row | Python | packages | tests | passed | failed | skipped | date |\n| --- | --- | --- | --- | --- | --- | --- | --- |"


def results_of(report: pathlib.Path) -> tuple[int, int, collections.Counter[str]]:
    """Return the numbers of passed and failed tests, and the skipped ones by reason."""
    npassed = nfailed = 0
    skipped: collections.Counter[str] = collections.Counter()
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        skip = case.find("skipped")
        if skip is not None:
            skipped[reason_of(skip)] += 1
        elif case.find("failure") is not None or case.find("error") is not None:
            nfailed += 1
        else:
            npassed += 1
    return npassed, nfailed, skipped


def reason_of(skip: ElementTree.Element) -> str:
    return re.sub(r"\s+", " ", skip.get("message") or skip.text or "no reason").removeprefix("Skipped: ")


def packages_of(frozen: pathlib.Path) -> str:
    pins = dict(line.split("==", 1) for line in frozen.read_text(encoding="utf-8").split() if "==" in line)
    return ", ".join(f"{name} {pins[name]}" for name in NAMED_PACKAGES if name in pins)


def line_of(folder: pathlib.Path, row: str) -> str:
    """Return the row's line of the table."""
    name, python, tests = row.split(":")
    report, frozen = folder / f"{name}.xml", folder / f"{name}.txt"
    packages, counts = "", [f"not run: see {name}.log", "", ""]
    if report.exists():
        packages = packages_of(frozen)
        npassed, nfailed, skipped = results_of(report)
        counts = [str(npassed), str(nfailed), str(skipped.total())]
    return f"| {' | '.join([name, python, packages, tests, *counts, datetime.date.today().isoformat()])} |"


def reasons_of(folder: pathlib.Path, row: str) -> list[str]:
    """Return a line for each reason of the row's skipped tests; the page has only their number."""
    name = row.split(":", maxsplit=1)[0]
    report = folder / f"{name}.xml"
    skipped = results_of(report)[2] if report.exists() else {}
    return [f"{name}: skipped {count}: {reason}" for reason, count in sorted(skipped.items())]


def put(page: str, line: str) -> str:
    """Return the page with `line` instead of the row's old line, or at the end of the table with
    this HEAD."""
    name = line.split(" | ", maxsplit=1)[0]
    lines = page.splitlines()
    begin = lines.index(HEAD.splitlines()[0])
    end = next((i for i in range(begin, len(lines)) if not lines[i].startswith("| ")), len(lines))
    place = next((i for i in range(begin, end) if lines[i].startswith(f"{name} | ")), end)
    lines[place : min(place + 1, end)] = [line]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", type=pathlib.Path)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("rows", nargs="*")
    arguments = parser.parse_args()
    lines = [line_of(arguments.folder, row) for row in arguments.rows]
    reasons = [reason for row in arguments.rows for reason in reasons_of(arguments.folder, row)]
    print("\n".join([HEAD, *lines, "", *reasons]))
    if arguments.page:
        page = arguments.page.read_text(encoding="utf-8")
        for line in lines:
            page = put(page, line)
        arguments.page.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
