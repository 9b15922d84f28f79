"""Read the extension's type stub, and compare its signatures with those at run time."""

import ast
import inspect
import pathlib

import dldist
from dldist import _core


def parameters(function):
    return list(inspect.signature(function).parameters.values())


def stub_tree():
    stub = pathlib.Path(_core.__file__).parent / "_core.pyi"
    if not stub.exists():
        stub = pathlib.Path(dldist.__file__).parent / "_core.pyi"
    assert stub.exists(), "the type stub is not installed"
    return ast.parse(stub.read_text(encoding="utf-8"))


def stub_classes():
    return {node.name: node for node in stub_tree().body if isinstance(node, ast.ClassDef)}


def stub_functions(body):
    return {node.name: node for node in body if isinstance(node, ast.FunctionDef)}


def is_overload(node):
    return any(isinstance(d, ast.Name) and d.id == "overload" for d in node.decorator_list)


def stub_shape(node, drop_first):
    """Return [(name, kind of parameter, True if it has a default)], as inspect would."""
    arguments = node.args
    positional = [*arguments.posonlyargs, *arguments.args]
    ndefaults = len(arguments.defaults)
    shape = []
    for index, argument in enumerate(positional):
        only = index < len(arguments.posonlyargs)
        shape.append((argument.arg, "positional" if only else "either", index >= len(positional) - ndefaults))
    if drop_first:
        shape = shape[1:]
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults):
        shape.append((argument.arg, "keyword", default is not None))
    return shape


def runtime_shape(function, drop_first):
    kinds = {
        inspect.Parameter.POSITIONAL_ONLY: "positional",
        inspect.Parameter.POSITIONAL_OR_KEYWORD: "either",
        inspect.Parameter.KEYWORD_ONLY: "keyword",
    }
    shape = [(p.name, kinds[p.kind], p.default is not inspect.Parameter.empty) for p in parameters(function)]
    return shape[1:] if drop_first else shape
