#!/usr/bin/env bash
# Tests the C and C++ interface with real compilers and a real consumer (examples/tap.rs):
#   blkin-lib/tests/c/run.sh [-v] [--release] [PATTERN]     only the tests whose name matches PATTERN
# The last line is "N passed, N failed".
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../../.." || exit 1
. scripts/lib/packages.sh

verbose= release=
[ "${1-}" != -v ] || { verbose=1; shift; }
[ "${1-}" != --release ] || { release=1; shift; }
pattern=${1-.}
. "$here/common.sh"

need gcc g++ clang tcc =libclang-rt-dev valgrind gdb =libntirpc-dev =libjemalloc2 =libtcmalloc-minimal4 || exit 1

so=$(blkin-lib/build-so.sh ${release:+--release}) || { echo "0 passed, 1 failed"; exit 1; }
build_tap ${release:+--release} || { echo "0 passed, 1 failed"; exit 1; }
use_library "$so" "$(dirname "$so")/examples/tap"
# The ways of writing rings that this library has.
producers=(portable)
! nm "$so" | grep ' blkin_rseq_' >/dev/null || producers=(rseq portable)
intel=
[ "$(uname -m)" != x86_64 ] || intel=-masm=intel

# From here on, a program is ended if its libblkin.so allocates memory, or calls close().
# shellcheck disable=SC2086 # a list of words
gcc $c_flags -fPIC -shared "$here/forbidden.c" -o "$work/forbidden.so" || exit 1
allocates() {
    mkdir "$work/allocating"
    # shellcheck disable=SC2086 # a list of words
    gcc $c_flags -fPIC -shared "$here/allocates.c" -o "$work/allocating/libblkin.so" &&
        echo 'extern void blkin_init(void); int main(void) { blkin_init(); return 0; }' |
        gcc -x c - -o "$work/allocating/program" -L"$work/allocating" -lblkin || return 1
    with LD_LIBRARY_PATH="$work/allocating" "$work/allocating/program" || return 1
    local said
    said=$(with LD_LIBRARY_PATH="$work/allocating" LD_PRELOAD="$work/forbidden.so" "$work/allocating/program" 2>&1)
    [ $? = 134 ] && [ "$said" = "libblkin.so called malloc" ]
}
check "a program whose library allocates is ended" allocates
export LD_PRELOAD=$work/forbidden.so

# A header of Debian 13's libntirpc 6 includes the config.h of the program that is built.
mkdir "$work/ntirpc" && : >"$work/ntirpc/config.h"
for pair in "gcc g++" "clang clang++"; do
    read -r cc cxx <<<"$pair"
    check "$cc builds signatures.c as C11" build signatures-$cc $cc signatures.c
    check "$cc signatures.c runs" "$work/signatures-$cc"
    check "$cxx builds signatures.c as C++17" build signatures-$cxx $cxx -- -x c++ "$here/signatures.c"
    check "$cc builds surface.c and second.c" build surface-$cc $cc surface.c second.c
    check "$cc surface.c is read as written" traced "$work/surface-$cc"
    check "$cc builds refused.c" build refused-$cc $cc refused.c
    check "nothing is recorded on a span that could not be made ($cc)" traced "$work/refused-$cc"
    check "$cc builds front.c" build front-$cc $cc front.c -- -Wno-discarded-qualifiers -Wno-unknown-warning-option
    check "$cc front.c is read as written" traced "$work/front-$cc"
    check "$cc builds front.c against -lzipkin-c" build front-zipkin-$cc $cc front.c -- -L"$built" -lzipkin-c
    check "$cc builds loader.c" build loader-$cc $cc loader.c -- -Wno-pedantic
    check "$cc loader.c finds every name" traced "$work/loader-$cc"
    check "$cc builds ntirpc.c with Debian's headers" build ntirpc-$cc $cc -- \
        -DHAVE_BLKIN -std=gnu11 -isystem /usr/include/ntirpc -I"$work/ntirpc" "$here/ntirpc.c"
    check "$cc ntirpc.c is read as written" traced "$work/ntirpc-$cc"
    check "$cxx builds ztracer.cpp" build ztracer-$cxx $cxx ztracer.cpp ztracer_second.cpp
    check "$cxx ztracer.cpp is read as written" traced "$work/ztracer-$cxx"
    check "$cxx builds zref.cpp against -lzipkin-cpp" build zref-$cxx $cxx zref.cpp -- -L"$built" -lzipkin-cpp
    check "$cxx zref.cpp is read as written" traced "$work/zref-$cxx"
