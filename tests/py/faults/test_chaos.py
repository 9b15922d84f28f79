"""A short run of the parts of tests/chaos/soak.py, and a few seconds of chaos on request.

Results of chaos depend on the scheduler, so it belongs in a run that is watched (make chaos).
"""

import os
import subprocess
import sys

import pytest
from paths import TESTS

CHAOS = TESTS / "chaos"
sys.path.insert(0, str(CHAOS))

import soak  # noqa: E402

pytestmark = [] if os.environ.get("DLDIST_TEST_CHAOS") else pytest.mark.exhaustive

GROUPS, ITERATIONS = 50, 600


@pytest.mark.deadline(90)
@pytest.mark.parametrize("part", soak.PARTS)
def test_many_rounds_of_random_use_leak_nothing(procs, part):
    if part == "abandoned_in_the_middle" and not os.environ.get("DLDIST_TEST_CHAOS"):
        # Once, on an overloaded machine, a rank did not join the next meeting within 20 s. The
        # cause is unknown.
        pytest.skip("abandons groups at random moments: set DLDIST_TEST_CHAOS, or make soak")
    ranks = 2 if "split" not in part else 3
    soak.run_part(procs, part, ranks, GROUPS if part in soak.OF_GROUPS else ITERATIONS, 80)


@pytest.mark.skipif(not os.environ.get("DLDIST_TEST_CHAOS"), reason="random faults: set DLDIST_TEST_CHAOS, or make chaos")
@pytest.mark.deadline(150)
@pytest.mark.parametrize("options", [["--processes", "3"], ["--processes", "4", "--some-shm"]], ids=" ".join)
def test_random_programs_with_injected_faults_behave_correctly(options):
    command = [sys.executable, CHAOS / "chaos.py", "--seed", "11", "--epochs", "12", *options]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=140)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]


@pytest.mark.deadline(150)
def test_survivors_name_the_killed_rank():
    """Survivors must name the killed rank, even if they exit immediately because of it."""
    phases = "small,messages,two_groups,window,splitting"
    command = [sys.executable, CHAOS / "kills.py", "--seed", "1", "--kills", "80", "--phases", phases, "--limit", "20"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=140)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
