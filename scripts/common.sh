# Sourced by the other scripts: finding a Python and making an environment.

# The first Python of at least 3.11 that can make virtual environments.
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

# The C extension is compiled on the spot, so say so early when there is nothing to do that with.
need_compiler() {
    local compiler
    read -r compiler _ <<<"${CC:-cc}" # it may be ccache, with the compiler as an argument
    if ! command -v "$compiler" >/dev/null; then
        echo "no C compiler found (Debian, Ubuntu: apt-get install gcc libc6-dev)" >&2
        return 1
    fi
}

# fresh_venv FOLDER: an empty environment there, whatever was there before if an earlier run of ours left it.
fresh_venv() {
    if [[ -e $1 && ! -f $1/pyvenv.cfg ]]; then
        echo "$1 is there already and is no virtual environment; not touching it" >&2
        return 1
    fi
    local python
    python=$(find_python)
    "$python" -m venv --clear "$1"
}

# patiently COMMAND...: runs it, and says every ten seconds that it is still at it.
patiently() {
    local ticker status=0 began=$SECONDS
    (while sleep 10 >/dev/null 2>&1 </dev/null; do echo "   still at it after $((SECONDS - began)) s"; done) &
    ticker=$!
    trap "kill $ticker 2>/dev/null || true" EXIT
    "$@" || status=$?
    kill "$ticker" 2>/dev/null || true
    wait "$ticker" 2>/dev/null || true
    trap - EXIT
    return "$status"
}

# find_python_version 3.12: a Python of this version, from PATH or pyenv; fails where there is none.
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

# wheel_compiler FOLDER PROCESSORS: the compiler of wheels, which the environment FOLDER has. It brings the C libraries that it links
# against, of the version asked for: 2.28 is Debian's since 10 and Red Hat's since 8. Its checks for undefined behaviour are left out.
GLIBC=2.28
wheel_compiler() {
    echo "$1/bin/python -m ziglang cc -target $2-linux-gnu.$GLIBC -fno-sanitize=undefined"
}

# wheel_venv FOLDER PIP-ARGUMENTS...: an environment for the libraries of wheels, unless it is there.
wheel_venv() {
    local folder=$1
    shift
    if [[ ! -x $folder/bin/python ]]; then
        "$(find_python)" -m venv "$folder"
        patiently "$folder/bin/python" -m pip install --quiet --disable-pip-version-check "$@"
    fi
}

# ---- tests that fail beside others and pass alone
#
# Most tests are about time and the deaths of processes, and a machine that runs something else may fail one. With DLDIST_TEST_AGAIN=1
# one to three that fail are run three times more, without others beside them. If they pass each time, their names are added to
# build/unsteady-tests, and they do not count as failed.
unsteady=$(realpath "${BASH_SOURCE[0]%/*}/..")/build/unsteady-tests

# pass_again NAMES COMMAND...: whether the tests in the array of this name pass three times.
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
