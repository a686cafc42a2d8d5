"""What tracing costs fio. The cases take turns within each round, so that drift hits all alike."""

import os
import statistics

from processes import wait_until
from world import world

SECONDS = 2
#: Case: whether the translator is in the graphs, and what fio is told by its environment.
CASES = {
    "no translator": (False, {}),
    "switched off": (True, {"BLKIN_OFF": "1"}),
    "one of 500": (True, {"BLKIN_RATE": "500"}),
    "every operation": (True, {}),
}
LOAD = ("--rw=randwrite", "--bs=4k", "--size=16m", "--time_based", f"--runtime={SECONDS}", "--randseed=7")


def start(cluster, environment):
    """A load, measured to its end; what gfapi does for ten seconds after that, closing the volume, is nobody's cost."""
    over = cluster.folder / "over"
    over.unlink(missing_ok=True)
    load = cluster.start_fio(*LOAD, f"--exec_postrun=touch {over}", environment=environment)
    wait_until(load, over.exists, lambda: "fio to have measured")
    return load


def figures(job):
    write = job["write"]
    return write["iops"], write["clat_ns"]["mean"] / 1000, write["clat_ns"]["percentile"]["99.000000"] / 1000


def row(case, runs, base):
    """A line of the table: medians, the spread of the first, and what the first is of the first case's."""
    iops, mean, p99 = zip(*runs)
    median = statistics.median(iops)
    change = "" if runs is base else f"{100 * (median / statistics.median(each[0] for each in base) - 1):+.1f} %"
    return (f"| {case} | {median:.0f} | {min(iops):.0f} – {max(iops):.0f} | {change} | {statistics.median(mean):.0f} "
            f"| {statistics.median(p99):.0f} |")


def table(runs):
    """Markdown, a line for each case."""
    print("| | writes a second | lowest – highest | | mean µs | 99 % µs |\n|---|---|---|---|---|---|")
    base = next(iter(runs.values()))
    for case, results in runs.items():
        print(row(case, results, base))


def main(built, rounds):
    with world(built, tracer=False) as (_, plain), world(built) as (node, traced):
        for cluster in plain, traced:
            start(cluster, CASES["switched off"][1])  # lays the file out
        loads = {case: [] for case in CASES}
        for _ in range(rounds):
            for case, (translated, environment) in CASES.items():
                cluster = traced if translated else plain
                loads[case].append((cluster, start(cluster, environment)))
        runs = {case: [figures(cluster.finish_fio(load)) for cluster, load in each] for case, each in loads.items()}
        attempted, lost, stored = node.sums()
    print(f"4 KiB random writes, {rounds} rounds of {SECONDS} s each, {os.cpu_count()} CPUs for fio, both bricks and the daemons")
    print(f"{attempted} annotations attempted, {lost} lost and counted, {stored} stored\n")
    table(runs)
    return 0
