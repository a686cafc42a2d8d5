#!/usr/bin/env bash
# The C interface linked with musl, statically, by musl-gcc; the consumer is this machine's own:
#   blkin-lib/tests/c/musl.sh [-v]      needs Rust's standard library for musl, see scripts/test; the last line counts
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../../.." || exit 1
. scripts/lib/packages.sh
verbose=
[ "${1-}" != -v ] || verbose=1
. "$here/common.sh"

triple=x86_64-unknown-linux-musl
target=${CARGO_TARGET_DIR:-$PWD/target}
build_tap || { echo "0 passed, 1 failed"; exit 1; }
cargo rustc --quiet --locked -p blkin --lib --crate-type staticlib --target $triple ||
    { echo "0 passed, 1 failed"; exit 1; }
use_library "$target/$triple/debug/libblkin.a" "$target/debug/examples/tap"
# Debian's musl-gcc brings neither the kernel's headers nor what unwinds a panic; Rust brings the latter.
c_flags="$c_flags -static -idirafter /usr/include -idirafter /usr/include/$(gcc -print-multiarch)"
link="$built/libblkin.a $(rustc --print sysroot)/lib/rustlib/$triple/lib/self-contained/libunwind.a"

check "builds surface.c and second.c" build surface musl-gcc surface.c second.c
check "surface.c is read as written" traced "$work/surface"
check "builds lifecycle.c" build lifecycle musl-gcc lifecycle.c
for scenario in forks fork-before-first-record threads signals atexit exec close-descriptors; do
    check "lifecycle $scenario" traced "$work/lifecycle" $scenario
done
close_checks
