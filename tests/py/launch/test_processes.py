"""dldist._launch.processes: children must be monitored, terminated and closed."""

import os
import signal
import subprocess
import sys
import time

import pytest
from dldist._launch import processes
from paths import SUPPORT
from procs import poll_until, thread_state


@pytest.fixture
def start():
    """Return a function that starts a shell command. All commands end with the test."""
    children = []

    def run(command, **how):
        process = subprocess.Popen(["sh", "-c", command], stdout=subprocess.PIPE, text=True, **how)
        child = processes.Child(process.pid, process.wait, leads_session=how.get("start_new_session", False))
        children.append((child, process))
        return child, process

    yield run
    for child, process in children:
        child.close()
        process.stdout.close()


def is_gone(pid):
    return thread_state(pid, pid) in (None, "Z")


@pytest.mark.parametrize(("command", "code", "words"), [
    ("exit 0", 0, "exit code 0"),
    ("exit 3", 3, "exit code 3"),
    ("kill -TERM $$", -signal.SIGTERM, "killed by SIGTERM"),
    ("kill -KILL $$", -signal.SIGKILL, "killed by SIGKILL, possibly by the kernel, out of memory"),
    ("kill -40 $$", -40, "killed by <Unknown signal 40>"),
])
def test_exit_code_of_a_child_is_described_in_words(start, command, code, words):
    child, _ = start(command)
    assert child.wait(20)
    assert child.code == code and processes.describe_exit(code) == words


def test_running_child_has_no_exit_code(start):
    child, _ = start("sleep 60")
    assert not child.wait(0.05) and not child.has_ended() and child.code is None
    child.close()
    assert child.code == -signal.SIGKILL
    child.close()  # a second call has no effect


def test_child_that_another_library_has_reaped_has_an_exit_code(start):
    child, process = start("exit 5")
    process.wait(20)
    assert child.has_ended() and child.code == 5
    assert not child.send(signal.SIGTERM), "its number may be another's by now"


def test_ended_child_is_not_reaped_while_processes_of_its_session_run(start):
    child, process = start("sleep 60 & echo $!; exit 0", start_new_session=True)
    grandchild = int(process.stdout.readline())
    assert child.wait(20) and thread_state(child.pid, child.pid) == "Z"
    child.send_to_all(signal.SIGTERM)
    poll_until(lambda: is_gone(grandchild), description="end of the child's child")


def test_signal_sent_to_a_child_is_not_sent_to_its_session(start):
    child, process = start("sleep 60 & echo $!; wait", start_new_session=True)
    grandchild = int(process.stdout.readline())
    assert child.send(signal.SIGTERM) and child.wait(20)
    assert not is_gone(grandchild)
    child.close()
    poll_until(lambda: is_gone(grandchild), description="end of the child's child")


def test_ending_a_child_sends_sigterm_before_sigkill(start):
    cooperative, process = start("trap 'exit 7' TERM; echo ready; while :; do sleep 0.01; done")
    ignoring, other = start("trap '' TERM; echo ready; while :; do sleep 0.01; done")
    assert process.stdout.readline() and other.stdout.readline()
    began = time.monotonic()
    processes.end([cooperative], signal.SIGTERM, 20)
    assert cooperative.code == 7 and time.monotonic() - began < 10
    began = time.monotonic()
    processes.end([ignoring], signal.SIGTERM, 0.5)
    assert ignoring.code == -signal.SIGKILL and 0.5 <= time.monotonic() - began < 10


def test_child_process_dies_with_its_parent():
    code = "import os, sys, time; from dldist._launch import processes; pid = os.getpid()\n"
    code += "if child := os.fork(): print(child, flush=True); sys.stdin.read(1); os._exit(0)\n"
    code += "processes.kill_on_exit_of(pid); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        child = int(parent.stdout.readline())
        os.kill(child, 0)
        parent.communicate("x", timeout=20)
    poll_until(lambda: is_gone(child), description="end of the child")


def test_test_suite_works_with_signals_inherited_as_ignored_or_blocked():
    def prepare():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])

    code = "import signal, deadlines; deadlines.take_all_signals(); signal.raise_signal({})"
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        done = subprocess.run([sys.executable, "-c", code.format(int(number))], cwd=SUPPORT, preexec_fn=prepare, stderr=subprocess.PIPE)
        assert done.returncode == -number, done.stderr
