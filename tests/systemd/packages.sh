#!/usr/bin/env bash
# The checks that run.sh runs inside its container with the packages that scripts/package made.
. "$(dirname "$0")/checks.sh"

install_packages() { dpkg -i ./*.deb; }

# As when an image is built: a folder without /proc and without a running systemd. It holds this container's files.
image=$PWD/image
in_image() { mount --bind / "$image" && cp ./*.deb /var/tmp/ && chroot "$image" sh -ec 'dpkg -i /var/tmp/*.deb'; }
mkdir image
check "the packages are installed into an image" in_image
check "the packages in the image are fully configured" bash -c '[ "$(dpkg-query -W -f "\${db:Status-Status}" blkin)" = installed ] && getent passwd blkin'
check "daemons are enabled in the image" chroot "$image" systemctl enable blkin-collector blkin-consumerd
# Purges the packages while the spans are on a disk of their own.
purge_mounted() {
    mkdir -p "$image/var/lib/blkin" && mount -t tmpfs tmpfs "$image/var/lib/blkin" && touch "$image/var/lib/blkin/spans" &&
        chroot "$image" dpkg -P blkin libblkin-dev libblkin0
}
check "the packages are purged while /var/lib/blkin is a mount point" purge_mounted
check "no package is left in the image" bash -c 'dpkg-query -W dpkg && ! dpkg-query -W "*blkin*"'
check "no daemon stays enabled in the image" bash -c '! ls -d /etc/systemd/system/*.wants/blkin-* 2>/dev/null'
check "the purge deletes the spans and leaves the mount point" bash -ec '
    mountpoint image/var/lib/blkin && [ -z "$(ls image/var/lib/blkin)" ] && umount image/var/lib/blkin'
umount image && rmdir /var/lib/blkin && userdel blkin

check "the packages are installed" install_packages
check "the user and the socket's folder exist" bash -c '
    [ "$(stat -c %U:%a /run/blkin)" = blkin:755 ]'
nothing_runs() {
    local name
    for name in consumerd relay collector; do state_is blkin-$name inactive || return 1; done
}
check "the installation starts no daemon" nothing_runs
# systemd applies presets at the first boot of a machine without /etc/machine-id.
preset_enables_none() {
    local name
    systemctl preset blkin-consumerd blkin-relay blkin-collector || return 1
    for name in consumerd relay collector; do [ "$(systemctl is-enabled blkin-$name)" = disabled ] || return 1; done
}
check "presets of a first boot enable no daemon" preset_enables_none
check "a program is built" bash -c '
    cc /usr/share/doc/libblkin-dev/examples/quickstart.c $(pkg-config --cflags --libs blkin) -o quickstart'
check "daemons start" systemctl enable --now blkin-collector blkin-consumerd
check "a request is shown" shown

files() { dpkg -L blkin libblkin0 libblkin-dev | sort -u | while read -r path; do [ -d "$path" ] || echo "$path"; done; }
files >installed
check "dpkg lists daemons, library and headers" bash -c '
    grep -q bin/blkin-relay installed && grep -q libblkin.so.0 installed && grep -q zipkin_c.h installed'

echo "# mine" >>/etc/blkin/collector.toml
collector=$(property blkin-collector MainPID) consumerd=$(property blkin-consumerd MainPID)
# The administrator's policy on which services packages may start and stop (README.policy-rc.d.gz of init-system-helpers).
policy() { printf '#!/bin/sh\nexit %s\n' "$1" >/usr/sbin/policy-rc.d && chmod 0755 /usr/sbin/policy-rc.d; }
runs_on() { state_is "$1" active && [ "$(property "$1" MainPID)" = "$2" ]; }
check "the policy forbids packages to restart services" policy 101
check "an upgrade that may restart nothing is installed" dpkg -i ./blkin_*.deb
check "the upgrade does not restart the collector" runs_on blkin-collector "$collector"
check "the upgrade does not restart consumerd" runs_on blkin-consumerd "$consumerd"
check "the policy allows packages to restart services" policy 0
check "an upgrade that may restart daemons is installed" install_packages
runs_anew() { state_is "$1" active && [ "$(property "$1" MainPID)" != "$2" ]; }
check "the upgrade restarts a running collector" runs_anew blkin-collector "$collector"
check "the upgrade restarts a running consumerd" runs_anew blkin-consumerd "$consumerd"
check "the upgrade does not start a stopped relay" state_is blkin-relay inactive
check "the upgrade keeps the administrator's configuration" grep -q '^# mine$' /etc/blkin/collector.toml
check "a request is shown after the upgrade" shown
check "the ledger balances after the upgrade" until_true healthy

# As in a folder with /run mounted into it: systemd seems to run, but does not answer.
unanswered() { unshare --mount bash -ec 'mount -t tmpfs tmpfs /run/systemd && mkdir /run/systemd/system && "$@"' _ "$@"; }
check "an upgrade is installed while systemd does not answer" unanswered dpkg -i ./blkin_*.deb
check "the daemons are removed while systemd does not answer" unanswered dpkg -r blkin
check "no daemon is enabled after removal" bash -c '! ls -d /etc/systemd/system/*.wants/blkin-* 2>/dev/null'
check "the daemons are installed again" dpkg -i ./blkin_*.deb
check "a unit file is deleted" rm /usr/lib/systemd/system/blkin-relay.service
check "the daemons are removed without that unit file" dpkg -r blkin
check "no daemon runs after removal" nothing_runs
check "removal keeps configuration and spans" test -e /etc/blkin/collector.toml -a -d /var/lib/blkin
check "a traced program runs without the daemons" ./quickstart
# As on a machine whose administrator moved the spans to a larger disk.
purge_says_what_it_keeps() {
    mv /var/lib/blkin spans && ln -s "$PWD/spans" /var/lib/blkin &&
        /var/lib/dpkg/info/blkin.postrm purge 2>&1 | grep "in $PWD/spans," && [ ! -L /var/lib/blkin ] && mv spans /var/lib/blkin
}
check "a purge says that it keeps spans behind a symbolic link" purge_says_what_it_keeps
check "everything is purged" dpkg -P blkin libblkin-dev libblkin0
check "the purge deletes the spans and the socket's folder" test ! -e /var/lib/blkin -a ! -e /run/blkin
none_left() {
    local path status=0
    while read -r path; do
        [ ! -e "$path" ] && [ ! -L "$path" ] || { echo "$path"; status=1; }
    done <installed
    return $status
}
check "the purge deletes every file of the packages" none_left

finish
