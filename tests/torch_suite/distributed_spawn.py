"""Run the tests of the wheel (torch.testing._internal.distributed.distributed_test), each on
WORLD_SIZE ranks of BACKEND."""

from torch.testing._internal.distributed.distributed_test import DistributedTest, TestDistBackend


class TestDistBackendWithSpawn(TestDistBackend, DistributedTest._DistTestBase):
    def setUp(self):
        super().setUp()
        self._spawn_processes()
