#!/usr/bin/env python3
"""Run JAX's own multi-process tests on CPUs, with Gloo and with dldist, and print a table of both.

    git clone --depth 1 --branch jax-v0.10.2 <JAX's repository> jax
    python tests/jax_suite/run.py jax/tests/multiprocess [--processes 2,4] [--only all_reduce,pjit]

Each file runs in the given numbers of processes, which are killed after --limit seconds. A test
passes if it passes in every process. The exit status is 1 if a test fails with dldist and passes
with Gloo. The release of the tests must match the installed JAX.
"""

from __future__ import annotations

import argparse
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import dldist.jax

BACKENDS = ("gloo", "dldist")
WORDS = ("passed", "skipped", "failed")
# These tests are not for CPUs.
LEFT_OUT = {"tpu_device_test.py", "pgle_test.py", "socket_transfer_test.py"}


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def start(file: Path, size: int, backend: str, folder: str) -> list[subprocess.Popen[bytes]]:
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    if backend == "dldist":
        environment |= dldist.jax.environment()
    port = free_port()
    processes = []
    for rank in range(size):
        command = [sys.executable, str(file), f"--num_processes={size}", f"--multiprocess_test_worker_id={rank}"]
        command.append(f"--multiprocess_test_controller_address=localhost:{port}")
        command += ["--initialization_timeout=60", "--heartbeat_timeout=30", f"--xml_output_file={folder}/{rank}.xml"]
        with open(f"{folder}/{rank}.log", "wb") as log:
            processes.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=file.parent))
    return processes


def wait(processes: list[subprocess.Popen[bytes]], limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    for process in processes:
        try:
            process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def outcome(case: ElementTree.Element) -> str:
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    return "skipped" if case.find("skipped") is not None or case.get("status") == "notrun" else "passed"


def results(folder: str, rank: int) -> dict[str, str]:
    """Return the rank's result of each test. A rank that ended early has written no results; its
    log shows its progress."""
    try:
        tree = ElementTree.parse(f"{folder}/{rank}.xml")
    except (FileNotFoundError, ElementTree.ParseError):
        log = Path(folder, f"{rank}.log").read_text(errors="replace")
        ends = {"OK": "passed", "SKIPPED": "skipped"}
        return {m[2]: ends.get(m[1], "failed") for m in re.finditer(r"^\[ +(OK|FAILED|SKIPPED) \] (\S+)", log, re.MULTILINE)}
    return {f"{case.get('classname', '').rpartition('.')[2]}.{case.get('name')}": outcome(case) for case in tree.iter("testcase")}


def run(file: Path, size: int, backend: str, limit_s: float, keep: Path | None) -> dict[str, str]:
    with tempfile.TemporaryDirectory() as folder:
        wait(start(file, size, backend, folder), limit_s)
        told = [results(folder, rank) for rank in range(size)]
        if keep is not None:
            for rank in range(size):
                log = Path(folder, f"{rank}.log").read_bytes()
                Path(keep, f"{file.stem}.{backend}.{size}.{rank}.log").write_bytes(log)
    names = {name for found in told for name in found}
    return {name: worst([found.get(name, "failed") for found in told]) for name in sorted(names)}


def worst(words: list[str]) -> str:
    return max(words, key=WORDS.index)


def summary(found: dict[str, str]) -> str:
    counts = Counter(found.values())
    return ", ".join(f"{counts[word]} {word}" for word in WORDS if counts[word]) or "nothing ran"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="tests/multiprocess of JAX")
    parser.add_argument("--processes", default="2,4")
    parser.add_argument("--only", default="", help="parts of the names of files")
    parser.add_argument("--limit", type=float, default=300)
    parser.add_argument("--logs", type=Path, help="a folder for what the processes say")
    options = parser.parse_args()
    if options.logs is not None:
        options.logs.mkdir(parents=True, exist_ok=True)
    files = [file for file in sorted(options.folder.glob("*_test.py")) if file.name not in LEFT_OUT]
    files = [file for file in files if any(part in file.name for part in options.only.split(","))]
    worse = []
    print("| file | processes | Gloo | dldist |\n| --- | --- | --- | --- |")
    for file in files:
        for size in map(int, options.processes.split(",")):
            found = {backend: run(file.resolve(), size, backend, options.limit, options.logs) for backend in BACKENDS}
            print(f"| {file.name} | {size} | {summary(found['gloo'])} | {summary(found['dldist'])} |", flush=True)
            passed = {name for name, word in found["gloo"].items() if word == "passed"}
            worse += [f"{file.name}, {size} processes: {name}" for name in passed if found["dldist"].get(name) != "passed"]
    for name in worse:
        print(f"passes only with Gloo: {name}")
    return 1 if worse or not files else 0


if __name__ == "__main__":
    sys.exit(main())
