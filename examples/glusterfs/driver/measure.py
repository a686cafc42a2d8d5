"""What tracing costs fio. The cases take turns, each round begins with another, and each begins when the daemons have nothing left
of the one before, so that drift and leftovers hit all alike."""

import os
import statistics

from processes import wait_until
from world import world

SECONDS = 1
#: Case: whether the translator is in the graphs, and what fio is told by its environment.
CASES = {
    "no translator": (False, {}),
    "switched off": (True, {"BLKIN_OFF": "1"}),
    "one of 500": (True, {"BLKIN_RATE": "500"}),
    "every operation": (True, {}),
}
LOAD = ("--rw=randwrite", "--bs=4k", "--size=16m", "--time_based", f"--runtime={SECONDS}", "--randseed=7")


class Load:
    """One run of fio, measured to its end; what gfapi does for ten seconds after that, closing the volume, is nobody's cost."""

    def __init__(self, node, cluster, environment):
        collector, consumerd = node.daemons
        self.measured = cluster.bricks, [consumerd], [collector]
        self.before = [cpu_us_of(daemons) for daemons in self.measured]
        self.cluster, self.over = cluster, cluster.folder / "over"
        self.over.unlink(missing_ok=True)
        self.process = cluster.start_fio(*LOAD, f"--exec_postrun=touch {self.over}", environment=environment)

    def wait(self):
        """Until it is measured."""
        wait_until(self.process, self.over.exists, lambda: "fio to have measured")
        self.cpu_us = [cpu_us_of(daemons) - earlier for daemons, earlier in zip(self.measured, self.before)]
        return self

    def figures(self):
        """Writes a second, mean and 99th percentile of their microseconds, and CPU of a write: bricks, consumerd, collector."""
        write = self.cluster.finish_fio(self.process)["write"]
        latency = write["clat_ns"]
        return (write["iops"], latency["mean"] / 1000, latency["percentile"]["99.000000"] / 1000,
                *(used / write["total_ios"] for used in self.cpu_us))


def cpu_us_of(daemons):
    return sum(daemon.cpu_us() for daemon in daemons)


def turned(cases, by):
    """The cases, beginning with another one."""
    by %= len(cases)
    return cases[by:] + cases[:by]


def row(case, runs, base):
    """A line of the table: medians, the spread of the writes, and what they are of the first case's."""
    writes, *others = zip(*runs)
    median = statistics.median(writes)
    change = "" if runs is base else f"{100 * (median / statistics.median(each[0] for each in base) - 1):+.1f} %"
    rest = " | ".join(f"{statistics.median(each):.0f}" for each in others)
    return f"| {case} | {median:.0f} | {min(writes):.0f} – {max(writes):.0f} | {change} | {rest} |"


def table(runs):
    """Markdown, a line for each case."""
    print("| | writes a second | lowest – highest | | mean µs | 99 % µs | CPU µs: bricks | consumerd | collector |")
    print("|---|---|---|---|---|---|---|---|---|")
    base = next(iter(runs.values()))
    for case, results in runs.items():
        print(row(case, results, base))


def main(built, rounds):
    with world(built, tracer=False) as plain, world(built) as traced:
        for load in [Load(*each, CASES["switched off"][1]) for each in (plain, traced)]:
            load.wait()  # it lays the file out
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
