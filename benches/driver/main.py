#!/usr/bin/env python3
"""Measures the cost of an annotation beside its peers in the same run. scripts/bench builds everything and calls this."""
import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import measure
import plan
import report
from daemons import Consumerd, Lttng, Syslog


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--programs", type=Path, required=True)
    parser.add_argument("--release", type=Path, required=True)
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--into", type=Path)
    parser.add_argument("--missing", default="")
    return parser.parse_args()


def say(text):
    print(text, file=sys.stderr, flush=True)


def rotated(cases, run):
    """Each run begins with another case."""
    start = run * 7 % max(len(cases), 1)
    return cases[start:] + cases[:start]


def failed(what, error, results):
    say(f"   {what}: {error}")
    results.failed.append(f"{what}: {error}")


def measure_runs(cases, options, consumerd, results):
    for run in range(options.runs):
        began = time.monotonic()
        for case in rotated([case for case in cases if not case.runs or run < case.runs], run):
            lost_before = results.lost.get("", 0)
            try:
                measure.run_case(case, options, results)
            except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
                failed(case.name, error, results)
            if case.is_read():
                results.lost[""] = consumerd.lost()
                lost = results.lost[""] - lost_before
                results.lost[case.name] = results.lost.get(case.name, 0) + lost
        say(f"   run {run + 1} of {options.runs}: {time.monotonic() - began:.0f} s")


def measure_consumer(options, results):
    for program in plan.CONSUMER_PROGRAMS * plan.consumer_runs(options.runs):
        say(f"   {program}")
        try:
            text = measure.output_of([options.release / program], seconds=300)
        except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
            failed(program, error, results)
            continue
        for name, unit, value in measure.lines_of(text):
            results.add(f"{program}: {name.removeprefix(program + ', ')}", unit, value)


def main():
    options = arguments()
    cases, once = plan.chosen(options.only)
    missing = set(options.missing.split())
    if not Syslog.may_run():
        say("   skipping syslog(): a syslog daemon is already running here, and measuring would flood it")
        missing.add("syslog")
    cases = [case for case in cases if case.needs not in missing]
    if not cases and not once:
        raise SystemExit(f"no case matches; the cases and groups are: {' '.join(case.name for case in plan.CASES)} {' '.join(plan.ONCE)}")
    results, daemons = measure.Results(), []
    with tempfile.TemporaryDirectory(prefix="blkin-bench-") as folder:
        try:
            consumerd = Consumerd(options.release / "blkin-consumerd", Path(folder))
            daemons.append(consumerd)
            os.environ["BLKIN_SOCKET"] = str(consumerd.socket)
            os.environ["BLKIN_CONTROL_SOCKET"] = str(consumerd.control)
            lttng = None
            if any(case.needs == "lttng" for case in cases):
                lttng = Lttng(Path(folder))
                daemons.append(lttng)
            if any(case.needs == "syslog" for case in cases):
                daemons.append(Syslog(Path(folder)))
            if "memory" in once:
                say("   memory")
                measure.measure_memory(options.programs, consumerd, results)
            measure_runs(cases, options, consumerd, results)
            if lttng:
                results.lost["lttng"] = lttng.discarded()
        finally:
            for daemon in reversed(daemons):
                daemon.stop()
    if "consumer" in once:
        measure_consumer(options, results)
    results.save(options.programs / "results.tsv")
    whole = not options.only and not options.quick
    # A report with holes replaces no other.
    kept = options.into or (Path("docs") if whole else None)
    report.write(cases, results, options, options.programs if results.failed or not kept else kept)
    if results.failed:
        raise SystemExit("failed, so the report is only in " + str(options.programs) + ":\n  " + "\n  ".join(results.failed))


main()
