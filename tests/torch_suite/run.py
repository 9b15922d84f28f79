"""Run PyTorch's own tests of its process groups on "dldist", and the same tests on "gloo".

    python tests/torch_suite/run.py                                          the tests inside the wheel of torch
    python tests/torch_suite/run.py --tests FOLDER test_c10d_common.py ...   files from fetch.py
    python tests/torch_suite/run.py --only all_reduce,broadcast --aims dldist
    python tests/torch_suite/run.py --tests FOLDER --aims gloo,front test_store.py
    python tests/torch_suite/run.py --tests FOLDER --onto-cpu _composable/fsdp/test_fully_shard_comm.py

Aims (aim.py): gloo, dldist (a backend of torch), as-gloo (that backend instead of gloo), front (the
package dldist instead of torch.distributed). --onto-cpu turns tests for GPUs into tests for the
CPU. The program prints the numbers of passed tests. --json FILE keeps all results: files that run
again replace their previous results, so table.py can make one table of many runs.

Tests start their ranks by fork, with torch already imported; --start spawn starts them as PyTorch
does, which is several times slower. A failed test is run again after all others; the second result
counts, and the first is also kept. --jobs N runs N files concurrently.
"""

import argparse
import collections
import concurrent.futures
import contextlib
import importlib.metadata
import json
import os
import pathlib
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
OF_THE_WHEEL = HERE / "distributed_spawn.py"
WHEEL = "distributed_test (wheel)"
ON_THE_CPU = " (onto the CPU)"
LIMIT_S = 90
# A test has its own limit, after which it ends its ranks and reports that; this one is for tests
# that cannot.
OF_THE_LIMIT = 0.5
GRACE_S = 2
# Leaders of the process groups that are running.
RUNNING = set()


def outcome(status, reason="", seconds=0.0):
    return {"status": status, "reason": reason, "seconds": seconds}


def environment(aim, options):
    backend = "dldist" if aim.partition("+")[0] == "dldist" else "gloo"
    return dict(
        os.environ,
        BACKEND=backend,
        WORLD_SIZE=str(options.ranks),
        DISTRIBUTED_TESTS_DEFAULT_TIMEOUT=str(int(options.limit * OF_THE_LIMIT)),
        GLOO_SOCKET_IFNAME="lo",
        OMP_NUM_THREADS="1",
        PYTHONWARNINGS="ignore",
    )


def end_group(pid):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def end_all(*_signal):
    """End all started processes, then exit."""
    for pid in list(RUNNING):
        end_group(pid)
    os._exit(1)


def lines_of(process, descriptor, limit_s):
    """Yield the objects that the process reports. Stop when it ends, or when one test exceeds the
    limit."""
    pending = b""
    quiet_since = time.monotonic()
    while time.monotonic() - quiet_since < limit_s:
        if select.select([descriptor], [], [], 0.5)[0]:
            chunk = os.read(descriptor, 1 << 16)
            if not chunk:
                return
            *lines, pending = (pending + chunk).split(b"\n")
            yield from map(json.loads, lines)
            quiet_since = time.monotonic()
        elif process.poll() is not None:
            return


def how_it_ended(process, limit_s):
    """Return how the process ended. It closes its end of the pipe shortly before it exits."""
    try:
        return f"died with {process.wait(GRACE_S)}"
    except subprocess.TimeoutExpired:
        return f"did not end in {limit_s:.0f} s"


class FileRun:
    """One file with one aim."""

    def __init__(self, path, aim, options, log):
        self.path = path
        self.aim = aim
        self.options = options
        self.log = log

    def attempt(self, choice):
        """Run tests (see chosen() in aim.py). Return (outcomes, is_complete)."""
        outcomes = {}
        current = None
        with tempfile.NamedTemporaryFile("w", encoding="utf-8") as choice_file:
            json.dump(choice, choice_file)
            choice_file.flush()
            read_end, write_end = os.pipe()
            process = subprocess.Popen(
                [sys.executable, HERE / "aim.py", self.aim, self.path, self.options.start, str(write_end), choice_file.name],
                pass_fds=[write_end],
                env=environment(self.aim, self.options),
                stdin=subprocess.DEVNULL,
                stdout=self.log,
                stderr=self.log,
                start_new_session=True,
            )
            os.close(write_end)
            RUNNING.add(process.pid)
            try:
                for line in lines_of(process, read_end, self.options.limit):
                    if "done" in line:
                        return outcomes, True
                    current = line.get("begin")
                    if "end" in line:
                        outcomes[line["end"]] = outcome(line["status"], line["reason"], line["seconds"])
                what = how_it_ended(process, self.options.limit)
            finally:
                end_group(process.pid)
                RUNNING.discard(process.pid)
                process.wait()
                os.close(read_end)
        if current is None:
            return {**outcomes, "(the file)": outcome("failed", what)}, True
        outcomes[current] = outcome("failed", what)
        return outcomes, False

    def run_chosen(self, ids=None):
        """Return {test: outcome} of the tests with these ids, or of all. If a test kills the
        process, run the remaining ones."""
        names = [name for name in self.options.only.split(",") if name]
        outcomes = {}
        is_done = False
        while not is_done:
            more, is_done = self.attempt({"names": names, "part": self.options.part, "ids": ids, "without": list(outcomes)})
            outcomes.update(more)
        return outcomes

    def run(self):
        outcomes = self.run_chosen()
        failed = [test for test, outcome in outcomes.items() if outcome["status"] == "failed"]
        if failed and not self.options.once:
            again = self.run_chosen(failed)
            for test in set(failed) & set(again):
                outcomes[test] = {**again[test], "first": outcomes[test]["reason"]}
        return outcomes


