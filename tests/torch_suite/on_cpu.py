"""Stubs of torch.cuda and torch.accelerator, for tests for GPUs that run on the CPU
(substitution.OntoCpu)."""

import contextlib

import torch

DEVICES = 4


class Event:
    """An event. Work on the CPU has always finished."""

    def __init__(self, *_args, **_options):
        pass

    def record(self, *_args):
        pass

    wait = synchronize = record

    def query(self):
        return True

    def elapsed_time(self, _other):
        return 0.0


class Nccl:
    @staticmethod
    def version():
        return (2, 21, 5)


class StandIn:
    """torch.cpu has most names; this class adds the missing ones and the number of devices."""

    Event = Event
    nccl = Nccl

    def __getattr__(self, name):
        return getattr(torch.cpu, name)

    def is_available(self):
        return True

    is_initialized = is_available

    def device_count(self):
        return DEVICES

    def current_device(self):
        """Return a device, because an index does not name one."""
        return torch.device("cpu")

    def current_accelerator(self, check_available=False):  # noqa: ARG002
        return torch.device("cpu")

    def set_device(self, _device):
        pass

    set_device_index = set_device_idx = set_device

    @contextlib.contextmanager
    def device(self, _device):
        yield

    def get_device_capability(self, *_device):
        return (9, 0)

    def manual_seed(self, seed):
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def empty_cache(self):
        pass

    reset_peak_memory_stats = empty_cache

    def _sleep(self, _cycles):
        pass


cuda = accelerator = StandIn()
