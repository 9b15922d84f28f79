"""Children that mpirun starts. Like procs.py's children, each has a connection to the parent.

The libraries come from the system and from the folders (virtual environments) in DLDIST_TEST_MPI,
which scripts/test_engines.sh makes from wheels.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from multiprocessing.connection import Client, Listener

import procs

START_TIMEOUT_S = 60.0
OPEN_MPI_OPTIONS = ("--allow-run-as-root", "--oversubscribe")


class Mpi:
    """A library and its mpirun."""

    carrier = "mpi"

    def __init__(self, name, mpirun, library="", environment=None, options=()):
        self.name = name
        self.mpirun = mpirun
        self.library = library
        self.environment = environment or {}
        self.options = options or (OPEN_MPI_OPTIONS if "openmpi" in name else ())

    def command(self, size):
        return [self.mpirun, *self.options, "-n", str(size)]

    def chosen(self):
        """Return the variables that select this library."""
        return {**self.environment, **({"DLDIST_MPI_LIBRARY": self.library} if self.library else {})}

    def variables(self, env=None):
        return {**os.environ, "PYTHONFAULTHANDLER": "1", **self.chosen(), **(env or {})}


def of_wheel(folder):
    """Return the libraries in a virtual environment, as if activated: the standard ABI, and Open
    MPI's or Intel's own ABI."""
    name = os.path.basename(folder.rstrip("/"))
    lib, bin_ = os.path.join(folder, "lib"), os.path.join(folder, "bin")
    is_intels = os.path.exists(os.path.join(lib, "libmpi_ilp64.so.4"))
    files = ("libmpi_abi.so.1", "libmpi.so.40", *(["libmpi.so.12"] if is_intels else []))
    environment = {"PATH": f"{bin_}:{os.environ['PATH']}", "LD_LIBRARY_PATH": lib, "I_MPI_ROOT": folder}
    return [
        Mpi(f"{name}-{file}", os.path.join(bin_, "mpirun"), path, environment)
        for file in files
        if os.path.exists(path := os.path.join(lib, file))
    ]


def find():
    """Return all installed libraries."""
    system = [Mpi(name, path) for name, path in (("openmpi", shutil.which("mpirun.openmpi")), ("mpich", shutil.which("mpirun.mpich"))) if path]
    folders = [folder for folder in os.environ.get("DLDIST_TEST_MPI", "").split(":") if folder]
    return system + [library for folder in folders for library in of_wheel(folder)]


class MpiChild(procs.Child):
    """One of the processes of an mpirun."""

    def __init__(self, run, connection, name):
        self.name = name
        self.process = run.process
        self.stderr_file = run.stderr_file
        self.connection = connection

    def close(self):
        self.connection.close()


class Run:
    """An mpirun with its children. procs.Group counts it as one child."""

    def __init__(self, mpi, size, worker, arguments_of, env=None):
        """Run worker(channel, *arguments_of(rank)) in each of the processes."""
        self.stderr_file = tempfile.TemporaryFile()
        self.children = []
        with Listener(("127.0.0.1", 0), authkey=b"mpirun") as listener:
            listener._listener._socket.settimeout(START_TIMEOUT_S)
            here = os.path.dirname(os.path.abspath(__file__))
            command = [*mpi.command(size), sys.executable, os.path.join(here, "mpirun.py"), str(listener.address[1])]
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stderr=self.stderr_file, env=mpi.variables(env)
            )
            try:
                found = sorted((connection.recv(), connection) for connection in (listener.accept() for _ in range(size)))
            except BaseException as error:
                self.stderr_file.seek(0)
                text = self.stderr_file.read().decode(errors="replace")
                self.close()
                raise AssertionError(f"the processes of {command} did not connect: {error!r}\n{text}") from None
        for rank, connection in found:
            connection.send((worker.__module__, worker.__name__, arguments_of(rank)))
            self.children.append(MpiChild(self, connection, f"{worker.__name__} of rank {rank}"))

    def close(self):
        for child in self.children:
            child.close()
        if self.process.poll() is None:
            self.process.terminate()  # mpirun then ends its processes
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()
        self.stderr_file.close()


def rank_of_mpi():
    return int(next(os.environ[name] for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK") if name in os.environ))


def main(port):
    connection = Client(("127.0.0.1", port), authkey=b"mpirun")
    connection.send(rank_of_mpi())
    procs.serve(connection)


if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    main(int(sys.argv[1]))
