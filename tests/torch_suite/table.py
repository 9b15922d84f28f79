"""Make the tables of docs/torch-suite.md from the results that run.py --json has kept.

    python tests/torch_suite/table.py RESULTS.json                               prints them
    python tests/torch_suite/table.py RESULTS.json --page docs/torch-suite.md    writes them there
    python tests/torch_suite/table.py RESULTS.json --failing dldist              prints ids and last lines
                                                                                 of tests that only it fails

reasons.toml has the reasons why a test passes on gloo and not on dldist, written by hand; a test
without a reason is listed as such.
"""

import argparse
import collections
import fnmatch
import json
import pathlib
import re
import sys
import tomllib

HERE = pathlib.Path(__file__).resolve().parent
BEGIN, END = "<!-- tests/torch_suite/table.py: begin -->", "<!-- tests/torch_suite/table.py: end -->"
BASE = "gloo"
TITLES = {
    "dldist": "The backend",
    "as-gloo": "As gloo",
    "front": "The package instead of torch.distributed",
}
SAID = {
    "dldist": '`backend="dldist"` instead of `"gloo"`:',
    "as-gloo": "`DLDIST_TORCH_AS_GLOO=1` and unchanged tests:",
    "front": "`dldist` instead of `torch.distributed` in the tests:",
}
NOT_RUN = {"status": "not run", "reason": ""}
NO_REASON = "(not known yet)"


def last_line(reason):
    """Return the line of a traceback of ranks that has the cause: from the first rank that does
    more than report another rank's exit."""
    lines = [line.strip() for line in reason.splitlines() if line.strip()]
    telling = [line for line in lines if re.match(r"[\w.]*(Error|Exception)(:|$)", line) and "exited with error code" not in line]
    ranks = re.split(r"^(?:RuntimeError: )?Process \d+ exited with error code \d+ and exception:$", reason, flags=re.MULTILINE)[1:]
    for rank in ranks:
        last = [line for line in telling if line in rank][-1:]
        if last and "left the group" not in last[0]:
            return last[0][:300]
    return (telling or lines or [""])[-1][:300]


def short(test):
    """Return Class.test of an id."""
    return ".".join(test.split(".")[-2:])


def is_alone(ours, theirs):
    """Return True if the base passes the test and this aim does not, or if the base skips it and
    this aim fails."""
    return (ours, theirs) == ("skipped", "passed") or (ours == "failed" and theirs in ("passed", "skipped"))


class Compared:
    """One file: the results of an aim and of the base."""

    def __init__(self, file, ours, theirs):
        self.file = file
        self.pairs = {test: (ours.get(test, NOT_RUN), theirs.get(test, NOT_RUN)) for test in sorted({*ours, *theirs})}

    def count(self, holds):
        return sum(holds(ours["status"], theirs["status"]) for ours, theirs in self.pairs.values())

    def row(self):
        return (
            self.file,
            self.count(lambda _ours, theirs: theirs == "passed"),
            self.count(lambda ours, _theirs: ours == "passed"),
            self.count(lambda ours, theirs: ours == theirs == "skipped"),
            self.count(lambda ours, theirs: ours == theirs == "failed"),
            self.count(is_alone),
        )

    def alone(self):
        """Return [(Class.test, outcome of this aim)] for tests that only this aim does not pass."""
        return [(short(test), ours) for test, (ours, theirs) in self.pairs.items() if is_alone(ours["status"], theirs["status"])]


def compare(results, aim):
    """Compare all files with a test that passes with some aim; other files show nothing."""
    files = [Compared(file, by_aim[aim], by_aim[BASE]) for file, by_aim in sorted(results["files"].items()) if aim in by_aim and BASE in by_aim]
    return [compared for compared in files if compared.count(lambda ours, theirs: "passed" in (ours, theirs))]


class Reasons:
    def __init__(self, path=HERE / "reasons.toml"):
        self.kept = tomllib.loads(path.read_text(encoding="utf-8"))["reason"]

    def why(self, aim, file, test):
        """Return the reason, or None if there is none."""
        for entry in self.kept:
            is_meant = aim in entry["aims"] and fnmatch.fnmatch(file, entry["file"])
            if is_meant and any(fnmatch.fnmatch(test, pattern) for pattern in entry["tests"]):
                return entry["why"]
        return None


def table_of(head, rows):
    lines = ["| " + " | ".join(map(str, row)) + " |" for row in [head, ["---"] * len(head), *rows]]
    return "\n".join(lines) + "\n"


def tables_of_aim(results, aim, reasons):
    files = compare(results, aim)
    if not files:
        return ""
    head = ("tests", f"passed by {BASE}", f"by {aim}", "skipped by both", "failed by both", f"failed only by {aim}")
    rows = [compared.row() for compared in files]
    sums = ("all", *(sum(column) for column in list(zip(*rows, strict=True))[1:]))
    text = f"### {TITLES[aim]}\n\n{SAID[aim]}\n\n" + table_of(head, [(f"`{name}`", *rest) for name, *rest in rows] + [sums])

    by_reason = collections.defaultdict(list)
    for compared in files:
        for test, _outcome in compared.alone():
            by_reason[reasons.why(aim, compared.file, test) or NO_REASON].append((compared.file, test))
    if by_reason:
        text += "\nReasons for the failures in the last column:\n\n"
        text += table_of(("tests", "reason"), [(names_of(tests), why) for why, tests in sorted(by_reason.items())])
    return text + "\n"


def names_of(tests):
    by_file = collections.defaultdict(list)
    for file, test in tests:
        by_file[file].append(f"`{test.rpartition('.')[2]}`")
    return "; ".join(f"`{file}`: {', '.join(dict.fromkeys(names))}" for file, names in by_file.items())


def tables(results, reasons):
    versions = results["versions"]
    text = f"PyTorch {versions['torch']}; tests of the wheel and files of PyTorch {versions.get('tests', '(none)')}.\n\n"
    return text + "".join(tables_of_aim(results, aim, reasons) for aim in TITLES)


def write_between_markers(page, text):
    old = page.read_text(encoding="utf-8")
    before, found, rest = old.partition(BEGIN)
    _, found_too, after = rest.partition(END)
    if not (found and found_too):
        sys.exit(f"{page} does not have the lines {BEGIN} and {END}")
    page.write_text(f"{before}{BEGIN}\n\n{text.strip()}\n\n{END}{after}", encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=pathlib.Path)
    parser.add_argument("--page", type=pathlib.Path)
    parser.add_argument("--failing", metavar="AIM")
    options = parser.parse_args()
    results = json.loads(options.results.read_text(encoding="utf-8"))
    if options.failing:
        for compared in compare(results, options.failing):
            for test, ours in compared.alone():
                print(f"{compared.file}::{test}: {ours['status']}: {last_line(ours['reason'])}")
    elif options.page:
        write_between_markers(options.page, tables(results, Reasons()))
    else:
        print(tables(results, Reasons()))


if __name__ == "__main__":
    main()
