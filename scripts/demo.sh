#!/usr/bin/env bash
# Installs dldist into a fresh virtual environment, and lets two processes talk through a TCPStore and then in a group.
#
#   bash scripts/demo.sh
#
#   VENV=folder    where the environment goes (.venv-demo); what is in it is replaced
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/common.sh

venv=${VENV:-.venv-demo}
need_compiler
fresh_venv "$venv"

echo "== installing into $venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check .

echo "== two processes meet"
"$venv/bin/python" examples/store_demo.py

echo "== two processes reduce"
"$venv/bin/python" examples/collectives_demo.py