done
# silent COMPILER STANDARD WARNINGS...: the headers, and the expanded macros, compile without a warning.
silent() {
    local compiler=$1 standard=$2
    shift 2
    $compiler "-std=$standard" -O2 "$@" -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Wcast-align \
        -Wcast-qual -Werror -I"$include/blkin" -c "$here/warnings.c" -o "$work/warnings.o"
}
for compiler in gcc clang; do
    for standard in c89 c99 c11 c17 c2x; do
        check "$compiler warns of nothing in the headers as $standard" silent $compiler $standard -Wstrict-prototypes \
            -Wdeclaration-after-statement
    done
done
for compiler in g++ clang++; do
    for standard in c++11 c++14 c++17 c++20 c++2b; do
        check "$compiler warns of nothing in the headers as $standard" silent $compiler $standard -x c++ \
            -Wold-style-cast -Wzero-as-null-pointer-constant -Weffc++
        check "$compiler warns of nothing in the headers as $standard without exceptions" silent $compiler $standard -x c++ \
            -fno-exceptions -fno-rtti
    done
done
for compiler in gcc clang; do
    # shellcheck disable=SC2086 # a list of words
    check "$compiler builds surface.c with Intel assembly syntax" build surface-intel-$compiler $compiler surface.c \
        second.c -- $intel
    check "$compiler surface.c with Intel assembly syntax is read as written" traced "$work/surface-intel-$compiler"
done
# Profilers make each function report its address when it is entered, also an inlined one.
for compiler in gcc clang; do
    check "$compiler builds surface.c with instrumented functions" build surface-told-$compiler $compiler surface.c \
        second.c -- -O0 -finstrument-functions
    check "$compiler surface.c with instrumented functions is read as written" traced "$work/surface-told-$compiler"
done
# With this flag an annotation's type is one byte, and the bytes after it are never set.
for compiler in gcc clang; do
    check "$compiler builds surface.c with short enums" build surface-short-$compiler $compiler surface.c second.c -- -fshort-enums
    check "$compiler surface.c with short enums is read as written" traced "$work/surface-short-$compiler"
done
# As in a program with a header of its own that begins to pack structs and is included before ours.
printf '#include <%s>\n' errno.h fcntl.h inttypes.h stdio.h stdlib.h string.h unistd.h asm/byteorder.h >"$work/packs.h"
echo '#pragma pack(1)' >>"$work/packs.h"
for compiler in gcc clang; do
    check "$compiler builds surface.c where structs are packed" build surface-packed-$compiler $compiler surface.c second.c -- \
        -include "$work/packs.h" -Wno-pragma-pack
    check "$compiler surface.c where structs are packed is read as written" traced "$work/surface-packed-$compiler"
done
# unloadable COMPILER: the headers define no object that is unique in a process (symbol type u), which would keep a plug-in loaded,
# and none that is initialised at its first use under a lock.
unloadable() {
    $1 -std=c++17 -O2 -fPIC -I"$include/blkin" -x c++ -c "$here/warnings.c" -o "$work/plugin.o" || return 1
    ! nm -C "$work/plugin.o" | grep -E ' u .*ZTracer|__cxa_guard'
}
for compiler in g++ clang++; do
    check "a plug-in that $compiler builds with the headers can be unloaded" unloadable $compiler
done
# A compiler with none of the extensions that the headers look for.
# shellcheck disable=SC2086 # a list of words
check "tcc builds surface.c and second.c" tcc -pthread -o "$work/surface-tcc" "$here/surface.c" "$here/second.c" \
    -I"$include" -I"$include/blkin" $link
check "tcc surface.c is read as written" traced "$work/surface-tcc"
check "quickstart.c builds" build quickstart gcc -- "$PWD/examples/quickstart/quickstart.c"

