"""Measures what tracing costs fio. The cases take turns, and each round begins with another case, so that drift affects all of
them alike. A case begins only when the daemons have finished all work of the case before."""

import os
import statistics

from processes import wait_until
from world import world

SECONDS = 1
#: For each case: whether the translator is in the graphs, and additions to fio's environment.
CASES = {
    "no translator": (False, {}),
    "switched off": (True, {"BLKIN_OFF": "1"}),
    "one of 500": (True, {"BLKIN_RATE": "500"}),
    "every operation": (True, {}),
}
LOAD = ("--rw=randwrite", "--bs=4k", "--size=16m", "--time_based", f"--runtime={SECONDS}", "--randseed=7")


class Load:
    """One run of fio, measured until its job ends. After that gfapi needs ten seconds to close the volume, which do not count."""

    def __init__(self, node, cluster, environment):
        collector, consumerd = node.daemons
        self.measured = cluster.bricks, [consumerd], [collector]
        self.before = [cpu_us_of(daemons) for daemons in self.measured]
        self.cluster, self.over = cluster, cluster.folder / "over"
        self.over.unlink(missing_ok=True)
        self.process = cluster.start_fio(*LOAD, f"--exec_postrun=touch {self.over}", environment=environment)

    def wait(self):
        """Waits until fio's job has ended, and measures the CPU time used."""
        wait_until(self.process, self.over.exists, lambda: "fio to have measured")
        self.cpu_us = [cpu_us_of(daemons) - earlier for daemons, earlier in zip(self.measured, self.before)]
        return self

    def figures(self):
        """Writes a second, mean and 99th percentile latency in µs, and CPU µs per write of bricks, consumerd, collector."""
        write = self.cluster.finish_fio(self.process)["write"]
        latency = write["clat_ns"]
        return (write["iops"], latency["mean"] / 1000, latency["percentile"]["99.000000"] / 1000,
                *(used / write["total_ios"] for used in self.cpu_us))


def cpu_us_of(daemons):
    return sum(daemon.cpu_us() for daemon in daemons)


def turned(cases, by):
    """The cases, rotated by `by` places."""
    by %= len(cases)
    return cases[by:] + cases[:by]


def row(case, runs, base):
    """A line of the table: medians, lowest and highest writes a second, and the difference from the first case."""
    writes, *others = zip(*runs)
    median = statistics.median(writes)
    change = "" if runs is base else f"{100 * (median / statistics.median(each[0] for each in base) - 1):+.1f} %"
    rest = " | ".join(f"{statistics.median(each):.0f}" for each in others)
    return f"| {case} | {median:.0f} | {min(writes):.0f} – {max(writes):.0f} | {change} | {rest} |"


def table(runs):
    """Prints the table in Markdown, a line for each case."""
    print("| | writes a second | lowest – highest | | mean µs | 99 % µs | CPU µs: bricks | consumerd | collector |")
    print("|---|---|---|---|---|---|---|---|---|")
    base = next(iter(runs.values()))
    for case, results in runs.items():
        print(row(case, results, base))


def main(built, rounds):
    with world(built, tracer=False) as plain, world(built) as traced:
        for load in [Load(*each, CASES["switched off"][1]) for each in (plain, traced)]:
            load.wait()  # this first run creates the file
        loads = {case: [] for case in CASES}
        for turn in range(rounds):
            for case in turned(list(CASES), turn):
                translated, environment = CASES[case]
                loads[case].append(Load(*(traced if translated else plain), environment).wait())
                traced[0].settle()
        runs = {case: [load.figures() for load in each] for case, each in loads.items()}
        attempted, lost, stored = traced[0].sums()
    print(f"4 KiB random writes, {rounds} rounds of {SECONDS} s each, {os.cpu_count()} CPUs for fio, both bricks, consumerd and collector")
    print(f"{attempted} annotations attempted, {lost} lost and counted, {stored} stored\n")
    table(runs)
    return 0
