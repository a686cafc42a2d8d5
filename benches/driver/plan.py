"""All cases, each with the command that measures it."""
import fnmatch
from dataclasses import dataclass, field

# The CPU of the readers and daemons, and the CPU of the measured programs.
READER_CPU, PRODUCER_CPU = 0, 1


@dataclass(frozen=True)
class Case:
    name: str
    title: str
    group: str
    program: str
    arguments: tuple = ()
    environment: dict = field(default_factory=dict)
    kind: str = "floor"  # floor, blkin or peer: sets the colour of its bar
    pinned: bool = True
    needs: str = ""  # the tool it needs, which may be missing: lttng, syslog or valgrind
    rule: tuple = ()  # arguments of `blkin set` that apply while it is measured
    runs: int = 0  # number of runs that include it; 0: all runs

    def command(self):
        """The pinning prefix, the program, and its arguments."""
        pin = ["taskset", "-c", str(PRODUCER_CPU)] if self.pinned else []
        return pin, self.program, [str(argument) for argument in self.arguments]

    def is_read(self):
        """Whether consumerd reads its annotations, and so knows how many are lost."""
        return self.kind == "blkin" and self.group != "instructions" and self.environment != UNREAD

    def shown(self, folder):
        """The command as a user would type it."""
        pin, program, arguments = self.command()
        if self.group == "instructions":
            return " ".join(["valgrind --tool=callgrind", f"{folder}/{program}", *COUNTED, *arguments])
        rule = ["blkin set", *self.rule, "&&"] if self.rule else []
        settings = [f"{name}={value}" for name, value in self.environment.items()]
        return " ".join([*rule, *settings, *pin, f"{folder}/{program}", *arguments])


# How instructions are counted: a burst of so many calls, less one of half as many.
COUNTED = ("-b", "1", "-p", "1", "-n", "2000")

PORTABLE = {"BLKIN_PRODUCER": "portable"}
NO_AREAS = {"GLIBC_TUNABLES": "glibc.pthread.rseq=0"}
OVERWRITE = {"BLKIN_MODE": "overwrite"}
UNREAD = {"BLKIN_SOCKET": "/nonexistent/consumerd.sock"}
OFF = {"BLKIN_OFF": "1"}
RARE = {"BLKIN_RATE": "1000000000"}
SAMPLED = {"BLKIN_RATE": "500"}
SET_OFF = ("--label", "hot", "--off")


def blkin(name, title, call, *options, group="hot", program="hot", **more):
    return Case(name, title, group, program, (*options, call), kind="blkin", **more)


def peer(name, title, program, call, *options, group="hot", **more):
    return Case(name, title, group, program, (*options, call), kind="peer", **more)


CLOCKS = [
    Case("rdtsc", "`rdtsc`: the floor for any timestamp", "hot", "hot", ("rdtsc",)),
    Case("clock_gettime", "`clock_gettime(CLOCK_MONOTONIC)`", "hot", "hot", ("clock_gettime",)),
]

