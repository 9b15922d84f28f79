#!/usr/bin/env bash
# Installs wheels from dist/ into minimal Debian systems with Python and without a compiler, and
# runs a program with two processes there. Other architectures are emulated.
#
#   bash scripts/try_wheel.sh [x86_64] [aarch64]     both without arguments
#
# The systems are created in .debian/ and reused. Needs debootstrap, qemu-user-static for other
# architectures, and either root or unprivileged user namespaces.
set -euo pipefail
cd "$(dirname "$0")/.."

release=bookworm
declare -A debian_name=([x86_64]=amd64 [aarch64]=arm64)

# Packages are unpacked without running their scripts, which are not needed; this needs no emulator.
make_root() {
    local root=$1 architecture=$2 folder package
    [[ ! -e $root/complete ]] || return 0
    rm -rf "$root"
    mkdir -p "$root"
    debootstrap --download-only --variant=minbase --arch="$architecture" --include=python3-venv "$release" "$root" >"$root.log"
    for folder in bin sbin lib lib64; do
        mkdir -p "$root/usr/$folder"
        ln -s "usr/$folder" "$root/$folder"
    done
    for package in "$root"/var/cache/apt/archives/*.deb; do
        dpkg-deb --fsys-tarfile "$package" | tar -x --no-same-owner --keep-directory-symlink -C "$root"
    done
    rm "$root"/var/cache/apt/archives/*.deb
    touch "$root/complete"
}

# Registers the emulator only inside the namespace.
emulate() {
    local processors=$1
    [[ $processors != "$(uname -m)" ]] || return 0
    mount -t binfmt_misc none /proc/sys/fs/binfmt_misc
    cat "/usr/lib/binfmt.d/qemu-$processors.conf" >/proc/sys/fs/binfmt_misc/register
}

try_in_root() {
    local root=$1
    mount --rbind /dev "$root/dev"
    mount -t proc none "$root/proc"
    env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp chroot "$root" /bin/bash -euc '
        cd /tmp
        echo "   $(uname -m), $(python3 --version), glibc $(ldd --version | sed -n "1s/.* //p")"
        if command -v gcc cc clang; then exit 1; fi
        rm -rf venv && python3 -m venv venv
        venv/bin/pip install --quiet --no-index dldist-*.whl
        venv/bin/python smoke.py
        venv/bin/dlrun --nproc-per-node 2 smoke.py'
}

try_wheel() {
    local processors=$1 root=$PWD/.debian/$1
    make_root "$root" "${debian_name[$processors]}"
    rm -f "$root"/tmp/*.whl
    cp dist/dldist-*_"$processors".whl tests/smoke.py "$root/tmp/"
    emulate "$processors"
    try_in_root "$root"
}

# For each architecture, this script runs again in new namespaces.
if [[ ${1:-} == --inside ]]; then
    try_wheel "$2"
    exit
fi
[[ $# -gt 0 ]] || set -- x86_64 aarch64
for processors in "$@"; do
    echo "== Debian $release on $processors"
    unshare --user --map-root-user --mount --pid --fork bash scripts/try_wheel.sh --inside "$processors"
done
