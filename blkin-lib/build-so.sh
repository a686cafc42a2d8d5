#!/bin/sh
# Builds the C library: target/debug/ or target/release/ gets libblkin.a, libblkin.so.0 and the linker names.
#
#   build-so.sh [--release]      prints where libblkin.so.0 lies
#
# CARGO_BUILD_TARGET and CC build for another machine, or for musl (x86_64-unknown-linux-musl and musl-gcc).
#
# The shared library is linked by cc from the static one: only so do its symbols carry a version (a Rust cdylib
# exports them without). It stays loaded once loaded (nodelete), for records may be on their way in any thread.
set -eu

profile=debug
case "${1-}" in
    "") ;;
    --release) profile=release ;;
    *) echo "usage: build-so.sh [--release]" >&2; exit 2 ;;
esac
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/.."
# One after the other: they would take what they link from under each other.
exec 8<blkin-lib/build-so.sh
flock 8
out=${CARGO_TARGET_DIR:-target}/${CARGO_BUILD_TARGET:+$CARGO_BUILD_TARGET/}$profile
case $out in /*) ;; *) out=$PWD/$out ;; esac

unwinder=-lgcc_s
case ${CARGO_BUILD_TARGET-} in
    *-musl)
        # What Rust links statically with there is a whole C library, and a second one in a process is none.
        export RUSTFLAGS="${RUSTFLAGS-} -Ctarget-feature=-crt-static"
        # Another C library's libgcc_s would bring that one along.
        unwinder=$(rustc --print sysroot)/lib/rustlib/$CARGO_BUILD_TARGET/lib/self-contained/libunwind.a
        ;;
esac

if [ "$profile" = release ]; then
    # Whatever the daemons are built with: calls between the crates of the library are on every record's way.
    export CARGO_PROFILE_RELEASE_LTO=thin
    cargo rustc --quiet --locked -p blkin --lib --features c --release --crate-type staticlib
else
    cargo rustc --quiet --locked -p blkin --lib --features c --crate-type staticlib
fi

# --undefined pulls exactly the public symbols, and what they need, out of the static library.
wanted=$(sed -n 's/^ *\(_*[A-Za-z_]*\);$/-Wl,--undefined=\1/p' "$here/blkin.map")
# shellcheck disable=SC2086 # a list of words
"${CC:-cc}" -shared -o "$out/libblkin.so.0.new" $wanted "$out/libblkin.a" \
    -Wl,--version-script="$here/blkin.map" -Wl,-soname,libblkin.so.0 -Wl,-z,nodelete \
    -Wl,-z,relro -Wl,-z,now -Wl,-z,defs -Wl,--gc-sections -Wl,--as-needed \
    "$unwinder" -lpthread -ldl -lm -lc
mv -f "$out/libblkin.so.0.new" "$out/libblkin.so.0"
for name in blkin blkin-front zipkin-c zipkin-cpp; do
    ln -sfn libblkin.so.0 "$out/lib$name.so"
done
echo "$out/libblkin.so.0"
