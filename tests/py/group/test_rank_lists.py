"""Lists of ranks that are too long must be refused before they are read to their end."""

import tracemalloc

import dldist
import pytest
from dldist import reshard

MANY = range(10**7)


@pytest.fixture
def world():
    with dldist.World(store=dldist.HashStore(), rank=0, world_size=1) as alone:
        yield alone


@pytest.fixture
def default_group():
    dldist.init_process_group(store=dldist.HashStore(), rank=0, world_size=1)
    yield dldist.group.WORLD
    dldist.destroy_process_group()


def refuse(call, error, text):
    tracemalloc.start()
    try:
        with pytest.raises(error, match=text):
            call()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2**24  # including the modules that the call imports


def test_world_split_rejects_a_list_of_too_many_ranks(world):
    refuse(lambda: world.split(MANY), ValueError, "invalid rank: got 1, expected 0 to 0")
    refuse(lambda: world.new_group(range(1, 10**7)), ValueError, "invalid rank: got 1, expected 0 to 0")
    assert world.new_group([1]) is None


def test_new_group_rejects_a_list_of_too_many_ranks(default_group):
    refuse(lambda: dldist.new_group(MANY), ValueError, "got 10000000 ranks, expected at most 1")
    refuse(lambda: dldist.new_group(iter(MANY)), ValueError, "got more than 1 ranks, expected at most 1")


def test_new_subgroups_by_enumeration_rejects_too_many_ranks(default_group):
    refuse(lambda: dldist.new_subgroups_by_enumeration([MANY]), ValueError, "got 10000000 ranks, expected at most 1")


def test_split_group_rejects_a_list_of_too_many_ranks(default_group):
    refuse(lambda: dldist.split_group(split_ranks=[MANY]), ValueError, "less or equal to the world_size")
    refuse(lambda: default_group.split_group(MANY), ValueError, "expected different ranks in 0 to 0")


def test_device_mesh_rejects_an_array_of_too_many_ranks(world, default_group):
    refuse(lambda: dldist.DeviceMesh("cpu", MANY), RuntimeError, "world size 1, but found 10000000 ranks")
    refuse(lambda: dldist.DeviceMesh("cpu", [MANY], world=world), RuntimeError, "found 10000000 ranks")


def test_reshard_plan_rejects_too_many_ranks():
    whole = reshard.Sharding(1, [reshard.Replicate()])
    refuse(lambda: reshard.plan((4,), whole, whole, source_ranks=MANY), ValueError, "expected 1 different ranks")
