"""The example and the README's program run as they say."""

import pathlib
import re
import subprocess
import sys

import dldist
import pytest

ROOT = pathlib.Path(__file__).parents[2]


def test_collectives_demo():
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "collectives_demo.py")], capture_output=True, text=True, timeout=25
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert done.stdout.count("the sum of both is [11.5, 22.5, 33.5]") == 2
    assert done.stdout.count("gathered [0, 100]") == 2
    assert "rank 1: received 'hello' from rank 0" in done.stdout


def test_readme(tmp_path):
    """With a port of its own."""
    pytest.importorskip("numpy")
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    program = re.search(r"```python\n(# hello\.py.*?)```", text, re.DOTALL).group(1)
    assert program.count("29500") == 1
    store = dldist.TCPStore("127.0.0.1", 0, is_master=True)
    port = store.port
    del store
    path = tmp_path / "hello.py"
    path.write_text(program.replace("29500", str(port)), encoding="utf-8")
    ranks = [
        subprocess.Popen([sys.executable, str(path), str(rank)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    try:
        said = [child.communicate(timeout=20) for child in ranks]
    finally:
        for child in ranks:
            child.kill()
    assert said[0] == ("", "") and said[1] == ("got a message from rank 0 and [4. 4. 4. 4.]\n", "")
