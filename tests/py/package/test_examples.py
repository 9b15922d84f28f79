"""The examples must run as users run them: directly, and with a launcher's environment."""

import importlib.util
import os
import re
import subprocess
import sys

import dldist
import mpirun
import pytest
from paths import EXAMPLES

pytest.importorskip("numpy", reason="NumPy is not installed")

TIMEOUT_S = 60
JAX = pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="JAX is not installed")


def environment(**more):
    clean = {name: value for name, value in os.environ.items() if not re.match("RANK$|OMPI_|PMI_|SLURM_", name)}
    return dict(clean, PYTHONPATH=os.path.dirname(os.path.dirname(dldist.__file__)), **more)


def start(example, **more):
    return subprocess.Popen(
        [sys.executable, EXAMPLES / example],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(**more),
    )


def lines_of(*processes):
    """Return the processes' output lines; check that they succeeded with an empty stderr."""
    try:
        outputs = [process.communicate(timeout=TIMEOUT_S) for process in processes]
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()
    for process, (out, error) in zip(processes, outputs):
        assert (process.returncode, error) == (0, ""), out + error
    return [line for out, _ in outputs for line in out.splitlines()]


def launch(example, size):
    """Start the ranks as torchrun and dlrun do: rank, size and store address in the environment."""
    store = dldist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    return lines_of(*[start(example, RANK=str(rank), WORLD_SIZE=str(size), **where) for rank in range(size)])


def check_training(lines, size):
    losses = [float(found[1]) for line in lines if (found := re.fullmatch(r"rank 0: step \d+, loss (\S+)", line))]
    assert len(losses) == 4 and losses == sorted(losses, reverse=True), lines
    assert losses[-1] < losses[0] / 10
    ends = [re.fullmatch(r"rank (\d+): trained on (\d+) points, weights ([0-9a-f]{16})", line) for line in lines]
    ends = [found for found in ends if found]
    assert sorted(int(found[1]) for found in ends) == list(range(size))
    assert sum(int(found[2]) for found in ends) == 1024
    assert len({found[3] for found in ends}) == 1, "the weights are the same, bit for bit"
    assert len(lines) == 4 + size


@pytest.mark.exhaustive(every=2)
@pytest.mark.deadline(90)
@pytest.mark.parametrize("example", ["train_numpy.py", pytest.param("train_jax.py", marks=JAX)])
def test_training_example_runs(example):
    check_training(lines_of(start(example)), 2)


@pytest.mark.deadline(90)
def test_training_example_runs_under_a_launcher():
    check_training(launch("train_numpy.py", 3), 3)


def losses_in(lines):
    return [float(line.split()[-1]) for line in lines if ", loss " in line]


@pytest.mark.exhaustive(every=2)
@pytest.mark.deadline(120)
@pytest.mark.parametrize("example", ["train_numpy.py", pytest.param("train_jax.py", marks=JAX)])
def test_training_example_equals_training_of_one_process_with_all_data(example):
    alone, together = losses_in(launch(example, 1)), losses_in(launch(example, 2))
    assert len(alone) == 4
    # the last of five digits may be rounded differently
    assert together == pytest.approx(alone, rel=1e-4, abs=1.1e-5)


def check_parameter_server(lines, workers):
    assert len(lines) == 1 + workers, lines
    (line,) = [line for line in lines if line.startswith("rank 0: ")]
    found = re.fullmatch(r"rank 0: the line is (\S+) x \+ (\S+), after updates by rank \{(.*)\}", line)
    assert abs(float(found[1]) - 3) < 0.01 and abs(float(found[2]) + 1) < 0.01
    assert found[3] == ", ".join(f"{rank}: 200" for rank in range(1, workers + 1))
    for rank in range(1, workers + 1):
        (line,) = [line for line in lines if line.startswith(f"rank {rank}: ")]
        found = re.fullmatch(r"rank \d+: the loss fell from (\S+) to (\S+)", line)
        # even an early rank must still get the other ranks' updates
        assert float(found[2]) < 0.01 < float(found[1])


def test_parameter_server_example_runs():
    check_parameter_server(lines_of(start("parameter_server.py")), 2)


def test_parameter_server_example_runs_under_a_launcher():
    check_parameter_server(launch("parameter_server.py", 2), 1)


def check_push_weights(lines, size):
    expected = ["pushed 5 versions"] * 3 + ["served until version 5, and every answer was of one version"] * (size - 3)
    assert sorted(lines) == [f"rank {rank}: {text}" for rank, text in enumerate(expected)]


@pytest.mark.deadline(90)
def test_push_weights_example_runs():
    check_push_weights(lines_of(start("push_weights.py")), 5)


@pytest.mark.deadline(90)
def test_push_weights_example_runs_under_a_launcher():
    check_push_weights(launch("push_weights.py", 4), 4)


@pytest.mark.deadline(90)
def test_heat_example_has_the_same_result_with_every_number_of_ranks():
    alone, together = launch("heat.py", 1), launch("heat.py", 6)
    is_of_all = [not line.startswith("numbers of warm cells: ") for line in alone]
    assert sum(is_of_all) == 4 and [line for line, keep in zip(together, is_of_all) if keep] == [line for line, keep in zip(alone, is_of_all) if keep]
    assert together[3] == "numbers of warm cells: 0-385 385-495 495-652 652-652 652-652 652-990"


@pytest.mark.deadline(90)
def test_heat_example_prints_the_same_as_its_mpi4py_program():
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    library = next((library for library in mpirun.find() if library.name == "openmpi"), None)
    if library is None:
        pytest.skip("Open MPI is not installed: apt-get install openmpi-bin")
    done = subprocess.run(
        [*library.command(4), sys.executable, EXAMPLES / "heat_mpi4py.py"],
        capture_output=True, text=True, timeout=TIMEOUT_S, env=environment(MPI4PY_MPIABI="openmpi"),
    )  # fmt: skip
    assert (done.returncode, done.stdout.splitlines()) == (0, launch("heat.py", 4)), done.stderr
