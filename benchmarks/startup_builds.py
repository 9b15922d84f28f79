"""Compare startup times of dldist builds: init_process_group and new_group, in alternating rounds.

    python benchmarks/startup_builds.py FOLDER FOLDER ... [--size 2] [--place url] [--rounds 100]

A FOLDER is put on PYTHONPATH: the folder `pkg` of a checkout in which `make ext` has run. Each has
a process that has imported startup.py's modules and forks the ranks of every round, so that noise
affects all. Printed are medians in milliseconds, and the median of the rounds' ratios to the first
folder.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys


def serve(place, size):
    """Run a round per line of input."""
    import startup

    dist = startup.libraries()["dldist"]
    for _ in sys.stdin:
        print(json.dumps(startup.start_once(dist, place, size)), flush=True)


def open_server(folder, options):
    command = [sys.executable, __file__, "--serve", "--size", str(options.size), "--place", options.place, folder]
    return subprocess.Popen(
        command, env=os.environ | {"PYTHONPATH": folder}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def ask(server):
    server.stdin.write("\n")
    server.stdin.flush()
    return json.loads(server.stdout.readline())


def run(options):
    """Return, per round, [milliseconds to create the world, each group] for each folder."""
    servers = [open_server(folder, options) for folder in options.folders]
    rounds = []
    for number in range(options.rounds):
        order = range(len(servers)) if number % 2 == 0 else range(len(servers) - 1, -1, -1)
        times = {index: ask(servers[index]) for index in order}
        rounds.append([times[index] for index in range(len(servers))])
    for server in servers:
        server.stdin.close()
        server.wait()
    return rounds


def report(options, rounds):
    for title, pick in (("init_process_group", lambda times: times[0]), ("new_group", lambda times: statistics.median(times[2:]))):
        print(f"{title}, {options.size} processes, {options.place}")
        for index, folder in enumerate(options.folders):
            times = sorted(pick(one[index]) for one in rounds)
            ratio = statistics.median(pick(one[index]) / pick(one[0]) for one in rounds)
            low, high = times[len(times) // 10], times[len(times) * 9 // 10]
            print(f"  {statistics.median(times):8.2f} ms ({low:.2f} to {high:.2f})   {ratio:5.2f}  {folder}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+")
    parser.add_argument("--size", type=int, default=2)
    parser.add_argument("--place", choices=["url", "store"], default="url")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.place, options.size)
    else:
        report(options, run(options))


if __name__ == "__main__":
    main()
