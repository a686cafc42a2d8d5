"""What was promised, and whether this run keeps it. Nothing fails on it: it is reported."""
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

    def row(self):
        sign = "≥" if self.at_least else "≤"
        figure = "–" if self.figure is None else f"{self.figure:.2f}"
        return f"| {self.what} | {figure} | {sign} {self.bound:g} {self.unit} | {self.verdict()} |"


def ratio(results, over, under):
    one, other = results.median(over), results.median(under)
    return one / other if one is not None and other else None


def more_than(results, name, base):
    one, other = results.median(name), results.median(base)
    return one - other if one is not None and other is not None else None


def consumer(results, start, *parts, scale=1.0):
    """The figure of a program of benches/consumer whose name has all the parts."""
    for name in results.values:
        if name.startswith(start) and all(part in name for part in parts):
            return results.median(name) * scale
    return None


def of_hot_path(results):
    net = more_than(results, "dynamic-event", "dynamic-texts")
    rdtsc = results.median("rdtsc")
    yield Target("event, C literal ÷ `rdtsc`", ratio(results, "event", "rdtsc"), 1.2, "×")
    yield Target("event, Rust literal ÷ `rdtsc`", ratio(results, "rust-event", "rdtsc"), 1.2, "×")
    yield Target("integer, C literal", results.median("integer"), 8, "ns")
    yield Target("integer, Rust literal", results.median("rust-integer"), 8, "ns")
    yield Target("legacy event ÷ `rdtsc`", ratio(results, "legacy-event", "rdtsc"), 1.75, "×")
    yield Target("event with every text new, without making the texts, ÷ `rdtsc`",
                 net / rdtsc if net is not None and rdtsc else None, 1.9, "×")
    yield Target("event, portable producer ÷ the other", ratio(results, "event-portable", "event"), 1.2, "×")
    yield Target("legacy event, portable producer ÷ the other",
                 ratio(results, "legacy-event-portable", "legacy-event"), 1.2, "×")
    yield Target("event, two producers ÷ one", ratio(results, "event-two", "event"), 1.2, "×")
    yield Target("legacy event, two producers ÷ one", ratio(results, "legacy-event-two", "legacy-event"), 1.2, "×")
    yield Target("LTTng-UST ÷ event", ratio(results, "lttng", "event"), 8, "×", at_least=True)
    yield Target("LTTng-UST ÷ legacy event", ratio(results, "lttng", "legacy-event"), 6, "×", at_least=True)


def of_the_rest(results):
    third = 1 / 3
    for name, title in (("event", "event"), ("legacy", "legacy event")):
        yield Target(f"{title}, cold (4 MiB) ÷ LTTng-UST", ratio(results, f"cold-{name}-4096", "cold-lttng-4096"),
                     round(third, 3), "×")
        yield Target(f"{title}, first lap ÷ LTTng-UST", ratio(results, f"lap-{name}", "lap-lttng"), round(third, 3), "×")
    yield Target("off, inline, over the loop", more_than(results, "off-event", "bare-loop"), 0.5, "ns")
    yield Target("off, through the legacy call, over the loop", more_than(results, "off-record", "bare-loop"), 2, "ns")
    yield Target("root that is not sampled, over the loop", more_than(results, "unsampled-root", "bare-loop"), 3, "ns")
    yield Target("pipe test, literals", results.median("pipe-new"), 3, "%")
    yield Target("pipe test, legacy calls", results.median("pipe-legacy"), 3, "%")


def of_the_reader(results):
    yield Target("transport alone, offered 20 M/s: read and valid",
                 consumer(results, "transport", "20 M/s", "read and valid"), 20, "M/s", at_least=True)
    yield Target("… lost", consumer(results, "transport", "20 M/s", "ring full"), 0, "records")
    yield Target("transport alone, offered 50 M/s: attempted",
                 consumer(results, "transport", "50 M/s", "attempted"), 50, "M/s", at_least=True)
    yield Target("drain and validate", consumer(results, "transport", "as many", "drain and validate"), 15, "ns")
    yield Target("encode and ship, a second and core", consumer(results, "ship", "shipped", scale=1e-6), 3, "M/s",
                 at_least=True)
    for name in ("100 programs", "1,000 threads"):
        yield Target(f"a call, {name} ÷ 1", consumer(results, "scale", name, "a call ÷"), 1.3, "×")
        yield Target(f"an annotation of consumerd, {name} ÷ 1", consumer(results, "scale", name, "of consumerd ÷"), 1.3,
                     "×")


def all_of(results):
    return [*of_hot_path(results), *of_the_rest(results), *of_the_reader(results)]
