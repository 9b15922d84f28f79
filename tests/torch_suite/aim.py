"""Run one file of PyTorch's tests against a chosen implementation.

    python aim.py AIM FILE fork|spawn REPORT_FD CHOICE

AIM selects the implementation:

    gloo      PyTorch's backend; nothing is replaced
    dldist    the backend "dldist" instead of "gloo"
    as-gloo   names are unchanged; dldist replaces the backend "gloo" (DLDIST_TORCH_AS_GLOO=1)
    front     dldist, the package, instead of torch.distributed

With the suffix "+cpu", tests for GPUs run on the CPU. substitution.py describes the replacements in
FILE, in its imports from its folder and in the modules of torch.testing that create groups.
"dldist" also makes the backend torch's default for the CPU. "front" also replaces names in torch's
DDP, its hooks, RPC and similar modules (CALLING).

Tests start their ranks by "spawn", as PyTorch does, or by "fork", which saves each rank the import
of torch. A line of JSON is written to REPORT_FD when a test begins and when it ends. CHOICE is a
JSON file with the arguments of chosen().

run.py starts this program and keeps its reports, even if it crashes. Spawned ranks import this file
again, and so repeat the substitution.
"""

import ast
import importlib.machinery
import importlib.util
import json
import multiprocessing
import os
import sys
import time
import traceback
import unittest
from datetime import timedelta

import substitution

# The modules of the wheel whose default for the CPU is Gloo.
OF_THE_WHEEL = {
    "torch.testing._internal.common_distributed",
    "torch.testing._internal.common_fsdp",
    "torch.testing._internal.distributed._shard.sharded_tensor",
    "torch.testing._internal.distributed._tensor.common_dtensor",
    "torch.testing._internal.distributed.distributed_test",
}
# The modules of the wheel that call torch.distributed. With the aim "front", they call dldist.
CALLING = {
    "torch.distributed.algorithms.ddp_comm_hooks",
    "torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks",
    "torch.distributed.algorithms.ddp_comm_hooks.default_hooks",
    "torch.distributed.algorithms.ddp_comm_hooks.optimizer_overlap_hooks",
    "torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook",
    "torch.distributed.algorithms.ddp_comm_hooks.quantization_hooks",
    "torch.distributed.algorithms.join",
    "torch.distributed.collective_utils",
    "torch.distributed.rpc",
    "torch.distributed.rpc.backend_registry",
    "torch.distributed.utils",
    "torch.nn.parallel.distributed",
    "torch.testing._internal.distributed.multi_threaded_pg",
}
# Names added to the modules with a substitution.
MAKE_GROUP, FRONT, STAND_INS = "_dldist_make_group", "_dldist", "_on_cpu"
# Names in older files that have only been renamed since.
RENAMED = {
    "torch.testing._internal.common_distributed": {"MultiProcContinousTest": "MultiProcContinuousTest"},
    "torch.testing._internal.inductor_utils": {"HAS_CUDA": "HAS_CUDA_AND_TRITON"},
}


def make_group(store, rank, size, options=None, timeout=timedelta(minutes=30)):
    """Create a group; it replaces ProcessGroupGloo(...)."""
    from dldist.torch._groups import create_gloo

    return create_gloo(store, rank, size, options, timeout=timeout)


class Aim:
    """The replacements that AIM makes in a module's source, and the names that it adds to the
    module."""

    def __init__(self, text):
        self.name, _, suffix = text.partition("+")
        self.transformers = []
        self.found = {}
        self.modules = OF_THE_WHEEL
        if suffix == "cpu":
            import on_cpu

            self.transformers.append(substitution.OntoCpu(STAND_INS))
            self.found[STAND_INS] = on_cpu
        if self.name == "dldist":
            self.transformers.append(substitution.Backend("dldist", MAKE_GROUP))
            self.found[MAKE_GROUP] = make_group
        elif self.name == "front":
            import front

            self.transformers.append(substitution.Front(FRONT))
            self.found[FRONT] = front
            self.modules = OF_THE_WHEEL | CALLING

    def prepare(self):
        """Set up the process before the tests are imported."""
        if self.name == "as-gloo":
            os.environ["DLDIST_TORCH_AS_GLOO"] = "1"
        if self.name in ("dldist", "as-gloo"):
            import dldist.torch  # noqa: F401  registers the backend, as the entry point of an installed dldist does
        if self.name == "dldist":
            import torch.distributed

            torch.distributed.Backend.default_device_backend_map["cpu"] = self.name


class Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, name, path, aim):
        super().__init__(name, path)
        self.aim = aim

    def get_code(self, fullname):
        """Bypass the cache of compiled files, which ignores the substitution."""
        path = self.get_filename(fullname)
        tree = ast.parse(self.get_data(path), path)
        for transformer in self.aim.transformers:
            tree = ast.fix_missing_locations(transformer.visit(tree))
        return compile(tree, path, "exec", dont_inherit=True)

    def exec_module(self, module):
        vars(module).update(self.aim.found)
        super().exec_module(module)


class Finder:
    """The first finder, for modules with a substitution."""

    def __init__(self, aim, folder):
        self.aim = aim
        self.folder = folder

    def find_spec(self, name, path=None, _target=None):
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
            return None
        if name in self.aim.modules or os.path.dirname(spec.origin) == self.folder:
            return importlib.util.spec_from_file_location(
                name,
                spec.origin,
                loader=Loader(name, spec.origin, self.aim),
                submodule_search_locations=spec.submodule_search_locations,
            )
        return None


class Reporter(unittest.TestResult):
    """Reports the result of each test as soon as it is known."""

    def __init__(self, stream):
        super().__init__()
        self.stream = stream
        self.verdict = None
        self.began = None

    def write(self, **line):
        self.stream.write(json.dumps(line) + "\n")
        self.stream.flush()

    def startTest(self, test):
        super().startTest(test)
        self.verdict = ("passed", "")
        self.began = time.monotonic()
        self.write(begin=test.id())

    def stopTest(self, test):
        super().stopTest(test)
        if self.verdict is None:  # Python 3.12.1 ends skipped tests that it has not begun
            return
        status, reason = self.verdict
        self.write(end=test.id(), status=status, reason=reason, seconds=round(time.monotonic() - self.began, 2))
        self.verdict = None

    def settle(self, test, status, reason):
        """Record a result. A result without a start is a class that failed before its tests."""
        if self.verdict is None:
            self.write(end=test.id(), status=status, reason=reason, seconds=0)
        else:
            self.verdict = (status, reason)

    def addSkip(self, test, reason):
        self.settle(test, "skipped", reason)

    def addError(self, test, error):
        self.settle(test, "failed", "".join(traceback.format_exception(*error)))

    addFailure = addError

    def addSubTest(self, test, _subtest, error):
        if error is not None:
            self.addError(test, error)

    def addExpectedFailure(self, test, _error):
        self.settle(test, "passed", "")

    def addUnexpectedSuccess(self, test):
        self.settle(test, "failed", "passes, which is not expected")


def add_old_names():
    for module_name, names in RENAMED.items():
        module = importlib.import_module(module_name)
        for old, new in names.items():
            vars(module).setdefault(old, getattr(module, new))


def load(aim_text, path):
    """Load the module of the tests, under the name that spawned ranks import."""
    folder = os.path.dirname(os.path.abspath(path))
    aim = Aim(aim_text)
    aim.prepare()
    sys.path.insert(0, folder)
    # Files also import each other by their path from PyTorch's folder.
    sys.path.insert(1, os.path.join(folder.partition(f"{os.sep}test{os.sep}")[0], "test"))
    sys.meta_path.insert(0, Finder(aim, folder))
    add_old_names()
    return importlib.import_module(os.path.splitext(os.path.basename(path))[0])


def start_ranks_by_fork():
    from torch.testing._internal.common_distributed import MultiProcessTestCase

    multiprocessing.set_start_method("fork", force=True)
    fork = multiprocessing.get_context("fork").Process
    MultiProcessTestCase._spawn_processes = lambda test: test._start_processes(fork)


def tests_in(suite):
    for item in suite:
        if isinstance(item, unittest.TestSuite):
            yield from tests_in(item)
        else:
            yield item


def chosen(tests, names=(), part=(1, 1), ids=None, without=()):
    """Select every part[1]-th test, from the part[0]-th on, whose id contains one of the names; of
    these, only `ids` and not `without`."""
    named = [test for test in tests if not names or any(name in test.id() for name in names)]
    wanted = named[part[0] - 1 :: part[1]]
    return [test for test in wanted if (ids is None or test.id() in ids) and test.id() not in without]


def main(start, report_fd, choice_file):
    vars(target).pop("load_tests", None)  # it rejects loading by another file than its own
    tests = tests_in(unittest.defaultTestLoader.loadTestsFromModule(target))
    if start == "fork":
        start_ranks_by_fork()
    with open(choice_file, encoding="utf-8") as file:
        choice = json.load(file)
    with os.fdopen(int(report_fd), "w", encoding="utf-8") as stream:
        reporter = Reporter(stream)
        unittest.TestSuite(chosen(tests, **choice)).run(reporter)
        reporter.write(done=True)


if __name__ in ("__main__", "__mp_main__"):
    target = load(*sys.argv[1:3])
if __name__ == "__main__":
    main(*sys.argv[3:])
