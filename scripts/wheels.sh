#!/usr/bin/env bash
# Builds the source distribution, and wheels from it, into dist/, and checks them.
#
#   bash scripts/wheels.sh [x86_64] [aarch64]      the wheels to build; both without arguments
#
#   VENV=folder    the folder of the tools' environment (.venv-wheels); an existing one is reused
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/common.sh

venv=${VENV:-.venv-wheels}
work=build/wheels
# Wheels ignore the settings for test builds (see setup.py).
unset DLDIST_WERROR DLDIST_SANITIZE DLDIST_FAULTS DLDIST_DEBUG

install_tools() {
    [[ -x $venv/bin/python ]] || fresh_venv "$venv"
    patiently "$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
        ziglang==0.17.1 "setuptools>=77" build abi3audit auditwheel check-wheel-contents
    venv=$(realpath "$venv")
}

make_sdist() {
    rm -rf dist/dldist-*.tar.gz "$work" pkg/dldist.egg-info
    "$venv/bin/python" -m build --sdist --no-isolation --outdir dist . >/dev/null
    "$venv/bin/python" tools/check_sdist.py dist/dldist-*.tar.gz
}

# Builds from the source distribution, as this folder may have objects of other builds.
make_wheel() {
    local processors=$1 compiler
    compiler=$(wheel_compiler "$venv" "$processors")
    rm -f dist/dldist-*_"$processors".whl
    mkdir -p "$work/$processors"
    tar -xzf dist/dldist-*.tar.gz --strip-components=1 -C "$work/$processors"
    CC=$compiler LDSHARED="$compiler -shared" CFLAGS="-g0 -DNDEBUG" LDFLAGS=-s \
        patiently "$venv/bin/python" -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir dist \
        --config-settings=--build-option=--plat-name="manylinux_${GLIBC/./_}_$processors" "./$work/$processors"
}

check_wheel() {
    local wheel=$1
    "$venv/bin/python" tools/check_wheel.py "$wheel"
    "$venv/bin/python" -m abi3audit --strict --summary "$wheel"
    "$venv/bin/check-wheel-contents" "$wheel"
}

install_tools
echo "== source distribution"
make_sdist
[[ $# -gt 0 ]] || set -- x86_64 aarch64
for processors in "$@"; do
    echo "== wheel for $processors"
    make_wheel "$processors"
    check_wheel dist/dldist-*_"$processors".whl
done
