"""The built-in handlers, with torch.distributed's names."""

from __future__ import annotations

import faulthandler
import json
import os
import shutil
import subprocess
import tempfile

from dldist import flight_recorder
from dldist._backends.health_check import unhealthy_backends
from dldist.control.handlers import Request, Response, register_handler

_PYSPY_S = 60.0
"""Seconds that py-spy may take."""
_PYSPY_OPTIONS = ("native", "subprocesses", "nonblocking")


def ping(_: Request, response: Response) -> None:
    """Respond "pong", to show that the process is running."""
    response.set_content("pong", "text/plain")


def dump_traceback(_: Request, response: Response) -> None:
    """Return the Python stack of every thread."""
    with tempfile.TemporaryFile() as file:  # faulthandler writes to a descriptor, so use a file
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        response.set_content(file.read(), "text/plain")


def fr_trace_json(_: Request, response: Response) -> None:
    """Return the flight recorder's entries, without stacks, as torch's handler does."""
    response.set_content(flight_recorder.dump_json(stacks=False), "application/json")


def wait_counter_values(_: Request, response: Response) -> None:
    """Return an empty object, because dldist has no wait counters like torch's."""
    response.set_content("{}", "application/json")


def c10d_health_check(_: Request, response: Response) -> None:
    """Return the health of the process's backends as JSON, in torch's format."""
    unhealthy = unhealthy_backends()
    response.set_content(json.dumps({"healthy": not unhealthy, "unhealthy_backends": unhealthy}), "application/json")


def pyspy_dump(request: Request, response: Response) -> None:
    """Run py-spy on this process and return its output, if py-spy is installed."""
    program = shutil.which("py-spy")
    if program is None:
        response.set_status(500)
        response.set_content("py-spy: not found; install it, or ask for dump_traceback, which needs nothing\n", "text/plain")
        return
    options = [f"--{name}" for name in _PYSPY_OPTIONS if request.get_param(name)]
    done = subprocess.run(
        [program, "dump", "--pid", str(os.getpid()), *options],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=_PYSPY_S, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        response.set_status(500)
    response.set_content(done.stdout, "text/plain")


for _handler in (c10d_health_check, dump_traceback, pyspy_dump, wait_counter_values, fr_trace_json, ping):
    register_handler(_handler.__name__, _handler)
