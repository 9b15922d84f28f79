"""Use a FileStore and the launcher's TCPStore directly."""

import os

import dldist

rank = int(os.environ["RANK"])
address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
path = os.path.join(os.environ["ERRORS_FOLDER"], "store")
for store in (dldist.TCPStore(*address, timeout=60), dldist.FileStore(path, 2)):
    store.set(f"key {rank}", "value")
    assert store.get(f"key {1 - rank}") == b"value"
    assert store.add("sum", 1) in (1, 2)
    store.queue_push(f"queue {rank}", b"x" * 100_000)
    assert len(store.queue_pop(f"queue {1 - rank}")) == 100_000
    store.barrier("end", 2)
