#!/usr/bin/env python3
"""Reads raw grains and prints one JSON object for each record.

Written from the layout in src/lib.rs alone, and sharing no code with it: where the two agree, that is the format.
"""
import json
import struct
import sys

KINDS = {1: "event", 2: "integer", 3: "string"}
TAGS = {1: "name", 2: "endpoint", 3: "key", 4: "value"}


def endpoint(raw):
    port, ip_bytes = struct.unpack_from("<HB", raw)
    return {"ip": raw[3:3 + ip_bytes].decode(), "port": port, "name": raw[3 + ip_bytes:].decode()}


def tail_entries(tail):
    while tail:
        tag, zero, length = struct.unpack_from("<BBH", tail)
        assert zero == 0
        yield tag, tail[4:4 + length]
        tail = tail[4 + length:]


def text_in_cells(raw):
    return raw.split(b"\0", 1)[0].decode()


def cells(tail, port):
    name, ip, service = (text_in_cells(tail[at:at + 16]) for at in (0, 16, 32))
    return {"name": name, "key": text_in_cells(tail[56:88]), "endpoint": {"ip": ip, "port": port, "name": service}}


def record(raw):
    words = struct.unpack_from("<8Q", raw)
    stamp = words[0]
    grains = stamp >> 36 & 0x1FF
    assert stamp >> 45 & 1 == 1, "a record starts with a head"
    tail = b""
    for index in range(1, grains):
        (own,) = struct.unpack_from("<Q", raw, index * 64)
        assert own >> 45 & 1 == 0 and own >> 36 & 0x1FF == index
        assert own >> 46 == stamp >> 46
        assert own & (1 << 36) - 1 == (stamp + index) & (1 << 36) - 1
        tail += raw[index * 64 + 8:index * 64 + 64]
    kind = KINDS[words[6] >> 32 & 0xFF]
    out = {
        "position": stamp & (1 << 36) - 1,
        "cookie": stamp >> 46,
        "ordinal": words[7] & (1 << 28) - 1,
        "kind": kind,
        "level": words[6] >> 40 & 0xFF,
        "truncated": words[6] >> 48 == 1,
        "ids": [words[2], words[3], words[4]],
        "scalar": struct.unpack("<q", struct.pack("<Q", words[1]))[0],
    }
    if words[6] >> 48 == 2:
        assert grains == 3 and words[7] >> 32 == len(tail) and kind == "event" and words[5] == 0
        out["texts"] = [0, 0, 0]
        out.update(cells(tail, words[6] & 0xFFFFFFFF))
        return out, raw[grains * 64:]
    out["texts"] = [words[5] & 0xFFFFFFFF, words[5] >> 32, words[6] & 0xFFFFFFFF]
    for tag, content in tail_entries(tail[:words[7] >> 32]):
        out[TAGS[tag]] = endpoint(content) if tag == 2 else content.decode()
    return out, raw[grains * 64:]


def main():
    raw = open(sys.argv[1], "rb").read()
    while raw:
        out, raw = record(raw)
        print(json.dumps(out, sort_keys=True, ensure_ascii=False))


main()
