"""Find stuck ranks and calls that disagree in the flight recorder dumps of all ranks.

    python -m dldist.trace FOLDER

Programs can call `analyse()` instead. See docs/flight-recorder.md. `import dldist` does not import
this module.
"""

from __future__ import annotations

import argparse
import gc
import json
import operator
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from dldist import __version__
from dldist._base import argument_names
from dldist.trace import causes, match, model, p2p, report
from dldist.trace import read as trace_read
from dldist.trace import timeline as trace_timeline
from dldist.trace.model import Case, Verdict
from dldist.trace.read import Dump, DumpError

__all__ = ["Analysis", "Dump", "DumpError", "Verdict", "analyse", "main"]

ALL_WELL, PROBLEM, UNREADABLE = 0, 1, 2
SLOW_S = 1.0
_LAST = 10


class Analysis:
    """The result of analyse(). Iteration yields the verdicts (findings), with causes first."""

    def __init__(self, case: Case, unreadable: dict[int, str]):
        self.case = case
        self.unreadable = unreadable
        """For each rank whose dump cannot be read, the reason."""
        self.verdicts: list[Verdict] = []

    def __iter__(self) -> Iterator[Verdict]:
        return iter(self.verdicts)

    def __len__(self) -> int:
        return len(self.verdicts)

    @property
    def problems(self) -> list[Verdict]:
        return [verdict for verdict in self.verdicts if verdict.is_problem]

    @property
    def notes(self) -> list[Verdict]:
        return [verdict for verdict in self.verdicts if not verdict.is_problem]

    @property
    def summary(self) -> str:
        """The result in one paragraph."""
        return report.summary(self)

    @property
    def exit_status(self) -> int:
        """0 if all calls match and completed, 1 for a problem, 2 if dumps are unreadable."""
        if any(verdict.kind != model.UNREADABLE for verdict in self.problems):
            return PROBLEM
        return UNREADABLE if self.unreadable or self.problems else ALL_WELL

    def text(self, last: int = 0) -> str:
        """Return the full report, with a table of each group's last `last` collectives."""
        return report.text(self, argument_names.convert("last", operator.index, last, "a number of collectives"))

    def timeline(self) -> dict[str, Any]:
        """Return a timeline in Chrome's trace event format, to be written with json.dump()."""
        return trace_timeline.document(self.case)

    def to_json(self) -> dict[str, Any]:
        """Return the result as --json prints it. Later versions may add keys, not remove any."""
        case = self.case
        return {
            "format": 1,
            "exit_status": self.exit_status,
            "summary": self.summary,
            "ranks": case.world,
            "ranks_without_dump": case.lost,
            "unreadable": {str(rank): text for rank, text in self.unreadable.items()},
            "clock_reference": case.clocks.reference,
            "clock_offsets_ns": {str(rank): offset for rank, offset in sorted(case.clocks.offsets.items())},
            "groups": [
                {
                    "name": group.name,
                    "desc": group.desc,
                    "ranks": list(group.ranks),
                    "matched": group.matched,
                    "last_called": {str(rank): max(calls) for rank, calls in sorted(group.calls.items()) if calls},
                }
                for group in case.groups
            ],
            "verdicts": [verdict.to_json() for verdict in self.verdicts],
        }


def analyse(
    dumps: str | os.PathLike[str] | Mapping[int, bytes | dict[str, Any] | Dump] | Sequence[bytes | dict[str, Any] | Dump],
    *,
    prefix: str | None = None,
    slow_s: float = SLOW_S,
) -> Analysis:
    """Analyse the dumps of all ranks.

    `dumps` is a folder, or the dumps by rank, as bytes (pickle or JSON) or decoded. `prefix` is the
    part of the file names before the rank; by default, it is guessed. A rank is slow if it calls a
    collective `slow_s` seconds after the other ranks. Raises DumpError if no dump is readable; the
    result lists unreadable dumps.
    """
    slow_s = argument_names.convert("slow_s", lambda seconds: seconds + 0.0, slow_s, "a number of seconds")
    found, unreadable = _read(dumps, prefix)
    case = model.build(found, unreadable)
    analysis = Analysis(case, unreadable)
    verdicts = []
    for group in case.groups:
        if mismatch := causes.check_members(case, group):
            group.verdicts.append(mismatch)
        elif len(group.ranks) > 1 or group.calls:
            match.analyse(case, group, slow_s)
            p2p.analyse(case, group)
        verdicts += group.verdicts
    reported = {rank for verdict in verdicts if verdict.kind == model.DEAD_RANK for rank in verdict.culprits}
    if unreported := [rank for rank in case.lost if rank not in reported]:
        text = f"{model.capitalised(model.no_dump_text(unreported))}. No call of another rank seems to wait for that."
        verdicts.append(Verdict(model.DEAD_RANK, text, culprits=unreported))
    analysis.verdicts = causes.sort_verdicts(verdicts)
    return analysis


