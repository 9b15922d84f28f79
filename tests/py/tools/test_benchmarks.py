"""A short run of benchmarks/collectives.py must write its report and leave no process behind."""

import json
import os
import shutil
import signal
import subprocess
import sys

import pytest
from paths import ROOT

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.deadline(150),
    pytest.mark.skipif(shutil.which("cc") is None, reason="a C compiler builds its programs"),
]


def run_benchmark(*arguments, json_file):
    pytest.importorskip("numpy")
    command = [sys.executable, ROOT / "benchmarks" / "collectives.py", *arguments, "--json", json_file]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, json.loads(json_file.read_text())


def test_benchmark_measures_calls_after_computation_beside_noise_processes(tmp_path):
    shown, report = run_benchmark(
        "--peers", "dldist,dldist-plan,mpich5", "--mpi-folder", tmp_path, "--ops", "all_reduce,sendrecv", "--sizes", "8",
        "--rounds", "1", "--every", "50us", "--noise", "1of10", "--block-ms", "1", json_file=tmp_path / "report.json",
    )  # fmt: skip
    reduced, messages = report["results"]
    assert (reduced["noise"], reduced["every_ns"], reduced["ranks"]) == ("1of10", 50_000, 2)
    assert set(reduced["peers"]) == {"dldist", "dldist-plan"}
    for row in (*reduced["peers"].values(), *messages["peers"].values()):
        assert row["check"] == "ok" and 0 < row["p50_us"] <= row["p90_us"] <= row["p99_us"] and row["cpu_us"] > 0
    assert reduced["peers"]["dldist"]["ratio"] == 1 and reduced["peers"]["dldist-plan"]["ratio_to_plan"] == 1
    assert "plan" in messages["absent"]["dldist-plan"]
    assert "mpich5 is left out" in shown or "mpich" in report["versions"].get("mpich5", "").lower()


def test_benchmark_measures_consecutive_calls(tmp_path):
    _, report = run_benchmark(
        "--peers", "dldist", "--ops", "barrier", "--ranks", "3", "--rounds", "1", "--block-ms", "1", "--no-probe",
        json_file=tmp_path / "report.json",
    )  # fmt: skip
    (result,) = report["results"]
    row = result["peers"]["dldist"]
    assert (result["labels"], row["by_label"]["?"]["rounds"], len(row["rounds_us"])) == (["?"], 1, 1)


@pytest.mark.parametrize("kind", ["busy2", "short-lived"])
def test_noise_processes_of_a_benchmark_end_with_their_parent(tmp_path, kind):
    """When its parent is killed, all noise processes must end. They all have the pipe, which closes
    with the last of them."""
    program = tmp_path / "noise"
    subprocess.run(
        ["cc", "-std=gnu11", "-D_GNU_SOURCE", "-o", program, ROOT / "benchmarks" / "peers" / "noise.c"], check=True
    )
    script = (
        "import subprocess, sys, time\n"
        "noise = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE)\n"
        "time.sleep(60)"
    )
    cpu = str(min(os.sched_getaffinity(0)))
    starter = subprocess.Popen([sys.executable, "-c", script, program, kind, cpu], stdout=subprocess.PIPE)
    assert starter.stdout.readline() == b"ready\n"
    starter.send_signal(signal.SIGKILL)
    assert starter.communicate(timeout=30)[0] == b""
