"""Names of the program's call in errors of the extension, which knows only its own methods.

`dldist.gather` calls Group.gather, whose argument 'output_list' is the program's 'gather_list'.
"""

import sys
from types import FrameType

_SRC = {"root": "src", "output": "tensor", "input_list": "scatter_list"}
_NAMES = {
    **dict.fromkeys(("broadcast", "broadcast_object_list", "scatter", "scatter_object_list"), _SRC),
    **dict.fromkeys(("reduce", "gather_object"), {"root": "dst"}),
    "gather": {"root": "dst", "output_list": "gather_list"},
    **dict.fromkeys(("gather_single", "gather_into_tensor"), {"root": "dst", "output": "gather_tensor"}),
    "all_gather": {"output_list": "tensor_list"},
    **dict.fromkeys(("all_gather_single", "all_gather_into_tensor"), {"output": "output_tensor", "tensor": "input_tensor"}),
    "all_gather_coalesced": {"output_lists": "output_tensor_lists", "tensors": "input_tensor_list"},
    "all_to_all": {"output_list": "output_tensor_list", "input_list": "input_tensor_list"},
    "new_group": {"name": "group_desc"},
    "new_window": {"memory": "tensor"},
    **dict.fromkeys(("put", "accumulate", "fetch_and_op", "compare_and_swap"), {"object": "tensor"}),
}
_WRAPPERS = frozenset("call kernel perform run run_call run_operation wrapper".split())
"""Public names of dldist's functions that run the program's call."""


def title(argument: str, function: str = "") -> str:
    """Return "<call>(): argument '<name>'", named after the outermost dldist function on the stack."""
    frame: FrameType | None = sys._getframe(1)
    call, name = None, function
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "dldist":
        code = frame.f_code
        if code.co_name == "__init__":
            call, name = frame, code.co_qualname.split(".")[-2]
        elif code.co_name[0] not in "_<" and code.co_name not in _WRAPPERS:
            call, name = frame, code.co_name
        frame = frame.f_back
    first = given = argument.partition("[")[0]
    if call is not None:
        code = call.f_code
        if first not in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]:
            given = _NAMES.get(name, {}).get(first, first)
        if call.f_locals.get(f"group_{given}") is not None:
            given = f"group_{given}"
    return f"{name}(): argument '{given}{argument[len(first):]}'"
