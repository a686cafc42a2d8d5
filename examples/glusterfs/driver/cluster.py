"""GlusterFS' side: two stock bricks, a volfile server, and stock fio as their client."""

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
    """A loopback address that no other cluster has: GlusterFS' ports are fixed."""
    pid = os.getpid()
    return f"127.{1 + pid // 250 % 250}.{1 + pid % 250}.{next(_numbers)}"


class Cluster:
    """Two bricks below a folder. `tracer` is the translator's type, None: none is in the graphs; of each brick its delay of
    writes, and the layers that trace there."""

    def __init__(self, folder, tracer, environment, delays_us=(0, 0), layers=(ALL_LAYERS, ALL_LAYERS)):
        self.folder, self.environment = folder, environment
        self.address = own_address()
        self.ports = [PORT + number for number in range(volfiles.BRICKS)]
        self.bricks, self.loads = [], []
        self.volfile_server = VolfileServer(self.address, volfiles.client(tracer, self.address, self.ports))
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
        # It listens before it knows whether its graph is good; that it logs.
        self.bricks.append(Daemon(name, command, log, lambda: "Final graph:" in log.read_text(), self.environment))

    def fio_command(self, *options):
        return ["fio", "--name=load", "--ioengine=gfapi", "--volume=traced", f"--brick={self.address}",
                "--filename=data", "--output-format=json", *options]

    def start_fio(self, *options, environment=()):
        """Starts fio, in the cluster's environment and `environment`."""
        load = subprocess.Popen([*ENDS_WITH_US, *self.fio_command(*options)], stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=self.folder,
                                env={**self.environment, **dict(environment)})
        self.loads.append(load)
        return load

    def finish_fio(self, process):
        """Waits for its end and returns what it measured of its one job."""
        out, err = process.communicate(timeout=FIO_LIMIT_S)
        check(process.returncode == 0, f"fio ended with {process.returncode}:\n{err.decode()}{out.decode()[-4000:]}")
        job, = json.loads(out)["jobs"]
        check(job["error"] == 0, f"fio's job had error {job['error']}:\n{err.decode()}")
        return job

    def fio(self, *options, environment=()):
        return self.finish_fio(self.start_fio(*options, environment=environment))

    def stop(self):
        for load in self.loads:
            if load.poll() is None:
                load.terminate()
                load.wait()
        for brick in self.bricks:
            brick.stop()
        self.volfile_server.close()
