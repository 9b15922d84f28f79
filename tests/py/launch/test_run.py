"""dlrun, as users start it: one process that starts others."""

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import dldist
import procs as procs_module
import pytest
from dldist._launch import attempt, nodes, output, ranks, report
from dldist._launch import options as launch_options
from ports import reserve_port
from terminal import Terminal

PROGRAMS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "run_programs")
LIMIT_S = 25


@pytest.fixture(autouse=True)
def temporary(monkeypatch, tmp_path_factory):
    """Keep the flight recorders of failed jobs in a temporary folder."""
    monkeypatch.setenv("TMPDIR", str(tmp_path_factory.mktemp("temporary")))


def program(name):
    return os.path.join(PROGRAMS, name)


def start(*args, env=None, **how):
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    return subprocess.Popen(
        [sys.executable, "-m", "dldist.run", *map(str, args)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=dict(environment, **(env or {})),
        **how,
    )


def finish(process):
    try:
        out, err = process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
    return process.returncode, out.decode(errors="replace"), err.decode(errors="replace")


def dlrun(*args, **how):
    return finish(start(*args, **how))


def terminal(*args):
    return Terminal([sys.executable, "-m", "dldist.run", *map(str, args)], LIMIT_S)


def by_rank(out):
    """Return the output of each rank."""
    shown = {}
    for line in out.splitlines():
        rank, _, text = line.partition(": ")
        shown[rank] = json.loads(text)
    return shown


def is_gone(pid):
    return procs_module.thread_state(pid, pid) in (None, "Z", "X")


class TestRunning:
    def test_dlrun_passes_ranks_their_environment_and_prefixes_their_output(self):
        code, out, err = dlrun("--nproc_per_node=2", "--max-restarts", 3, program("shows.py"), "--lr", "0.1")
        assert code == 0, err
        shown = by_rank(out)
        assert sorted(shown) == ["[rank0]", "[rank1]"]
        assert sorted(err.splitlines()) == ["[rank0]: no end 0", "[rank1]: no end 1"]
        first, second = shown["[rank0]"], shown["[rank1]"]
        assert first["argv"] == second["argv"] == ["--lr", "0.1"]
        for rank, env in (("0", first["env"]), ("1", second["env"])):
            wanted = {
                "RANK": rank,
                "LOCAL_RANK": rank,
                "ROLE_RANK": rank,
                "WORLD_SIZE": "2",
                "LOCAL_WORLD_SIZE": "2",
                "ROLE_WORLD_SIZE": "2",
                "GROUP_RANK": "0",
                "GROUP_WORLD_SIZE": "1",
                "ROLE_NAME": "default",
                "MASTER_ADDR": "127.0.0.1",
                "TORCHELASTIC_USE_AGENT_STORE": "True",
                "TORCHELASTIC_RESTART_COUNT": "0",
                "TORCHELASTIC_MAX_RESTARTS": "3",
                "OMP_NUM_THREADS": "1",
            }
            assert {name: env.get(name) for name in wanted} == wanted
        shared = ("MASTER_PORT", "TORCHELASTIC_RUN_ID", "DLDIST_SECRET")
        assert [first["env"][name] for name in shared] == [second["env"][name] for name in shared]
        assert len(first["env"]["DLDIST_SECRET"]) == 32

    def test_module_run_as_a_single_rank_writes_to_the_console_directly(self, tmp_path):
        (tmp_path / "package").mkdir()
        (tmp_path / "package" / "tool.py").write_text(
            "import os, sys\nprint(__spec__.name, sys.argv[1:], os.environ.get('OMP_NUM_THREADS'))"
        )
        code, out, err = dlrun("--standalone", "-m", "package.tool", "-m", cwd=tmp_path, env=with_this_path())
        assert (code, out, err) == (0, "package.tool ['-m'] None\n", "")

    def test_dlrun_can_run_commands_that_are_not_python(self):
        code, out, err = dlrun("--no-python", "--nproc-per-node", 2, "sh", "-c", "echo $RANK of $WORLD_SIZE; exit $RANK")
        assert code == 1
        assert sorted(out.splitlines()) == ["[rank0]: 0 of 2", "[rank1]: 1 of 2"]
        code, _, err = dlrun("--no-python", "no-such-command-at-all")
        assert code == 127
        assert err.startswith("dlrun: cannot start no-such-command-at-all: No such file or directory (machine 0, host ")
        code, _, err = dlrun("--log-dir", program("shows.py"), program("shows.py"))
        assert code == 126 and "Not a directory: " in err

    def test_dlrun_takes_an_ambiguous_command_for_a_script(self, tmp_path):
        code, _, err = dlrun("-n", 2, "sh", "-c", "true", cwd=tmp_path, env=with_this_path())
        assert code == 127
        assert err.startswith("dlrun: script sh does not exist; to run the command sh, pass --no-python (")
        code, _, err = dlrun("-np", 2, "train.py", cwd=tmp_path, env=with_this_path())
        assert code == 127 and f"script train.py does not exist in {tmp_path} (" in err

    def test_dlrun_accepts_options_of_torchrun(self):
        args = ("-np", 3, "--rdzv-backend", "c10d", "--role", "trainer", "--monitor_interval", 1, "--local-ranks-filter", "0,2")
        code, out, err = dlrun(*args, "--no-python", "sh", "-c", "echo $ROLE_NAME $RANK")
        assert code == 0, err
        assert sorted(out.splitlines()) == ["[rank0]: trainer 0", "[rank2]: trainer 2"]
        code, out, _ = dlrun("--version")
        assert (code, out) == (0, f"dlrun of dldist {dldist.__version__}\n")

    def test_dlrun_can_bind_ranks_to_cores(self):
        usable = sorted(os.sched_getaffinity(0))
        code, out, err = dlrun("--nproc-per-node", "2", "--bind-cores", program("shows.py"))
        assert code == 0, err
        shown = by_rank(out)
        for rank in (0, 1):
            assert shown[f"[rank{rank}]"]["cores"] == ranks.cores_of(rank, 2, usable)

    def test_large_output_of_ranks_is_complete(self):
        code, out, err = dlrun("--nproc-per-node", 2, program("floods.py"))
        assert code == 0
        for text in (out, err):
            for rank in "01":
                lines = [line for line in text.split("\n") if line.startswith(f"[rank{rank}]: {rank}:")]
                wanted = [f"[rank{rank}]: {rank}:{index}:{'x' * (index % 80)}" for index in range(20000)]
                assert lines == wanted
        assert out.count("]: bytes \ufffd\0\ufffd\n") == 2
        assert out.count("]: bar 1%\r[rank0]: bar 2%\r\n") == 1

    def test_dlrun_writes_output_to_files_on_request(self, tmp_path):
        args = ("--nproc-per-node", 2, "--rdzv-id", "job", "--log-dir", tmp_path, "--redirects", "1:3", "--tee", "0:1")
        code, out, err = dlrun(*args, program("shows.py"))
        assert code == 0, err
        assert list(by_rank(out)) == ["[rank0]"]
        assert err == "[rank0]: no end 0\n"
        (run,) = tmp_path.iterdir()
        assert run.name.startswith("job_")
        files = {str(path.relative_to(run)) for path in run.rglob("*.log")}
        assert files == {"attempt_0/0/stdout.log", "attempt_0/1/stdout.log", "attempt_0/1/stderr.log"}
        assert json.loads((run / "attempt_0/1/stdout.log").read_text())["env"]["TORCHELASTIC_RUN_ID"] == "job"
        assert (run / "attempt_0/1/stderr.log").read_text() == "no end 1"

    def test_output_files_of_dlrun_are_in_a_temporary_folder_by_default(self, tmp_path):
        code, out, err = dlrun("-r", "3", program("shows.py"), env={"TMPDIR": str(tmp_path)})
        (folder,) = tmp_path.iterdir()
        assert (code, out, err) == (0, "", f"dlrun: files are in {folder}\n")
        assert [path.read_text() for path in folder.rglob("stderr.log")] == ["no end 0"]


def with_this_path():
    """Return the variables with which a process elsewhere imports this process's packages."""
    return {"PYTHONPATH": os.pathsep.join(os.path.abspath(path) for path in sys.path if path)}


class TestConsole:
    @pytest.mark.parametrize("closed", [(0, 1), (2,)])
    def test_closed_console_does_not_change_the_exit_code_of_dlrun(self, closed):
        def close():
            for fd in closed:
                os.close(fd)

        code, out, err = dlrun("--nproc-per-node", 2, program("shows.py"), preexec_fn=close)
        assert (code, out == "", err == "") == (0, 1 in closed, 2 in closed), err
        code, out, err = dlrun("--nproc-per-node", 2, "--no-python", "sh", "-c", "exit 3", preexec_fn=close)
        assert (code, out) == (3, ""), err

    def test_dlrun_works_if_a_library_reuses_a_closed_descriptor_number(self):
        """libffi opens a file like this when Python 3.14 imports ctypes."""
        code = "import os, sys; os.open(sys.executable, os.O_RDONLY); from dldist.run import main; sys.exit(main())"
        command = [sys.executable, "-c", code, "--nproc-per-node", "2", program("shows.py")]
        done = subprocess.run(command, stdout=subprocess.PIPE, timeout=LIMIT_S, preexec_fn=lambda: os.close(2))
        assert (done.returncode, len(by_rank(done.stdout.decode()))) == (0, 2)


class TestKeyboard:
    def test_prompt_of_a_rank_is_shown_before_its_answer(self):
        with terminal("-n", 2, program("asks.py")) as job:
            job.wait_for("[rank0]: How many? ")
            job.enter("five")
            code, out = job.finish()
        assert (code, out) == (0, "five\n[rank0]: got five\n")

    def test_prompt_of_a_rank_is_shown_without_a_terminal(self):
        command = [sys.executable, "-m", "dldist.run", "-n", "2", program("asks.py")]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0)
        prompt = b"[rank0]: How many? "
        assert process.stdout.read(len(prompt)) == prompt  # the test's deadline limits the wait
        out, err = process.communicate(b"five\n", timeout=LIMIT_S)
        assert (process.returncode, out, err) == (0, b"got five\n", b"")

    def test_output_of_another_rank_is_not_appended_to_a_prompt(self, tmp_path):
        go = tmp_path / "go"
        os.mkfifo(go)
        with terminal("-n", 2, program("asks.py"), go) as job:
            job.wait_for("[rank0]: How many? ")
            go.write_text("now")
            job.wait_for("\n[rank1]: now\n")
            job.enter("five")
            code, out = job.finish()
        assert (code, out) == (0, "five\n[rank0]: got five\n")

    @pytest.mark.parametrize("rank", [0, 1])
    def test_breakpoint_of_any_rank_reads_the_terminal(self, rank):
        with terminal("-n", 2, program("breaks.py"), rank) as job:
            assert "-> value = 2" in job.wait_for("(Pdb) ")  # the line after the call, in the frame of the caller
            job.enter("p rank, value")
            assert f"({rank}, 1)" in job.wait_for("(Pdb) ")
            job.enter("next")
            job.wait_for("(Pdb) ")
            job.enter("p value")
            assert "\n2\n" in job.wait_for("(Pdb) ")
            job.enter("continue")
            code, _ = job.finish()
        assert code == 0 and "[rank0]: end 2\n" in job.output and "[rank1]: end 2\n" in job.output

    @pytest.mark.parametrize("rank", [0, 1])
    def test_breakpoint_of_any_rank_reads_a_pipe(self, rank):
        command = [sys.executable, "-m", "dldist.run", "-n", "2", program("breaks.py"), str(rank)]
        done = subprocess.run(command, input="p value * 100\nc\n", capture_output=True, text=True, timeout=LIMIT_S)
        assert done.returncode == 0, done.stdout + done.stderr
        assert f"[rank{rank}]: (Pdb) 100\n" in done.stdout

    def test_breakpoint_without_input_names_other_ways_to_debug(self):
        code, _, err = dlrun("-n", 2, program("breaks.py"), 1, start_new_session=True)
        assert code == 1
        assert "breakpoint(): rank 1 has no keyboard: stdin is empty" in err.splitlines()[-1] and "dlrun --debug 1" in err.splitlines()[-1]

    def test_option_debug_starts_one_rank_under_debugpy(self, tmp_path):
        package = tmp_path / "debugpy"
        package.mkdir()
        (package / "__init__.py").touch()
        (package / "__main__.py").write_text("import os, sys; print(os.environ['RANK'], *sys.argv[1:])")
        env = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{with_this_path()['PYTHONPATH']}"}
        code, out, err = dlrun("-n", 2, "--debug", 1, "-m", "json.tool", "--help", env=env)
        assert code == 0, err
        (line,) = (line for line in out.splitlines() if line.startswith("[rank1]"))
        assert line == "[rank1]: 1 --listen 127.0.0.1:5678 --wait-for-client -m json.tool --help"
        assert err == "dlrun: rank 1 starts when a debugger is attached to debugpy at 127.0.0.1:5678\n"
        assert "[rank0]: usage: " in out

    def test_option_debug_without_debugpy_names_the_package(self, capsys, monkeypatch):
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        with pytest.raises(SystemExit):
            launch_options.parse(["--debug", "0", "x"])
        assert "--debug needs debugpy, which is not installed: " in capsys.readouterr().err


