#!/usr/bin/env bash
# Runs the thread tests on a free-threaded Python, and detects data races if it has ThreadSanitizer.
#
#   bash scripts/free_threaded.sh PYTHON [pytest arguments]
#
#   PYTHON   a free-threaded interpreter with ensurepip, 3.13 or later. From CPython's source:
#            ./configure --disable-gil && make
#            for races: CC=clang-14 ./configure --disable-gil --with-thread-sanitizer
#
# All files are in build/free-threaded or build/free-threaded-tsan. Data races are reported in
# report.* there, and make the script fail.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/common.sh

python=$(command -v "${1:?usage: bash scripts/free_threaded.sh PYTHON [pytest arguments]}")
shift
tests=(tests/py/*/test_{free_threading,free_threading_stores,work_class,group_works,python_store,stores,window,plans}.py)
[[ $# -gt 0 ]] && tests=("$@")
root=$PWD/build/free-threaded
# clang-14's ThreadSanitizer cannot map its memory with the address randomisation of newer kernels.
run=(setarch -R)

config() {
    "${run[@]}" "$python" -c "import sysconfig; print(sysconfig.get_config_var('$1') or '')"
}

if [[ $(config Py_GIL_DISABLED) != 1 ]]; then
    echo "$python has a GIL" >&2
    exit 1
fi
export TSAN_OPTIONS=report_bugs=0 # not for pip and the compiler
if [[ $(config CONFIG_ARGS) == *thread-sanitizer* ]]; then
    export DLDIST_SANITIZE=thread CC=clang-14
    root+=-tsan
fi

need_compiler
mkdir -p "$root"
echo "== pytest and the extension, in $root"
"${run[@]}" "$python" -m venv --clear "$root/venv"
patiently "${run[@]}" "$root/venv/bin/python" -m pip install --quiet --disable-pip-version-check --only-binary :all: \
    setuptools pytest pytest-xdist hypothesis numpy
patiently "${run[@]}" "$root/venv/bin/python" setup.py -q build --build-lib "$root/lib" --build-temp "$root/temp"

echo "== the tests"
rm -f "$root"/report.*
export PYTHONPATH=$root/lib
export TSAN_OPTIONS="log_path=$root/report suppressions=$PWD/tests/tsan_python.supp report_thread_leaks=0 exitcode=0"
unset PYTHON_GIL
"${run[@]}" "$root/venv/bin/python" -m pytest -q -p no:cacheprovider "${tests[@]}"
if grep -h "^SUMMARY: ThreadSanitizer" "$root"/report.* 2>/dev/null; then
    echo "ThreadSanitizer's reports are in $root" >&2
    exit 1
fi
