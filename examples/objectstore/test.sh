#!/bin/sh
# All tests of the object store that need no BlkKin daemon: units, then whole clusters.
# The programs are in $BUILD (build); `make test` builds them first. Extra arguments select cluster tests by name.
set -eu
cd "$(dirname "$0")"
build=${BUILD:-build}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"$build/test-units" "$scratch" 2>"$scratch/log" || { cat "$scratch/log"; exit 1; }
python3 test/cluster.py --build "$build" "$@"
