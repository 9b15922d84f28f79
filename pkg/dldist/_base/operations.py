"""The table of collectives, from csrc/python/group/operations.h, for code that repeats for each."""

from __future__ import annotations

from typing import Any

from dldist import _core


class Operation:
    """One collective, which is a method of dldist.Group.

    `input` and `output` are pairs of a kind of tensors and the index of their parameter. The kinds
    are: "one" tensor; "many" tensors that move together; "ranks", a tensor for each rank; "lists",
    several lists of a tensor for each rank; "whole", one tensor with a part for each rank;
    "wholes", several of these; or "nothing".
    """

    name: str
    collective: str
    op_type: int
    """The number of the operation in c10d's OpType."""
    recorded: str
    """The name of the operation in the flight recorder."""
    call: str
    """The name of c10d's low-level call; empty if there is none."""
    former_call: str
    """The former name of c10d's low-level call; empty if the name never changed."""
    as_one: str
    """The operation that coalesce() runs for several calls of this one; empty if there is none."""
    parameters: tuple[str, ...]
    nrequired: int
    input: tuple[str, int]
    output: tuple[str, int]

    def __init__(self, row: tuple[Any, ...]) -> None:
        vars(self).update(zip(Operation.__annotations__, row, strict=True))

    def __repr__(self) -> str:
        return f"<operation {self.name}>"

    @property
    def is_in_place(self) -> bool:
        """True if the same tensors are both inputs and outputs."""
        return self.input == self.output and self.input[0] != "nothing"

    @property
    def is_flat(self) -> bool:
        """True if the input or the output is one tensor with a part for each rank."""
        return "whole" in (self.input[0], self.output[0])

    def bind(self, args: tuple[Any, ...], named: dict[str, Any]) -> list[Any]:
        """List the values of all parameters of a call, in order; None for one that is not given."""
        if len(args) > len(self.parameters):
            raise TypeError(f"{self.name}() takes at most {len(self.parameters)} positional arguments ({len(args)} given)")
        values = [*args, *[None] * (len(self.parameters) - len(args))]
        for name, value in named.items():
            if name not in self.parameters:
                raise TypeError(f"{self.name}() got an unexpected keyword argument {name!r}")
            index = self.parameters.index(name)
            if index < len(args):
                raise TypeError(f"{self.name}() got multiple values for argument {name!r}")
            values[index] = value
        for index in range(self.nrequired):
            if index >= len(args) and self.parameters[index] not in named:
                raise TypeError(f"{self.name}() missing required argument {self.parameters[index]!r}")
        return values

    def tensors(self, values: list[Any]) -> tuple[Any, Any]:
        """Return the inputs and outputs in bind()'s result. In-place tensors count as inputs."""
        inputs = values[self.input[1]] if self.input[0] != "nothing" else None
        return inputs, None if self.is_in_place or self.output[0] == "nothing" else values[self.output[1]]


def first_of(tensors: Any) -> Any:
    """Return the first tensor in a tensor, a list of tensors or a list of lists."""
    while isinstance(tensors, (list, tuple)):
        tensors = tensors[0] if tensors else None
    return tensors


def flat(tensors: Any) -> list[Any]:
    """Flatten a tensor, a list of tensors, a list of lists or None to one list."""
    if tensors is None:
        return []
    if not isinstance(tensors, (list, tuple)):
        return [tensors]
    return [tensor for item in tensors for tensor in flat(item)]


OPERATIONS = {row[0]: Operation(row) for row in _core._operations()}
"""All collectives, by the name of the operation."""
