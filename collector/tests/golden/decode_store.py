"""Reads the rows of a store as store/keys.rs writes them down; shares no code with the collector.

Input: a line per row, key and value in hexadecimal, "-" for nothing. Output: JSON.
"""
import json
import struct
import sys


def text(raw):
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "hex " + raw.hex()


class Thrift:
    """TBinary, without knowledge of the fields."""

    def __init__(self, raw):
        self.raw, self.at = raw, 0

    def number(self, form):
        (value,) = struct.unpack_from(">" + form, self.raw, self.at)
        self.at += struct.calcsize(form)
        return value

    def bytes(self):
        length = self.number("i")
        self.at += length
        assert 0 <= length and self.at <= len(self.raw)
        return self.raw[self.at - length : self.at]

    def list(self):
        kind, count = self.number("b"), self.number("i")
        return [self.value(kind) for _ in range(count)]

    def value(self, kind):
        forms = {2: "?", 3: "b", 6: "h", 8: "i", 10: "q"}
        if kind in forms:
            return self.number(forms[kind])
        return {11: lambda: text(self.bytes()), 12: self.struct, 15: self.list}[kind]()

    def struct(self):
        fields = {}
        while (kind := self.number("b")) != 0:
            field = self.number("h")
            fields[field] = self.value(kind)
        return fields


def pieces(row):
    found = []
    while row:
        magic, length, _checksum = struct.unpack_from(">4sIQ", row)
        assert magic == b"\xffBkp" and length <= len(row) - 16
        found.append(piece(row[16 : 16 + length]))
        row = row[16 + length :]
    return found


def piece(value):
    if value[0] == 2:
        return {"v2": json.loads(value[1:])}
    assert value[0] == 1
    thrift = Thrift(value[1:])
    fields = thrift.struct()
    assert thrift.at == len(thrift.raw)
    return {"v1": fields}


def u64s(raw):
    assert len(raw) % 8 == 0
    return list(struct.unpack(f">{len(raw) // 8}Q", raw))


def of_trace(key, value):
    low, high = u64s(key[1:17])
    row = {"trace": f"{high:x}:{low:x}"}
    kind, rest = key[17], key[18:]
    if kind == 0:
        assert rest == b""
        names = ["time_us", "arrival", "bytes", "pieces"]
        row["summary"] = dict(from_root=bool(value[0]), **dict(zip(names, u64s(value[1:33]), strict=True)))
        row["services"] = [f"{service:016x}" for service in u64s(value[33:])]
    elif kind == 1 and rest[0] == 0:
        source, block = u64s(rest[1:])
        offsets = struct.unpack(f">{len(value) // 2}H", value)
        row["seen"] = {"source": source, "positions": [block << 12 | offset for offset in offsets]}
    elif kind == 1:
        assert rest == b"\x01" and len(value) % 16 == 0
        row["whole"] = [value[at : at + 16].hex() for at in range(0, len(value), 16)]
    else:
        assert kind == 3
        (row["number"],) = u64s(rest)
        row["pieces"] = pieces(value)
    return row


def by_time(key, value):
    assert value == b""
    service, inverted, low, high = u64s(key[1:])
    return {"by_time": inverted ^ (2**64 - 1), "service": f"{service:016x}", "trace": f"{high:x}:{low:x}"}


def by_arrival(key, value):
    assert value == b""
    minute, low, high = u64s(key[1:])
    return {"by_arrival": minute, "trace": f"{high:x}:{low:x}"}


def name(key, value):
    kind, length = struct.unpack_from(">BH", key, 1)
    (hour,) = u64s(value)
    return {"name": text(key[4 + length :]), "kind": kind, "of": text(key[4 : 4 + length]), "hour": hour}


def figure(key, value):
    assert len(key) == 2
    annotations, spans = u64s(value)
    return {"figure": key[1], "annotations": annotations, "spans": spans}


def number_called(what):
    def read(key, value):
        assert len(key) == 1
        return {what: int.from_bytes(value, "big")}

    return read


FAMILIES = {
    b"V": number_called("version"),
    b"B": number_called("payload_bytes"),
    b"Q": number_called("next_number"),
    b"L": figure,
    b"T": of_trace,
    b"I": by_time,
    b"E": by_arrival,
    b"N": name,
}


def main():
    rows = []
    with open(sys.argv[1], encoding="ascii") as lines:
        for line in lines:
            key, value = (bytes.fromhex(part.strip("-")) for part in line.split())
            rows.append(FAMILIES[key[:1]](key, value))
    assert {"version": 2} in rows
    print("\n".join(json.dumps(row, ensure_ascii=True) for row in rows))


main()
