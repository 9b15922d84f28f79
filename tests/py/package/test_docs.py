"""Check README.md and the pages of docs/: programs run and print the shown output, links resolve,
and every public name is documented.

Every Python block (```python) is run as it stands, as a world of one; a doctest (>>>) is run as a
doctest, and functions named test_... are run by pytest. A comment before the fence changes this:

    <!-- run: 2 ranks -->                         on two processes, with a launcher's environment
    <!-- run: 2 ranks, after the first block -->  the same, preceded by the page's first block
    <!-- output of rank 0 -->                     before text: the output of the program above it

A block that cannot be run must state this in its first line, for its readers, and must compile:

    # not run by the tests: needs a GPU

Blocks that import missing packages are skipped. In output, hosts, pids and times may differ.
"""

import ast
import importlib
import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys

import dldist
import pytest
from paths import DOCS, ROOT

FOLDERS = [DOCS, DOCS / "contributing"]
"""Each has an index.md that lists the folder's pages."""
PAGES = [ROOT / "README.md", *(page for folder in FOLDERS for page in sorted(folder.glob("*.md")))]
TIMEOUT_S = 60
MARKER = re.compile(r"<!-- (run|output of rank)(?::| )\s*(.+?) -->")
NOT_RUN = re.compile(r"# not run by the tests: .+")
FENCE = re.compile(r"```(\w*|\{\w+\}.*)")
RUN = re.compile(r"(\d+) ranks?(, after the first block)?")


class Block:
    """A fenced block of a page."""

    def __init__(self, page, line, kind, marker, text):
        self.page, self.line, self.kind, self.marker, self.text = page, line, kind, marker, text
        self.first = self
        """The first program of the page."""
        self.outputs = {}
        """The outputs of ranks that the page shows."""

    def __repr__(self):
        return f"{self.page.name}:{self.line}"

    @property
    def is_doctest(self):
        return self.text.startswith(">>>")

    def ranks(self):
        """Return the number of ranks, 0 if the block is not run, and the program."""
        verb, arguments = self.marker or (None, "")
        if verb == "run":
            found = RUN.fullmatch(arguments)
            assert found, f"{self}: no idea what {arguments!r} means"
            return int(found[1]), (self.first.text + "\n\n" if found[2] else "") + self.text
        assert verb is None, f"{self}: a block of Python is no output"
        return (0 if NOT_RUN.match(self.text) else 1), self.text


def blocks_of(page):
    blocks, fence, before = [], None, ""
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        opening = FENCE.fullmatch(line)
        if fence is None and opening:
            found = MARKER.fullmatch(before)
            fence = Block(page, number, opening[1], found and found.groups(), "")
        elif fence is not None and line == "```":
            blocks.append(fence)
            fence, before = None, ""
        elif fence is not None:
            fence.text += line + "\n"
        elif line.strip():
            before = line
    assert fence is None, f"{fence} does not end"
    return blocks


def programs():
    found = []
    for page in PAGES:
        first = last = None
        for block in blocks_of(page):
            if block.kind == "python":
                first, last = first or block, block
                block.first = first
                found.append(block)
            elif block.marker and block.marker[0] == "output of rank":
                last.outputs[int(block.marker[1])] = block.text
    return found


def missing_modules(source):
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.partition(".")[0])
    return sorted(name for name in names if importlib.util.find_spec(name) is None)


def runner_of(path):
    """Return the interpreter options that run a file: those for doctest, for pytest, or none."""
    if path.suffix == ".txt":
        return ["-m", "doctest"]
    has_tests = re.search(r"^def test_", path.read_text(encoding="utf-8"), re.MULTILINE)
    return ["-m", "pytest", "-q", "-p", "no:cacheprovider"] if has_tests else []


def start(path, rank, size, place):
    """Start one rank as torchrun and dlrun do. Its stderr goes to its stdout."""
    numbers = {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(size)}
    where = {"PYTHONPATH": os.path.dirname(os.path.dirname(dldist.__file__)), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    # Since Python 3.12, os.fork() in a process with threads warns, as the page explains.
    where["PYTHONWARNINGS"] = "ignore:This process:DeprecationWarning"
    return subprocess.Popen(
        [sys.executable, *runner_of(path), path],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=path.parent,
        env={**os.environ, **place, **numbers, **where},
    )


def run(path, size):
    """Run a file on `size` ranks and return their outputs."""
    store = dldist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)}
    ranks = [start(path, rank, size, place) for rank in range(size)]
    try:
        outputs = [rank.communicate(timeout=TIMEOUT_S)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert [rank.returncode for rank in ranks] == [0] * size, "\n".join(outputs)
    return outputs


def without_varying_parts(text):
    """Return the lines without the parts that vary between runs, each as a sorted list of words.

    It varies whether a rank detects a failure in its call or before, and which side an error names
    first.
    """
    text = re.sub(r"\([^() ]+, pid \d+\)", "(HOST, pid PID)", text)
    text = re.sub(r"\d+(\.\d+)? s\b", "TIME s", text)
    text = re.sub(r" #\d+ on group", " on group", text).replace("the group has failed before: ", "")
    return [sorted(re.split(r"[ ,]+", line)) for line in text.splitlines()]


@pytest.mark.torch
@pytest.mark.deadline(TIMEOUT_S + 10)
@pytest.mark.parametrize("page", ["beside-torch-and-mpi.md", "interfaces.md"])
def test_torch_programs_of_the_documentation_run_under_dlrun(page, tmp_path):
    block = next(block for block in programs() if block.page.name == page and "import torch.distributed" in block.text and block.ranks()[0] == 2)
    path = tmp_path / "program.py"
    path.write_text(block.text, encoding="utf-8")
    command = [sys.executable, "-m", "dldist.run", "-n", "2", str(path)]
    environment = {**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(dldist.__file__))}
    ran = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT_S, env=environment)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.exhaustive(every=3)
