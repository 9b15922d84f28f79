"""python -m dldist.torch: report whether groups are in C++ or Python; --build compiles."""

from __future__ import annotations

import argparse
import logging

from dldist.torch import _native


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m dldist.torch", description=__doc__)
    parser.add_argument("--build", action="store_true", help="compile the backend in C++ now; exit with an error if this fails")
    options = parser.parse_args()
    logging.basicConfig(format="%(message)s")
    if options.build:
        try:
            _native.build()
        except _native.BuildError as reason:
            print(f"error: {reason}")
            return 1
    print(_native.state())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