def part_of(text):
    number, of = map(int, text.split("/"))
    if not 1 <= number <= of:
        raise ValueError(text)
    return number, of


def label(path, options):
    name = WHEEL if path == OF_THE_WHEEL else str(path.relative_to(options.tests))
    return name + (ON_THE_CPU if options.onto_cpu else "")


def versions(options):
    """Return the versions. PyTorch's sources keep theirs two folders above test/distributed."""
    found = {"torch": importlib.metadata.version("torch")}
    if options.tests:
        with contextlib.suppress(OSError):
            found["tests"] = (options.tests.parents[1] / "version.txt").read_text(encoding="utf-8").strip()
    return found


class Results:
    """The results so far, which are saved to a file, if there is one, after each file of tests."""

    def __init__(self, path, of_what):
        self.path = path
        self.lock = threading.Lock()
        self.kept = {"versions": {}, "files": {}}
        if path and path.exists():
            self.kept = json.loads(path.read_text(encoding="utf-8"))
        self.kept["versions"].update(of_what)

    def keep(self, file, aim, outcomes):
        with self.lock:
            self.kept["files"].setdefault(file, {})[aim] = outcomes
            if self.path:
                self.path.write_text(json.dumps(self.kept, indent=1, sort_keys=True), encoding="utf-8")


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", help="names in the folder; none: the tests of the wheel")
    parser.add_argument("--tests", type=pathlib.Path, metavar="FOLDER", help="PyTorch's test/distributed")
    parser.add_argument("--only", default="", help="parts of ids of tests, with commas between them")
    parser.add_argument("--part", type=part_of, default=(1, 1), metavar="K/N", help="every N-th of the tests, from the K-th on")
    parser.add_argument("--aims", default="gloo,dldist", help="implementations to test, separated by commas")
    parser.add_argument("--onto-cpu", action="store_true", help="tests for GPUs run on the CPU")
    parser.add_argument("--start", choices=("fork", "spawn"), default="fork")
    parser.add_argument("--ranks", type=int, default=4, help="of the wheel's tests; the others have numbers of their own")
    parser.add_argument("--limit", type=float, default=LIMIT_S, metavar="SECONDS", help="for one test")
    parser.add_argument("--once", action="store_true", help="tests that fail are not run a second time")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="number of files in parallel")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE")
    parser.add_argument("--log", type=pathlib.Path, default=pathlib.Path(os.devnull), help="what the tests print")
    options = parser.parse_args()
    if bool(options.files) != bool(options.tests):
        parser.error("files and their folder come together")
    return options


def main():
    options = parse()
    options.tests = options.tests and options.tests.resolve()
    files = [options.tests / name for name in options.files] or [OF_THE_WHEEL]
    signal.signal(signal.SIGTERM, end_all)
    signal.signal(signal.SIGINT, end_all)
    results = Results(options.json, versions(options))

    def run_one(path, aim):
        began = time.monotonic()
        outcomes = FileRun(path, aim + ("+cpu" if options.onto_cpu else ""), options, log).run()
        results.keep(label(path, options), aim, outcomes)
        counts = collections.Counter(outcome["status"] for outcome in outcomes.values())
        print(f"{label(path, options)} on {aim}: {dict(counts)}, {time.monotonic() - began:.0f} s", flush=True)
        return counts["failed"] if aim != "gloo" else 0

    with options.log.open("a") as log, concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        runs = [pool.submit(run_one, path, aim) for path in files for aim in options.aims.split(",")]
        failed = sum(run.result() for run in runs)
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
