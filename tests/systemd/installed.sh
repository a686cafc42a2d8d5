#!/usr/bin/env bash
# The checks that run.sh runs inside its container after scripts/install.
. "$(dirname "$0")/checks.sh"

# The commands from the README.
check "sysusers and tmpfiles create the user and the socket's folder" bash -ec '
    systemd-sysusers && systemd-tmpfiles --create && systemctl daemon-reload
    [ "$(stat -c %U:%a /run/blkin)" = blkin:755 ]'

# The program starts before consumerd and never offers itself again, so only consumerd's scan can find it.
check "a program of another user starts without consumerd" bash -ec '
    install -d -o nobody /run/waits
    systemd-run --quiet --uid=nobody --unit=waits /srv/blkin-test/waits /run/waits'
check "the program records without consumerd" until_true test -e /run/waits/recorded

# `systemctl enable --now` returns when the daemon serves, so nothing here waits for that.
check "consumerd starts" systemctl enable --now blkin-consumerd
check "consumerd finds the running program of another user" said blkin-consumerd 'found a live program.*comm="waits"'
check "collector starts" systemctl enable --now blkin-collector
check "doctor reports no failure" healthy
check "what the program recorded before consumerd started is shown" until_true bash -ec 'blkin traces --service waits | grep -q wait'

check "a request is shown" shown
check "a request of an unprivileged user is shown" shown setpriv --reuid=nobody --regid=nogroup --clear-groups
# A hardened unit, with the settings that docs/deploy.md names for traced programs.
hardened() {
    local property
    {
        printf '%s\n' '[Service]' Type=oneshot "ExecStart=$PWD/${1#./}" "StandardOutput=file:$PWD/printed" ProtectSystem=strict
        for property in Protect{Home,Clock,ControlGroups,KernelTunables} Private{Tmp,Devices,Users,Network} DynamicUser \
            MemoryDenyWriteExecute RestrictNamespaces LockPersonality NoNewPrivileges; do
            echo "$property=yes"
        done
        printf '%s\n' ProtectProc=invisible ProcSubset=pid CapabilityBoundingSet= UMask=0077 SystemCallFilter=@system-service \
            RestrictAddressFamilies=AF_UNIX TemporaryFileSystem=/run BindReadOnlyPaths=/run/blkin
    } >/run/systemd/system/blkin-hardened.service
    systemctl daemon-reload && systemctl start blkin-hardened && cat printed
}
check "a request of a hardened unit is shown" shown hardened

# is_killed main|all: kills consumerd's main process, or both; systemd then starts it again.
is_killed() {
    local before
    before=$(property blkin-consumerd MainPID)
    systemctl kill -s KILL --kill-who="$1" blkin-consumerd
    anew() { state_is blkin-consumerd active && [ "$(property blkin-consumerd MainPID)" != "$before" ]; }
    until_true anew
}
check "systemd restarts a killed consumerd" is_killed main
check "a request is shown after consumerd was killed" shown
check "the ledger balances after consumerd was killed" until_true healthy

# What no upstream takes survives an end of all of consumerd.
kept() { [ "$(property blkin-consumerd NFileDescriptorStore)" = "$1" ]; }
check "systemd holds the descriptors of unshipped data and of the running program" until_true kept 3
check "collector is stopped" systemctl stop blkin-collector
request=$(./quickstart | awk '{ print $3 }')
check "systemd holds the descriptors of an ended program that is not shipped" until_true kept 5
check "consumerd is restarted" systemctl restart blkin-consumerd
gives_up_nothing() {
    local file=/etc/blkin/consumerd.toml result
    cp "$file" good && echo 'no_such_key = 1' >>"$file"
    ! systemctl restart blkin-consumerd && kept 5
    result=$?
    cp good "$file" && until_true state_is blkin-consumerd active && return $result
}
check "systemd holds the descriptors while the configuration is invalid" gives_up_nothing
check "systemd restarts consumerd after both its processes were killed" is_killed all
goes_on() { [ "$(journalctl -q -o cat -u blkin-consumerd | grep -c 'continuing where the previous daemon stopped')" -ge 3 ]; }
check "consumerd continues where it stopped after each restart" goes_on
check "collector starts again" systemctl start blkin-collector
check "a request recorded without the collector is shown" until_true blkin trace "$request"
check "nothing was lost while the collector was stopped" until_true healthy
check "systemd releases the descriptors of an ended program that is shipped" until_true kept 3

