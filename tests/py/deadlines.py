"""A deadline for every test, and child processes that do not outlive it; for the conftest.py of a folder of tests.

    from deadlines import deadline, procs

    def pytest_configure(config):
        deadlines.begin(config)

    def pytest_unconfigure():
        deadlines.end()

    @pytest.mark.deadline(60)     # seconds; 30 when not given

At the deadline the test fails, by an exception in the main thread. If even that does not end it (a call that does not look
after signals), faulthandler writes all tracebacks some seconds later and ends the run.
"""

import faulthandler
import os
import signal

import leak_check
import procs as procs_module
import pytest

DEFAULT_DEADLINE_S = 30
GRACE_S = 10
stderr = None
"""The run's own: pytest's capture would swallow what faulthandler writes to descriptor 2."""


class DeadlineExceeded(BaseException):
    """Not an Exception: no test may swallow it."""


def begin(config):
    global stderr
    take_all_signals()
    config.addinivalue_line("markers", "deadline(seconds): how long the test may take")
    stderr = os.fdopen(os.dup(2), "w")


def end():
    stderr.close()


def take_all_signals():
    """Restore signals that the process inherited as ignored or blocked, for tests and their children.

    A shell script ignores SIGINT in what it starts with &, nohup ignores SIGHUP, and some launchers block signals.
    """
    of_python = {signal.SIGPIPE, signal.SIGXFSZ}  # Python itself ignores them, and restores them for children
    for number in signal.valid_signals() - of_python:
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


@pytest.fixture(autouse=True)
def deadline(request):
    marker = request.node.get_closest_marker("deadline")
    seconds = (marker.args[0] if marker else DEFAULT_DEADLINE_S) * leak_check.slower()

    def on_alarm(_signum, _frame):
        raise DeadlineExceeded(f"{request.node.nodeid} took longer than {seconds} s")

    previous = signal.signal(signal.SIGALRM, on_alarm)
    faulthandler.dump_traceback_later(seconds + GRACE_S, exit=True, file=stderr)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield seconds
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()
        signal.signal(signal.SIGALRM, previous)


@pytest.fixture
def procs():
    group = procs_module.Group()
    try:
        yield group
    finally:
        group.close()
