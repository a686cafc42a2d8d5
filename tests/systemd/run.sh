#!/usr/bin/env bash
# Boots systemd in a container over this machine's own files, none of which change, installs BlkKin there and runs the
# checks of inside.sh: what README and docs/deploy.md tell an operator to type, under the units as they are installed.
#   tests/systemd/run.sh
# The last line is "N passed, N failed". Exits with 77 where no container can be started.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
. scripts/lib/packages.sh

need cc=gcc systemd-nspawn=systemd-container || exit 1
work=$(mktemp -d)
trap 'as_root rm -rf "$work"' EXIT
chmod 755 "$work"
log=$work/log

# in_container ARGUMENT...: systemd-nspawn over this machine's files and, above them, those in $work/above; what it writes
# is gone with it. The mounts are in a namespace of their own, and the name is its own: several checkouts may be tested at once.
mkdir "$work/above" "$work/shared"
in_container() {
    as_root timeout 300 unshare --mount --propagation private bash -ec '
        work=$1 unit=$2 name=$3
        shift 3
        mkdir "$work/written" && mount -t tmpfs -o mode=755 tmpfs "$work/written"
        cd "$work/written" && mkdir upper scratch root
        cp -a "$work/above/." upper
        mount -t overlay overlay -o lowerdir=/,upperdir=upper,workdir=scratch root
        status=0
        systemd-nspawn --quiet --register=no --keep-unit --machine "$name" --directory root --private-network \
            --capability=CAP_CHECKPOINT_RESTORE --bind "$work/shared:/srv/blkin-test" \
            --bind-ro "$unit:/etc/systemd/system/blkin-test.service" "$@" || status=$?
        cd / && umount "$work/written/root" && umount "$work/written" && rmdir "$work/written"
        exit $status' _ "$work" "$PWD/tests/systemd/blkin-test.service" "blkin-$$" "$@" </dev/null
}

if ! in_container true >"$log" 2>&1; then
    note "skipped: no container can be started here: $(tail -1 "$log")"
    exit 77
fi

compile() {
    cc "$1" -o "$work/shared/$2" -I"$work/above/usr/include" -I"$work/above/usr/include/blkin" \
        -L"$work/above/usr/lib" -lblkin
}
if ! scripts/install --prefix /usr --destdir "$work/above" || ! compile examples/quickstart/quickstart.c quickstart ||
    ! compile tests/systemd/waits.c waits || ! cp tests/systemd/inside.sh "$work/shared/"; then
    echo "0 passed, 1 failed"
    exit 1
fi

# Units of this machine that would wait for a network are none of the test's.
in_container --boot -- systemd.unit=blkin-test.service systemd.mask=network-online.target >"$work/console" 2>&1
if [ ! -s "$work/shared/result" ]; then
    echo "systemd did not get as far as the end of the tests; its console and what they wrote:"
    tail -40 "$work/console"
    cat "$work/shared/result.part"
    echo "0 passed, 1 failed"
    exit 1
fi
cat "$work/shared/result"
tail -1 "$work/shared/result" | grep -q ', 0 failed$'
