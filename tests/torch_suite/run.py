"""PyTorch's own tests of its process groups on "dldist", beside the same tests on "gloo".

    python tests/torch_suite/run.py                                          the tests inside the wheel of torch
    python tests/torch_suite/run.py --tests FOLDER test_c10d_common.py ...   files of test/distributed of a checkout of PyTorch
    python tests/torch_suite/run.py --only all_reduce,broadcast --backends dldist

Prints a table, and the tests that "dldist" alone does not pass with the last line of what they say; --markdown FILE and --json FILE keep them. What
is replaced in the tests is said in aim.py. Tests start their ranks by fork, with torch imported already; --start spawn does it as
PyTorch means it, in a multiple of the time.
"""

import argparse
import collections
import contextlib
import json
import os
import pathlib
import select
import signal
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
OF_THE_WHEEL = HERE / "distributed_spawn.py"
# A test's own limit, after which it ends its ranks and says so; ours is for tests that cannot.
TEST_TIMEOUT_S = 40
SILENCE_TIMEOUT_S = 90

Outcome = collections.namedtuple("Outcome", "status reason")
NOT_RUN = Outcome("not run", "")


def environment(backend, ranks):
    return dict(
        os.environ,
        BACKEND=backend,
        WORLD_SIZE=str(ranks),
        DISTRIBUTED_TESTS_DEFAULT_TIMEOUT=str(TEST_TIMEOUT_S),
        GLOO_SOCKET_IFNAME="lo",
        OMP_NUM_THREADS="1",
    )


def lines_of(process, descriptor):
    """Objects that the process reports; ends when it is done, dead or silent."""
    pending = b""
    quiet_since = time.monotonic()
    while time.monotonic() - quiet_since < SILENCE_TIMEOUT_S:
        if select.select([descriptor], [], [], 0.5)[0]:
            chunk = os.read(descriptor, 1 << 16)
            if not chunk:
                return
            *lines, pending = (pending + chunk).split(b"\n")
            yield from map(json.loads, lines)
            quiet_since = time.monotonic()
        elif process.poll() is not None:
            return


