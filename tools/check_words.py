#!/usr/bin/env python3
"""Check the wording of comments, docstrings, strings, pages and commit subjects.

    check_words.py [--likely] [PATH...]    check these files and folders, or the project
    check_words.py --subjects BASE         check the subjects of the commits since BASE

"Words" in CONTRIBUTING.md explains the rules. A hit of a certain rule is an error. A hit of a
likely rule deserves a second look: --likely prints them, and the project may have at most
LIKELY_BUDGET of them. A line with "words: ok" is skipped, for texts of other projects that dldist
has word for word. Code in Markdown, names in backquotes and raw strings are not prose.
"""
import argparse
import ast
import io
import re
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
CHECKED = ("csrc", "pkg", "docs", "tools", "examples", "benchmarks", "tests",
           "README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
LIKELY_BUDGET = 160
SUBJECT_MAX = 72


class Rule(NamedTuple):
    pattern: str
    reason: str
    only_at_start: bool = False  # of a comment, a docstring, an argument, a heading or a cell


class Unit(NamedTuple):
    """A line of prose."""

    line: int
    text: str
    is_start: bool


class Hit(NamedTuple):
    where: str
    rule: str
    found: str
    reason: str

    def __str__(self) -> str:
        return f"{self.where}: {self.rule}: {self.found!r}: {self.reason}"


CERTAIN = {
    "relative start": Rule(
        r"(?:[\w*, ]{1,40}: )?(?:What|Who(?:m|se|ever)?|Whatever)\b(?!.*\?)",
        "start with a noun or a verb: a label names a thing", only_at_start=True),
    "no actor": Rule(
        r"\b(?:some|any|no|every)body\b|\bwhom?ever\b|\bthose (?:who|whose)\b|\bone who\b",
        "name the actor: a rank, a thread, the caller"),
    "speech": Rule(
        r"\b(?:is|are|was|were|be|been) told\b(?! apart)|\bhears? (?:of|that|why|from)\b",
        "software does not talk: is notified, receives, learns"),
    "arrival": Rule(
        r"\b(?:has|have|had)(?: not| all)? come\b(?! from| to (?:noth|mind|be\b))",
        "data arrive, ranks join, calls return"),
    "where for if": Rule(
        r"\b(?:None|NULL|True|False|-1),? where\b|\b(?:nothing|0),? where (?:it|there|no|not)\b",
        "'where' is for places: write 'if'"),
    "legend": Rule(
        r"\b(?:NULL|None|True|False): (?:it|none|no|nothing|there)\b",
        "write a sentence: NULL if there is none"),
    "vague state": Rule(
        r"\b(?:that|what|which) (?:is|are|was|were) there\b(?! (?:is|are|an?|no|to)\b)"
        r"|\b(?:is|are|be) through\b(?! )",
        "states have names: present, joined, done"),
    "archaic except": Rule(
        r"\b(?:but|save) for\b(?! (?:all|each|every|this|that) (?:reason|purpose))",
        "write 'except' or 'except for'"),
    "idiom": Rule(
        r"\bfor want of\b|\b(?:to|can|cannot|could) be had\b|\bc[oa]mes? about\b|\bin vain\b"
        r"|\bin the place of\b|\bin good order\b|\bmakes? no sense\b|\bnonsense\b",
        "for lack of, available, be created, instead of, cleanly, malformed"),
    "of ours": Rule(
        r"\b\w+ of (?:ours|theirs)\b|(?<!those)(?<!one) of others\b",
        "our server, third-party libraries, another rank's memory"),
    "any more": Rule(
        r"\b(?:not|nothing|never|cannot|no \w+)\b[^.;:]{0,40}\bany more\b(?! than)",
        "write 'no longer'"),
    "only": Rule(
        r"\b(?!(?:it|them|let|left|leaves?|stands?|runs?|ran|fails?|started|is|are|was|be|not) )"
        r"\w+ alone(?=[.,;:)]|$| and )",
        "write 'only' before the noun"),
    "so many": Rule(
        r"\bso (?:many|much) (?:bytes|elements|looks|ranks|records|requests|rounds|seconds|times"
        r"|have|time|of)\b(?!.* that\b)",
        "this many, or the number"),
    "no use": Rule(
        r"\bof (?:no|no more|any)(?: more)? use\b|\bgroup lives on\b|\b(?:doubles of|the doubles)\b",
        "unusable; stays usable; stub"),
    "spelling": Rule(
        r"\btime-outs?\b|\bhand-shakes?\b|\blook-ups?\b|\bshort cuts?\b|\bset-up\b",
        "timeout, handshake, lookup, shortcut, setup"),
}
LIKELY = {
    "what": Rule(
        r"\bwhat (?:is|are|was|were|has|have|had|comes?|others?|ranks?|must|follows|waits|needs?"
        r"|moves?|ends?)\b(?!.*\?)",
        "name the thing"),
    "says": Rule(r"\b(?:says|said|tells|hears|heard|asks|asked)\b", "reports, receives, queries"),
    "fragment": Rule(
        r"(?:Of|To|For|By|With|Without|From|After|Before|As|Where|Also|Until|Unless|While|But|Not"
        r"|Only) [^.]*$",
        "write a sentence, or start with the noun", only_at_start=True),
    "vague time": Rule(
        r"\b(?:meanwhile|at once|in turn|now and then|for a while|by then|again and again)\b",
        "name the event or the number"),
    "phrasal verb": Rule(
        r"\b(?:lets? go|give[sn]? way|makes? way|makes? room|gives? back|given back|looks? after"
        r"|counts? on|gives? up|given up)\b",
        "release, yield, evict, return, monitor, rely on, abort"),
    "inversion": Rule(
        r"(?:^|[,;:.] |\band )(?:so|nor|neither) (?:has|have|do|does|did|is|are|can)\b",
        "subject first"),
    "that of": Rule(r"\b(?:that|those) of\b", "repeat the noun"),
    "trailing too": Rule(r", too\b", "write 'also' before the verb"),
}
# A verb in the third person, such as "adds" or "passes", but not "pass".
SUBJECT_VERB = re.compile(r"(?!\w*ss\b|(?:always|focus|this)\b)\w+s\b")

C_TOKEN = re.compile(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*|/\*.*?\*/|' r"'(?:[^'\\\n]|\\.)+'", re.DOTALL)
C_MARGIN = re.compile(r"^[ \t]*(?:/\*+|//+|\*)(?!/) ?|[ \t]*\*/$")
FENCE = re.compile(r"^ *(?:```|~~~)")
CODE = re.compile(r"`[^`]*`|\]\([^)]*\)|https?://\S+")
MARKER = re.compile(r"\s*(?:#+|[-*>]|\d+\.) ")  # of a heading or a list item
ARGUMENT = re.compile(r"[\w*, ]+: ")


def merge(rules: dict[str, Rule], *, only_at_start: bool) -> re.Pattern:
    """Return one pattern for lower-case text, which skips most lines with a single search."""
    parts = [rule.pattern.lower() for rule in rules.values()
             if rule.only_at_start == only_at_start]
    return re.compile(f"{'^' if only_at_start else ''}(?:{'|'.join(parts)})")


def c_units(text: str) -> Iterator[Unit]:
    """Return the comments and strings of C sources."""
    line, end = 1, 0
    for match in C_TOKEN.finditer(text):
        line, end = line + text.count("\n", end, match.start()), match.start()
        if match[0][0] == "/":
            for offset, row in enumerate(match[0].split("\n")):
                yield Unit(line + offset, C_MARGIN.sub("", row), offset == 0)
        elif match[0][0] == '"':
            for part in re.split(r"(?:\\n)+", match[0].strip('"')):
                yield Unit(line, part, True)


def string_text(node: ast.Constant | ast.JoinedStr) -> str | None:
    """Return the text of a string, with X for the values of an f-string."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    return "".join(string_text(part) or "X" if isinstance(part, ast.Constant) else "X"
                   for part in node.values)


def is_raw(lines: list[str], node: ast.expr) -> bool:
    start = lines[node.lineno - 1].encode()[node.col_offset:]
    return re.match(rb"[a-z]*r", start, re.IGNORECASE) is not None


def python_units(text: str) -> Iterator[Unit]:
    """Return the comments and strings of Python sources."""
    lines = text.splitlines()
    nodes = list(ast.walk(ast.parse(text)))
    skipped = {id(part) for node in nodes if isinstance(node, ast.JoinedStr)
               for part in node.values}
    docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.Constant | ast.JoinedStr) and id(node) not in skipped:
            prose = string_text(node)
            if prose and " " in prose and (id(node) in docstrings or not is_raw(lines, node)):
                yield from string_units(lines, node, prose)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield Unit(token.start[0], token.string.lstrip("#!- "), True)


def string_units(lines: list[str], node: ast.expr, prose: str) -> Iterator[Unit]:
    is_block = lines[node.end_lineno - 1].encode()[:node.end_col_offset].endswith((b'"""', b"'''"))
    for offset, row in enumerate(prose.split("\n")):
        if not row.lstrip().startswith((">>>", "...")):
            row = row.strip()
            yield Unit(node.lineno + (offset if is_block else 0), row,
                       offset == 0 or not is_block or ARGUMENT.match(row) is not None)


def markdown_units(text: str) -> Iterator[Unit]:
    """Return the lines and table cells of a page without its code blocks.

    Headings, list items and cells are starts; a paragraph consists of sentences.
    """
    is_fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if FENCE.match(line):
            is_fenced = not is_fenced
        elif not is_fenced and not line.startswith(("    ", "\t")):
            is_label = "|" in line or MARKER.match(line) is not None
            for cell in CODE.sub("X", line).split("|"):
                yield Unit(number, MARKER.sub("", cell).strip(), is_label)


UNITS = {".c": c_units, ".h": c_units, ".cpp": c_units, ".cu": c_units,
         ".py": python_units, ".md": markdown_units}


class Checker:
    """Finds the hits of some rules in a text, once for each line."""

    def __init__(self, rules: dict[str, Rule]):
        self.rules = rules
        self.quick = merge(rules, only_at_start=False)
        self.quick_start = merge(rules, only_at_start=True)

    def hits(self, where: str, prose: str, is_start: bool) -> Iterator[Hit]:
        prose = CODE.sub("X", prose).strip()
        lower = prose.lower()
        if not (self.quick.search(lower) or is_start and self.quick_start.search(lower)):
            return
        for name, rule in self.rules.items():
            if rule.only_at_start:
                match = re.match(rule.pattern, prose) if is_start else None
            else:
                match = re.search(rule.pattern, prose, re.IGNORECASE)
            if match is not None:
                yield Hit(where, name, match[0], rule.reason)

    def file_hits(self, path: Path) -> Iterator[Hit]:
        name = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
        try:
            text = path.read_text(encoding="utf-8")
            units = list(UNITS[path.suffix](text))
        except (UnicodeDecodeError, SyntaxError) as error:
            raise SystemExit(f"{name}: {error}") from None
        lines = text.splitlines()
        for unit in units:
            if "words: ok" not in lines[min(unit.line, len(lines)) - 1]:
                yield from self.hits(f"{name}:{unit.line}", unit.text, unit.is_start)


def files_of(paths: list[Path]) -> list[Path]:
    """Return the files to check: these, which must be of a known kind, and those in these folders."""
    for path in paths:
        if not path.is_dir() and (path.suffix not in UNITS or not path.is_file()):
            raise SystemExit(f"{path}: expected a folder or a file of {', '.join(UNITS)}")
    found = [file for path in paths for file in (sorted(path.rglob("*")) if path.is_dir() else [path])]
    return [file for file in found if file.suffix in UNITS and file.is_file()]


def subject_problems(subject: str) -> Iterator[str]:
    prefix, colon, summary = subject.partition(": ")
    if not colon or " " in prefix.replace(", ", ""):
        yield "start with the folder: 'net: share the handshake'"
        summary = subject
    if len(subject) > SUBJECT_MAX:
        yield f"{len(subject)} characters, expected at most {SUBJECT_MAX}"
    if SUBJECT_VERB.match(summary):
        yield f"{summary.split()[0]!r}: use the imperative"
    if subject.endswith("."):
        yield "no period at the end"
    yield from (f"{hit.rule}: {hit.found!r}: {hit.reason}"
                for hit in Checker(CERTAIN).hits("", summary, is_start=True))


def check_subjects(base: str) -> int:
    log = subprocess.run(["git", "log", "--no-merges", "--format=%h %s", f"{base}..HEAD"],
                         capture_output=True, text=True, check=True)
    commits = [line.split(" ", 1) for line in log.stdout.splitlines()]
    problems = [f"{commit}: {subject}: {problem}" for commit, subject in commits
                for problem in subject_problems(subject)]
    for problem in problems:
        print(problem)
    print(f"words: {len(commits)} subjects, {len(problems)} problems")
    return 1 if problems else 0


def check_files(paths: list[Path], *, shows_likely: bool) -> int:
    files = files_of(paths or [ROOT / name for name in CHECKED])
    checker = Checker({**CERTAIN, **LIKELY})
    hits = [hit for path in files for hit in checker.file_hits(path)]
    certain = [hit for hit in hits if hit.rule in CERTAIN]
    nlikely = len(hits) - len(certain)
    for hit in hits if shows_likely else certain:
        print(hit)
    if shows_likely:
        for name, count in Counter(hit.rule for hit in hits).most_common():
            print(f"  {name:16s} {count:5d}")
    is_over = not paths and nlikely > LIKELY_BUDGET
    if is_over:
        print(f"{nlikely} likely hits, expected at most {LIKELY_BUDGET}: `{Path(sys.argv[0]).name} "
              "--likely` prints them")
    if not files:
        print("no files to check")
    print(f"words: {len(files)} files, {len(certain)} certain hits, {nlikely} likely")
    return 1 if certain or is_over or not files else 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Check the wording of the project.")
    parser.add_argument("--likely", action="store_true", help="print hits of likely rules as well")
    parser.add_argument("--subjects", metavar="BASE", help="check the commit subjects since BASE")
    parser.add_argument("paths", nargs="*", type=Path, metavar="PATH")
    arguments = parser.parse_args()
    if arguments.subjects:
        return check_subjects(arguments.subjects)
    return check_files([path.resolve() for path in arguments.paths],
                       shows_likely=arguments.likely)


if __name__ == "__main__":
    sys.exit(main())
