# Sourced by the scripts beside it: functions that check, build and run the C test programs. Before that, a script sets $here,
# changes to the repository's root and sources scripts/lib/packages.sh. After building it calls use_library SO TAP.

pattern=${pattern-.} verbose=${verbose-}
passed=0 failed=0
work=$(mktemp -d)
chmod 0755 "$work"
trap 'rm -rf "$work"' EXIT

# check NAME COMMAND...
check() {
    local name=$1
    shift
    [[ $name =~ $pattern ]] || return 0
    if "$@" >"$work/log" 2>&1; then
        passed=$((passed + 1))
        [ -z "$verbose" ] || echo "ok      $name"
    else
        failed=$((failed + 1))
        echo "FAILED  $name: $*"
        sed 's/^/        /' "$work/log" | tail -25
    fi
}
# with NAME=VALUE... COMMAND...
with() (
    while [[ $1 = *=* ]]; do export "${1?}"; shift; done
    "$@"
)

# build_tap [--release]: builds the consumer, with the same features of dependencies as all tests of this tree, so that those
# are built only once.
build_tap() { cargo build --quiet --locked "$@" --workspace --example tap; }

# use_library SO TAP: sets the library against which programs are built, and the consumer that reads them.
use_library() {
    built=$(dirname "$1") tap=$2
    include=$PWD/blkin-lib/include
    export LD_LIBRARY_PATH=$built
    unset RATE BLKIN_RATE BLKIN_OFF BLKIN_SOCKET BLKIN_RING_BYTES
    c_flags="-std=c11 -D_GNU_SOURCE -Wall -Wextra -Wpedantic -Wshadow -Werror -O1 -g -pthread -I$include -I$include/blkin"
    cpp_flags="-std=c++17 -Wall -Wextra -Wpedantic -Wshadow -Werror -O1 -g -pthread -I$include -I$include/blkin"
    link="-L$built -lblkin -ldl"
}

# build PROGRAM COMPILER SOURCE... -- FLAG...
build() {
    local program=$1 compiler=$2 sources=() flags=$c_flags
    shift 2
    while [ $# -gt 0 ] && [ "$1" != -- ]; do sources+=("$here/$1"); shift; done
    [ $# -eq 0 ] || shift
    case $compiler in *++) flags=$cpp_flags ;; esac
    # shellcheck disable=SC2086 # lists of words
    $compiler $flags "${sources[@]}" -o "$work/$program" "$@" $link
}

# tapped PROGRAM ARGUMENT...: runs the program under the consumer for at most limit_seconds; the consumer's figures become
# variables of the caller. Fails unless each committed annotation was read, or is counted as torn or overwritten.
tapped() {
    rm -f "$work"/expect* "$work"/records "$work"/counters
    : >"$work/expect"
    : >"$work/expect.count"
    chmod 0666 "$work/expect" "$work/expect.count"
    EXPECT=$work/expect timeout "${limit_seconds:-120}" "$tap" "$work/records" "$work/counters" -- "$@" || return 1
    # shellcheck disable=SC2046 # a list of assignments
    declare -g $(cat "$work/counters")
    cat "$work/counters"
    [ "$committed" = $((read + torn + overwritten)) ] && [ "$invalid" = 0 ] ||
        { echo "the counters do not add up"; return 1; }
}

# traced PROGRAM ARGUMENT...: the consumer reads exactly what the program states that it has recorded.
traced() {
    tapped "$@" || return 1
    [ "$attempted" = $((committed + lost)) ] || { echo "the counters do not add up"; return 1; }
    if [ -s "$work/expect.count" ]; then
        local counted
        counted=$(awk '{ sum += $1 } END { print sum }' "$work/expect.count")
        [ "$attempted" = "$counted" ] || { echo "the program counted $counted"; return 1; }
        return 0
    fi
    [ "$lost$torn" = 00 ] || { echo "annotations were lost"; return 1; }
    [ -s "$work/expect" ] || { echo "the program expects nothing"; return 1; }
    diff <(sort "$work/expect") <(sort "$work/records")
}

lost_is() { grep -qE " lost=$1 " "$work/counters"; }

close_checks() {
    echo "$passed passed, $failed failed"
    [ "$failed" -eq 0 ]
}
