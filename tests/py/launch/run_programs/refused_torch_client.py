"""Rank 1 prints the error of a torch client that a store with a secret has refused."""

import os
import sys
import time

if os.environ["RANK"] == "1":
    print("TCP client failed to connect/validate to host 10.0.0.1:29500 - retrying", file=sys.stderr)
time.sleep(60)
