# Sourced by what run.sh runs inside its container: writes what is found into the file "result" beside it.

set -uo pipefail
cd "$(dirname "$0")" || exit 1
exec >result.part 2>&1
passed=0 failed=0

check() {
    local name=$1
    shift
    if "$@" >log 2>&1; then
        passed=$((passed + 1))
        echo "ok      $name"
    else
        failed=$((failed + 1))
        echo "FAILED  $name"
        { tail -10 log; journalctl --no-pager -q -o cat -n 15 -u 'blkin-*'; } | sed 's/^/        /'
    fi
}

# until_true COMMAND...: waits for what happens by itself, at most 20 seconds.
until_true() {
    local due=$((SECONDS + 20))
    until "$@"; do
        [ $SECONDS -lt $due ] || return 1
        sleep 0.1
    done
}

state_is() { [ "$(systemctl is-active "$1")" = "$2" ]; }
property() { systemctl show --value -p "$2" "$1"; }
said() { journalctl -q -o cat -u "$1" | grep -q "$2"; }
healthy() { blkin doctor; }

# shown [COMMAND...]: the quickstart's request, run by COMMAND, can be looked at.
shown() {
    local id
    id=$("$@" ./quickstart | awk '{ print $3 }') && until_true blkin trace "$id"
}

finish() {
    echo "$passed passed, $failed failed"
    mv result.part result
}
