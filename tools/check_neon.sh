#!/usr/bin/env bash
# Compiles the kernels for aarch64 with warnings as errors, and runs their tests where an emulator is at hand.
# Says so and succeeds where there is no cross compiler.
set -euo pipefail
cd "$(dirname "$0")/.."

CC=${CROSS_CC:-aarch64-linux-gnu-gcc}
QEMU=${QEMU:-qemu-aarch64}
out=build/neon

if ! command -v "$CC" >/dev/null; then
    echo "neon: skipped, as there is no $CC"
    exit 0
fi
if ! echo '#include <stdint.h>' | "$CC" -fsyntax-only -x c - 2>/dev/null; then
    echo "neon: skipped, as $CC has no C library to compile against"
    exit 0
fi
mkdir -p "$out"
flags=(-std=gnu11 -D_GNU_SOURCE -DDD_FAULTS -O2 -pthread -Icsrc -Itests/c -Werror -Wall -Wextra -Wshadow
    -Wconversion -Wformat=2 -Wstrict-prototypes -Wmissing-prototypes -Wundef -Wvla -Wswitch-enum
    -Wno-maybe-uninitialized)
"$CC" "${flags[@]}" csrc/core/*.c csrc/kernels/*.c tests/c/check_main.c tests/c/test_kernels*.c -lm -static \
    -o "$out/tests_c"
echo "neon: compiled"

if ! command -v "$QEMU" >/dev/null; then
    echo "neon: tests not run, as there is no $QEMU"
    exit 0
fi
DLDIST_TEST_SLOW=${DLDIST_TEST_SLOW:-10} "$QEMU" "$out/tests_c"
