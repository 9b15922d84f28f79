"""Performance targets of dldist, compared with a report of benchmarks/collectives.py.

    python benchmarks/collectives_targets.py REPORT.json

Each target is a minimum for the median, over paired rounds, of (peer's time / dldist's time).
"""

import json
import statistics
import sys

KIB, MIB = 1 << 10, 1 << 20

# float32 all_reduce by 2 ranks on one host: size, peer, base, minimum ratio. Below 64 KiB, the
# target for MPIs is "at most twice mpi4py's buffer call".
ALL_REDUCE = (
    [(size, "gloo", "dldist", 50) for size in (8, KIB)]
    + [(size, "mpi4py", "dldist", 0.5) for size in (8, KIB)]
    + [
        (size, peer, "dldist", least)
        for size, gloo, installed, best in (
            (64 * KIB, 50, 3, 1.2),
            (MIB, 15, 2, 1.3),
            (16 * MIB, 8, 2.5, 1.6),
            (128 * MIB, 7, 5, 1.8),
        )
        for peer, least in (("gloo", gloo), ("openmpi", installed), ("mpich", installed), ("openmpi-best", best))
    ]
    + [
        (size, "openmpi-best", "dldist-arena", least)
        for size, least in ((64 * KIB, 3), (MIB, 3), (16 * MIB, 2), (128 * MIB, 2.2))
    ]
)
NEVER_SLOWER = ("gloo", "mpi4py")
OVERSUBSCRIBED = 1 / 1.3
STREAM_SHARE = 0.9
STREAM_LEAST_BYTES = MIB
LATENCY = 1 / 1.3
LATENCY_MOST_BYTES = 64


def ratio(result, peer, base):
    """Return the median over paired rounds, or None. `peer` may be several names: the fastest in
    each round counts. Wrong results are skipped."""
    rounds = {name: row["rounds_us"] for name, row in result["peers"].items() if row["check"] == "ok"}
    rows = [rounds[name] for name in ([peer] if isinstance(peer, str) else peer) if name in rounds]
    if not rows or base not in rounds:
        return None
    return statistics.median(min(theirs) / ours for ours, *theirs in zip(rounds[base], *rows))


def size_name(nbytes):
    if nbytes == 0:
        return "-"
    return f"{nbytes // MIB} MiB" if nbytes >= MIB else f"{nbytes // KIB} KiB" if nbytes >= KIB else f"{nbytes} B"


def all_reduce_targets(results):
    """Yield (description, ratio or None, minimum) for the table above."""
    found = {
        result["nbytes"]: result
        for result in results
        if (result["op"], result["dtype"], result["ranks"], result["hosts"]) == ("all_reduce", "float32", 2, 1)
    }
    for size, peer, base, least in sorted(ALL_REDUCE, key=lambda target: target[0]):
        value = ratio(found[size], peer, base) if size in found else None
        yield f"all_reduce {size_name(size):>7}  {peer} / {base}", value, least


def other_targets(results):
    for result in results:
        if result["ranks"] != 2 or result["hosts"] != 1 or result["op"] in ("all_reduce", "stream"):
            continue
        for peer in NEVER_SLOWER:
            value = ratio(result, peer, "dldist")
            if value is not None or peer not in result["absent"]:
                yield f"{case_name(result)}  {peer} / dldist", value, 1.0


def oversubscribed_targets(results, ncpus):
    for result in results:
        if result["ranks"] <= ncpus or result["hosts"] != 1:
            continue
        name = f"{result['ranks']} ranks on {ncpus} CPUs, {case_name(result)}"
        yield f"{name}  gloo / dldist", ratio(result, "gloo", "dldist"), 1.0
        yield f"{name}  faster MPI / dldist", ratio(result, ("openmpi", "mpich"), "dldist"), OVERSUBSCRIBED


def host_targets(results):
    for result in results:
        if result["hosts"] == 1 or result["ranks"] != 2:
            continue
        value = ratio(result, "rawtcp", "dldist")
        if result["op"] == "stream" and result["nbytes"] >= STREAM_LEAST_BYTES:
            yield f"{case_name(result)}  rawtcp / dldist", value, STREAM_SHARE
        if result["op"] == "sendrecv" and result["nbytes"] <= LATENCY_MOST_BYTES:
            yield f"{case_name(result)}  rawtcp / dldist", value, LATENCY


def case_name(result):
    return f"{result['op']} {result['dtype']} {size_name(result['nbytes']):>7}"


def print_section(title, targets):
    targets = list(targets)
    if not targets:
        return
    width = max(len(what) for what, _, _ in targets)
    print(f"\n{title}\n{'':<{width}}  {'measured':>9} {'wanted':>7}")
    met = 0
    for what, value, least in targets:
        measured = "-" if value is None else f"{value:.2f}"
        verdict = "not measured" if value is None else "met" if value >= least else "missed"
        met += verdict == "met"
        print(f"{what:<{width}}  {measured:>9} {least:>7.2f}  {verdict}")
    print(f"{met} of {len(targets)} met")


def print_targets(report):
    results = [result for result in report["results"] if result.get("noise", "none") == "none" and not result.get("every_ns")]
    if any(result["hosts"] == 1 for result in results):
        print_section("all_reduce, 2 ranks, float32", all_reduce_targets(results))
    print_section("never slower than Gloo and mpi4py, 2 ranks", other_targets(results))
    print_section("more ranks than CPUs", oversubscribed_targets(results, report["cpus"]))
    print_section("across hosts", host_targets(results))


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as report_file:
        print_targets(json.load(report_file))
