#!/usr/bin/env python3
"""Decodes a segment of the relay's spool. Written only from the description in relay/src/spool/layout.rs; does not verify the
checksums.

    decode_spool.py FILE    FILE is hexadecimal; prints JSON
"""
import json
import struct
import sys


def text(data):
    return data.decode("utf-8")


def entries(payload):
    at, found = 0, []
    while at < len(payload):
        fields = {}
        while payload[at]:
            kind, number, length = struct.unpack_from(">bhi", payload, at)
            assert kind == 11, kind
            fields[number] = text(payload[at + 7:at + 7 + length])
            at += 7 + length
        at += 1
        found.append({"category": fields[1], "message": fields[2]})
    return found


def main():
    data = bytes.fromhex(open(sys.argv[1], encoding="ascii").read())
    magic, version, zero, number, before, annotations = struct.unpack_from("<8sIIQQQ", data)
    assert (magic, version, zero) == (b"BLKSPOOL", 1, 0)
    segment = {"segment": number, "entries_before": before, "annotations_before": annotations, "records": []}
    at = 64
    while at < len(data):
        magic, length, count, held, before, annotations = struct.unpack_from("<4sIIIQQ", data, at)
        assert magic == b"REC1", magic
        payload = data[at + 48:at + 48 + length]
        segment["records"].append({"count": count, "annotations": held, "entries_before": before,
                                   "annotations_before": annotations, "entries": entries(payload)})
        at += (48 + length + 7) // 8 * 8
    print(json.dumps(segment, indent=1))


main()
