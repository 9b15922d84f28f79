"""Estimates hosts' clock differences from collectives that no rank leaves before all entered.

Two ranks that completed such a collective give a sample. Both left the collective at about the same
time, so the difference of their times is about the difference of their clocks. A sample also gives
a strict bound: neither rank left before the other entered.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping

# Collectives that no rank leaves before all ranks have entered.
_SYNCHRONISING = (
    *("all_reduce", "allreduce", "all_gather", "allgather", "_all_gather", "reduce_scatter", "_reduce_scatter"),
    *("all_to_all", "alltoall", "barrier", "monitored_barrier"),
)
MAX_SAMPLES = 500
_AGREEMENT_NS = 100_000_000
"""Nanoseconds. Smaller offsets are treated as zero, because a recorder's delay can explain them."""


Span = tuple[int, int]
"""The times at which a rank called a collective and at which it completed."""
Sample = Mapping[int, Span]
"""The times of one collective on each rank."""


@dataclasses.dataclass(slots=True)
class Clocks:
    reference: int
    offsets: dict[int, int]
    """Nanoseconds that each compared rank's clock is ahead of the reference's."""
    errors: dict[int, int]
    """The maximum error of each offset, in nanoseconds."""

    def to_common(self, rank: int, time_ns: int) -> int:
        return time_ns - self.offsets.get(rank, 0)

    def is_known(self, rank: int) -> bool:
        return rank in self.offsets


def is_synchronising(op: str) -> bool:
    return op.lower().startswith(_SYNCHRONISING)


def estimate(ranks: list[int], samples: list[Sample], weak_samples: list[Sample]) -> Clocks:
    """Estimate clock offsets. `weak_samples`, of collectives that ranks may leave before all have
    entered, are used only for ranks without other samples."""
    reference = min(ranks, default=0)
    clocks = Clocks(reference, {reference: 0}, {reference: 0})
    for sample_list, difference in ((samples, _difference), (weak_samples, _weak_difference)):
        queue = list(clocks.offsets)
        while queue:
            known = queue.pop(0)
            for rank in ranks:
                if rank in clocks.offsets:
                    continue
                shared = [(sample[known], sample[rank]) for sample in sample_list if known in sample and rank in sample]
                if shared:
                    offset, error = difference(shared[-MAX_SAMPLES:])
                    clocks.offsets[rank] = clocks.offsets[known] + offset
                    clocks.errors[rank] = clocks.errors[known] + error
                    queue.append(rank)
    return clocks


def _weak_difference(shared: list[tuple[Span, Span]]) -> tuple[int, int]:
    differences = [second[1] - first[1] for first, second in shared]
    median = int(statistics.median(differences))
    spread = max(abs(difference - median) for difference in differences)
    longest = max(span[1] - span[0] for pair in shared for span in pair)
    error = max(spread, longest)
    return (0 if abs(median) <= _AGREEMENT_NS + error else median), error


def _difference(shared: list[tuple[Span, Span]]) -> tuple[int, int]:
    """Return how many nanoseconds the second clock is ahead of the first, and the maximum error."""
    differences = [second[1] - first[1] for first, second in shared]
    lowest = max(second[0] - first[1] for first, second in shared)
    highest = min(second[1] - first[0] for first, second in shared)
    median = int(statistics.median(differences))
    median = min(max(median, lowest), highest) if lowest <= highest else median
    spread = sorted(abs(difference - median) for difference in differences)[len(differences) * 9 // 10]
    if lowest <= 0 <= highest and abs(median) <= _AGREEMENT_NS + spread:
        return 0, min(max(abs(median), spread), highest - lowest)
    return median, max(spread, lowest - highest)
