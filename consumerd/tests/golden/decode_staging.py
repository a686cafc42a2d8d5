"""Decodes a staging memory by the description in staging/layout.rs, without any code of the daemon.

Input: lines of an offset and bytes, in hexadecimal; all other bytes are zero. Output: JSON.
"""
import json
import struct
import sys

HEADER = 4096


def load(path):
    parts = []
    with open(path, encoding="ascii") as lines:
        for line in lines:
            offset, digits = line.split()
            parts.append((int(offset, 16), bytes.fromhex(digits)))
    memory = bytearray(1 << 20)
    for offset, part in parts:
        memory[offset : offset + len(part)] = part
    return bytes(memory)


def checksum(raw):
    result = 0xCBF29CE484222325
    for at in range(0, len(raw), 8):
        word = int.from_bytes(raw[at : at + 8], "little")
        result = (result ^ word) * 0x100000001B3 % 2**64
        result ^= result >> 29
    return result


class Words:
    def __init__(self, raw):
        self.raw, self.at = raw, 0

    def take(self, count=1):
        values = struct.unpack_from(f"<{count}Q", self.raw, self.at)
        self.at += 8 * count
        return list(values)

    def text(self):
        (length,) = self.take()
        self.at += length
        return self.raw[self.at - length : self.at].decode()

    def sink(self):
        names = ["acked", "queue_full", "spool_evicted", "rejected", "no_sink"]
        return dict(zip(names, self.take(5)), name=self.text())

    def program(self):
        names = ["program", "folded", "drained_before", "unsettled", "drained", "valid", "invalid", "torn"]
        values = dict(zip(names, self.take(8)))
        values["slots"] = [self.take(3) for _ in range(self.take()[0])]
        return values


def checkpoint(area):
    sequence, length, tail, stored = struct.unpack_from("<4Q", area)
    if sequence == 0:
        return None
    payload = area[32 : 32 + length]
    assert checksum(area[:24] + payload) == stored
    words = Words(payload)
    names = ["next_frame", "spans_split", "programs_departed", "last_program"]
    result = dict(sequence=sequence, tail=tail, **dict(zip(names, words.take(4))), departed=words.take(17))
    result["sinks"] = [words.sink() for _ in range(words.take()[0])]
    result["programs"] = [words.program() for _ in range(words.take()[0])]
    assert words.at == length
    return result


def twice(memory, at, count):
    copies = [memory[begin : begin + 8 * count + 8] for begin in (at, at + 2048)]
    assert copies[0] == copies[1]
    *words, stored = struct.unpack(f"<{count + 1}Q", copies[0])
    assert checksum(copies[0][:-8]) == stored
    return words


def numbers(table):
    rows = [struct.unpack_from("<4Q", table, at) for at in range(0, len(table), 32)]
    assert all(checksum(struct.pack("<3Q", *row[:3])) == row[3] for row in rows if row[0])
    return [row[:3] for row in rows if row[0]]


def entry(log, at):
    magic, length = struct.unpack_from("<4sI", log, at)
    assert length >= 8 and at + length <= len(log)
    if magic == b"BPAD":
        return {"pad": length}, length
    assert magic == b"BFRM"
    values = struct.unpack_from("<QQIIQQQQQQ", log, at + 8)
    names = ["number", "program", "slot", "records", "from_grain", "from_records", "to_grain", "to_records"]
    frame = dict(zip(names + ["torn", "raw_bytes"], values, strict=True))
    (stored,) = struct.unpack_from("<Q", log, at + 80)
    assert checksum(log[at : at + 80]) == stored
    raw = log[at + 88 : at + 88 + frame["raw_bytes"]]
    assert length == (88 + len(raw) + 7) // 8 * 8
    frame["first_byte_of_grains"] = raw[::64].hex()
    return frame, length


def main():
    memory = load(sys.argv[1])
    magic, version, zero, log_bytes, checkpoint_bytes, numbers_bytes = struct.unpack_from("<8sIIQQQ", memory)
    assert (magic, version, zero) == (b"BLKSTAGE", 10, 0)
    (head,) = struct.unpack_from("<Q", memory, 64)
    checkpoints_at = HEADER + numbers_bytes
    log_at = checkpoints_at + 2 * checkpoint_bytes
    areas = range(checkpoints_at, log_at, checkpoint_bytes)
    copies = [checkpoint(memory[at : at + checkpoint_bytes]) for at in areas]
    log = memory[log_at : log_at + log_bytes]
    position = max((copy["tail"] for copy in copies if copy), default=0)
    sizes = {"log_bytes": log_bytes, "checkpoint_bytes": checkpoint_bytes, "numbers_bytes": numbers_bytes}
    print(json.dumps(dict(sizes, head=head)))
    print(json.dumps({"holder": twice(memory, 192, 11), "shown": twice(memory, 512, 13)}))
    print(json.dumps({"numbers": numbers(memory[HEADER:checkpoints_at])}))
    for name, copy in zip("AB", copies):
        print(json.dumps({"checkpoint": name, "holds": copy}))
    while position < head:
        found, length = entry(log, position % log_bytes)
        print(json.dumps(dict(at=position, **found)))
        position += length
    assert position == head


main()
