"""Copy PyTorch's own tests to a folder and print their version.

    python tests/torch_suite/fetch.py INTO                      the first of these that works
    python tests/torch_suite/fetch.py INTO --checkout FOLDER    PyTorch's sources; also $PYTORCH_SOURCES
    python tests/torch_suite/fetch.py INTO --archive URL        a tar archive (path, file: or https:);
                                                                {tag}: the installed torch's
    python tests/torch_suite/fetch.py INTO --git URL            a small clone of the installed torch's tag
    python tests/torch_suite/fetch.py INTO --debian [VERSION]   Debian's source package nearest to
                                                                VERSION or the installed torch

Only test/distributed and the files that it imports are copied to INTO, in PyTorch's folders; run.py
then needs `--tests INTO/test/distributed`. Earlier contents of INTO are replaced. An archive or a
clone is used only if a URL is given. Debian's package needs apt-get but not root: package lists and
downloads are stored in a separate folder.

The last line of the output is the version of the tests, the folder, and the installed version of
torch.
"""

import argparse
import contextlib
import importlib.metadata
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.request

# The parts of PyTorch's folder to copy.
WANTED = ("test/distributed/", "test/inductor/", "tools/flight_recorder/", "version.txt")
LIMIT_S = 600
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
# Newest first: a mirror's lists may name a package that it does not have yet.
SUITES = ("sid", "testing", "stable", "oldstable")
SOURCE_PACKAGE = "pytorch"


class NotHere(Exception):
    """A source is not available; the message has the reason."""


def torch_version():
    try:
        return importlib.metadata.version("torch").partition("+")[0]
    except importlib.metadata.PackageNotFoundError:
        raise NotHere("no torch is installed, whose version would be taken") from None


def is_wanted(path):
    return path.startswith(WANTED) and ".." not in pathlib.PurePosixPath(path).parts


def from_checkout(folder, into):
    root = pathlib.Path(folder).expanduser()
    if not (root / "test" / "distributed").is_dir():
        raise NotHere(f"{root} has no test/distributed: not a checkout of PyTorch")
    for name in WANTED:
        source, target = root / name, into / name
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        elif source.exists():
            shutil.copy(source, target)


def from_archive(file, into):
    """Copy from an archive, in which all sources are in one folder of any name."""
    with tarfile.open(file) as archive:
        for member in archive:
            path = member.name.removeprefix("./").partition("/")[2]
            if member.isfile() and is_wanted(path):
                (into / path).parent.mkdir(parents=True, exist_ok=True)
                with archive.extractfile(member) as source, (into / path).open("wb") as target:
                    shutil.copyfileobj(source, target)


def from_url(url, into):
    if "{tag}" in url:
        url = url.format(tag=f"v{torch_version()}")
    if pathlib.Path(url).exists():
        return from_archive(url, into)
    with tempfile.NamedTemporaryFile() as file:
        try:
            with urllib.request.urlopen(url, timeout=LIMIT_S) as answer:
                shutil.copyfileobj(answer, file)
        except (OSError, ValueError) as error:
            raise NotHere(f"{url}: {error}") from None
        file.flush()
        return from_archive(file.name, into)


def command(*words, cwd=None):
    try:
        ran = subprocess.run(words, cwd=cwd, capture_output=True, text=True, timeout=LIMIT_S, check=False, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotHere(f"{words[0]}: {error}") from None
    if ran.returncode:
        raise NotHere(f"{' '.join(map(str, words))} ended with {ran.returncode}: {ran.stderr.strip()[-500:]}")
    return ran.stdout


def from_git(url, into):
    with tempfile.TemporaryDirectory() as clone:
        tag = f"v{torch_version()}"
        command("git", "clone", "--quiet", "--depth=1", "--filter=blob:none", "--sparse", f"--branch={tag}", url, clone)
        command("git", "-C", clone, "sparse-checkout", "set", "--no-cone", *(f"/{name}" for name in WANTED))
        from_checkout(clone, into)


def numbers(version):
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])


def distance(version, wanted):
    """Return the distance of two versions in releases: 2.6 is nearer to 2.13 than 1.13."""
    (major, minor, *_), (wanted_major, wanted_minor, *_) = numbers(version), numbers(wanted)
    return (abs(major - wanted_major), abs(minor - wanted_minor))


def mirror_of_debian():
    """Return apt's configured mirror. Before apt's first update, its label is unknown."""
    for line in command("apt-get", "indextargets", "--format", "$(LABEL) $(REPO_URI)").splitlines():
        label, _, uri = line.rpartition(" ")
        if label == "Debian" or uri.rstrip("/").endswith("/debian"):
            return uri
    raise NotHere("apt knows no mirror of Debian")


