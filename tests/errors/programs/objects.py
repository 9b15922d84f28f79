"""Exchange objects between ranks."""

import dldist as dist

dist.init_process_group(timeout=60)
rank = dist.get_rank()
names = [None, None]
dist.all_gather_object(names, {"rank": rank, "data": "x" * 100_000})
assert [name["rank"] for name in names] == [0, 1]
given = [["a", 1] if rank == 0 else None]
dist.broadcast_object_list(given, 0)
assert given == [["a", 1]]
dist.destroy_process_group()
