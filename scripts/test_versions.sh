#!/usr/bin/env bash
# Tests dldist with the supported versions of Python, NumPy, PyTorch and JAX: one environment and
# one test run per row of the matrix below. Prints a table, and writes it to
# docs/supported-versions.md.
#
#   bash scripts/test_versions.sh [--pre] [--tests SET] [ROW]...
#
#   ROW        the name of a row, or a prefix: "torch" selects PyTorch's rows. Default: all rows
#   --pre      installs pre-releases for rows without a version; does not write the page
#   --tests    runs this set of tests instead of the row's; does not write the page
#   --list     prints the rows and exits
#
# A row whose Python is not installed is reported as not run. The page keeps results of rows that do
# not run. Environments and results are in build/versions: ROW.log has the output of the row's
# tests, ROW.xml the result of each. The newest PyTorch takes 3 GB to download and 6 GB on disk, so
# each environment is removed after its tests (KEEP=1 keeps it).
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/common.sh

# Name, Python, requirements, tests. Each supported version is in at least one row; "newest" rows
# install the versions that pip selects.
rows="
python-3.11   3.11  numpy                          default
python-3.12   3.12  numpy                          default
python-3.13   3.13  numpy                          default
python-3.14   3.14  numpy                          default
python-3.15   3.15  numpy                          default
numpy-1.26    3.11  numpy==1.26.*,ml_dtypes        arrays
numpy-2.0     3.12  numpy==2.0.*,ml_dtypes         arrays
numpy-newest  3.12  numpy,ml_dtypes                arrays
torch-2.6     3.11  torch==2.6.*,numpy             torch
torch-2.13    3.11  torch==2.13.*,numpy            torch
torch-2.14    3.11  torch==2.14.*,numpy            torch
torch-2.15    3.12  torch==2.15.*,numpy            torch
torch-newest  3.13  torch,numpy                    torch
jax-0.10      3.11  jax==0.10.*,numpy              jax
jax-0.11      3.12  jax==0.11.*,numpy              jax
jax-0.12      3.12  jax==0.12.*,numpy              jax
jax-newest    3.13  jax,numpy                      jax
both-newest   3.12  torch,jax,numpy                frameworks
"
test_tools=(pytest pytest-xdist cloudpickle hypothesis expecttest)

files_of() {
    case $1 in
        default) echo tests/py ;;
        arrays) echo tests/py/*/test_{tensors,operation_table,group_operations,message_dtypes,objects,shared_array,functional,reshard}.py ;;
        torch) echo tests/py/*/test_torch_*.py tests/py/*/test_c10d_*.py tests/py/*/test_{surface,device_mesh,examples}.py ;;
        torch-backend) echo tests/py/*/test_torch_{names,backend,backend_entry,native,interop}.py tests/py/*/test_c10d_{surface,hooks}.py ;;
        jax) echo tests/py/*/test_jax*.py tests/py/arrays/test_functional.py ;;
        frameworks) echo tests/py/*/test_torch_{backend,interop}.py tests/py/arrays/test_jax.py tests/py/arrays/test_functional.py ;;
    esac
}

folder=build/versions
page=(--page docs/supported-versions.md)
pre=()
chosen=
is_list=0
wanted=()
while [[ $# -gt 0 ]]; do
    case $1 in
        --pre) pre=(--pre) page=() ;;
        --tests) chosen=${2:?--tests needs the name of a set} page=() && shift ;;
        --list) is_list=1 ;;
        -*) sed -n '2,/^set/{/^#/p}' "$0" >&2; exit 2 ;;
        *) wanted+=("$1") ;;
    esac
    shift
done

is_wanted() {
    local name
    [[ ${#wanted[@]} -gt 0 ]] || return 0
    for name in "${wanted[@]}"; do
        [[ $1 != "$name"* ]] || return 0
    done
    return 1
}

# install VENV PIP-ARGUMENTS...: runs pip without this machine's version constraints.
install() {
    PIP_CONSTRAINT=/dev/null patiently "$1/bin/python" -m pip install --quiet --disable-pip-version-check "${@:2}"
}

# test_row NAME PYTHON REQUIREMENTS TESTS: fails if the tests fail or cannot be run.
test_row() {
    local name=$1 python=$2 requirements=$3 tests=$4 venv=$folder/$1 status=0
    rm -rf "$venv" "$folder/$name.xml"
    "$python" -m venv "$venv" || return 1
    install "$venv" "${pre[@]}" "${test_tools[@]}" ${requirements//,/ } "$folder"/dist/dldist-*.whl || return 1
    if [[ $requirements == *torch* ]]; then
        "$venv/bin/python" -m dldist.torch --build || return 1
    fi
    timeout "${LIMIT:-3600}" bash scripts/pytest.sh "$venv/bin/python" --all --junit-xml "$folder/$name.xml" $(files_of "$tests") \
        >"$folder/$name.log" 2>&1 || status=$?
    "$venv/bin/python" -m pip freeze --quiet >"$folder/$name.txt"
    tail -n 1 "$folder/$name.log"
    [[ ${KEEP:-0} == 1 ]] || rm -rf "$venv"
    return "$status"
}

if [[ $is_list == 1 ]]; then
    echo "$rows"
    exit
fi
mkdir -p "$folder"
fresh_venv "$folder/tools"
rm -rf "$folder/dist"
echo "== building a wheel"
install "$folder/tools" wheel "setuptools>=77"
patiently "$folder/tools/bin/python" -m pip wheel --quiet --no-deps --no-build-isolation -w "$folder/dist" .

failed=()
tested=()
while read -r name version requirements tests; do
    tests=${chosen:-$tests}
    if [[ -z $name ]] || ! is_wanted "$name"; then
        continue
    elif ! python=$(find_python_version "$version"); then
        echo "== $name: not run: Python $version is not installed"
        continue
    fi
    echo "== $name: $("$python" -V), ${requirements//,/, }; tests: $tests"
    test_row "$name" "$python" "$requirements" "$tests" </dev/null || failed+=("$name")
    tested+=("$name:$("$python" -c 'import platform; print(platform.python_version())'):$tests")
done <<<"$rows"

python3 tools/versions_page.py "${page[@]}" "$folder" "${tested[@]}"
if [[ ${#failed[@]} -gt 0 ]]; then
    echo "failed: ${failed[*]}" >&2
    exit 1
fi
