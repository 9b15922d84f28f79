"""A loop that ranks leave at different times, as programs write it. The root is "dldist" or
"torch.distributed"."""

import array
import importlib
import os
from datetime import timedelta


def zero(root):
    if root == "dldist":
        return array.array("f", [0])
    import torch

    return torch.zeros(1)


def counter_of(root, join):
    """Return a Joinable that counts, over all ranks, the participants of each turn."""

    class Hook(join.JoinHook):
        def __init__(self, counter, **kwargs):
            self.counter, self.kwargs = counter, kwargs

        def main_hook(self):
            self.counter.shadowed += 1
            self.counter.dist.all_reduce(zero(root), group=self.counter.group)

        def post_hook(self, is_last_joiner):
            self.counter.ended = (is_last_joiner, self.kwargs)

    class Counter(join.Joinable):
        def __init__(self, dist, group=None):
            super().__init__()
            self.dist, self.group = dist, group
            self.seen, self.shadowed, self.ended = [], 0, None

        def join_hook(self, **kwargs):
            return Hook(self, **kwargs)

        @property
        def join_device(self):
            return zero(root).device if root != "dldist" else "cpu"

        @property
        def join_process_group(self):
            return self.group or self.dist.group.WORLD

        def step(self):
            work = join.Join.notify_join_context(self)
            x = zero(root)
            x[0] = 1
            self.dist.all_reduce(x, group=self.group)
            if work is not None:
                work.wait()
            self.seen.append(int(x[0]))

    return Counter


def loops(root, dist, rank, turns, how, group=None):
    """Run the loop; return what a rank saw in its turns, how many turns it shadowed, the arguments
    of its hooks at the end, and the outcome."""
    join = importlib.import_module(f"{root}.algorithms.join")
    first, second = (counter_of(root, join)(dist, group) for _ in range(2))
    try:
        with join.Join([first, second], **how):
            for _ in range(turns):
                first.step()
                second.step()
    except RuntimeError as error:
        return first.seen, first.shadowed, str(error)
    assert second.seen == first.seen and second.shadowed == first.shadowed and second.ended == first.ended
    return first.seen, first.shadowed, first.ended


def in_processes(root, folder, turns, cases):
    dist, rank = importlib.import_module(root), int(os.environ["RANK"])
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=len(turns), timeout=timedelta(seconds=30)
    )
    found = [loops(root, dist, rank, turns[rank], how) for how in cases]
    dist.destroy_process_group()
    return found
