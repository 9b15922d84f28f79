"""The example and the README's program must run as documented."""

import re
import subprocess
import sys

import pytest
from paths import EXAMPLES, ROOT


def test_collectives_demo_prints_its_results():
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "collectives_demo.py")], capture_output=True, text=True, timeout=25
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert done.stdout.count("the sum of both is [11.5, 22.5, 33.5]") == 2
    assert done.stdout.count("gathered [0, 100]") == 2
    assert "rank 1: received 'hello' from rank 0" in done.stdout


def test_readme_program_runs_as_described(tmp_path):
    """hello.py must run as the README starts it."""
    pytest.importorskip("numpy")
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    path = tmp_path / "hello.py"
    path.write_text(re.search(r"```python\n(# hello\.py.*?)```", text, re.DOTALL).group(1), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "dldist.run", "--nproc-per-node", "2", str(path)],
        capture_output=True,
        text=True,
        timeout=25,
        check=False,
    )
    assert done.returncode == 0 and done.stderr == "", done.stdout + done.stderr
    assert sorted(done.stdout.splitlines()) == [f"[rank{rank}]: rank {rank} of 2: [3. 3. 3. 3.]" for rank in range(2)]
