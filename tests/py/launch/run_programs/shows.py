"""Print the environment and arguments as JSON, and a line without a newline on stderr."""

import json
import os
import sys

if os.environ.get("WAITS_FOR_NOBODY") is None and os.environ["WORLD_SIZE"] != "1":
    import dldist

    # The launcher serves the store: every rank is a client.
    store = dldist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), timeout=20)
    store.barrier("started", int(os.environ["WORLD_SIZE"]))
print(json.dumps({"env": dict(os.environ), "argv": sys.argv[1:], "cores": sorted(os.sched_getaffinity(0))}))
sys.stderr.write(f"no end {os.environ['RANK']}")
