#!/usr/bin/env bash
# Tests the C interface with musl, linked statically and as a shared library by musl-gcc. The consumer uses the system's own C
# library:
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
cargo rustc --quiet --locked -p blkin --lib --features c --crate-type staticlib --target $triple ||
    { echo "0 passed, 1 failed"; exit 1; }
# Debian's musl-gcc has neither the kernel's headers nor an unwinder for panics; Rust provides the latter.
headers="-idirafter /usr/include -idirafter /usr/include/$(gcc -print-multiarch)"

needs_only_musl() { [ "$(readelf -d "$1" | grep -c NEEDED)" = 1 ] && readelf -d "$1" | grep -q 'NEEDED.*\[libc.so\]'; }

# programs HOW: builds the programs with $c_flags and $link, and checks what they record.
programs() {
    local scenario
    check "$1: builds surface.c and second.c" build surface musl-gcc surface.c second.c
    check "$1: surface.c is read as written" traced "$work/surface"
    check "$1: builds lifecycle.c" build lifecycle musl-gcc lifecycle.c
    for scenario in forks fork-before-first-record threads signals atexit exec close-descriptors; do
        check "$1: lifecycle $scenario" traced "$work/lifecycle" $scenario
    done
}

use_library "$target/$triple/debug/libblkin.a" "$target/debug/examples/tap"
c_flags="$c_flags -static $headers"
link="$built/libblkin.a $(rustc --print sysroot)/lib/rustlib/$triple/lib/self-contained/libunwind.a"
programs static

# With a target folder of its own, because Rust's flags differ.
shared=$(CARGO_TARGET_DIR=$target/musl-shared CARGO_BUILD_TARGET=$triple CC=musl-gcc blkin-lib/build-so.sh) ||
    { echo "$passed passed, $((failed + 1)) failed"; exit 1; }
use_library "$shared" "$target/debug/examples/tap"
c_flags="$c_flags $headers"
check "shared: needs no other C library" needs_only_musl "$shared"
programs shared
close_checks
