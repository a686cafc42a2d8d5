#!/usr/bin/env bash
# Tests scripts/install: which files it installs below a DESTDIR, that projects outside this tree build against them with
# every build system and are traced, and that it removes exactly the files that it installed.
#   blkin-lib/tests/install.sh [--library-only]
# The last line is "N passed, N failed".
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
. scripts/lib/packages.sh

only=${1-}
passed=0 failed=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
dest=$work/dest
usr=$dest/usr

check() {
    local name=$1
    shift
    if "$@" >"$work/log" 2>&1; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAILED  $name"
        sed 's/^/        /' "$work/log" | tail -25
    fi
}
finish() {
    echo "$passed passed, $failed failed"
    [ "$failed" -eq 0 ]
    exit
}

need gcc g++ pkg-config cmake make autoreconf=autoconf aclocal=automake libtoolize=libtool || exit 1

exits() { # CODE COMMAND...
    local code=$1
    shift
    "$@"
    local got=$?
    [ $got = "$code" ] || { echo "exit code $got, not $code"; return 1; }
}
everything() { (cd "$1" && find . \( -type f -o -type l \) | LC_ALL=C sort); }

check "wrong usage exits with 2" exits 2 scripts/install --prefux /usr
check "a relative prefix exits with 2" exits 2 scripts/install --prefix usr
check "a prefix with a blank exits with 2" exits 2 scripts/install --prefix "/opt/a b" --destdir "$dest"
check "--help exits with 0" exits 0 scripts/install --help
check "--uninstall with nothing installed exits with 1" exits 1 scripts/install --prefix /usr --destdir "$dest" --uninstall
[ ! -e "$dest" ] || { echo "FAILED  --uninstall with nothing installed leaves nothing behind"; failed=$((failed + 1)); }

# A copy of the tree that cannot be built, and a user who may not write to the target.
not_root() { if [ "$(id -u)" = 0 ]; then setpriv --reuid=65534 --regid=65534 --clear-groups "$@"; else "$@"; fi; }
says_who_may_write() {
    local said
    said=$(not_root env PATH="$work/stubs:$PATH" "$work/tree/scripts/install" --prefix "$work/closed/usr" "$@" 2>&1) && return 1
    echo "$said"
    [[ $said == "install: failed to write below $work/closed: "*root* ]]
}
chmod 0755 "$work"
mkdir "$work/tree" "$work/stubs" "$work/closed" "$work/mine"
chmod 0555 "$work/closed"
chmod 0777 "$work/mine"
cp -r scripts "$work/tree/"
ln -s /bin/false "$work/stubs/cargo"
check "a user who may not write to the prefix is told before anything is built" says_who_may_write
check "a user who may not write to the prefix is told before the library alone is built" \
    says_who_may_write --library-only
check "a user who may not write the configuration is told before anything is built" \
    says_who_may_write --prefix "$work/mine" --sysconfdir "$work/closed/etc"

# Cargo's own message about a manifest that is newer than cargo is hard to understand.
says_what_is_too_old() {
    local said
    rm "$work/stubs/cargo" && printf '#!/bin/sh\necho "cargo 1.65.0"\n' >"$work/stubs/cargo" && chmod 0755 "$work/stubs/cargo" || return 1
    said=$(PATH=$work/stubs:$PATH "$1" "${@:2}" 2>&1) && return 1
    echo "$said"
    [[ $said == *"found Rust 1.65.0, but 1."*" is needed"* ]]
}
check "scripts/install names a Rust that is too old" says_what_is_too_old scripts/install --prefix /usr --destdir "$work/old"
check "scripts/demo names a Rust that is too old" says_what_is_too_old scripts/demo --once
check "scripts/test names a Rust that is too old" says_what_is_too_old scripts/test fmt

