# Sourced by the scripts that run.sh runs inside its container: writes the results to the file "result" in the same folder.

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

# until_true COMMAND...: repeats it until it succeeds, for at most 20 seconds.
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

# shown [COMMAND...]: runs the quickstart, with COMMAND if there is one; its trace can then be shown.
shown() {
    local id
    id=$("$@" ./quickstart | awk '{ print $3 }') && until_true blkin trace "$id"
}

finish() {
    echo "$passed passed, $failed failed"
    mv result.part result
}
