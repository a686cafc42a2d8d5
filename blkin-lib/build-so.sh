#!/bin/sh
# Builds the C library: puts libblkin.a, libblkin.so.0 and the linker names into target/debug/ or target/release/.
#
#   build-so.sh [--release]      prints the path of libblkin.so.0
#
# CARGO_BUILD_TARGET and CC build for another machine, or for musl (x86_64-unknown-linux-musl and musl-gcc).
#
# cc links the shared library from the static one, because a Rust cdylib exports its symbols without a version. The
# library is never unloaded (nodelete), because any thread may be recording.
set -eu

profile=debug
case "${1-}" in
    "") ;;
    --release) profile=release ;;
    *) echo "usage: build-so.sh [--release]" >&2; exit 2 ;;
esac
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/.."
# One build at a time: otherwise one would replace the files that another is linking.
exec 8<blkin-lib/build-so.sh
flock 8
out=${CARGO_TARGET_DIR:-target}/${CARGO_BUILD_TARGET:+$CARGO_BUILD_TARGET/}$profile
case $out in /*) ;; *) out=$PWD/$out ;; esac

unwinder=-lgcc_s
case ${CARGO_BUILD_TARGET-} in
    *-musl)
        # By default Rust links a whole static musl here, and a process must not have a second C library.
        export RUSTFLAGS="${RUSTFLAGS-} -Ctarget-feature=-crt-static"
        # libgcc_s belongs to another C library, and would load that one.
        unwinder=$(rustc --print sysroot)/lib/rustlib/$CARGO_BUILD_TARGET/lib/self-contained/libunwind.a
        ;;
esac

# On a terminal cargo shows how far it is.
quiet=--quiet
[ ! -t 2 ] || quiet=
if [ "$profile" = release ]; then
    # Independent of how the daemons are built: every record makes calls between the crates of the library.
    export CARGO_PROFILE_RELEASE_LTO=thin
    cargo rustc ${quiet:+--quiet} --locked -p blkin --lib --features c --release --crate-type staticlib
else
    cargo rustc ${quiet:+--quiet} --locked -p blkin --lib --features c --crate-type staticlib
fi

# --undefined takes exactly the public symbols, and what they need, out of the static library.
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
