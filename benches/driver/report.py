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

The measured program runs on CPU 1. consumerd, LTTng's daemons, the syslog daemon and the peers' own threads run on CPU 0.
In `transport`, `ship` and `scale` the traced programs run on CPU 0 and their reader on CPU 1. Hot calls are made in bursts,
usually of 5,000, with pauses of 4 ms in which the readers catch up. The clock is read before and after each burst: in C the
fenced time stamp counter, in Rust the monotonic clock. The figure of a run is its median burst; the figure here is the
median of {runs} runs, and of {consumer_runs} in `transport`, `ship`, `scale` and `moderate`. The cases take turns within
each run, so drift affects all of them alike. Every hot figure includes the loop around the call (case `bare-loop`).

In a virtual machine, another guest may use the other hardware thread of the measured core. That takes up to half of the
core's speed, for milliseconds or for minutes. A C program therefore times a fixed piece of work before and after each burst.
*Own core* is the median of the bursts beside which that work ran at full speed. A program that shares its cores pays the
plain median.
"""

HOW = """## How each figure is taken

- **Cold**: single calls, each made after the stated amount of other memory was written, one cache line at a time. The
  request of the call was begun before that. The cost of the two fenced clock readings is subtracted. A single call is
  timed no finer than the clock steps, which is about 10 ns on AMD's processors. **First lap**: the first 8,000 calls of a new process after one
  call that sets everything up.
- **Every text new**: in each call the names of span, endpoint and event differ from all earlier ones; their buffers are
  reused. The cost of making the texts is measured separately.
- **Two producers**: two threads, one on each CPU, record at the same time; consumerd shares CPU 0 with one of them.
- **Pipe test**: 10,000 round trips over two pipes, client and server on one CPU. Each round trip has a new trace with one
  child span, and two events on either side. Blocks with and without tracing take turns within one pair of processes.
- **LTTng-UST** writes its trace to disk. `lttng` carries three integers and two strings, as an annotation of BlkKin
  does; `lttng-event` carries only the integers. LTTng discarded {discarded} events in all of these runs.
- **fastrace** and **opentelemetry_sdk** pass their spans to exporters that discard everything. Where only events are
  measured, the time excludes the begin and end of the span. Their bursts are short enough that no queue overflows.
- **syslog()** writes to BusyBox's daemon, which appends to a file; bursts of 100.
- **quill** is not here: none of the registries that scripts/bench may install from (Debian, crates.io, PyPI) has it.
- **Lost** counts the annotations that found no room or were not read, in all runs of the case together. A dropped record
  costs a different amount from a written one.
- **Growth** (`scale`): all programs or threads together record a million annotations a second, in bursts of 320 that come
  at different moments. The figures are the CPU time of the recording threads per call and of consumerd per annotation.
  Each program has made 320 annotations before, so the cost of its first request (`first-start`) is not spread over the
  measured calls. Each of 100 programs makes a hundredth of all calls and sleeps 32 ms between two bursts. The 100 are
  therefore compared with one program that makes all calls, and with one of them alone, which sleeps as long
  ([0013]({adr}/0013-many-programs.md)). The memory of consumerd includes the pages of the
  rings that it shares with programs; the next row says how many.
- **A storage node** (`moderate`): five programs each serve one request after the other and record 10,000, 60,000 and
  200,000 annotations a second together, for five seconds each. Nothing is bound to a CPU. Before that, consumerd is measured
  without a program, and with five programs that do nothing. Why a single annotation costs more at these
  rates: [0014]({adr}/0014-looking-seldom.md).
- **Transport** is paced to 21 and 52 million records a second. A paced program makes slightly fewer calls than asked for,
  and the targets are 20 and 50 million.
  Its ring of 16 MiB fills within 12 ms of the reader's last look at 21 million a second, within 5 ms at 52 million. If the
  *longest time between two looks* exceeds that, records are lost because the machine did not run the reader. The *median of
  the drains* is not affected by such pauses; a drain copies at most 256 KiB.
- **Memory** is what /proc/PID/smaps_rollup reports for a C program before tracing (`plain`) and after one record
  (`traced`), with one thread or with one record in each of 1,000 threads, and for consumerd's two processes beside it. The
  rings are shared memory: `rss` counts their pages in both.
- **Instructions** are those of one call under callgrind. Valgrind does not support rseq, so the portable producer runs there.
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
# Far longer than all other bars: shown in the tables only.
TOO_LONG = {"syslog", "pipe-syslog"}


def plain(title):
    return title.replace("`", "")


def spread(values):
    return f"{min(values):.2f} – {max(values):.2f}"


def times(results, numerator, denominator):
    figure = targets.ratio(results.median, numerator, denominator)
    return f"{figure:.2f}" if figure is not None else "–"


def table(group, cases, results):
    """Median and spread; for hot calls also the ratios to the floor and to LTTng."""
    shown = [case for case in cases if case.group == group and results.values.get(case.name)]
    if not shown:
        return
    unit = results.units[shown[0].name]
    ratios = group == "hot"
    owns = group in ("hot", "off")
    yield (f"| case | | {unit} | lowest – highest run |" + (" own core |" if owns else "")
           + (" ÷ rdtsc | LTTng ÷ case | lost |" if ratios else " lost |"))
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
    """The figures whose names match `start`; these measurements name their own figures."""
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
    yield INTRO.format(options=shown_options, runs=options.runs, consumer_runs=plan.consumer_runs(options.runs))
    yield "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in machine.rows())]) + "\n"
    yield "\n".join(["## What was promised", "", "Ratios compare the medians of this run.", "",
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
    yield "\n".join(["## Repeating one measurement", "",
                     "`./scripts/bench --only CASE` (or a group: hot, off, cold, pipe, first, instructions, memory, consumer)",
                     "builds everything, starts the daemons and measures only that. The commands it runs:", "",
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
