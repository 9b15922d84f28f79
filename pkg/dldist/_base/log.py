"""Passes the C core's log records to Python's logging. Imported only if the log is on."""

import atexit
import logging
import os
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


def start(level: str) -> None:
    """Start the log thread if it is not running, and set the logger's level."""
    global _level_set
    if _logger.level == _level_set:
        # Set the level only if the program has not set another.
        _level_set = _LEVELS[level.lower()]
        _logger.setLevel(_level_set)
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
