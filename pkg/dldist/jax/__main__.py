"""python -m dldist.jax --env: print variables for a shell, which make JAX programs use dldist."""

from __future__ import annotations

import argparse
import shlex

from dldist.jax import environment


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m dldist.jax", description=__doc__)
    parser.add_argument("--env", action="store_true", required=True, help="print the variables as shell commands")
    parser.parse_args()
    for name, value in environment().items():
        print(f"export {name}={shlex.quote(value)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
