#!/usr/bin/env python3
"""Decodes a saved segment by the description in ringbuf/src/saved/mod.rs, and its records by that in record/src/lib.rs.

    decode_saved.py FILE    FILE is hexadecimal; prints JSON
"""
import json
import struct
import sys

POSITIONS = 1 << 36


def fnv1a(data):
    value = 0xcbf29ce484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001b3 % (1 << 64)
    return value


def sections(data):
    at = 0
    while at < len(data):
        magic, kind, length, checksum = struct.unpack_from("<8sIIQ", data, at)
        content = data[at + 24:at + 24 + length]
        assert magic == b"BLKSAVED" and checksum == fnv1a(data[at + 8:at + 16] + content)
        yield kind, content
        at += (24 + length + 7) // 8 * 8


def words(content):
    return list(struct.unpack(f"<{len(content) // 8}Q", content))


def texts(content):
    found, at = [], 0
    while at < len(content):
        length, = struct.unpack_from("<Q", content, at)
        found.append(content[at + 8:at + 8 + length].decode())
        at += 8 + length
    return found


def program(content):
    names = ["version", "record_version", "pid", "uid", "ended", "taken_ns", "since_ns"]
    return {**dict(zip(names, words(content[:56]))), **dict(zip(["label", "host", "boot"], texts(content[56:])))}


def text_of(names, number):
    return struct.pack(f"<{len(names)}Q", *names)[8 * number + 8:][:names[number]].decode()


def tail_entries(tail):
    found, at = {}, 0
    while at < len(tail):
        tag, _, length = struct.unpack_from("<BBH", tail, at)
        found[tag] = tail[at + 4:at + 4 + length]
        at += 4 + length
    return found


def record(grains, names):
    stamp, first, trace, span, parent, ids, traits, last = struct.unpack_from("<8Q", grains)
    assert stamp >> 45 & 1
    tail = b"".join(grains[at + 8:at + 64] for at in range(64, len(grains), 64))[:last >> 32]
    inline = tail_entries(tail)
    name, key, kind = ids & 0xffffffff, traits & 0xffffffff, traits >> 32 & 0xff
    return {"position": stamp % POSITIONS, "ordinal": last & 0xfffffff, "trace_id": trace, "span_id": span,
            "parent_span_id": parent, "word_1": first, "kind": kind, "level": traits >> 40 & 7,
            "name": text_of(names, name) if name else inline[1].decode(),
            "endpoint": inline[2].hex(),
            "key": text_of(names, key) if key else inline[3].decode(),
            "value": inline[4].decode() if 4 in inline else None}


def records(raw, position, cookie, names):
    at = 0
    while at < len(raw):
        stamp, = struct.unpack_from("<Q", raw, at)
        assert stamp % POSITIONS == (position + at // 64) % POSITIONS and stamp >> 46 == cookie
        length = (stamp >> 36 & 0x1ff) * 64
        yield record(raw[at:at + length], names)
        at += length


def main():
    data = bytes.fromhex(open(sys.argv[1], encoding="ascii").read())
    out, number = {}, 0
    for number, (kind, content) in enumerate(sections(data), 1):
        if kind == 1:
            out["program"] = program(content)
        elif kind == 2:
            clock, *anchors = words(content)
            out["clock"] = {"kind": clock, "anchors": list(zip(anchors[::2], anchors[1::2]))}
        elif kind == 3:
            out["header"] = words(content)
        elif kind == 4:
            names = words(content)
        elif kind == 5:
            slot, *rest = words(content)
            out["slot"] = {"number": slot, "header": rest[:32], "from": rest[32], "to": rest[33]}
        elif kind == 6:
            slot, position = words(content[:16])
            out["records"] = list(records(content[16:], position, out["header"][6], names))
        elif kind == 7:
            assert words(content) == [number]
    print(json.dumps(out, indent=1))


main()
