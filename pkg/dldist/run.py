"""dlrun: run a program in several processes that form one job (docs/launcher.md)."""

from __future__ import annotations

import os
import secrets
import sys
import tempfile

from dldist import _core
from dldist._base import monitor_thread, settings
from dldist._launch import attempt as launch_attempt
from dldist._launch import nodes, output, report
from dldist._launch import options as launch_options

# Seconds that the launcher that serves the store waits for others to read the job's result.
_LEAVE_TIMEOUT_S = 5.0
_LEAVE_TIMEOUT_AFTER_SIGNAL_S = 0.3


def main(argv: list[str] | None = None) -> int:
    """Run dlrun. Return 0, the first failed rank's exit code, or 128 plus a signal's number."""
    output.open_missing_streams()
    options = launch_options.parse(argv)
    try:
        with launch_attempt.Signals(monitor_thread.dump_signal()) as signals:
            _choose_folder(options)
            return _launch(options, signals)
    except launch_attempt.Interrupted as error:
        return 128 + error.number
    except (nodes.LaunchError, _core.DistError, OSError) as error:
        output.print_message(str(error))
        return 1


def _secret(options: launch_options.Options) -> str:
    """Return the secret for all connections of the job, or "" for none."""
    if not options.has_secret:
        return ""
    given = os.fsdecode(settings.secret())
    if given or options.nnodes == 1:
        return given or secrets.token_hex(16)
    output.print_message(
        "warning: no secret: every process that reaches the port can join this job; set DLDIST_SECRET to the same text on "
        "all machines, or pass --no-secret"
    )
    return ""


def _launch(options: launch_options.Options, signals: launch_attempt.Signals) -> int:
    with signals.raising():
        launchers = nodes.Launchers(options, _secret(options))
    failure = None
    for number in range(options.max_restarts + 1):
        with signals.raising():
            attempt = launchers.attempt(number)
        supervisor = launch_attempt.Supervisor(launchers, attempt, signals)
        failure = supervisor.run()
        if failure is None:
            break
        sys.stderr.buffer.write(supervisor.describe_dumps(failure))
        sys.stderr.buffer.write(report.describe(failure, supervisor.is_visible(failure)))
        sys.stderr.flush()
        if failure.is_final:
            break
        if number < options.max_restarts:
            output.print_message(f"restarting all ranks: {number + 1} of {options.max_restarts}")
    _leave(launchers, signals)
    return failure.exit_code if failure is not None else 0


def _leave(launchers: nodes.Launchers, signals: launch_attempt.Signals) -> None:
    try:
        if signals.first is not None:
            launchers.leave(_LEAVE_TIMEOUT_AFTER_SIGNAL_S)
        else:
            with signals.raising():
                launchers.leave(_LEAVE_TIMEOUT_S)
    except _core.DistError:
        pass  # the launcher that serves the store has left the job


def _choose_folder(options: launch_options.Options) -> None:
    """Create a folder for output if output goes to files and no folder was given."""
    if not options.log_dir and any(any(options.file_streams(rank)) for rank in range(options.nproc)):
        options.log_dir = tempfile.mkdtemp(prefix="dlrun_")
        output.print_message(f"files are in {options.log_dir}")


if __name__ == "__main__":
    sys.exit(main())
