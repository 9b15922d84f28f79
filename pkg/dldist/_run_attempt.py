"""One start of all ranks of this launcher: runs them, passes on what they print, ends them."""

from __future__ import annotations

import dataclasses
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from dldist import _core, _run_nodes, _run_options, _run_output, _run_ranks, _run_report

# Ctrl-C ends everything within two seconds.
_KILL_AFTER_S = 1.5
_KILL_AGAIN_S = 0.2
# As shells say it.
_NOT_STARTED, _NOT_FOUND = 126, 127
# A rank that has lost another may be quicker to end than the one that is lost.
_CULPRIT_GRACE_S = 0.5
_TORCH_CLIENT_REFUSED = b"TCP client failed to connect/validate to host"


class Interrupted(BaseException):
    """A signal to dlrun, where it waits for something else than ranks."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Signals:
    """What was sent to dlrun: wakes up a selector, and raises Interrupted where it is asked to."""

    HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)

    def __init__(self) -> None:
        self.first: int | None = None
        self.count = 0
        self._is_raising = False
        self._before: dict[int, object] = {}

    def __enter__(self) -> Signals:
        self.reader, self._writer = socket.socketpair()
        self.reader.setblocking(False)
        self._writer.setblocking(False)
        self._fd_before = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        for number in self.HANDLED:
            # What is ignored stays ignored: nohup dlrun.
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        signal.set_wakeup_fd(self._fd_before)
        self.reader.close()
        self._writer.close()

    def _note(self, number: int, _frame: object) -> None:
        self.count += 1
        if self.first is None:
            self.first = number
        if self._is_raising:
            raise Interrupted(number)

    @contextmanager
    def raising(self) -> Iterator[None]:
        self._is_raising = True
        try:
            if self.first is not None:
                raise Interrupted(self.first)
            yield
        finally:
            self._is_raising = False

    def clear(self) -> None:
        try:
            while self.reader.recv(4096):
                pass
        except BlockingIOError:
            pass


class Supervisor:
    """Runs one attempt. run() gives None when every rank of the job ended well, and otherwise the failure to show."""

    def __init__(
        self,
        options: _run_options.Options,
        meeting: _run_nodes.Alone | _run_nodes.Meeting,
        attempt: _run_ranks.Attempt,
        signals: Signals,
    ) -> None:
        self._options = options
        self._meeting = meeting
        self._attempt = attempt
        self._signals = signals
        self._selector = selectors.DefaultSelector()
        self._ranks: list[_run_ranks.Rank] = []
        self._failures: list[_run_report.Failure] = []
        self._told: _run_report.Failure | None = None
        self._end_at: float | None = None
        """When the ranks are told to end."""
        self._kill_at: float | None = None
        """When those that are still there are killed."""
        self._is_noted_done = False
        self._consoles = [_run_output.Console(fd, self._may_wait) for fd in (1, 2)]
        self._nlines_at: dict[int, int] = {}
        """By rank: how many lines the consoles had when it had shown the last of its stderr there."""

    def _may_wait(self) -> bool:
        return self._signals.first is None and (self._kill_at is None or time.monotonic() < self._kill_at)

    def run(self) -> _run_report.Failure | None:
        self._selector.register(self._signals.reader, selectors.EVENT_READ, self._on_signal)
        try:
            self._start()
            while not self._is_over():
                for key, _ in self._selector.select(self._patience()):
                    key.data()
                self._look_around()
        finally:
            for rank in self._ranks:
                rank.close()
            self._selector.close()
        return self._told

    def is_in_sight(self, failure: _run_report.Failure) -> bool:
        """Whether what the failed rank has said can still be read on the console."""
        shown_at = self._nlines_at.get(failure.rank)
        return shown_at is not None and self._nlines() - shown_at <= _run_report.LINES_IN_SIGHT

    def _nlines(self) -> int:
        return sum(console.nlines for console in self._consoles)

    # Starting

    def _start(self) -> None:
        place = self._meeting.place
        for local_rank in range(place.nproc):
            rank = _run_ranks.Rank(self._options, place, self._attempt, local_rank)
            # A rank by itself has the console to itself: a terminal stays one.
            has_pipes = place.world_size > 1 or self._options.kept(local_rank) != (0, 0)
            try:
                rank.start(has_pipes)
                self._ranks.append(rank)
                self._watch(rank)
            except OSError as error:
                if rank not in self._ranks:
                    rank.close()
                self._fail(self._not_started(error))
                return

    def _not_started(self, error: OSError) -> _run_report.Failure:
        program = _run_ranks.command(self._options)[0]
        about = "" if error.filename in (None, program) else f": {error.filename}"
        return _run_report.of_launcher(
            self._meeting.place.node,
            _NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_STARTED,
            f"cannot start {program}: {error.strerror or error}{about}",
        )

    def _watch(self, rank: _run_ranks.Rank) -> None:
        self._selector.register(rank.pidfd, selectors.EVENT_READ, lambda: self._on_end(rank))
        rank.pass_on([self._stream(rank, fd, index) for index, fd in enumerate(rank.pipes)])
        for stream in rank.streams:
            self._selector.register(stream.fd, selectors.EVENT_READ, lambda stream=stream: self._on_output(rank, stream))

    def _stream(self, rank: _run_ranks.Rank, fd: int, index: int) -> _run_output.Stream:
        kept, hidden = self._options.kept(rank.local_rank)
        bit = (_run_options.KEEP_STDOUT, _run_options.KEEP_STDERR)[index]
        return _run_output.Stream(
            fd,
            f"[rank{rank.rank}]: ".encode() if self._meeting.place.world_size > 1 else b"",
            None if hidden & bit else self._consoles[index],
            self._log_file(rank.rank, ("stdout.log", "stderr.log")[index]) if kept & bit else None,
            _TORCH_CLIENT_REFUSED if index == 1 and self._attempt.secret else b"",
        )

    def _log_file(self, rank: int, name: str) -> BinaryIO:
        folder = os.path.join(
            self._options.log_dir or "",
            self._attempt.folder,
            f"attempt_{self._attempt.number}",
            str(rank),
        )
        os.makedirs(folder, exist_ok=True)
        return open(os.path.join(folder, name), "xb", buffering=0)

    # What happens

    def _on_signal(self) -> None:
        self._signals.clear()

    def _on_output(self, rank: _run_ranks.Rank, stream: _run_output.Stream) -> None:
        if not stream.read():
            self._selector.unregister(stream.fd)
        self._note_shown(rank, stream)
        if stream.has_marker and not self._failures:
            self._fail(self._torch_was_refused(rank))

    def _note_shown(self, rank: _run_ranks.Rank, stream: _run_output.Stream) -> None:
        if stream is rank.streams[1] and stream.is_shown:
            self._nlines_at[rank.rank] = self._nlines()

    def _torch_was_refused(self, rank: _run_ranks.Rank) -> _run_report.Failure:
        return _run_report.of_launcher(
            self._meeting.place.node,
            1,
            f"rank {rank.rank} uses torch's own store client, which cannot show the secret of this job and would try in "
            "vain for minutes: run it with --no-secret",
        )

    def _on_end(self, rank: _run_ranks.Rank) -> None:
        rank.note_end()
        if rank.code is None:
            return
        self._selector.unregister(rank.pidfd)
        if rank.code != 0 and self._kill_at is None:
            failure = rank.failure()
            if rank.streams:
                self._note_shown(rank, rank.streams[1])
            self._fail(failure)

    def _fail(self, failure: _run_report.Failure) -> None:
        self._failures.append(failure)
        at = time.monotonic() + (_CULPRIT_GRACE_S if failure.is_consequence else 0.0)
        self._end_at = at if self._end_at is None else min(at, self._end_at)

    def _look_around(self) -> None:
        if self._signals.first is not None:
            self._obey(self._signals.first)
        if not all(console.has_reader for console in self._consoles) and self._kill_at is None:
            self._fail(_run_report.of_launcher(self._meeting.place.node, -signal.SIGPIPE, "nobody reads the output any more"))
        self._look_elsewhere()
        now = time.monotonic()
        if self._end_at is not None and self._kill_at is None and (now >= self._end_at or self._is_alone_and_over()):
            self._tell_others()
            self._end_all(signal.SIGTERM)
        if self._kill_at is not None and now >= self._kill_at:
            self._kill_at = now + _KILL_AGAIN_S
            for rank in self._ranks:
                rank.end(signal.SIGKILL)

    def _obey(self, number: int) -> None:
        if self._kill_at is None:
            name = signal.Signals(number).name
            self._failures.insert(0, _run_report.of_launcher(self._meeting.place.node, -number, f"ended by {name}"))
            self._end_all(number)
            self._tell_others()
        elif self._signals.count > 1:
            self._kill_at = time.monotonic()  # somebody is impatient

    def _end_all(self, number: int) -> None:
        self._kill_at = time.monotonic() + _KILL_AFTER_S
        for rank in self._ranks:
            if rank.code is None:
                rank.end(number)

    def _look_elsewhere(self) -> None:
        if self._meeting.poll_interval is None or self._told is not None:
            return
        try:
            self._told = self._meeting.failure_elsewhere(self._attempt.number)
            if self._told is None and not self._failures and self._has_ended() and not self._is_noted_done:
                self._meeting.note_done(self._attempt.number)
                self._is_noted_done = True
        except _core.DistError as error:
            self._told = self._out_of_reach(error)
        if self._told is not None:
            self._end_at = time.monotonic()

    def _out_of_reach(self, error: Exception) -> _run_report.Failure:
        return _run_report.of_launcher(self._meeting.place.node, 1, f"the other launchers are out of reach: {error}")

    def _tell_others(self) -> None:
        if self._told is not None:
            return
        mine = _run_report.first(self._failures)
        try:
            self._told = self._meeting.report(self._attempt.number, mine)
        except _core.DistError as error:
            self._told = dataclasses.replace(mine, is_final=True)
            print(f"dlrun: the other launchers could not be told: {error}", file=sys.stderr, flush=True)

    # The end

    def _is_alone_and_over(self) -> bool:
        return self._meeting.poll_interval is None and self._has_ended()

    def _has_ended(self) -> bool:
        return all(rank.code is not None for rank in self._ranks)

    def _is_over(self) -> bool:
        if not self._has_ended():
            return False
        if self._failures or self._told is not None:
            return self._told is not None
        if self._meeting.poll_interval is None:
            return True
        try:
            return self._is_noted_done and self._meeting.is_done(self._attempt.number)
        except _core.DistError as error:
            self._told = self._out_of_reach(error)
            return True

    def _patience(self) -> float | None:
        moments = [moment for moment in (self._end_at if self._kill_at is None else None, self._kill_at) if moment is not None]
        if self._meeting.poll_interval is not None:
            moments.append(time.monotonic() + self._meeting.poll_interval)
        return max(min(moments) - time.monotonic(), 0.0) if moments else None
