"""Tests of tracing with real fio over real GlusterFS.

Each test has a cluster, a node and loopback addresses of its own. The tests run side by side, because gfapi takes ten
seconds to close a volume, in which it only waits for a timer.
"""

import collections
import concurrent.futures
import os
import tempfile
import time
import traceback

from processes import check, wait_until
from volfiles import ALL_LAYERS
from world import world as running

WRITES = ("--rw=randwrite", "--bs=4k", "--verify=crc32c", "--verify_fatal=1")
SIDE_BY_SIDE = 4
SKIPPED = 77  # the exit code that ./scripts/test takes for a skipped test
TESTS = []


def world(built, environment=(), **cluster):
    """A node and a cluster, with rings large enough that nothing is lost while a busy machine delays consumerd."""
    return running(built, environment={"BLKIN_RING_BYTES": "16777216", **dict(environment)}, **cluster)


class Skipped(Exception):
    """This machine lacks something that a test needs."""


def test(function):
    TESTS.append(function)
    return function


def service(span):
    return span["localEndpoint"]["serviceName"]


def root_of(trace):
    root, = [span for span in trace if "parentId" not in span]
    return root


def path_of(trace, span):
    """The services from the root down to a span."""
    by_id = {each["id"]: each for each in trace}
    services = [service(span)]
    while "parentId" in span:
        span = by_id[span["parentId"]]
        services.append(service(span))
    return "/".join(reversed(services))


def paths_of(trace):
    return sorted(path_of(trace, span) for span in trace)


def named(traces, name):
    """The traces whose root span has this name."""
    return [trace for trace in traces if root_of(trace)["name"] == name]


REPLICA = ["client/replica-{0}", "client/replica-{0}/brick-{0}", "client/replica-{0}/brick-{0}/disk-{0}"]


def through(*bricks):
    """The paths of all spans of an operation that goes to these bricks."""
    return ["client"] + [path.format(brick) for brick in bricks for path in REPLICA]


def check_said(trace, *keys):
    """The client and every brick recorded the same details of an operation."""
    wanted = {key: root_of(trace)["tags"][key] for key in keys}
    for span in trace:
        if service(span).startswith("brick"):
            check({key: span["tags"][key] for key in keys} == wanted, f"the brick recorded other details: {trace}")


def check_finished(trace):
    """Every span has begun and ended, within its parent. Clocks of two processes may differ by a microsecond each."""
    by_id = {span["id"]: span for span in trace}
    for span in trace:
        check("timestamp" in span and "duration" in span, f"a span has not ended: {span}")
        parent = by_id.get(span.get("parentId"))
        if parent:
            check(parent["timestamp"] - 2 <= span["timestamp"] and end_of(span) <= end_of(parent) + 3,
                  f"a span lies outside of its parent: {span} {parent}")


def end_of(span):
    return span["timestamp"] + span["duration"]


def check_lossless(node, traces):
    """Nothing was lost, and the traces show every annotation that programs attempted: each span's begin, end and tags."""
    attempted, lost, stored = node.sums()
    shown = sum(2 + len(span.get("tags", {})) for trace in traces for span in trace)
    check(lost == 0 and attempted == stored == shown, f"attempted {attempted}, lost {lost}, stored {stored}, shown {shown}")


def check_not_on_disk(cluster):
    """The ids are not stored with the files."""
    for number in range(len(cluster.bricks)):
        names = os.listxattr(cluster.folder / f"brick-{number}" / "data")
        check(not [name for name in names if "blkin" in name], f"the ids were stored with the file: {names}")


def check_no_complaint(brick):
    """The brick has logged no error."""
    errors = [line for line in brick.log.read_text().splitlines() if "] E [" in line]
    check(not errors, f"{brick.name} logged errors: {errors}")


def check_paths(traces, count, *wanted):
    """There are `count` traces, and the paths of each one's spans are one of the lists in `wanted`."""
    check(len(traces) == count, f"{len(traces)} traces of {count} operations")
    for trace in traces:
        check(paths_of(trace) in wanted, f"wrong path of an operation: {paths_of(trace)}")


