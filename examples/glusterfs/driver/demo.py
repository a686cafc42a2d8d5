"""A load over two bricks, one of which has a slow disk, and where its time went."""

from tests import WRITES
from world import world

DELAY_US = 5_000


def step(text):
    print(f"\n== {text}", flush=True)


def main(built):
    step(f"Two bricks, a collector and this node's consumerd; brick-1's disk takes {DELAY_US / 1000:.0f} ms longer for a write")
    with world(built, delays_us=(0, DELAY_US)) as (node, cluster):
        step("fio writes 4 KiB blocks in random order, and verifies them; every operation is traced")
        job = cluster.fio(*WRITES, "--size=2m")
        print(f"{job['write']['total_ios']} writes, {job['read']['total_ios']} reads, no error")
        step("Where every annotation went (the ledger; 'holds' means that every loss is counted)")
        print(node.settle(), end="")
        step("How long the disks took to write: blkin stats start end --span writev")
        print(node.blkin("stats", "start", "end", "--span", "writev"), end="")
        step("The slowest write: blkin traces --slowest --span writev, blkin trace")
        slowest = node.slowest("writev")
        print(node.blkin("trace", slowest[0]["traceId"]), end="")
    return 0
