"""A deadline for every test, and child processes that end with it, for a conftest.py.

    from deadlines import deadline, procs

    def pytest_configure(config):
        deadlines.begin(config)

    def pytest_unconfigure():
        deadlines.end()

    @pytest.mark.deadline(60)     # seconds; 30 by default

At the deadline an exception in the main thread fails the test. If the test still does not end (a
call that does not check for signals), faulthandler writes all tracebacks some seconds later and
ends the run.
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
"""The run's own stderr: pytest's capture would swallow faulthandler's output to descriptor 2."""


class DeadlineExceeded(BaseException):
    """Raised at the deadline. Not an Exception, so that no test swallows it."""


def begin(config):
    global stderr
    take_all_signals()
    config.addinivalue_line("markers", "deadline(seconds): how long the test may take")
    stderr = os.fdopen(os.dup(2), "w")


def end():
    stderr.close()


def take_all_signals():
    """Restore signals that the process inherited as ignored or blocked, for tests and their
    children.

    A shell script ignores SIGINT in commands that it starts with &, nohup ignores SIGHUP, and some
    launchers block signals.
    """
    of_python = {signal.SIGPIPE, signal.SIGXFSZ}  # Python ignores them itself, but not in children
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