@test
def writes_and_reads_are_traced_from_the_client_to_the_disks(built):
    with world(built) as (node, cluster):
        job = cluster.fio(*WRITES, "--size=4m", "--fsync=64")
        check(job["write"]["total_ios"] == job["read"]["total_ios"] == 1024, "not every block was written and verified")
        node.settle()
        traces = node.traces()
        writes, reads = named(traces, "writev"), named(traces, "readv")
        check_paths(writes, 1024, through(0, 1))
        check_paths(reads, 1024, through(0), through(1))
        for trace in writes + reads:
            check_said(trace, "gfid", "offset", "size")
        for operations in writes, reads:
            blocks = sorted((int(tags["offset"]), tags["size"]) for tags in (root_of(trace)["tags"] for trace in operations))
            check(blocks == [(4096 * block, "4096") for block in range(1024)], "not each block has a trace of its own")
        for trace in traces:
            check_finished(trace)
        check_lossless(node, traces)
        check_not_on_disk(cluster)
        for brick in cluster.bricks:
            check_no_complaint(brick)


@test
def other_operations_are_traced_with_their_errors(built):
    with world(built) as (node, cluster):
        cluster.fio(*WRITES, "--size=64k", "--fsync=4", "--unlink=1")
        node.settle()
        traces = node.traces()
        for name in "lookup", "create", "open", "flush", "fsync", "unlink":
            found = named(traces, name)
            check(found, f"no trace of {name}")
            tags = root_of(found[-1])["tags"]
            check(tags.get("path") == "/data" or len(tags.get("gfid", "")) == 36 or tags.get("path") == "/", f"{name}: {tags}")
        check(paths_of(named(traces, "create")[0]) == through(0, 1), "wrong path of a create")
        missing = [root for root in map(root_of, named(traces, "lookup")) if root["tags"].get("error") == "ENOENT"]
        check(missing, "the lookup of a missing file has no error")


@test
def sampled_operations_are_traced_whole_and_others_not_at_all(built):
    rate, writes = 10, 2048
    with world(built) as (node, cluster):
        cluster.fio(*WRITES, f"--size={writes * 4}k", environment={"BLKIN_RATE": str(rate)})
        node.settle()
        traces = node.traces()
        sampled = named(traces, "writev")
        # Each CPU counts operations on its own, from a random phase, and counts reads and others too; hence the tolerance.
        check(abs(len(traces) - 2 * writes / rate) <= os.cpu_count() + 2, f"{len(traces)} of {2 * writes} were sampled")
        check_paths(sampled, len(sampled), through(0, 1))
        check(sampled, "no write was sampled")
        check_lossless(node, traces)


@test
def queries_find_the_slow_brick(built):
    delay_us = 20_000
    with world(built, delays_us=(0, delay_us)) as (node, cluster):
        cluster.fio(*WRITES, "--size=256k")
        node.settle()
        averages = node.averages("start", "end", "writev")
        check(averages["disk-1"] >= delay_us > averages["disk-0"], f"disk times: {averages}")
        calls = node.averages("sr", "ss", "writev")
        check(max(calls, key=calls.get) == "brick-1" and calls["brick-0"] < delay_us, f"brick times: {calls}")
        slowest = node.slowest("writev")
        longest = max((span for span in slowest if service(span).startswith("disk")), key=lambda span: span["duration"])
        check(service(longest) == "disk-1", f"the slowest trace names {service(longest)}")


@test
def a_killed_brick_loses_only_its_open_spans(built):
    with world(built) as (node, cluster):
        load = cluster.start_fio(*WRITES, "--size=24m")
        wait_until(load, lambda: node.metric("blkin_collector_stored_total") > 20_000, lambda: "the load to be traced")
        cluster.bricks[1].kill()
        job = cluster.finish_fio(load)
        attempted, lost, stored = node.sums()
        check(attempted == lost + stored and lost <= 1, f"attempted {attempted}, lost {lost}, stored {stored}")
        writes = named(node.traces(), "writev")
        check(len(writes) == job["write"]["total_ios"] == 6144, f"{len(writes)} traces of {job['write']['total_ios']} writes")
        whole = [trace for trace in writes if paths_of(trace) == through(0, 1)]
        halves = [trace for trace in writes if paths_of(trace) == through(0)]
        check(whole and halves, f"{len(whole)} writes to both bricks, {len(halves)} to one: the brick was not killed in between")
        check(len(writes) - len(whole) - len(halves) <= 1, "more than the write under way is incomplete")
        for trace in writes:
            check_finished([span for span in trace if not service(span).endswith("1")])