sanitize="-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer"
for cc in gcc clang; do
    cxx=${cc/gcc/g}; cxx=${cxx/g/g++}; [ $cc = gcc ] || cxx=clang++
    # shellcheck disable=SC2086 # lists of words
    {
        check "$cc builds surface.c with ASan and UBSan" build asan-surface-$cc $cc surface.c second.c -- $sanitize
        check "$cxx builds ztracer.cpp with ASan and UBSan" build asan-ztracer-$cc $cxx ztracer.cpp ztracer_second.cpp -- $sanitize
        check "$cxx builds zref.cpp with ASan and UBSan" build asan-zref-$cc $cxx zref.cpp -- $sanitize
        check "$cc builds refused.c with ASan and UBSan" build asan-refused-$cc $cc refused.c -- $sanitize
        check "$cc builds lifecycle.c with ASan and UBSan" build asan-lifecycle-$cc $cc lifecycle.c -- $sanitize
    }
    for program in surface refused ztracer zref; do
        check "ASan and UBSan find nothing in $program ($cc)" with LD_PRELOAD= traced "$work/asan-$program-$cc"
    done
    for scenario in forks threads signals atexit; do
        check "ASan and UBSan find nothing in lifecycle $scenario ($cc)" \
            with LD_PRELOAD= traced "$work/asan-lifecycle-$cc" $scenario
    done
done

check "gcc builds lifecycle.c" build lifecycle gcc lifecycle.c
# Not the scenario signals: TSan delays handlers until the program calls libc.
for cc in gcc clang; do
    check "$cc builds surface.c with TSan" build tsan-surface-$cc $cc surface.c second.c -- -fsanitize=thread
    check "$cc builds lifecycle.c with TSan" build tsan-lifecycle-$cc $cc lifecycle.c -- -fsanitize=thread
    check "TSan finds nothing in surface ($cc)" traced "$work/tsan-surface-$cc"
    for scenario in forks threads migrations atexit; do
        check "TSan finds nothing in lifecycle $scenario ($cc)" traced "$work/tsan-lifecycle-$cc" $scenario
    done
done
check "clang builds msan.c with MSan" build msan clang msan.c -- -fsanitize=memory
check "MSan finds nothing in msan" with LD_PRELOAD= traced "$work/msan"
for allocator in libjemalloc.so.2 libtcmalloc_minimal.so.4; do
    check "surface.c is read as written beside $allocator" with LD_PRELOAD=$allocator traced "$work/surface-gcc"
    for scenario in forks threads signals atexit exec; do
        check "lifecycle $scenario beside $allocator" with LD_PRELOAD=$allocator traced "$work/lifecycle" $scenario
    done
done
check "surface.c is read as written when all names are bound at start" with LD_BIND_NOW=1 traced "$work/surface-gcc"
# As with glibc before 2.35: threads have no rseq areas, and rings are written by compare-and-swap.
check "surface.c is read as written without rseq areas" with GLIBC_TUNABLES=glibc.pthread.rseq=0 traced "$work/surface-gcc"
for scenario in forks threads signals migrations; do
    check "lifecycle $scenario without rseq areas" with GLIBC_TUNABLES=glibc.pthread.rseq=0 traced "$work/lifecycle" $scenario
done
memcheck=(valgrind -q --error-exitcode=9 --leak-check=full --errors-for-leak-kinds=definite,possible)
for program in surface-gcc refused-gcc front-gcc ztracer-g++ zref-g++; do
    check "valgrind finds nothing in $program" traced "${memcheck[@]}" "$work/$program"
done
check "valgrind finds nothing in lifecycle threads" traced "${memcheck[@]}" "$work/lifecycle" threads
check "valgrind finds nothing in lifecycle forks" traced "${memcheck[@]}" "$work/lifecycle" forks
for tool in helgrind drd; do
    check "$tool finds nothing in lifecycle threads but what is suppressed" traced valgrind -q "--tool=$tool" \
        --error-exitcode=9 --suppressions="$PWD/packaging/valgrind/blkin.supp" "$work/lifecycle" threads
done

