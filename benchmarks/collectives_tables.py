"""Print a report of benchmarks/collectives.py as Markdown tables, with a column per peer.

    python benchmarks/collectives_tables.py REPORT.json [--peers dldist,openmpi5] [--field time_us]

Cells have microseconds, and in parentheses the ratio to `dldist` for Python peers; for peers called
from C, the ratio to dldist's plan, if any.
"""

import argparse
import json

from collectives_output import PLAN, format_size


def title_of(result):
    every = f", a call after {result['every_ns'] / 1e6:g} ms of work" if result["every_ns"] else ""
    noise = f", beside {result['noise']}" if result["noise"] != "none" else ""
    return f"{result['ranks']} ranks, {result['dtype']}{every}{noise}"


def number(value):
    return f"{value:.2f}" if value < 10 else f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def cell(result, peer, field):
    row = result["peers"].get(peer)
    if row is None:
        return "-"
    is_fair = row["is_python"] or row["ratio_to_plan"] is None
    ratio = row["ratio" if is_fair else "ratio_to_plan"]
    is_base = ratio is None or peer in (result.get("base", "dldist"), PLAN)
    quotient = "" if is_base else f" ({ratio:.2g})" if ratio < 100 else f" ({ratio:,.0f})"
    return number(row[field]) + quotient + ("" if row["check"] == "ok" else " wrong")


def print_table(title, results, peers, field):
    print(f"{title}, {field}:\n")
    print("| operation | size |", *(f" {peer} |" for peer in peers), sep="")
    print("| --- | --- |", *(" --- |" for _ in peers), sep="")
    for result in results:
        size = "" if result["op"] == "barrier" else format_size(result["nbytes"])
        print(f"| {result['op']} | {size} |", *(f" {cell(result, peer, field)} |" for peer in peers), sep="")
    print()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("report")
    parser.add_argument("--peers", help="default: all in the report")
    parser.add_argument("--field", default="time_us", choices=("time_us", "p50_us", "p90_us", "p99_us"))
    args = parser.parse_args()
    with open(args.report, encoding="utf-8") as file:
        report = json.load(file)
    found = dict.fromkeys(peer for result in report["results"] for peer in result["peers"])
    peers = args.peers.split(",") if args.peers else list(found)
    print(f"{report['cpus']} x {report['cpu_model']}, Linux {report['kernel']}, Python {report['python']}, "
          f"load before {report['load_before'][0]:.1f}, after {report['load_after'][0]:.1f}\n")  # fmt: skip
    titles = dict.fromkeys(title_of(result) for result in report["results"])
    for title in titles:
        print_table(title, [result for result in report["results"] if title_of(result) == title], peers, args.field)


if __name__ == "__main__":
    main()
