#!/usr/bin/env bash
# Installs dldist into a new virtual environment and runs the first examples with two processes
# each.
#
#   bash scripts/demo.sh
#
#   VENV=folder    the folder of the environment (.venv-demo), which is replaced
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/common.sh

venv=${VENV:-.venv-demo}
need_compiler
fresh_venv "$venv"

echo "== installing into $venv; the C code is compiled, which takes up to a few minutes"
patiently "$venv/bin/python" -m pip install --quiet --disable-pip-version-check .

echo "== two processes reduce"
"$venv/bin/dlrun" --nproc-per-node 2 examples/all_reduce.py

echo "== two processes create a group"
"$venv/bin/python" examples/collectives_demo.py

echo "== two processes use a store"
"$venv/bin/python" examples/store_demo.py

echo "== done. To run the programs of the README, which use NumPy:"
echo "   source $venv/bin/activate && pip install numpy && dlrun --nproc-per-node 2 hello.py"
