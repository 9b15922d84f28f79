"""The flight recorder dumps of a dlrun's ranks: where they go, how ranks are asked for them, and what they show."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterable

from dldist._base import monitor_thread, settings
from dldist._launch import ranks as launch_ranks

# A dump takes milliseconds. This limits how long a stopped rank or a hanging file system can delay the report.
_PATIENCE_S = 3.0
_LOOK_AGAIN_S = 0.02
_PREFIX = "trace_"

Stamp = tuple[int, int] | None
"""Inode and time of a file, to tell it from an earlier file of the same name."""


class Dumps:
    """The dumps of one attempt. Asking for them does not block, because the supervisor has to pass on output meanwhile."""

    def __init__(self, attempt: launch_ranks.Attempt) -> None:
        self.environment: dict[str, str] = {}
        """Variables for the ranks, so that they write where this looks."""
        self.waits_until: float | None = None
        """How long to wait for ranks that were asked. None if none was asked, or if all have answered."""
        self.silent: list[launch_ranks.Rank] = []
        """Ranks that were asked last, and have not answered."""
        self.deaf: list[launch_ranks.Rank] = []
        """Ranks that could not be asked last."""
        self._number = monitor_thread.dump_signal()
        self._before: dict[int, Stamp] = {}
        self._is_wanted = False
        self._made: str | None = None
        self._prefix = settings.value("dump_file")
        place = attempt.place
        if not self._prefix and place.world_size > 1:
            self._prefix = self._make_place(attempt)
        self._ranks = range(place.first_rank, place.first_rank + place.nproc)
        self._at_start = {rank: self._stamp(rank) for rank in self._ranks}

    def _make_place(self, attempt: launch_ranks.Attempt) -> str:
        if attempt.options.log_dir:
            # The first rank that writes makes it.
            self._made = os.path.join(attempt.log_folder, "traces")
        else:
            try:
                self._made = tempfile.mkdtemp(prefix="dlrun_")  # for this user alone
            except OSError:
                return ""  # there is nowhere to write, but the job can run
        prefix = os.path.join(os.path.abspath(self._made), _PREFIX)
        self.environment = {"DLDIST_FR_DUMP_FILE": prefix}
        return prefix

    # Asking

    def ask(self, ranks: Iterable[launch_ranks.Rank], is_wanted: bool) -> None:
        """Ask running ranks for dumps. `is_wanted`: the user asked, so the dumps are kept however the job ends."""
        self._is_wanted = self._is_wanted or is_wanted
        self.silent, self.deaf = [], []
        if not self._prefix:
            return
        for rank in ranks:
            self._before[rank.rank] = self._stamp(rank.rank)
            # The signal would end a rank that has no handler for it.
            (self.silent if rank.ask_by(self._number) else self.deaf).append(rank)
        self.waits_until = time.monotonic() + _PATIENCE_S if self.silent else None

    def look(self) -> bool:
        """Whether all have answered, or the time is over."""
        self.silent = [
            rank for rank in self.silent if rank.code is None and self._stamp(rank.rank) == self._before[rank.rank]
        ]
        if self.waits_until is not None and (not self.silent or time.monotonic() >= self.waits_until):
            self.waits_until = None
        return self.waits_until is None

    def next_look(self) -> float | None:
        return time.monotonic() + _LOOK_AGAIN_S if self.waits_until is not None else None

    def _stamp(self, rank: int) -> Stamp:
        return self._newest(rank)[1]

    def _newest(self, rank: int) -> tuple[str, Stamp]:
        """The rank's newest file. There may be one in each format if the environment says where dumps go."""
        newest: tuple[str, Stamp] = "", None
        for ending in ("", ".json") if self._prefix else ():
            path = f"{self._prefix}{rank}{ending}"
            try:
                found = os.stat(path)
            except OSError:
                continue
            if newest[1] is None or newest[1][1] < found.st_mtime_ns:
                newest = path, (found.st_ino, found.st_mtime_ns)
        return newest

    # What they show

    def has_any(self) -> bool:
        """Whether a rank has written a dump since the start."""
        return bool(self._written())

    def _written(self) -> dict[int, str]:
        """The files that ranks have written since the start. Older files may lie there if the environment says where dumps go."""
        newest = {rank: self._newest(rank) for rank in self._ranks}
        return {rank: path for rank, (path, stamp) in newest.items() if stamp != self._at_start[rank]}

    def where(self) -> str:
        """Where the dumps are, and how to read them."""
        folder, name = os.path.split(self._prefix)
        folder = folder or "."
        prefix = "" if self._made else f"-p {name} "
        return f"the flight recorders of the ranks are in {folder}; python -m dldist.trace {prefix}{folder}"

    def verdict(self) -> str:
        """Which rank is stuck where, in a paragraph."""
        from dldist import trace

        dumps = {}
        try:
            for rank, path in self._written().items():
                with open(path, "rb") as file:
                    dumps[rank] = file.read()
            return trace.analyse(dumps).summary
        except (trace.DumpError, OSError) as error:
            return f"the flight recorders could not be read: {error}"

    def close(self, is_of_use: bool) -> None:
        """Remove the dumps, unless they are of use or the user asked for them."""
        if self._made is None:
            return
        if not (is_of_use or self._is_wanted):
            shutil.rmtree(self._made, ignore_errors=True)
        else:
            try:
                os.rmdir(self._made)
            except OSError:
                pass  # it is not empty, or does not exist