# stepped_over PROGRAM: steps over the program's nine calls, each of which takes far more instructions than an empty call.
stepped_over() {
    # For each of some ten thousand instructions the two processes exchange a message, on any CPU that is free.
    local limit_seconds=600
    traced gdb -q -batch -x "$here/step.gdb" "$1" >"$work/gdb" || { tail "$work/gdb"; return 1; }
    tail -2 "$work/gdb"
    awk '/^stepped over/ { found = $3 == 9 && $6 > 900 } END { exit !found }' "$work/gdb"
}
# killed PRODUCER: with restartable sequences a record is either committed and counted, or neither. With the portable producer
# each killed thread may have begun one record, which is then only attempted, or torn.
killed() {
    local most=0 cut
    [ "$1" = rseq ] || most=80
    tapped "$work/lifecycle" killed || return 1
    cut=$((attempted - committed - lost))
    [ "$attempted" -gt 1000 ] && [ "$cut" -ge 0 ] && [ "$cut" -le $most ] && [ "$torn" -le $most ] ||
        { echo "$cut neither committed nor lost"; return 1; }
}
overwritten() {
    traced "$work/lifecycle" flood && [ "$overwritten" -gt 0 ] && [ "$read" -gt 0 ]
}
# in_one_ring RECORDS: the program keeps no more than the ring of its only writing thread holds, plus a few records in the ring
# that all threads share, which takes records that are interrupted again and again.
in_one_ring() {
    traced "$work/steady" || return 1
    [ "$read" -gt 0 ] && [ "$read" -le "$1" ] || { echo "$read kept, at most $1 expected"; return 1; }
}
check "gcc builds unharmed.c" build unharmed gcc unharmed.c
check "trouble with tracing does the program no harm" with BLKIN_SOCKET=/nonexistent timeout 120 "$work/unharmed"
# If there is no shared memory to count lost annotations in, the program itself says how many were lost.
without_memory() {
    (ulimit -f 0; with BLKIN_SOCKET=/nonexistent "$work/quickstart") 2>&1 |
        grep '6 annotations of this program were not recorded'
}
check "a program without shared memory reports how many annotations it lost" without_memory
# filtered_calls WHEN: the system calls that docs/deploy.md wants a filter to allow at these moments.
filtered_calls() {
    sed -nE "s/^\\| ($1)[^|]*\\|([^|]*)\\|\$/\\2/p" docs/deploy.md |
        grep -o '`[a-z0-9_]*`' | tr -d '`' | sed 's/.*/SYS_&,/' | tr '\n' ' '
}
# filtered_and_heard: the filter lets the library's message at the end of the program through.
filtered_and_heard() {
    with BLKIN_SOCKET=/nonexistent EXPECT="$work/expect" "$work/surroundings" filtered 2>&1 | grep 'were not collected'
}
# left_and_heard: the program reports records that were lost because its first call never ended.
left_and_heard() {
    with BLKIN_SOCKET=/nonexistent "$work/surroundings" first-call-left 2>&1 |
        grep '5 annotations of this program were not recorded: its first call was never completed'
}
# old_and_heard: the message says that the kernel is too old.
old_and_heard() {
    with BLKIN_SOCKET=/nonexistent "$work/surroundings" old-kernel 2>&1 |
        grep 'cannot create shared memory (not supported by this kernel: Linux 5.1 or later is needed)'
}
# privileged: a set-user-ID program ignores the variables that its caller has set.
privileged() {
    tapped setpriv --reuid 65534 --clear-groups "$work/privileged" privileged && [ "$programs" = 0 ]
}
# has_set_user_id: whether set-user-ID programs work here.
has_set_user_id() {
    [ "$(id -u)" = 0 ] && cp "$(command -v id)" "$work/id" && chmod 4755 "$work/id" &&
        [ "$(setpriv --reuid 65534 --clear-groups "$work/id" -u)" = 0 ]
}
later="at the first record and|with each|at its end|when the library"
check "gcc builds surroundings.c" build surroundings gcc surroundings.c -- \
    "-DFILTERED_CALLS=$(filtered_calls "at the first record, or|$later")" "-DLATER_CALLS=$(filtered_calls "$later")"
check "a system call filter lets the library's message at exit through" filtered_and_heard
check "a system call filter that answers any call with an error does no harm" \
    with BLKIN_SOCKET=/nonexistent "$work/surroundings" answered
check "a program whose first call never ended reports how many annotations it lost" left_and_heard
check "a program says that its kernel is too old" old_and_heard
if has_set_user_id; then
    # shellcheck disable=SC2086 # a list of words
    check "gcc builds a set-user-ID program" gcc $c_flags "$here/surroundings.c" -o "$work/privileged" "$built/libblkin.a" \
        -lgcc_s -lpthread -ldl -lm
    check "the set-user-ID bit can be set" chmod 4755 "$work/privileged"
    check "a set-user-ID program ignores its environment" privileged
else
    note "set-user-ID programs do not work here: not tested"
