"""Writes benchmarks.md and its charts."""
import os
import re
from pathlib import Path

import machine
import plan
import svg
import targets

INTRO = """# What tracing costs

Written by `./scripts/bench{options}`. Absolute figures move from machine to machine: compare within one run only.

What is measured runs on CPU 1; consumerd, LTTng's daemons, the syslog daemon and the peers' own threads on CPU 0.
Hot calls come in bursts of 5,000 with pauses of 4 ms in which the readers catch up; the time stamp counter, fenced, is
read around each burst; a run's figure is its median burst, and the figure here the median of {runs} runs. All cases
take turns within each run, so that drift hits all alike. The loop around the call (case `bare-loop`) is in every
figure.

In a virtual machine somebody else may use the other thread of the core that is measured on, which takes up to half of its
speed, for milliseconds or for minutes. So a fixed piece of work is timed beside each burst of a C program: *own core* are the
medians of those bursts beside which it ran at full speed. A program that shares its cores pays what the plain medians say.
"""

HOW = """## How each figure is taken

- **Cold**: single calls, each after so much other memory was written, a cache line at a time. What two fenced readings
  of the counter cost is taken off. **First lap**: the first 8,000 calls of a new process after one.
- **Every text new**: names of span, endpoint and event differ in each call from all before, in buffers used again and
  again. Making the texts is measured by itself.
- **Two producers**: two threads, one on each CPU, in the same bursts; consumerd has to share CPU 0 with one.
- **Pipe test**: 10,000 round trips over two pipes, client and server on one CPU, a new trace and a child for each, two
  events on either side. Blocks with and without tracing take turns within a pair of processes.
- **LTTng-UST** writes its trace to disk; `lttng` carries three integers and two strings, as an annotation of BlkKin
  does, `lttng-event` the integers only. It discarded {discarded} events in all of this.
- **fastrace** and **opentelemetry_sdk** hand over to exporters that throw everything away; spans begin and end outside
  the time taken where only events are measured, and bursts are as long as their queues take without dropping.
- **syslog()** to BusyBox's daemon, which appends to a file; bursts of 100.
- **quill** is not here: none of the registries that scripts/bench may install from (Debian, crates.io, PyPI) has it.
- **Lost** are annotations that found no room or were not read, in all runs of the case together: a dropped record has
  another price than a written one.
- **Growth** (`scale`): a million annotations a second, of all programs or threads together, in bursts of 320 that come
  at different moments; CPU time of the threads that record, for each call, and of consumerd's, for each annotation.
  Each program has made 320 annotations before, so that what its first record costs (`first-start`) is not spread over its
  calls: of 100 programs each makes a hundredth of what one alone does, and sleeps 32 ms between two bursts. So they are
  compared with one program that makes all calls, and with one of them alone, which sleeps as long
  ([0013]({adr}/0013-many-programs.md)). The memory of consumerd counts the pages of rings that it shares with programs; how many, is said.
- **A storage node** (`moderate`): five programs that each serve one request after the other, together 10,000, 60,000 and
  200,000 annotations a second for five seconds, nothing bound to a CPU; before that nobody is traced, and then five programs that
  do nothing. Why a single annotation costs more there: [0014]({adr}/0014-looking-seldom.md).
- **Transport** is paced to 21 and 52 million a second, so that a bound of 20 and 50 is not missed by the pacing.
  Its ring of 16 MiB is full 12 ms after the reader's last look at 21 million a second, 5 ms at 52 million: what is lost with
  a *longest time between two looks* above that is what the machine took from the reader. *Median of the drains*: at most
  256 KiB each, apart from such times.
- **Memory** is what /proc/PID/smaps_rollup says, of a C program before tracing (`plain`) and after one record, alone or
  of each of 1,000 threads, and of consumerd's two processes beside it. Its rings are shared: a page counts in both.
- **Instructions** are those of one call under callgrind, which runs the portable producer.
"""

GROUPS = (
    ("hot", "One hot call"),
    ("off", "Off, and not sampled"),
    ("cold", "Cold"),
    ("pipe", "Two processes over a pipe, four annotations a round trip: overhead"),
    ("first", "The first record"),
    ("instructions", "Instructions of a call"),
)
CHARTS = (
    ("hot", "bench-hot.svg", "One hot call", "ns"),
    ("cold", "bench-cold.svg", "A call after other memory was touched", "ns"),
    ("pipe", "bench-pipe.svg", "Pipe test: added time", "%"),
)
# Off the scale of everything else: in the tables only.
TOO_LONG = {"syslog", "pipe-syslog"}


def plain(title):
    return title.replace("`", "")


