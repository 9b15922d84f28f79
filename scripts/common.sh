# Sourced by the other scripts: functions that find a Python and create environments.

# Prints the first Python, 3.11 or later, that can create virtual environments.
find_python() {
    local candidate
    for candidate in python3 python3.15 python3.14 python3.13 python3.12 python3.11; do
        if "$candidate" -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "$candidate"
            return 0
        fi
    done
    echo "no Python 3.11 or later with the venv module found (Debian, Ubuntu: apt-get install python3-venv)" >&2
    return 1
}

# Fails early if there is no compiler for the C extension.
need_compiler() {
    local compiler
    read -r compiler _ <<<"${CC:-cc}" # may be "ccache gcc"
    if ! command -v "$compiler" >/dev/null; then
        echo "no C compiler found (Debian, Ubuntu: apt-get install gcc libc6-dev)" >&2
        return 1
    fi
}

# fresh_venv FOLDER: creates an empty environment, and replaces one from an earlier run.
fresh_venv() {
    if [[ -e $1 && ! -f $1/pyvenv.cfg ]]; then
        echo "$1 exists and is not a virtual environment; it is left unchanged" >&2
        return 1
    fi
    local python
    python=$(find_python)
    "$python" -m venv --clear "$1"
}

# install_for_tests FOLDER: creates an environment with dldist and the packages that its tests need.
install_for_tests() {
    need_compiler
    fresh_venv "$1"
    echo "== installing into $1; the C code is compiled, which takes up to a few minutes"
    patiently "$1/bin/python" -m pip install --quiet --disable-pip-version-check ".[test]"
}

# patiently COMMAND...: runs the command, and reports every ten seconds that it is still running.
patiently() {
    local ticker status=0 began=$SECONDS
    (while sleep 10 >/dev/null 2>&1 </dev/null; do echo "   still running after $((SECONDS - began)) s"; done) &
    ticker=$!
    trap "kill $ticker 2>/dev/null || true" EXIT
    "$@" || status=$?
    kill "$ticker" 2>/dev/null || true
    wait "$ticker" 2>/dev/null || true
    trap - EXIT
    return "$status"
}

# find_python_version 3.12: prints a Python of this version, from PATH or pyenv; fails if there is
# none.
find_python_version() {
    local candidate
    for candidate in "python$1" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$1".*/bin/python; do
        if "$candidate" -c "import sys, ensurepip, venv; sys.exit('%d.%d' % sys.version_info[:2] != '$1')" 2>/dev/null; then
            command -v "$candidate"
            return 0
        fi
    done
    return 1
}

# wheel_compiler FOLDER ARCHITECTURE: prints the compiler for wheels, from the environment FOLDER.
# It includes the C library to link against, in any version: 2.28 is in Debian 10 and Red Hat 8 and
# later. Its checks for undefined behaviour are disabled.
GLIBC=2.28
wheel_compiler() {
    echo "$1/bin/python -m ziglang cc -target $2-linux-gnu.$GLIBC -fno-sanitize=undefined"
}

# wheel_venv FOLDER PIP-ARGUMENTS...: creates an environment for libraries from wheels, unless it
# exists.
wheel_venv() {
    local folder=$1
    shift
    if [[ ! -x $folder/bin/python ]]; then
        "$(find_python)" -m venv "$folder"
        patiently "$folder/bin/python" -m pip install --quiet --disable-pip-version-check "$@"
    fi
}

# ---- tests that fail in parallel with others and pass by themselves
#
# Most tests depend on timing and process failures, and may fail on a busy machine. With
# DLDIST_TEST_AGAIN=1, if one to three tests fail, they are rerun three times, one at a time. If
# they pass each time, they do not count as failed, and their names are added to
# build/unsteady-tests.
unsteady=$(realpath "${BASH_SOURCE[0]%/*}/..")/build/unsteady-tests

# pass_again NAMES COMMAND...: succeeds if the tests in the array named NAMES pass three times.
pass_again() {
    local -n failed_tests=$1
    [[ ${DLDIST_TEST_AGAIN:-0} == 1 && ${#failed_tests[@]} -ge 1 && ${#failed_tests[@]} -le 3 ]] || return 1
    for _ in 1 2 3; do
        echo "== again, alone: ${failed_tests[*]}"
        timeout 900 "${@:2}" || return 1
    done
    mkdir -p "${unsteady%/*}"
    printf '%s\n' "${failed_tests[@]}" >>"$unsteady"
}
