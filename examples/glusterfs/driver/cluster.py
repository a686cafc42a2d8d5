"""GlusterFS' side: two unmodified bricks, a volfile server, and unmodified fio as their client."""

import itertools
import json
import os
import subprocess

import volfiles
from volfiles import ALL_LAYERS
from processes import ENDS_WITH_US, Daemon, check
from volfile_server import VolfileServer

PORT = 24100
FIO_LIMIT_S = 300
_numbers = itertools.count(1)


def own_address():
    """A loopback address that no other cluster uses, because GlusterFS' ports are fixed."""
    pid = os.getpid()
    return f"127.{1 + pid // 250 % 250}.{1 + pid % 250}.{next(_numbers)}"


class Cluster:
    """Two bricks below a folder. `tracer` is the translator's type, or None for graphs without the translator; `delays_us` and
    `layers` hold, for each brick, the delay of its writes and the layers at which it is traced."""

    def __init__(self, folder, tracer, environment, delays_us=(0, 0), layers=(ALL_LAYERS, ALL_LAYERS)):
        self.folder, self.environment = folder, environment
        self.address = own_address()
        self.ports = [PORT + number for number in range(volfiles.BRICKS)]
        self.bricks, self.loads = [], []
        self.client_graph = volfiles.client(tracer, self.address, self.ports)
        self.volfile_server = VolfileServer(self.address, self.client_graph)
        self.mountpoint, self.mounted = folder / "mount", None
        for number, port in enumerate(self.ports):
            directory = folder / f"brick-{number}"
            directory.mkdir()
            self.start_brick(number, port, volfiles.brick(
                tracer, number, directory, self.address, port, delays_us[number], layers[number]))

    def start_brick(self, number, port, graph):
        name = f"brick-{number}"
        volfile, log = self.folder / f"{name}.vol", self.folder / f"{name}.log"
        volfile.write_text(graph)
        command = ["glusterfsd", "--no-daemon", "-f", volfile, "-l", log, "-p", self.folder / f"{name}.pid"]
        # The brick listens before it has checked its graph; the log line shows that the graph is good.
        self.bricks.append(Daemon(name, command, log, lambda: "Final graph:" in log.read_text(), self.environment))

    def mount(self):
        """Mounts the volume by FUSE."""
        volfile, log = self.folder / "client.vol", self.folder / "mount.log"
        volfile.write_text(self.client_graph)
        self.mountpoint.mkdir()
        command = ["glusterfs", "--no-daemon", "-f", volfile, "-l", log, self.mountpoint]
        self.mounted = Daemon("mount", command, log, self.mountpoint.is_mount, self.environment)

    def unmount(self):
        """Stops the mount's client, which unmounts before it ends."""
        if self.mounted:
            self.mounted.stop()
            self.mounted = None

    def start_fio(self, *options, environment=()):
        """Starts fio with the cluster's environment and `environment`: on the mount if there is one, else over gfapi."""
        report = self.folder / f"fio-{len(self.loads)}.json"
        gfapi = ["--ioengine=gfapi", "--volume=traced", f"--brick={self.address}", "--filename=data"]
        engine = ["--ioengine=psync", f"--filename={self.mountpoint}/data"] if self.mounted else gfapi
        command = ["fio", "--name=load", *engine, "--output-format=json", f"--output={report}", *options]
        with open(report.with_suffix(".log"), "wb") as log:
            load = subprocess.Popen([*ENDS_WITH_US, *command], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                    cwd=self.folder, env={**self.environment, **dict(environment)})
        load.report = report
        self.loads.append(load)
        return load

    def finish_fio(self, load):
        """Waits for fio to end and returns the figures of its only job."""
        load.wait(FIO_LIMIT_S)
        said = load.report.with_suffix(".log").read_text()
        check(load.returncode == 0, f"fio ended with {load.returncode}:\n{said}")
        job, = json.loads(load.report.read_text())["jobs"]
        check(job["error"] == 0, f"fio's job had error {job['error']}:\n{said}")
        return job

    def fio(self, *options, environment=()):
        return self.finish_fio(self.start_fio(*options, environment=environment))

    def stop(self):
        for load in self.loads:
            if load.poll() is None:
                load.terminate()
                load.wait()
        self.unmount()
        for brick in self.bricks:
            brick.stop()
        self.volfile_server.close()
