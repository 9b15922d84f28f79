"""tests/nccl_claims.md must quote docs/nccl.md exactly, and name existing tests."""

import pathlib
import re

import pytest
from paths import ROOT, TESTS

TITLE, LAST = "NCCL", "Without a test"
MOST_WORDS, FEWEST_WORDS = 20, 4


def plain(text):
    return " ".join(text.split())


def sections_of(path):
    """Return {heading: text below it}. The text before all headings is under the page's title."""
    text = path.read_text(encoding="utf-8")
    before, *others = re.split(r"^## ", text, flags=re.MULTILINE)
    return {TITLE: before} | dict(each.split("\n", 1) for each in others)


def rows_of(text):
    """Return rows of cells, without the header."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [tuple(cell.strip() for cell in line[1:-1].split("|")) for line in lines[2:]]


PAGE = sections_of(ROOT / "docs" / "nccl.md")
CELLS = {cell.strip() for text in PAGE.values() for line in text.splitlines() if line.startswith("|") for cell in line.split("|")}
"""Cells of the page's tables. A quote may be such a cell, shorter than a clause."""
CLAIMS = {name: rows_of(text) for name, text in sections_of(TESTS / "nccl_claims.md").items()}
ROWS = [(section, row) for section, rows in CLAIMS.items() for row in rows]


def identify(value):
    return None if isinstance(value, str) else value[0][:50]


@pytest.mark.parametrize("section, row", ROWS, ids=identify)
def test_claims_in_the_list_are_quoted_from_the_nccl_page(section, row):
    assert len(row) == 2 and all(row), f"{section}: {row} has to have two cells"
    quote = row[0]
    where = PAGE.values() if section == LAST else [PAGE.get(section, "")]
    assert any(quote in plain(text) for text in where), f"{section}: docs/nccl.md does not say {quote!r} there"
    nwords = len(quote.split())
    assert nwords <= MOST_WORDS, f"{section}: {quote!r} has {nwords} words, more than {MOST_WORDS}"
    assert nwords >= FEWEST_WORDS or quote in CELLS, f"{section}: {quote!r} has {nwords} words, less than {FEWEST_WORDS}"


def source_of(test):
    """Return the file of a test, and a pattern that matches its definition."""
    file, mark, name = test.partition("::")
    if mark:
        path = TESTS / file if file.startswith("gpu/") else next((TESTS / "py").rglob(file), TESTS / "py" / file)
        return path, rf"^ *(async )?def {re.escape(name)}\("
    group, _, name = test.partition("/")
    return TESTS / "c" / f"test_{group}.c", rf"^TEST\({re.escape(name)}\)"


def is_case(case):
    """Return True if the name of a case occurs in the test files, as a function or a string."""
    name = re.escape(case)
    pattern = re.compile(rf"""def {name}\(|(["']){name}\1""")
    files = [*(TESTS / "py").rglob("*.py"), *(TESTS / "gpu").glob("*.py")]
    return any(pattern.search(path.read_text(encoding="utf-8")) for path in files if path.name != pathlib.Path(__file__).name)


@pytest.mark.parametrize("section, row", [each for each in ROWS if each[0] != LAST], ids=identify)
def test_tests_named_for_claims_of_the_nccl_page_exist(section, row):
    for named in row[1].split(", "):
        found = re.fullmatch(r"([^\[\]\s]+)(?:\[(.+)\])?", named)
        assert found, f"{section}: {row[0]!r}: {named!r} is no name of a test"
        path, pattern = source_of(found[1])
        assert path.is_file(), f"{section}: {row[0]!r}: there is no {path.relative_to(ROOT)} for {named}"
        text = path.read_text(encoding="utf-8")
        assert re.search(pattern, text, re.MULTILINE), f"{section}: {row[0]!r}: {path.relative_to(ROOT)} has no {named}"
        assert found[2] is None or is_case(found[2]), f"{section}: {row[0]!r}: there is no case {found[2]!r}"


def test_claims_of_the_nccl_page_are_listed_once():
    for section, rows in CLAIMS.items():
        quotes = [quote for quote, _ in rows]
        assert sorted(quotes) == sorted(set(quotes)), section


@pytest.mark.parametrize("section", PAGE)
def test_every_section_of_the_nccl_page_has_listed_claims(section):
    text = plain(PAGE[section])
    untested = [quote for quote, _ in CLAIMS.get(LAST, []) if quote in text]
    assert section in CLAIMS or untested, f"tests/nccl_claims.md has no section {section!r}"
    assert CLAIMS.get(section) or untested, f"tests/nccl_claims.md has no rows for {section!r}"


def test_sections_of_the_list_of_claims_match_the_nccl_page():
    assert [name for name in CLAIMS if name not in PAGE] == [LAST]
