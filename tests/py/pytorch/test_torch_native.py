"""The backend in C++ must be compiled once, stored where only the user can write, and optional."""

import json
import os
import pathlib
import shutil
import stat
import subprocess
import sys

import dldist
import pytest

pytestmark = [pytest.mark.torch, pytest.mark.deadline(120)]

PACKAGES = pathlib.Path(dldist.__file__).parents[1]
STATE = [sys.executable, "-m", "dldist.torch"]


@pytest.fixture(scope="module")
def library():
    """Return the backend in C++, compiled now or earlier."""
    pytest.importorskip("torch.distributed")
    from dldist.torch import _native

    return _native.build()


@pytest.fixture
def environment(tmp_path):
    """Return an environment without compiled backends."""
    pytest.importorskip("torch.distributed")
    return dict(os.environ, PYTHONPATH=str(PACKAGES), XDG_CACHE_HOME=str(tmp_path / "cache"))


def compiler(tmp_path, text):
    """Return a compiler that records each call and then runs this text."""
    script = tmp_path / "compiler"
    script.write_text(f'#!/bin/sh\necho called >> "{tmp_path}/calls"\n{text}\n')
    script.chmod(0o755)
    return str(script)


def calls_of(tmp_path):
    return (tmp_path / "calls").read_text().split()


def run(environment, *arguments, **more):
    return subprocess.run([*STATE, *arguments], env={**environment, **more}, capture_output=True, text=True, timeout=100, check=False)


def test_compiled_torch_backend_is_used_if_it_can_be_built(library):
    done = run(dict(os.environ, PYTHONPATH=str(PACKAGES)))
    assert done.stdout == f'groups of the backend "dldist" are made in C++: {library}\n', done.stderr
    assert stat.S_IMODE(library.parent.stat().st_mode) & 0o022 == 0


FIRST_GROUP = """
import json, sys
import torch.distributed as dist
import _dldist_torch

_dldist_torch.autoload()
store, rank, name = dist.FileStore(sys.argv[1], 2), int(sys.argv[2]), sys.argv[3]
before = set(sys.modules)
dist.init_process_group(name, store=store, rank=rank, world_size=2)
print(json.dumps(sorted(set(sys.modules) - before)))
dist.barrier()
dist.destroy_process_group()
"""
PACKAGE = "import json, sys, dldist; dldist.init_process_group; print(json.dumps(sorted(sys.modules)))"
FIRST_GROUP_MODULES = 15  # besides the modules of module-level calls
NOT_FOR_FIRST_GROUP = {"_backends.nccl", "nccl", *(f"torch._{name}" for name in "cuda dispatcher plain profile work".split())}


