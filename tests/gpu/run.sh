#!/usr/bin/env bash
# Run all tests that need a GPU, in independent steps: each has its own log and timeout, and a
# failed step does not stop the next. For a machine with at least one NVIDIA GPU; needs no network.
# tests/gpu/PLAN.md describes a first hour with it.
#
#   bash tests/gpu/run.sh [--steps a,b] [--limit SECONDS] [FOLDER]
#   bash tests/gpu/run.sh --list
#
#   FOLDER         receives the logs, summary.txt and measurements; default: $OUT or build/gpu
#   --steps a,b    run only these steps, in the order of --list; "nccl" is added if needed
#   --limit N      no step may take longer than N seconds
#
#   PYTHON=...     the interpreter whose packages (PyTorch, CuPy, JAX, NumPy, pytest) are used;
#                  default: python3
#   DLDIST_NCCL_LIBRARY=...       the NCCL to test with; default: build/gpu/nccl/libnccl.so.2, or
#                                 libnccl.so.2.xz there (made by tools/thin_nccl.py), or the NCCL
#                                 that dldist finds
#   DLDIST_GPU_REHEARSAL=1        use the stubs of tests/stubs, with the dldist that $PYTHON has
#
# The tests use the dldist in build/gpu/site, which the step "install" creates, or which was copied
# there. The exit status is 0 if no step failed, 1 if one did, 2 for wrong arguments.
set -euo pipefail
script=$(realpath "${BASH_SOURCE[0]}")
called_from=$PWD
cd "$(dirname "$script")/../.."

# name, seconds, requirement ("nccl" or "-"), description
steps() {
    cat <<'STEPS'
machine       60 -    what nvidia-smi, the interpreter and its packages say
install      400 -    compiles dldist and installs it into build/gpu/site
nccl          60 -    whether NCCL and the driver can be used, and which
declarations 120 -    our declarations against the headers that are here
one_rank     300 nccl groups of one rank, with PyTorch, CuPy and JAX
own_nccl     300 nccl the same with the NCCL that a program would find here, if another is tested otherwise
collectives  400 nccl two ranks on one GPU: every collective with every data type
suite        400 nccl two ranks: messages, batches, splits, strides, works, communicators that block and do not
life         500 nccl two ranks: graphs, registered memory, late ranks, time-outs, aborts, a rank that is killed
frameworks   400 nccl two ranks with arrays of PyTorch, CuPy and JAX
bench        400 nccl what an all_reduce costs the host, one rank
bench_two    400 nccl the same with two ranks on one GPU
STEPS
}

SKIPPED=77

step_machine() {
    if [[ -n ${DLDIST_GPU_REHEARSAL:-} ]]; then
        echo "a rehearsal needs no GPU"
        return $SKIPPED
    fi
    "$PYTHON" --version
    "$PYTHON" -m pip list --disable-pip-version-check 2>/dev/null |
        grep -iE '^(torch|cupy|jax|numpy|pytest|setuptools|nvidia-nccl|nvidia-cuda-runtime)' || true
    nvidia-smi
    nvidia-smi --query-gpu=index,name,driver_version,memory.total,compute_mode --format=csv
}

step_install() {
    if [[ -n ${DLDIST_GPU_REHEARSAL:-} ]]; then
        echo "a rehearsal takes the dldist that is installed"
        return $SKIPPED
    fi
    "$PYTHON" -m pip install --quiet --no-build-isolation --no-deps --disable-pip-version-check --upgrade --target "$SITE" .
    "$PYTHON" -c 'import dldist; print("installed into", dldist.__file__)'
}

step_nccl() {
    "$PYTHON" - <<'PROGRAM'
import sys

import dldist.nccl as nccl

why = nccl.why_not_available()
if why:
    sys.exit(why)
version = ".".join(map(str, nccl.get_version()))
print(f"{nccl.device_count()} device(s), NCCL {version} of {nccl.library_path()}")
PROGRAM
}

