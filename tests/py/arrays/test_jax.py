"""JAX's collectives on dldist (dldist.jax): an unmodified JAX, in several processes."""

import importlib.util
import os
import re
import subprocess
import sys
import time

import dldist
import pytest
from paths import ROOT
from ports import LOOPBACK, reserve_port

pytest.importorskip("jax", reason="JAX is not installed")

import dldist.jax  # noqa: E402
import jax_workers as workers  # noqa: E402
import procs  # noqa: E402
from dldist._base import jax_internals  # noqa: E402

LIMIT_S = 60

pytestmark = pytest.mark.deadline(2 * LIMIT_S)


def start(children, worker, size, *args):
    address = f"{LOOPBACK}:{reserve_port()}"
    return [children.start(worker, address, rank, size, *args) for rank in range(size)]


class Program:
    def __init__(self, size):
        self.children = procs.Group()
        self.ranks = start(self.children, workers.member, size)
        assert [child.recv(LIMIT_S) for child in self.ranks] == [list(range(size))] * size

    def run(self, case):
        for child in self.ranks:
            child.send(case.__name__)
        replies = [child.recv(LIMIT_S) for child in self.ranks]
        assert all(kind == "result" for kind, _ in replies), "\n".join(text for kind, text in replies if kind == "error")
        return [reply for _, reply in replies]


@pytest.fixture(scope="module", params=[2, 4])
def program(request):
    made = Program(request.param)
    yield made
    made.children.close()


@pytest.fixture
def children():
    made = procs.Group()
    yield made
    made.close()


def test_jax_collectives_are_correct_for_every_dtype_and_reduction(program):
    assert program.run(workers.dtypes_and_reductions) == [{}] * len(program.ranks)


def test_jax_collectives_are_correct_for_arrays_of_every_size(program):
    for counts in program.run(workers.sizes):
        assert set(counts.values()) == {0}


def test_sums_along_axes_of_a_jax_mesh_are_correct(program):
    if len(program.ranks) != 4:
        pytest.skip("a mesh of 2 by 2 is for 4 processes")
    replies = program.run(workers.axes_of_a_mesh)
    assert replies == [[11, 101, 1111], [11, 1010, 1111], [1100, 101, 1111], [1100, 1010, 1111]]


def test_jax_collectives_work_in_loops_and_branches(program):
    if len(program.ranks) != 4:
        pytest.skip("a mesh of 2 by 2 is for 4 processes")
    assert program.run(workers.loops_and_branches) == [[2222.0]] * 4


def test_repeated_scatters_of_jax_arrays_are_correct(program):
    """Results must always be right. With Gloo some are sometimes wrong (jax-ml/jax issue 40830)."""
    assert program.run(workers.scatters) == [0] * len(program.ranks)


def test_flight_recorder_has_the_collectives_of_xla(program):
    size = len(program.ranks)
    one, all_of_them, part = [[4 * size]], [[4 * size * size]], [[4]]
    for found in program.run(workers.recorded):
        assert found[:3] == [
            ("all_reduce", one, one),
            ("all_gather_single", one, all_of_them),
            ("reduce_scatter_single", one, part),
        ]
        assert [name.partition(" ")[0] for name, *_ in found[3:]] in (["send", "recv"], ["recv", "send"])


@pytest.mark.parametrize("size", [2, 3])
def test_killed_process_of_a_jax_job_is_named(children, size):
    ranks = start(children, workers.member, size)
    for child in ranks:
        child.recv(LIMIT_S)
    for child in ranks:
        child.send("sum_once")
    assert [child.recv(LIMIT_S) for child in ranks] == [("result", [float(size)] * 4)] * size
    for child in ranks:
        child.send("sum_until_it_fails")
    time.sleep(0.3)
    killed = time.monotonic()
    ranks[1].kill()
    for child in (ranks[0], *ranks[2:]):
        kind, (text, came) = child.recv(LIMIT_S)
        assert kind == "result"
        assert re.search(rf"rank 1 \(.*pid {ranks[1].pid}\)", text), text
        assert came - killed < procs.under_load(2)


def test_missing_process_of_a_jax_job_is_named(children):
    ranks = start(children, workers.sum_without_rank_1, 3)
    for child in (ranks[0], ranks[2]):
        text = child.recv(LIMIT_S)
        wanted = rf"timed out after 1(\.\d+)? s; rank 1 has not arrived; 1 \(.*pid {ranks[1].pid}\) is done with #1 all_reduce"
        assert re.search(wanted, text), text
    for child in ranks:
        child.send(None)


def test_jax_process_may_have_several_devices(children):
    ranks = start(children, workers.sums_of_several_devices, 2)
    for rank, child in enumerate(ranks):
        own = [[11, 101, 1111], [11, 1010, 1111]] if rank == 0 else [[1100, 101, 1111], [1100, 1010, 1111]]
        assert child.recv(LIMIT_S) == own * 20
    for child in ranks:
        child.send(None)


