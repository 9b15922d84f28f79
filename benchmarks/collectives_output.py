"""Output of benchmarks/collectives.py: statistics of a case, the table, and the report."""

import json
import os
import platform
import statistics
import sys

from collectives_teams import is_python

PLAN = "dldist-plan"


# -- statistics of a case --------------------------------------------------------------------------


def percentile(ordered, fraction):
    return ordered[min(len(ordered) - 1, int(fraction * len(ordered)))]


def figures(entrant, rounds):
    """Return the statistics of an entrant over the rounds with these numbers."""
    ordered = sorted(us for number in rounds for us in entrant.batches_us[number])
    return {
        "time_us": statistics.median(entrant.rounds_us[number] for number in rounds),
        "p50_us": percentile(ordered, 0.50),
        "p90_us": percentile(ordered, 0.90),
        "p99_us": percentile(ordered, 0.99),
        "rounds": len(rounds),
    }


def ratios(entrant, base, rounds):
    """Return the median, least and greatest ratio to the base's time over the rounds."""
    values = [entrant.rounds_us[number] / base.rounds_us[number] for number in rounds] if base else []
    return {
        "ratio": statistics.median(values) if values else None,
        "ratio_least": min(values, default=None),
        "ratio_most": max(values, default=None),
    }


def summarise(entrants, case, labels, base_name):
    """Return {peer: row}, with statistics of all rounds and of each placement's rounds."""
    named = {entrant.name: entrant for entrant in entrants}
    base, plan = named.get(base_name), named.get(PLAN)
    every = range(len(labels))
    groups = {label: [number for number in every if labels[number] == label] for label in sorted(set(labels))}
    rows = {}
    for name, entrant in named.items():
        row = figures(entrant, every) | ratios(entrant, base, every)
        row["ratio_to_plan"] = ratios(entrant, plan, every)["ratio"]
        row["algbw_gb_s"] = case.nbytes / row["time_us"] / 1e3
        row["busbw_gb_s"] = row["algbw_gb_s"] * case.bus_factor
        row["by_label"] = {
            label: figures(entrant, rounds)
            | ratios(entrant, base, rounds)
            | {"ratio_to_plan": ratios(entrant, plan, rounds)["ratio"]}
            for label, rounds in groups.items()
        }
        row |= {"calls_a_batch": entrant.batch, "batches_a_block": entrant.nbatches, "check": entrant.check}
        row |= {"is_python": is_python(name), "rounds_us": entrant.rounds_us}
        if entrant.cpu_us:
            row["cpu_us"] = statistics.median(entrant.cpu_us)
        rows[name] = row
    return rows


# -- the table -------------------------------------------------------------------------------------


def format_size(nbytes):
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if nbytes >= unit and nbytes % unit == 0:
            return f"{nbytes // unit} {name}"
    return f"{nbytes} B"


def format_labels(labels):
    return " ".join(f"{label}{labels.count(label)}" for label in sorted(set(labels)))


def print_head(args):
    print(
        f"{'op':<14} {'dtype':<8} {'size':>8}  {'peer':<18} {'time us':>10} {'p50':>10} {'p90':>10} {'p99':>10}  "
        f"{'to ' + args.base:>9} {'least':>8} {'most':>8} {'to plan':>8}  {'algbw':>7} {'busbw':>7}"
        + (f" {'cpu us':>8}" if args.every_ns else "")
        + "  check  host"
    )


def print_row(head, name, row, args, host):
    line = f"{head}  {name:<18} "
    line += "{time_us:>10.3f} {p50_us:>10.3f} {p90_us:>10.3f} {p99_us:>10.3f}  ".format(**row)
    for field, width in (("ratio", 9), ("ratio_least", 8), ("ratio_most", 8), ("ratio_to_plan", 8)):
        line += f"{'-':>{width}} " if row[field] is None else f"{row[field]:>{width}.3g} "
    line += " {:>7} {:>7}".format(*(f"{row[name]:.2f}" if name in row else "" for name in ("algbw_gb_s", "busbw_gb_s")))
    line += f" {row['cpu_us']:>8.2f}" if "cpu_us" in row else " " * 9 if args.every_ns else ""
    print(f"{line}  {row.get('check', '')[:40]:<5}  {host}")


def print_case(case, result, args):
    """Print a line per peer, and one per placement if the placement changed between rounds."""
    size = "-" if case.op == "barrier" else format_size(case.nbytes)
    head = f"{case.op:<14} {case.dtype:<8} {size:>8}"
    for name, row in result["peers"].items():
        print_row(head, name, row, args, format_labels(result["labels"]))
        if len(row["by_label"]) > 1:
            for label, part in row["by_label"].items():
                print_row(" " * len(head), f"  in {label}", part, args, f"{label}{part['rounds']}")
    for name, reason in result["absent"].items():
        print(f"{head}  {name:<18} {reason[:160]}")
    sys.stdout.flush()


# -- the report ------------------------------------------------------------------------------------


def cpu_model():
    with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
        return next((line.split(":")[1].strip() for line in file if line.startswith("model name")), platform.machine())


def describe(args, versions, results):
    return {
        "benchmark": "collectives",
        "command": sys.argv[1:],
        "rounds": args.rounds,
        "block_ms": args.block_ms,
        "every_ns": args.every_ns,
        "hosts": args.hosts,
        "congestion": args.congestion,
        "bind": args.bind,
        "huge_pages": not args.no_huge_pages,
        "base": args.base,
        "cpus": len(os.sched_getaffinity(0)),
        "cpu_model": cpu_model(),
        "load_before": args.load,
        "load_after": os.getloadavg(),
        "machine": platform.machine(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "versions": versions,
        "results": results,
    }


def write_report(report, path):
    """Replace the report atomically, so that an interrupted run leaves all completed cases."""
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with open(f"{path}.new", "w", encoding="utf-8") as file:
        json.dump(report, file, indent=1)
    os.replace(f"{path}.new", path)
