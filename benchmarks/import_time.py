"""Time that `import dldist` adds to the start of Python: the median of paired runs.

    python benchmarks/import_time.py --rounds 30
"""

import argparse
import json
import statistics
import subprocess
import sys
import time


def seconds_of(code):
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, stdin=subprocess.DEVNULL)
    return time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=30, help="default %(default)s")
    parser.add_argument("--module", default="dldist", help="default %(default)s")
    parser.add_argument("--json", metavar="FILE", help="write all numbers there")
    args = parser.parse_args()
    code = f"import {args.module}"
    seconds_of(code)  # fills the page cache
    bare, pairs = [], []
    for _ in range(args.rounds):
        bare.append(seconds_of("pass"))
        pairs.append(seconds_of(code) - bare[-1])
    print(f"bare Python {statistics.median(bare) * 1e3:.1f} ms, {code}: {statistics.median(pairs) * 1e3:+.2f} ms "
          f"(median of {args.rounds} pairs, {min(pairs) * 1e3:+.2f} .. {max(pairs) * 1e3:+.2f})")
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump({"benchmark": "import_time", "bare_s": bare, "added_s": pairs}, file, indent=1)


if __name__ == "__main__":
    main()
