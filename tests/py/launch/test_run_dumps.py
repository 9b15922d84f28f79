"""The flight recorders of a job started by dlrun, without preparation."""

import os
import re
import signal
import stat

import procs as procs_module
import pytest
from test_run import dlrun, finish, program, start

MISSING = "Rank 1 is missing: it has not called all_reduce #2"


def start_hanging(tmp_path, **env):
    """Start a job whose rank 0 waits for rank 1; return the process and the pids by rank."""
    process = start("--nproc-per-node", 2, program("hangs.py"), env={"TMPDIR": str(tmp_path), **env})
    lines = sorted(process.stdout.readline().decode().split() for _ in range(2))
    pids = [int(line[-1]) for line in lines]
    for pid in pids:
        procs_module.wait_asleep([pid], pid)
    return process, pids


def read_until(process, words):
    lines = []
    while not lines or words not in lines[-1]:
        line = process.stderr.readline().decode()
        assert line, lines
        lines.append(line)
    return "".join(lines)


def files_in(folder):
    """Return the files, without those that a rank was writing when it ended."""
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


def end(process):
    process.send_signal(signal.SIGINT)
    code, _, err = finish(process)
    assert code == 128 + signal.SIGINT, err


def test_timeout_under_dlrun_writes_dumps_and_names_the_missing_rank(tmp_path):
    code, _, err = dlrun("--nproc-per-node", 2, program("lags.py"), env={"TMPDIR": str(tmp_path)})
    assert code == 1
    (folder,) = tmp_path.iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert files_in(folder) == ["trace_0", "trace_1"]
    assert f"dlrun: {MISSING}" in err
    assert f"dlrun: the flight recorders of the ranks are in {folder}; python -m dldist.trace {folder}\n" in err
    assert err.splitlines()[-1].startswith("dldist.DistTimeoutError: all_reduce #2"), err


@pytest.mark.parametrize("how", ["logs", "own"])
def test_dumps_under_dlrun_are_beside_the_output_or_in_the_given_folder(tmp_path, how):
    """Dumps must be with the run's other files, or in the environment's folder."""
    temporary, wanted = tmp_path / "temporary", tmp_path / "wanted"
    temporary.mkdir()
    env = {"TMPDIR": str(temporary), **({"DLDIST_FR_DUMP_FILE": f"{wanted}/mine_"} if how == "own" else {})}
    args = ("--log-dir", wanted) if how == "logs" else ()
    code, _, err = dlrun("--nproc-per-node", 2, *args, program("lags.py"), env=env)
    assert code == 1 and f"dlrun: {MISSING}" in err, err
    assert not list(temporary.iterdir())
    names = {str(path.relative_to(wanted)) for path in wanted.rglob("*e_[01]")}
    if how == "own":
        assert names == {"mine_0", "mine_1"}
        assert f"python -m dldist.trace -p mine_ {wanted}\n" in err
    else:
        assert {name.partition("/")[2] for name in names} == {f"attempt_0/traces/trace_{rank}" for rank in (0, 1)}


@pytest.mark.parametrize("args", [(), ("--log-dir", "logs")])
def test_successful_job_of_dlrun_leaves_no_files(tmp_path, args):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    args = [tmp_path / arg if arg == "logs" else arg for arg in args]
    code, _, err = dlrun("--nproc-per-node", 2, *args, program("shows.py"), env={"TMPDIR": str(temporary)})
    assert code == 0, err
    assert not list(temporary.iterdir()) and not list(tmp_path.rglob("traces"))


def test_signal_to_dlrun_reports_the_call_of_each_rank(tmp_path):
    process, pids = start_hanging(tmp_path)
    for _ in range(2):
        process.send_signal(signal.SIGUSR2)
        text = read_until(process, "the flight recorders of the ranks are in ")
        ranks = ", ".join(f"rank {rank} (pid {pid})" for rank, pid in enumerate(pids))
        assert re.match(rf"dlrun: report at [\d:]+: 2 of 2 ranks here are running: {re.escape(ranks)}\ndlrun: {MISSING}", text), text
    (folder,) = tmp_path.iterdir()
    for pid in pids:  # the signal does not end a rank either
        os.kill(pid, signal.SIGUSR2)
    end(process)
    # The user requested these, and may want to read them.
    assert files_in(folder) == ["trace_0", "trace_1"]


@pytest.mark.parametrize("format", ["pickle", "json"])
def test_dumps_of_earlier_jobs_are_ignored(tmp_path, format):
    """Earlier dumps are from a job with more ranks and another format."""
    env = {"DLDIST_FR_DUMP_FILE": f"{tmp_path}/mine_", "DLDIST_FR_DUMP_FORMAT": {"json": "pickle", "pickle": "json"}[format]}
    code, _, err = dlrun("--nproc-per-node", 3, program("lags.py"), env=env)
    assert code == 1 and len(files_in(tmp_path)) == 3, err
    code, _, err = dlrun("--nproc-per-node", 2, program("lags.py"), env={**env, "DLDIST_FR_DUMP_FORMAT": format})
    assert code == 1 and len(files_in(tmp_path)) == 5
    assert f"dlrun: {MISSING} of group \"default\"; " in err and "ank 2" not in err, err


def test_job_ended_by_ctrl_c_leaves_no_dumps(tmp_path):
    process, _ = start_hanging(tmp_path)
    end(process)
    assert not list(tmp_path.iterdir())


def test_dump_signal_does_not_end_ranks_without_a_monitor(tmp_path):
    process = start("-n", 2, "--shutdown-timeout", 1, program("lives.py"), env={"TMPDIR": str(tmp_path)})
    for _ in range(2):
        process.stdout.readline()
    process.send_signal(signal.SIGUSR2)
    text = read_until(process, "no information: ")
    assert "2 of 2 ranks here are running: rank 0 (pid " in text
    end(process)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("setting", ["SIGNOTHING", "SIG_BLOCK", "99", "SIGKILL"])
def test_malformed_dump_setting_of_dlrun_is_an_error(setting):
    code, _, err = dlrun(program("shows.py"), env={"DLDIST_DUMP_SIGNAL": setting})
    assert code == 1
    assert err == f"dlrun: Invalid value for environment variable: DLDIST_DUMP_SIGNAL ({setting!r})\n"
