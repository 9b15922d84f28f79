"""Write many lines to both streams, split at arbitrary bytes, and bytes that are not text."""

import os
import sys

COUNT = 20000
rank = os.environ["RANK"]
for index in range(COUNT):
    for stream in (sys.stdout, sys.stderr):
        stream.write(f"{rank}:{index}:")
        stream.write("x" * (index % 80) + "\n")
sys.stdout.buffer.write(b"bar 1%\rbar 2%\r\nbytes \xff\x00\xfe")
