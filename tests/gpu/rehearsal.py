"""Print shell commands that make tests/gpu use the stubs of tests/stubs: eval "$(python
tests/gpu/rehearsal.py)"."""

import os
import shlex
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "py", "support"))

import nccl_stubs  # noqa: E402

for name, value in nccl_stubs.build().environment(devices=1).items():
    print(f"export {name}={shlex.quote(value)}")
