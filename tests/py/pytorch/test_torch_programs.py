"""PyTorch programs with one word changed must give the same results on "dldist" as on "gloo".

Four processes run every program of torch_programs/ (only the first two if it is for two ranks),
with one backend and then with the other. Results of two ranks must be bitwise equal; with more
ranks, sums may be in another order.

DLDIST_TEST_TORCH_WAYS=1 runs every program in four ways: by the backend's name and as "gloo", with
groups in C++ and in Python.
"""

import importlib
import itertools
import os
import subprocess
import sys

import numpy as np
import procs as procs_module
import pytest
from torch_programs import AS_GLOO, EXACT, MODULES

pytest.importorskip("torch.distributed")
pytestmark = [pytest.mark.torch, pytest.mark.deadline(100)]

RANKS = 4
START_TIMEOUT_S = 90
PROGRAM_TIMEOUT_S = 60


IN_PYTHON = {"DLDIST_TORCH_BACKEND": "python"}
WAYS = {
    "name": ("dldist", None),
    "gloo": (AS_GLOO, None),
    "name-python": ("dldist", IN_PYTHON),
    "gloo-python": (AS_GLOO, IN_PYTHON),
}
CHOSEN_WAYS = WAYS if os.environ.get("DLDIST_TEST_TORCH_WAYS") == "1" else ["name"]


def cases():
    for module_name in MODULES:
        module = importlib.import_module(f"torch_programs.{module_name}")
        for value in vars(module).values():
            program = getattr(value, "program", None)
            if program and program.module == module.__name__:
                for world in program.worlds:
                    yield pytest.param(program, world, id=f"{module_name}.{program.name}-{world}")


class Team:
    """Processes that run programs together."""

    def __init__(self, folder, env=None):
        from torch_programs import worker

        self.keys = itertools.count()
        self.group = procs_module.Group()
        self.ranks = [self.group.start(worker.serve, rank, str(folder / "store"), env=env) for rank in range(RANKS)]

    def run(self, program, backend, world):
        """Return each rank's result."""
        members = self.ranks[:world]
        key = next(self.keys)
        for member in members:
            module = program.module.removeprefix("torch_programs.")
            member.send((f"{module}.{program.name}", backend, world, key))
        answers = [member.recv(timeout=START_TIMEOUT_S if key == 0 else PROGRAM_TIMEOUT_S) for member in members]
        failures = [f"rank {rank}: {reply}" for rank, (how, reply) in enumerate(answers) if how == "failed"]
        assert not failures, f"{program.name} on {world} ranks of {backend}\n" + "\n".join(failures)
        return [result for _, result in answers]

    def close(self):
        self.group.close()


class Teams:
    """Return the current team, or a new one after a failure: ranks may have exited, or still wait
    for others."""

    def __init__(self, make):
        self.make = make
        self.current = None

    def __enter__(self):
        self.current = self.current or self.make()
        return self.current

    def __exit__(self, failure, *_rest):
        if failure:
            self.close()

    def close(self):
        if self.current:
            self.current.close()
        self.current = None


def check_alike(torch_result, dldist_result, tolerance, where="result"):
    assert type(torch_result) is type(dldist_result), where
    if isinstance(torch_result, np.ndarray):
        assert torch_result.dtype == dldist_result.dtype and torch_result.shape == dldist_result.shape, where
        check_arrays(torch_result, dldist_result, tolerance, where)
    elif isinstance(torch_result, dict):
        assert torch_result.keys() == dldist_result.keys(), where
        for key in torch_result:
            check_alike(torch_result[key], dldist_result[key], tolerance, f"{where}[{key!r}]")
    elif isinstance(torch_result, list):
        assert len(torch_result) == len(dldist_result), where
        for index, (their, our) in enumerate(zip(torch_result, dldist_result, strict=True)):
            check_alike(their, our, tolerance, f"{where}[{index}]")
    elif isinstance(torch_result, float):
        check_arrays(np.array(torch_result), np.array(dldist_result), tolerance, where)
    else:
        assert torch_result == dldist_result, where


def check_arrays(torch_result, dldist_result, tolerance, where):
    if tolerance == EXACT or torch_result.dtype.kind in "biu":
        np.testing.assert_array_equal(dldist_result, torch_result, err_msg=where)
    elif torch_result.size:
        np.testing.assert_allclose(
            dldist_result, torch_result, rtol=0, atol=tolerance * max(np.abs(torch_result).max(), 1e-3), err_msg=where
        )


@pytest.fixture(scope="module", params=CHOSEN_WAYS)
def backend_and_teams(request, tmp_path_factory):
    backend, env = WAYS[request.param]
    teams = Teams(lambda: Team(tmp_path_factory.mktemp("torch-programs"), env))
    yield backend, teams
    teams.close()


@pytest.mark.parametrize("program, world", list(cases()))
def test_torch_programs_give_the_same_results_as_with_gloo(backend_and_teams, program, world):
    backend, teams = backend_and_teams
    with teams as team:
        torch_result = team.run(program, "gloo", world)
        dldist_result = team.run(program, backend, world)
    tolerance = EXACT if world == 2 else program.tolerance
    for rank in range(world):
        check_alike(torch_result[rank], dldist_result[rank], tolerance, f"rank {rank}")


TORCHRUN_PROGRAM = """
import os, torch, torch.distributed as dist
import dldist.torch
dist.init_process_group("dldist")
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
total = torch.tensor([dist.get_rank() + 1])
dist.all_reduce(total)
if attempt == 0 and dist.get_rank() == 1:
    os._exit(3)  # torchrun starts both ranks again
line = f"attempt {attempt}: rank {dist.get_rank()} of {dist.get_world_size()} has {total.item()}\\n"
os.write(1, line.encode())  # in one piece: ranks share the pipe
dist.barrier()
dist.destroy_process_group()
"""


def test_torch_programs_work_under_torchrun_after_a_restart(tmp_path):
    """env:// must work with the stores of torch's agent, also in a second attempt after a crash."""
    program = tmp_path / "program.py"
    program.write_text(TORCHRUN_PROGRAM)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"]
    command += ["--nproc-per-node=2", "--max-restarts=1", "--monitor-interval=0.1", str(program)]
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    ran = subprocess.run(command, capture_output=True, text=True, timeout=90, env=environment, check=False)
    assert ran.returncode == 0, ran.stderr
    assert sorted(line for line in ran.stdout.splitlines() if line.startswith("attempt 1")) == [
        f"attempt 1: rank {rank} of 2 has 3" for rank in range(2)
    ]
