"""A node and a cluster in a temporary folder."""

import contextlib
import os
import pathlib
import tempfile

import volfiles
from cluster import Cluster
from node import Node


class Built:
    """What was built: BlkKin's programs and the translator."""

    def __init__(self, programs, translator):
        self.programs = pathlib.Path(programs).resolve()
        self.tracer = volfiles.translator_type(pathlib.Path(translator).resolve())


@contextlib.contextmanager
def world(built, tracer=True, environment=(), **cluster):
    """A running node and cluster, which stop when the block ends. Without `tracer` no graph has the translator."""
    with tempfile.TemporaryDirectory(prefix="blkin-glusterfs-") as folder:
        folder = pathlib.Path(folder)
        with contextlib.ExitStack() as stack:
            node = Node(built.programs, folder)
            stack.callback(node.stop)
            environment = {**os.environ, "BLKIN_SOCKET": str(node.socket), **dict(environment)}
            gluster = Cluster(folder, built.tracer if tracer else None, environment, **cluster)
            stack.callback(gluster.stop)
            yield node, gluster
