#!/usr/bin/env bash
# Runs traced programs, daemons and commands, built with Debian's cross compiler, on an emulated aarch64 machine with Debian's
# kernel.
#   tests/aarch64/run.sh [-v] [VMLINUZ BUSYBOX]     another kernel, with 16 KiB pages for example; the last line has the counts
# guest.sh holds the checks. Needs CARGO_TARGET_*_LINKER, see scripts/test.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
. scripts/lib/packages.sh
verbose=
[ "${1-}" != -v ] || { verbose=1; shift; }
here=$PWD/blkin-lib/tests/c
. "$here/common.sh"

triple=aarch64-linux-gnu
export CARGO_BUILD_TARGET=aarch64-unknown-linux-gnu

# The Rust tests that qemu-user cannot run: see scripts/test.
tests_of_rust() {
    cargo test --locked --quiet --no-run --message-format=json -p blkin-ringbuf --lib --test full --test inherited -p blkin \
        --test rust_api |
        python3 -c '
import json, sys
for line in sys.stdin:
    made = json.loads(line)
    if made.get("executable"):
        print(made["target"]["name"], made["executable"])'
}

root=$work/root
# build_root: builds the machine's files.
build_root() {
    local so name executable
    mkdir -p "$root"/{bin,dev,etc,lib,proc,run,sys,tmp,var}
    cargo build --locked --quiet -p blkin-consumerd -p blkin-relay -p blkin-collector -p blkin-cli -p blkin --bins --example tap &&
        so=$(CC=$triple-gcc blkin-lib/build-so.sh) || return 1
    use_library "$so" "$(dirname "$so")/examples/tap"
    cp "$built"/blkin "$built"/blkin-{consumerd,relay,collector} "$tap" "$root/bin" || return 1
    while read -r name executable; do
        cp "$executable" "$root/bin/test-$name" || return 1
    done < <(tests_of_rust)
    $triple-strip "$root"/bin/*
    build root/bin/surface $triple-gcc surface.c second.c && build root/bin/lifecycle $triple-gcc lifecycle.c &&
        build root/bin/ztracer $triple-g++ ztracer.cpp ztracer_second.cpp &&
        build root/bin/goes_on $triple-gcc ../../../tests/aarch64/goes_on.c &&
        build root/bin/quickstart $triple-gcc ../../../examples/quickstart/quickstart.c || return 1
    cp "$so" /usr/$triple/lib/{ld-linux-aarch64.so.1,libc.so.6,libm.so.6,libgcc_s.so.1,libstdc++.so.6} "$root/lib" || return 1
    cp "$busybox" "$root/bin/busybox" && ln -s busybox "$root/bin/sh" &&
        cp tests/aarch64/guest.sh "$root/init" && chmod +x "$root/bin/busybox" "$root/init" || return 1
    (cd "$root" && find . | cpio -o -H newc --quiet | gzip -1) >"$work/initrd"
}

boot() {
    timeout 400 qemu-system-aarch64 -M virt -cpu max -smp 2 -m 1024 -nic none -nographic -no-reboot -kernel "$kernel" \
        -initrd "$work/initrd" -append "console=ttyAMA0 quiet panic=-1" 2>&1 | tr -d '\r' >"$work/console"
}

# told CHECK: succeeds if the machine reported it as ok; otherwise prints what the machine reported.
told() {
    grep -qxF "ok $1" "$work/console" && return
    awk -v check="FAILED $1" '/^[^ ]/ { is_of_it = $0 == check } is_of_it' "$work/console"
    return 1
}

# came_to_its_end: the machine reported a result for each of its checks.
came_to_its_end() {
    tail -25 "$work/console"
    [ "$(grep -cE '^(ok|FAILED) ' "$work/console")" = "$(sed -n 's/^\([0-9]*\) checks$/\1/p' "$work/console")" ]
}

if [ $# -ge 2 ]; then
    kernel=$1 busybox=$2
else
    machine=$(scripts/lib/fetch arm64-machine) || exit 77
    kernel=$machine/vmlinuz busybox=$machine/busybox
fi
check "the files of the machine are built" build_root
[ $failed -gt 0 ] || boot
[ -z "$verbose" ] || grep -E '^(machine|pages): ' "$work/console"
while read -r name; do check "$name" told "$name"; done < <(sed -nE 's/^(ok|FAILED) //p' "$work/console")
check "the machine reported a result for every check" came_to_its_end
close_checks
