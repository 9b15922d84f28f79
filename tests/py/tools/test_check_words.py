"""tools/check_words.py: each rule finds its wording, and only that."""
import importlib.util
import subprocess
import sys

import pytest
from paths import TOOLS

TOOL = TOOLS / "check_words.py"
spec = importlib.util.spec_from_file_location("check_words", TOOL)
check_words = importlib.util.module_from_spec(spec)
spec.loader.exec_module(check_words)

# words: ok is in each line, so that the tool can check this file.
EXAMPLES = {
    "relative start": "What the rank sends.",  # words: ok
    "no actor": "Wait until somebody connects.",  # words: ok
    "speech": "The other ranks are told.",  # words: ok
    "arrival": "Three ranks have come.",  # words: ok
    "where for if": "Return None where the key is absent.",  # words: ok
    "legend": "NULL: none",  # words: ok
    "vague state": "Read the data that is there.",  # words: ok
    "archaic except": "Close all links but for one.",  # words: ok
    "idiom": "Fail for want of memory.",  # words: ok
    "of ours": "Connect to a server of ours.",  # words: ok
    "any more": "The group is not used any more.",  # words: ok
    "only": "Work with glibc alone.",  # words: ok
    "so many": "Send so many bytes.",  # words: ok
    "no use": "The group is of no use.",  # words: ok
    "spelling": "Set the time-out.",  # words: ok
    "what": "Send what is left.",  # words: ok
    "says": "The server says no.",  # words: ok
    "fragment": "Of the previous call",  # words: ok
    "vague time": "Return at once.",  # words: ok
    "phrasal verb": "Let go of the lock.",  # words: ok
    "inversion": "The link ends, so does the group.",  # words: ok
    "that of": "Use the lock and that of the peer.",  # words: ok
    "trailing too": "Close the link, too.",  # words: ok
}
CLEAN = "Return the number of ranks that have joined before the timeout, or -1 if there are none."
FORMS = {
    "text.c": "/* {} */\nint x;\n",
    "string.c": 'const char *text = "{}";\n',
    "text.py": '"""A module."""\n\n\ndef run():\n    """{}"""\n',
    "comment.py": "x = 1  # {}\n",
    "string.py": 'raise ValueError(f"{}")\n',
    "text.md": "# A page\n\n{}\n",
}


def run(*arguments, **options):
    done = subprocess.run([sys.executable, TOOL, *arguments], capture_output=True, text=True, timeout=60, check=False, **options)
    return done.returncode, done.stdout


def rules_in(path):
    checker = check_words.Checker({**check_words.CERTAIN, **check_words.LIKELY})
    return [hit.rule for hit in checker.file_hits(path)]


def test_every_rule_of_check_words_has_an_example():
    assert list(EXAMPLES) == [*check_words.CERTAIN, *check_words.LIKELY]


@pytest.mark.parametrize("rule", EXAMPLES)
def test_rule_of_check_words_finds_its_example(tmp_path, rule):
    path = tmp_path / "text.md"
    path.write_text(f"- {EXAMPLES[rule]}\n")
    assert rules_in(path) == [rule]


@pytest.mark.parametrize("name", FORMS)
def test_check_words_finds_prose_in_all_kinds_of_files(tmp_path, name):
    path = tmp_path / name
    path.write_text(FORMS[name].format(EXAMPLES["no actor"]))
    assert rules_in(path) == ["no actor"]
    path.write_text(FORMS[name].format(CLEAN))
    assert rules_in(path) == []


@pytest.mark.parametrize("name, text", [
    ("code.md", "    Wait for somebody.\n\n```\nWait for somebody.\n```\n\nCall `somebody()`.\n"),  # words: ok
    ("raw.py", 'PATTERN = r"wait for somebody"\n'),  # words: ok
    ("code.c", "int somebody = 'a';\n"),  # words: ok
    ("kept.c", "/* Wait for somebody. (words: ok) */\n"),
])
def test_check_words_ignores_code_and_excepted_lines(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    assert rules_in(tmp_path / name) == []


def test_only_certain_hits_of_check_words_are_errors(tmp_path):
    (tmp_path / "a.md").write_text("Return at once.\n")  # words: ok
    assert run(tmp_path) == (0, "words: 1 files, 0 certain hits, 1 likely\n")
    (tmp_path / "b.c").write_text("int x;\n/* A line.\n * Whoever reads it. */\n")  # words: ok
    code, text = run(tmp_path)
    assert code == 1 and "b.c:3: no actor: 'Whoever'" in text  # words: ok


@pytest.mark.parametrize("name, content", [("none.md", None), ("a.sh", b"true\n"), ("a.md", b"\xff"), ("a.py", b"def\n")])
def test_files_that_check_words_cannot_read_are_errors(tmp_path, name, content):
    (tmp_path / "good.md").write_text("Fine.\n")
    if content is not None:
        (tmp_path / name).write_bytes(content)
    done = subprocess.run([sys.executable, TOOL, tmp_path / "good.md", tmp_path / name], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and name in done.stderr


@pytest.mark.parametrize("subject, problem", [
    ("net: share the handshake", None),
    ("store, net: pass deadlines on", None),
    ("net: shares the handshake", "'shares': use the imperative"),
    ("net: passes deadlines on", "'passes': use the imperative"),
    ("net: cross-check the keys", None),
    ("net: always wake the owner", None),
    ("Share the handshake", "start with the folder"),
    ("net: share the handshake.", "no period"),
    ("net: " + "share " * 12 + "it", "79 characters, expected at most 72"),
    ("net: let somebody connect", "no actor"),  # words: ok
])
def test_check_words_finds_problems_of_commit_subjects(subject, problem):
    problems = "\n".join(check_words.subject_problems(subject))
    assert problem in problems if problem else problems == ""


def test_check_words_checks_the_subjects_of_a_branch(tmp_path):
    def git(*arguments):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments], cwd=tmp_path, check=True, timeout=60)

    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "base")
    git("commit", "-q", "--allow-empty", "-m", "docs: add a page")
    assert run("--subjects", "HEAD~1", cwd=tmp_path) == (0, "words: 1 subjects, 0 problems\n")
    git("commit", "-q", "--allow-empty", "-m", "docs: adds a page")
    code, text = run("--subjects", "HEAD~2", cwd=tmp_path)
    assert code == 1 and "'adds': use the imperative" in text
