"""Run the examples in docstrings, in a world of one."""

import doctest
import importlib
import inspect
import re
from array import array

import dldist as dist
import pytest
from dldist import functional
from dldist.testing import run_ranks, threads

MODULES = """_api.coalescing _api.collectives _api.groups _backends.backend_names _api.objects _api.p2p world testing _launch.spawn
_api.ranks _api.shared_arrays _windows.window symmetric_memory functional rendezvous reducer comm_hooks device_mesh
algorithms.join control.handlers control.server
reshard.layouts reshard.link reshard.placements reshard.plans""".split()
# Functions that make the default world themselves.
MAKERS = {"init_process_group"}


def examples():
    finder = doctest.DocTestFinder(exclude_empty=True)
    for name in MODULES:
        module = importlib.import_module(f"dldist.{name}")
        own = {key: value for key, value in vars(module).items() if inspect.getmodule(value) is module}
        for key, value in own.items():
            if inspect.isfunction(value) or inspect.isclass(value):
                yield from (test for test in finder.find(value, key, module, globs={}) if test.examples)


@pytest.mark.parametrize("test", list(examples()), ids=lambda test: test.name)
def test_examples_in_docstrings_print_the_shown_output(test):
    test.globs.update(dist=dist, array=array, World=dist.World, threads=threads, spawn=dist.spawn, F=functional)
    test.globs.update(run_ranks=run_ranks)
    if test.name not in MAKERS:
        dist.init_process_group()
    try:
        result = doctest.DocTestRunner(verbose=False).run(test)
    finally:
        dist.destroy_process_group()
    assert result.failed == 0


def test_docstrings_of_common_calls_have_examples():
    shown = {test.name for test in examples()}
    for name in "all_reduce broadcast all_gather scatter reduce_scatter all_to_all irecv new_group all_gather_object World".split():
        assert name in shown


def public_functions():
    for module in (dist, functional):
        for name in module.__all__:
            value = getattr(module, name)
            if inspect.isfunction(value) and not value.__doc__.startswith("Former name"):
                yield pytest.param(value, id=f"{module.__name__}.{name}")
    for kind in (dist.World, dist.Reducer, dist.DeviceMesh):
        for name, value in vars(kind).items():
            if inspect.isfunction(value) and not name.startswith("_"):
                yield pytest.param(value, id=f"{kind.__name__}.{name}")


@pytest.mark.parametrize("function", list(public_functions()))
def test_docstrings_describe_every_argument(function):
    words = set(re.findall(r"\w+", function.__doc__))
    taken = {name for name in inspect.signature(function).parameters if name != "self" and not name.startswith("_")}
    assert taken - words == set()
