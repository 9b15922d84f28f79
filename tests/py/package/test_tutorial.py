"""torch.distributed programs must run after a change of one import, with the same output. The first
program must run too."""

import os
import pathlib
import re
import shutil
import subprocess
import sys

import dldist
import pytest
from paths import EXAMPLES

IMPORT = re.compile(r"^import dldist as dist\b.*$", re.MULTILINE)
DLRUN = [sys.executable, "-m", "dldist.run", "--nproc-per-node", "2"]
TIMEOUT_S = 60


def lines_of(*command):
    """Return a program's output lines, sorted as ranks print in any order, without dlrun's
    prefixes."""
    done = subprocess.run(
        list(map(str, command)),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env=dict(os.environ, PYTHONPATH=os.path.dirname(os.path.dirname(dldist.__file__))),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return sorted(re.sub(r"^\[rank\d+\]: ", "", line) for line in done.stdout.splitlines())


def for_torch(example, folder):
    """Write the same source with torch's import; return its path."""
    source, count = IMPORT.subn("import torch.distributed as dist", (EXAMPLES / example).read_text(encoding="utf-8"))
    assert count == 1
    assert not re.search(r"^[^#]*\b(import|from) dldist\b", source, re.MULTILINE), "that was the only one"
    path = folder / example
    path.write_text(source, encoding="utf-8")
    return path


def words_and_numbers(lines):
    """Split off the numbers: the last bits of float sums depend on their order, which varies."""
    number = r"-?\d+\.\d+"
    return [re.sub(number, "N", line) for line in lines], [float(found) for line in lines for found in re.findall(number, line)]


def check_same(dldist_lines, torch_lines):
    dldist_words, dldist_numbers = words_and_numbers(dldist_lines)
    words, numbers = words_and_numbers(torch_lines)
    assert dldist_words == words
    assert dldist_numbers == pytest.approx(numbers, rel=1e-3, abs=2e-4)


@pytest.mark.torch
@pytest.mark.deadline(90)
@pytest.mark.parametrize("size", [2, 4])
def test_torch_tutorial_program_prints_the_same_with_dldist_as_with_torch(size, tmp_path):
    lines = lines_of(sys.executable, EXAMPLES / "torch_tutorial.py", size)
    check_same(lines, lines_of(sys.executable, for_torch("torch_tutorial.py", tmp_path), size))

    # All of dldist's lines must be there, besides torch's.
    assert len(lines) == size * 11 + 1
    assert "rank 1: isend and irecv: has 1.0" in lines
    assert "rank 0: all_reduce in the group of ranks 0 and 1: has 2.0" in lines
    total = [sum(range(element, element + size)) for element in range(4)]
    assert f"rank 0: ring: {list(map(float, total))}, all_reduce: {list(map(float, total))}" in lines
    assert len({line.partition(": ")[2] for line in lines if "weights" in line}) == 1
    losses = [float(line.split()[-1]) for line in lines if line.startswith("rank 0: epoch")]
    assert losses == sorted(losses, reverse=True) and losses[-1] < 0.75 * losses[0]


@pytest.mark.torch
@pytest.mark.deadline(60)
def test_torch_training_script_gives_the_same_result_under_dlrun_and_torchrun():
    lines = lines_of(*DLRUN, EXAMPLES / "torch_script.py")
    losses = [float(line.split()[-1]) for line in lines if line.startswith("epoch")]
    assert len(losses) == 5 and losses[-1] < losses[0] / 2
    (sums,) = [line.partition("weights: ")[2].split() for line in lines if line.startswith("2 ranks")]
    assert len(sums) == 2 and sums[0] == sums[1]

    beside = pathlib.Path(sys.executable).parent / "torchrun"
    torchrun = str(beside) if beside.exists() else shutil.which("torchrun")
    if torchrun is None:
        pytest.skip("torchrun is not installed; it ran well under dlrun")
    # Not with torch's own import: torch 2.13 sometimes ends such programs with SIGABRT at exit.
    assert lines_of(torchrun, "--standalone", "--nproc-per-node", "2", EXAMPLES / "torch_script.py") == lines


def check_first_program(lines):
    pids = [int(re.fullmatch(rf"rank {rank}: is process (\d+), one of 2, .*", lines[5 * rank + 4])[1]) for rank in range(2)]
    assert [line.partition(": ")[2] for line in lines[:4]] == [
        f"all_gather_object: we are the processes {pids}",
        "all_reduce: the largest of all squares of ranks is 1",
        "all_reduce: the sum over all ranks is [3.0, 30.0, 300.0]",
        "broadcast: the word of rank 0 is 'hello'",
    ]
    assert [line.partition(": ")[2] for line in lines[5:9]] == [line.partition(": ")[2] for line in lines[:4]]
    assert len(lines) == 10


@pytest.mark.parametrize("launcher", [[sys.executable], DLRUN], ids=["by itself", "dlrun"])
def test_first_program_of_the_documentation_runs_under_every_launcher(launcher):
    check_first_program(lines_of(*launcher, EXAMPLES / "all_reduce.py"))
