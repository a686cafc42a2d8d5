#!/usr/bin/env bash
# The checks that run.sh runs inside its container after scripts/install.
. "$(dirname "$0")/checks.sh"

# The commands from the README.
check "sysusers and tmpfiles make the user and its folder" bash -ec '
    systemd-sysusers && systemd-tmpfiles --create && systemctl daemon-reload
    [ "$(stat -c %U:%a /run/blkin)" = blkin:755 ]'

# The program starts before consumerd and never offers itself again, so only consumerd's scan can find it.
check "a program of another user records while there is no consumerd" bash -ec '
    install -d -o nobody /run/waits
    systemd-run --quiet --uid=nobody --unit=waits /srv/blkin-test/waits /run/waits'
check "it has recorded" until_true test -e /run/waits/recorded

# `systemctl enable --now` returns when the daemon serves, so nothing here waits for that.
check "consumerd starts" systemctl enable --now blkin-consumerd
check "it may look for programs of others, and finds that one" said blkin-consumerd 'found a live program.*comm="waits"'
check "collector starts" systemctl enable --now blkin-collector
check "doctor finds nothing wrong" healthy
check "what that program recorded is shown" until_true bash -ec 'blkin traces --service waits | grep -q wait'

check "a request is shown" shown
check "and one of a user without any right" shown setpriv --reuid=nobody --regid=nogroup --clear-groups
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
check "and one of a unit from which everything else is taken" shown hardened

# is_killed main|all: kills consumerd's main process, or both; systemd then starts it again.
is_killed() {
    local before
    before=$(property blkin-consumerd MainPID)
    systemctl kill -s KILL --kill-who="$1" blkin-consumerd
    anew() { state_is blkin-consumerd active && [ "$(property blkin-consumerd MainPID)" != "$before" ]; }
    until_true anew
}
check "a consumerd that is killed is started again" is_killed main
check "and takes requests" shown
check "the ledger holds" until_true healthy

# What no upstream takes survives an end of all of consumerd.
kept() { [ "$(property blkin-consumerd NFileDescriptorStore)" = "$1" ]; }
check "systemd keeps the memory with what is not shipped, and the program that runs" until_true kept 3
check "the collector is away" systemctl stop blkin-collector
request=$(./quickstart | awk '{ print $3 }')
check "what ends meanwhile is kept" until_true kept 5
check "consumerd is restarted" systemctl restart blkin-consumerd
gives_up_nothing() {
    local file=/etc/blkin/consumerd.toml result
    cp "$file" good && echo 'no_such_key = 1' >>"$file"
    ! systemctl restart blkin-consumerd && kept 5
    result=$?
    cp good "$file" && until_true state_is blkin-consumerd active && return $result
}
check "with a configuration that cannot be used, too, until that is mended" gives_up_nothing
check "all of it is killed, and started again" is_killed all
goes_on() { [ "$(journalctl -q -o cat -u blkin-consumerd | grep -c 'continuing where the previous daemon stopped')" -ge 3 ]; }
check "it goes on each time where it stopped" goes_on
check "the collector is there again" systemctl start blkin-collector
check "it shows what was recorded before all that" until_true blkin trace "$request"
check "nothing is lost, says the ledger" until_true healthy
check "the program that has ended is kept no longer" until_true kept 3

check "a reload reaches the collector" bash -ec 'systemctl reload blkin-collector; systemctl is-active blkin-collector'
check "which says so" until_true said blkin-collector "read the configuration again"
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
check "a reload fails of a file that cannot be used" refuses_to_reload collector
check "and does not once that is mended" systemctl reload blkin-collector
warned() { journalctl -q -o cat -p warning -u "$1" | grep -q "$2"; }
check "consumerd cannot reload" systemctl kill -s HUP --kill-who=main blkin-consumerd
check "of which the journal knows that it is a warning" until_true warned blkin-consumerd "^[^<].*SIGHUP changes nothing"
check "and of what is none that it is none" bash -c '! journalctl -q -p warning -u blkin-collector | grep "read the configuration again"'
check "the collector starts anew" systemctl restart blkin-collector
check "and takes requests again" shown

# Through a relay: consumerd -> relay -> collector.
check "relay starts" systemctl enable --now blkin-relay
check "a reload of it fails of a file that cannot be used, too" refuses_to_reload relay
check "and does not once that is mended" systemctl reload blkin-relay
check "consumerd is sent there" bash -ec '
    sed -i "s/^scribe_upstream = .*/scribe_upstream = \"127.0.0.1:1463\"/" /etc/blkin/consumerd.toml
    blkin-consumerd --check-config --config /etc/blkin/consumerd.toml
    systemctl restart blkin-consumerd'
check "a request comes through the relay" shown
check "its spool lies in the folder of its state" bash -c 'ls /var/lib/blkin/relay | grep -q .'
# Daemons that listen on the network run as the user who may change all programs' settings and read their rings.
sees_no_control() { ! nsenter --target "$(property "$1" MainPID)" --mount test -e /run/blkin/control.sock; }
check "consumerd's control socket is there" test -S /run/blkin/control.sock
for unit in blkin-relay blkin-collector; do
    check "but not for $unit" sees_no_control $unit
done
balances() { blkin ledger --relay http://127.0.0.1:9413 --settle 10s; }
check "the ledger holds along the chain" balances

stops() {
    systemctl stop "$1" && [ "$(property "$1" Result)" = success ] && [ "$(property "$1" ExecMainStatus)" = 0 ]
}
for unit in blkin-consumerd blkin-relay blkin-collector; do
    check "$unit stops in order" stops $unit
done
check "of a unit that is stopped nothing is kept" kept 0

# Gives the collector the relay's address.
config=/etc/blkin/collector.toml
start_in_vain() {
    sed -i 's/^scribe_listen = .*/scribe_listen = "127.0.0.1:1463"/' $config
    ! systemctl start blkin-collector
}
goes_on_trying() { [ "$(property blkin-collector NRestarts)" -gt 6 ]; }
check "relay starts once more" systemctl start blkin-relay
check "a collector does not start whose address is taken" start_in_vain
check "it is started again, more often than systemd would by itself" until_true goes_on_trying
check "relay stops" systemctl stop blkin-relay
check "the collector runs once the address is free" until_true state_is blkin-collector active

# Moves the data to another folder, as docs/deploy.md describes.
keep_elsewhere() {
    install -d -o blkin -g blkin /srv/spans /etc/systemd/system/blkin-collector.service.d
    printf '[Service]\nReadWritePaths=/srv/spans\n' >/etc/systemd/system/blkin-collector.service.d/override.conf
    sed -i -e 's/^scribe_listen = .*/scribe_listen = "127.0.0.1:9410"/' -e 's,^data_dir = .*,data_dir = "/srv/spans",' $config
    systemctl daemon-reload && systemctl restart blkin-collector && ls /srv/spans | grep -q .
}
check "the collector keeps its data in a folder that it may write to" keep_elsewhere
check "collector stops" systemctl stop blkin-collector

fails_for_good() {
    sed -i 's/^http_listen = .*/http_listen = "nowhere"/' /etc/blkin/consumerd.toml
    ! systemctl start blkin-consumerd && state_is blkin-consumerd failed &&
        [ "$(property blkin-consumerd ExecMainStatus)" = 78 ] && [ "$(property blkin-consumerd NRestarts)" = 0 ]
}
check "a wrong configuration is an error that is not tried again" fails_for_good

finish
