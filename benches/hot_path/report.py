#!/usr/bin/env python3
"""Turns lines of "case nanoseconds" into docs/benchmarks.md: median of run medians, spread, ratios in the same run."""
import platform
import statistics
import sys

TITLES = {
    "rdtsc": "`rdtsc`, the floor of anything that knows the time",
    "clock_gettime": "`clock_gettime(CLOCK_MONOTONIC)`",
    "blkin-event": "BlkKin: event, C macro, shared library",
    "blkin-integer": "BlkKin: key and integer",
    "blkin-string": "BlkKin: key and string",
    "blkin-unsampled": "BlkKin: request not sampled",
    "lttng": "LTTng-UST tracepoint, 3 integers and 2 strings",
}


def cpu():
    with open("/proc/cpuinfo") as info:
        return next(line.split(":", 1)[1].strip() for line in info if line.startswith("model name"))


def main():
    figures = {}
    with open(sys.argv[1]) as results:
        for line in results:
            case, value = line.split()
            figures.setdefault(case, []).append(float(value))
    median = {case: statistics.median(values) for case, values in figures.items()}
    print("# What an annotation costs\n")
    print(f"Written by `./scripts/bench --runs {sys.argv[2]}`; compare figures of one run only.\n")
    print(f"Machine: {cpu()}, Linux {platform.release()}. The program is pinned to CPU 1, consumerd and LTTng's daemons")
    print(f"to CPU 0. Bursts of 5,000 hot calls with pauses; median of {sys.argv[2]} runs' medians.\n")
    print("| one call | ns | lowest – highest run | × rdtsc | LTTng ÷ it |")
    print("|---|---|---|---|---|")
    for case, title in TITLES.items():
        values, own = figures[case], median[case]
        print(f"| {title} | {own:.1f} | {min(values):.1f} – {max(values):.1f} | {own / median['rdtsc']:.1f} "
              f"| {median['lttng'] / own:.1f} |")


main()