step_declarations() { "$PYTHON" tools/check_nccl.py; }
step_one_rank() { run_tests tests/gpu/test_gpu.py --deselect tests/gpu/test_gpu.py::test_programs_of_two_ranks_on_a_gpu_end_successfully; }
step_collectives() { run_tests tests/gpu/test_two_ranks.py::TestCollectives; }
step_suite() { run_tests tests/gpu/test_two_ranks.py::TestSuite; }
step_life() { run_tests tests/gpu/test_two_ranks.py::TestLife; }
step_frameworks() { run_tests tests/gpu/test_gpu.py::test_programs_of_two_ranks_on_a_gpu_end_successfully; }
step_bench() { run_benchmark 1; }
step_bench_two() { run_benchmark 2; }

step_own_nccl() {
    if [[ -z ${DLDIST_NCCL_LIBRARY:-} || -n ${DLDIST_GPU_REHEARSAL:-} ]]; then
        echo "one_rank has run with it"
        return $SKIPPED
    fi
    unset DLDIST_NCCL_LIBRARY
    step_nccl || return $SKIPPED
    step_one_rank
}

# Skip the step if all its tests were skipped. Prints test names immediately, so that the log of a
# step that timed out shows the test that was running.
run_tests() {
    "$PYTHON" -X faulthandler -m pytest -p no:cacheprovider -v -ra --durations=10 --junit-xml "$OUT/$STEP.xml" "$@"
    "$PYTHON" - "$OUT/$STEP.xml" <<'PROGRAM'
import sys
import xml.etree.ElementTree

suite = xml.etree.ElementTree.parse(sys.argv[1]).find("testsuite")
tests, skipped = int(suite.get("tests")), int(suite.get("skipped"))
print(f"{tests - skipped} passed, {skipped} skipped")
sys.exit(77 if tests == skipped else 0)
PROGRAM
}

run_benchmark() {
    local options=(--ranks "$1" --json "$OUT/nccl-$1.json")
    if [[ -n ${DLDIST_GPU_REHEARSAL:-} ]]; then
        options+=(--sizes 4 --rounds 1 --calls 20 --ways method)
    fi
    "$PYTHON" benchmarks/nccl.py "${options[@]}"
}

# ---- settings of all steps

use_carried_nccl() {
    local carried=build/gpu/nccl/libnccl.so.2
    if [[ -n ${DLDIST_NCCL_LIBRARY:-} || -n ${DLDIST_GPU_REHEARSAL:-} ]]; then
        return
    fi
    if [[ -f $carried.xz && ! $carried -nt $carried.xz ]]; then
        "$PYTHON" -c 'import lzma, shutil, sys; shutil.copyfileobj(lzma.open(sys.argv[1]), open(sys.argv[2], "wb"), 1 << 20)' \
            "$carried.xz" "$carried.new"
        mv "$carried.new" "$carried"
    fi
    if [[ -f $carried ]]; then
        export DLDIST_NCCL_LIBRARY=$PWD/$carried
    fi
}

prepare() {
    export PYTHON=${PYTHON:-python3} SITE=$PWD/build/gpu/site OUT=$1
    mkdir -p "$OUT"
    OUT=$(realpath "$OUT")
    export NCCL_DEBUG=${NCCL_DEBUG:-WARN} XLA_PYTHON_CLIENT_PREALLOCATE=false
    # Two ranks on one GPU: they take turns, and must fit on it together.
    export NCCL_MULTI_RANK_GPU_ENABLE=1 NCCL_NVLS_ENABLE=0 NCCL_MAX_CTAS=${NCCL_MAX_CTAS:-4}
    export DLDIST_FR_DUMP_FILE=${DLDIST_FR_DUMP_FILE:-$OUT/flight_recorder_}
    if [[ -n ${DLDIST_GPU_REHEARSAL:-} ]]; then
        local settings
        settings=$("$PYTHON" tests/gpu/rehearsal.py)
        eval "$settings"
    else
        export PYTHONPATH=$SITE${PYTHONPATH:+:$PYTHONPATH}
    fi
    use_carried_nccl
}

