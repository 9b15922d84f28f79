"""A short run of benchmarks/carriers.py must work with each installed library."""

import json
import shutil
import subprocess
import sys

import mpirun
import pytest
from dldist import carriers
from paths import ROOT

LIBRARIES = mpirun.find() + (["ucc"] if carriers.is_available("ucc") else [])
pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.deadline(100),
    pytest.mark.skipif(shutil.which("cc") is None, reason="a C compiler builds its loops"),
]


@pytest.mark.parametrize("library", LIBRARIES or [None], ids=lambda library: getattr(library, "name", str(library)))
def test_quick_benchmark_of_carriers_prints_a_table(library, tmp_path):
    if library is None:
        pytest.skip("no library is installed: apt-get install openmpi-bin mpich, pip install nvidia-libcal-cu12 libucx-cu12")
    report = tmp_path / "report.json"
    command = [sys.executable, ROOT / "benchmarks" / "carriers.py", "--quick", "-n", "2", "--json", report]
    if library == "ucc":
        command, environment = [*command, "--carrier", "ucc"], None
    else:
        launcher = " ".join(library.command(2)[:-2])  # without -n 2
        command, environment = [*command, "--mpirun", launcher], library.variables()
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(report.read_text())["results"]
    assert [row["bytes"] for row in rows] == [8, 65536]
    for row in rows:
        assert len(row["times"]) == (5 if library == "ucc" else 6)
        assert all(len(times) == 3 and min(times) > 0 for times in row["times"].values()), row
    lines = done.stdout.splitlines()
    assert len(lines) == 4 and len({line.count("|") for line in lines}) == 1, done.stdout
