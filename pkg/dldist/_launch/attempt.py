"""Supervises one attempt of dlrun: starts the ranks, forwards their output, and ends them."""

from __future__ import annotations

import dataclasses
import os
import selectors
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, BinaryIO

from dldist import _core
from dldist._launch import dumps as launch_dumps
from dldist._launch import nodes, output, report
from dldist._launch import options as launch_options
from dldist._launch import ranks as launch_ranks

_KILL_INTERVAL_S = 0.2
# Seconds until the first notice of ranks that have not ended, and between later notices.
_FIRST_NOTICE_S = 2.0
_NOTICE_INTERVAL_S = 5.0
# Maximum seconds by which a console that is not read may delay the end of the ranks.
_READER_TIMEOUT_S = 1.5
_MAX_NAMED_RANKS = 8
# Exit codes that shells use for programs that cannot be started.
_NOT_STARTED, _NOT_FOUND = 126, 127
# Seconds to wait for the cause: a lost rank may end after the rank that noticed the loss.
_CAUSE_TIMEOUT_S = 0.5
# The same if the other rank's error names a rank of this launcher that still runs, or another host.
_BLAMED_TIMEOUT_S = 3.0
_TORCH_CLIENT_REFUSED = b"TCP client failed to connect/validate to host"


class Interrupted(BaseException):
    """Raised if a signal arrives while dlrun waits for something other than ranks."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Signals:
    """The signals that dlrun receives. A signal wakes a selector or, in raising(), is raised."""

    HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)

    def __init__(self, report_signal: int = 0) -> None:
        """`report_signal` is the signal that requests a report, or 0."""
        self.first: int | None = None
        self.count = 0
        self.is_report_wanted = False
        self._handlers = {report_signal: self._on_report_signal} | dict.fromkeys(self.HANDLED, self._on_signal)
        self._is_raising = False
        self._previous_handlers: dict[int, object] = {}

    def __enter__(self) -> Signals:
        self.reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._previous_wakeup_fd = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        for number, handler in self._handlers.items():
            # A signal that was ignored at the start stays ignored, as SIGHUP under nohup.
            if number and signal.getsignal(number) is not signal.SIG_IGN:
                self._previous_handlers[number] = signal.signal(number, handler)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        signal.set_wakeup_fd(self._previous_wakeup_fd)
        os.close(self.reader)
        os.close(self._writer)

    def _on_signal(self, number: int, _frame: object) -> None:
        self.count += 1
        if self.first is None:
            self.first = number
        if self._is_raising:
            raise Interrupted(number)

    def _on_report_signal(self, _number: int, _frame: object) -> None:
        self.is_report_wanted = True

    def handles(self, number: int) -> bool:
        """Return True unless dlrun was started with the signal ignored."""
        return number in self._previous_handlers

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
            while os.read(self.reader, 4096):
                pass
        except BlockingIOError:
            pass


class Supervisor:
    """Runs one attempt. run() returns None if the job succeeded, else the failure to show."""

    def __init__(self, launchers: nodes.Launchers, attempt: launch_ranks.Attempt, signals: Signals) -> None:
        self._options = attempt.options
        self._layout = attempt.layout
        self._launchers = launchers
        self._attempt = attempt
        self._signals = signals
        self._selector = selectors.DefaultSelector()
        self._ranks: list[launch_ranks.Rank] = []
        self._failures: list[report.Failure] = []
        self._published_failure: report.Failure | None = None
        self._end_at: float | None = None
        """The time at which to signal the ranks to end, or None."""
        self._kill_at: float | None = None
        """The time at which to kill the remaining ranks, or None."""
        self._signalled_at = 0.0
        self._notice_at: float | None = None
        """The time at which to print again which ranks have not ended, or None."""
        self._has_requested_dumps = False
        """True if dumps were requested from the ranks after a failure."""
        self._is_report_pending = False
        self._dumps = launch_dumps.Dumps(attempt)
        self._has_published_success = self._is_done = False
        self._consoles = [output.Console(fd, self._may_block) for fd in (1, 2)]
        self._nlines_when_shown: dict[int, int] = {}
        """The consoles' line count after each rank's last output to stderr, by rank."""

    def _may_block(self) -> bool:
        is_ending = self._kill_at is not None
        return self._signals.first is None and (not is_ending or time.monotonic() - self._signalled_at < _READER_TIMEOUT_S)

    def run(self) -> report.Failure | None:
        self._selector.register(self._signals.reader, selectors.EVENT_READ, self._signals.clear)
        try:
            self._start()
            while not self._is_over():
                for key, _ in self._selector.select(self._select_timeout()):
                    key.data()
                self._handle_events()
        finally:
            for rank in self._ranks:
                rank.close()
            self._selector.close()
            self._dumps.close(is_useful=self._published_failure is not None and self._signals.first is None)
        return self._published_failure

    def describe_dumps(self, failure: report.Failure) -> bytes:
        """Describe a failure's dumps and their location; return b"" if there are none."""
        if self._signals.first is not None or not self._dumps.has_any():
            return b""
        lines = [self._dumps.describe_location()]
        # The analysis needs all ranks' dumps, so analyse only if all ranks are on this machine.
        if report.is_timeout(failure) and self._layout.nnodes == 1:
            lines.insert(0, self._dumps.summarise())
        return b"".join(f"dlrun: {line}\n".encode(errors="replace") for line in lines)

    def _print(self, text: str) -> None:
        self._consoles[1].write(f"dlrun: {text}\n".encode(errors="replace"))

    def is_visible(self, failure: report.Failure) -> bool:
        """True if the failed rank's last output is probably still visible on the terminal."""
        shown_at = self._nlines_when_shown.get(failure.rank)
        return shown_at is not None and self._nlines() - shown_at <= report.VISIBLE_LINES

    def _nlines(self) -> int:
        return sum(console.nlines for console in self._consoles)

    def _start(self) -> None:
        if (reason := launch_ranks.missing_script_reason(self._options)) is not None:
            self._end_job(_NOT_FOUND, reason)
            return
        for local_rank in range(self._layout.nproc):
            # A launcher's only rank inherits the console, so that it still writes to a terminal.
            is_plain = self._options.file_streams(local_rank) == (0, 0) and self._options.is_shown(local_rank)
            has_pipes = self._layout.world_size > 1 or not is_plain
            try:
                rank = launch_ranks.Rank(self._attempt, local_rank, self._dumps.environment, has_pipes)
                self._ranks.append(rank)
                self._watch(rank)
            except OSError as error:
                program = launch_ranks.command(self._options)[0]
                suffix = "" if error.filename in (None, program) else f": {error.filename}"
                code = _NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_STARTED
                self._end_job(code, f"cannot start {program}: {error.strerror or error}{suffix}")
                return

    def _watch(self, rank: launch_ranks.Rank) -> None:
        self._selector.register(rank.child, selectors.EVENT_READ, lambda: self._on_end(rank))
        rank.streams = [self._stream(rank, pipe, index) for index, pipe in enumerate(rank.pipes)]
        for stream in rank.streams:
            self._selector.register(stream.pipe, selectors.EVENT_READ, lambda stream=stream: self._on_output(rank, stream))

    def _stream(self, rank: launch_ranks.Rank, pipe: IO[bytes], index: int) -> output.Stream:
        kept, hidden = self._options.file_streams(rank.local_rank)
        bit = (launch_options.KEEP_STDOUT, launch_options.KEEP_STDERR)[index]
        stream = output.Stream(
            pipe,
            f"[rank{rank.rank}]: ".encode() if self._layout.world_size > 1 else b"",
            self._consoles[index] if self._options.is_shown(rank.local_rank) and not hidden & bit else None,
            self._log_file(rank.rank, ("stdout.log", "stderr.log")[index]) if kept & bit else None,
            _TORCH_CLIENT_REFUSED if index == 1 and self._attempt.secret else b"",
        )
        stream.is_reading = rank.reads_terminal if rank.has_keyboard else None
        return stream

    def _log_file(self, rank: int, name: str) -> BinaryIO:
        folder = os.path.join(self._attempt.log_folder, str(rank))
        os.makedirs(folder, exist_ok=True)
        return open(os.path.join(folder, name), "xb", buffering=0)

    def _on_output(self, rank: launch_ranks.Rank, stream: output.Stream) -> None:
        if not stream.read():
            self._selector.unregister(stream.pipe)
        self._record_shown(rank, stream)
        if stream.has_marker and not self._failures:
            self._end_job(
                1,
                f"rank {rank.rank} uses torch's own store client, which cannot prove the job's secret; without it, the dlrun at "
                f"{self._options.host} only accepts clients of its user on its machine; pass --no-secret on all machines",
            )

    def _record_shown(self, rank: launch_ranks.Rank, stream: output.Stream) -> None:
        if stream is rank.streams[1] and stream.is_shown:
            self._nlines_when_shown[rank.rank] = self._nlines()

    def _on_end(self, rank: launch_ranks.Rank) -> None:
        if not rank.child.has_ended():
            return
        self._selector.unregister(rank.child)
        if rank.code != 0 and self._kill_at is None:
            failure = rank.failure()
            if rank.streams:
                self._record_shown(rank, rank.streams[1])
            self._fail(failure)

    def _launcher_failure(self, code: int, reason: str) -> report.Failure:
        return report.launcher_failure(self._layout.node, code, reason)

    def _end_job(self, code: int, reason: str) -> None:
        self._fail(self._launcher_failure(code, reason))

    def _fail(self, failure: report.Failure) -> None:
        self._failures.append(failure)
        now = time.monotonic()
        if self._published_failure is None and all(each.is_consequence for each in self._failures):
            self._end_at = max(self._end_at or now + _CAUSE_TIMEOUT_S, now + _BLAMED_TIMEOUT_S if self._may_run(failure) else 0.0)
        else:
            self._end_at = min(self._end_at or now, now)

    def _may_run(self, failure: report.Failure) -> bool:
        """True if the process that a failure names as its cause runs here, or is on another host."""
        host, pid = report.blamed_process(failure.tail.encode(errors="replace")) or (failure.host, 0)
        return pid in {rank.pid for rank in self._running()} if host == failure.host else self._layout.nnodes > 1

    def _handle_events(self) -> None:
        if self._signals.first is not None:
            self._handle_signal(self._signals.first)
        if not all(console.has_reader for console in self._consoles) and self._kill_at is None:
            self._end_job(-signal.SIGPIPE, "the output has no reader")
        self._check_other_launchers()
        self._handle_report_request()
        now = time.monotonic()
        for stream in self._ranks[0].streams if self._ranks else ():
            stream.forward_start(now)
        if self._end_at is not None and self._kill_at is None:
            is_last = self._launchers.is_alone and self._has_ended()
            if is_last or now >= self._end_at:
                self._end_after_dumps()
        if self._kill_at is not None and now >= self._kill_at:
            self._kill_at = now + _KILL_INTERVAL_S
            self._notice_at = None
            for rank in self._ranks:
                rank.child.send_to_all(signal.SIGKILL)
        if self._notice_at is not None and now >= self._notice_at and not self._has_ended():
            self._notice_at = now + _NOTICE_INTERVAL_S
            self._print_running_ranks(now)

    def _end_after_dumps(self) -> None:
        """Report the failure, request dumps from the running ranks, then end the ranks."""
        self._publish_failure()
        if not self._has_requested_dumps:
            self._has_requested_dumps = True
            self._dumps.request(self._running(), is_requested_by_user=False)
        if self._dumps.poll():
            self._end_all(signal.SIGTERM)

    def _print_running_ranks(self, now: float) -> None:
        left = max((self._kill_at or now) - now, 0.0)
        if self._signals.first is not None:
            how = "a second signal"
        else:
            how = f"{'Ctrl-C' if self._signals.handles(signal.SIGINT) else 'SIGTERM'} twice"
        self._print(f"waiting for {_format_ranks(self._running())} to end; remaining processes are killed in {left:.0f} s, or by {how}")

    def _handle_report_request(self) -> None:
        if self._signals.is_report_wanted:
            self._signals.is_report_wanted = False
            self._is_report_pending = True
            self._dumps.request(self._running(), is_requested_by_user=True)
        if self._is_report_pending and self._dumps.poll():
            self._is_report_pending = False
            for line in self._report_lines():
                self._print(line)

    def _report_lines(self) -> Iterator[str]:
        running, dumps = self._running(), self._dumps
        yield f"report at {report.now()}: {len(running)} of {len(self._ranks)} ranks here are running: {_format_ranks(running) or 'none'}"
        if dumps.without_handler:
            yield f"{_format_ranks(dumps.without_handler)}: no information: not in a group of several ranks, or the signal is not handled"
        if dumps.without_dump:
            yield f"{_format_ranks(dumps.without_dump)}: no dump after the signal: the process may be stopped, or the file system may hang"
        if dumps.has_any():
            yield dumps.summarise()
            if self._layout.nnodes > 1:
                yield "this covers only the ranks of this machine; send SIGUSR2 to the dlrun of each machine"
            yield dumps.describe_location()

    def _handle_signal(self, number: int) -> None:
        if self._kill_at is None:
            name = signal.Signals(number).name
            self._failures.insert(0, self._launcher_failure(-number, f"ended by {name}"))
            self._end_all(number)
            self._publish_failure()
        elif self._signals.count > 1:
            self._kill_at = time.monotonic()  # so that a second signal kills the ranks immediately

    def _end_all(self, number: int) -> None:
        self._signalled_at = time.monotonic()
        self._kill_at = self._signalled_at + self._options.grace_s
        self._notice_at = self._signalled_at + _FIRST_NOTICE_S
        for rank in self._running():
            rank.child.send_to_all(number)

    def _running(self) -> list[launch_ranks.Rank]:
        return [rank for rank in self._ranks if rank.code is None]

    def _check_other_launchers(self) -> None:
        if self._published_failure is not None:
            return
        try:
            self._published_failure = self._launchers.remote_failure(self._attempt.number)
            if self._published_failure is None and not self._failures and self._has_ended():
                if not self._has_published_success:
                    self._launchers.publish_success(self._attempt.number)
                    self._has_published_success = True
                self._is_done = self._launchers.has_succeeded(self._attempt.number)
        except _core.DistError as error:
            self._published_failure = self._launcher_failure(1, f"the other launchers are unreachable: {error}")
        if self._published_failure is not None:
            self._end_at = time.monotonic()

    def _publish_failure(self) -> None:
        if self._published_failure is not None:
            return
        failure = report.first_cause(self._failures)
        try:
            self._published_failure = self._launchers.report(self._attempt.number, failure)
        except _core.DistError as error:
            self._published_failure = dataclasses.replace(failure, is_final=True)
            output.print_message(f"the other launchers could not be notified: {error}")

    def _has_ended(self) -> bool:
        return all(rank.code is not None for rank in self._ranks)

    def _is_over(self) -> bool:
        return self._has_ended() and (self._published_failure is not None or self._is_done)

    def _select_timeout(self) -> float | None:
        end_at = self._end_at if self._kill_at is None else None
        if end_at is not None and self._has_requested_dumps:
            end_at = self._dumps.next_poll()
        starts = [stream.start_due for stream in self._ranks[0].streams] if self._ranks else []
        maybe = (end_at, self._kill_at, self._notice_at, self._dumps.next_poll(), *starts)
        moments = [moment for moment in maybe if moment is not None]
        if not self._launchers.is_alone:
            moments.append(time.monotonic() + self._options.poll_s)
        return max(min(moments) - time.monotonic(), 0.0) if moments else None


def _format_ranks(ranks: list[launch_ranks.Rank]) -> str:
    shown = [f"rank {rank.rank} (pid {rank.pid})" for rank in ranks[:_MAX_NAMED_RANKS]]
    return ", ".join([*shown, *([f"{len(ranks) - _MAX_NAMED_RANKS} more"] if len(ranks) > _MAX_NAMED_RANKS else [])])