class TestFailing:
    FIRST = r"rank 1 failed first: exit code 1 \(host \S+, pid \d+, local rank 1, attempt 0, at .* s\)"

    def test_dlrun_prints_the_traceback_of_the_first_failed_rank_last(self, tmp_path):
        """The ranks' stderr goes only to files, so the traceback must be printed at the end."""
        code, _, err = dlrun("--nproc-per-node", 3, "--redirects", 2, program("fails.py"), "group", env={"TMPDIR": str(tmp_path)})
        assert code == 1
        head, _, tail = err.rpartition("dlrun: ")
        line, _, traceback = tail.partition("\n")
        assert re.fullmatch(self.FIRST, line)
        assert "[rank" not in err
        assert traceback.startswith("Traceback (most recent call last):")
        assert "KeyError: 'inner'" in traceback and traceback.endswith("ValueError: the cause\n")

    @pytest.mark.parametrize("how", ["group", "world"])
    def test_traceback_that_was_just_printed_is_not_repeated(self, how):
        """The traceback must not be repeated, whichever process prefixes its lines with the rank;
        it must end with the exception."""
        code, _, err = dlrun("--nproc-per-node", 2, program("fails.py"), how)
        assert code == 1
        assert err.count("KeyError: 'inner'") == 1
        line, _, words = err.rpartition("dlrun: ")[2].partition("\n")
        assert re.fullmatch(self.FIRST, line)
        assert words == "ValueError: the cause\n"

    def test_traceback_is_repeated_after_much_output(self):
        code, _, err = dlrun("--nproc-per-node", 2, program("fails.py"), "talkers")
        assert code == 1
        line, _, traceback = err.rpartition("dlrun: ")[2].partition("\n")
        assert re.fullmatch(self.FIRST, line)
        assert traceback.startswith("Traceback (most recent call last):") and traceback.endswith("ValueError: the cause\n")
        assert err.count("KeyError: 'inner'") == 2

    @pytest.mark.parametrize(
        ("how", "code", "words"),
        [("code", 7, "exit code 7"), ("signal", 128 + signal.SIGSEGV, "killed by SIGSEGV")],
    )
    def test_exit_code_of_dlrun_is_that_of_the_first_failed_rank(self, how, code, words):
        returned, _, err = dlrun("--nproc-per-node", 2, "--shutdown-timeout", 1, program("fails.py"), how)
        assert returned == code
        assert f"dlrun: rank 1 failed first: {words} (" in err
        assert (how == "code") == err.endswith("\nthe last words\n")

    def test_dlrun_restarts_all_ranks_after_a_failure(self, tmp_path):
        args = ("--nproc-per-node", 2, "--max-restarts", 2, "--log-dir", tmp_path)
        code, out, err = dlrun(*args, program("restarts.py"))
        assert code == 0, err
        assert sorted(out.splitlines()) == [f"[rank{rank}]: attempt 1 of rank {rank} in machine 0" for rank in (0, 1)]
        assert "rank 1 failed first: exit code 5" in err
        assert err.endswith("dlrun: restarting all ranks: 1 of 2\n")
        (run,) = tmp_path.iterdir()
        assert sorted(path.name for path in run.iterdir()) == ["attempt_0", "attempt_1"]