check "a reload of the collector succeeds" bash -ec 'systemctl reload blkin-collector; systemctl is-active blkin-collector'
check "the collector logs that it read its configuration again" until_true said blkin-collector "read the configuration again"
# refuses_to_reload NAME: with an error in its file, the reload fails before the daemon gets a signal, and the daemon goes on.
refuses_to_reload() {
    local before unit=blkin-$1 file=/etc/blkin/$1.toml
    before=$(property "$unit" MainPID)
    cp "$file" good && echo 'no_such_key = 1' >>"$file"
    ! systemctl reload "$unit" && [ "$(property "$unit" MainPID)" = "$before" ] && state_is "$unit" active &&
        until_true said "$unit" 'there is no key .no_such_key' && ! said "$unit" 'kept the configuration as it was'
    local result=$?
    cp good "$file" && return $result
}
check "a reload of the collector with an invalid file fails" refuses_to_reload collector
check "a reload of the collector with the repaired file succeeds" systemctl reload blkin-collector
warned() { journalctl -q -o cat -p warning -u "$1" | grep -q "$2"; }
check "consumerd gets SIGHUP" systemctl kill -s HUP --kill-who=main blkin-consumerd
check "consumerd's warning about SIGHUP has the priority of a warning" until_true warned blkin-consumerd "^[^<].*SIGHUP changes nothing"
check "an informational line does not have the priority of a warning" bash -c '! journalctl -q -p warning -u blkin-collector | grep "read the configuration again"'
check "collector restarts" systemctl restart blkin-collector
check "a request is shown after the collector restarted" shown

# Through a relay: consumerd -> relay -> collector.
check "relay starts" systemctl enable --now blkin-relay
check "a reload of the relay with an invalid file fails" refuses_to_reload relay
check "a reload of the relay with the repaired file succeeds" systemctl reload blkin-relay
check "consumerd ships to the relay" bash -ec '
    sed -i "s/^scribe_upstream = .*/scribe_upstream = \"127.0.0.1:1463\"/" /etc/blkin/consumerd.toml
    blkin-consumerd --check-config --config /etc/blkin/consumerd.toml
    systemctl restart blkin-consumerd'
check "a request through the relay is shown" shown
check "the relay's spool lies in its state directory" bash -c 'ls /var/lib/blkin/relay | grep -q .'
# Daemons that listen on the network run as the user who may change all programs' settings and read their rings.
sees() { nsenter --target "$(property "$1" MainPID)" --mount test -e "$2"; }
sees_no_control() { sees "$1" /etc/blkin && ! sees "$1" /run/blkin/control.sock; }
check "consumerd's control socket exists" test -S /run/blkin/control.sock
for unit in blkin-relay blkin-collector; do
    check "$unit cannot see consumerd's control socket" sees_no_control $unit
done
balances() { blkin ledger --relay http://127.0.0.1:9413 --settle 10s; }
check "the ledger of the chain balances" balances

stops() {
    systemctl stop "$1" && [ "$(property "$1" Result)" = success ] && [ "$(property "$1" ExecMainStatus)" = 0 ]
}
for unit in blkin-consumerd blkin-relay blkin-collector; do
    check "$unit stops with success" stops $unit
done
check "systemd keeps no descriptor of a stopped consumerd" kept 0

# Gives the collector the relay's address.
config=/etc/blkin/collector.toml
start_in_vain() {
    sed -i 's/^scribe_listen = .*/scribe_listen = "127.0.0.1:1463"/' $config
    ! systemctl start blkin-collector
}
goes_on_trying() { [ "$(property blkin-collector NRestarts)" -gt 6 ]; }
check "relay starts again" systemctl start blkin-relay
check "collector does not start if its address is taken" start_in_vain
check "systemd retries more often than its default limit" until_true goes_on_trying
check "relay stops" systemctl stop blkin-relay
check "collector runs once its address is free" until_true state_is blkin-collector active

# Moves the data to another folder, as docs/deploy.md describes.
keep_elsewhere() {
    install -d -o blkin -g blkin /srv/spans /etc/systemd/system/blkin-collector.service.d
    printf '[Service]\nReadWritePaths=/srv/spans\n' >/etc/systemd/system/blkin-collector.service.d/override.conf
    sed -i -e 's/^scribe_listen = .*/scribe_listen = "127.0.0.1:9410"/' -e 's,^data_dir = .*,data_dir = "/srv/spans",' $config
    systemctl daemon-reload && systemctl restart blkin-collector && ls /srv/spans | grep -q .
}
check "collector keeps its data in another writable folder" keep_elsewhere
check "collector stops" systemctl stop blkin-collector

fails_for_good() {
    sed -i 's/^http_listen = .*/http_listen = "nowhere"/' /etc/blkin/consumerd.toml
    ! systemctl start blkin-consumerd && state_is blkin-consumerd failed &&
        [ "$(property blkin-consumerd ExecMainStatus)" = 78 ] && [ "$(property blkin-consumerd NRestarts)" = 0 ]
}
check "systemd does not retry with an invalid configuration" fails_for_good

is_removed() {
    sed -i 's/^http_listen = .*/http_listen = "127.0.0.1:9412"/' /etc/blkin/consumerd.toml
    systemctl reset-failed && systemctl start blkin-consumerd && scripts/install --prefix /usr --uninstall || return 1
    ! pgrep -x blkin-consumerd && ! ls -d /etc/systemd/system/*.wants/blkin-* && ! ls /usr/bin/blkin*
}
check "the removal stops and disables the daemons" is_removed
check "systemd knows no removed unit" bash -c '! systemctl cat blkin-consumerd'

finish