def spread(values):
    return f"{min(values):.2f} – {max(values):.2f}"


def times(results, numerator, denominator):
    figure = targets.ratio(results.median, numerator, denominator)
    return f"{figure:.2f}" if figure is not None else "–"


def table(group, cases, results):
    """Median, spread and, where they tell something, ratios to the floor and to LTTng."""
    shown = [case for case in cases if case.group == group and results.values.get(case.name)]
    if not shown:
        return
    unit = results.units[shown[0].name]
    ratios = group == "hot"
    owns = group in ("hot", "off")
    yield (f"| case | | {unit} | lowest – highest run |" + (" own core |" if owns else "")
           + (" ÷ rdtsc | LTTng ÷ it | lost |" if ratios else " lost |"))
    yield "|---|---|---|---|" + ("---|" if owns else "") + ("---|---|---|" if ratios else "---|")
    for case in shown:
        values = results.values[case.name]
        lost = str(results.lost[case.name]) if case.name in results.lost else ""
        row = f"| `{case.name}` | {case.title} | {results.median(case.name):.2f} | {spread(values)} |"
        if owns:
            own = results.own_median(case.name)
            row += f" {own:.2f} |" if own is not None else " |"
        if ratios:
            row += f" {times(results, case.name, 'rdtsc')} | {times(results, 'lttng', case.name)} |"
        yield f"{row} {lost} |"
    if group == "pipe":
        yield f"\nOne block of 10,000 round trips without tracing takes {results.median('pipe-base'):.4f} s."


def other_table(results, start):
    """Figures that bring their own names."""
    found = [name for name in results.values if re.match(start, name)]
    if not found:
        return
    yield "| figure | unit | median | lowest – highest run |"
    yield "|---|---|---|---|"
    for name in found:
        yield f"| {name} | {results.units[name]} | {results.median(name):,.2f} | {spread(results.values[name])} |"


def chart_of(group, title, unit, cases, results):
    bars = [(plain(case.title), case.kind, results.median(case.name), min(values), max(values))
            for case in cases
            if case.group == group and case.name not in TOO_LONG and (values := results.values.get(case.name))]
    return svg.chart(title, unit, bars) if bars else None


def commands(cases, results):
    yield "| case | command |"
    yield "|---|---|"
    for case in cases:
        if results.values.get(case.name):
            yield f"| `{case.name}` | `{case.shown('target/bench')}` |"
    for program in plan.CONSUMER_PROGRAMS:
        if any(name.startswith(f"{program}: ") for name in results.values):
            yield f"| {program} | `target/release/{program}` |"
    if "idle-plain-rss" in results.values:
        yield "| memory | `target/bench/idle plain\\|traced\\|threads COUNT`, then /proc/PID/smaps_rollup |"


def sections(cases, results, options, charts, adr):
    shown_options = "" if options.runs == 9 else f" --runs {options.runs}"
    yield INTRO.format(options=shown_options, runs=options.runs)
    yield "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in machine.rows())]) + "\n"
    yield "\n".join(["## What was promised", "", "Ratios are of medians of this run.", "",
                     "| | target | figure | | own core | |", "|---|---|---|---|---|---|", *targets.rows(results)]) + "\n"
    for group, title in GROUPS:
        lines = list(table(group, cases, results))
        if lines:
            picture = f"\n![{title}](images/{charts[group]})\n" if group in charts else ""
            yield "\n".join([f"## {title}", picture, *lines]) + "\n"
    for title, start in (("Transport, consumerd, growth", "(transport|ship|scale): "),
                         ("A storage node", "moderate: "),
                         ("Memory", "(idle|threads|consumerd-beside)-")):
        lines = list(other_table(results, start))
        if lines:
            yield "\n".join([f"## {title}", "", *lines]) + "\n"
    yield HOW.format(discarded=results.lost.get("lttng", "no"), adr=adr)
    yield "\n".join(["## Again, one by one", "",
                     "`./scripts/bench --only CASE` (or a group: hot, off, cold, pipe, first, instructions, memory, consumer)",
                     "builds, starts the daemons and measures just that. What it runs:", "",
                     *commands(cases, results)])


def write(cases, results, options, folder):
    images = Path(folder) / "images"
    images.mkdir(parents=True, exist_ok=True)
    charts = {}
    for group, name, title, unit in CHARTS:
        drawn = chart_of(group, title, unit, cases, results)
        if drawn:
            (images / name).write_text(drawn)
            charts[group] = name
    adr = os.path.relpath("docs/adr", folder)
    text = "\n".join(sections(cases, results, options, charts, adr)) + "\n"
    (Path(folder) / "benchmarks.md").write_text(text)
    print(text)