HOT = [
    blkin("event", "C, literal: `BLKIN_EVENT`", "event"),
    blkin("integer", "C, literal: `BLKIN_INTEGER`", "integer"),
    blkin("string", "C, literal: `BLKIN_STRING`", "string"),
    blkin("string-long", "… of 1,000 bytes", "string-long", "-n", 400),
    blkin("rust-event", "Rust, literal: `event!`", "rust-event", program="peers", pinned=False),
    blkin("rust-integer", "Rust, literal: `tag!` with an integer", "rust-integer", program="peers", pinned=False),
    blkin("rust-string", "Rust, literal: `tag!` with a string", "rust-string", program="peers", pinned=False),
    blkin("rust-text", "Rust: event, name recognised by content", "rust-text", program="peers", pinned=False),
    blkin("legacy-event", "C, legacy: event, names recognised by content", "legacy-event"),
    blkin("record", "C, legacy: `blkin_record` alone", "record"),
    blkin("legacy-long", "C, legacy: event, a name of 30 bytes", "legacy-long"),
    blkin("legacy-many", "C, legacy: event, from 200 places in turn", "legacy-many"),
    blkin("legacy-parts", "C, legacy: events of 10 names for each of 100 endpoints", "legacy-parts"),
    blkin("legacy-integer", "C, legacy: integer", "legacy-integer"),
    blkin("legacy-string", "C, legacy: string", "legacy-string"),
    blkin("dynamic-event", "C, legacy: event, every text new in each call", "dynamic-event", "-n", 2000),
    Case("dynamic-texts", "… of which making the texts", "hot", "hot", ("dynamic-texts",)),
    blkin("event-portable", "event, portable producer", "event", environment=PORTABLE),
    blkin("legacy-event-portable", "legacy event, portable producer", "legacy-event", environment=PORTABLE),
    blkin("string-portable", "string, portable producer", "string", environment=PORTABLE),
    blkin("legacy-string-portable", "legacy string, portable producer", "legacy-string", environment=PORTABLE),
    blkin("dynamic-event-portable", "every text new, portable producer", "dynamic-event", "-n", 2000,
          environment=PORTABLE),
    blkin("event-no-areas", "event, C library that registers no rseq area", "event", environment=NO_AREAS),
    blkin("root-no-areas", "… `blkin_init_new_trace`, sampled", "root", environment=NO_AREAS),
    blkin("event-no-areas-two", "… two producers on two CPUs", "event", "-t", "-p", 8000, environment=NO_AREAS, pinned=False),
    blkin("event-overwrite", "event, flight recorder", "event", environment=OVERWRITE),
    blkin("event-unread", "event, no consumerd: each is counted as lost once the ring is full", "event", environment=UNREAD),
    blkin("legacy-event-unread", "legacy event, no consumerd", "legacy-event", environment=UNREAD),
    blkin("dynamic-event-unread", "every text new, no consumerd", "dynamic-event", "-n", 2000, environment=UNREAD),
    blkin("event-two", "event, two producers on two CPUs", "event", "-t", "-p", 8000, pinned=False),
    blkin("legacy-event-two", "legacy event, two producers on two CPUs", "legacy-event", "-t", "-p", 8000, pinned=False),
    blkin("dynamic-event-two", "every text new, two producers on two CPUs", "dynamic-event", "-n", 2000, "-t", "-p", 8000,
          pinned=False),
    blkin("rust-span", "Rust: a child span with two events", "rust-span", program="peers", pinned=False),
    blkin("rust-child", "Rust: a child span by itself", "rust-child", program="peers", pinned=False),
    blkin("rust-root", "Rust: a root, sampled", "rust-root", program="peers", pinned=False),
    blkin("child", "`blkin_init_child`", "child"),
    blkin("root", "`blkin_init_new_trace`, sampled", "root"),
    peer("lttng", "LTTng-UST tracepoint, 3 integers and 2 strings", "hot_lttng", "lttng", needs="lttng"),
    peer("lttng-long", "… the second string of 1,000 bytes", "hot_lttng", "lttng-long", "-n", 400, needs="lttng"),
    peer("lttng-event", "LTTng-UST tracepoint per event name, 3 integers", "hot_lttng", "lttng-event", needs="lttng"),
    peer("lttng-two", "LTTng-UST tracepoint, two producers", "hot_lttng", "lttng", "-t", "-p", 8000, needs="lttng", pinned=False),
    peer("fastrace-event", "fastrace `add_event`", "peers", "fastrace-event", pinned=False),
    peer("fastrace-span", "fastrace child span", "peers", "fastrace-span", pinned=False),
    peer("otel-event", "opentelemetry_sdk `add_event`", "peers", "otel-event", pinned=False),
    peer("otel-span", "opentelemetry_sdk span", "peers", "otel-span", pinned=False),
    peer("syslog", "`syslog()` to a file", "hot_syslog", "syslog", "-n", 100, "-b", 40, needs="syslog", runs=5),
]

OFF_CASES = [
    Case("bare-loop", "the loop alone", "off", "hot", ("bare-loop",)),
    blkin("off-event", "`BLKIN_EVENT`, off", "event", group="off", environment=OFF),
    blkin("off-set-event", "`BLKIN_EVENT`, off by `blkin set`", "event", group="off", rule=SET_OFF),
    blkin("off-set-record", "`blkin_record`, off by `blkin set`", "record", group="off", rule=SET_OFF),
    blkin("off-rust-event", "`event!`, off", "rust-event", program="peers", group="off", environment=OFF, pinned=False),
    blkin("off-record", "`blkin_record`, off", "record", group="off", environment=OFF),
    blkin("off-found", "`blkin_record` through a function pointer, off", "record-found", group="off",
          environment=OFF),
    blkin("off-legacy", "legacy macro, off", "legacy-event", group="off", environment=OFF),
    blkin("unsampled-event", "`BLKIN_EVENT` on a request that is not sampled", "event-unsampled", group="off"),
    blkin("unsampled-legacy", "legacy macro on a request that is not sampled", "legacy-unsampled", group="off"),
    blkin("unsampled-root", "`blkin_init_new_trace` of a request that is not sampled", "root", group="off",
          environment=RARE),
    blkin("unsampled-rust-root", "Rust: a root that is not sampled", "rust-root", group="off", program="peers", pinned=False,
          environment=RARE),
    blkin("unsampled-rust-child", "Rust: a child of such a root", "rust-child", group="off", program="peers", pinned=False,
          environment=RARE),
    peer("lttng-off", "LTTng-UST tracepoint that no session enables", "hot_lttng", "lttng-off", group="off",
         needs="lttng"),
]