class TestEnding:
    def test_ctrl_c_in_a_hung_job_shows_the_call_of_each_rank(self):
        process = start("--nproc-per-node", 2, program("hangs.py"))
        pids = [int(process.stdout.readline().split()[-1]) for _ in range(2)]
        for pid in pids:
            procs_module.wait_asleep([pid], pid)
        process.send_signal(signal.SIGINT)
        code, _, err = finish(process)
        assert code == 128 + signal.SIGINT
        for rank, where in ((0, "dist.all_reduce(x)"), (1, "time.sleep(60)")):
            lines = [line for line in err.splitlines() if line.startswith(f"[rank{rank}]: ")]
            assert lines[0] == f"[rank{rank}]: Traceback (most recent call last):", err
            assert lines[-1] == f"[rank{rank}]: KeyboardInterrupt", err
            assert err.count(where) == 1, err
        assert err.count("Traceback") == 2 and "excepthook" not in err, err

    def start_lives(self, *args):
        process = start("--nproc-per-node", 2, *args, program("lives.py"))
        lines = [process.stdout.readline().decode().split() for _ in range(2)]
        return process, [int(pid) for line in lines for pid in line[2:]]

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_signal_to_dlrun_ends_all_ranks_within_the_timeout(self, number):
        process, pids = self.start_lives("--shutdown-timeout", 1)
        began = time.monotonic()
        process.send_signal(number)
        code, _, err = finish(process)  # it is less patient than dlrun itself
        assert code == 128 + number
        assert time.monotonic() - began >= 1
        assert f"dlrun: ended by {number.name}" in err
        procs_module.poll_until(lambda: all(map(is_gone, pids)), description="end of ranks and their children")

    def test_second_ctrl_c_ends_a_job_without_waiting(self):
        process, pids = self.start_lives()
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        procs_module.poll_until(lambda: process.poll() is not None or not process.send_signal(signal.SIGINT) and False)
        assert time.monotonic() - began < launch_options.GRACE_S / 2
        finish(process)
        procs_module.poll_until(lambda: all(map(is_gone, pids)), description="end of ranks and their children")

    def test_ctrl_c_twice_ends_the_wait_after_a_failure(self):
        process = start("--nproc-per-node", 2, program("fails.py"), "ignoring")
        lines = iter(process.stderr.readline, b"")
        assert any(line.endswith(b"s, or by Ctrl-C twice\n") for line in lines)
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert any(line.endswith(b"s, or by a second signal\n") for line in lines)
        process.send_signal(signal.SIGINT)
        assert finish(process)[0] == 1
        assert time.monotonic() - began < launch_options.GRACE_S / 2

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP, signal.SIGQUIT])
    def test_signal_that_is_ignored_when_dlrun_starts_stays_ignored(self, number):
        process = start("--nproc-per-node", 2, program("hangs.py"), preexec_fn=lambda: signal.signal(number, signal.SIG_IGN))
        pids = [int(process.stdout.readline().split()[-1]) for _ in range(2)]
        process.send_signal(number)
        for pid in pids:
            os.kill(pid, number)
            procs_module.wait_asleep([pid], pid)
        process.send_signal(signal.SIGTERM)
        code, _, err = finish(process)
        assert code == 128 + signal.SIGTERM
        assert "dlrun: ended by SIGTERM" in err and number.name not in err

    def test_env_default_signal_lets_sigint_end_a_background_job(self):
        """The documented way must work: a script's shell ignores SIGINT in jobs started with &."""
        script = 'env --default-signal=INT "$@" & echo $!; wait $!'
        command = [sys.executable, "-m", "dldist.run", "--nproc-per-node", "2", program("hangs.py")]
        shell = subprocess.Popen(["sh", "-c", script, "sh", *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        launcher = int(shell.stdout.readline())
        for _ in range(2):
            shell.stdout.readline()
        os.kill(launcher, signal.SIGINT)
        assert finish(shell)[0] == 128 + signal.SIGINT

    @pytest.mark.parametrize("state", ["ignored", "blocked"])
    def test_sigterm_ends_ranks_even_if_dlrun_inherited_it_as_ignored(self, state):
        def prepare():
            if state == "ignored":
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
            else:
                signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])

        script = '[ "$RANK" = 0 ] || exit 3; exec sleep 60'
        began = time.monotonic()
        code, _, err = dlrun("--nproc-per-node", 2, "--no-python", "sh", "-c", script, preexec_fn=prepare)
        assert code == 3, err
        assert time.monotonic() - began < launch_options.GRACE_S / 2

    def test_dlrun_waits_for_a_rank_that_saves_its_state(self, tmp_path):
        """dlrun must wait for the rank, and print which rank it waits for."""
        process = start("--nproc-per-node", 2, program("saves.py"), tmp_path)
        pids = sorted(process.stdout.readline().decode().split()[-1] for _ in range(2))
        process.send_signal(signal.SIGTERM)
        code, _, err = finish(process)
        assert code == 128 + signal.SIGTERM
        assert sorted(path.name for path in tmp_path.iterdir()) == pids, err
        assert re.search(r"dlrun: waiting for rank [01] \(pid \d+\).* to end; remaining processes are killed in 2\d s", err), err

    def test_ranks_die_if_dlrun_is_killed(self):
        process, pids = self.start_lives()
        process.kill()
        procs_module.poll_until(lambda: all(is_gone(pid) for pid in pids[::2]), description="end of the ranks")
        for pid in pids[1::2]:  # a rank's children are unreachable then
            os.kill(pid, signal.SIGKILL)
        finish(process)

    def test_closed_output_pipe_ends_a_job_of_dlrun(self):
        process = start("--nproc-per-node", 2, "--no-python", "yes")
        process.stdout.readline()
        process.stdout.close()
        err = process.stderr.read().decode()
        assert process.wait(LIMIT_S) == 128 + signal.SIGPIPE
        assert "the output has no reader" in err

    def test_blocked_output_pipe_does_not_delay_a_job_of_dlrun(self):
        process = start("--nproc-per-node", 2, "--no-python", "yes")
        process.stdout.readline()
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) == 128 + signal.SIGTERM
        assert time.monotonic() - began < launch_options.GRACE_S / 2
        finish(process)


