"""Run Python programs in which a system call of the core fails, one in each run, as
tests/errors/main.c does for C programs.

    python tests/errors/run_programs.py [--programs world,window] [--calls mmap] [--errors EMFILE]
                                        [--share 10] [--seed 1]

Each program of tests/errors/programs/ runs on two ranks, as forks of this process and under dlrun,
where the launcher's calls also fail. The checks are about the user's view: a run must end soon, by
itself or when its starter ends it as launchers do; ranks must exit with 0 or with an exception of
dldist, of files or of memory, whose text contains the words of the errno or names the rank that met
it; and nothing may crash. --share 10 makes every 10th run. The exit status is 1 if a check failed.
"""

import argparse
import errno
import json
import os
import random
import re
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from itertools import product

import dldist
import failing

HERE = os.path.dirname(os.path.abspath(__file__))
PROGRAMS = ("world", "process_group", "objects", "file_init", "window", "stores", "dump")
UNDER_DLRUN = ("world", "process_group")
# The errnos for each call: lack of a resource, a sandbox's refusal, a network failure, and errors
# that only require a retry.
ERRORS = {
    "open": ("EMFILE", "EACCES", "EINTR"),
    "fcntl": ("EPERM",),
    "eventfd": ("EMFILE", "ENOMEM"),
    "read": ("EINTR", "EIO"),
    "pread": ("EINTR", "EIO"),
    "pwrite": ("EINTR", "ENOSPC", "EIO"),
    "ftruncate": ("EINTR", "EPERM", "EFBIG"),
    "fstat": ("ENOMEM", "EIO"),
    "stat": ("EACCES",),
    "mkdir": ("EACCES", "ENOSPC"),
    "mkostemp": ("EMFILE", "ENOSPC"),
    "rename": ("EACCES",),
    "memfd_create": ("EMFILE", "EPERM", "ENOSYS"),
    "mmap": ("ENOMEM", "EPERM"),
    "madvise": ("ENOMEM", "EINVAL"),
    "socket": ("EMFILE", "EACCES"),
    "bind": ("EADDRINUSE", "EACCES"),
    "listen": ("EADDRINUSE",),
    "accept4": ("EMFILE", "ECONNABORTED", "EINTR"),
    "connect": ("ECONNREFUSED", "ENETUNREACH", "EPERM"),
    "send": ("EAGAIN", "EINTR", "EPIPE", "ENOBUFS"),
    "recv": ("EAGAIN", "EINTR", "ECONNRESET", "ENOMEM"),
    "sendmsg": ("EAGAIN", "EINTR", "ECONNRESET", "EPERM"),
    "recvmsg": ("EAGAIN", "EINTR", "ECONNRESET"),
    "sendto": ("EAGAIN", "ENOBUFS"),
    "getsockopt": ("ENOMEM",),
    "setsockopt": ("EPERM",),
    "getifaddrs": ("ENOMEM",),
    "ppoll": ("EINTR", "ENOMEM"),
    "epoll_create1": ("EMFILE",),
    "epoll_ctl": ("ENOSPC", "ENOMEM"),
    "epoll_wait": ("EINTR",),
    "gethostname": ("EPERM",),
    "getrandom": ("EINTR", "ENOSYS"),
    "getaddrinfo": ("EMFILE", "ENOMEM"),
    "lock_file": ("EINTR", "ENOLCK"),
}
HARMLESS = ("EINTR", "EAGAIN")
OF_PEERS = ("ECONNRESET", "EPIPE", "ECONNREFUSED", "ECONNABORTED", "ENETUNREACH")
LIMIT_S = 8.0
# When one rank has exited with an error, the other ranks have this long to report it.
GRACE_S = 1.5
PLACES = 5
# The line of an exception, and texts that must not appear.
EXCEPTION = re.compile(r"^(\w+(?:\.\w+)*(?:Error|Interrupt|Exception)\b.*)", re.MULTILINE)
ALLOWED = re.compile(r"(dldist\.|torch\.)?(Dist\w*Error|OSError|PermissionError|FileNotFoundError|FileExistsError|MemoryError)|KeyboardInterrupt")
DISASTERS = ("Fatal Python error", "SystemError", "Segmentation fault", "AddressSanitizer", "runtime error:", "AssertionError")


class Leave(BaseException):
    """Raised at the end of a forked rank, so that its interpreter exits normally."""


# ---- runs


def environment(rank, store, folder, fault=None):
    result = {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "ERRORS_FOLDER": folder,
    }
    return result | ({"DLDIST_TEST_FAIL": fault} if fault else {})


