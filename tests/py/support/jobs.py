"""Jobs of several ranks, started as users start them, and their output."""

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time

import dldist
import pytest
from ports import LOOPBACK, reserve_port

STARTERS = ["dlrun", "torchrun", "mpirun", "by hand"]

AT = """
import time
def at():
    with open({path!r}, "w") as file:
        file.write(str(time.time()))
"""


class Job:
    """A job that has ended: the exit codes of its processes, its lines, and the seconds since its
    program called at()."""

    def __init__(self, codes, text, seconds):
        self.codes, self.text, self.seconds = codes, text, seconds
        self.lines = [line for line in text.splitlines() if line.strip()]


def run(starter, size, text, folder, *, limit_s=60):
    """Run a program in `size` processes until all have ended. The program calls at() when it is
    about to fail. Skip the test if the starter is not installed."""
    if starter == "torchrun" and importlib.util.find_spec("torch") is None:
        pytest.skip("PyTorch is not installed")
    if starter == "mpirun" and shutil.which("mpirun.openmpi") is None:
        pytest.skip("no Open MPI is installed: apt-get install openmpi-bin")
    program, moment = folder / "program.py", folder / "moment"
    program.write_text(AT.format(path=str(moment)) + text)
    with open(folder / "output", "wb") as output:
        processes = [
            subprocess.Popen(
                command, env=_variables(folder) | extra, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                start_new_session=True,
            )
            for command, extra in _commands(starter, size, str(program))
        ]  # fmt: skip
        try:
            deadline = time.monotonic() + limit_s
            codes = [process.wait(max(deadline - time.monotonic(), 0.0)) for process in processes]
            ended = time.time()
        except subprocess.TimeoutExpired:
            pytest.fail(f"the job still runs after {limit_s} s:\n{(folder / 'output').read_text(errors='replace')}")
        finally:
            for process in processes:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
    seconds = ended - float(moment.read_text()) if moment.exists() else None
    return Job(codes, (folder / "output").read_text(errors="replace"), seconds)


def _commands(starter, size, program):
    """Return the commands of a job, each with its additional variables."""
    if starter == "dlrun":
        return [([sys.executable, "-m", "dldist.run", "-n", str(size), program], {})]
    if starter == "torchrun":
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(size), program]
        return [(command, {"OMP_NUM_THREADS": "1"})]
    if starter == "mpirun":
        options = ["--oversubscribe", *(["--allow-run-as-root"] if os.geteuid() == 0 else [])]
        return [(["mpirun.openmpi", *options, "-n", str(size), sys.executable, program], {})]
    variables = {"MASTER_ADDR": LOOPBACK, "MASTER_PORT": str(reserve_port()), "WORLD_SIZE": str(size)}
    return [([sys.executable, program], variables | {"RANK": str(rank)}) for rank in range(size)]


def _variables(folder):
    paths = [os.path.dirname(os.path.dirname(dldist.__file__)), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "TMPDIR": str(folder)}
