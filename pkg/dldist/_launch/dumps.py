"""The flight recorder dumps of dlrun's ranks: requests dumps, finds the files and analyses them."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterable

from dldist._base import monitor_thread, settings
from dldist._launch import ranks as launch_ranks

# A dump takes milliseconds. The limit is for a stopped rank or a hanging file system.
_PATIENCE_S = 3.0
_LOOK_AGAIN_S = 0.02
_PREFIX = "trace_"

Stamp = tuple[int, int] | None
"""Inode and modification time of a file, which change when the file is replaced."""


class Dumps:
    """The dumps of one attempt. ask() does not block: poll look() until it returns True."""

    def __init__(self, attempt: launch_ranks.Attempt) -> None:
        self.environment: dict[str, str] = {}
        """Environment variables that make ranks write their dumps where this class looks."""
        self.waits_until: float | None = None
        """The deadline for dumps of the ranks that ask() has signalled; None if none is pending."""
        self.silent: list[launch_ranks.Rank] = []
        """Ranks that were signalled, but whose dump is pending or missing."""
        self.deaf: list[launch_ranks.Rank] = []
        """Ranks that the last ask() could not signal."""
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
            # The first rank that writes a dump creates the folder.
            self._made = os.path.join(attempt.log_folder, "traces")
        else:
            try:
                self._made = tempfile.mkdtemp(prefix="dlrun_")  # a folder only for this user
            except OSError:
                return ""  # no folder for dumps, but the job can run
        prefix = os.path.join(os.path.abspath(self._made), _PREFIX)
        self.environment = {"DLDIST_FR_DUMP_FILE": prefix}
        return prefix

    def ask(self, ranks: Iterable[launch_ranks.Rank], is_wanted: bool) -> None:
        """Request dumps from ranks. `is_wanted`: the user requested the dumps, so keep them."""
        self._is_wanted = self._is_wanted or is_wanted
        self.silent, self.deaf = [], []
        if not self._prefix:
            return
        for rank in ranks:
            self._before[rank.rank] = self._stamp(rank.rank)
            # A rank without a handler is not signalled, because the signal would end it.
            (self.silent if rank.ask_by(self._number) else self.deaf).append(rank)
        self.waits_until = time.monotonic() + _PATIENCE_S if self.silent else None

    def look(self) -> bool:
        """Return True if no dump is pending: all are written or the deadline has passed."""
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
        """Find the rank's newest dump. Two formats may exist if the environment sets the path."""
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

    def has_any(self) -> bool:
        """True if a rank has written a dump since the start."""
        return bool(self._written())

    def _written(self) -> dict[int, str]:
        """Find dumps written since the start: a folder that the user chose may have older ones."""
        newest = {rank: self._newest(rank) for rank in self._ranks}
        return {rank: path for rank, (path, stamp) in newest.items() if stamp != self._at_start[rank]}

    def where(self) -> str:
        """Describe where the dumps are and how to analyse them."""
        folder, name = os.path.split(self._prefix)
        folder = folder or "."
        prefix = "" if self._made else f"-p {name} "
        return f"the flight recorders of the ranks are in {folder}; python -m dldist.trace {prefix}{folder}"

    def verdict(self) -> str:
        """Summarise in a paragraph the calls that ranks are stuck in."""
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
        """Remove the dumps unless they are useful or the user requested them."""
        if self._made is None:
            return
        if not (is_of_use or self._is_wanted):
            shutil.rmtree(self._made, ignore_errors=True)
        else:
            try:
                os.rmdir(self._made)
            except OSError:
                pass  # the folder is not empty, or does not exist