def be_rank(program, env, output, counts):
    os.environ.update(env)
    fd = os.open(output, os.O_WRONLY | os.O_CREAT, 0o600)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    code = 0
    try:
        if counts:
            failing.count_from_now(counts)
        if fault := env.get("DLDIST_TEST_FAIL"):
            failing.fail_by(fault)
        runpy.run_path(os.path.join(HERE, "programs", f"{program}.py"), run_name="__main__")
    except BaseException:
        traceback.print_exc()
        code = 1
    raise Leave(code)


def fork_rank(*args):
    sys.stdout.flush()
    sys.stderr.flush()
    if (pid := os.fork()) == 0:
        be_rank(*args)
    return pid


def wait_for(pids, deadline_s, is_patient):
    """Return exit codes by pid: negative for signals, None while running. Unless is_patient is set,
    return as soon as one has failed."""
    codes = dict.fromkeys(pids)
    while None in codes.values() and time.monotonic() < deadline_s:
        for pid in [pid for pid, code in codes.items() if code is None]:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                codes[pid] = os.waitstatus_to_exitcode(status)
        if not is_patient and any(codes.values()):
            break
        time.sleep(0.002)
    return codes


def finish(pids):
    """Wait for the ranks and return their exit codes in rank order, or "hangs" or "ended". As a
    launcher does, end the other ranks soon after one has failed."""
    codes = wait_for(pids, time.monotonic() + LIMIT_S, False)
    codes |= wait_for([pid for pid in pids if codes[pid] is None], time.monotonic() + GRACE_S, True)
    has_failed = any(codes.values())
    late = [pid for pid in pids if codes[pid] is None]
    for pid in late:
        os.kill(pid, signal.SIGINT if has_failed else signal.SIGKILL)
    if has_failed:
        ended = wait_for(late, time.monotonic() + LIMIT_S, True)
        codes |= {pid: "ended" if code is not None and code >= 0 else code for pid, code in ended.items()}
        late = [pid for pid in late if codes[pid] is None]
        for pid in late:
            os.kill(pid, signal.SIGKILL)
    for pid in late:
        os.waitpid(pid, 0)
        codes[pid] = "hangs"
    return [codes[pid] for pid in pids]


def read(path):
    try:
        with open(path, errors="replace") as file:
            return file.read()
    except FileNotFoundError:
        return ""


def run_forked(program, fault=None, counts=None):
    """Return (exit code, output) of each rank."""
    folder = tempfile.mkdtemp(prefix="dldist-errors-")
    store = dldist.TCPStore("127.0.0.1", 0, is_master=True)
    outputs = [os.path.join(folder, f"output_{rank}") for rank in range(2)]
    pids = [fork_rank(program, environment(rank, store, folder, fault), outputs[rank], counts) for rank in range(2)]
    codes = finish(pids)
    texts = [read(path) for path in outputs]
    shutil.rmtree(folder)
    return list(zip(codes, texts, strict=True))


def run_under_dlrun(program, fault=None, counts=None):
    folder = tempfile.mkdtemp(prefix="dldist-errors-")
    env = os.environ | {"ERRORS_FOLDER": folder}
    env |= {"DLDIST_TEST_FAIL": fault} if fault else {}
    env |= {"DLDIST_TEST_FAIL_COUNTS": counts} if counts else {}
    wrapper = os.path.join(HERE, "failing.py")
    command = [sys.executable, wrapper, "-m", "dldist.run", "--nproc-per-node", "2", wrapper, os.path.join(HERE, "programs", f"{program}.py")]
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        text, _ = process.communicate(timeout=2 * LIMIT_S)
        code = process.returncode
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        text, _ = process.communicate(timeout=2 * LIMIT_S)
        code = "hangs"
    shutil.rmtree(folder)
    return [(code, text)]


# ---- verdicts


def says_what_failed(text, name):
    words = [os.strerror(getattr(errno, name))]
    words += ["MemoryError", "out of memory"] if name == "ENOMEM" else []
    words += ["connection closed", "closed the connection", "lost rank", "lost the connection"] if name in OF_PEERS else []
    return any(word in text for word in words)


def complaint_of_exit(code, text):
    if code == "hangs":
        return "hangs"
    if code != "ended" and code < 0:
        return f"was ended by signal {-code}"
    for disaster in DISASTERS:
        if disaster in text:
            return disaster
    if code not in (0, "ended"):
        if re.search(r"^dlrun: .+", text, re.MULTILINE):
            return None
        exceptions = EXCEPTION.findall(text)
        if not exceptions:
            return "has failed without an exception"
        if not ALLOWED.match(exceptions[-1]):
            return f"ends with {exceptions[-1]}"
    return None