def attempt(path, backend, ranks, start, finished, log):
    """Runs what is left of the file. Returns (outcomes, whether that was all)."""
    outcomes = {}
    current = None
    with tempfile.NamedTemporaryFile("w", encoding="utf-8") as list_of_finished:
        list_of_finished.write("\n".join(finished))
        list_of_finished.flush()
        read_end, write_end = os.pipe()
        process = subprocess.Popen(
            [sys.executable, HERE / "aim.py", backend, path, start, str(write_end), list_of_finished.name],
            pass_fds=[write_end],
            env=environment(backend, ranks),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        os.close(write_end)
        try:
            for line in lines_of(process, read_end):
                if "done" in line:
                    return outcomes, True
                current = line.get("begin")
                if "end" in line:
                    outcomes[line["end"]] = Outcome(line["status"], line["reason"])
            what = f"died with {process.returncode}" if process.poll() is not None else "said nothing any more"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            os.close(read_end)
    if current is None:
        return {"(the file)": Outcome("failed", what)}, True
    outcomes[current] = Outcome("failed", what)
    return outcomes, False


def run_file(path, backend, ranks, start, unwanted, log):
    """{test: outcome} of all tests that are not unwanted; survivors of a death go on without the dead."""
    outcomes = {}
    is_done = False
    while not is_done:
        more, is_done = attempt(path, backend, ranks, start, [*unwanted, *outcomes], log)
        outcomes.update(more)
    return outcomes


def names_of(path, backend, ranks, log):
    """All ids of the file."""
    listing = subprocess.run(
        [sys.executable, HERE / "aim.py", backend, path, "list"],
        env=environment(backend, ranks),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        timeout=SILENCE_TIMEOUT_S,
        check=False,
    )
    return listing.stdout.split()


def unwanted_of(path, backend, options, log):
    """What --only leaves out."""
    if not options.only:
        return []
    names = names_of(path, backend, options.ranks, log)
    return [name for name in names if not any(part in name for part in options.only.split(","))]


def last_line(reason):
    """Of a traceback of ranks, the line that says what is wrong."""
    lines = [line.strip() for line in reason.splitlines() if line.strip()]
    telling = [line for line in lines if "Error" in line.split(":")[0] and "exited with error code" not in line]
    return (telling or lines or [""])[-1][:300]


def compare(results):
    """Rows of the table, one a file, and the tests that dldist alone does not pass."""
    rows, differing = [], []
    for file, by_backend in results.items():
        counts = {
            backend: collections.Counter(outcome.status for outcome in outcomes.values())
            for backend, outcomes in by_backend.items()
        }
        rows.append((file, counts))
        ours, theirs = by_backend.get("dldist", {}), by_backend.get("gloo", {})
        for test in sorted({*ours, *theirs}):
            our, their = ours.get(test, NOT_RUN), theirs.get(test, NOT_RUN)
            if (our.status, their.status) == ("skipped", "passed") or our.status == "failed" != their.status:
                differing.append((file, test, their.status, our))
    return rows, differing


def markdown(results):
    rows, differing = compare(results)
    backends = list(next(iter(results.values())))
    head = [f"{backend} {status}" for backend in backends for status in ("passed", "skipped", "failed")]
    text = ["| tests | " + " | ".join(head) + " |", "| --- |" + " --- |" * len(head)]
    for file, counts in rows:
        cells = [str(counts[backend][status]) for backend in backends for status in ("passed", "skipped", "failed")]
        text.append(f"| {file} | " + " | ".join(cells) + " |")
    text += ["", "| test | gloo | dldist | what it says |", "| --- | --- | --- | --- |"]
    for file, test, their, our in differing:
        words = last_line(our.reason).replace("|", "\\|")
        text.append(f"| `{file}` `{'.'.join(test.split('.')[-2:])}` | {their} | {our.status} | {words} |")
    return "\n".join(text) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", help="names in the folder; none: the tests of the wheel")
    parser.add_argument("--tests", type=pathlib.Path, metavar="FOLDER", help="test/distributed of a checkout")
    parser.add_argument("--only", default="", help="parts of names of tests, with commas between them")
    parser.add_argument("--backends", default="gloo,dldist")
    parser.add_argument("--start", choices=("fork", "spawn"), default="fork")
    parser.add_argument("--ranks", type=int, default=4, help="of the wheel's tests; the others have numbers of their own")
    parser.add_argument("--markdown", type=pathlib.Path, metavar="FILE")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE")
    parser.add_argument("--log", type=pathlib.Path, default=pathlib.Path(os.devnull), help="what the tests print")
    options = parser.parse_args()
    if bool(options.files) != bool(options.tests):
        parser.error("files and their folder come together")

    files = [options.tests / name for name in options.files] or [OF_THE_WHEEL]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("asked to end"))  # not without the processes that it started
    results = {}
    with options.log.open("a") as log:
        for path in files:
            results[path.name] = {}
            for backend in options.backends.split(","):
                began = time.monotonic()
                unwanted = unwanted_of(path, backend, options, log)
                outcomes = run_file(path, backend, options.ranks, options.start, unwanted, log)
                results[path.name][backend] = outcomes
                counts = collections.Counter(outcome.status for outcome in outcomes.values())
                print(f"{path.name} on {backend}: {dict(counts)}, {time.monotonic() - began:.0f} s", flush=True)
    text = markdown(results)
    print(text)
    if options.markdown:
        options.markdown.write_text(text, encoding="utf-8")
    if options.json:
        options.json.write_text(json.dumps(results, indent=1), encoding="utf-8")
    ours = [outcome.status for by_backend in results.values() for outcome in by_backend.get("dldist", {}).values()]
    sys.exit("failed" in ours)


if __name__ == "__main__":
    main()
