"""The targets, and whether this run meets them. A missed target is reported; nothing fails."""
from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    what: str
    figure: float | None
    bound: float
    unit: str
    at_least: bool = False

    def verdict(self):
        if self.figure is None:
            return "not measured"
        met = self.figure >= self.bound if self.at_least else self.figure <= self.bound
        return "met" if met else "**missed**"

    def shown(self):
        return "–" if self.figure is None else f"{self.figure:.2f}"

    def row(self, own):
        """`own`: the same target for bursts on a core that nobody shared, if there is a figure for that."""
        sign = "≥" if self.at_least else "≤"
        beside = f"{own.shown()} | {own.verdict()}" if own and own.figure is not None else "|"
        return f"| {self.what} | {sign} {self.bound:g} {self.unit} | {self.shown()} | {self.verdict()} | {beside} |"


def ratio(median, over, under):
    one, other = median(over), median(under)
    return one / other if one is not None and other else None


def more_than(median, name, base):
    one, other = median(name), median(base)
    return one - other if one is not None and other is not None else None


def consumer(results, start, *parts, scale=1.0):
    """The first figure of a program of benches/consumer whose name contains all the parts."""
    name = named(results, start, *parts)
    return results.median(name) * scale if name else None


def in_worst_run(results, start, *parts):
    """The largest of the same figures: a promise that nothing is lost holds in every run, or not at all."""
    name = named(results, start, *parts)
    return max(results.values[name]) if name else None


def named(results, start, *parts):
    return next((name for name in results.values if name.startswith(start) and all(part in name for part in parts)), None)


def of_hot_path(median):
    net = more_than(median, "dynamic-event", "dynamic-texts")
    rdtsc = median("rdtsc")
    yield Target("event, C literal ÷ `rdtsc`", ratio(median, "event", "rdtsc"), 1.2, "×")
    yield Target("event, Rust literal ÷ `rdtsc`", ratio(median, "rust-event", "rdtsc"), 1.2, "×")
    yield Target("integer, C literal", median("integer"), 8, "ns")
    yield Target("integer, Rust literal", median("rust-integer"), 8, "ns")
    yield Target("legacy event ÷ `rdtsc`", ratio(median, "legacy-event", "rdtsc"), 1.75, "×")
    yield Target("event with every text new, without making the texts, ÷ `rdtsc`",
                 net / rdtsc if net is not None and rdtsc else None, 1.9, "×")
    yield Target("event, portable producer ÷ rseq producer", ratio(median, "event-portable", "event"), 1.2, "×")
    yield Target("legacy event, portable producer ÷ rseq producer",
                 ratio(median, "legacy-event-portable", "legacy-event"), 1.2, "×")
    for name in ("string", "legacy-string", "dynamic-event"):
        title = {"dynamic-event": "event with every text new"}.get(name, name.replace("-", " "))
        yield Target(f"{title}, portable producer ÷ rseq producer", ratio(median, f"{name}-portable", name), 1.2, "×")
    yield Target("event, two producers ÷ one", ratio(median, "event-two", "event"), 1.2, "×")
    yield Target("legacy event, two producers ÷ one", ratio(median, "legacy-event-two", "legacy-event"), 1.2, "×")
    yield Target("LTTng-UST ÷ event", ratio(median, "lttng", "event"), 8, "×", at_least=True)
    yield Target("LTTng-UST ÷ legacy event", ratio(median, "lttng", "legacy-event"), 6, "×", at_least=True)


def of_other_calls(median):
    third = 1 / 3
    for name, title in (("event", "event"), ("legacy", "legacy event")):
        yield Target(f"{title}, cold (4 MiB) ÷ LTTng-UST", ratio(median, f"cold-{name}-4096", "cold-lttng-4096"),
                     round(third, 3), "×")
        yield Target(f"{title}, first lap ÷ LTTng-UST", ratio(median, f"lap-{name}", "lap-lttng"), round(third, 3), "×")
    yield Target("off, inline, minus the bare loop", more_than(median, "off-event", "bare-loop"), 0.5, "ns")
    yield Target("off, through the legacy call, minus the bare loop", more_than(median, "off-record", "bare-loop"), 2, "ns")
    yield Target("root that is not sampled, minus the bare loop", more_than(median, "unsampled-root", "bare-loop"), 3, "ns")
    yield Target("pipe test, literals", median("pipe-new"), 3, "%")
    yield Target("pipe test, legacy calls", median("pipe-legacy"), 3, "%")


def of_the_reader(results):
    yield Target("transport alone, offered 21 M/s: read and valid",
                 consumer(results, "transport", "21 M/s", "read and valid"), 20, "M/s", at_least=True)
    yield Target("… lost, in the worst run", in_worst_run(results, "transport", "21 M/s", "ring full"), 0, "records")
    yield Target("transport alone, offered 52 M/s: attempted",
                 consumer(results, "transport", "52 M/s", "attempted"), 50, "M/s", at_least=True)
    yield Target("drain and validate", consumer(results, "transport", "as many", "drain and validate"), 15, "ns")
    yield Target("encode and ship, per second and core", consumer(results, "ship", "shipped", scale=1e-6), 3, "M/s",
                 at_least=True)
    for name in ("100 programs", "1,000 threads"):
        yield Target(f"a call, {name} ÷ 1", consumer(results, "scale", name, "a call ÷ that of 1 program"), 1.3, "×")
        yield Target(f"an annotation in consumerd, {name} ÷ 1", consumer(results, "scale", name, "in consumerd ÷"), 1.3,
                     "×")
    yield Target("a call, 100 programs ÷ 1 of them alone", consumer(results, "scale", "100 programs", "of them alone"), 1.3,
                 "×")


def of_calls(median):
    return [*of_hot_path(median), *of_other_calls(median)]


def rows(results):
    own = of_calls(results.own_median)
    yield from (target.row(beside) for target, beside in zip(of_calls(results.median), own))
    yield from (target.row(None) for target in of_the_reader(results))
