"""Start a child, print both pids, and ignore requests to end."""

import os
import signal
import subprocess
import sys
import time

for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print("alive", os.getpid(), child.pid)
time.sleep(60)
