"""The daemons that read the annotations meanwhile: consumerd, LTTng's session daemon, a syslog daemon."""
import json
import os
import re
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

from plan import READER_CPU

SESSION = "blkin-bench"


def on_reader_cpu(*command, **more):
    return subprocess.Popen(["taskset", "-c", str(READER_CPU), *map(str, command)], stdin=subprocess.DEVNULL,
                            stdout=more.pop("log", subprocess.DEVNULL), stderr=subprocess.STDOUT, **more)


def wait_until(condition, seconds=10):
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def stop(process):
    if process.poll() is None:
        process.terminate()
        process.wait(timeout=10)


class Consumerd:
    """Joins and encodes everything, for a sink that discards it."""

    def __init__(self, program, folder):
        self.socket, self.control = folder / "consumerd.sock", folder / "control.sock"
        ready = folder / "ready"
        with open(folder / "consumerd.log", "w") as log:
            self.process = on_reader_cpu(program, "--socket", self.socket, "--control-socket",
                                         self.control, "--http-listen", "127.0.0.1:0", "--scan", "false",
                                         "--scribe-upstream", "", "--json-lines", "/dev/null", "--ready-file", ready, log=log)
        if not wait_until(lambda: ready.exists() and ready.stat().st_size > 0):
            raise SystemExit((folder / "consumerd.log").read_text())
        self.address = json.loads(ready.read_text())["http"]
        wait_until(self.is_serving)

    def is_serving(self):
        """Whether its worker has answered for the first time."""
        try:
            return self.metric("blkin_programs") == 0
        except urllib.error.HTTPError:
            return False

    def metric(self, name):
        """The sum of a metric over all its labels."""
        with urllib.request.urlopen(f"http://{self.address}/metrics", timeout=5) as answer:
            text = answer.read().decode()
        return sum(float(value) for value in re.findall(rf"^{name}(?:{{[^}}]*}})? ([0-9.e+]+)$", text, re.M))

    def lost(self):
        """Annotations lost in programs or while draining, once the last program's rings have been read to their end."""
        wait_until(lambda: self.metric("blkin_programs") == 0, 3)
        return int(self.metric("blkin_program_lost_total") + self.metric("blkin_lost_total"))

    def processes(self):
        """Its process ids: the holder and the worker."""
        holder = self.process.pid
        children = Path(f"/proc/{holder}/task/{holder}/children").read_text().split()
        return [holder, *map(int, children)]

    def stop(self):
        stop(self.process)


class Lttng:
    """A session that writes its trace to disk and keeps only the last few files."""

    def __init__(self, folder):
        os.environ["LTTNG_HOME"] = str(folder)
        self.daemon = None
        if subprocess.run(["pgrep", "-x", "lttng-sessiond"], stdout=subprocess.DEVNULL).returncode:
            self.daemon = on_reader_cpu("lttng-sessiond", "--no-kernel")
        wait_until(lambda: self.lttng("list").returncode == 0)
        for command in (["create", SESSION, "--output", str(folder / "lttng")],
                        ["enable-channel", "--userspace", "--session", SESSION, "--tracefile-size", "16M",
                         "--tracefile-count", "2", "bench"],
                        ["enable-event", "--userspace", "--session", SESSION, "--channel", "bench",
                         "blkin_peer:annotation,blkin_peer:enqueued_op"],
                        ["start", SESSION]):
            done = self.lttng(*command)
            if done.returncode:
                raise SystemExit(f"lttng {' '.join(command)} failed:\n{done.stdout}")

    @staticmethod
    def lttng(*words):
        return subprocess.run(["lttng", *words], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def discarded(self):
        found = re.findall(r"Discarded events: (\d+)", self.lttng("list", SESSION).stdout)
        return sum(map(int, found))

    def stop(self):
        self.lttng("destroy", "--no-wait", SESSION)
        if self.daemon:
            stop(self.daemon)


class Syslog:
    """BusyBox's daemon, unless the machine already runs one that the messages would flood."""

    @staticmethod
    def may_run():
        return not os.path.exists("/dev/log")

    def __init__(self, folder):
        self.process = on_reader_cpu("busybox", "syslogd", "-n", "-O", folder / "messages", "-s", "16384", "-b", "1")
        wait_until(lambda: os.path.exists("/dev/log"))

    def stop(self):
        stop(self.process)
        if os.path.exists("/dev/log"):
            os.unlink("/dev/log")
