#!/usr/bin/env bash
# Runs pytest in the current folder, with two test processes per core, because most tests wait.
#
#   bash scripts/pytest.sh PYTHON [pytest arguments]
#
#   DLDIST_TEST_AGAIN=1    reruns one to three failed tests by themselves (see scripts/common.sh)
set -euo pipefail
source "$(dirname "$0")/common.sh"

python=$1
cache=$(mktemp -d)
trap 'rm -rf "$cache"' EXIT
status=0
"$python" -m pytest -q -n "${TEST_JOBS:-$((2 * $(nproc)))}" --dist worksteal -o "cache_dir=$cache" "${@:2}" || status=$?
list=$cache/v/cache/lastfailed
if [[ $status -eq 1 && -f $list ]]; then # all tests ran, and some failed
    mapfile -t failed < <("$python" -c 'import json, sys; print(*json.load(open(sys.argv[1])), sep="\n")' "$list")
    pass_again failed "$python" -m pytest -q -p no:cacheprovider "${failed[@]}" && status=0
fi
exit "$status"
