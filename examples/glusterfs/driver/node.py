"""BlkKin's side: a collector and a consumerd of this tree, and queries through `blkin` and the collector's API."""

import json
import os
import subprocess
import urllib.parse
import urllib.request

from processes import LIMIT_S, Daemon, check


EVERY = 1_000_000
#: Lets the collector return all traces of a test in one answer, which is more than its defaults allow.
SETTINGS = f"query_max_traces = {EVERY}\nquery_max_mib = 2048\n"


class Node:
    """Both daemons below a folder, on free ports."""

    def __init__(self, programs, folder):
        self.programs, self.folder = programs, folder
        self.socket = folder / "consumerd.sock"
        self.daemons = []
        free = "127.0.0.1:0"
        settings = folder / "collector.toml"
        settings.write_text(SETTINGS)
        collector = self.start("collector", "--config", settings, "--scribe-listen", free, "--http-listen", free,
                               "--data-dir", folder / "store")
        consumerd = self.start("consumerd", "--socket", self.socket, "--http-listen", free, "--scan", "false",
                               "--scribe-upstream", collector["scribe"])
        self.collector = f"http://{collector['http']}"
        self.environment = dict(os.environ, BLKIN_COLLECTOR_URL=self.collector,
                                BLKIN_CONSUMERD_URL=f"http://{consumerd['http']}")

    def start(self, name, *flags):
        """Starts a daemon and returns the content of its ready file: its addresses."""
        ready = self.folder / f"{name}.ready"
        command = [self.programs / f"blkin-{name}", *map(str, flags), "--ready-file", ready]
        self.daemons.append(Daemon(name, command, self.folder / f"{name}.log",
                                   lambda: ready.exists() and ready.stat().st_size > 0))
        return json.loads(ready.read_text())

    def blkin(self, *arguments):
        """Runs the command `blkin` and returns what it prints."""
        done = subprocess.run([self.programs / "blkin", *map(str, arguments)], env=self.environment, timeout=LIMIT_S,
                              capture_output=True, text=True)
        check(done.returncode == 0, f"blkin {arguments} failed:\n{done.stdout}{done.stderr}")
        return done.stdout

    def settle(self):
        """Waits until no annotation is on its way any more. Returns the ledger; fails unless all its equations hold."""
        return self.blkin("ledger", "--settle", "30s")

    def sums(self):
        """Waits as settle() does; returns the annotations attempted by all programs, lost for any cause, and stored."""
        self.settle()
        equations = json.loads(self.blkin("ledger", "--json"))["equations"]

        def total(name):
            terms = [term for equation in equations for term in [equation["left"], *equation["right"]]]
            return sum(term["value"] for term in terms if term["name"].startswith(name))

        return total("attempted"), total("lost{"), total("stored")

    def metric(self, name):
        """The current value of one of the collector's counters, summed over its series."""
        with urllib.request.urlopen(f"{self.collector}/metrics", timeout=LIMIT_S) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(name))

    def traces(self, **query):
        """Every stored trace that matches the query, as the API returns it: a list of spans each."""
        query = urllib.parse.urlencode({"limit": EVERY, **query})
        with urllib.request.urlopen(f"{self.collector}/api/v2/traces?{query}", timeout=LIMIT_S) as answer:
            return json.load(answer)

    def averages(self, begin, end, span):
        """The mean microseconds between two annotations by service, from `blkin stats`."""
        stats = json.loads(self.blkin("stats", begin, end, "--span", span, "--json"))
        return {each["service"]: each["average_us"] for each in stats["services"]}

    def slowest(self, span):
        """The spans of the slowest trace that has a span of this name, found with `blkin traces`."""
        found, = json.loads(self.blkin("traces", "--slowest", "--span", span, "--limit", 1, "--json"))
        return json.loads(self.blkin("trace", found["trace_id"], "--json"))

    def stop(self):
        for daemon in reversed(self.daemons):
            daemon.stop()
