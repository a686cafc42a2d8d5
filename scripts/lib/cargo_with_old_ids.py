#!/usr/bin/env python3
"""Runs cargo for cargo-deny 0.14, whose parser predates today's package ids: `cargo metadata` is
answered with ids of the old form, "name version (source)"; everything else passes through."""

import json
import subprocess
import sys


def old_id(package):
    source = package["source"] or "path+file://" + package["manifest_path"].rsplit("/", 1)[0]
    return f"{package['name']} {package['version']} ({source})"


def renamed(value, ids):
    if isinstance(value, dict):
        return {key: renamed(item, ids) for key, item in value.items()}
    if isinstance(value, list):
        return [renamed(item, ids) for item in value]
    return ids.get(value, value) if isinstance(value, str) else value


def main():
    run = subprocess.run(["cargo", *sys.argv[1:]], stdout=subprocess.PIPE)
    if run.returncode or "metadata" not in sys.argv:
        sys.stdout.buffer.write(run.stdout)
        return run.returncode
    metadata = json.loads(run.stdout)
    ids = {package["id"]: old_id(package) for package in metadata["packages"]}
    json.dump(renamed(metadata, ids), sys.stdout)
    return 0


sys.exit(main())
