#!/usr/bin/env bash
# Boots systemd twice in a container over this machine's own files, which it does not change. First it installs with
# scripts/install and runs installed.sh: the commands that README and docs/deploy.md give to operators, under the installed
# units. Then it runs packages.sh: the packages that scripts/package makes are installed, upgraded and removed.
#   tests/systemd/run.sh
# The last line is "N passed, N failed". Exits with 77 if no container can be started.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
. scripts/lib/packages.sh

need cc=gcc pkg-config dpkg-shlibdeps=dpkg-dev systemd-nspawn=systemd-container || exit 1
work=$(mktemp -d)
trap 'as_root rm -rf "$work"' EXIT
chmod 755 "$work"
log=$work/log

# in_container ARGUMENT...: runs systemd-nspawn over this machine's files and, above them, those in $work/above; what it writes is
# discarded at its end. Its mount namespace and its name are its own, so several checkouts can be tested at once.
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

passed=0 failed=0
# fail MESSAGE
fail() { echo "FAILED  $*"; failed=$((failed + 1)); }

# boot SCRIPT: boots a container that runs it, and counts the results.
boot() {
    local result=$work/shared/result checked
    rm -f "$result" "$result.part"
    cp tests/systemd/checks.sh "$work/shared/" && cp "tests/systemd/$1" "$work/shared/inside.sh"
    # Units of this machine may wait for a network, which the container does not have.
    in_container --boot -- systemd.unit=blkin-test.service systemd.mask=network-online.target >"$work/console" 2>&1
    if [ ! -s "$result" ]; then
        fail "systemd did not get as far as the end of $1; its console and what was written:"
        tail -40 "$work/console"
        cat "$result.part"
        return
    fi
    sed '$d' "$result"
    read -r checked _ < <(tail -1 "$result")
    passed=$((passed + checked))
    failed=$((failed + $(grep -c '^FAILED' "$result")))
}

if scripts/install --prefix /usr --destdir "$work/above" && compile examples/quickstart/quickstart.c quickstart &&
    compile tests/systemd/waits.c waits; then
    # For the removal.
    mkdir -p "$work/shared/scripts/lib" && cp scripts/install "$work/shared/scripts/" && cp scripts/lib/packages.sh "$work/shared/scripts/lib/"
    boot installed.sh
else
    fail "nothing is installed"
fi

rm -r "$work/above" "$work/shared" && mkdir "$work/above" "$work/shared"
if scripts/package --into "$work/shared"; then
    boot packages.sh
else
    fail "there are no packages"
fi

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