@test
def blkin_off_records_nothing(built):
    with world(built) as (node, cluster):
        job = cluster.fio(*WRITES, "--size=256k", environment={"BLKIN_OFF": "1"})
        check(job["write"]["total_ios"] == 64, "not every block was written")
        check(node.sums() == (0, 0, 0), "something was recorded")


@test
def operations_succeed_without_consumerd(built):
    with world(built, environment={"BLKIN_SOCKET": "/nonexistent/consumerd.sock"}) as (node, cluster):
        job = cluster.fio(*WRITES, "--size=4m")
        check(job["write"]["total_ios"] == job["read"]["total_ios"] == 1024, "not every block was written and verified")
        check(node.sums() == (0, 0, 0), "something was recorded")


@test
def a_brick_without_the_translator_serves_traced_requests(built):
    with world(built, layers=(ALL_LAYERS, {})) as (node, cluster):
        cluster.fio(*WRITES, "--size=256k")
        node.settle()
        check_paths(named(node.traces(), "writev"), 64, through(0) + ["client/replica-1"])
        check_not_on_disk(cluster)


@test
def a_brick_without_a_disk_layer_does_not_store_the_ids(built):
    with world(built, layers=[{"server": "server"}] * 2) as (node, cluster):
        cluster.fio(*WRITES, "--size=256k")
        node.settle()
        check_paths(named(node.traces(), "writev"), 64, [path for path in through(0, 1) if "disk" not in path])
        check_not_on_disk(cluster)
        for brick in cluster.bricks:
            check_no_complaint(brick)


@test
def an_unknown_layer_passes_operations_through(built):
    with world(built, layers=(ALL_LAYERS, {**ALL_LAYERS, "server": "nonsense"})) as (node, cluster):
        cluster.fio(*WRITES, "--size=256k")
        node.settle()
        wanted = through(0) + ["client/replica-1", "client/replica-1/disk-1"]
        check_paths(named(node.traces(), "writev"), 64, wanted)
        check("there is no layer nonsense" in cluster.bricks[1].log.read_text(), "the brick did not log the unknown layer")


@test
def a_mount_is_traced_like_any_client(built):
    if not os.path.exists("/dev/fuse"):
        raise Skipped("no /dev/fuse here")
    with world(built) as (node, cluster):
        cluster.mount()
        job = cluster.fio(*WRITES, "--size=1m", "--fsync=64", "--unlink=1")
        check(job["write"]["total_ios"] == 256, "not every block was written")
        cluster.unmount()
        node.settle()
        traces = node.traces()
        check_paths(named(traces, "writev"), 256, through(0, 1))
        for name in "lookup", "create", "flush", "fsync", "unlink":
            check(named(traces, name), f"no trace of {name}")
        check_lossless(node, traces)


def run(function, built):
    """Runs one test; returns the result, the test's name, its duration, and the reason unless it passed."""
    began, ended, said = time.monotonic(), "ok", ""
    try:
        function(built)
    except Skipped as why:
        ended, said = "skipped", str(why)
    except Exception:  # any exception is a failure of this test; the other tests go on
        ended, said = "FAILED", traceback.format_exc(limit=-2)
    return ended, function.__name__.replace("_", " "), time.monotonic() - began, said


def bricks_can_run():
    """Whether a brick can set its extended attributes, which needs CAP_SYS_ADMIN."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            os.setxattr(folder, "trusted.blkin", b"")
        except OSError as error:
            print(f"skipped: a brick needs trusted extended attributes, and here {tempfile.gettempdir()} has none: {error}")
            return False
    return True


def main(built, wanted):
    if not bricks_can_run():
        return SKIPPED
    chosen = [function for function in TESTS if not wanted or function.__name__ in wanted]
    ends = collections.Counter()
    with concurrent.futures.ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        for ended, name, seconds, said in pool.map(lambda function: run(function, built), chosen):
            print(f"{ended:7} {name} ({seconds:.1f} s) {said}", flush=True)
            ends[ended] += 1
    print(f"{ends['ok']} passed, {ends['FAILED']} failed")
    return 1 if ends["FAILED"] else 0