installs_the_library() {
    local said
    said=$(scripts/install --prefix /usr --destdir "$dest" --library-only) || return 1
    echo "$said"
    [[ $said != *configuration* ]]
}
check "installs the library without mentioning configuration" installs_the_library
cat >"$work/expected" <<LIST
./usr/include/blkin/blkin-front.h
./usr/include/blkin/zipkin_c.h
./usr/include/blkin/ztracer.hpp
./usr/lib/cmake/Blkin/BlkinConfig.cmake
./usr/lib/cmake/Blkin/BlkinConfigVersion.cmake
./usr/lib/libblkin-front.so
./usr/lib/libblkin.a
./usr/lib/libblkin.so
./usr/lib/libblkin.so.0
./usr/lib/libzipkin-c.so
./usr/lib/libzipkin-cpp.so
./usr/lib/pkgconfig/blkin.pc
./usr/share/blkin/manifest
./usr/share/blkin/valgrind/blkin.supp
LIST
same_files() { diff "$work/expected" <(everything "$dest"); }
check "exactly the expected files are installed" same_files
check "a second installation changes nothing" scripts/install --prefix /usr --destdir "$dest" --library-only
check "a second installation leaves exactly the expected files" same_files
links_point_inside() {
    local name
    for name in blkin blkin-front zipkin-c zipkin-cpp; do
        [ "$(readlink "$usr/lib/lib$name.so")" = libblkin.so.0 ] || return 1
    done
}
check "every linker name leads to libblkin.so.0" links_point_inside
check "symbols are public and versioned, and header and library agree" python3 blkin-lib/tests/c/drift.py \
    "$usr/include/blkin/zipkin_c.h" blkin-lib/src/capi blkin-lib/blkin.map "$usr/lib/libblkin.so.0" \
    blkin-lib/tests/c/signatures.c
no_tree_in_it() { ! grep -rlF "$PWD" "$usr/include" "$usr/lib/pkgconfig" "$usr/lib/cmake"; }
check "text files contain no path of the build tree" no_tree_in_it

