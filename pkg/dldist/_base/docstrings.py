"""Adds texts about shared parameters to docstrings of calls, so that each text is written once.

Docstrings have Google-style sections, separated by blank lines, after a summary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

CallT = TypeVar("CallT", bound=Callable[..., Any])


def completed(arguments: Mapping[str, str], returns: str = "", raises: str = "") -> Callable[[CallT], CallT]:
    """Return a decorator that adds shared texts to a call's docstring.

    Args:
        arguments: Texts for parameters, by name. Texts in the docstring have precedence.
        returns: The section Returns for a docstring without one.
        raises: A row to append to the section Raises.
    """

    def decorate(call: CallT) -> CallT:
        if call.__doc__ is not None:  # docstrings are None under python -OO
            call.__doc__ = _complete(call, call.__doc__.rstrip(), arguments, returns, raises)
        return call

    return decorate


def _complete(call: Any, doc: str, arguments: Mapping[str, str], returns: str, raises: str) -> str:
    sections = doc.split("\n\n")
    args_index = next(index for index, section in enumerate(sections) if section.lstrip().startswith("Args:"))
    title, *rows = sections[args_index].split("\n")
    margin = title.removesuffix("Args:")
    texts = {name: f"\n{margin}    {name}: {text}" for name, text in arguments.items()} | _rows_by_name(rows, margin + "    ")
    code = call.__code__
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    sections[args_index] = title + "".join(texts[name] for name in names)
    if returns and f"\n{margin}Returns:" not in doc:
        sections.insert(args_index + 1, f"{margin}Returns:\n{margin}    {returns}")
    for index, section in enumerate(sections):
        if raises and section.startswith(f"{margin}Raises:"):
            sections[index] = f"{section}\n{margin}    {raises}"
    return "\n\n".join(sections) + "\n" + margin


def _rows_by_name(rows: list[str], margin: str) -> dict[str, str]:
    """Map each parameter to its rows in a section, including continuation lines."""
    texts: dict[str, str] = {}
    name = ""
    for row in rows:
        if row[len(margin)] != " ":
            name = row.strip().partition(":")[0]
        texts[name] = f"{texts.get(name, '')}\n{row}"
    return texts
