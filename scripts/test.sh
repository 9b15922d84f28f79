#!/usr/bin/env bash
# Installs dldist into a fresh virtual environment and runs its Python tests.
#
#   bash scripts/test.sh [pytest arguments]
#
#   VENV=folder            where the environment goes (.venv-test); what is in it is replaced
#   DLDIST_TEST_ALL=1      installs PyTorch, JAX, UCC, the wheel of MPICH, mypy and basedpyright too, for the tests that need them
#   DLDIST_TEST_AGAIN=1    where one to three tests fail, runs these three times more, without others beside them (scripts/common.sh)
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

echo "== testing: thousands of tests, most of them with processes of their own; about ten minutes on two cores"
if [[ ${DLDIST_TEST_ALL:-0} != 1 ]]; then
    echo "   those that need PyTorch, JAX, UCC or a type checker are skipped; DLDIST_TEST_ALL=1 installs these and runs them, too"
fi

bash scripts/pytest.sh "$venv/bin/python" tests/py "$@"