class TestSeveralMachines:
    """Two launchers on this machine."""

    def start_both(self, *args, env=None):
        port = reserve_port()
        common = ("--nnodes", 2, "--rdzv-endpoint", f"127.0.0.1:{port}", *args)
        env = {"DLDIST_SECRET": "s3cret"} if env is None else env
        return [finish(process) for process in [start("--nproc-per-node", count, *common, env=env) for count in (1, 2)]]

    def test_ranks_of_dlrun_are_numbered_across_machines(self):
        both = self.start_both(program("shows.py"))
        assert [code for code, _, _ in both] == [0, 0], both
        shown = {}
        for _, out, _ in both:
            shown.update(by_rank(out))
        envs = [shown[f"[rank{rank}]"]["env"] for rank in range(3)]
        assert {env["WORLD_SIZE"] for env in envs} == {"3"}
        assert sorted(env["LOCAL_WORLD_SIZE"] for env in envs) == ["1", "2", "2"]
        assert len({env["TORCHELASTIC_RUN_ID"] for env in envs}) == 1
        assert {env["DLDIST_SECRET"] for env in envs} == {"s3cret"}

    def test_failure_and_restart_apply_to_all_machines(self):
        both = self.start_both("--max-restarts", 1, program("restarts.py"), env={"DLDIST_SECRET": ""})
        assert [code for code, _, _ in both] == [0, 0], both
        for _, out, err in both:
            assert "attempt 1 of rank" in out
            assert "rank 2 failed first: exit code 5" in err
            assert "warning: no secret" in err

    def test_exit_code_of_dlrun_is_the_same_on_all_machines(self):
        both = self.start_both(program("fails.py"), "group")
        assert [code for code, _, _ in both] == [1, 1], both
        assert all(err.endswith("ValueError: the cause\n") for _, _, err in both)

    def test_dlruns_with_different_arguments_are_rejected(self):
        port = reserve_port()
        common = ("--nnodes", 2, "--rdzv-endpoint", f"127.0.0.1:{port}", program("shows.py"))
        both = [start("--max-restarts", count, *common, env={"DLDIST_SECRET": "s"}) for count in (0, 1)]
        for code, _, err in map(finish, both):
            assert code == 1
            assert re.search(r"--max-restarts differs between machines: got \d, expected \d, as on machine \d \(host \S+\)", err), err


    def test_program_missing_on_one_machine_fails_the_job(self):
        port = reserve_port()
        args = ("--nnodes", 2, "--rdzv-endpoint", f"127.0.0.1:{port}", "--no-python")
        both = [start(*args, *command, env={"DLDIST_SECRET": "s"}) for command in (["sleep", "60"], ["no-such-command"])]
        for code, _, err in map(finish, both):
            assert code == 127
            assert "cannot start no-such-command" in err

    def test_ctrl_c_ends_the_wait_for_dlrun_on_other_machines(self):
        process = start("--nnodes", 2, "--rdzv-endpoint", f"127.0.0.1:{reserve_port()}", program("shows.py"))
        process.stderr.readline()  # the warning about the missing secret
        assert re.match(rb"dlrun: waiting for 1 of 2 machines, 59\d s at most; joined: 0 \(.*\)\n", process.stderr.readline())
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert finish(process)[0] == 128 + signal.SIGINT
        assert time.monotonic() - began < nodes.JOIN_TIMEOUT_S / 60

    def test_dlrun_without_a_heartbeat_is_reported_as_lost(self, monkeypatch):
        monkeypatch.setattr(nodes, "HEARTBEAT_TIMEOUT_S", 0.0)
        monkeypatch.setattr(nodes, "_HEARTBEAT_INTERVAL_S", 0.0)
        store = dldist.HashStore()
        monitor = nodes._HeartbeatMonitor(store, 2)
        store.add("beat/0", 1)
        assert monitor.find_lost() == 1
        store.add("beat/1", 1)
        assert monitor.find_lost() == 0


