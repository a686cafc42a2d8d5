"""Runs the cases and collects their figures."""
import os
import re
import statistics
import subprocess
import time
from pathlib import Path

# On a core that nobody shares, a fixed piece of work takes at most this factor of its best time; as in benches/c/hot.c.
SAME_SPEED = 1.12
QUICK = {"hot": ["-b", "40"], "hot_lttng": ["-b", "40"], "peers": ["-b", "40"]}


class Results:
    """The figure of each case in each run, and the annotations lost meanwhile."""

    def __init__(self):
        self.values, self.units, self.lost, self.failed = {}, {}, {}, []

    def add(self, name, unit, value):
        self.values.setdefault(name, []).append(value)
        self.units[name] = unit

    def median(self, name):
        return statistics.median(self.values[name]) if self.values.get(name) else None

    def own_median(self, name):
        """The same for the bursts during which nobody else used the core, over the runs whose core was free at some time."""
        fastest = min((min(values) for case, values in self.values.items() if case.endswith("/core")), default=0)
        runs = zip(self.values.get(f"{name}/own", []), self.values.get(f"{name}/core", []))
        own = [value for value, core in runs if value and core < fastest * SAME_SPEED]
        return statistics.median(own) if own else None

    def save(self, path):
        lines = [f"{name}\t{self.units[name]}\t{value}" for name, values in self.values.items() for value in values]
        Path(path).write_text("".join(f"{line}\n" for line in lines))


def output_of(command, environment=None, seconds=120):
    done = subprocess.run([str(word) for word in command], env={**os.environ, **(environment or {})}, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=seconds)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))} failed: {done.stderr.strip()}")
    return done.stdout


def rule(release, *words):
    """Sets a rule in consumerd by `blkin set`, through the socket named by BLKIN_CONTROL_SOCKET."""
    output_of([release / "blkin", "set", *words])


def lines_of(text):
    """Parses a program's figures: "case<TAB>unit<TAB>value"."""
    for line in text.splitlines():
        name, unit, value = line.split("\t")
        yield name, unit, float(value)


def run_case(case, options, results):
    if case.group == "instructions":
        return count_instructions(case, options.programs, results)
    pin, program, arguments = case.command()
    shorter = QUICK.get(program, []) if options.quick else []
    if case.rule:
        rule(options.release, *case.rule)
    try:
        text = output_of([*pin, options.programs / program, *shorter, *arguments], case.environment)
    finally:
        if case.rule:
            rule(options.release, "--reset")
    if case.group == "pipe":
        return keep_pipe(case, list(lines_of(text)), results)
    for name, unit, value in lines_of(text):
        _, slash, what = name.partition("/")
        results.add(case.name + slash + what, unit, value)


def keep_pipe(case, figures, results):
    """Compares each pair of neighbouring blocks; the median overhead is the figure of the process."""
    seconds = [value for _, _, value in figures]
    base, traced = seconds[0::2], seconds[1::2]
    overheads = [100 * (with_it / without - 1) for without, with_it in zip(base, traced)]
    results.add(case.name, "%", statistics.median(overheads))
    results.add("pipe-base", "s", statistics.median(base))


def count_instructions(case, folder, results):
    """The instructions of one call, as the difference of 1,000 calls under callgrind. Valgrind does not support rseq, so this is the
    portable producer; BLKIN_STRINGS=blocks makes it read strings in blocks, as it does outside valgrind."""
    environment = {**os.environ, "BLKIN_STRINGS": "blocks", "BLKIN_PRODUCER": "portable"}

    def executed(calls):
        command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", folder / "hot", "-b", "1", "-n",
                   calls, "-p", "1", *case.arguments]
        done = subprocess.run([str(word) for word in command], text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, env=environment)
        collected = re.search(r"Collected : (\d+)", done.stderr)
        if done.returncode or not collected:
            raise RuntimeError(f"valgrind failed: {done.stderr.strip()}")
        return int(collected.group(1))

    results.add(case.name, "instructions", (executed(2000) - executed(1000)) / 1000)


def memory_kib(pids):
    """Resident and proportional set size of several processes together."""
    sums = {"Rss": 0, "Pss": 0}
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            key = line.split(":")[0]
            if key in sums:
                sums[key] += int(line.split()[1])
    return sums


def measure_memory(folder, consumerd, results):
    """Measures idle programs, and consumerd beside each."""
    def keep(name, pids):
        for size, kib in memory_kib(pids).items():
            results.add(f"{name}-{size.lower()}", "KiB", kib)

    for name, arguments in (("idle-plain", ["plain"]), ("idle-traced", ["traced"]),
                            ("threads-plain", ["plain", "1000"]), ("threads-traced", ["threads", "1000"])):
        program = subprocess.Popen([folder / "idle", *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        program.stdout.readline()
        time.sleep(0.3)
        keep(name, [program.pid])
        keep(f"consumerd-beside-{name}", consumerd.processes())
        program.stdin.close()
        program.wait()
