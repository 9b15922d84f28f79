#!/usr/bin/env bash
# Installs dldist into a new virtual environment and runs the Python tests.
#
#   bash scripts/test.sh [--all] [pytest arguments]
#
#   --all                  runs exhaustive tests too, and installs PyTorch, JAX, mpi4py, UCC, MPICH
#                          and type checkers for their tests
#   VENV=folder            the folder of the environment (.venv-test), which is replaced
#   DLDIST_TEST_AGAIN=1    reruns one to three failed tests by themselves (see scripts/common.sh)
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/common.sh

is_all=0
[[ " $* " != *" --all "* ]] || is_all=1
venv=${VENV:-.venv-test}
install_for_tests "$venv"
if [[ $is_all == 1 ]]; then
    echo "== installing PyTorch, JAX, mpi4py, UCC, MPICH, mypy and basedpyright"
    patiently "$venv/bin/python" -m pip install --quiet --disable-pip-version-check torch==2.13.0 expecttest jax mpi4py mypy basedpyright \
        nvidia-libcal-cu12 libucx-cu12
    wheel_venv "$venv-mpich" mpich
    export DLDIST_TEST_MPI=$PWD/$venv-mpich
    "$venv/bin/python" -m dldist.torch --build
    echo "== testing: all tests, most of which start processes; about half an hour on two cores"
else
    echo "== testing: most tests start processes, which takes several minutes"
    echo "   --all also runs exhaustive tests, and tests of PyTorch, JAX, UCC and type checkers"
fi

# Otherwise the first tests that need these libraries would build them, within their deadlines.
if command -v make >/dev/null; then
    make -s -j2 stubs
fi
bash scripts/pytest.sh "$venv/bin/python" tests/py "$@"