@pytest.mark.torch
@pytest.mark.deadline(60)
class TestTorch:
    @pytest.mark.parametrize("options", [["--no-secret"], []], ids=["no secret", "a secret"])
    @pytest.mark.parametrize(("nranks", "backend"), [(2, "gloo"), (4, "gloo"), (2, "dldist"), (4, "dldist")])
    def test_torch_program_runs_under_dlrun(self, nranks, backend, options):
        code, out, err = dlrun("--nproc-per-node", nranks, *options, program("torch_program.py"), backend)
        assert code == 0, err
        total = float(nranks * (nranks + 1) // 2)
        assert sorted(out.splitlines()) == [f"[rank{rank}]: sum {[total, total]}" for rank in range(nranks)]

    def test_torch_program_is_restarted_by_dlrun_after_a_failure(self, tmp_path):
        code, out, err = dlrun("-n", 2, "--max-restarts", 1, program("torch_program.py"), "gloo", tmp_path / "failed once")
        assert code == 0, err
        assert "restarting all ranks: 1 of 1" in err and out.count("sum [3.0, 3.0]") == 2


def test_refused_torch_client_gets_an_explanation():
    code, _, err = dlrun("--nproc-per-node", 2, program("refused_torch_client.py"), env={"DLDIST_SECRET": "s"})
    assert code == 1
    assert "rank 1 uses torch's own store client, which cannot prove the job's secret" in err.splitlines()[-1]
    assert "pass --no-secret on all machines" in err.splitlines()[-1]


class TestOptions:
    @pytest.mark.parametrize(
        ("args", "words"),
        [
            (["--nproc-per-node", "many", "x"], '--nproc-per-node must be a number of 1 or more, "cpu" or "auto"'),
            (["--nproc-per-node", "0", "x"], "--nproc-per-node must be"),
            (["--nnodes", "1:4", "x"], "--nnodes must be a number of 1 or more, not '1:4'"),
            (["--nnodes", "2", "x"], "got --nnodes 2 without an address, expected --rdzv-endpoint or --master-addr"),
            (["--nnodes", "2", "--master-addr", "a", "x"], "without --node-rank"),
            (["--nnodes", "2", "--node-rank", "2", "--master-addr", "a", "x"], "--node-rank must be from 0 to 1"),
            (["--rdzv-endpoint", "a:1", "--master-port", "2", "x"], "got both --rdzv-endpoint and --master-addr"),
            (["--rdzv-endpoint", "a:70000", "x"], "must be a port from 0 to 65535, not"),
            (["--tee", "4", "x"], "--tee must be 0, 1, 2 or 3"),
            (["--redirects", "1,2", "x"], "--redirects must be 0, 1, 2 or 3"),
            (["--max-restarts", "-1", "x"], "--max-restarts must be 0 or more"),
            (["-m", "--no-python", "x"], "got both -m and --no-python"),
            ([], "required: program"),
            (["-n", "2", "--debug", "2", "x"], "--debug must be a rank of the job, not 2"),
            (["--debug", "0", "--no-python", "x"], "got both --debug and --no-python"),
            (["--rdzv-endpoint", "::1", "x"], "expected an IPv6 address in brackets"),
        ],
    )
    def test_wrong_options_of_dlrun_are_rejected(self, capsys, args, words):
        with pytest.raises(SystemExit) as caught:
            launch_options.parse(args)
        assert caught.value.code == 2
        assert words in capsys.readouterr().err

    def test_rendezvous_endpoint_has_a_default_host_and_port(self):
        def where(*args):
            options = launch_options.parse([*args, "x"])
            return options.host, options.port

        assert where() == ("127.0.0.1", 0)
        assert where("--nnodes=2", "--rdzv_endpoint", "[::1]:5") == ("::1", 5)
        assert where("--nnodes=2", "--rdzv-endpoint", "host") == ("host", launch_options.DEFAULT_PORT)
        assert where("--nnodes=2", "--rdzv-endpoint", "host:9", "--standalone") == ("127.0.0.1", 0)

    def test_cores_are_divided_evenly_among_ranks(self):
        assert launch_options.parse(["--nproc-per-node", "cpu", "x"]).nproc == launch_options.usable_cores()
        assert [ranks.cores_of(rank, 2, [0, 1, 2, 5, 6]) for rank in (0, 1)] == [[0, 1], [2, 5, 6]]
        assert [ranks.cores_of(rank, 3, [4, 7]) for rank in range(3)] == [[4], [7], [4]]


class TestPieces:
    @pytest.mark.parametrize("size", [1, 2, 3, 1000])
    def test_output_lines_are_prefixed_however_they_are_split_into_reads(self, size):
        data = b"one\ntwo\r\n\r 10%\r 20%\n\xff\0\r\n\nlast"
        lines = output.Lines(b">")
        out = b"".join(lines.feed(data[at : at + size]) for at in range(0, len(data), size)) + lines.flush()
        assert out == b">one\n>two\r\n\r> 10%\r> 20%\n>\xff\0\r\n>\n>last\n"

    def test_rest_of_a_partly_printed_line_has_no_second_prefix(self):
        lines = output.Lines(b">")
        assert lines.feed(b"one\ntw") == b">one\n"
        assert lines.take_start() == b">tw"
        assert lines.feed(b"o") == b"" and lines.take_start() == b"o"
        assert lines.feed(b"\nthree\nfo") == b"\n>three\n"
        assert lines.flush() == b">fo\n"

    def test_output_line_without_an_end_is_limited_in_length(self):
        lines = output.Lines(b">")
        out = b"".join(lines.feed(b"x" * 65536) for _ in range(40)) + lines.flush()
        assert out.count(b"x") == 40 * 65536
        assert max(map(len, out.split(b"\n"))) < 2 << 20

    def test_last_traceback_in_an_output_is_found_with_its_causes(self):
        first = b'Traceback (most recent call last):\n  File "a"\nValueError: 1\n'
        second = b'Traceback (most recent call last):\n  File "b"\nTypeError: 2\n'
        chain = first + b"\nDuring handling of the above exception, another exception occurred:\n\n" + second
        assert report.last_traceback(b"noise\n" + first + b"noise\n" + second) == second
        assert report.last_traceback(second + b"noise\n" + chain) == chain
        many = b"".join(b"%d\n" % index for index in range(50))
        assert report.last_traceback(many) == many[-60:]

    def test_error_that_is_a_consequence_of_another_ranks_failure_is_recognised(self):
        lost = b"Traceback (most recent call last):\n  File\n    f()\ndldist.DistPeerLostError: rank 1 is gone\nmore\n"
        assert report.is_consequence(1, lost)
        assert not report.is_consequence(-9, lost)
        assert not report.is_consequence(1, lost + b"noise\n" + lost.replace(b"DistPeerLostError", b"ValueError"))

    @pytest.mark.parametrize("text", [b"lost rank 1 (a, pid 47): x", b"rank 1 (a, pid 47) aborted the group: x"])
    def test_consequence_of_a_failure_is_recognised_in_any_exception_type(self, text):
        tail = b"Traceback (most recent call last):\n  f()\njax.errors.JaxRuntimeError: UNKNOWN: MPI error: " + text + b"\n"
        assert report.blamed_process(tail) == ("a", 47)
        assert report.is_consequence(1, tail, "a", 46)
        assert not report.is_consequence(1, tail, "a", 47)
        assert report.is_consequence(1, tail, "b", 47)  # containers on two hosts may have equal pids
        assert not report.is_consequence(1, tail.replace(b"pid 47", b"no pid"), "a", 46)

    @pytest.mark.parametrize(
        ("cause", "nnodes", "limit_s"),
        [("a, pid 47", 1, 3.0), ("a, pid 48", 2, 0.5), ("b, pid 48", 2, 3.0), ("b, pid 48", 1, 0.5)],
    )
    def test_dlrun_waits_longer_for_a_blamed_process_that_still_runs(self, cause, nnodes, limit_s):
        tail = f"Traceback (most recent call last):\n  f()\ndldist.DistAbortedError: rank 1 ({cause}) aborted the group: x\n"
        failure = dataclasses.replace(report.launcher_failure(0, 1, ""), host="a", pid=46, tail=tail, is_consequence=True)
        supervisor = object.__new__(attempt.Supervisor)
        supervisor._failures, supervisor._published_failure, supervisor._end_at = [], None, None
        supervisor._ranks = [SimpleNamespace(pid=47, code=None)]
        supervisor._layout = SimpleNamespace(nnodes=nnodes)
        started = time.monotonic()
        supervisor._fail(failure)
        assert supervisor._end_at - started == pytest.approx(limit_s, abs=0.25)

    def test_prefix_of_a_rank_is_removed_from_a_repeated_traceback(self):
        """Tracebacks of ranks in a default world have this prefix. It must be stripped to find the
        lost rank."""
        lost = b"Traceback (most recent call last):\n  File\n    f()\ndldist.DistPeerLostError: rank 1 is gone\n"
        named = b"".join(b"[rank12]: " + line for line in lost.splitlines(keepends=True))
        assert report.without_prefix(named, 12) == lost
        assert report.without_prefix(named, 1) == named

    def test_malformed_report_of_dlrun_on_another_machine_is_rejected(self):
        with pytest.raises(ValueError, match="malformed failure report"):
            report.Failure.from_json(b"[1]")

    def test_names_of_runs_cannot_leave_their_folder(self):
        assert "/" not in nodes._run_names("../../x")[1]
