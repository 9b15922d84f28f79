"""The library that JAX loads as its MPI, called without JAX: its properties and the calls it
refuses (test_jax.py uses JAX)."""

import os
import subprocess
import sys

PROGRAM = """
import ctypes

import dldist.jax

library = ctypes.PyDLL(dldist.jax.library())


def ask(name, count=1):
    numbers = [ctypes.c_int(-1) for _ in range(count)]
    assert getattr(library, "MPIABI_" + name)(*map(ctypes.byref, numbers)) == 0, name
    return [number.value for number in numbers] if count > 1 else numbers[0].value


assert (ask("Initialized"), ask("Finalized")) == (0, 0)
assert ask("Get_version", 2) == [3, 1]
assert ask("Is_thread_main") == 1
assert ask("Query_thread") == ctypes.c_long.in_dll(library, "MPIABI_THREAD_MULTIPLE").value == 3
assert [getattr(library, f"MPIXABI_Query_{device}_support")() for device in ("cuda", "hip", "ze")] == [0, 0, 0]
text = ctypes.create_string_buffer(1024)
nbytes = ctypes.c_int()
assert library.MPIABI_Get_library_version(text, ctypes.byref(nbytes)) == 0
assert text.value == b"dldist's groups, as MPI for XLA" and nbytes.value == len(text.value)
library.mpiwrapper_export_fortran_constants_()

world = ctypes.c_void_p(ctypes.c_long.in_dll(library, "MPIABI_COMM_WORLD").value)
failure = ctypes.c_long.in_dll(library, "MPIABI_ERR_OTHER").value
number = ctypes.c_int(-1)
assert library.MPIABI_Comm_size(world, ctypes.byref(number)) == failure and number.value == -1
assert library.MPIABI_Win_create() == failure

assert library.MPIABI_Init(None, None) == 0 and ask("Initialized") == 1
assert library.MPIABI_Comm_size(world, ctypes.byref(number)) == 0 and number.value == 1
assert library.MPIABI_Finalize() == 0 and ask("Finalized") == 1
print("well")
"""


def test_mpi_library_of_dldist_rejects_unsupported_calls():
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=os.environ, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "well\n", done.stderr
    assert "dldist.jax: MPI_Comm_size: MPI is not initialized\n" in done.stderr
    assert "dldist.jax: MPI_Win_create: not supported: dldist has only the functions of MPI that XLA calls\n" in done.stderr
