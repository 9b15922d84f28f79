#!/usr/bin/env bash
# Compiles every header of csrc/ by itself, with the given compiler flags, to find headers that
# depend on earlier includes.
set -euo pipefail
cd "$(dirname "$0")/.."

read -ra compiler <<<"${CC:-gcc}" # may have arguments, such as "ccache gcc"
PYTHON=${PYTHON:-python3}
flags=(-std=gnu11 -D_GNU_SOURCE -Icsrc "$@")
python_include=$("$PYTHON" -c 'import sysconfig; print(sysconfig.get_path("include"))')

program=${compiler[0]}
[[ $program != ccache ]] || program=${compiler[1]}
if ! command -v "$program" >/dev/null; then
    echo "$program not found; Debian, Ubuntu: apt-get install gcc libc6-dev" >&2
    exit 1
fi

checked=0
skipped=0
while IFS= read -r header; do
    include=("${flags[@]}")
    if [[ $header == python/* ]]; then
        if [[ ! -f $python_include/Python.h ]]; then
            skipped=$((skipped + 1))
            continue
        fi
        include+=(-DPy_LIMITED_API=0x030B0000 -isystem "$python_include")
    fi
    # Included twice, to detect a missing include guard.
    if ! printf '#include "%s"\n#include "%s"\n' "$header" "$header" \
        | "${compiler[@]}" "${include[@]}" -fsyntax-only -x c -; then
        echo "csrc/$header does not compile by itself" >&2
        exit 1
    fi
    checked=$((checked + 1))
done < <(cd csrc && find . -name '*.h' -printf '%P\n' | sort)

echo "headers: $checked compile by themselves"
if [[ $skipped -gt 0 ]]; then
    echo "headers: $skipped of csrc/python not checked, as $PYTHON has no Python.h; Debian, Ubuntu: apt-get install python3-dev"
fi