fi
check "gcc builds step.c" build step gcc step.c
check "gcc builds steady.c" build steady gcc steady.c -- -O2
for producer in "${producers[@]}"; do
    export BLKIN_PRODUCER=$producer
    for scenario in forks fork-before-first-record fork-within-a-span double-fork exec daemonise close-descriptors \
        standard-descriptors atexit signals first-in-handler threads migrations flood forks-beside-threads; do
        check "lifecycle $scenario ($producer)" traced "$work/lifecycle" $scenario
    done
    if [ "$(id -u)" = 0 ]; then
        for scenario in setuid-after setuid-before; do
            check "lifecycle $scenario ($producer)" traced "$work/lifecycle" $scenario
        done
        check "surroundings namespaces ($producer)" traced "$work/surroundings" namespaces
    else
        note "not root: dropping root, and namespaces, are not tested"
    fi
    for scenario in no-descriptors reused-descriptors changing-environment changed-environment cleared-environment fibers handler \
        vfork filtered filtered-later; do
        check "surroundings $scenario ($producer)" traced "$work/surroundings" $scenario
    done
    check "lifecycle killed: the counters of twenty killed programs add up ($producer)" killed $producer
    check "lifecycle flood: each record that is overwritten is counted ($producer)" with BLKIN_MODE=overwrite overwritten
    check "lifecycle migrations: when the oldest records are overwritten ($producer)" \
        with BLKIN_MODE=overwrite BLKIN_RING_BYTES=65536 traced "$work/lifecycle" migrations
    check "records that a debugger steps through by instructions arrive ($producer)" stepped_over "$work/step"
    check "10^6 records without a system call or an allocation ($producer)" \
        with BLKIN_RING_BYTES=67108864 traced "$work/steady"
    check "10^6 records into a large ring: none is lost ($producer)" lost_is 0
    check "10^6 records into a tiny ring: no system call, no allocation, each drop counted ($producer)" \
        with BLKIN_RING_BYTES=4096 traced "$work/steady"
    check "10^6 records of one thread overwrite those of their own ring ($producer)" \
        with BLKIN_MODE=overwrite BLKIN_RING_BYTES=65536 in_one_ring 1100
done
unset BLKIN_PRODUCER

check "gcc builds sampling.c" build sampling gcc sampling.c
sampled_within() { # LOW HIGH VARIABLE... -- ARGUMENT...
    local low=$1 high=$2 set=()
    shift 2
    while [ "$1" != -- ]; do set+=("$1"); shift; done
    shift
    local count
    count=$(env EXPECT="$work/expect" BLKIN_SOCKET=/nonexistent "${set[@]}" timeout 120 "$work/sampling" "$@") || return 1
    echo "$count sampled, $low to $high expected"
    [ "$count" -ge "$low" ] && [ "$count" -le "$high" ]
}
# Each slot counts the roots of its CPUs separately, and is off by less than one. A thread that moves to another CPU continues in
# another slot's count: there may be as many counts as CPUs, but not more than the 16 slots of default rings.
off=$(nproc --all)
[ "$off" -le 16 ] || off=16
[ "$off" -ge 4 ] || off=4
check "RATE=500 samples 1 in 500 over 4 threads" sampled_within $((200 - off)) $((200 + off)) RATE=500 -- threads 4 100000
check "spans that one call begins are sampled 1 in 500 at RATE=500" \
    sampled_within $((200 - off)) $((200 + off)) RATE=500 -- spans 4 100000
check "BLKIN_RATE wins over RATE" sampled_within $((200 - off)) $((200 + off)) RATE=2 BLKIN_RATE=500 -- threads 4 100000
check "an empty BLKIN_RATE leaves RATE in force" \
    sampled_within $((200 - off)) $((200 + off)) RATE=500 BLKIN_RATE= -- threads 4 100000
check "no RATE samples all" sampled_within 1000 1000 X=1 -- threads 4 1000
for rate in 0 -3 many; do
    check "RATE=$rate samples all" sampled_within 1000 1000 RATE=$rate -- threads 4 1000
done
told_which() { # VARIABLE: the message about a bad rate names this variable
    env BLKIN_SOCKET=/nonexistent EXPECT="$work/expect" RATE=2 "$1=many" "$work/sampling" threads 1 10 2>&1 >/dev/null |
        grep "^blkin: $1 must be a whole number"
}
check "the message about a bad RATE names RATE" told_which RATE
check "the message about a bad BLKIN_RATE names BLKIN_RATE" told_which BLKIN_RATE
check "RATE=500 samples 1 in 500 of 10000 forked children" sampled_within 3 38 RATE=500 -- forks 10000
check "sampled roots, and no others, are recorded" \
    with RATE=50 traced "$work/sampling" threads 4 10000
