#!/usr/bin/env bash
# Installs dldist into a new virtual environment and runs the Python tests.
#
#   bash scripts/test.sh [pytest arguments]
#
#   VENV=folder            the folder of the environment (.venv-test), which is replaced
#   DLDIST_TEST_ALL=1      also installs PyTorch, JAX, UCC, MPICH and type checkers for their tests
#   DLDIST_TEST_AGAIN=1    reruns one to three failed tests by themselves (see scripts/common.sh)
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/common.sh

venv=${VENV:-.venv-test}
need_compiler
fresh_venv "$venv"

echo "== installing into $venv; the C code is compiled, which takes up to a few minutes"
patiently "$venv/bin/python" -m pip install --quiet --disable-pip-version-check ".[test]"
if [[ ${DLDIST_TEST_ALL:-0} == 1 ]]; then
    echo "== installing PyTorch, JAX, UCC, MPICH, mypy and basedpyright"
    patiently "$venv/bin/python" -m pip install --quiet --disable-pip-version-check torch==2.13.0 expecttest jax mypy basedpyright \
        nvidia-libcal-cu12 libucx-cu12
    wheel_venv "$venv-mpich" mpich
    export DLDIST_TEST_MPI=$PWD/$venv-mpich
    "$venv/bin/python" -m dldist.torch --build
fi

echo "== testing: thousands of tests, most of which start processes; about ten minutes on two cores"
if [[ ${DLDIST_TEST_ALL:-0} != 1 ]]; then
    echo "   tests of PyTorch, JAX, UCC and type checkers are skipped; DLDIST_TEST_ALL=1 installs these and runs them"
fi

bash scripts/pytest.sh "$venv/bin/python" tests/py "$@"
