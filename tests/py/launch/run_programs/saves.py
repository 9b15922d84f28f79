"""Take a noticeable time to write a file after SIGTERM."""

import os
import signal
import sys
import time


def save(_number, _frame):
    time.sleep(3)
    with open(os.path.join(sys.argv[1], str(os.getpid())), "w"):
        sys.exit(0)


signal.signal(signal.SIGTERM, save)
print("alive", os.getpid())
time.sleep(60)
