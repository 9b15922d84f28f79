"""JAX programs in which a process fails: the others get the reason, and the job ends."""

import os
import re
import subprocess
import sys

import dldist.jax
import jobs
import pytest

pytest.importorskip("jax", reason="JAX is not installed")

SLOWEST_END_S = 30
"""The limit for the end of a job on a loaded machine. JAX's own timeouts are five minutes."""

pytestmark = pytest.mark.deadline(150)

PROGRAM = """
import dldist.jax
dldist.jax.initialize()
import sys
import jax, jax.numpy as jnp
from jax.experimental import multihost_utils
multihost_utils.process_allgather(jnp.ones(2))
if jax.process_index() == {rank}:
    at()
    {failure}
{call}
"""

GATHER = "multihost_utils.process_allgather(jnp.ones(2))"
RAISE = 'raise ValueError("loss is nan")'

# A functional form leaves an ordered effect, whose error JAX would print at exit.
IN_JIT = """
import dldist.functional as F
dldist.init_process_group()
jax.jit(lambda x: F.all_reduce(x))(jnp.ones(2))
if jax.process_index() == 1:
    at()
    raise ValueError("loss is nan")
print(jax.jit(lambda x: F.all_reduce(x))(jnp.ones(2)))
"""


def run(starter, size, folder, rank=1, failure=RAISE, call=GATHER):
    job = jobs.run(starter, size, PROGRAM.format(rank=rank, failure=failure, call=call), folder, limit_s=120)
    assert job.seconds < SLOWEST_END_S, job.text
    assert any(job.codes), job.text
    return job


def check_others(job, size, rank=1, reason="ValueError: loss is nan"):
    aborted = rf"(?:the group has failed before: )?rank {rank} \(.*pid \d+\) aborted the group: {reason}$"
    found = re.findall(rf"all_gather .*\(rank (\d+) of {size}\): {aborted}", job.text, re.M)
    assert set(found) == {str(other) for other in range(size) if other != rank}, job.text


def check_blame(job, rank=1, reason="ValueError: loss is nan", end="exit code 1"):
    assert f"dlrun: rank {rank} failed first: {end} " in job.text, job.text
    assert job.lines[-1] == reason, job.text


@pytest.mark.parametrize(("size", "rank"), [(2, 0), (2, 1), (4, 0), (4, 1)])
def test_uncaught_exception_ends_a_jax_job_of_dlrun(tmp_path, size, rank):
    job = run("dlrun", size, tmp_path, rank)
    check_others(job, size, rank)
    check_blame(job, rank)


@pytest.mark.parametrize("starter", ["torchrun", "mpirun", "by hand"])
def test_uncaught_exception_ends_a_jax_job_without_a_launcher(tmp_path, starter):
    job = run(starter, 2, tmp_path)
    assert "ValueError: loss is nan" in job.lines
    if starter == "by hand":  # torchrun and mpirun may kill the others before they print
        check_others(job, 2)


def test_exit_with_a_failure_ends_a_jax_job(tmp_path):
    job = run("dlrun", 2, tmp_path, failure="sys.exit('no data')")
    check_others(job, 2, reason="SystemExit: no data")
    check_blame(job, reason="no data")


def test_exception_is_printed_last_even_after_compiled_functional_calls(tmp_path):
    job = run("dlrun", 2, tmp_path, rank=None, call=IN_JIT)
    check_blame(job)


def test_exception_before_the_first_use_of_a_device_ends_a_jax_job(tmp_path):
    text = "import dldist.jax\ndldist.jax.initialize()\nimport jax\nif jax.process_index() == 1:\n    at()\n    1 / 0\njax.devices()\n"
    job = jobs.run("dlrun", 2, text, tmp_path, limit_s=120)
    assert job.seconds < SLOWEST_END_S
    check_blame(job, reason="ZeroDivisionError: division by zero")


def test_sigterm_ends_jax_processes(tmp_path):
    """JAX's preemption service, which catches SIGTERM, must be off unless the program wants it."""
    job = run("dlrun", 3, tmp_path, failure="import os; os._exit(3)", call=f"try:\n    {GATHER}\nexcept Exception:\n    time.sleep(100)")
    assert "waiting for rank" not in job.text and "lost rank 1" not in job.lines[-1]
    assert "dlrun: rank 1 failed first: exit code 3" in job.text


SPAWNS = """
import dldist, dldist.jax
dldist.jax.install()
import jax.numpy as jnp
from jax.experimental import multihost_utils

def total(rank, fails):
    dldist.jax.initialize()
    multihost_utils.process_allgather(jnp.ones(1))
    if fails and rank == 1:
        at()
        raise ValueError("loss is nan")
    return float(multihost_utils.process_allgather(jnp.full(1, 5.0 + rank)).sum())

if __name__ == "__main__":
    print(dldist.spawn(total, (False,), nprocs=2))
    dldist.spawn(total, (True,), nprocs=2)
"""


def test_spawn_runs_a_script_that_imports_jax(tmp_path):
    job = jobs.run("by hand", 1, SPAWNS, tmp_path, limit_s=120)
    assert job.lines[0] == "[11.0, 11.0]"
    assert job.codes == [1] and job.lines[-1] == "ValueError: loss is nan" and job.seconds < SLOWEST_END_S


def test_preemption_service_of_jax_is_off_unless_chosen(monkeypatch):
    name = "JAX_ENABLE_PREEMPTION_SERVICE"
    monkeypatch.delenv(name, raising=False)
    assert dldist.jax.environment()[name] == "0"
    monkeypatch.setenv(name, "1")
    assert dldist.jax.environment()[name] == "1"


@pytest.mark.parametrize(("chosen", "count"), [(None, 1), ("0", 0), ("1", 0)])
def test_warning_is_given_if_jax_was_imported_with_its_preemption_service(chosen, count):
    variables = {**os.environ, **dldist.jax.environment(), "PYTHONPATH": os.path.dirname(os.path.dirname(dldist.__file__))}
    del variables["JAX_ENABLE_PREEMPTION_SERVICE"]
    if chosen is not None:
        variables["JAX_ENABLE_PREEMPTION_SERVICE"] = chosen
    text = "import jax, dldist.jax; dldist.jax.install(); dldist.jax.install()"
    ended = subprocess.run([sys.executable, "-c", text], env=variables, capture_output=True, text=True, check=True, timeout=100)
    assert ended.stderr.count("RuntimeWarning: dldist.jax.install(): SIGTERM will not end this process") == count