def test_jax_programs_may_run_on_some_of_the_processes(children):
    ranks = start(children, workers.sum_of_some_processes, 4)
    assert [child.recv(LIMIT_S) for child in ranks] == [[11, 1101, 1111], [11, 1111], [1101, 1111], [1101, 1111]]
    for child in ranks:
        child.send(None)


def test_later_jax_programs_are_correct_after_a_process_skipped_some(children):
    ranks = start(children, workers.sum_after_others, 3)
    assert [child.recv(LIMIT_S) for child in ranks] == [[3.0] * 4] * 3
    for child in ranks:
        child.send(None)


def test_jax_collectives_raise_the_reason_if_dldist_could_not_start(children):
    ranks = start(children, workers.sum_without_a_store, 2)
    for child in ranks:
        assert re.search("dldist.jax could not begin: .*DistStoreError: no port is free", child.recv(LIMIT_S))
    for child in ranks:
        child.send(None)


# ---- start


def run_program(text, *arguments, environment=None):
    command = [sys.executable, *arguments, "-c", text] if not arguments else [sys.executable, *arguments]
    where = {"PYTHONPATH": os.path.dirname(os.path.dirname(dldist.__file__))}
    done = subprocess.run(command, env={**os.environ, **where, **(environment or {})}, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_mpi_library_of_dldist_has_all_symbols_that_jaxlib_looks_up():
    found = importlib.util.find_spec("jaxlib").submodule_search_locations[0]
    with open(os.path.join(found, "libjax_common.so"), "rb") as file:
        wanted = set(re.findall(rb"\0(MPIX?ABI_\w+)(?=\0)", file.read()))
    shown = subprocess.run(["nm", "-D", "--defined-only", dldist.jax.library()], capture_output=True, check=True).stdout
    assert len(wanted) > 600
    assert wanted <= {line.split()[-1] for line in shown.splitlines()}


def test_single_jax_process_needs_no_initialize():
    text = "import jax; print(jax.numpy.ones(3).sum(), jax.process_count())"
    assert run_program(text, environment=dldist.jax.environment()) == "3.0 1\n"
    text = "import dldist.jax; dldist.jax.initialize(); import jax; print(jax.numpy.ones(3).sum(), jax.process_count())"
    assert run_program(text) == "3.0 1\n"


def test_installing_dldist_after_jax_has_made_its_backends_is_rejected():
    text = """
import dldist.jax, jax
try:
    dldist.jax.install()
except RuntimeError as error:
    print(error)
"""
    assert "call dldist.jax.install() above `import jax`" in run_program(text)
    assert run_program("import dldist.jax; dldist.jax.install(); import jax; dldist.jax.install(); print('fine')") == "fine\n"


def test_library_without_the_python_package_is_an_error(tmp_path):
    """Without dldist in Python there must be an error: only the library is found, by its path."""
    (tmp_path / "dldist.py").write_text("")
    environment = {**os.environ, **dldist.jax.environment(), "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-c", f"import jax; jax.distributed.initialize('{LOOPBACK}:{reserve_port()}', 1, 0); jax.devices()"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 1
    assert "ModuleNotFoundError" in done.stderr and "dldist.jax cannot be imported by the Python that has MPITRAMPOLINE_LIB" in done.stderr


def test_env_option_prints_export_commands_for_a_shell():
    lines = run_program(None, "-m", "dldist.jax", "--env").splitlines()
    assert lines == [f"export {name}={value}" for name, value in dldist.jax.environment().items()]


def test_initialize_works_under_dlrun(tmp_path):
    program = tmp_path / "program.py"
    program.write_text("""
import dldist.jax
dldist.jax.initialize()
import jax, numpy
from jax.experimental import multihost_utils
print(multihost_utils.process_allgather(numpy.array([jax.process_index() + 1])).ravel().tolist())
jax.distributed.shutdown()
""")
    assert run_program(None, "-m", "dldist.run", "-n", "2", str(program)).count("[1, 2]") == 2


@pytest.mark.parametrize("name", jax_internals.MODULES)
def test_private_names_of_jax_are_present(name):
    assert jax_internals.find(name) is not None


def test_missing_private_name_of_jax_is_an_error_with_the_version(monkeypatch):
    monkeypatch.setitem(jax_internals.MODULES, "a_token", ("jax.ffi", "jax.no_such_module"))
    with pytest.raises(ImportError, match=r"JAX \d.* is unsupported: it lacks jax.ffi.a_token or jax.no_such_module.a_token"):
        jax_internals.find("a_token")


def test_structures_of_the_xla_interface_match_those_of_jaxlib(tmp_path):
    """The sizes and offsets of csrc/xla/ffi_api.h must match the header of jaxlib."""
    headers = os.path.join(importlib.util.find_spec("jaxlib").submodule_search_locations[0], "include")
    with open(os.path.join(headers, "xla", "ffi", "api", "c_api.h"), encoding="utf-8") as file:
        has_renamed_base = "XLA_FFI_InternalExtension" in file.read()  # since 0.12
    extension = "XLA_FFI_InternalExtension" if has_renamed_base else "XLA_FFI_Extension_Base"
    fields = {
        ("dd_ffi_frame", "XLA_FFI_CallFrame"): ["api", "stage", "args", ("results", "rets"), ("attributes", "attrs")],
        ("dd_ffi_buffers", "XLA_FFI_Args"): ["size", "types", ("values", "args")],
        ("dd_ffi_buffers", "XLA_FFI_Rets"): ["size", "types", ("values", "rets")],
        ("dd_ffi_buffer", "XLA_FFI_Buffer"): ["dtype", "data", "rank", "dims"],
        ("dd_ffi_attributes", "XLA_FFI_Attrs"): ["size", "types", "names", ("values", "attrs")],
        ("dd_ffi_scalar", "XLA_FFI_Scalar"): ["dtype", "value"],
        ("dd_ffi_extension", extension): ["struct_size", "type", "next"],
        ("dd_ffi_metadata_extension", "XLA_FFI_Metadata_Extension"): [("base", "extension_base"), "metadata"],
        ("dd_ffi_metadata", "XLA_FFI_Metadata"): [("version", "api_version"), "traits"],
        ("dd_ffi_version", "XLA_FFI_Api_Version"): [("extensions", "extension_start"), ("major", "major_version"), ("minor", "minor_version")],
        ("dd_ffi_error_args", "XLA_FFI_Error_Create_Args"): ["struct_size", "message", ("code", "errc")],
        ("dd_ffi_api", "XLA_FFI_Api"): [("create_error", "XLA_FFI_Error_Create")],
    }
    lines = ['#include "xla/ffi_api.h"', '#include "xla/ffi/api/c_api.h"']
    for (dldist_name, xla_name), names in fields.items():
        for name in names:
            a, b = (name, name) if isinstance(name, str) else name
            lines.append(f'_Static_assert(offsetof({dldist_name}, {a}) == offsetof({xla_name}, {b}), "{xla_name}.{b}");')
    for dldist_name, xla_name in (("dd_ffi_error_args", "XLA_FFI_Error_Create_Args"), ("dd_ffi_buffer", "XLA_FFI_Buffer")):
        lines.append(f'_Static_assert(sizeof({dldist_name}) == sizeof({xla_name}), "{xla_name}");')
    for dldist_name, xla_name in (
        ("DD_FFI_STAGE_EXECUTE", "XLA_FFI_ExecutionStage_EXECUTE"),
        ("DD_FFI_EXTENSION_METADATA", "XLA_FFI_Extension_Metadata"),
        ("DD_FFI_ATTRIBUTE_SCALAR", "XLA_FFI_AttrType_SCALAR"),
        ("DD_FFI_MAJOR", "XLA_FFI_API_MAJOR"),
    ):
        lines.append(f'_Static_assert({dldist_name} == {xla_name}, "{xla_name}");')
    source = tmp_path / "layout.c"
    source.write_text("\n".join(lines))
    csrc = ROOT / "csrc"
    done = subprocess.run(["cc", "-fsyntax-only", f"-I{csrc}", f"-I{headers}", str(source)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


WITH_A_CACHE = """
import dldist as dist
import dldist.functional as F
import dldist.jax

dldist.jax.initialize()
import jax, numpy
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

hits = []
jax.monitoring.register_event_listener(lambda event, **_: hits.append(event) if "cache_hits" in event else None)
mesh = Mesh(numpy.array(jax.devices()), ("x",))
x = jax.make_array_from_process_local_data(NamedSharding(mesh, P("x")), numpy.full((1, 4), jax.process_index() + 1.0))
total = jax.jit(jax.shard_map(lambda x: jax.lax.psum(x, "x"), mesh=mesh, in_specs=P("x"), out_specs=P()))
found = total(x).addressable_data(0).ravel().tolist()
dist.init_process_group()
found += jax.jit(lambda x: F.all_reduce(x, "max") * 2)(numpy.full(2, dist.get_rank() + 1.0)).tolist()
F.barrier()
dist.destroy_process_group()
print(dist.__name__, found, "-" if jax.process_index() else len(hits), flush=True)
jax.distributed.shutdown()
"""


def test_compilation_cache_of_jax_is_used_again_by_the_next_job(tmp_path):
    """Rank 0 must write the cache, and find every entry again."""
    program = tmp_path / "program.py"
    program.write_text(WITH_A_CACHE)
    cache = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache"), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    cache["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
    first, second = (run_program(None, "-m", "dldist.run", "-n", "2", str(program), environment=cache) for _ in range(2))
    assert first.count("dldist [3.0, 3.0, 3.0, 3.0, 4.0, 4.0]") == second.count("dldist [3.0, 3.0, 3.0, 3.0, 4.0, 4.0]") == 2
    assert "4.0, 4.0] 0" in first
    assert max(map(int, re.findall(r"4\.0, 4\.0\] (\d+)", second))) >= 2
