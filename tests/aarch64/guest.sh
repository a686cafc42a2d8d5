#!/bin/sh
# The first process of the emulated machine (run.sh). For each check it writes a line "ok CHECK" or "FAILED CHECK", and at the end
# the number of checks. Commands that run.sh does not put into /bin are busybox's.
/bin/busybox --install -s /bin
export PATH=/bin LD_LIBRARY_PATH=/lib BLKIN_RELAY_URL=http://127.0.0.1:9413

mount -t proc proc /proc && mount -t sysfs sysfs /sys && mount -t devtmpfs dev /dev
for folder in /tmp /run /var; do mount -t tmpfs tmpfs $folder; done
mkdir -p /run/blkin /var/lib
ip link set lo up
echo "machine: $(uname -m), Linux $(uname -r)"
echo "pages: $(grep -m1 KernelPageSize /proc/self/smaps | tr -d ' ')"

checks=0
# check CHECK COMMAND...
check() {
    name=$1
    shift
    checks=$((checks + 1))
    if "$@" >/tmp/said 2>&1; then
        echo "ok $name"
    else
        echo "FAILED $name"
        sed 's/^/        /' /tmp/said
    fi
}

# until_true COMMAND...: repeats it until it succeeds, for about a minute.
until_true() {
    for _ in $(seq 240); do
        "$@" >/tmp/tried 2>&1 && return
        sleep 0.25
    done
    cat /tmp/tried
    return 1
}

# recorded PROGRAM...: the rings hold what the program reports to have recorded.
recorded() {
    : >/tmp/expect && : >/tmp/expect.count
    EXPECT=/tmp/expect timeout 100 tap /tmp/records /tmp/counters -- "$@" && cat /tmp/counters || return 1
    eval "$(cat /tmp/counters)"
    [ "$committed" -gt 0 ] && [ "$committed" = "$read" ] && [ "$attempted" = $((committed + lost)) ] || return 1
    if [ -s /tmp/expect ]; then
        sort /tmp/expect >/tmp/expected && sort /tmp/records >/tmp/read && diff /tmp/expected /tmp/read
    fi
}

for case in surface ztracer "lifecycle forks" "lifecycle fork-before-first-record" "lifecycle threads" "lifecycle signals" \
    "lifecycle close-descriptors"; do
    check "$case is read as it was recorded" recorded $case
done
check "a sleeping reader is woken" test-blkin_ringbuf wake::tests
check "a full ring wakes the reader" test-full is_woken
check "forked children inherit the parent's settings" test-inherited
check "the tests of the Rust interface pass" test-rust_api

# start DAEMON ARGUMENT...: starts it in the background and waits until it is ready; a variable of its name holds its process id.
start() {
    daemon=$1
    shift
    rm -f "/run/$daemon.ready"
    "blkin-$daemon" --ready-file "/run/$daemon.ready" "$@" >>"/tmp/$daemon.log" 2>&1 &
    eval "$daemon=\$!"
    until_true test -e "/run/$daemon.ready" || { cat "/tmp/$daemon.log"; return 1; }
}

# ends DAEMON: it ends with status 0 after SIGTERM.
ends() {
    eval "process=\$$1"
    kill "$process" && wait "$process" || { cat "/tmp/$1.log"; return 1; }
}

start_relay() { start relay --upstreams 127.0.0.1:9410 --spool-dir /var/lib/relay; }

# shown PROGRAM...: the command that the program prints draws its trace, with the annotation of the quickstart.
shown() { command=$("$@") && until_true is_drawn $command; }

is_drawn() { "$@" | grep bytes | grep -q 4096; }

is_recovered() {
    BLKIN_MODE=overwrite quickstart && blkin snapshot --label quickstart -o /tmp/recorder.saved &&
        blkin recover /tmp/recorder.saved | grep bytes | grep -q 4096
}

# The annotations that goes_on has attempted so far, by consumerd's metrics.
attempted() { wget -qO- http://127.0.0.1:9412/metrics | sed -n 's/^blkin_program_attempted_total{process="goes_on:.*} //p'; }

has_attempted_more() { now=$(attempted) && [ "${now:-0}" -gt "$1" ]; }

# A call that had begun before `blkin set` may still be counted a moment later.
is_set_off_and_on() {
    until_true has_attempted_more 100 && blkin set --all --off && sleep 0.2 && before=$(attempted) && sleep 0.5 &&
        [ "$(attempted)" = "$before" ] && blkin set --reset && until_true has_attempted_more "$before"
}

can_be_set() {
    goes_on &
    is_set_off_and_on
    outcome=$?
    kill $!
    return $outcome
}

# The worker's process id, found by its command line; words there end with a 0 byte.
worker() { grep -l '^blkin-consumerd.worker' /proc/[0-9]*/cmdline | tr -dc 0-9; }

has_another_worker() { [ -n "$(worker)" ] && [ "$(worker)" != "$1" ]; }

is_started_again() { before=$(worker) && kill -9 "$before" && until_true has_another_worker "$before"; }

check "collector starts" start collector --data-dir /var/lib/collector
check "relay starts" start_relay
check "consumerd starts" start consumerd --scribe-upstream 127.0.0.1:1463 --worker-uid 65534 --worker-gid 65534
check "doctor reports no failure" until_true blkin doctor
check "a request is shown" shown quickstart
check "the flight recorder of an ended program is read" is_recovered
check "a program records nothing while it is switched off" can_be_set
check "a killed worker is restarted" is_started_again
check "a request is shown after the worker was killed" shown quickstart
check "relay ends with success" ends relay
check "a request is recorded without the relay" quickstart
check "relay starts again" start_relay
check "the ledger of the chain balances" until_true blkin ledger
check "consumerd ends with success" ends consumerd
check "the second relay process ends with success" ends relay
check "collector ends with success" ends collector
echo "$checks checks"
poweroff -f