# Projects outside the tree.
cp -r examples "$work/examples"
cp -r blkin-lib/tests/c "$work/c"
cargo build --quiet --locked --workspace --example tap || finish
tap=$PWD/${CARGO_TARGET_DIR:-target}/debug/examples/tap
case ${CARGO_TARGET_DIR-} in /*) tap=$CARGO_TARGET_DIR/debug/examples/tap ;; esac
export PKG_CONFIG_PATH=$usr/lib/pkgconfig CMAKE_PREFIX_PATH=$usr
unset RATE BLKIN_RATE BLKIN_OFF BLKIN_SOCKET BLKIN_RING_BYTES

traces() { # ANNOTATIONS SERVICE PROGRAM...
    local annotations=$1 service=$2
    shift 2
    LD_LIBRARY_PATH=$usr/lib timeout 60 "$tap" "$work/records" "$work/counters" -- "$@" || return 1
    cat "$work/counters" "$work/records"
    grep -q "attempted=$annotations committed=$annotations read=$annotations torn=0 invalid=0 lost=0 " "$work/counters" &&
        [ "$(grep -cF "|$service|" "$work/records")" = "$annotations" ]
}
flags_work() {
    local flags
    flags=$("$@" pkg-config --cflags --libs blkin) || return 1
    echo "$flags"
    # shellcheck disable=SC2086 # a list of words
    gcc -std=c11 -o "$work/both" -x c - $flags <<'PROGRAM'
#include <zipkin_c.h>
#include <blkin/zipkin_c.h>
#include <blkin-front.h>
int main(void) { return blkin_init(); }
PROGRAM
}
check "pkg-config finds both ways to include" flags_work env
check "pkg-config works with a sysroot" flags_work env PKG_CONFIG_SYSROOT_DIR="$dest"
version_is() { [ "$(pkg-config --modversion blkin)" = "$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)" ]; }
check "pkg-config knows the version" version_is

check "make and pkg-config build a project" make -C "$work/examples/pkgconfig"
check "a project built with make and pkg-config is traced" \
    traces 3 example-pkgconfig "$work/examples/pkgconfig/example-pkgconfig"
with_cmake() {
    cmake -S "$work/examples/cmake" -B "$work/cmake" && cmake --build "$work/cmake"
}
check "CMake builds a project" with_cmake
check "a project built with CMake is traced" traces 3 example-cmake "$work/cmake/example-cmake"
# through_a_link: as on systems where /lib is a link to /usr/lib, and CMake looks there first.
through_a_link() {
    mkdir "$work/linked" && ln -s "$usr/lib" "$work/linked/lib" &&
        cmake -DBlkin_DIR="$work/linked/lib/cmake/Blkin" -S "$work/examples/cmake" -B "$work/cmake-linked" &&
        cmake --build "$work/cmake-linked"
}
check "CMake finds the library through a link to its folder" through_a_link
cmake_static() {
    mkdir -p "$work/static" && cp "$work/examples/cmake/main.cpp" "$work/static" &&
        sed 's/Blkin::blkin/Blkin::static/' "$work/examples/cmake/CMakeLists.txt" >"$work/static/CMakeLists.txt" &&
        cmake -S "$work/static" -B "$work/static/b" && cmake --build "$work/static/b" &&
        ! readelf -d "$work/static/b/example-cmake" | grep -q libblkin
}
check "CMake builds a project with the static library" cmake_static
check "a project built with CMake and the static library is traced" traces 3 example-cmake "$work/static/b/example-cmake"
too_new() {
    sed -i 's/find_package(Blkin 0.1/find_package(Blkin 9.0/' "$work/static/CMakeLists.txt" &&
        ! cmake -S "$work/static" -B "$work/static/c"
}
check "CMake refuses a version that is not installed" too_new
with_autotools() { cd "$work/examples/autotools" && autoreconf -i && ./configure "$@" && make clean && make; }
check "autotools build a project" bash -c "$(declare -f with_autotools); work=$work; with_autotools --with-blkin"
check "a project built with autotools is traced" traces 3 example-autotools "$work/examples/autotools/example-autotools"
check "autotools build a project without BlkKin" \
    bash -c "$(declare -f with_autotools); work=$work; with_autotools --without-blkin"
quickstart() {
    # shellcheck disable=SC2046 # a list of words
    cc -Wall -Wextra -Werror "$work/examples/quickstart/quickstart.c" $(pkg-config --cflags --libs blkin) -o "$work/quickstart"
}
check "the quickstart builds" quickstart
quickstart_traced() { traces 6 '' "$work/quickstart"; grep -q 'attempted=6 committed=6 read=6 ' "$work/counters"; }
check "the quickstart is traced" quickstart_traced
# The crates that a program links pin no dependency to one version: cargo uses one version for the whole program, and another part
# of it may need a newer one.
leaves_versions_open() {
    cargo metadata --locked --no-deps --format-version 1 | python3 -c '
import json, sys
linked = ("blkin", "blkin-ringbuf", "blkin-record")
packages = [package for package in json.load(sys.stdin)["packages"] if package["name"] in linked]
pinned = [" ".join((package["name"], dependency["name"], dependency["req"])) for package in packages
          for dependency in package["dependencies"] if dependency["kind"] is None and dependency["req"].startswith("=")]
sys.exit("\n".join(pinned) or len(linked) - len(packages))
'
}
check "the Rust crates pin no dependency to one version" leaves_versions_open
# A plug-in that exported the C interface's symbols would be mixed up with the libblkin.so of a host program: either's calls could be
# bound to the other.
plugin_exports() { nm -D --defined-only "$work/plugin/target/debug/libplugin.so" | sed 's/.* //' | grep "$@"; }
builds_plugin() {
    mkdir -p "$work/plugin/src" && cp Cargo.lock "$work/plugin" || return 1
    cat > "$work/plugin/Cargo.toml" <<EOF
[package]
name = "plugin"
version = "0.1.0"
edition = "2024"
[lib]
crate-type = ["cdylib"]
[features]
c = ["blkin/c"]
[dependencies]
blkin = { path = "$PWD/blkin-lib" }
[workspace]
EOF
    cat > "$work/plugin/src/lib.rs" <<'EOF'
#[unsafe(no_mangle)]
pub extern "C" fn plugin_work() {
    blkin::event!(blkin::Span::root("op", &blkin::Endpoint::new("plugin")), "in a plug-in");
}
EOF
    (cd "$work/plugin" && cargo build --quiet --target-dir target "$@")
}
exports_itself_alone() { [ "$(plugin_exports .)" = plugin_work ]; }
check "a plug-in in Rust builds" builds_plugin
check "a plug-in in Rust exports nothing of the library" exports_itself_alone
check "a plug-in in Rust builds with the C interface" builds_plugin --features c
check "a plug-in in Rust with the C interface exports it" plugin_exports -qx blkin_record
moved() {
    mv "$dest" "$work/moved" || return 1
    (PKG_CONFIG_PATH=$work/moved/usr/lib/pkgconfig CMAKE_PREFIX_PATH=$work/moved/usr flags_work env)
    local result=$?
    mv "$work/moved" "$dest" && return $result
}
check "a moved installation still works" moved

two_at_once() {
    scripts/install --prefix /usr --destdir "$dest" --library-only &
    scripts/install --prefix /usr --destdir "$dest" --library-only && wait $!
}
check "two installations at once both succeed" two_at_once
check "two installations at once leave exactly the expected files" same_files
touch "$usr/include/blkin/mine.h"
check "uninstalls the library" scripts/install --prefix /usr --destdir "$dest" --uninstall
only_mine_left() { [ "$(everything "$dest")" = ./usr/include/blkin/mine.h ]; }
check "uninstalling leaves a file of somebody else" only_mine_left
rm -r "$usr"

private_files() { (umask 077 && scripts/install --prefix /usr --destdir "$work/for-all" --library-only); }
check "installs with a umask of 077" private_files
check "others may read what was installed with a umask of 077" not_root cat "$work/for-all/usr/include/blkin/zipkin_c.h"
# breaks_off: an installation that fails halfway, as on a full disk.
breaks_off() {
    printf '#!/bin/sh\ncase "$*" in *.cmake*) exit 1 ;; esac\nexec /usr/bin/install "$@"\n' >"$work/stubs/install"
    chmod 0755 "$work/stubs/install"
    rm "$work/stubs/cargo"
    ! PATH=$work/stubs:$PATH scripts/install --prefix /usr --destdir "$work/half" --library-only
}
check "an installation that is interrupted by an error fails" breaks_off
check "a failed installation can be uninstalled" scripts/install --prefix /usr --destdir "$work/half" --uninstall
nothing_of_it() { [ -z "$(find "$work/half" -mindepth 1)" ]; }
check "uninstalling a failed installation leaves nothing" nothing_of_it

check "installs into another prefix and library folder" \
    scripts/install --prefix /opt/b --libdir lib64 --destdir "$dest" --library-only
found_there() { PKG_CONFIG_PATH=$dest/opt/b/lib64/pkgconfig CMAKE_PREFIX_PATH=$dest/opt/b flags_work env; }
check "the library is found in another prefix and library folder" found_there
# As in a clone below a folder with such a name; make splits paths at blanks.
with_blanks() {
    local tree="$work/ä b"
    mkdir -p "$tree/target" "$tree/blkin-lib" "$tree/examples" && cp -r blkin-lib/include "$tree/blkin-lib/" &&
        cp -r examples/objectstore "$tree/examples/" && cp -r "$dest/opt/b/lib64" "$tree/target/debug" &&
        make -C "$tree/examples/objectstore" BUILD=../built && "$tree/examples/built/objstore-client" --help
}
check "the object store builds in a folder with a blank in its name" with_blanks
check "uninstalls from another prefix" scripts/install --prefix /opt/b --destdir "$dest" --uninstall
nothing_left() { [ -z "$(find "$dest" -mindepth 1)" ]; }
check "uninstalling from another prefix leaves nothing" nothing_left
[ "$only" != --library-only ] || finish

# unseen: installs below a folder that the units hide from their daemons, so that systemd could start nothing there.
unseen() {
    local said
    said=$(scripts/install --prefix "/var/tmp/blkin-$$") && scripts/install --prefix "/var/tmp/blkin-$$" --uninstall || return 1
    echo "$said"
    [[ $said == *"units do not see /var/tmp/blkin-$$ "* && $said != *"systemctl enable"* ]]
}
check "no units are suggested below a folder that they do not see" unseen
check "installs everything" scripts/install --prefix /usr --destdir "$dest"
for file in usr/bin/blkin usr/bin/blkin-consumerd usr/bin/blkin-collector etc/blkin/consumerd.toml etc/blkin/collector.toml \
    usr/lib/systemd/system/blkin-consumerd.service usr/lib/systemd/system/blkin-collector.service \
    usr/lib/systemd/system-preset/90-blkin.preset usr/lib/sysusers.d/blkin.conf usr/lib/tmpfiles.d/blkin.conf \
    usr/lib/libblkin.so.0 usr/share/doc/blkin/deploy.md \
    usr/share/doc/blkin/operations.md; do
    check "installs $file" test -f "$dest/$file"
done
for name in consumerd collector; do
    check "blkin-$name accepts its sample configuration" \
        "$usr/bin/blkin-$name" --config "$dest/etc/blkin/$name.toml" --check-config
done
check "blkin runs" "$usr/bin/blkin" --help
# says_all PROGRAM PAGE: the manual page has exactly the flags and commands that the program's --help has.
says_all() {
    local flags="$work/flags" commands="$work/commands"
    "$usr/bin/$1" --help | grep -oE '^ +(-., )?--[a-z-]+' | grep -oE -- '--[a-z-]+$' | sort -u >"$flags"
    sed -n 's/^\.It \(Fl .*\)/\1/p' "$2" | grep -oE 'Fl -[a-z-]+' | sed 's/^Fl /-/' | sort -u | diff "$flags" - || return 1
    "$usr/bin/$1" --help | sed -n '/^Commands:/,/^$/s/^  \([a-z]\{1,\}\)  *.*/\1/p' | sort >"$commands"
    sed -n 's/^\.It Cm \([a-z]*\).*/\1/p' "$2" | sort | diff "$commands" -
}
check "the manual page of blkin has every flag and command" says_all blkin "$usr/share/man/man1/blkin.1"
for name in consumerd relay collector; do
    check "the manual page of blkin-$name has every flag and command" says_all "blkin-$name" "$usr/share/man/man8/blkin-$name.8"