def judge(victim, name, ends):
    """Return (outcome, complaint or None)."""
    for rank, (code, text) in enumerate(ends):
        if complaint := complaint_of_exit(code, text):
            return "wrong", f"rank {rank} {complaint}"
    codes = [code for code, _ in ends]
    if not any(codes):
        return "survived", None
    if name in HARMLESS:
        return "wrong", "not survived"
    own = ends[victim] if len(ends) > 1 else ends[0]
    # The launcher's ranks only learn that its store closed the connection, not why.
    is_store_gone = victim == "launcher" and "the server closed the connection" in own[1]
    if own[0] not in (0, "ended") and not is_store_gone and not says_what_failed(own[1], name):
        return "wrong", f'rank {victim} does not say "{os.strerror(getattr(errno, name))}"'
    for rank, (code, text) in enumerate(ends):
        is_other = len(ends) > 1 and rank != victim
        if is_other and code not in (0, "ended") and f"rank {victim}" not in text and "TCPStore" not in text:
            return "wrong", f"rank {rank} does not name rank {victim}"
    return ("ended" if "ended" in codes else "reported" if all(codes) else "local"), None


# ---- main


def places(count, dice):
    """Select the first, the last and some other calls."""
    if count <= PLACES:
        return range(count)
    return sorted({0, 1, count - 1, *dice.sample(range(2, count - 1), min(PLACES - 3, count - 3))})


def count_calls(runner, program, victims):
    """Count calls. This does not use a context manager: exiting forks would also leave it."""
    folder = tempfile.mkdtemp(prefix="dldist-errors-")
    counts = os.path.join(folder, "counts")
    ends = runner(program, counts=counts)
    if any(code != 0 for code, _ in ends):
        raise SystemExit(f"{program}, without any failure: {ends}")
    counted = {victim: json.loads(read(f"{counts}.{victim}")) for victim in victims}
    shutil.rmtree(folder)
    return counted


def plan_program(runner, program, victims, dice, args):
    for victim, counted in count_calls(runner, program, victims).items():
        for call, names in ERRORS.items():
            for number, name in product(places(counted[call], dice), names):
                is_wanted = (not args.calls or call in args.calls.split(",")) and (not args.errors or name in args.errors.split(","))
                if is_wanted:
                    yield runner, program, victim, f"{victim}:{call}:{number}:{name}"


def plan(args):
    dice = random.Random(args.seed)
    runs = []
    for program in PROGRAMS:
        if not args.programs or program in args.programs.split(","):
            runs += plan_program(run_forked, program, (0, 1), dice, args)
            if program in UNDER_DLRUN:
                runs += plan_program(run_under_dlrun, program, ("launcher", 0), dice, args)
    return runs[:: args.share]


def run_all(runs):
    outcomes = {}
    for runner, program, victim, fault in runs:
        call, name = fault.split(":")[1], fault.split(":")[3]
        ends = runner(program, fault)
        outcome, complaint = judge(victim, name, ends)
        outcomes.setdefault(call, Counter())[outcome] += 1
        if complaint:
            print(f"{runner.__name__} {program} DLDIST_TEST_FAIL={fault}: {complaint}")
            for rank, (code, text) in enumerate(ends):
                print(f"    rank {rank}, {code}: " + "\n        ".join(text.splitlines()[-12:]), flush=True)
    return outcomes


def print_summary(outcomes, seconds):
    kinds = ("survived", "local", "reported", "ended", "wrong")
    print(f"{'call':<15}{'runs':>8}" + "".join(f"{kind:>10}" for kind in kinds))
    for call, counts in [*outcomes.items(), ("all", sum(outcomes.values(), Counter()))]:
        print(f"{call:<15}{counts.total():>8}" + "".join(f"{counts[kind]:>10}" for kind in kinds))
    print(f"in {seconds:.0f} s")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--programs", help="names, with commas between")
    parser.add_argument("--calls")
    parser.add_argument("--errors")
    parser.add_argument("--share", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--slow", type=int, default=1, help="stretches what a run may take")
    args = parser.parse_args()
    global LIMIT_S, GRACE_S
    LIMIT_S, GRACE_S = LIMIT_S * args.slow, GRACE_S * args.slow
    # Restore the handler that ends ranks: a shell that starts this program in the background
    # ignores SIGINT.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    began = time.monotonic()
    outcomes = run_all(plan(args))
    print_summary(outcomes, time.monotonic() - began)
    return 1 if sum(outcomes.values(), Counter())["wrong"] else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Leave as leave:
        code = leave.args[0]
    sys.exit(code)
