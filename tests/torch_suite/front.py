"""Runs test cases of PyTorch's test_c10d_gloo.py with dldist in torch.distributed's place, DDP's included: no backend of torch's takes part.

    python front.py FILE [CLASS[.TEST]...]

FILE is test_c10d_gloo.py; the classes are DistributedDataParallelTest and ReducerTest unless others are named. The tests start their
ranks by fork.
"""

import contextlib
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "py"))

import aim
from torch_programs import front

CLASSES = ["DistributedDataParallelTest", "ReducerTest"]


class TestFront(front.Front):
    """The tests look into the module distributed_c10d, too, and ask the group's backend for a device."""

    @property
    def distributed_c10d(self):
        return self


def main(path, *names):
    tests = aim.load("gloo", path)
    aim.start_ranks_by_fork()
    ours = TestFront()
    for module in (tests, sys.modules["test_c10d_common"]):
        module.c10d = module.dist = ours
    loader = unittest.defaultTestLoader
    suite = unittest.TestSuite(loader.loadTestsFromName(name, tests) for name in names or CLASSES)
    with front.substituted(), contextlib.redirect_stdout(sys.stderr):
        result = unittest.TextTestRunner(verbosity=2).run(suite)
    return not result.wasSuccessful()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
