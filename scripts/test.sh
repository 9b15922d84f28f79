#!/usr/bin/env bash
# Installs dldist into a fresh virtual environment and runs its Python tests.
#
#   bash scripts/test.sh [pytest arguments]
#
#   VENV=folder            where the environment goes (.venv-test); what is in it is replaced
#   DLDIST_TEST_ALL=1      installs PyTorch, JAX, UCC, the wheel of MPICH, mypy and basedpyright too, for the tests that need them
#   DLDIST_TEST_AGAIN=1    where one to three tests fail, runs these three times more, without others beside them. Names that pass each
#                          time go to build/unsteady-tests, and do not count as failed
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

# Most tests are about time and the deaths of processes, and a machine that runs something else may fail one.
test_again() {
    local list=.pytest_cache/v/cache/lastfailed failed
    [[ ${DLDIST_TEST_AGAIN:-0} == 1 && -f $list ]] || return 1
    mapfile -t failed < <(python3 -c 'import json, sys; print(*json.load(open(sys.argv[1])), sep="\n")' "$list")
    [[ ${#failed[@]} -ge 1 && ${#failed[@]} -le 3 ]] || return 1
    for _ in 1 2 3; do
        echo "== again, alone: ${failed[*]}"
        timeout 900 "$venv/bin/python" -m pytest -q -p no:cacheprovider "${failed[@]}" || return 1
    done
    mkdir -p build
    printf '%s\n' "${failed[@]}" >build/unsteady-tests
}

rm -rf build/unsteady-tests .pytest_cache/v/cache/lastfailed
"$venv/bin/python" -m pytest -q -n "$(nproc)" --dist worksteal tests/py "$@" || test_again
