"""Sizes that do not fit into 32 bits. Takes 8 GiB and some seconds; skipped if less than 14 GiB are
available."""

import dldist
import group_edge_workers as workers
import pytest

WANTED_GIB = 14


def available_gib():
    with open("/proc/meminfo", encoding="ascii") as file:
        fields = dict(line.split(":") for line in file)
    return int(fields["MemAvailable"].split()[0]) / (1 << 20)


# Limits only for hangs: on a shared machine this may take ten times as long.
LIMIT_S = 240


@pytest.mark.exhaustive
@pytest.mark.deadline(LIMIT_S + 20)
def test_operations_on_more_than_4_gib_are_correct(procs):
    if available_gib() < WANTED_GIB:
        pytest.skip(f"{available_gib():.1f} GiB of memory are available, and {WANTED_GIB} are wanted")
    store = dldist.TCPStore("127.0.0.1", 0, is_master=True)
    ranks = [procs.start(workers.past_4_gib, store.port, rank, LIMIT_S) for rank in range(2)]
    nplaces = len(workers.places_of(workers.PAST_4_GIB))
    for child in ranks:
        reduced, received, elsewhere = child.result(LIMIT_S)
        assert reduced == [3 * (index + 1) for index in range(nplaces)]
        assert received == [-index - 1 for index in range(nplaces)]
        assert not any(elsewhere)