# ---- execution of the steps

names=() results=() seconds=() notes=()

note_result() {
    names+=("$1") results+=("$2") seconds+=("$3") notes+=("$4")
    printf '== %-13s %s, %d s%s\n' "$1" "$2" "$3" "${4:+: $4}"
}

last_line() {
    tail -n 1 "$1" | tr -d '=' | sed 's/^ *//; s/ *$//' | cut -c 1-160
}

# run_step NAME SECONDS: run the step in a separate process. A timeout ends it with all its
# children.
run_step() {
    local name=$1 limit=$2 log=$OUT/$1.log began=$SECONDS status=0 result
    printf '== %-13s at most %d s, %s\n' "$name" "$limit" "$log"
    STEP=$name timeout --kill-after=15 "$limit" bash "$script" --one "$name" >"$log" 2>&1 </dev/null || status=$?
    if ((status == 0)) && grep -q '^Exception ignored ' "$log"; then
        status="Python ignored an exception"
    fi
    case $status in
    0) result=passed ;;
    "$SKIPPED") result=skipped ;;
    124 | 137) result="failed (took too long)" ;;
    *) result="failed ($status)" ;;
    esac
    if [[ $result == failed* ]]; then
        tail -n 25 "$log" | sed 's/^/   | /'
    fi
    note_result "$name" "$result" $((SECONDS - began)) "$(last_line "$log")"
    [[ $result != failed* ]]
}

summary() {
    local i
    for i in "${!names[@]}"; do
        printf '%-24s %5d s  %-13s %s\n' "${results[i]}" "${seconds[i]}" "${names[i]}" "${notes[i]}"
    done
}

# run_all LIMIT NAMES: run the steps with these names (",a,b,"), or all steps without names.
run_all() {
    local most=$1 wanted=$2 name limit needs what has_failed=0 refusal=unknown
    while read -r -u 3 name limit needs what; do
        [[ -z $wanted || $wanted == *,$name,* ]] || continue
        if [[ $needs == nccl && -n $refusal ]]; then
            note_result "$name" skipped 0 "$refusal"
            continue
        fi
        run_step "$name" $((limit < most ? limit : most)) || has_failed=1
        if [[ $name == nccl ]]; then
            refusal=
            [[ ${results[-1]} == passed ]] || refusal="NCCL cannot be used: $(last_line "$OUT/nccl.log")"
        fi
    done 3< <(steps)
    printf '\n'
    summary | tee "$OUT/summary.txt"
    return $has_failed
}

wrong_arguments() {
    echo "run.sh: $1 (its first lines say how it is called)" >&2
    exit 2
}

main() {
    local wanted= most=100000 folder= name needs
    while [[ $# -gt 0 ]]; do
        case $1 in
        --list) steps && exit 0 ;;
        --one) # no list of commands: the first that fails ends the step
            "step_$2"
            exit
            ;;
        --steps | --limit)
            [[ $# -ge 2 ]] || wrong_arguments "$1 needs a value"
            if [[ $1 == --steps ]]; then wanted=$2; else most=$2; fi
            shift
            ;;
        -*) wrong_arguments "no such option: $1" ;;
        *)
            [[ -z $folder ]] || wrong_arguments "one folder is enough: $1"
            folder=$1
            ;;
        esac
        shift
    done
    [[ $most =~ ^[1-9][0-9]*$ ]] || wrong_arguments "--limit is a number of seconds: $most"
    for name in ${wanted//,/ }; do
        needs=$(steps | awk -v name="$name" '$1 == name { print $3 }')
        [[ -n $needs ]] || wrong_arguments "no such step: $name"
        [[ $needs != nccl ]] || wanted+=,nccl
    done
    if [[ -n $folder ]]; then folder=$(cd "$called_from" && realpath -m "$folder"); fi
    prepare "${folder:-${OUT:-build/gpu}}"
    run_all "$most" "${wanted:+,$wanted,}"
}

main "$@"
