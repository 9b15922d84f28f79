#!/usr/bin/env bash
# Builds dldist, installs it and runs everything that needs a GPU: tests/gpu and benchmarks/nccl.py. For a machine with one GPU
# or more, and NCCL: as a wheel, in a framework, or on the loader's path. Needs no network where pip has setuptools and pytest already.
#
#   bash tests/gpu/run.sh [FOLDER]     what is measured goes into FOLDER (build/gpu)
#
#   PYTHON=...     the interpreter whose packages (PyTorch, CuPy, JAX, NumPy) are tested with; python3
set -euo pipefail
cd "$(dirname "$0")/../.."

python=${PYTHON:-python3}
out=${1:-build/gpu}
site=$PWD/build/gpu/site
mkdir -p "$out" "$site"

echo "== the machine"
nvidia-smi --query-gpu=index,name,driver_version,memory.total --format=csv 2>/dev/null || {
    echo "no GPU here (nvidia-smi finds none): nothing was run" >&2
    exit 1
}

echo "== installing into $site"
"$python" -m pip install --quiet --no-build-isolation --no-deps --disable-pip-version-check --upgrade --target "$site" .
export PYTHONPATH=$site${PYTHONPATH:+:$PYTHONPATH}
"$python" - <<'PYTHON'
import dldist.nccl

print("NCCL", dldist.nccl.get_version(), dldist.nccl.library_path())
PYTHON

echo "== declarations against the headers that are here"
"$python" tools/check_nccl.py

echo "== tests"
"$python" -m pytest -q -rs tests/gpu | tee "$out/tests.txt"

echo "== benchmark"
"$python" benchmarks/nccl.py --json "$out/nccl.json" | tee "$out/nccl.txt"
