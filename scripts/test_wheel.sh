#!/usr/bin/env bash
# Installs the wheel in dist/ for this machine into a new environment of every installed Python, and
# runs some tests with each: one wheel serves all versions. The tests are from the source
# distribution in dist/, which must be complete enough to run them.
#
#   bash scripts/test_wheel.sh [3.12]...     these versions; all supported ones without arguments
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/common.sh

# Tests that cover most of the binding and the differences between Python versions: frames, signals,
# threads, buffers, pickles.
files=(tests/py/*/test_{tensors,group_works,work_class,python_store,objects,flight_recorder,threads_signals_fork}.py)
# Limits on the cost of a call are checked only with the Python that runs all tests.
left_out=test_recording_a_call_in_the_flight_recorder_is_fast
source_tree=build/sdist
scripts=$PWD/scripts

test_with() {
    local python=$1 venv=$2
    rm -rf "$venv"
    "$python" -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --only-binary :all: \
        dist/dldist-*_"$(uname -m)".whl pytest pytest-xdist numpy cloudpickle
    venv=$(realpath "$venv")
    (
        cd "$source_tree"
        "$venv/bin/python" tests/smoke.py
        timeout 600 bash "$scripts/pytest.sh" "$venv/bin/python" --all -k "not $left_out" "${files[@]}"
    )
}

rm -rf "$source_tree"
mkdir -p "$source_tree"
tar -xzf dist/dldist-*.tar.gz --strip-components=1 -C "$source_tree"

[[ $# -gt 0 ]] || set -- 3.11 3.12 3.13 3.14 3.15
for version in "$@"; do
    if python=$(find_python_version "$version"); then
        echo "== the wheel with Python $version"
        test_with "$python" ".venv-wheel-$version"
    else
        echo "== Python $version is not installed: not tested"
    fi
done