def _read(dumps: Any, prefix: str | None) -> tuple[dict[int, Dump], dict[int, str]]:
    if isinstance(dumps, (str, os.PathLike)):
        sources: dict[int, Any] = dict(trace_read.find(os.fspath(dumps), prefix))
        read: Callable[[Any, int], Dump] = trace_read.read_file
    else:
        sources = dict(dumps) if isinstance(dumps, Mapping) else dict(enumerate(dumps))
        read = _parsed
    found, unreadable = {}, {}
    for rank, source in sorted(sources.items()):
        try:
            found[rank] = read(source, rank)
        except DumpError as error:
            unreadable[rank] = str(error)
    if not found:
        raise DumpError("\n".join(unreadable.values()) or "no dumps")
    return found, unreadable


def _parsed(data: Any, rank: int) -> Dump:
    if not isinstance(data, (Dump, dict)):
        data = argument_names.convert("dumps", memoryview, data, "bytes, a dict or a Dump")  # type: ignore[arg-type]
    return data if isinstance(data, Dump) else trace_read.parse(data, rank)


_DESCRIPTION = """Reads the flight recorder dumps of all ranks, from dldist or from PyTorch (pickle or JSON), and says in
plain words which rank is stuck where, and which calls disagree."""

_EPILOG = """The dumps are files in FOLDER, named PREFIX followed by the rank.
exit status: 0 all matched and done, 1 a problem was found, 2 dumps could not be read
examples:
  python -m dldist.trace dumps/
  python -m dldist.trace --verbose --timeline hang.json dumps/     open hang.json in ui.perfetto.dev
  python -m dldist.trace --json dumps/ | jq .summary"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m dldist.trace",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("folder", metavar="FOLDER", help="folder of the dumps")
    parser.add_argument("-p", "--prefix", help="part of the file names before the rank (default: derived from the files)")
    parser.add_argument("-v", "--verbose", action="store_true", help="add a table of the last collectives by rank")
    parser.add_argument(
        "-n", "--last", type=_positive, metavar="N", help=f"number of collectives in the table; implies -v (default: {_LAST})"
    )
    slow = "a rank that calls a collective this long after the others is slow (default: %(default)g)"
    parser.add_argument("--slow", type=_seconds, default=SLOW_S, metavar="SECONDS", help=slow)
    parser.add_argument("--json", action="store_true", help="print the verdicts as JSON instead")
    parser.add_argument("--timeline", metavar="FILE", help="write a timeline, in Chrome's trace event format, for Perfetto")
    parser.add_argument("--version", action="version", version=f"dldist {__version__}")
    return parser


def _positive(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 1_000_000):
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a whole number from 1 to 999999")
    return int(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < 1e9:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a number of seconds above 0")
    return value


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit status."""
    options = _parser().parse_args(argv)
    # Disable the garbage collector: all of the many small objects are needed until the end.
    gc.disable()
    try:
        analysis = analyse(options.folder, prefix=options.prefix, slow_s=options.slow)
        if options.timeline:
            with open(options.timeline, "w", encoding="utf-8") as file:
                json.dump(analysis.timeline(), file)
    except (DumpError, OSError) as error:
        print(f"dldist.trace: {error}", file=sys.stderr)
        return UNREADABLE
    last = options.last or (_LAST if options.verbose else 0)
    try:
        sys.stdout.write(json.dumps(analysis.to_json(), indent=2) + "\n" if options.json else analysis.text(last))
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of the output, such as head, has exited
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return analysis.exit_status
