#!/usr/bin/env bash
# Tests the C interface on aarch64, built by Debian's cross compiler and run by qemu-user. The consumer runs natively, because
# the rings have the same format on both machines:
#   blkin-lib/tests/c/aarch64.sh [-v]      needs CARGO_TARGET_*_LINKER, see scripts/test; the last line counts
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../../.." || exit 1
. scripts/lib/packages.sh
verbose=
[ "${1-}" != -v ] || verbose=1
. "$here/common.sh"

triple=aarch64-linux-gnu
build_tap || { echo "0 passed, 1 failed"; exit 1; }
so=$(CARGO_BUILD_TARGET=aarch64-unknown-linux-gnu CC=$triple-gcc blkin-lib/build-so.sh) ||
    { echo "0 passed, 1 failed"; exit 1; }
use_library "$so" "${CARGO_TARGET_DIR:-$PWD/target}/debug/examples/tap"
emulated=(qemu-aarch64 -L /usr/$triple -E LD_LIBRARY_PATH="$built")

check "builds signatures.c as C11" build signatures $triple-gcc signatures.c
check "signatures.c runs" "${emulated[@]}" "$work/signatures"
check "builds surface.c and second.c" build surface $triple-gcc surface.c second.c
check "surface.c is read as written" traced "${emulated[@]}" "$work/surface"
check "builds ztracer.cpp" build ztracer $triple-g++ ztracer.cpp ztracer_second.cpp
check "ztracer.cpp is read as written" traced "${emulated[@]}" "$work/ztracer"
check "builds lifecycle.c" build lifecycle $triple-gcc lifecycle.c
for scenario in forks fork-before-first-record threads signals atexit close-descriptors; do
    check "lifecycle $scenario" traced "${emulated[@]}" "$work/lifecycle" $scenario
done
close_checks
