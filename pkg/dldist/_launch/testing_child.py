"""The program of a dldist.testing rank: finds the test function, calls it, sends the outcome."""

from __future__ import annotations

import faulthandler
import importlib
import importlib.machinery
import importlib.util
import io
import linecache
import os
import pickle
import re
import resource
import signal
import sys
import time
import types
import unittest
from multiprocessing.connection import Connection
from typing import Any

from dldist import _core
from dldist._launch import child_calls, processes
from dldist._objects import pickling

# Test runners omit the frames of this module from tracebacks.
__tracebackhide__ = __unittest = True


def main(fd: int, report_fd: int) -> None:
    """Run the job of a pipe. Write coverage to a file; on SIGQUIT, the stacks of all threads instead."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler.enable()
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    faulthandler.register(signal.SIGQUIT, report_fd, chain=True)
    channel = Connection(fd)
    job = pickle.loads(channel.recv_bytes())
    processes.kill_on_exit_of(job["parent"])
    measurement = _measure_coverage(job["coverage"])
    data = _outcome(job)
    if measurement is not None:
        measurement.stop()
        with open(report_fd, "wb", closefd=False) as file:
            file.write(measurement.get_data().dumps())
    sys.stdout.flush()
    channel.send_bytes(data)


def _measure_coverage(options: dict[str, Any] | None) -> Any:
    """Start to measure coverage as the test runner does, unless a configuration has started coverage.py."""
    coverage = None if options is None else importlib.import_module("coverage").Coverage
    if coverage is None or coverage.current() is not None:
        return None
    measurement = coverage(data_file=None, config_file=False)
    for name, value in (options or {}).items():
        measurement.set_option(name, value)
    measurement.start()
    return measurement


def _outcome(job: dict[str, Any]) -> bytes:
    """Run the call and return the message for the test runner, pickled."""
    try:
        return pickle.dumps(("result", _call(job)))
    except (SystemExit, KeyboardInterrupt) as error:
        # Omit the exception, such as SystemExit, which would end the test runner if raised there.
        return pickle.dumps((*child_calls.failure(error)[:2], None))
    except BaseException as error:
        reason = _skip_reason(error)
        return pickle.dumps(("skip", reason) if reason is not None else child_calls.failure(_without_own_frames(error)))


def _without_own_frames(error: BaseException) -> BaseException:
    """Cut the library's frames before the body from a traceback."""
    entry = error.__traceback__
    while entry is not None and str(entry.tb_frame.f_globals.get("__name__")).startswith(("dldist.", "asyncio.", "importlib.")):
        entry = entry.tb_next
    # An AssertionError without a body is from check_operations().
    return error.with_traceback(entry or (None if isinstance(error, AssertionError) else error.__traceback__))


def _skip_reason(error: BaseException) -> str | None:
    """Return the reason of unittest.SkipTest or pytest's private skip exception, else None."""
    is_pytest = type(error).__name__ == "Skipped" and type(error).__module__ in ("_pytest.outcomes", "Skipped", "builtins")
    return str(error) if isinstance(error, unittest.SkipTest) or is_pytest else None


def _call(job: dict[str, Any]) -> Any:
    function = _find(job)
    args, kwargs = pickle.loads(job["arguments"])
    import dldist

    if job["init"]:
        dldist.init_process_group(timeout=job["timeout"])
    if job.get("has_world"):
        kwargs["world"] = dldist.default_world()
    # After an exception, keep the world open, so that the end of the process reports a failed rank.
    result = run_body(function, args, kwargs)
    world = dldist.group.WORLD if job["init"] else None
    if world is None:
        check_operations()
    else:
        check_operations(world.get_group_store(), world.size())
        dldist.destroy_process_group()
    return result


def check_operations(store: _core.Store | None = None, nranks: int = 1, thread: int | None = None) -> None:
    """Raise AssertionError if operations, of a thread or of the process, do not complete within 2 s.

    Then wait until all ranks have checked, because the end of a group also ends the operations.
    """
    from dldist import flight_recorder

    deadline = time.monotonic() + 2.0
    entries = flight_recorder.entries(only_active=True)
    left = [entry for entry in entries if not entry["retired"] and thread in (None, int(entry["thread_id"]))]
    while left:
        latest = {entry["record_id"]: entry for entry in flight_recorder.entries(stacks=False)}
        left = [entry for entry in left if latest.get(entry["record_id"], entry)["state"] != "completed"]
        if left and time.monotonic() > deadline:
            raise AssertionError(f"operations are under way at the end of the test: {'; '.join(map(_describe, left))}")
        time.sleep(0.01)
    try:
        if store is not None:
            store.barrier("dldist.testing/checked", nranks, 1.0)
    except _core.DistTimeoutError:
        pass  # a rank has failed, or is still in the body; the test runner ends late ranks after 2 s


