#!/usr/bin/env python3
"""Print docs/environment.md from dldist's table of settings and the lists in this file.

    PYTHONPATH=pkg python tools/environment_page.py > docs/environment.md
"""

from dldist._base import settings

PAGE = """# Environment variables

<!-- Printed by tools/environment_page.py: the tables are those of pkg/dldist/_base/settings.py. -->

A variable that is empty counts as unset. Of several in one row the first that is set counts.

## When a program runs

{program}

The variables for groups are read when a process makes its first group; `DLDIST_ALGORITHM` is read with every group, and
`DLDIST_SECRET` and `DLDIST_ENCRYPTION` also with every `TCPStore`. The Python package reads the environment. The C library reads
nothing from it; it gets what it needs as options.

### torch.distributed's own

{torch}

### The backend of PyTorch

{backend_for_torch}

### Where NCCL is

{libraries}

### Failures, dumps, and NCCL's groups

[watchdog.md](watchdog.md) explains these, with torch.distributed's defaults. They are read when a process makes its first group of
several ranks; those of NCCL, with every NCCL group. `yes`, `no`, `true`, `false` and their first letters mean `1` and `0`, too.

{failures}

Old names, which warn once: {old}.

Accepted, without effect: `TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING`, `TORCH_NCCL_RETHROW_CUDA_ERRORS`, `TORCH_NCCL_LOG_CPP_STACK_ON_UNCLEAN_SHUTDOWN`, `TORCH_NCCL_BCAST_UNIQUEID`, `TORCH_NCCL_AVOID_RECORD_STREAMS`, `TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK`, `NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK`, `TORCH_FR_DUMP_DYNAMIC_FILE_NAME`, `TORCH_FR_CPP_STACK`, `TORCH_NCCL_TRACE_CPP_STACK`.

Other variables of NCCL, and those of Gloo beyond `GLOO_SOCKET_IFNAME`, are not read by dldist.

## Variables of launchers

Launchers describe the job in the environment of the ranks. [Rendezvous](rendezvous.md) describes how dldist uses this, and in
which order it looks for launchers. A malformed value is an error that names the variable.

| variable | meaning |
| --- | --- |
| `RANK`, `WORLD_SIZE` | The number of this rank, and how many there are. |
| `MASTER_ADDR`, `MASTER_PORT` | Where the store is, or where rank 0 is to serve one. They come before what `mpirun` and `srun` say. |
| `LOCAL_RANK`, `LOCAL_WORLD_SIZE` | The same on this host; for `get_node_local_rank`. |
| `GROUP_RANK`, `GROUP_WORLD_SIZE` | The number of this host, and how many agents there are. |
| `TORCHELASTIC_USE_AGENT_STORE` | `True`: the launcher serves the store at `MASTER_ADDR` and `MASTER_PORT`; no rank does. |
| `TORCHELASTIC_RESTART_COUNT` | How often the ranks have been started again. With one agent, those of an attempt meet only each other. |
| `TORCHELASTIC_RUN_ID` | The name of the job. `is_torchelastic_launched()` says whether it is set. |
| `DLDIST_AGENT_STORE` | `host:port` of the launcher's store, from `dlrun` and `spawn`: a program that sets `MASTER_ADDR` and `MASTER_PORT` to something else wants a store of its own there. |
| `DLDIST_MASTER_FD` | The number of a descriptor: a socket that is bound to `MASTER_PORT`, which rank 0 serves its store on. |
| `OMPI_COMM_WORLD_RANK`, `OMPI_COMM_WORLD_SIZE`, `OMPI_COMM_WORLD_LOCAL_RANK`, `OMPI_COMM_WORLD_LOCAL_SIZE` | Open MPI's `mpirun`: ranks. |
| `PMIX_NAMESPACE`, `OMPI_MCA_orte_precondition_transports`, `PMIX_SERVER_URI41`, `PMIX_SERVER_URI4`, `PMIX_SERVER_URI2` | Open MPI: which job. |
| `PMIX_SERVER_TMPDIR` | Open MPI: a directory of the job, where its ranks meet if they are all on one host. |
| `PMI_RANK`, `PMI_SIZE`, `MPI_LOCALRANKID`, `MPI_LOCALNRANKS` | `mpirun` of MPICH and Intel MPI: ranks. |
| `SLURM_STEP_ID`, `SLURM_PROCID`, `SLURM_STEP_NUM_TASKS`, `SLURM_LOCALID`, `SLURM_NODEID`, `SLURM_STEP_TASKS_PER_NODE` | `srun`: ranks. |
| `SLURM_JOB_ID`, `SLURM_JOBID`, `SLURM_RESTART_COUNT` | `srun`: which job; the second is an older name of the first. |
| `SLURM_STEP_NODELIST`, `SLURM_JOB_NODELIST` | `srun`: hosts; rank 0 is taken to be on the first. |
| `CUDA_VISIBLE_DEVICES` | Appears in the logging data of a `Reducer`, as in torch.distributed; dldist does not read it elsewhere. |
| `TMPDIR` | Where ranks of one host meet that a launcher has told nothing better; `/tmp` without it. |

`dlrun` sets the variables of the first eight rows, `DLDIST_SECRET`, `DLDIST_FR_DUMP_FILE` and more
([launcher.md](launcher.md)). `dldist.spawn` sets `DLDIST_SECRET` and those rows, except the name of the job.

## When the tests run

| variable | values | meaning |
| --- | --- | --- |
| `DLDIST_TEST_SLOW` | a factor, default 1 | Stretches the deadlines of the C tests, for slow machines; the sanitizer targets of the Makefile set 3 and 5. |
| `DLDIST_TEST_JOBS` | a number, default 1 | So many C tests run beside each other; the Makefile runs one for each core under sanitizers, two without. |
| `DLDIST_TEST_NOFORK` | any | Runs all C tests in one process, for a debugger. |
| `DLDIST_TEST_AGAIN` | `1` | `scripts/pytest.sh` and `.ci/run` run up to three tests that fail three times more, alone; if they pass each time, they do not count as failed, and `build/unsteady-tests` names them. |
| `DLDIST_TEST_FAIL` | `rank:call:number:errno`, and `:lasting` | `tests/errors/failing.py` runs a program in which that call of the system fails ([failing-calls.md](contributing/failing-calls.md)). |
| `DLDIST_TEST_FAIL_COUNTS` | a file | It writes there how often a rank has made which call. |
| `DLDIST_TEST_CHAOS` | any | Some epochs of the chaos runs (`tests/chaos/`) within pytest; without it they are skipped, and `make chaos` runs them. |
| `DLDIST_TEST_TORCH_WAYS` | `1` | `tests/py/pytorch/test_torch_programs.py` runs each program by the name "dldist" and as "gloo", with groups in C++ and in Python; without it, by name in C++. |
| `DLDIST_TEST_EXAMPLES` | a number | So many examples in each of the tests that are state machines, others every time ([fuzzing.md](contributing/fuzzing.md)); without it a few, always the same. |
| `VENV` | a folder | Where `scripts/test.sh`, `scripts/demo.sh` and `scripts/wheels.sh` make their virtual environment. |

## When the extension is built

`setup.py` reads these; set them for `pip install .` or `make ext`.

| variable | values | meaning |
| --- | --- | --- |
| `DLDIST_WERROR` | `1` | Warnings of the C compiler are errors. Off by default, so that a newer compiler's opinion does not stop an installation. |
| `DLDIST_SANITIZE` | `address` (with undefined behaviour), `thread` | Compiles with these sanitizers. The runtime has to be loaded before Python, for instance `LD_PRELOAD=$(gcc -print-file-name=libasan.so)`, and with `ASAN_OPTIONS=detect_leaks=0`, as the interpreter itself keeps memory at exit. `make test-py-asan` does all of it. |
| `DLDIST_ABI3T` | `1` | With Python 3.15 or later: builds for the stable ABI of free-threaded Pythons, `abi3t`, also if this Python has a GIL ([installing.md](installing.md#free-threaded-pythons)). |
| `DLDIST_DEBUG` | `1` | No optimisation, full debug information. |
| `CXX` | a C++ compiler | Compiles the backend for PyTorch ([torch.md](torch.md#in-c-or-in-python)), when it is first needed; `g++`, `c++` or `clang++` without it. |
| `DLDIST_FAULTS` | `1` | Adds `_core._fail_allocation` and `_core._fail_system_call`, by which tests make allocations and calls of the core fail. |

The Makefile's variables (`CC`, `CLANG`, `PYTHON`, `TESTS`, `FUZZ_SECONDS`) are listed by `make help`."""


def quoted(names):
    return ", ".join(f"`{name}`" for name in names)


def values_of(setting):
    """Return the accepted values, with the default marked; unset may be a state of its own."""
    if setting.default in (None, "", (0, 0)):
        return setting.kind.description
    default = int(setting.default) if isinstance(setting.default, bool) else setting.default
    shown = f"`{default}`"
    if shown in setting.kind.description:
        return setting.kind.description.replace(shown, f"{shown} (default)")
    return f"{setting.kind.description}, default {default}"


def table(head, rows):
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


def table_of(part):
    rows = [(quoted(setting.names), values_of(setting), setting.meaning) for setting in part]
    return table(("variable", "values", "meaning"), rows)


def page():
    every = (*settings.PROGRAM, *settings.TORCH, *settings.BACKEND_FOR_TORCH, *settings.LIBRARIES, *settings.FAILURES)
    return PAGE.format(
        program=table_of(settings.PROGRAM),
        torch=table_of(settings.TORCH),
        backend_for_torch=table_of(settings.BACKEND_FOR_TORCH),
        libraries=table_of(settings.LIBRARIES),
        failures=table_of(settings.FAILURES),
        old=quoted(name for setting in every for name in setting.old),
    )


if __name__ == "__main__":
    print(page())