COLD = [
    case
    for kib in (0, 512, 4096)
    for case in (
        blkin(f"cold-event-{kib}", f"event after {kib} KiB", "event", "-c", kib, group="cold"),
        blkin(f"cold-legacy-{kib}", f"legacy event after {kib} KiB", "legacy-event", "-c", kib, group="cold"),
        peer(f"cold-lttng-{kib}", f"LTTng-UST tracepoint after {kib} KiB", "hot_lttng", "lttng", "-c", kib,
             group="cold", needs="lttng"),
    )
] + [
    blkin("lap-event", "event, first lap", "event", "-l", "-n", 8000, group="cold"),
    blkin("lap-legacy", "legacy event, first lap", "legacy-event", "-l", "-n", 8000, group="cold"),
    peer("lap-lttng", "LTTng-UST tracepoint, first lap", "hot_lttng", "lttng", "-l", "-n", 8000, group="cold",
         needs="lttng"),
]

FIRST = [
    blkin("first-start", "first request of a program, with one record", "first-request", "-f", group="first"),
    blkin("first-fork", "first record of a forked child", "legacy-event", "-F", group="first"),
]

PIPE = [
    Case("pipe-none", "no tracing against no tracing: noise of the method", "pipe", "pipe", ("none", 40)),
    Case("pipe-off", "off", "pipe", "pipe", ("legacy", 40), OFF, "blkin"),
    Case("pipe-new", "on, literals", "pipe", "pipe", ("new", 40), kind="blkin"),
    Case("pipe-legacy", "on, legacy calls", "pipe", "pipe", ("legacy", 40), kind="blkin"),
    Case("pipe-new-sampled", "one request of 500, literals", "pipe", "pipe", ("new", 40), SAMPLED, "blkin"),
    Case("pipe-legacy-sampled", "one request of 500, legacy calls", "pipe", "pipe", ("legacy", 40), SAMPLED, "blkin"),
    Case("pipe-lttng", "LTTng-UST tracepoints", "pipe", "pipe_lttng", ("lttng", 40), kind="peer", needs="lttng"),
    Case("pipe-syslog", "`syslog()`", "pipe", "pipe", ("syslog", 1), kind="peer", needs="syslog", runs=3),
]

def instructions():
    """Instructions are counted, not timed: one run is enough."""
    return [
        Case(f"instructions-{call}", f"{title}, portable producer", "instructions", "hot", (call,), kind="blkin", needs="valgrind",
             runs=1)
        for call, title in (("event", "`BLKIN_EVENT`"), ("integer", "`BLKIN_INTEGER`"), ("string", "`BLKIN_STRING`"),
                            ("legacy-event", "legacy event"), ("legacy-integer", "legacy integer"),
                            ("legacy-string", "legacy string"), ("event-unsampled", "event, not sampled"))
    ]


CASES = [*CLOCKS, *HOT, *OFF_CASES, *COLD, *FIRST, *PIPE, *instructions()]
# Groups with a measurement of their own instead of cases.
ONCE = ("memory", "consumer")
# The programs that measure the group `consumer`.
CONSUMER_PROGRAMS = ("transport", "ship", "scale", "moderate")


def consumer_runs(runs):
    """How often those programs run if the others run so often: they take several seconds each."""
    return min(runs, 3)


def chosen(patterns):
    """The cases whose name or group matches, and the matching groups of ONCE."""
    if not patterns:
        return CASES, list(ONCE)

    def wanted(*names):
        return any(fnmatch.fnmatch(name, pattern) for name in names for pattern in patterns)

    return [case for case in CASES if wanted(case.name, case.group)], [group for group in ONCE if wanted(group)]