done
links_lead_to_what_is_installed() {
    local documents=$usr/share/doc/blkin document link path dead=0
    for document in "$documents"/*.md; do
        while read -r link; do
            case $link in
            http://* | https://* | "#"*) continue ;;
            /*) path=$dest$link ;;
            *) path=$documents/${link%%#*} ;;
            esac
            [ -e "$path" ] || { echo "$document: $link" && dead=1; }
        done < <(grep -oE '\]\([^)]+\)' "$document" | sed 's/^](//; s/)$//')
    done
    return $dead
}
check "links in the installed documents lead to installed files" links_lead_to_what_is_installed
placeholders() { ! grep -rn '@[a-z_]*@' "$dest/usr/lib/systemd" "$usr/lib/pkgconfig" "$usr/lib/cmake" | grep -v SystemCallFilter; }
check "no placeholder is left" placeholders
# Debian's presets enable every unit that no preset disables, at the first boot of a machine without a machine id.
none_is_preset() {
    local unit
    for unit in "$usr"/lib/systemd/system/*.service; do
        grep -qx "disable $(basename "$unit")" "$usr/lib/systemd/system-preset/90-blkin.preset" || return 1
    done
}
check "no daemon is enabled by a preset" none_is_preset
units_verify() {
    local unit
    for unit in "$usr"/lib/systemd/system/*.service; do
        sed "s|^\(Exec[a-zA-Z]*\)=/usr|\1=$usr|; s|^User=.*|User=root|; s|^Group=.*|Group=root|" "$unit" >"$work/$(basename "$unit")"
        systemd-analyze verify --man=no "$work/$(basename "$unit")" || return 1
    done
}
if command -v systemd-analyze >/dev/null; then check "systemd finds nothing wrong with the units" units_verify; fi
# A daemon with the capabilities of the unit finds a program of another user that nobody has answered, and one that has
# closed all its descriptors. In a PID namespace of its own, so that it finds no other programs.
cat >"$work/live.c" <<'PROGRAM'
#define _GNU_SOURCE
#include <fcntl.h>
#include <unistd.h>
#include <zipkin_c.h>
int main(int argc, char **argv)
{
	struct blkin_endpoint here = { NULL, 0, argv[1] };
	struct blkin_trace trace;

	blkin_init_new_trace(&trace, "live", &here);
	BLKIN_TIMESTAMP(&trace, NULL, "end");
	close(creat(argv[1], 0644)); /* recorded: the script waits for it */
	if (argc > 2)
		closefrom(0);
	pause();
	return 0;
}
PROGRAM
cat >"$work/scan.sh" <<'SCRIPT'
cd "$1" || exit 1
unit=$2 usr=$3
caps=$(sed -n 's/^AmbientCapabilities=//p' "$unit" | tr A-Z a-z | sed 's/cap_/+/g; s/ /,/g')
mkdir -m 0755 run && chown 65534:65534 run || exit 1
export BLKIN_SOCKET=$1/run/nobody LD_LIBRARY_PATH=$usr/lib
./live with-descriptors &
./live without-descriptors 1 &
until [ -f with-descriptors ] && [ -f without-descriptors ]; do sleep 0.05; done
setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps="-all,$caps" --ambient-caps="$caps" --bounding-set="-all,$caps" \
    "$usr/bin/blkin-consumerd" --socket "$1/run/sock" --http-listen 127.0.0.1:0 --scribe-upstream '' \
    --json-lines "$1/run/lines" &
