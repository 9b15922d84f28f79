"""typing.get_type_hints() must work on all public objects, as some tools call it at run time."""

import importlib
import inspect
import typing

import pytest

MODULES = """
    dldist dldist.algorithms dldist.carriers dldist.comm_hooks dldist.control dldist.device_mesh dldist.distributed_c10d
    dldist.flight_recorder dldist.functional dldist.jax dldist.nccl dldist.reducer dldist.rendezvous dldist.reshard dldist.run
    dldist.symmetric_memory dldist.testing dldist.torch dldist.trace dldist.types dldist.world
""".split()
NEEDS = {"dldist.jax": "jax", "dldist.torch": "torch"}


def public_of(module):
    """Yield the public functions and classes of a module, with the methods of the classes."""
    for name in getattr(module, "__all__", dir(module)):
        value = getattr(module, name)
        if name[0] == "_" or not getattr(value, "__module__", "").startswith("dldist"):
            continue
        if inspect.isclass(value):
            yield name, value
            members = vars(value).items()
            functions = ((key, getattr(each, "fget", None) or getattr(each, "__func__", each)) for key, each in members)
            yield from ((f"{name}.{key}", each) for key, each in functions if key[0] != "_" and inspect.isfunction(each))
            if inspect.isfunction(value.__init__):
                yield f"{name}()", value.__init__
        elif inspect.isfunction(value):
            yield name, value


@pytest.mark.parametrize("name", MODULES)
def test_public_objects_have_type_hints(name):
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    wrong = []
    for path, value in public_of(importlib.import_module(name)):
        try:
            typing.get_type_hints(value)
        except Exception as error:
            wrong.append(f"{path}: {error!r}")
    assert wrong == []


def test_type_hints_of_parameters_can_be_evaluated():
    import dldist

    hints = typing.get_type_hints(dldist.all_reduce)
    assert hints["tensor"] == dldist.Tensor and hints["async_op"] is bool and hints["return"] == dldist.Work | None
