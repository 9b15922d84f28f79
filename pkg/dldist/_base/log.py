"""Passes the C core's log records to Python's logging. Imported only if the program imports logging,
or if the log is on.

The level is chosen by DLDIST_LOG, by set_log_level(), or by setLevel() of the logger "dldist": the
last one counts. Otherwise, the logger's effective level counts, which basicConfig() may have set; it
is read when dldist is imported and when a World is created.
"""

import atexit
import logging
import os
import sys
import threading

from dldist import _core

_LEVELS = {"info": logging.INFO, "debug": logging.DEBUG}

_logger = logging.getLogger("dldist")
# The handler that shows the log on stderr if DLDIST_LOG is set but logging is not configured.
_fallback = logging.StreamHandler()
_fallback.setFormatter(logging.Formatter("%(asctime)s dldist[%(process)d] %(levelname)s %(message)s"))

global_rank: int | None = None
"""The rank to print at the beginning of each log line, or None to print none."""

_thread: threading.Thread | None = None
_level_set = logging.NOTSET
_is_chosen = False
"""True after set_log_level() and DLDIST_LOG, until the program calls setLevel()."""


def choose(level: str) -> None:
    """Apply the level of set_log_level(): set the logger's level, and start the log thread."""
    global _level_set, _is_chosen
    _is_chosen = True
    if level.lower() in _LEVELS:
        if _logger.level == _level_set:
            # Set the level only if the program has not set another.
            _level_set = _LEVELS[level.lower()]
            type(_logger).setLevel(_logger, _level_set)
        _ensure_thread()


def follow_logger() -> None:
    """Apply the logger's effective level, unless set_log_level() or DLDIST_LOG has chosen one."""
    if _is_chosen:
        return
    number = _logger.getEffectiveLevel()
    level = next((name for name, least in (("debug", logging.DEBUG), ("info", logging.INFO)) if number <= least), "off")
    if _core._set_log_level(level):
        _ensure_thread()
    sys.modules["dldist"]._log_calls(level)


def _set_level(level: int | str) -> None:
    """The logger's setLevel()."""
    global _is_chosen
    type(_logger).setLevel(_logger, level)
    _is_chosen = False
    follow_logger()


_logger.setLevel = _set_level  # type: ignore[method-assign]


def _ensure_thread() -> None:
    if _thread is None:
        _start_thread()


def _start_thread() -> None:
    global _thread
    _thread = threading.Thread(target=_run, name="dldist-log", daemon=True)
    _thread.start()


def _run() -> None:
    own_thread = threading.current_thread()
    while _thread is own_thread:
        _emit(_core._take_log_record(3600.0))


def _emit(record: tuple[str, float, int, str] | None) -> bool:
    if record is None:
        return False
    level, created, nlost, message = record
    if nlost:
        message = f"[{nlost} records lost] {message}"
    if global_rank is not None:
        message = f"[rank{global_rank}]: {message}"
    entry = _logger.makeRecord(_logger.name, _LEVELS[level], "dldist", 0, message, (), None)
    entry.created = created
    entry.msecs = int(created % 1 * 1000)
    pass_to_handlers(entry)
    return True


def pass_to_handlers(entry: logging.LogRecord) -> None:
    """Pass a record to the handlers of its logger, or to stderr if there are none."""
    logger = logging.getLogger(entry.name)
    try:
        if logger.hasHandlers():
            logger.handle(entry)
        elif logger.isEnabledFor(entry.levelno):
            _fallback.handle(entry)
    except Exception:
        logging.Handler.handleError(_fallback, entry)


def _stop() -> None:
    global _thread
    thread, _thread = _thread, None
    if thread is not None:
        _core._stop_log()
        thread.join(timeout=1.0)
    while _emit(_core._take_log_record(0)):
        pass


def _restart_in_child() -> None:
    # After a fork, the child lacks the parent's log thread: start one.
    if _thread is not None:
        _start_thread()


atexit.register(_core._call_despite_ctrl_c, _stop)  # _stop is called again if Ctrl-C interrupts it
os.register_at_fork(after_in_child=_restart_in_child)
