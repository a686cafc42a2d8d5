"""Starts processes that end with this one, and waits for events in them."""

import os
import select
import subprocess
import time

LIMIT_S = 60
PERIOD_S = 0.01


class Failure(Exception):
    """An expectation was not met."""


def check(condition, why):
    if not condition:
        raise Failure(why)


#: Prefix of a command: the kernel terminates the command when this process has gone, for whatever reason.
ENDS_WITH_US = ["setpriv", "--pdeathsig", "TERM"]


def wait_until(process, found, what):
    """Waits until `found()` is true. Fails if `process` ends before that, or after a time limit; `what()` names the event."""
    deadline = time.monotonic() + LIMIT_S
    pidfd = os.pidfd_open(process.pid)
    try:
        while not found():
            ended = select.select([pidfd], [], [], PERIOD_S)[0]
            if ended or time.monotonic() > deadline:
                raise Failure(f"waited in vain for {what()}")
    finally:
        os.close(pidfd)


def cpu_us(pid):
    """The CPU time of a process, in microseconds."""
    with open(f"/proc/{pid}/stat") as stat:
        user, system = stat.read().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) * 1_000_000 // os.sysconf("SC_CLK_TCK")


class Daemon:
    """A process, started and waited for until `ready()` is true."""

    def __init__(self, name, command, log, ready, environment=None):
        self.name, self.log = name, log
        with open(log, "ab") as output:
            self.process = subprocess.Popen([*ENDS_WITH_US, *map(str, command)], stdin=subprocess.DEVNULL,
                                            stdout=output, stderr=output, env=environment)
        try:
            wait_until(self.process, ready, lambda: f"{name} to be ready:\n{self.said()}")
        except Failure:
            self.stop()
            raise

    def cpu_us(self):
        """CPU time so far, including its children's."""
        pid = self.process.pid
        with open(f"/proc/{pid}/task/{pid}/children") as children:
            return sum(cpu_us(each) for each in [pid, *map(int, children.read().split())])

    def said(self):
        with open(self.log, errors="replace") as log:
            return log.read()[-4000:]

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
        try:
            self.process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            self.kill()
