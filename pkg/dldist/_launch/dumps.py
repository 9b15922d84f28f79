"""The flight recorder dumps of dlrun's ranks: requests dumps, finds the files and analyses them."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterable

from dldist._base import monitor_thread, settings
from dldist._launch import ranks as launch_ranks

# Seconds to wait for dumps. A stopped rank or a hanging file system may take forever.
_TIMEOUT_S = 3.0
_POLL_S = 0.02
_PREFIX = "trace_"

Stamp = tuple[int, int] | None
"""Inode and modification time of a file, which change when the file is replaced."""


class Dumps:
    """The dumps of one attempt. request() does not block: call poll() until it returns True."""

    def __init__(self, attempt: launch_ranks.Attempt) -> None:
        self.environment: dict[str, str] = {}
        """Environment variables that make ranks write their dumps where this class looks."""
        self.deadline: float | None = None
        """The deadline for dumps of signalled ranks; None if no dump is pending."""
        self.without_dump: list[launch_ranks.Rank] = []
        """Ranks that were signalled, but whose dump is pending or missing."""
        self.without_handler: list[launch_ranks.Rank] = []
        """Ranks that the last request() could not signal."""
        self._number = monitor_thread.dump_signal()
        self._stamps_before: dict[int, Stamp] = {}
        self._is_requested_by_user = False
        self._folder: str | None = None
        self._prefix = settings.value("dump_file")
        layout = attempt.layout
        if not self._prefix and layout.world_size > 1:
            self._prefix = self._make_folder(attempt)
        self._ranks = range(layout.first_rank, layout.first_rank + layout.nproc)
        self._stamps_at_start = {rank: self._stamp(rank) for rank in self._ranks}

    def _make_folder(self, attempt: launch_ranks.Attempt) -> str:
        if attempt.options.log_dir:
            # Do not create the folder: the first rank that writes a dump creates it.
            self._folder = os.path.join(attempt.log_folder, "traces")
        else:
            try:
                self._folder = tempfile.mkdtemp(prefix="dlrun_")  # private to this user
            except OSError:
                return ""  # without this folder there are no dumps, but the job can run
        prefix = os.path.join(os.path.abspath(self._folder), _PREFIX)
        self.environment = {"DLDIST_FR_DUMP_FILE": prefix}
        return prefix

    def request(self, ranks: Iterable[launch_ranks.Rank], is_requested_by_user: bool) -> None:
        """Request dumps from ranks. Dumps that the user requested are kept."""
        self._is_requested_by_user = self._is_requested_by_user or is_requested_by_user
        self.without_dump, self.without_handler = [], []
        if not self._prefix:
            return
        for rank in ranks:
            self._stamps_before[rank.rank] = self._stamp(rank.rank)
            # A rank without a handler is not signalled, because the signal would end it.
            (self.without_dump if rank.signal_if_handled(self._number) else self.without_handler).append(rank)
        self.deadline = time.monotonic() + _TIMEOUT_S if self.without_dump else None

    def poll(self) -> bool:
        """Return True if no dump is pending: all are written or the deadline has passed."""
        self.without_dump = [
            rank for rank in self.without_dump if rank.code is None and self._stamp(rank.rank) == self._stamps_before[rank.rank]
        ]
        if self.deadline is not None and (not self.without_dump or time.monotonic() >= self.deadline):
            self.deadline = None
        return self.deadline is None

    def next_poll(self) -> float | None:
        return time.monotonic() + _POLL_S if self.deadline is not None else None

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
        return bool(self._find_new())

    def _find_new(self) -> dict[int, str]:
        """Find dumps written since the start: a folder that the user chose may have older ones."""
        newest = {rank: self._newest(rank) for rank in self._ranks}
        return {rank: path for rank, (path, stamp) in newest.items() if stamp != self._stamps_at_start[rank]}

    def describe_location(self) -> str:
        """Describe where the dumps are and how to analyse them."""
        folder, name = os.path.split(self._prefix)
        folder = folder or "."
        prefix = "" if self._folder else f"-p {name} "
        return f"the flight recorders of the ranks are in {folder}; python -m dldist.trace {prefix}{folder}"

    def summarise(self) -> str:
        """Summarise in a paragraph the calls that ranks are stuck in."""
        from dldist import trace

        dumps = {}
        try:
            for rank, path in self._find_new().items():
                with open(path, "rb") as file:
                    dumps[rank] = file.read()
            return trace.analyse(dumps).summary
        except (trace.DumpError, OSError) as error:
            return f"the flight recorders could not be read: {error}"

    def close(self, is_useful: bool) -> None:
        """Remove the dumps unless they are useful or the user requested them."""
        if self._folder is None:
            return
        if not (is_useful or self._is_requested_by_user):
            shutil.rmtree(self._folder, ignore_errors=True)
        else:
            try:
                os.rmdir(self._folder)
            except OSError:
                pass  # the folder is not empty, or does not exist
