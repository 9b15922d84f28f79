"""Synthetic flight recorder dumps: programs of several ranks, run by a small simulation with one
injected fault.

A program is a list of steps, each a collective of a group. Every rank runs its own copy, which a
fault may have changed. A rank waits in each call until all members have made the same call. A call
that never completes stays pending: a hang.
"""

import dataclasses
import json
import os
import pickle
import random

SECOND = 1_000_000_000
START = 1_790_000_000 * SECOND
GROUP_OPS = ("all_reduce", "broadcast", "all_gather", "reduce_scatter", "barrier", "all_to_all", "reduce")


@dataclasses.dataclass
class Group:
    name: str
    desc: str
    ranks: list


@dataclasses.dataclass
class Step:
    group: Group
    op: str
    count: int
    dtype: str
    line: int
    late_ns: int = 0
    waits: bool = True
    """False if the next call is made before this one is done."""

    def operands(self):
        size = len(self.group.ranks)
        if self.op == "barrier":
            return [], []
        if self.op == "all_gather":
            return [[self.count]], [[size, self.count]]
        if self.op == "reduce_scatter":
            return [[size, self.count]], [[self.count]]
        if self.op == "all_to_all":
            return [[self.count * size]], [[self.count * size]]
        return [[self.count]], [[self.count]]

    def key(self):
        return self.op, self.count, self.dtype


def frames(line, function="step", file="/home/me/train.py"):
    return [
        {"name": "all_reduce", "filename": "/usr/lib/site-packages/dldist/_api/collectives.py", "line": 7},
        {"name": function, "filename": file, "line": line},
        {"name": "<module>", "filename": file, "line": 1},
    ]


def entry(record, group, op, seq, *, sizes=([[4]], [[4]]), dtype="Float", state="completed", created=START, line=10, **more):
    started = None if state == "scheduled" else created + 1000
    completed = created + 5000 if state == "completed" else None
    found = {
        "record_id": record,
        "pg_id": int(group.name) if group.name.isdigit() else 0,
        "process_group": (group.name, group.desc),
        "collective_seq_id": seq,
        "p2p_seq_id": 0,
        "op_id": record,
        "profiling_name": f"gloo:{op}",
        "time_created_ns": created,
        "input_sizes": sizes[0],
        "input_dtypes": [dtype] * len(sizes[0]),
        "output_sizes": sizes[1],
        "output_dtypes": [dtype] * len(sizes[1]),
        "state": state,
        "time_discovered_started_ns": started,
        "time_discovered_completed_ns": completed,
        "retired": state == "completed",
        "timeout_ms": 600000,
        "is_p2p": op.startswith(("send ", "recv ")),
        "frames": frames(line),
    }
    found.update(more)
    return found


def dump(groups, entries):
    config = {group.name: {"name": group.name, "desc": group.desc, "ranks": str(group.ranks)} for group in groups}
    return {"version": "2.10", "pg_config": config, "pg_status": {}, "entries": entries}


def write(folder, dumps, prefix="fr_", as_json=()):
    os.makedirs(folder, exist_ok=True)
    for rank, content in dumps.items():
        if rank in as_json:
            data = json.dumps(content).encode()
        else:
            data = content if isinstance(content, bytes) else pickle.dumps(content, 2)
        with open(os.path.join(folder, f"{prefix}{rank}"), "wb") as file:
            file.write(data)


# ---- programs


def make_groups(world, rng, several=True):
    groups = [Group("0", "default_pg", list(range(world)))]
    if several and world > 2:
        for number in range(1, rng.randint(1, 3)):
            ranks = sorted(rng.sample(range(world), rng.randint(2, world)))
            groups.append(Group(str(number), f"part_{number}", ranks))
    return groups


def make_program(groups, rng, length):
    steps = []
    for line in range(length):
        group = rng.choice(groups)
        steps.append(
            Step(group, rng.choice(GROUP_OPS), rng.randint(1, 9), rng.choice(["Float", "Int", "BFloat16"]), 100 + line)
        )
    return steps


