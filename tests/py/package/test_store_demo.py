"""The example must run as in the README."""

import subprocess
import sys

from paths import EXAMPLES

DEMO = EXAMPLES / "store_demo.py"


def test_store_demo_prints_its_results():
    done = subprocess.run([sys.executable, str(DEMO)], capture_output=True, text=True, timeout=25)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert "rank 0: reads 'greetings from rank 1" in done.stdout
    assert "rank 1: reads 'greetings from rank 0" in done.stdout
    assert done.stdout.count("both see the sum 3") == 2
    assert "takes ['wash', 'dry'] from the queue" in done.stdout
