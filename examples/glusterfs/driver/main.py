#!/usr/bin/env python3
"""The program that `run` starts once everything is built."""

import argparse
import signal
import sys

import demo
import measure
import tests
from world import Built


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the processes started here end and folders are removed
    parser = argparse.ArgumentParser()
    parser.add_argument("--programs", required=True, help="folder of BlkKin's programs")
    parser.add_argument("--translator", required=True, help="features/blkin as a shared object")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("try")
    commands.add_parser("measure").add_argument("rounds", nargs="?", type=int, default=3)
    commands.add_parser("test").add_argument("wanted", nargs="*")
    arguments = parser.parse_args()
    built = Built(arguments.programs, arguments.translator)
    if arguments.command == "test":
        return tests.main(built, arguments.wanted)
    return demo.main(built) if arguments.command == "try" else measure.main(built, arguments.rounds)


if __name__ == "__main__":
    sys.exit(main())
