"""Volfiles, written by hand: the graph of a brick, and that of a client with two bricks behind replicate."""

import glob
import os

BRICKS = 2
#: For each place in the graphs, the `layer` option of the translator there.
ALL_LAYERS = {layer: layer for layer in ("client", "replica", "server", "disk")}


def translator_type(shared_object):
    """The type that loads a translator from any folder: GlusterFS takes types as paths relative to its own folder."""
    folder, = glob.glob("/usr/lib/*/glusterfs/*/xlator")
    return os.path.relpath(os.path.splitext(shared_object)[0], folder)


class Graph:
    """A volfile: translators from the lowest to the highest, each above ones that were added before."""

    def __init__(self, tracer, layers):
        self.tracer, self.layers = tracer, layers
        self.text = ""

    def add(self, name, kind, below=(), options=()):
        """Adds a translator and returns its name."""
        lines = [f"volume {name}", f"    type {kind}"]
        lines += [f"    option {key} {value}" for key, value in dict(options).items()]
        lines += [f"    subvolumes {' '.join(below)}"] if below else []
        self.text += "\n".join(lines + ["end-volume", "", ""])
        return name

    def trace(self, name, below, layer, service):
        """Adds the tracing translator and returns its name; without one for this layer, returns `below`."""
        if not self.tracer or layer not in self.layers:
            return below
        return self.add(name, self.tracer, [below], {"layer": self.layers[layer], "service": service})


def brick(tracer, number, directory, address, port, delay_us=0, layers=ALL_LAYERS):
    """The graph of brick NUMBER: above its disk the translators that replicate needs. Clients connect to brick-NUMBER-served."""
    graph = Graph(tracer, layers)
    name = f"brick-{number}"
    top = graph.add(f"{name}-posix", "storage/posix", options={"directory": directory})
    if delay_us:
        top = graph.add(f"{name}-slow", "debug/delay-gen", [top], {
            "delay-duration": delay_us, "delay-percentage": 100, "enable": "WRITE"})
    top = graph.trace(f"disk-{number}", top, "disk", f"disk-{number}")
    top = graph.add(f"{name}-locks", "features/locks", [top])
    top = graph.add(f"{name}-threads", "performance/io-threads", [top])
    top = graph.trace(name, top, "server", name)
    top = graph.add(f"{name}-served", "debug/io-stats", [top])
    graph.add(f"{name}-server", "protocol/server", [top], {
        "transport-type": "tcp",
        "transport.socket.bind-address": address,
        "transport.socket.listen-port": port,
        f"auth.addr.{top}.allow": "*",
        "rpc-auth-allow-insecure": "on",
    })
    return graph.text


def client(tracer, address, ports):
    """The graph of a client: replicate over all bricks."""
    graph = Graph(tracer, ALL_LAYERS)
    replicas = []
    for number, port in enumerate(ports):
        top = graph.add(f"remote-{number}", "protocol/client", options={
            "transport-type": "tcp",
            "remote-host": address,
            "remote-port": port,
            "remote-subvolume": f"brick-{number}-served",
        })
        replicas.append(graph.trace(f"replica-{number}", top, "replica", f"replica-{number}"))
    top = graph.add("replicate", "cluster/replicate", replicas)
    graph.trace("client", top, "client", "client")
    return graph.text
