#!/bin/sh
# Everything that can be shown of the object store without any BlkKin daemon: units, then whole clusters.
# The programs are in $BUILD (build); `make test` builds them first. Extra arguments choose tests by name.
set -eu
cd "$(dirname "$0")"
build=${BUILD:-build}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"$build/test-units" "$scratch" 2>"$scratch/log" || { cat "$scratch/log"; exit 1; }
python3 test/cluster.py --build "$build" "$@"
