"""Timelines in Chrome's trace event format, for ui.perfetto.dev and chrome://tracing.

Each rank is shown as a process, with a track for each group's collectives and for each peer's
messages. Overlapping calls get additional tracks with the same name, because slices of one track
must nest. Arrows connect the ranks' calls of one collective or message.
"""

from __future__ import annotations

from typing import Any

from dldist.trace.model import Case, Group, operands_text, state_text, title_of
from dldist.trace.p2p import by_pair
from dldist.trace.read import RECEIVES, Entry

_UNFINISHED_NS = 1_000_000
"""Minimum nanoseconds that an unfinished call is drawn beyond the last known event."""

Event = dict[str, Any]


def document(case: Case) -> dict[str, Any]:
    offsets = {str(rank): offset for rank, offset in case.clocks.offsets.items()}
    return {
        "traceEvents": _Timeline(case).build(),
        "displayTimeUnit": "ms",
        "otherData": {"clock_offsets_ns": offsets, "clock_reference_rank": case.clocks.reference},
    }


class _Slice:
    def __init__(self, rank: int, entry: Entry, begin: int, end: int):
        self.rank, self.entry, self.begin, self.end = rank, entry, begin, end
        self.tid = 0


class _Timeline:
    def __init__(self, case: Case):
        self.case = case
        created = [case.created(rank, entry) for rank, dump in case.dumps.items() for entry in dump.entries]
        self.origin = min(created, default=0)
        last = max([case.end_ns, *created])
        self.end = last + max(_UNFINISHED_NS, (last - self.origin) // 50)
        self.events: list[Event] = []
        self.slices: dict[tuple[int, int], _Slice] = {}  # keys are (rank, entry index)
        self.flows = 0

    def build(self) -> list[Event]:
        for rank in sorted(self.case.dumps):
            self.rank(rank)
        for group in self.case.groups:
            for seq in group.numbers():
                entries = [(rank, calls[0]) for rank, calls in group.calls_of(seq).items()]
                self.add_arrows(f"{entries[0][1].op} #{seq}", entries)
            self.add_message_arrows(group)
        return self.events

    def us(self, time_ns: int) -> float:
        return (time_ns - self.origin) / 1000

    def rank(self, rank: int) -> None:
        pid = rank + 1  # because viewers reserve process 0
        self.meta(pid, 0, "process_name", name=f"rank {rank}")
        self.meta(pid, 0, "process_sort_index", sort_index=rank)
        tracks: dict[str, list[Entry]] = {}
        titles = {(group.name, r): group.title for group in self.case.groups for r in group.ranks}
        for entry in self.case.dumps[rank].entries:
            title = titles.get((entry.group, rank), title_of(entry.group, entry.desc))
            if entry.is_p2p:
                is_from = entry.op in RECEIVES
                peer = entry.source if is_from else entry.target
                title += f", {entry.op} {'from' if is_from else 'to'} {peer if peer >= 0 else 'any'}"
            tracks.setdefault(title, []).append(entry)
        tid = 0
        for title, entries in tracks.items():
            lanes: list[int] = []  # end time of the last slice in each track
            first = tid + 1
            for slice_ in sorted((self.slice(rank, entry) for entry in entries), key=lambda slice_: (slice_.begin, slice_.end)):
                lane = next((i for i, free in enumerate(lanes) if free <= slice_.begin), len(lanes))
                lanes[lane : lane + 1] = [slice_.end]
                slice_.tid = first + lane
                self.slices[rank, slice_.entry.index] = slice_
                self.add_slice(pid, slice_)
            for lane in range(len(lanes)):
                tid += 1
                self.meta(pid, tid, "thread_name", name=title + (f" ({lane + 1})" if lane else ""))
                self.meta(pid, tid, "thread_sort_index", sort_index=tid)

    def meta(self, pid: int, tid: int, kind: str, **args: object) -> None:
        self.events.append({"ph": "M", "pid": pid, "tid": tid, "name": kind, "args": args})

    def slice(self, rank: int, entry: Entry) -> _Slice:
        begin = self.case.created(rank, entry)
        if (ended_ns := entry.completed_ns or entry.ended_ns) is not None:
            end = self.case.clocks.to_common(rank, ended_ns)
        elif entry.is_completed:
            end = begin  # if the end was not recorded
        else:
            end = self.end
        return _Slice(rank, entry, begin, max(end, begin + 1))

    def add_slice(self, pid: int, slice_: _Slice) -> None:
        entry = slice_.entry
        name, kind = entry.label, "message" if entry.is_p2p else "collective"
        event: Event = {"ph": "X", "pid": pid, "tid": slice_.tid, "ts": self.us(slice_.begin), "dur": (slice_.end - slice_.begin) / 1000}
        if not entry.is_ended:
            name, kind, event["cname"] = f"{name} (unfinished)", "unfinished", "terrible"
        elif not entry.is_completed:
            name, kind, event["cname"] = f"{name} (failed)", "failed", "bad"
        event.update(name=name, cat=kind, args=self.args(entry))
        self.events.append(event)
        if entry.started_ns is not None:
            started = self.case.clocks.to_common(slice_.rank, entry.started_ns)
            if slice_.begin < started < slice_.end:
                running = {"ts": self.us(started), "dur": (slice_.end - started) / 1000, "name": "running", "cat": "running"}
                self.events.append({"ph": "X", "pid": pid, "tid": slice_.tid, "args": {}, **running})

    def args(self, entry: Entry) -> dict[str, Any]:
        arguments: dict[str, Any] = {"group": entry.group, "group_desc": entry.desc, "state": state_text(entry)}
        if not entry.is_p2p:
            arguments["seq"] = entry.seq
        arguments["operands"] = operands_text(entry)
        arguments["input_sizes"], arguments["input_dtypes"] = entry.inputs, entry.input_dtypes
        arguments["output_sizes"], arguments["output_dtypes"] = entry.outputs, entry.output_dtypes
        arguments["call_site"] = self.case.sites.call_site(entry.frames)
        arguments["record_id"] = entry.record_id
        if entry.frames:
            arguments["stack"] = [f"{frame.file}:{frame.line} {frame.function}" for frame in entry.frames[:16]]
        if entry.timeout_ms is not None:
            arguments["timeout_ms"] = entry.timeout_ms
        return arguments

    def add_arrows(self, name: str, entries: list[tuple[int, Entry]]) -> None:
        """Draw arrows from call to call, in order of time."""
        slices = sorted((self.slices[rank, entry.index] for rank, entry in entries), key=lambda slice_: (slice_.begin, slice_.rank))
        if len(slices) < 2:
            return
        self.flows += 1
        for position, slice_ in enumerate(slices):
            phase = "s" if position == 0 else "f" if position == len(slices) - 1 else "t"
            event = {"ph": phase, "id": self.flows, "pid": slice_.rank + 1, "tid": slice_.tid, "ts": self.us(slice_.begin)}
            event.update(name=name, cat="flow")
            if phase == "f":
                event["bp"] = "e"
            self.events.append(event)

    def add_message_arrows(self, group: Group) -> None:
        sends, receives, _ = by_pair(group)
        for ranks, sent in sends.items():
            if any(rank in self.case.dumps and self.case.dumps[rank].is_partial for rank in ranks):
                continue  # messages cannot be paired, as records are missing
            for send, receive in zip(sent, receives.get(ranks, ())):
                self.add_arrows(f"message {send.source}->{send.target}", [(ranks[0], send), (ranks[1], receive)])
