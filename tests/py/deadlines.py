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
    config.addinivalue_line("markers", "deadline(seconds): how long the test may take")
    stderr = os.fdopen(os.dup(2), "w")


def end():
    stderr.close()


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
