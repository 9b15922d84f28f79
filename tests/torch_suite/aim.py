"""Runs one file of PyTorch's tests, aimed at a backend.

    python aim.py BACKEND FILE fork|spawn REPORT_FD FINISHED
    python aim.py BACKEND FILE list

BACKEND takes the place of "gloo" in FILE, in what it imports from its folder and in the modules of torch.testing that make groups: in
every string that names a backend ("gloo", "cpu:gloo"), for Backend.GLOO, where a ProcessGroupGloo is made, and as torch's
default for the CPU. The lists of backends whose calls torch's profiler shows stay as they are. "gloo" leaves everything as it is.
"list" prints the ids of all tests. The other words say how tests start their ranks: "spawn" as PyTorch does it, or "fork", which saves
each rank the import of torch. REPORT_FD gets a line of JSON when a test begins and when it ends; FINISHED is a file with ids of tests
not to run, a line each.

run.py starts this, survives it, and makes a table of what it reports. Ranks that are spawned import this file again, and with it the
substitution.
"""

import ast
import importlib.machinery
import importlib.util
import json
import multiprocessing
import os
import re
import sys
import traceback
import unittest
from datetime import timedelta

# Those modules of the wheel whose default for the CPU is Gloo.
OF_THE_WHEEL = {
    "torch.testing._internal.common_distributed",
    "torch.testing._internal.common_fsdp",
    "torch.testing._internal.distributed._shard.sharded_tensor",
    "torch.testing._internal.distributed._tensor.common_dtensor",
    "torch.testing._internal.distributed.distributed_test",
}
BACKEND_NAME = re.compile(r"\bgloo\b")
NAMES_OF_BACKENDS = re.compile(r"(\w+:)?\w+(,\w+:\w+)*")


def make_group(store, rank, size, options=None, timeout=timedelta(minutes=30)):
    """What ProcessGroupGloo(...) becomes."""
    from dldist.torch._plain import create_group
    from torch._C._distributed_c10d import _DistributedBackendOptions

    ours = _DistributedBackendOptions()
    ours.store, ours.group_rank, ours.group_size = store, rank, size
    ours.timeout = options._timeout if options else timeout
    ours.group_id = "made"
    return create_group(ours)


class Substitution(ast.NodeTransformer):
    def __init__(self, backend):
        self.backend = backend

    def visit_Call(self, node):
        self.generic_visit(node)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "ProcessGroupGloo":
            node.func = ast.copy_location(ast.Name(make_group.__name__, ast.Load()), node.func)
        return node

    def visit_Constant(self, node):
        if isinstance(node.value, str) and NAMES_OF_BACKENDS.fullmatch(node.value):
            return ast.copy_location(ast.Constant(BACKEND_NAME.sub(self.backend, node.value)), node)
        return node

    def visit_Attribute(self, node):
        self.generic_visit(node)
        if node.attr == "GLOO" and ast.unparse(node.value).split(".")[-1] == "Backend":
            return ast.copy_location(ast.Constant(self.backend), node)
        return node

    def visit_Assign(self, node):
        return node if "PROFILING_SUPPORTED" in ast.unparse(node.targets[0]) else self.generic_visit(node)


class Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, name, path, backend):
        super().__init__(name, path)
        self.backend = backend

    def get_code(self, fullname):
        """Past the cache of compiled files, which knows nothing of the substitution."""
        path = self.get_filename(fullname)
        tree = ast.parse(self.get_data(path), path)
        if self.backend != "gloo":
            tree = Substitution(self.backend).visit(tree)
        return compile(tree, path, "exec", dont_inherit=True)

    def exec_module(self, module):
        vars(module)[make_group.__name__] = make_group
        super().exec_module(module)


class Finder:
    """Goes before all others for the modules with a substitution."""

    def __init__(self, backend, folder):
        self.backend = backend
        self.folder = folder

    def find_spec(self, name, path=None, _target=None):
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
            return None
        if name in OF_THE_WHEEL or os.path.dirname(spec.origin) == self.folder:
            return importlib.util.spec_from_file_location(
                name,
                spec.origin,
                loader=Loader(name, spec.origin, self.backend),
                submodule_search_locations=spec.submodule_search_locations,
            )
        return None


class Reporter(unittest.TestResult):
    """Writes what becomes of each test, the moment it is known."""

    def __init__(self, stream):
        super().__init__()
        self.stream = stream
        self.verdict = None

    def write(self, **line):
        self.stream.write(json.dumps(line) + "\n")
        self.stream.flush()

    def startTest(self, test):
        super().startTest(test)
        self.verdict = ("passed", "")
        self.write(begin=test.id())

    def stopTest(self, test):
        super().stopTest(test)
        status, reason = self.verdict
        self.write(end=test.id(), status=status, reason=reason)

    def addSkip(self, test, reason):
        self.verdict = ("skipped", reason)

    def addError(self, _test, error):
        self.verdict = ("failed", "".join(traceback.format_exception(*error)))

    addFailure = addError

    def addSubTest(self, test, _subtest, error):
        if error is not None:
            self.addError(test, error)

    def addExpectedFailure(self, test, _error):
        self.verdict = ("passed", "")

    def addUnexpectedSuccess(self, test):
        self.verdict = ("failed", "passes, which is not expected")


def load(backend, path):
    """The module of the tests, under the name by which spawned ranks look for it."""
    folder = os.path.dirname(os.path.abspath(path))
    sys.path.insert(0, folder)
    # Files name each other by their path from PyTorch's folder, too.
    sys.path.insert(1, os.path.join(folder.partition(f"{os.sep}test{os.sep}")[0], "test"))
    sys.meta_path.insert(0, Finder(backend, folder))
    if backend == "dldist":
        import dldist.torch  # noqa: F401  registers the backend, as the entry point of an installed dldist does
        import torch.distributed

        torch.distributed.Backend.default_device_backend_map["cpu"] = backend
    return importlib.import_module(os.path.splitext(os.path.basename(path))[0])


def start_ranks_by_fork():
    from torch.testing._internal.common_distributed import MultiProcessTestCase

    fork = multiprocessing.get_context("fork").Process
    MultiProcessTestCase._spawn_processes = lambda test: test._start_processes(fork)


def tests_in(suite):
    for item in suite:
        if isinstance(item, unittest.TestSuite):
            yield from tests_in(item)
        else:
            yield item


def main(start, report_fd=None, finished_file=None):
    vars(target).pop("load_tests", None)  # which refuses to be loaded by others than its own file
    tests = list(tests_in(unittest.defaultTestLoader.loadTestsFromModule(target)))
    if start == "list":
        print("\n".join(test.id() for test in tests))
        return
    if start == "fork":
        start_ranks_by_fork()
    with open(finished_file, encoding="utf-8") as file:
        finished = set(file.read().split())
    with os.fdopen(int(report_fd), "w", encoding="utf-8") as stream:
        reporter = Reporter(stream)
        unittest.TestSuite(test for test in tests if test.id() not in finished).run(reporter)
        reporter.write(done=True)


if __name__ in ("__main__", "__mp_main__"):
    target = load(*sys.argv[1:3])
if __name__ == "__main__":
    main(*sys.argv[3:])