for _ in $(seq 100); do
    [ -f run/lines ] && grep -q '"with-descriptors"' run/lines && grep -q '"without-descriptors"' run/lines && exit 0
    sleep 0.1
done
cat run/lines
exit 1
SCRIPT
scan_finds() {
    chmod 0755 "$work" "$dest" && cc -o "$work/live" "$work/live.c" -I"$usr/include/blkin" -L"$usr/lib" -lblkin &&
        timeout 60 unshare --pid --fork --kill-child --mount-proc \
            bash "$work/scan.sh" "$work" "$usr/lib/systemd/system/blkin-consumerd.service" "$usr"
}
if [ "$(id -u)" != 0 ]; then
    note "not root: the unit's capabilities are not tested"
elif ! unshare --pid --fork --kill-child --mount-proc true 2>/dev/null; then
    note "no process ids of its own for a test here: the unit's capabilities are not tested"
else
    check "with the unit's capabilities consumerd finds live programs" scan_finds
fi
echo '# mine' >>"$dest/etc/blkin/consumerd.toml"
check "installs again over a changed configuration" scripts/install --prefix /usr --destdir "$dest"
check "a changed configuration stays" grep -q '^# mine' "$dest/etc/blkin/consumerd.toml"
check "a new sample is installed beside a changed configuration" \
    cmp consumerd/config.example.toml "$dest/etc/blkin/consumerd.toml.new"
check "uninstalls everything" scripts/install --prefix /usr --destdir "$dest" --uninstall
only_changed_left() { [ "$(everything "$dest")" = ./etc/blkin/consumerd.toml ]; }
check "uninstalling leaves only the changed configuration" only_changed_left
finish
