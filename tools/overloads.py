"""Stubs for modules whose functions take async_op: each function gets overloads for its results.

A result annotation lists the result for async_op=True first, then the other results: `Work | None`.
"""
import ast
import copy
import re
from pathlib import Path

WIDTH = 120


def definition(name: str, parameters: list[str], result: str, indent: str = "") -> str:
    """Return a stub function, on one line if it fits."""
    head = f"{indent}def {name}("
    short = f"{head}{', '.join(parameters)}) -> {result}: ...\n"
    if len(short) <= WIDTH:
        return short
    lines = "".join(f"{indent}    {parameter},\n" for parameter in parameters)
    return f"{head}\n{lines}{indent}) -> {result}: ...\n"


def results_by_flag(asynchronous: str, synchronous: str) -> dict[str, str]:
    """Return the results by the annotation of async_op."""
    return {"Literal[False] = False": synchronous, "Literal[True]": asynchronous, "bool": f"{asynchronous} | {synchronous}"}


class _Parameter:
    def __init__(self, argument: ast.arg, default: ast.expr | None, is_by_name: bool) -> None:
        self.name = argument.arg
        self.hint = f": {ast.unparse(argument.annotation)}" if argument.annotation else ""
        self.default = default
        self.is_by_name = is_by_name

    def __str__(self) -> str:
        if self.default is None:
            return self.without_default()
        value = ast.unparse(self.default).replace("'", '"') if isinstance(self.default, ast.Constant) else "..."
        return f"{self.name}{self.hint} = {value}"

    def without_default(self) -> str:
        return f"{self.name}{self.hint}"


def _parameters(function: ast.FunctionDef) -> list[_Parameter]:
    arguments = function.args
    none = [None] * (len(arguments.args) - len(arguments.defaults))
    positional = zip(arguments.args, [*none, *arguments.defaults], strict=True)
    by_name = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    return [_Parameter(*each, False) for each in positional] + [_Parameter(*each, True) for each in by_name]


def _written(positional: list[str], by_name: list[str]) -> list[str]:
    return [*positional, *(["*"] if by_name else []), *by_name]


def _overloads(function: ast.FunctionDef, indent: str = "") -> str:
    parameters = _parameters(function)
    place = next(index for index, parameter in enumerate(parameters) if parameter.name == "async_op")
    flag_is_by_name = parameters[place].is_by_name
    results = function.returns
    while isinstance(results, ast.BinOp):
        results = results.left
    asynchronous = ast.unparse(results)
    synchronous = ast.unparse(function.returns).removeprefix(f"{asynchronous} | ")
    text = ""
    for flag, result in results_by_flag(asynchronous, synchronous).items():
        by_name = [str(each) for each in parameters if each.is_by_name and each.name != "async_op"]
        positional = [str(each) for each in parameters if not each.is_by_name and each.name != "async_op"]
        ways = []
        if flag_is_by_name:
            ways.append((positional, [*by_name, f"async_op: {flag}"]))
        elif "=" in flag:
            ways.append(([*positional[:place], f"async_op: {flag}", *positional[place:]], by_name))
        else:
            # Without a default, it must be passed by name, or after all preceding parameters.
            ways.append((positional[:place], [f"async_op: {flag}", *positional[place:], *by_name]))
            given = [each.without_default() for each in parameters[:place]]
            ways.append(([*given, f"async_op: {flag}", *positional[place:]], by_name))
        for way in ways:
            text += f"{indent}@overload\n" + definition(function.name, _written(*way), result, indent)
    return text


def _function(function: ast.FunctionDef, indent: str = "") -> str:
    parameters = _parameters(function)
    if any(parameter.name == "async_op" for parameter in parameters):
        return _overloads(function)
    positional = [str(each) for each in parameters if not each.is_by_name]
    by_name = [str(each) for each in parameters if each.is_by_name]
    return definition(function.name, _written(positional, by_name), ast.unparse(function.returns), indent)


def with_overloads(stub: str) -> str:
    """Add overloads to the methods of a stub with `async_op: bool = False` and a result `X |
    None`."""
    lines = stub.splitlines(keepends=True)
    classes = [node for node in ast.parse(stub).body if isinstance(node, ast.ClassDef)]
    methods = [node for each in classes for node in each.body if isinstance(node, ast.FunctionDef)]
    for method in reversed(methods):  # from the end, so that earlier line numbers stay valid
        flags = [ast.unparse(each.default) for each in _parameters(method) if each.name == "async_op"]
        if flags == ["False"] and isinstance(method.returns, ast.BinOp):
            lines[method.lineno - 1 : method.end_lineno] = [_overloads(method, "    ")]
    return "".join(lines)


def _former_name(node: ast.stmt, functions: dict[str, ast.FunctionDef]) -> ast.FunctionDef | None:
    """Return the function that `name = _former_name("name", function)` creates."""
    call = node.value if isinstance(node, ast.Assign) else None
    if not isinstance(call, ast.Call) or ast.unparse(call.func) != "_former_name":
        return None
    function = copy.copy(functions[ast.unparse(call.args[1])])
    function.name = node.targets[0].id
    return function


def _is_type_variable(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and ast.unparse(node.value).startswith("TypeVar(")


def _body(tree: ast.Module, private: tuple[str, ...]) -> str:
    text = ""
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    for node in tree.body:
        node = _former_name(node, functions) or node
        is_own = getattr(node, "name", "").startswith("_") and node.name not in private
        if isinstance(node, ast.FunctionDef) and not is_own:
            text += _function(node)
        elif isinstance(node, ast.ClassDef) and not is_own:
            methods = [each for each in node.body if isinstance(each, ast.FunctionDef)]
            text += f"class {node.name}:\n" + "".join(_function(method, "    ") for method in methods)
        elif _is_type_variable(node):
            continue  # in _head
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Attribute) and not node.targets[0].id.startswith("_"):
            text += f"{ast.unparse(node)}\n"  # another name of a class
    return text


def _head(tree: ast.Module, body: str) -> str:
    """Return the imports that the body needs, type variables, and the public names."""
    nodes = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    assigned = [node for node in tree.body if isinstance(node, ast.Assign)]
    variables = "".join(f"{ast.unparse(node)}\n" for node in assigned if _is_type_variable(node)).replace("'", '"')
    names = [node.value for node in assigned if node.targets[0].id == "__all__"]
    public = "".join(f'    "{name}",\n' for each in names for name in ast.literal_eval(each))
    words = set(re.findall(r"\w+", body + variables + public))
    of_module = {"typing": {"Literal", "overload"}}
    for node in nodes:
        used = {ast.unparse(alias) for alias in node.names if (alias.asname or alias.name) in words}
        if used:
            of_module.setdefault(node.module, set()).update(used)
    lines = [f"from {module} import {', '.join(sorted(used, key=_order))}\n" for module, used in sorted(of_module.items())]
    own = [line for line in lines if line.startswith("from dldist")]
    library = [line for line in lines if line not in own]
    listed = f"__all__ = [\n{public}]\n\n" if public else ""
    return "".join([*library, "\n", *own, "\n"]) + variables + listed


def _order(name: str) -> tuple[bool, str]:
    """Sort key: classes before functions."""
    return name.islower(), name


def module_stub(path: Path, private: tuple[str, ...]) -> str:
    """Return the stub of a module's public names and of the private names that other modules
    use."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    body = _body(tree, private)
    return f"# Made by tools/make_stubs.py from {path.name}.\n" + _head(tree, body) + body