def run(world, groups, programs, clocks=None):
    """Return the dumps of all ranks; `programs` by rank."""
    clocks = clocks or [0] * world
    logs = [[] for _ in range(world)]
    position = [0] * world
    now = [START + rank * 1000 for rank in range(world)]
    seqs = [{group.name: 0 for group in groups} for _ in range(world)]
    calls = {}  # (group, seq): {rank: (entry, step)}
    pending = [[] for _ in range(world)]
    is_moving = True
    while is_moving:
        is_moving = False
        for rank in range(world):
            while position[rank] < len(programs[rank]) and not pending[rank]:
                step = programs[rank][position[rank]]
                is_moving = True
                position[rank] += 1
                now[rank] += 50_000 + step.late_ns
                seqs[rank][step.group.name] += 1
                seq = seqs[rank][step.group.name]
                made = entry(
                    len(logs[rank]), step.group, step.op, seq, sizes=step.operands(), dtype=step.dtype, state="started",
                    created=now[rank], line=step.line,
                )  # fmt: skip
                logs[rank].append(made)
                calls.setdefault((step.group.name, seq), {})[rank] = made, step
                if step.waits:
                    pending[rank].append((step.group.name, seq))
        for key, present in calls.items():
            steps = [step for _, step in present.values()]
            waiting = [rank for rank, (made, _) in present.items() if made["state"] == "started"]
            whole = len(present) == len(steps[0].group.ranks) and len({step.key() for step in steps}) == 1
            if not waiting or not whole or any(step.late_ns for step in steps):
                continue
            through = max(made["time_created_ns"] for made, _ in present.values()) + 200_000
            for rank, (made, _) in present.items():
                made.update(state="completed", time_discovered_completed_ns=through + rank * 1000, retired=True)
                now[rank] = max(now[rank], through + rank * 1000)
                pending[rank] = [other for other in pending[rank] if other != key]
                is_moving = True
    for rank, log in enumerate(logs):
        for made in log:
            for name in ("time_created_ns", "time_discovered_started_ns", "time_discovered_completed_ns"):
                if made[name] is not None:
                    made[name] += clocks[rank]
    return {rank: dump([g for g in groups if rank in g.ranks], log) for rank, log in enumerate(logs)}


@dataclasses.dataclass
class Case:
    dumps: dict
    kind: str
    faulty_rank: int
    group: str
    seq: int
    clocks: list


FAULTS = ("missing_rank", "wrong_op", "wrong_order", "wrong_size", "wrong_dtype", "slow_rank", "dead_rank", "none")


def make_faulty_dumps(fault, world, seed, *, several=True, keep=None, has_clocks=True):
    """Make a random program with one fault. `keep`: the number of entries in the ring buffers."""
    rng = random.Random(f"{fault} {world} {seed}")
    groups = make_groups(world, rng, several)
    steps = make_program(groups, rng, rng.randint(8, 30))
    at = rng.randrange(len(steps) // 2, len(steps))
    target = steps[at]
    if target.op in ("barrier", "all_to_all") or fault == "wrong_order":
        target.op = "all_reduce"
    faulty_rank = rng.choice(target.group.ranks if world == 2 else target.group.ranks[1:])
    seq = sum(step.group is target.group for step in steps[: at + 1])
    programs = [[dataclasses.replace(step) for step in steps if rank in step.group.ranks] for rank in range(world)]
    own = programs[faulty_rank]
    place = sum(faulty_rank in step.group.ranks for step in steps[:at])
    changed = own[place]
    changed.line = 999
    if fault in ("missing_rank", "dead_rank"):
        del own[place:]
    elif fault == "wrong_op":
        changed.op = "broadcast" if changed.op != "broadcast" else "all_reduce"
    elif fault == "wrong_size":
        changed.count += 1
    elif fault == "wrong_dtype":
        changed.dtype = "Double"
    elif fault == "slow_rank":
        changed.late_ns = 12_400_000_000
    elif fault == "wrong_order":
        second = dataclasses.replace(target, op="broadcast", count=target.count + 3, line=500)
        for rank in target.group.ranks:
            index = sum(rank in step.group.ranks for step in steps[:at])
            own_steps = programs[rank]
            own_steps[index].waits = False
            own_steps.insert(index + 1, dataclasses.replace(second))
            if rank == faulty_rank:
                own_steps[index : index + 2] = [
                    dataclasses.replace(second, waits=False),
                    dataclasses.replace(own_steps[index], waits=True),
                ]
    hour = 3600 * SECOND
    clocks = [rng.randint(-hour, hour) if has_clocks else 0 for _ in range(world)]
    dumps = run(world, groups, programs, clocks)
    if keep:
        for content in dumps.values():
            content["entries"] = content["entries"][-keep:]
    if fault == "dead_rank":
        del dumps[faulty_rank]
    return Case(dumps, fault, faulty_rank, target.group.name, seq, clocks)