check "spans that one call begins are recorded only if sampled" with RATE=50 traced "$work/sampling" spans 4 10000
check "spans that one call begins are all recorded at RATE=1" with RATE=1 traced "$work/sampling" spans 4 10000
off_is_off() { # PROGRAM ARGUMENT...
    with BLKIN_OFF=1 EXPECT="$work/expect" "$tap" "$work/records" "$work/counters" -- "$@" &&
        grep -q '^programs=0 ' "$work/counters"
}
check "BLKIN_OFF records nothing" off_is_off "$work/lifecycle" threads
check "BLKIN_OFF records nothing on spans that could not be made" off_is_off "$work/refused-gcc"
check "no root is sampled with BLKIN_OFF" sampled_within 0 0 BLKIN_OFF=1 -- threads 1 10000
check "no span that one call begins is sampled with BLKIN_OFF and a rate" sampled_within 0 0 BLKIN_OFF=1 RATE=5 -- spans 1 10000

check "gcc builds status.c" build status gcc status.c
check "blkin_status says that the program is traced" traced "$work/status" tracing
check "blkin_status says that tracing is switched off" with EXPECT="$work/expect" BLKIN_OFF=1 "$work/status" off
check "blkin_status says that no memory could be created" traced "$work/status" without

check "gcc builds ids.c" build ids gcc ids.c
check "ids of threads and their signal handlers are unique" with BLKIN_SOCKET=/nonexistent "$work/ids" threads 4000000
check "ids of threads and their signal handlers are unique without rseq areas" \
    with BLKIN_SOCKET=/nonexistent GLIBC_TUNABLES=glibc.pthread.rseq=0 "$work/ids" threads 4000000
[ "$(uname -m)" != x86_64 ] ||
    check "ids of handlers and forked children between any two instructions are unique" \
        with BLKIN_SOCKET=/nonexistent "$work/ids" traps

check "header, Rust, version script and library agree" python3 "$here/drift.py" "$include/blkin/zipkin_c.h" \
    blkin-lib/src/capi blkin-lib/blkin.map "$so" "$here/signatures.c"
static_link() {
    # shellcheck disable=SC2086 # a list of words
    gcc $c_flags "$here/surface.c" "$here/second.c" -o "$work/static" "$built/libblkin.a" -lgcc_s -lpthread -ldl -lm &&
        env -u LD_LIBRARY_PATH true && ! readelf -d "$work/static" | grep -q libblkin
}
check "the static library links" static_link
check "the static library works" traced "$work/static"
# static_with_libc PROGRAM KIND SOURCE...: links everything statically, libc too. (The linker warns about functions of Rust's
# standard library that look up host names; none of them is called.)
static_with_libc() {
    local program=$1 kind=$2
    shift 2
    # shellcheck disable=SC2086 # a list of words
    (cd "$here" && gcc "$kind" $c_flags "$@" -o "$work/$program" "$built/libblkin.a" -lgcc_eh -lpthread -ldl -lm) &&
        ! readelf -d "$work/$program" | grep NEEDED
}
for kind in static static-pie; do
    check "gcc links surface.c -$kind" static_with_libc surface-$kind -$kind surface.c second.c
    check "surface.c linked with -$kind is read as written" traced "$work/surface-$kind"
done
check "gcc links lifecycle.c -static" static_with_libc lifecycle-static -static lifecycle.c
for scenario in forks threads signals atexit; do
    check "lifecycle $scenario without a shared library" traced "$work/lifecycle-static" $scenario
done
check "BLKIN_OFF holds for records made before the library's constructor runs" \
    with EXPECT_CONSTRUCTOR=1 off_is_off "$work/lifecycle-static" threads
# As in a plug-in that contains the library.
shared_link() {
    # shellcheck disable=SC2086 # a list of words
    gcc $c_flags -fPIC -shared "$here/second.c" -Wl,--whole-archive "$built/libblkin.a" -Wl,--no-whole-archive \
        -o "$work/plugin.so" -lgcc_s -lpthread -ldl -lm && ! readelf -d "$work/plugin.so" | grep -qE 'libblkin|TEXTREL'
}
check "the static library links into a shared library" shared_link

close_checks
