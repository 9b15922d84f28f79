"""tests/torch_suite/fetch.py: PyTorch's tests from every kind of source, or a clear error."""

import importlib.metadata
import os
import subprocess
import sys
import tarfile

import pytest
from paths import TESTS

pytestmark = pytest.mark.torch

FETCH = TESTS / "torch_suite" / "fetch.py"
FILES = {
    "version.txt": "9.8.7a0\n",
    "test/distributed/test_some.py": "some\n",
    "test/distributed/tensor/test_more.py": "more\n",
    "torch/distributed/other.py": "not wanted\n",
}
BROUGHT = {name for name in FILES if not name.startswith("torch/")}


def fetch(into, *arguments, **environment):
    variables = {name: value for name, value in os.environ.items() if name != "PYTORCH_SOURCES"}
    return subprocess.run(
        [sys.executable, FETCH, into, *arguments],
        capture_output=True,
        text=True,
        timeout=25,
        check=False,
        env={**variables, **environment},
    )


def brought_to(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def sources(tmp_path):
    root = tmp_path / "sources"
    for name, text in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def archive_of(sources, path):
    with tarfile.open(path, "w:xz") as archive:
        archive.add(sources, "pytorch-9.8.7")
    return path


def repository_of(sources):
    tag = "v" + importlib.metadata.version("torch").partition("+")[0]
    git = ["git", "-C", sources, "-c", "user.name=n", "-c", "user.email=e"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "all"], ["tag", tag]):
        subprocess.run([*git, *words], check=True, capture_output=True)
    return f"file://{sources}"


@pytest.mark.parametrize("way", ["checkout", "variable", "archive", "file URL", "git"])
def test_torchs_tests_are_fetched_from_each_source(sources, tmp_path, way):
    archive = archive_of(sources, tmp_path / "sources.tar.xz")
    arguments, environment = {
        "checkout": (["--checkout", sources], {}),
        "variable": ([], {"PYTORCH_SOURCES": str(sources)}),
        "archive": (["--archive", archive], {}),
        "file URL": (["--archive", f"file://{archive}"], {}),
        "git": (["--git", repository_of(sources) if way == "git" else ""], {}),
    }[way]
    into = tmp_path / "tests"
    ran = fetch(into, *arguments, **environment)
    assert ran.returncode == 0, ran.stderr
    assert brought_to(into) == BROUGHT
    assert "9.8.7a0" in ran.stdout.splitlines()[-1]
    assert importlib.metadata.version("torch").partition("+")[0] in ran.stdout.splitlines()[-1]


def test_next_source_of_torchs_tests_is_used_after_a_failure(sources, tmp_path):
    ran = fetch(tmp_path / "tests", "--checkout", tmp_path / "nothing", "--archive", archive_of(sources, tmp_path / "a.tar.xz"))
    assert ran.returncode == 0, ran.stderr
    assert "from the archive" in ran.stdout


@pytest.mark.parametrize(
    ("wanted", "order"),
    [("2.13.0", ["2.14.1+dfsg-1", "2.6.0+dfsg-7", "1.13.1+dfsg-4"]), ("2.6", ["2.6.0+dfsg-7", "2.14.1+dfsg-1", "1.13.1+dfsg-4"])],
)
def test_debian_package_of_the_nearest_torch_version_is_used(monkeypatch, wanted, order):
    monkeypatch.syspath_prepend(FETCH.parent)
    import fetch as module

    assert sorted(order[::-1], key=lambda version: module.distance(version, wanted)) == order


def test_fetching_replaces_older_torch_tests(sources, tmp_path):
    into = tmp_path / "tests"
    assert fetch(into, "--checkout", sources).returncode == 0
    (into / "test/distributed/test_old.py").write_text("old\n")
    assert fetch(into, "--checkout", sources).returncode == 0
    assert brought_to(into) == BROUGHT


def test_failed_fetch_gives_a_reason_and_changes_nothing(sources, tmp_path):
    into = tmp_path / "tests"
    assert fetch(into, "--checkout", sources).returncode == 0
    ran = fetch(into, "--checkout", tmp_path / "nothing", "--archive", f"file://{tmp_path}/nothing.tar")
    assert ran.returncode == 1
    assert "not a checkout of PyTorch" in ran.stderr
    assert "nothing.tar" in ran.stderr
    assert brought_to(into) == BROUGHT
    assert {path.name for path in tmp_path.iterdir()} == {"sources", "tests"}


def test_fetching_does_not_overwrite_a_folder_of_the_user(sources, tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    ran = fetch(tmp_path, "--checkout", sources)
    assert ran.returncode == 1
    assert "not touching it" in ran.stderr
    assert (tmp_path / "mine.txt").read_text() == "mine"


def test_archive_cannot_write_outside_the_target_folder(sources, tmp_path):
    path = tmp_path / "bad.tar"
    with tarfile.open(path, "w") as archive:
        archive.add(sources, "pytorch")
        archive.addfile(tarfile.TarInfo("pytorch/test/distributed/../../../../outside.py"))
    ran = fetch(tmp_path / "tests", "--archive", path)
    assert ran.returncode == 0, ran.stderr
    assert brought_to(tmp_path / "tests") == BROUGHT
    assert not list(tmp_path.rglob("outside.py"))