@pytest.mark.deadline(TIMEOUT_S + 10)
@pytest.mark.parametrize("block", programs(), ids=repr)
def test_programs_in_the_documentation_print_the_documented_output(block, tmp_path):
    size, source = block.ranks()
    if not block.is_doctest:
        compile(source, repr(block), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    if size == 0:
        assert not block.outputs, "a block with outputs must be run"
        return
    if missing := [] if block.is_doctest else missing_modules(source):
        pytest.skip(f"not installed: {', '.join(missing)}")
    path = tmp_path / ("block.txt" if block.is_doctest else "block.py")
    path.write_text(source, encoding="utf-8")
    outputs = run(path, size)
    for rank, text in block.outputs.items():
        assert without_varying_parts(outputs[rank]) == without_varying_parts(text), outputs[rank]


def without_code(page):
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def anchors_of(page):
    """Return the anchors of a page's headings: their words in lower case, joined by dashes."""
    headings = re.findall(r"^#+ (.+)$", without_code(page), re.MULTILINE)
    words = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in headings]
    return {re.sub(r"[^\w\- ]", "", heading).strip().replace(" ", "-") for heading in words}


def problem_of(page, target):
    """Return the reason why a link does not resolve, or None."""
    file, mark, anchor = target.partition("#")
    other = (page.parent / file).resolve() if file else page
    if not other.exists():
        return f"{target}: no such file"
    if mark and other.suffix == ".md" and anchor not in anchors_of(other):
        return f"{target}: no such heading"
    return None


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"], ids=lambda page: str(page.relative_to(ROOT)))
def test_links_in_the_documentation_resolve(page):
    targets = re.findall(r"\]\(([^()\s]+)\)", without_code(page))
    inner = [target for target in targets if not re.match(r"[a-z]+:", target)]
    assert [problem for target in inner if (problem := problem_of(page, target))] == []


def test_architecture_names_existing_functions_and_files():
    page = (DOCS / "contributing" / "architecture.md").read_text(encoding="utf-8")
    paths = re.findall(r"`((?:csrc|pkg|tests|tools)/[\w/.]+)`", page)
    steps = re.findall(r"^\|.*\| `(\w+)` \| `(\S+)` \|$", page, re.MULTILINE)
    assert len(paths) > 30 and len(steps) > 20
    assert [path for path in paths if not (ROOT / path).exists()] == []
    text = {path: (ROOT / path).read_text(encoding="utf-8") for _, path in steps}
    assert [step for step in steps if re.search(rf"^{step[0]}\(", text[step[1]], re.MULTILINE) is None] == []


def test_every_page_is_in_the_site():
    listed = [
        (folder / name).resolve()
        for folder in FOLDERS
        for name in re.findall(r"^(?:.* <)?((?:\.\./)?[a-z][a-z\d/-]*)(?:\.md)?>?$", (folder / "index.md").read_text(encoding="utf-8"), re.MULTILINE)
    ]
    pages = [page.resolve() for page in PAGES if page.parent in FOLDERS and page.stem != "index"]
    assert sorted(page.with_suffix("") for page in listed if page.name != "index") == sorted(page.with_suffix("") for page in pages)


def names_in_reference():
    """Yield the names documented in docs/reference/: "all_reduce" for dldist,
    "functional.all_reduce" for a module."""
    for path in (DOCS / "reference").glob("*.rst"):
        module = ""
        for directive, target in re.findall(r"^\.\. (currentmodule|auto\w+):: (\S+)$", path.read_text(encoding="utf-8"), re.MULTILINE):
            if directive == "currentmodule":
                module = target.removeprefix("dldist").removeprefix(".")
            else:
                yield f"{module}.{target}" if module else target


# Modules with their own section or page in the reference. All of their public names must be there.
DOCUMENTED = "functional types testing reducer nccl symmetric_memory trace rendezvous comm_hooks flight_recorder control".split()


