#!/usr/bin/env bash
# Compiles the kernels with warnings as errors and runs their tests, with another compiler or for another machine
# than `make test-c` does.
#
#   CC          the compiler, with arguments
#   EMULATOR    what runs programs for the other machine, with arguments; without it they are run as they are
set -euo pipefail
cd "$(dirname "$0")/.."

read -ra compiler <<<"$CC"
read -ra emulator <<<"${EMULATOR:-}"
out=build/kernels
# Of the two kinds of compiler, each makes noise of its own (see the Makefile).
flags=(-std=gnu11 -D_GNU_SOURCE -O2 -pthread -Icsrc -Itests -Itests/c -Werror -Wall -Wextra -Wshadow
    -Wconversion -Wformat=2 -Wstrict-prototypes -Wmissing-prototypes -Wundef -Wvla -Wswitch-enum
    -Wno-unknown-warning-option -Wno-maybe-uninitialized -Wno-format-nonliteral)

mkdir -p "$out"
"${compiler[@]}" "${flags[@]}" csrc/core/*.c csrc/kernels/*.c tests/faults/cpu.c tests/c/check_main.c tests/c/test_kernels*.c \
    -Wl,--wrap=dd_cpu_features -lm \
    -o "$out/tests_c"
DLDIST_TEST_SLOW=${DLDIST_TEST_SLOW:-10} "${emulator[@]}" "$out/tests_c"
