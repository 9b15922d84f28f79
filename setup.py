"""Build the extension and write the type stubs. The package's metadata is in pyproject.toml.

Environment variables: DLDIST_WERROR=1 turns warnings into errors. DLDIST_SANITIZE=address|thread
builds with sanitizers. DLDIST_DEBUG=1 disables optimisation. DLDIST_COVERAGE=1 counts executed
lines. DLDIST_FAULTS=1 adds `_core._fail_allocation` and similar functions, with which tests make
allocations and system calls fail. DLDIST_ABI3T=1 builds for the stable ABI of free-threaded Python
with a Python that has a GIL.
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from glob import glob
from itertools import chain

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.errors import CompileError, LinkError
from setuptools.modified import newer_group

# The ABI (csrc/python/base/api.h). Since 3.15, free-threaded Python has a stable ABI, abi3t, which
# also loads in Pythons with a GIL.
IS_FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
IS_ABI3T = sys.version_info >= (3, 15) and (IS_FREE_THREADED or os.environ.get("DLDIST_ABI3T") == "1")
IS_LIMITED_API = IS_ABI3T or not IS_FREE_THREADED
IS_FAILING = os.environ.get("DLDIST_FAULTS") == "1"

compile_args = [
    "-std=gnu11",
    "-D_GNU_SOURCE",
    "-O2",
    "-pthread",
    "-fvisibility=hidden",
    "-fno-semantic-interposition",
    "-ffp-contract=off",
]
link_args = ["-pthread"]

if IS_ABI3T:
    compile_args += ["-DPy_TARGET_ABI3T=0x030F0000"]
if os.environ.get("DLDIST_WERROR") == "1":
    compile_args += (
        "-Werror -Wall -Wextra -Wshadow -Wconversion -Wformat=2 -Wstrict-prototypes -Wmissing-prototypes -Wundef "
        "-Wvla -Wswitch-enum"
    ).split()
if sanitize := os.environ.get("DLDIST_SANITIZE"):
    flags = {"address": "-fsanitize=address,undefined", "thread": "-fsanitize=thread"}[sanitize]
    compile_args += [flags, "-fno-omit-frame-pointer", "-g"]
    link_args += [flags]
    if sanitize == "address":
        compile_args += ["-fno-sanitize-recover=undefined"]
if os.environ.get("DLDIST_COVERAGE") == "1":
    compile_args += ["-O0", "-g", "--coverage"]
    link_args += ["--coverage"]
if IS_FAILING:
    compile_args += ["-DDD_ASSERTS"]
if os.environ.get("DLDIST_DEBUG") == "1":
    compile_args += ["-O0", "-g", "-UNDEBUG"]


# Link-time optimisation makes small collectives faster (docs/installing.md). It takes the linker
# half a minute, so `--inplace`, which builds a checkout after each change, omits it.
IS_FOR_TESTS = any(f"DLDIST_{name}" in os.environ for name in ("SANITIZE", "COVERAGE", "FAULTS", "DEBUG"))
USES_LTO = {"0": False, "1": True}.get(os.environ.get("DLDIST_LTO", ""))


def what_is_missing(compiler):
    """Return what to install before compilation is possible, or None."""
    if shutil.which(compiler) is None:
        return f"no C compiler: there is no {compiler}. Debian, Ubuntu: apt-get install gcc libc6-dev; or set CC"
    headers = sysconfig.get_path("include")
    if not os.path.exists(os.path.join(headers, "Python.h")):
        return f"no Python.h in {headers}. Debian, Ubuntu: apt-get install python3-dev"
    return None


def wants_lto(is_inplace):
    return not IS_FOR_TESTS and (not is_inplace if USES_LTO is None else USES_LTO)


@cache
def find_lto_args(compiler):
    """Return the arguments for link-time optimisation, or none if the linker lacks the compiler's
    plugin."""
    with tempfile.TemporaryDirectory() as folder:
        source = os.path.join(folder, "probe.c")
        with open(source, "w") as file:
            file.write("int dd_probe(void);\nint dd_probe(void) { return 0; }\n")
        for args in (["-O2", "-flto=auto"], ["-O2", "-flto"]):
            try:
                objects = compiler.compile([source], output_dir=folder, extra_postargs=[*args, "-Werror"])
                compiler.link_shared_object(objects, os.path.join(folder, "probe.so"), extra_postargs=args)
            except (CompileError, LinkError):
                continue
            return args
    return []


def wrapped_functions(objects):
    """Return linker arguments that wrap core functions with tests/faults/
    (tests/faults/faults.h)."""
    names = subprocess.run(["nm", *objects], check=True, capture_output=True, text=True).stdout
    return [f"-Wl,--wrap={name}" for name in re.findall(r" T __wrap_(\w+)$", names, re.MULTILINE)]


@cache
def write_stubs():
    """Write the type stubs, once per build. `pip` also runs this file for other purposes."""
    subprocess.run([sys.executable, os.path.join("tools", "make_stubs.py")], check=True)


class build_py_with_stubs(build_py):
    """Writes the stubs before it collects the files of the package."""

    def run(self):
        write_stubs()
        self.__dict__.pop("data_files", None)  # recomputed on the next access
        super().run()


class parallel_build_ext(build_ext):
    """Compiles files in parallel. Also writes the stubs, for `build_ext --inplace` in a
    checkout."""

    def run(self):
        write_stubs()
        self.is_for_checkout = self.inplace  # setuptools clears it during the build
        super().run()

    def get_ext_filename(self, fullname):
        filename = super().get_ext_filename(fullname)
        # setuptools names the file after the building Python.
        return re.sub(r"\.abi3(?!t)", ".abi3t", filename) if IS_ABI3T else filename

    def build_extension(self, ext):
        if missing := what_is_missing(self.compiler.compiler_so[0]):
            raise SystemExit(f"error: dldist is compiled when it is installed, and there is {missing}")
        built = self.get_ext_fullpath(ext.name)
        if not self.force and not newer_group([*ext.sources, *ext.depends], built):
            return

        across_files = find_lto_args(self.compiler) if wants_lto(self.is_for_checkout) else []

        def compile_one(source):
            return self.compiler.compile(
                [source],
                output_dir=self.build_temp,
                include_dirs=ext.include_dirs,
                debug=self.debug,
                extra_postargs=[*ext.extra_compile_args, *across_files],
            )

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = list(chain.from_iterable(pool.map(compile_one, ext.sources)))
        self.compiler.link_shared_object(
            objects,
            built,
            debug=self.debug,
            build_temp=self.build_temp,
            extra_postargs=[*ext.extra_link_args, *across_files, *(wrapped_functions(objects) if IS_FAILING else [])],
        )


class tagged_bdist_wheel(bdist_wheel):
    """Names a wheel after the ABI that it is built for."""

    def get_tag(self):
        python, abi, platform = super().get_tag()
        return python, "abi3.abi3t" if IS_ABI3T else abi, platform


def extension(name, sources):
    return Extension(
        name,
        sources=sorted(sources),
        depends=sorted(glob("csrc/**/*.h", recursive=True) + glob("tests/faults/*.h")),
        include_dirs=["csrc", "tests"] if IS_FAILING else ["csrc"],
        extra_compile_args=compile_args,
        extra_link_args=link_args,
        py_limited_api=IS_LIMITED_API,
    )


trampoline = glob("csrc/trampoline/*.c")
faults = glob("tests/faults/*.c") if IS_FAILING else []
setup(
    ext_modules=[
        extension("dldist._core", {*glob("csrc/**/*.c", recursive=True), *faults} - {*trampoline}),
        extension("dldist.jax._mpi", trampoline),
    ],
    cmdclass={"build_py": build_py_with_stubs, "build_ext": parallel_build_ext, "bdist_wheel": tagged_bdist_wheel},
    options={"bdist_wheel": {"py_limited_api": "cp315" if IS_ABI3T else "cp311"}} if IS_LIMITED_API else {},
)
