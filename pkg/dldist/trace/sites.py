"""Call sites in reports: the program's own frame, with the shortest unambiguous file path."""

from __future__ import annotations

import re
from collections.abc import Iterable

from dldist.trace.read import Dump, Frame

# Files of libraries, which only pass calls on. A program may itself be in a folder named dldist.
_LIBRARY_FILES = re.compile(
    r"/dldist/(_\w+(/|\.py)|(distributed_c10d|functional|nccl|run|testing|world)\.py)"
    r"|-packages/(torch|torchcomms)/|/torch/(_\w+|autograd|distributed|nn|optim|utils)/"
    r"|/lib/python3\.\d+/(?!(site|dist)-packages/)|^<frozen "
)


def own_frames(frames: list[Frame]) -> list[Frame]:
    """Return the program's own frames, innermost first, or all frames if it has none."""
    own = [frame for frame in frames if not _LIBRARY_FILES.search(frame.file)]
    return own or frames


class Sites:
    """Names call sites. File paths are as short as possible among the files of all dumps."""

    def __init__(self, dumps: Iterable[Dump]):
        # First collect the distinct files, because stacks repeat.
        files = {frame.file for dump in dumps for entry in dump.entries for frame in entry.frames}
        self._short = _shortest(files)

    def frame(self, frame: Frame) -> str:
        file = self._short.get(frame.file, frame.file)
        function = frame.function if frame.function.startswith("<") else f"{frame.function}()"
        return f"{file}:{frame.line}" + ("" if function == "<module>" else f" in {function}")

    def call_site(self, frames: list[Frame]) -> str:
        """Return the call site, such as "train.py:17 in forward()", or "" without a stack."""
        own = own_frames(frames)
        return self.frame(own[0]) if own else ""

    def in_parentheses(self, frames: list[Frame]) -> str:
        """Return the call site in parentheses, after a space, or "" without a stack."""
        site = self.call_site(frames)
        return f" ({site})" if site else ""

    def distinct_names(self, stacks: list[list[Frame]]) -> list[str]:
        """Name each stack. Where different stacks would have equal names, add an outer frame."""
        own_stacks = [own_frames(frames) for frames in stacks]
        distinct = {tuple(own) for own in own_stacks}
        innermost = {own[0] for own in distinct if own}
        if len(innermost) == len([own for own in distinct if own]):
            return [self.call_site(frames) for frames in stacks]
        return [self._with_outer_frame(own, [other for other in distinct if other != tuple(own)]) for own in own_stacks]

    def _with_outer_frame(self, own: list[Frame], others: list[tuple[Frame, ...]]) -> str:
        if not own:
            return ""
        text = self.frame(own[0])
        ambiguous = [other for other in others if other and other[0] == own[0]]
        if not ambiguous:
            return text
        for depth in range(1, len(own)):
            if any(len(other) <= depth or other[depth] != own[depth] for other in ambiguous):
                return f"{text}, called from {self.frame(own[depth])}"
        return text


def _shortest(files: set[str]) -> dict[str, str]:
    """Map each path to its shortest suffix that is unique among the paths."""
    short = {}
    remaining, parts = set(files), 1
    while remaining:
        by_suffix: dict[str, list[str]] = {}
        for file in files:
            by_suffix.setdefault("/".join(file.split("/")[-parts:]), []).append(file)
        for suffix, owners in by_suffix.items():
            if len(owners) == 1 and owners[0] in remaining:
                short[owners[0]] = suffix
                remaining.discard(owners[0])
        # For paths that differ only before the first "/", use the whole path.
        for file in [file for file in remaining if file.count("/") < parts]:
            short[file] = file
            remaining.discard(file)
        parts += 1
    return short
