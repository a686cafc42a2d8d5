#!/usr/bin/env bash
# The C interface on a kernel for aarch64 whose pages are not 4 KiB, emulated from its first instruction on: qemu-user has the
# pages of this machine. By hand, for Debian changes the names of its kernels (docs/portability.md says where from):
#   blkin-lib/tests/c/pages.sh VMLINUZ BUSYBOX [-v]    needs qemu-system-arm, cpio; the last line counts
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../../.." || exit 1
. scripts/lib/packages.sh
[ $# -ge 2 ] || { sed -n '2,4s/^# *//p' "$0" >&2; exit 2; }
kernel=$1 busybox=$2 verbose=
[ "${3-}" != -v ] || verbose=1
. "$here/common.sh"

triple=aarch64-linux-gnu
export CARGO_BUILD_TARGET=aarch64-unknown-linux-gnu CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=$triple-gcc
so=$(CC=$triple-gcc blkin-lib/build-so.sh) && build_tap || { echo "0 passed, 1 failed"; exit 1; }
use_library "$so" "$(dirname "$so")/examples/tap"
root=$work/root
mkdir -p "$root"/{bin,dev,lib,proc,tmp}
check "builds surface.c" build root/bin/surface $triple-gcc surface.c second.c
check "builds lifecycle.c" build root/bin/lifecycle $triple-gcc lifecycle.c
cp "$so" /usr/$triple/lib/{ld-linux-aarch64.so.1,libc.so.6,libm.so.6,libgcc_s.so.1} "$root/lib"
cp "$tap" "$busybox" "$root/bin"
ln -s busybox "$root/bin/sh"

cases=(surface "lifecycle forks" "lifecycle fork-before-first-record" "lifecycle threads" "lifecycle signals"
    "lifecycle close-descriptors")
{
    cat <<'INIT'
#!/bin/sh
busybox=/bin/busybox
export LD_LIBRARY_PATH=/lib
$busybox mount -t devtmpfs dev /dev && $busybox mount -t proc proc /proc && $busybox mount -t tmpfs tmpfs /tmp
echo "pages: $($busybox grep -m1 KernelPageSize /proc/self/smaps)"
run() {
    : >/tmp/expect && : >/tmp/expect.count
    EXPECT=/tmp/expect $busybox timeout 100 tap /tmp/records /tmp/counters -- "$@" &&
        echo "ran $*: $($busybox tr '\n' ' ' </tmp/counters)"
}
INIT
    printf 'run %s\n' "${cases[@]}"
    echo "exec \$busybox poweroff -f"
} >"$root/init"
chmod +x "$root/init"
(cd "$root" && find . | cpio -o -H newc --quiet | gzip -1) >"$work/initrd"
timeout 300 qemu-system-aarch64 -M virt -cpu max -smp 2 -m 1024 -nographic -no-reboot -kernel "$kernel" \
    -initrd "$work/initrd" -append "console=ttyAMA0 quiet panic=-1" 2>&1 | tr -d '\r' >"$work/console"

other_pages() {
    cat "$work/console"
    grep -q '^pages: KernelPageSize: ' "$work/console" && ! grep -q '^pages: .* 4 kB' "$work/console"
}
check "its pages are not of 4 KiB" other_pages
# ran CASE: all that the rings took was read.
ran() {
    local counters
    cat "$work/console"
    counters=$(sed -n "s/^ran $1: //p" "$work/console") && [ -n "$counters" ] || return 1
    # shellcheck disable=SC2086 # a list of assignments
    declare -g $counters
    [ "$committed" -gt 0 ] && [ "$committed" = "$read" ] && [ "$attempted" = $((committed + lost)) ]
}
for case in "${cases[@]}"; do
    check "$case is read as recorded" ran "$case"
done
close_checks