def _describe(entry: dict[str, Any]) -> str:
    """Describe a record of the flight recorder: operation, peer, and the line of the call."""
    text = re.sub(r" \d+<-(-?)", r" from rank \1", entry["profiling_name"].partition(":")[2])
    text = re.sub(r" \d+->", " to rank ", text).replace("rank -1", "any rank")
    places = [(frame["filename"], frame["line"]) for frame in entry["frames"][:1]]
    return text + "".join(f" ({os.path.basename(file)}:{line}: {linecache.getline(file, line).strip()})" for file, line in places)


def run_body(body: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call the function. If it is an `async def`, run its coroutine to the end."""
    result = body(*args, **kwargs)
    if not isinstance(result, types.CoroutineType):
        return result
    import asyncio

    return asyncio.run(result)


def _find(job: dict[str, Any]) -> Any:
    if "pickle" in job:
        if job["main"] is not None:
            _import("__main__", job["main"], None)
        return pickling.loads(job["pickle"])
    for name, file, path in job["packages"]:
        # The test runner may have derived the name from the path, so import each package by its file.
        spec = importlib.util.spec_from_file_location(name, file) if file else importlib.machinery.ModuleSpec(name, None, is_package=True)
        assert spec is not None
        spec.submodule_search_locations = path
        sys.modules.get(name) or _load(spec)
    owner, found = None, _import(job["module"], job["file"], job["verbosity"])
    for name in job["qualname"].split("."):
        owner, found = found, getattr(found, name)
    # The name refers to the decorated test; its attribute _dldist_body is the function itself.
    body = getattr(found, "_dldist_body", found)
    return _bind(body, owner, job["qualname"]) if job["is_method"] else body


def _bind(body: Any, cls: Any, qualname: str) -> Any:
    if not issubclass(cls, unittest.TestCase):
        return body.__get__(cls())
    case = cls(qualname.rpartition(".")[2])

    def run(*args: Any, **kwargs: Any) -> Any:
        case.setUp()
        try:
            return run_body(body, (case, *args), kwargs)
        finally:
            case.tearDown()
            case.doCleanups()

    return run


def _load(spec: importlib.machinery.ModuleSpec) -> Any:
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    if spec.loader is not None:
        spec.loader.exec_module(module)
    parent, _, child = spec.name.rpartition(".")
    if parent in sys.modules:
        setattr(sys.modules[parent], child, module)
    return module


def _import(name: str, file: str | None, verbosity: int | None) -> Any:
    """Import the module of a test: by file if only the test runner can find it by name.

    Rewrite its assertions as pytest does, unless `verbosity`, the one of pytest, is None.
    """
    if name == "__main__" and file is not None:
        from multiprocessing import spawn

        spawn.import_main_path(file)
        return sys.modules["__main__"]
    if verbosity is None:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError:
            if file is None:
                raise
    else:
        from _pytest.assertion import util

        util._reprcompare = lambda op, left, right: _explain(op, left, right, verbosity)
    loader = (importlib.machinery.SourceFileLoader if verbosity is None else _RewritingLoader)(name, str(file))
    spec = importlib.util.spec_from_file_location(name, file, loader=loader)
    assert spec is not None
    return _load(spec)


def _explain(op: str, left: object, right: object, verbosity: int) -> str | None:
    """Explain a failed comparison by pytest's hook, for the assertions that pytest has rewritten."""
    from _pytest._io import TerminalWriter
    from _pytest.config import get_config

    try:
        config = get_config()
        config.option.verbose = verbosity
        vars(config).update(get_terminal_writer=lambda: TerminalWriter(io.StringIO()), get_verbosity=lambda kind=None: verbosity)
        found = config.hook.pytest_assertrepr_compare(config=config, op=op, left=left, right=right)
        lines = next((list(lines) for lines in found if lines), [])
    except Exception:  # an unknown pytest: the explanation has one line
        return None
    return "\n~".join(line.replace("\n", "\\n") for line in lines).replace("%", "%%") or None


class _RewritingLoader(importlib.machinery.SourceFileLoader):
    """Rewrites assertions so that failures show the compared values, as pytest does."""

    def get_code(self, fullname: str) -> Any:
        # Skip the cached bytecode, which has no rewritten assertions.
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)

    def source_to_code(self, data: Any, path: Any, *, _optimize: int = -1) -> Any:  # type: ignore[override]
        import ast

        from _pytest.assertion.rewrite import rewrite_asserts

        tree = ast.parse(data, filename=path)
        rewrite_asserts(tree, data, str(path), None)
        return compile(tree, path, "exec", dont_inherit=True, optimize=_optimize)