def test_reference_pages_describe_every_public_name_once():
    described = list(names_in_reference())
    assert sorted(described) == sorted(set(described)), "each has one place"
    public = set(dldist.__all__) - {"__version__"}
    for name in DOCUMENTED:
        module = importlib.import_module(f"dldist.{name}")
        own = {key for key in module.__all__ if not key.startswith("_")}
        public |= {f"{name}.{key}" for key in own if getattr(dldist, key, None) is not getattr(module, key)}
    assert sorted(public - set(described)) == []


def test_figures_in_plots_match_the_benchmark_page():
    """benchmarks/two_ranks.json, the source of the plots, must match docs/benchmarks.md."""
    page = (DOCS / "benchmarks.md").read_text(encoding="utf-8")
    table = re.search(r"^Two ranks, .*?\n\n(\|.*?)\n\n", page, re.MULTILINE | re.DOTALL)[1].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    shown = [[float(cell.split()[0].replace(",", "")) for cell in row[2:] if cell != "-"] for row in rows[2:]]
    report = json.loads((ROOT / "benchmarks" / "two_ranks.json").read_text(encoding="utf-8"))
    assert [[row["time_us"] for row in result["peers"].values()] for result in report["results"]] == shown
    assert [list(result["peers"]) for result in report["results"][:1]] == [rows[0][2:]]


README_COLUMNS = {
    "dldist": "dldist",
    "Gloo": "gloo",
    "mpi4py, Open MPI 4": "mpi4py",
    "mpi4py, Intel MPI": "mpi4py-impi",
    "Open MPI 5": "openmpi5-best",
    "Intel MPI": "impi",
}
BYTES = {"8 B": 8, "64 KiB": 64 << 10, "1 MiB": 1 << 20, "16 MiB": 16 << 20}


def test_figures_in_the_readme_match_the_measured_ones():
    """The README's table must match benchmarks/two_ranks.json."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    head, _, *rows = re.search(r"^\| size \|.*?(?=\n\n)", text, re.MULTILINE | re.DOTALL)[0].splitlines()
    peers = [README_COLUMNS[cell.strip()] for cell in head.strip("|").split("|")[1:]]
    report = json.loads((ROOT / "benchmarks" / "two_ranks.json").read_text(encoding="utf-8"))
    times = {result["nbytes"]: result["peers"] for result in report["results"] if result["op"] == "all_reduce"}
    for row in rows:
        size, *cells = [cell.strip() for cell in row.strip("|").split("|")]
        measured = [times[BYTES[size]][peer]["time_us"] for peer in peers]
        assert [float(cell.replace(",", "")) for cell in cells] == measured, size


def names_read_by_python(path):
    """Yield the environment variables that a module reads, and strings that look like a launcher's
    or dldist's variables."""
    family = re.compile(
        r"(DLDIST|GLOO|TORCH\w*|OMPI|PMI|PMIX|MPI|SLURM|MASTER|LOCAL|GROUP)_[A-Za-z0-9_]+|RANK|WORLD_SIZE"
    )
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes)):
            text = node.value if isinstance(node.value, str) else node.value.decode(errors="replace")
            if family.fullmatch(text):
                yield text
        asked = None
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            asked = (node.func.value, node.args[0]) if node.func.attr in ("get", "setdefault") else None
        elif isinstance(node, ast.Subscript):
            asked = node.value, node.slice
        if asked and re.fullmatch(r"(\w+\.)?environb?", ast.unparse(asked[0])) and isinstance(asked[1], ast.Constant):
            yield asked[1].value if isinstance(asked[1].value, str) else asked[1].value.decode()


# Strings that look like variable names but are only parts of names.
NO_VARIABLES = {"LOCAL_SIZE"}


def test_page_of_environment_variables_matches_the_table_in_the_code():
    tool = ROOT / "tools" / "environment_page.py"
    env = {**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(dldist.__file__))}
    printed = subprocess.run([sys.executable, tool], env=env, stdout=subprocess.PIPE, text=True, timeout=TIMEOUT_S, check=True)
    page = (DOCS / "environment.md").read_text(encoding="utf-8")
    assert page == printed.stdout, f"python {tool.name} > docs/environment.md renews it"


def test_environment_variables_are_documented():
    package = pathlib.Path(dldist.__file__).parent
    read = {name for path in package.rglob("*.py") for name in names_read_by_python(path)} - NO_VARIABLES
    for path in (ROOT / "csrc").rglob("*.c"):
        read.update(re.findall(r'getenv\("(\w+)"\)', path.read_text(encoding="utf-8")))
    assert {"RANK", "DLDIST_SECRET", "DLDIST_LOG", "TMPDIR", "SLURM_PROCID"} <= read, "the search itself works"
    page = (DOCS / "environment.md").read_text(encoding="utf-8")
    described = set(re.findall(r"`([A-Z][A-Za-z0-9_]+)`", page))
    # A composed name starts with a prefix that ends in "_".
    described |= {name[: end.end()] for name in described for end in re.finditer("_", name)}
    assert sorted(read - described) == []