@pytest.mark.parametrize("name", ["dldist", "gloo"])
def test_first_torch_group_imports_few_modules(library, name, tmp_path):
    """A process's first group spends its CPU time mostly on imports. Counts, not times: lower the
    limit if possible."""
    environment = dict(os.environ, PYTHONPATH=str(PACKAGES), DLDIST_TORCH_AS_GLOO="1" if name == "gloo" else "0")
    command = [sys.executable, "-c", FIRST_GROUP, str(tmp_path / "store")]
    ranks = [
        subprocess.Popen([*command, str(rank), name], env=environment, stdout=subprocess.PIPE, text=True) for rank in range(2)
    ]
    try:
        outputs = [rank.communicate(timeout=100)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    of_package = set(json.loads(subprocess.check_output([sys.executable, "-c", PACKAGE], env=environment, text=True, timeout=60)))
    for output in outputs:
        imported = json.loads(output)
        assert [module for module in imported if module.partition(".")[0] != "dldist"] == []
        assert not {f"dldist.{module}" for module in NOT_FOR_FIRST_GROUP}.intersection(imported)
        beyond = set(imported) - of_package
        assert len(beyond) <= FIRST_GROUP_MODULES, sorted(beyond)


def test_torch_groups_use_the_python_backend_without_a_compiler(environment):
    done = run(environment, CXX="/nonexistent/c++")
    assert done.returncode == 0 and "are made in Python: no C++ compiler: expected" in done.stdout
    assert "use the slower backend in Python" in done.stderr
    done = run(environment, "--build", CXX="/nonexistent/c++")
    assert done.returncode == 1 and "apt-get install g++" in done.stdout
    done = run(environment, CXX="/nonexistent/c++", DLDIST_TORCH_BACKEND="c++")
    assert done.returncode != 0 and "DLDIST_TORCH_BACKEND=c++: no C++ compiler: expected" in done.stderr


def test_setting_for_the_python_backend_compiles_nothing(environment, tmp_path):
    done = run(environment, CXX=compiler(tmp_path, "exit 1"), DLDIST_TORCH_BACKEND="python")
    assert done.stdout == 'groups of the backend "dldist" are made in Python: DLDIST_TORCH_BACKEND=python\n'
    assert not (tmp_path / "calls").exists() and done.stderr == ""


OLDER_PYTORCH = """
import runpy, sys
import _dldist_torch_names as names

find = names.find
names.find = lambda path: None if path == "torch.distributed.ProcessGroup.split_group" else find(path)
runpy.run_module("dldist.torch", run_name="__main__", alter_sys=True)
"""


def test_older_pytorch_uses_the_python_backend_without_compiling(environment, tmp_path):
    environment["CXX"] = compiler(tmp_path, "exit 1")
    command = [sys.executable, "-c", OLDER_PYTORCH]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert "are made in Python: PyTorch" in done.stdout and "expected 2.9 or newer" in done.stdout, done.stderr
    assert len(done.stderr.splitlines()) == 1 and "expected 2.9 or newer" in done.stderr
    assert not (tmp_path / "calls").exists()


def test_failed_compilation_of_the_backend_is_repeated_only_on_request(environment, tmp_path):
    environment["CXX"] = compiler(tmp_path, "echo 'backend.cpp:1: error: no such thing' >&2; exit 1")
    for _ in range(2):
        assert "failed: backend.cpp:1: error: no such thing" in run(environment).stdout
    assert calls_of(tmp_path) == ["called"]
    assert run(environment, "--build").returncode == 1
    assert calls_of(tmp_path) == ["called"] * 2


def test_compiled_backend_that_cannot_be_loaded_is_not_used(environment, tmp_path):
    environment["CXX"] = compiler(tmp_path, 'while [ "$1" != -o ]; do shift; done; echo text > "$2"')
    done = run(environment)
    assert done.returncode == 0 and "are made in Python" in done.stdout and "cannot be loaded" in done.stderr


def test_compiled_backend_that_cannot_be_loaded_is_rebuilt_on_request(environment, tmp_path, library):
    environment["CXX"] = compiler(tmp_path, f'while [ "$1" != -o ]; do shift; done; cp "{library}" "$2"')
    assert run(environment, "--build").returncode == 0
    (kept,) = pathlib.Path(environment["XDG_CACHE_HOME"]).glob("dldist/torch-*/*.so")
    kept.unlink()
    kept.write_text("text")
    assert "cannot be loaded" in run(environment).stdout
    done = run(environment, "--build")
    assert done.returncode == 0 and "are made in C++" in done.stdout, done.stdout
    environment["CXX"] = compiler(tmp_path, 'while [ "$1" != -o ]; do shift; done; echo text > "$2"')
    kept.unlink()
    done = run(environment, "--build")
    assert done.returncode == 1 and "cannot be loaded" in done.stdout


TWO_RANKS = """
import sys, time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
import torch, torch.distributed as dist
from dldist._base import callback_thread
from dldist.torch._groups import create_gloo
store = dist.HashStore()
with ThreadPoolExecutor(2) as pool:
    first, second = pool.map(lambda rank: create_gloo(store, rank, 2, timeout=timedelta(seconds=20)), range(2))

def refused(call):
    try:
        call()
    except RuntimeError as error:
        return str(error)
    raise AssertionError("it did not fail")

def no_thread():
    raise RuntimeError("can't start new thread")
"""

NO_THREAD = """
start, callback_thread.start_completion_thread = callback_thread.start_completion_thread, no_thread
work = first.allreduce([torch.ones(4)])
assert "can't start new thread" in refused(work.get_future)
callback_thread.start_completion_thread = start
assert "can't start new thread" in refused(work.get_future().wait), "the future is there, and has failed"
second.allreduce([torch.ones(4)]).wait()
assert work.wait()
"""

REPEATED_WAIT = """
import dldist
opts = dist.AllreduceOptions()
opts.timeout = timedelta(seconds=0.3)
future = first.allreduce([torch.ones(4)], opts).get_future()
then = future.then(lambda done: done.value())
for _ in range(3):
    for call in (future.wait, future.value, then.wait, lambda: torch.futures.wait_all([future])):
        assert "rank 1 has not arrived" in refused(call)
try:
    future.wait()
except dldist.DistTimeoutError as error:
    assert error.rank == 1
"""

FUTURE_WITH_A_VALUE = """
raised = []
sys.unraisablehook = raised.append
x = torch.ones(4)
work = first.allreduce([x])
work.get_future().set_result([x])
second.allreduce([torch.ones(4)]).wait()
assert work.wait()
deadline = time.monotonic() + 20
while not raised and time.monotonic() < deadline:
    time.sleep(0.01)
assert len(raised) == 1 and raised[0].exc_type is RuntimeError, raised
"""


@pytest.mark.parametrize(
    "case", [NO_THREAD, REPEATED_WAIT, FUTURE_WITH_A_VALUE], ids=["no_thread", "waited_for_again", "a_future_that_has_a_value"]
)
def test_failed_futures_of_the_compiled_backend_do_not_crash_the_process(library, case):
    environment = dict(os.environ, PYTHONPATH=str(PACKAGES), DLDIST_TORCH_BACKEND="c++")
    done = subprocess.run(
        [sys.executable, "-c", TWO_RANKS + case], env=environment, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr


def test_processes_that_start_together_compile_the_backend_once(environment, tmp_path, library):
    environment["CXX"] = compiler(tmp_path, f'while [ "$1" != -o ]; do shift; done; sleep 1; cp "{library}" "$2"')
    started = [subprocess.Popen(STATE, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) for _ in range(3)]
    try:
        printed_outputs = [process.communicate(timeout=100)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    assert len(set(printed_outputs)) == 1 and "are made in C++" in printed_outputs[0]
    assert calls_of(tmp_path) == ["called"]


def test_cache_folder_that_others_can_write_is_not_used(environment, tmp_path, library):
    folder = tmp_path / "cache" / "dldist" / library.parent.name
    folder.mkdir(parents=True)
    shutil.copy(library, folder)
    assert "are made in C++" in run(environment).stdout
    folder.chmod(0o777)
    done = run(environment)
    assert "are made in Python" in done.stdout and "that only this user may write to" in done.stderr


NO_HOME = """
import os, pwd
def unknown(_):
    raise KeyError("no such user")
pwd.getpwuid = unknown
os.environ.pop("HOME", None)
os.environ.pop("XDG_CACHE_HOME", None)
from dldist.torch import _native
print(_native.state())
"""


def state_after(environment, program):
    return subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_torch_groups_use_the_python_backend_if_the_user_has_no_home(environment):
    done = state_after(environment, NO_HOME)
    assert "are made in Python: no folder for the compiled library" in done.stdout, done.stderr


def test_torch_groups_use_the_python_backend_if_the_cache_is_unwritable(environment, library):
    folder = pathlib.Path(environment["XDG_CACHE_HOME"]) / "dldist" / library.parent.name
    # a folder where the lock file would be: permissions do not stop root
    (folder / "lock").mkdir(parents=True)
    done = run(environment)
    assert "are made in Python" in done.stdout and "cannot be used" in done.stdout, done.stderr


NO_LOCKS = """
import errno, fcntl
def flock(*_):
    raise OSError(errno.ENOSYS, "Function not implemented")
fcntl.flock = flock
from dldist.torch import _native
print(_native.state())
"""


def test_backend_is_compiled_even_on_a_file_system_without_locks(environment, tmp_path, library):
    environment["CXX"] = compiler(tmp_path, f'while [ "$1" != -o ]; do shift; done; cp "{library}" "$2"')
    done = state_after(environment, NO_LOCKS)
    assert "are made in C++" in done.stdout, done.stderr


AS_GLOO = """
import json, sys, tempfile
from datetime import timedelta
import torch.distributed as dist
import torch
if sys.argv[1] == "call":
    import dldist.torch
    dldist.torch.install(as_gloo=True)
else:
    import _dldist_torch
    _dldist_torch.autoload()  # as PyTorch does it where dldist is installed
    assert "dldist" not in sys.modules, "only the first group imports it"
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1, timeout=timedelta(seconds=20))
import dldist.torch
group = dist.group.WORLD
backend = group._get_backend(torch.device("cpu"))
assert isinstance(backend, dist.ProcessGroupGloo) and dist.get_backend() == "gloo"
assert backend.options._timeout == timedelta(seconds=20)
x = torch.ones(2)
dist.all_reduce(x)
dist.monitored_barrier(timeout=timedelta(seconds=9))
assert group._get_sequence_number_for_group() >= 1
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
    dist.all_reduce(x)
assert "gloo:all_reduce" in {event.name for event in profiler.events()}
dist.distributed_c10d._set_pg_timeout(timedelta(seconds=7), group)
assert dldist.torch.world_of().timeout == timedelta(seconds=7)
made = dist.ProcessGroupGloo(dist.HashStore(), 0, 1, dist.ProcessGroupGloo._Options())
assert made.allreduce([x]).wait() and isinstance(made, dist.ProcessGroupGloo)
assert dist.ProcessGroupGloo.create_device(interface="lo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
model(torch.ones(1, 2)).sum().backward()
data = model._get_ddp_logging_data()
dist.destroy_process_group()
dldist.torch.install(as_gloo=False)
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
assert type(dist.group.WORLD._get_backend(torch.device("cpu"))) is dist.ProcessGroupGloo
print(json.dumps([data["backend_name"], data.get("gloo_num_threads")]))
"""


@pytest.mark.parametrize("how", ["call", "environment"])
@pytest.mark.parametrize("way", ["c++", "python"])
def test_dldist_can_replace_gloo_in_torch_programs(library, way, how):
    environment = dict(
        os.environ, PYTHONPATH=str(PACKAGES), DLDIST_TORCH_BACKEND=way, DLDIST_TORCH_AS_GLOO="1" if how == "environment" else ""
    )
    done = subprocess.run(
        [sys.executable, "-c", AS_GLOO, how], env=environment, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    # DDP queries a backend in C++ of that name, and only dldist's C++ backend can answer.
    assert json.loads(done.stdout) == (["gloo", 2] if way == "c++" else ["dldist", None])


WRAPPED = """
import torch, torch.distributed as dist
import dldist.torch
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
backend = dist.group.WORLD._get_backend(torch.device("cpu"))
dist.all_reduce(torch.ones(2))
print(type(backend).__name__, dldist.torch.world_of().size)
"""


def test_debug_level_detail_works_with_the_compiled_torch_backend(library):
    environment = dict(os.environ, PYTHONPATH=str(PACKAGES), DLDIST_TORCH_AS_GLOO="1", TORCH_DISTRIBUTED_DEBUG="DETAIL")
    done = subprocess.run([sys.executable, "-c", WRAPPED], env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert done.stdout == "_ProcessGroupWrapper 1\n", done.stderr
