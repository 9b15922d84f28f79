#!/usr/bin/env bash
# Compiles the kernels with warnings as errors and runs their tests, with a different compiler or
# for a different architecture than `make test-c`.
#
#   CC          the compiler, with arguments
#   EMULATOR    runs programs for the other architecture, with arguments; optional
set -euo pipefail
cd "$(dirname "$0")/.."

read -ra compiler <<<"$CC"
read -ra emulator <<<"${EMULATOR:-}"
out=build/kernels
# The exceptions silence false warnings of gcc or clang (see the Makefile).
flags=(-std=gnu11 -D_GNU_SOURCE -O2 -pthread -Icsrc -Itests -Itests/c -Werror -Wall -Wextra -Wshadow
    -Wconversion -Wformat=2 -Wstrict-prototypes -Wmissing-prototypes -Wundef -Wvla -Wswitch-enum
    -Wno-unknown-warning-option -Wno-maybe-uninitialized -Wno-format-nonliteral)

mkdir -p "$out"
"${compiler[@]}" "${flags[@]}" csrc/core/*.c csrc/kernels/*.c tests/faults/cpu.c tests/c/check_main.c tests/c/test_kernels*.c \
    -Wl,--wrap=dd_cpu_features -lm \
    -o "$out/tests_c"
DLDIST_TEST_SLOW=${DLDIST_TEST_SLOW:-10} "${emulator[@]}" "$out/tests_c"
