#!/usr/bin/env bash
# The checks that run.sh runs inside its container with the packages that scripts/package made.
. "$(dirname "$0")/checks.sh"

install_packages() { dpkg -i ./*.deb; }

# As when an image is built: a folder without /proc and without a running systemd. It holds this container's files.
image=$PWD/image
in_image() { mount --bind / "$image" && cp ./*.deb /var/tmp/ && chroot "$image" sh -ec 'dpkg -i /var/tmp/*.deb'; }
mkdir image
check "the packages are installed into an image" in_image
check "wholly" bash -c '[ "$(dpkg-query -W -f "\${db:Status-Status}" blkin)" = installed ] && getent passwd blkin'
check "daemons are enabled there" chroot "$image" systemctl enable blkin-collector blkin-consumerd
# Purges the packages while the spans are on a disk of their own.
purge_mounted() {
    mkdir -p "$image/var/lib/blkin" && mount -t tmpfs tmpfs "$image/var/lib/blkin" && touch "$image/var/lib/blkin/spans" &&
        chroot "$image" dpkg -P blkin libblkin-dev libblkin0
}
check "they are purged where spans have a mount point" purge_mounted
check "none of them is left" bash -c '! dpkg-query -W blkin libblkin-dev libblkin0'
check "nor what enabled them" bash -c '! ls -d /etc/systemd/system/*.wants/blkin-* 2>/dev/null'
check "nor any span, and the mount point is" bash -ec '
    mountpoint image/var/lib/blkin && [ -z "$(ls image/var/lib/blkin)" ] && umount image/var/lib/blkin'
umount image && rmdir /var/lib/blkin && userdel blkin

check "the packages are installed" install_packages
check "there is the user, and the folder where programs find consumerd" bash -c '
    [ "$(stat -c %U:%a /run/blkin)" = blkin:755 ]'
nothing_runs() {
    local name
    for name in consumerd relay collector; do state_is blkin-$name inactive || return 1; done
}
check "no daemon runs that nobody asked for" nothing_runs
# systemd applies presets at the first boot of a machine without /etc/machine-id.
preset_enables_none() {
    local name
    systemctl preset blkin-consumerd blkin-relay blkin-collector || return 1
    for name in consumerd relay collector; do [ "$(systemctl is-enabled blkin-$name)" = disabled ] || return 1; done
}
check "nor is one enabled by a first boot" preset_enables_none
check "a program is built" bash -c '
    cc /usr/share/doc/libblkin-dev/examples/quickstart.c $(pkg-config --cflags --libs blkin) -o quickstart'
check "daemons start" systemctl enable --now blkin-collector blkin-consumerd
check "a request is shown" shown

files() { dpkg -L blkin libblkin0 libblkin-dev | sort -u | while read -r path; do [ -d "$path" ] || echo "$path"; done; }
files >installed
check "dpkg knows of daemons, library and headers" bash -c '
    grep -q bin/blkin-relay installed && grep -q libblkin.so.0 installed && grep -q zipkin_c.h installed'

echo "# mine" >>/etc/blkin/collector.toml
collector=$(property blkin-collector MainPID) consumerd=$(property blkin-consumerd MainPID)
# The administrator's policy on which services packages may start and stop (README.policy-rc.d.gz of init-system-helpers).
policy() { printf '#!/bin/sh\nexit %s\n' "$1" >/usr/sbin/policy-rc.d && chmod 0755 /usr/sbin/policy-rc.d; }
runs_on() { state_is "$1" active && [ "$(property "$1" MainPID)" = "$2" ]; }
check "packages may restart nothing" policy 101
check "an upgrade is installed" dpkg -i ./blkin_*.deb
check "the collector runs on" runs_on blkin-collector "$collector"
check "and so does consumerd" runs_on blkin-consumerd "$consumerd"
check "packages may restart what they like" policy 0
check "an upgrade is installed" install_packages
runs_anew() { state_is "$1" active && [ "$(property "$1" MainPID)" != "$2" ]; }
check "the collector that ran runs anew" runs_anew blkin-collector "$collector"
check "consumerd that ran runs anew" runs_anew blkin-consumerd "$consumerd"
check "the relay that did not still does not" state_is blkin-relay inactive
check "the administrator's configuration stays" grep -q '^# mine$' /etc/blkin/collector.toml
check "a request is shown after it" shown
check "the ledger holds" until_true healthy

# As in a folder with /run mounted into it: systemd seems to run, but does not answer.
unanswered() { unshare --mount bash -ec 'mount -t tmpfs tmpfs /run/systemd && mkdir /run/systemd/system && "$@"' _ "$@"; }
check "an upgrade is installed where systemd does not answer" unanswered dpkg -i ./blkin_*.deb
check "the daemons are removed there" unanswered dpkg -r blkin
check "no daemon is enabled any more" bash -c '! ls -d /etc/systemd/system/*.wants/blkin-* 2>/dev/null'
check "the daemons are installed again" dpkg -i ./blkin_*.deb
check "the file of a unit is lost" rm /usr/lib/systemd/system/blkin-relay.service
check "the daemons are removed" dpkg -r blkin
check "none runs any more" nothing_runs
check "configuration and spans stay" test -e /etc/blkin/collector.toml -a -d /var/lib/blkin
check "a program runs without them" ./quickstart
# As on a machine whose administrator moved the spans to a larger disk.
purge_says_what_it_keeps() {
    mv /var/lib/blkin spans && ln -s "$PWD/spans" /var/lib/blkin &&
        /var/lib/dpkg/info/blkin.postrm purge 2>&1 | grep "in $PWD/spans," && [ ! -L /var/lib/blkin ] && mv spans /var/lib/blkin
}
check "a purge says of spans to which a link leads that it keeps them" purge_says_what_it_keeps
check "everything is purged" dpkg -P blkin libblkin-dev libblkin0
check "spans and the folder of the socket are gone" test ! -e /var/lib/blkin -a ! -e /run/blkin
none_left() {
    local path status=0
    while read -r path; do
        [ ! -e "$path" ] && [ ! -L "$path" ] || { echo "$path"; status=1; }
    done <installed
    return $status
}
check "and every file of the packages" none_left

finish
