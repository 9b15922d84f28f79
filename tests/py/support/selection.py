"""Select the tests that run by default, and summarise what did not run.

    @pytest.mark.exhaustive             # runs only with --all
    @pytest.mark.exhaustive(every=7)    # of the test's cases, every seventh runs without --all

A test whose id is on the command line (`test_x.py::test_y`) always runs.
"""

import collections
import sys

import pytest

ALL = pytest.StashKey()
"""Whether all tests run."""
OMITTED = pytest.StashKey()
"""The number of tests that were deselected, here and in xdist workers."""


def add_option(parser):
    parser.addoption("--all", action="store_true", help="also run the tests that are marked exhaustive")


def begin(config):
    config.addinivalue_line("markers", "exhaustive(every=None): run only with --all, or one case in `every` otherwise")
    config.stash[ALL] = config.getoption("--all") or any("::" in argument for argument in config.args)
    config.stash[OMITTED] = 0


def deselect_exhaustive(config, items):
    """Remove exhaustive tests from `items`, which is changed in place."""
    if config.stash[ALL]:
        return
    cases = collections.Counter()
    chosen, omitted = [], []
    for item in items:
        (omitted if _is_omitted(item, cases) else chosen).append(item)
    items[:] = chosen
    config.stash[OMITTED] = len(omitted)
    config.hook.pytest_deselected(items=omitted)
    if hasattr(config, "workeroutput"):
        config.workeroutput["omitted"] = len(omitted)


def collect_from_worker(config, output):
    """Take the number of an xdist worker, all of which select the same tests."""
    config.stash[OMITTED] = output.get("omitted", 0)


def _is_omitted(item, cases):
    marker = item.get_closest_marker("exhaustive")
    if marker is None:
        return False
    every = marker.kwargs.get("every")
    if every is None:
        return True
    case = (item.path, item.originalname)
    cases[case] += 1
    return cases[case] % every != 1


def write_summary(reporter, config):
    """Write one line for each reason of skipped tests, and the command that repeats failures."""
    reasons = collections.Counter(_reason(report) for report in reporter.stats.get("skipped", []))
    if reasons:
        reporter.section("skipped")
        for reason, count in sorted(reasons.items(), key=lambda pair: -pair[1]):
            reporter.write_line(f"{count:5} {reason}")
    if config.stash[OMITTED]:
        reporter.write_line(f"{config.stash[OMITTED]:5} exhaustive tests did not run: --all runs them")
    failed = [report.nodeid for kind in ("failed", "error") for report in reporter.stats.get(kind, [])]
    if failed:
        reporter.section("to repeat the failures")
        names = " ".join(f"'{name}'" for name in dict.fromkeys(failed))
        reporter.write_line(f"{sys.executable} -m pytest {names}")


def _reason(report):
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return text.removeprefix("Skipped: ")