class Apt:
    """apt with its lists and downloads in a separate folder: the system's stay unchanged, and root
    is not needed."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        for name in ("lists/partial", "cache/archives/partial"):
            (self.folder / name).mkdir(parents=True)
        mirror = mirror_of_debian()
        lines = [f"deb-src [signed-by={KEYRING}] {mirror} {suite} main\n" for suite in SUITES]
        (self.folder / "sources.list").write_text("".join(lines), encoding="utf-8")
        self.options = [
            *("-o", f"Dir::Etc::sourcelist={self.folder}/sources.list", "-o", "Dir::Etc::sourceparts=/dev/null"),
            *("-o", f"Dir::State::lists={self.folder}/lists", "-o", f"Dir::Cache={self.folder}/cache"),
        ]

    def versions(self):
        command("apt-get", *self.options, "update")
        shown = command("apt-cache", *self.options, "showsrc", SOURCE_PACKAGE)
        return sorted(set(re.findall(r"^Version: (\S+)$", shown, re.MULTILINE)))

    def download(self, version):
        command(
            *("apt-get", *self.options, "source", "--download-only", "--only-source", f"{SOURCE_PACKAGE}={version}"),
            cwd=self.folder,
        )
        (archive,) = self.folder.glob(f"{SOURCE_PACKAGE}_*.orig.tar.*")
        return archive


def from_debian(wanted, into):
    wanted = wanted or torch_version()
    if not pathlib.Path(KEYRING).exists():
        raise NotHere(f"{KEYRING} is missing: not a Debian")
    with tempfile.TemporaryDirectory() as folder:
        apt = Apt(folder)
        offered = apt.versions()
        refusals = []
        for version in sorted(offered, key=lambda version: distance(version, wanted)):
            try:
                archive = apt.download(version)
            except NotHere as refusal:
                refusals.append(f"{version}: {refusal}")
                continue
            print(f"Debian offers {', '.join(offered)}; taken: {version}")
            return from_archive(archive, into)
    raise NotHere(f"of Debian's {SOURCE_PACKAGE} nothing can be downloaded: {'; '.join(refusals) or 'no version is offered'}")


def ways(options):
    """Return [(description, function of the folder)] for the requested sources, or for the default
    ones."""
    checkout = options.checkout or os.environ.get("PYTORCH_SOURCES")
    asked = [
        (f"the checkout {checkout}", checkout, lambda into: from_checkout(checkout, into)),
        (f"the archive {options.archive}", options.archive, lambda into: from_url(options.archive, into)),
        (f"a clone of {options.git}", options.git, lambda into: from_git(options.git, into)),
        ("Debian's source package", options.debian is not None, lambda into: from_debian(options.debian, into)),
    ]
    chosen = [(what, way) for what, is_asked_for, way in asked if is_asked_for]
    return chosen or [("Debian's source package", lambda into: from_debian("", into))]


def fetch(into, chosen):
    """Return the source that was used. INTO changes only if everything was copied."""
    refusals = []
    for what, way in chosen:
        with tempfile.TemporaryDirectory(dir=into.parent, prefix=f".{into.name}-") as new:
            new = pathlib.Path(new) / "new"
            new.mkdir()
            try:
                way(new)
                if not any((new / "test" / "distributed").glob("test_*.py")):
                    raise NotHere("no tests in it")
            except (NotHere, OSError, tarfile.TarError) as refusal:
                refusals.append(f"{what}: {refusal}")
                continue
            if into.exists():
                shutil.rmtree(into)
            new.rename(into)
            return what
    sys.exit("PyTorch's tests are not available:\n  " + "\n  ".join(refusals))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("into", type=pathlib.Path, metavar="INTO")
    parser.add_argument("--checkout", metavar="FOLDER")
    parser.add_argument("--archive", metavar="URL")
    parser.add_argument("--git", metavar="URL")
    parser.add_argument("--debian", nargs="?", const="", metavar="VERSION")
    options = parser.parse_args()
    into = options.into.resolve()
    if into.exists() and any(into.iterdir()) and not (into / "test" / "distributed").is_dir():
        sys.exit(f"{into} is there already, and holds something else than PyTorch's tests; not touching it")
    into.parent.mkdir(parents=True, exist_ok=True)
    what = fetch(into, ways(options))
    version = "of unknown version"
    with contextlib.suppress(OSError):
        version = (into / "version.txt").read_text(encoding="utf-8").strip()
    with_torch = "no torch is installed"
    with contextlib.suppress(NotHere):
        with_torch = f"the installed torch is {torch_version()}"
    print(f"PyTorch's tests {version}, from {what}: {into}/test/distributed; {with_torch}")


if __name__ == "__main__":
    main()
