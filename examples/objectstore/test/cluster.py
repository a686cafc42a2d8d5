#!/usr/bin/env python3
"""Tests of whole clusters: two OSDs, a gateway and clients, each a process of its own.

Every wait is for an event (a ready file, a status that the gateway reports, the end of a process) and has a time limit.
A failed test prints the reason and the logs, and the exit status is 1.
"""

import argparse
import collections
import contextlib
import json
import os
import pathlib
import resource
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

DEADLINE_S = 120
REFERENCE_ANNOTATIONS = 98


class Failure(Exception):
    """An expectation was not met."""


def check(condition, why):
    if not condition:
        raise Failure(why)


class Cluster:
    """Two OSDs and a gateway below one directory."""

    def __init__(self, build, directory, osds=2, recorder=None):
        self.build = pathlib.Path(build).resolve()
        self.directory = pathlib.Path(directory)
        self.osds = osds
        self.processes = {}
        self.environment = dict(os.environ, BLKIN_SOCKET=str(self.directory / "no-consumerd"))
        if recorder:
            # Through a link: to the loader, a blank in LD_PRELOAD ends a path.
            preloaded = self.directory / "recorder.so"
            preloaded.symlink_to(self.build / "recorder.so")
            self.environment["LD_PRELOAD"] = str(preloaded)
            self.environment["BLKIN_RECORDER_FILE"] = str(recorder)
            self.environment["ASAN_OPTIONS"] = "verify_asan_link_order=0"

    def ready_file(self, name):
        return self.directory / f"{name}.ready"

    def osd_directory(self, osd):
        return self.directory / f"osd-{osd}"

    def start(self, name, arguments):
        ready = self.ready_file(name)
        ready.unlink(missing_ok=True)
        log = open(self.directory / f"{name}.log", "ab")
        process = subprocess.Popen([str(a) for a in arguments] + ["--ready-file", str(ready)],
                                   stderr=log, env=self.environment)
        log.close()
        self.processes[name] = process
        end = time.monotonic() + DEADLINE_S
        pidfd = os.pidfd_open(process.pid)
        try:
            while not ready.exists():
                # Waits for the end of the process, so that a failed start is seen at once; the file itself is polled.
                ended = select.select([pidfd], [], [], 0.01)[0]
                check(not ended, f"{name} ended before it was ready")
                check(time.monotonic() < end, f"{name} did not get ready")
        finally:
            os.close(pidfd)

    def start_osd(self, osd, *options):
        self.start(f"osd.{osd}", [self.build / "objstore-osd", "--id", osd, "--dir", self.osd_directory(osd), *options])

    def start_gateway(self, *options):
        osds = [f"--osd={n}=@{self.ready_file(f'osd.{n}')}" for n in range(self.osds)]
        self.start("gateway", [self.build / "objstore-gateway", "--dir", self.directory / "gateway", *osds, *options])

    def start_all(self, osd_options=()):
        for osd in range(self.osds):
            self.start_osd(osd, *osd_options)
        self.start_gateway()
        self.wait("clean")

    def client_command(self, *arguments):
        return [str(self.build / "objstore-client"), "--gateway", f"@{self.ready_file('gateway')}"] + [
            str(a) for a in arguments]

    def client(self, *arguments, data=None, status=0):
        done = subprocess.run(self.client_command(*arguments), input=data, capture_output=True, env=self.environment,
                              timeout=DEADLINE_S)
        check(done.returncode == status,
              f"objstore-client {' '.join(map(str, arguments))}: status {done.returncode}, not {status}: "
              f"{done.stderr!r} {done.stdout[:1000]!r}")
        return done.stdout

    def client_json(self, *arguments):
        return json.loads(self.client("--json", *arguments))

    def start_client(self, *arguments):
        return subprocess.Popen(self.client_command(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                env=self.environment)

    def finish_client(self, process, status=0):
        out, err = process.communicate(timeout=DEADLINE_S)
        check(process.returncode == status, f"a client ended with {process.returncode}: {err.decode()}{out.decode()}")
        return json.loads(out)

    def wait(self, state):
        return self.client_json("status", "--wait", state, "--timeout-ms", DEADLINE_S * 1000 - 5000)

    def kill(self, name):
        process = self.processes.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait(DEADLINE_S)

    def stop(self, name):
        process = self.processes.pop(name)
        process.send_signal(signal.SIGTERM)
        status = process.wait(DEADLINE_S)
        check(status == 0, f"{name} ended with {status} after SIGTERM")

    def stop_all(self):
        for name in sorted(self.processes, key=lambda n: n != "gateway"):
            self.stop(name)

    def abandon(self):
        for name in list(self.processes):
            self.kill(name)

    def logs(self):
        return "".join(f"--- {p.name}\n{p.read_text(errors='replace')[-6000:]}" for p in
                       sorted(self.directory.glob("*.log")))


def objects_on_disk(cluster, osd):
    """The names and bytes of all object files."""
    files = cluster.osd_directory(osd).glob("store/pg-*/o_*")
    return {f"{p.parent.name}/{p.name}": p.read_bytes() for p in files}


def check_replicas_are_equal(cluster):
    """After a clean stop both stores hold the same objects with the same bytes, and at least one."""
    first, second = objects_on_disk(cluster, 0), objects_on_disk(cluster, 1)
    check(first, "osd.0 has no objects")
    check(first.keys() == second.keys(), f"the replicas differ in {sorted(first.keys() ^ second.keys())[:5]}")
    different = [name for name in first if first[name] != second[name]]
    check(not different, f"the replicas differ in the content of {different[:5]}")


def test_put_get_delete(cluster):
    cluster.start_all()
    for data in (b"", b"x", os.urandom(4096), os.urandom(4 << 20)):
        cluster.client("put", "object", data=data)
        check(cluster.client("get", "object") == data, f"{len(data)} bytes did not come back as put")
    cluster.client("delete", "object")
    cluster.client("get", "object", status=1)
    cluster.client("delete", "object", status=1)
    cluster.client("put", "too-large", data=bytes((4 << 20) + 1), status=1)
    cluster.client("put", "a/b", data=b"", status=2)


def test_mixed_load_leaves_equal_replicas(cluster):
    cluster.start_all(["--journal-segment-mib", 8])
    log = cluster.directory / "acked"
    result = cluster.client_json("load", "--threads", 4, "--count", 4000, "--size", 10000, "--objects", 100, "--mix",
                                 "60,30,10", "--acked-log", log)
    check(result["operations"] == 4000 and result["errors"] == 0 and result["wrong"] == 0, f"load: {result}")
    cluster.client("verify", "--acked-log", log)
    cluster.stop_all()
    check_replicas_are_equal(cluster)
    left = list(cluster.osd_directory(0).glob("journal/segment-*"))
    check(len(left) == 1, f"the journal was not trimmed: {left}")


def test_load_with_a_low_rate_ends_in_time(cluster):
    cluster.start_all()
    result = cluster.client_json("load", "--seconds", 0.5, "--rate", 0.001)
    check(result["operations"] == 1 and result["seconds"] < 100, f"load: {result}")


def kill_under_load(cluster, victims):
    """Kills the victims in the middle of a load: no operation may fail, and no acknowledged write may be lost."""
    log = cluster.directory / "acked"
    load = cluster.start_client("--json", "load", "--threads", 4, "--seconds", 600, "--size", 4096, "--objects", 200,
                                "--mix", "70,20,10", "--acked-log", log)
    for victim in victims:
        await_progress(cluster)
        cluster.kill(f"osd.{victim}")
        cluster.wait("degraded")
        await_progress(cluster)
        cluster.start_osd(victim)
        cluster.wait("clean")
    await_progress(cluster)
    load.send_signal(signal.SIGINT)
    result = cluster.finish_client(load)
    check(result["errors"] == 0 and result["wrong"] == 0, f"the load had errors: {result}")
    check(result["put"]["count"] > 0, "the load did nothing")
    cluster.client("verify", "--acked-log", log)
    return log


def await_progress(cluster):
    """Waits until more objects have been written: then the load and the cluster are at work."""
    cluster.client("put", "progress", data=b"x")
    cluster.client("load", "--count", 200, "--prefix", "progress")


def test_kill_9_of_either_osd_loses_nothing(cluster):
    cluster.start_all()
    log = kill_under_load(cluster, [0, 1, 0, 1])
    cluster.stop_all()
    check_replicas_are_equal(cluster)
    for osd in range(2):
        cluster.start_osd(osd)
    cluster.start_gateway()
    cluster.client("verify", "--acked-log", log)


def test_journals_are_replayed_after_kill_9_of_everything(cluster):
    cluster.start_all()
    log = cluster.directory / "acked"
    load = cluster.start_client("--json", "load", "--threads", 4, "--seconds", 600, "--size", 4096, "--objects", 100,
                                "--mix", "80,10,10", "--acked-log", log, "--keep-going")
    await_progress(cluster)
    for name in ("osd.0", "osd.1", "gateway"):
        cluster.kill(name)
    out, _ = load.communicate(timeout=DEADLINE_S)
    check(json.loads(out)["put"]["count"] > 0, "nothing was acknowledged")
    for osd in range(2):
        cluster.start_osd(osd)
    cluster.start_gateway()
    cluster.wait("clean")
    replayed = sum("replayed" in line for line in cluster.logs().splitlines())
    check(replayed == 2, "the journals were not replayed")
    cluster.client("verify", "--acked-log", log)
    cluster.stop_all()
    check_replicas_are_equal(cluster)


def test_lost_directory_is_served_and_refilled(cluster):
    cluster.start_all()
    log = cluster.directory / "acked"
    cluster.client("load", "--threads", 2, "--count", 1000, "--objects", 100, "--mix", "80,10,10", "--acked-log", log)
    cluster.kill("osd.0")
    shutil.rmtree(cluster.osd_directory(0))
    cluster.wait("degraded")
    cluster.client("verify", "--acked-log", log)
    kept = cluster.client_json("load", "--count", 200, "--prefix", "meanwhile")
    check(kept["errors"] == 0, "writes failed with one replica")
    cluster.start_osd(0)
    cluster.wait("clean")
    cluster.kill("osd.1")
    shutil.rmtree(cluster.osd_directory(1))
    cluster.wait("degraded")
    cluster.client("verify", "--acked-log", log)
    cluster.start_osd(1)
    cluster.wait("clean")
    cluster.stop_all()
    check_replicas_are_equal(cluster)


def test_outdated_osd_does_not_serve_alone(cluster):
    cluster.start_all()
    cluster.client("put", "object", data=b"old")
    cluster.kill("osd.0")
    cluster.wait("degraded")
    cluster.client("put", "object", data=b"new")
    cluster.stop("gateway")
    cluster.kill("osd.1")
    cluster.start_osd(0)
    cluster.start_gateway("--op-timeout-ms", 500)
    cluster.client("get", "object", status=1)
    cluster.start_osd(1)
    cluster.wait("clean")
    check(cluster.client("get", "object") == b"new", "an acknowledged write was lost")


def test_damaged_object_is_read_from_the_other_replica(cluster):
    cluster.start_all()
    cluster.client("put", "object", data=b"precious")
    for osd in range(2):
        for damaged in cluster.osd_directory(osd).glob("store/pg-*/o_object"):
            whole = damaged.read_bytes()
            damaged.write_bytes(whole[:-1] + b"?")
            check(cluster.client("get", "object") == b"precious", "the damaged copy was read")
            damaged.write_bytes(whole)


def test_damaged_header_is_not_taken_for_an_absent_object(cluster):
    cluster.start_all()
    cluster.client("put", "object", data=b"precious")
    cluster.stop_all()
    (damaged,) = cluster.osd_directory(0).glob("store/pg-*/o_object")
    damaged.write_bytes(b"?" + damaged.read_bytes()[1:])
    check_does_not_start(cluster, 0, "is damaged, and the journal does not have it")
    shutil.rmtree(cluster.osd_directory(0))
    cluster.start_osd(0)
    cluster.start_gateway()
    cluster.start_osd(1)
    cluster.wait("clean")
    check(cluster.client("get", "object") == b"precious", "an acknowledged object was lost with a damaged copy")


def test_damaged_header_amid_a_refill_is_refilled(cluster):
    cluster.start_all()
    cluster.client("put", "object", data=b"precious")
    cluster.kill("osd.1")
    cluster.wait("degraded")
    cluster.processes["osd.0"].send_signal(signal.SIGSTOP)  # so that the refill of osd.1 cannot proceed
    seen = cluster.osd_directory(1) / "osdmap"
    before = seen.read_bytes()
    cluster.start_osd(1)
    end = time.monotonic() + DEADLINE_S
    while seen.read_bytes() == before:
        check(time.monotonic() < end, "osd.1 was not told of the refill")
        time.sleep(0.01)
    cluster.kill("osd.1")
    (damaged,) = cluster.osd_directory(1).glob("store/pg-*/o_object")
    damaged.write_bytes(b"")
    cluster.processes["osd.0"].send_signal(signal.SIGCONT)
    cluster.start_osd(1)
    cluster.wait("clean")
    check(damaged.read_bytes().endswith(b"precious"), "the damaged copy was not repaired")


def check_does_not_start(cluster, osd, why):
    try:
        cluster.start_osd(osd)
    except Failure:
        pass
    else:
        raise Failure(f"osd.{osd} starts over a damaged object")
    status = cluster.processes.pop(f"osd.{osd}").wait(DEADLINE_S)
    check(status == 1 and why in (cluster.directory / f"osd.{osd}.log").read_text(), f"osd.{osd} does not say why")


def test_stopped_osd_is_declared_down(cluster):
    for osd in range(2):
        cluster.start_osd(osd)
    cluster.start_gateway("--osd-timeout-ms", 1500)
    cluster.wait("clean")
    cluster.client("put", "object", data=b"1")
    cluster.processes["osd.0"].send_signal(signal.SIGSTOP)
    cluster.wait("degraded")
    cluster.client("put", "object", data=b"2")
    cluster.processes["osd.0"].send_signal(signal.SIGCONT)
    cluster.wait("clean")
    check(cluster.client("get", "object") == b"2", "the stopped OSD's copy came back")


def test_garbage_on_the_ports_does_no_harm(cluster):
    cluster.start_all()
    for name in ("osd.0", "gateway"):
        host, port = cluster.ready_file(name).read_text().strip().split(":")
        for garbage in (b"GET / HTTP/1.0\r\n\r\n" * 8, bytes(300), b"\xff" * 300, b"OBJ1" + b"\xff" * 200):
            with socket.create_connection((host, int(port)), timeout=DEADLINE_S) as s:
                s.sendall(garbage)
                try:
                    check(s.recv(1) == b"", f"{name} answered garbage")
                except ConnectionResetError:
                    pass
    cluster.client("put", "object", data=b"x")
    cluster.wait("clean")


def crc32c(data, crc=0):
    crc ^= 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


MSG_HEADER_BYTES = 76
MSG_OSD_OP, MSG_SUB_OP, OP_PUT = 8, 10, 1


def message(kind, op, version=0):
    """A complete message (common/msg.h) with correct checksums, but without name and data."""
    head = struct.pack(">4sHHQIHHQiHHII", b"OBJ1", kind, op, 1, 0, 0, 0, version, 0, 0, 0, 0, 0) + bytes(24)
    return head + struct.pack(">I", crc32c(head))


def test_write_without_a_name_is_refused(cluster):
    cluster.start_all()
    for kind in (MSG_OSD_OP, MSG_SUB_OP):
        for osd in range(2):
            host, port = cluster.ready_file(f"osd.{osd}").read_text().strip().split(":")
            with socket.create_connection((host, int(port)), timeout=DEADLINE_S) as s:
                s.sendall(message(kind, OP_PUT, version=1))
                check(s.recv(1) == b"", f"osd.{osd} took a write without a name")
    cluster.client("put", "object", data=b"x")


def test_gateway_stops_while_an_osd_does_not_answer_its_greeting(cluster):
    cluster.start_osd(1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(DEADLINE_S)
        port = silent.getsockname()[1]
        cluster.start("gateway", [cluster.build / "objstore-gateway", "--dir", cluster.directory / "gateway",
                                  f"--osd=0=127.0.0.1:{port}", f"--osd=1=@{cluster.ready_file('osd.1')}"])
        connection, _ = silent.accept()
        with connection:
            hello = connection.recv(MSG_HEADER_BYTES, socket.MSG_WAITALL)
            check(len(hello) == MSG_HEADER_BYTES, "the gateway sent no greeting")
            cluster.stop("gateway")


def test_daemon_without_a_descriptor_for_a_connection_ends_and_says_so(cluster):
    cluster.start_all()
    check_ends_without_a_descriptor(cluster, "gateway")
    cluster.stop("osd.0")
    cluster.stop("osd.1")
    cluster.start_osd(0)  # alone: a gateway would send it a map, which it could not write either
    check_ends_without_a_descriptor(cluster, "osd.0")


def check_ends_without_a_descriptor(cluster, name):
    process = cluster.processes[name]
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (3, 3))
    host, port = cluster.ready_file(name).read_text().strip().split(":")
    # accept() takes its descriptor before it waits: the call that waits now may still succeed, and the next one fails.
    with contextlib.suppress(ConnectionError):
        socket.create_connection((host, int(port)), timeout=DEADLINE_S).close()
    check(process.wait(DEADLINE_S) == 1, f"{name} ended with {process.returncode}")
    del cluster.processes[name]
    check("failed to accept a connection: Too many open files" in (cluster.directory / f"{name}.log").read_text(),
          f"{name} does not say why it ended")


# ---- traces, with test/recorder.c in place of the library

Span = collections.namedtuple("Span", "id parent name services annotations")

REPLICATION = ("mosdsubop", ["osd.P", "osd.R"], [
    ("OSD Handling op", ["osd.R", "pg"], [
        ("Filestore access", ["filestore.R"], []),
        ("Journal access", ["journal.R"], []),
        ("Main", ["mosdsubopreply"], [("OSD Handling op", ["osd.P", "pg"], [])]),
    ]),
])
REFERENCE = ("bench service", ["bench", "vlmc"], [
    ("vlmc service", ["vlmc"], [
        ("mapper service", ["mapper"], []),
        ("radosd service", ["radosd"], [
            ("librados", ["ioctx", "objecter"], [
                ("mosdop", ["osd.P", "vlmc"], [
                    ("OSD Handling op", ["osd.P", "pg"], [
                        ("Filestore access", ["filestore.P"], []),
                        ("Journal access", ["journal.P"], []),
                        ("Main", ["mosdopreply"], []),
                        ("Main", ["mosdopreply"], []),
                        REPLICATION,
                    ]),
                ]),
            ]),
        ]),
    ]),
])
PRIMARY_EVENTS = [
    "waiting of osdmap", "Handling op", "Enqueuing op", "Enqueued op", "Dequeued op", "Starting request",
    "Handling message", "Do op", "Executing ctx", "Issuing repop", "Issuing replication",
    "Sub op sent waiting for subops from {replica}", "Queueing for filestore", "Queued for filestore", "OP committed",
    "OP applied", "Sub op commit received", "Commit sent", "All done", "Span ended"]


def read_spans(path):
    """The spans of each trace, by trace id."""
    traces = collections.defaultdict(dict)
    for line in path.read_text().splitlines():
        a = json.loads(line)
        span = traces[a["trace"]].setdefault(a["span"], Span(a["span"], a["parent"], a["name"], set(), []))
        check(span.parent == a["parent"] and span.name == a["name"], f"a span with two parents or names: {line}")
        span.services.add(a["service"])
        span.annotations.append(a)
    return {trace: list(spans.values()) for trace, spans in traces.items()}


def shape(cluster, spans, primary, replica, root):
    """The trace as a tree in the form of REFERENCE, with placeholders instead of numbers and paths."""
    def service(name):
        for osd, letter in ((primary, "P"), (replica, "R")):
            directory = cluster.osd_directory(osd)
            known = {f"osd.{osd}": f"osd.{letter}", f"journal ({directory}/journal)": f"journal.{letter}",
                     f"filestore ({directory}/store)": f"filestore.{letter}"}
            if name in known:
                return known[name]
        return "pg" if name.startswith("pg 1.") else name

    children = sorted(shape(cluster, spans, primary, replica, s) for s in spans if s.parent == root.id)
    return root.name, sorted(service(s) for s in root.services), children


def depth(tree):
    return 1 + max([depth(child) for child in tree[2]], default=0)


def closed(span):
    events = [a["value"] for a in span.annotations if a["key"] == ""]
    if "cs" in events or "sr" in events:
        return ("cs" in events) == ("cr" in events) and ("sr" in events) == ("ss" in events)
    return events.count("Span ended") == 1 and (events[-1] == "Span ended")


def check_put_trace(cluster, spans, object_name, annotations):
    check(len(spans) == 17, f"{len(spans)} spans, not 17: {sorted((s.name, sorted(s.services)) for s in spans)}")
    for span in spans:
        span.annotations.sort(key=lambda a: a["ns"])
    root = next(s for s in spans if s.parent == 0)
    handling = [s for s in spans if s.name == "OSD Handling op"]
    main = max(handling, key=lambda s: len(s.annotations))
    primary = int(next(s for s in main.services if s.startswith("osd."))[4:])
    replica = 1 - primary
    tree = shape(cluster, spans, primary, replica, root)
    check(tree == REFERENCE, f"the tree is {json.dumps(tree, indent=1)}")
    check(depth(tree) == 10, f"the depth is {depth(tree)}")
    services = set().union(*(s.services for s in spans))
    check(len(services) == 15, f"{len(services)} services, not 15: {sorted(services)}")
    events = [a["value"].format() for a in main.annotations if a["key"] == "" and not a["value"].startswith("Detail")]
    wanted = [e.format(replica=replica) for e in PRIMARY_EVENTS]
    check(sorted(events) == sorted(wanted), f"the primary's events are {events}")
    check(events[:14] == wanted[:14] and events[-2:] == wanted[-2:], f"their order is {events}")
    for span in spans:
        check(closed(span), f"not closed: {span.name} {[a['value'] for a in span.annotations]}")
    keys = {a["value"] for s in spans for a in s.annotations if a["key"] == "Object"}
    check(keys == {object_name}, f"Object is {keys}")
    total = sum(len(s.annotations) for s in spans)
    check(total == annotations, f"{total} annotations, not {annotations}")


def traced_cluster(cluster):
    recorder = cluster.directory / "annotations.jsonl"
    return Cluster(cluster.build, cluster.directory, recorder=recorder), recorder


def test_trace_of_a_put_is_the_reference_trace(cluster):
    cluster, recorder = traced_cluster(cluster)
    try:
        cluster.start_all()
        cluster.client("put", "marios_0000000000000001", data=bytes(4096))
        cluster.client("load", "--count", 5, "--annotations", 113, "--prefix", "padded")
        for n in range(8):
            cluster.client("put", f"object{n}", data=b"x")
        cluster.client("--no-trace", "put", "untraced", data=b"x")
        cluster.stop_all()
    finally:
        cluster.abandon()
    traces = read_spans(recorder)
    check(len(traces) == 14, f"{len(traces)} traces of 14 operations")
    for spans in traces.values():
        name = next(a["value"] for s in spans for a in s.annotations if a["key"] == "Object")
        check_put_trace(cluster, spans, name, 113 if name.startswith("padded") else REFERENCE_ANNOTATIONS)


def test_trace_of_a_get_reaches_the_disk(cluster):
    cluster, recorder = traced_cluster(cluster)
    try:
        cluster.start_all()
        cluster.client("--no-trace", "put", "object", data=b"x")
        cluster.client("get", "object")
        cluster.stop_all()
    finally:
        cluster.abandon()
    (spans,) = read_spans(recorder).values()
    names = sorted(s.name for s in spans)
    check(names == sorted(["bench service", "vlmc service", "mapper service", "radosd service", "librados", "mosdop",
                           "OSD Handling op", "Filestore access", "Main"]), f"the spans are {names}")
    check(all(closed(s._replace(annotations=sorted(s.annotations, key=lambda a: a["ns"]))) for s in spans),
          "a span is not closed")


def test_degraded_put_is_traced_without_a_replica(cluster):
    cluster, recorder = traced_cluster(cluster)
    try:
        cluster.start_all()
        cluster.stop("osd.1")
        cluster.wait("degraded")
        cluster.client("put", "object", data=b"x")
        cluster.stop_all()
    finally:
        cluster.abandon()
    (spans,) = read_spans(recorder).values()
    names = sorted(s.name for s in spans)
    check(len(spans) == 11 and "mosdsubop" not in names, f"{len(spans)} spans: {names}")


def run(test, build, keep):
    directory = tempfile.mkdtemp(prefix="objstore-")
    cluster = Cluster(build, directory)
    started = time.monotonic()
    try:
        test(cluster)
        cluster.stop_all()
        error = None
    except Exception as e:  # any exception is a failure of this test, and reported with the logs
        error = f"{type(e).__name__}: {e}"
    cluster.abandon()
    print(f"{test.__name__[5:]}: {'ok' if error is None else 'FAILED'} ({time.monotonic() - started:.1f} s)", flush=True)
    if error is not None:
        print(error, cluster.logs(), sep="\n", flush=True)
    if not keep:
        shutil.rmtree(directory, ignore_errors=True)
    return error is None


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", default="build")
    parser.add_argument("--keep", action="store_true", help="keep the directories of the clusters")
    parser.add_argument("names", nargs="*", help="only tests whose name contains one of these")
    options = parser.parse_args()
    tests = [t for n, t in globals().items() if n.startswith("test_")
             and (not options.names or any(name in n for name in options.names))]
    check(tests, "no such test")
    results = [run(test, options.build, options.keep) for test in tests]
    print(f"{results.count(True)} passed, {results.count(False)} failed")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
