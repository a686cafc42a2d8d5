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


class Varints:
    """LEB128 numbers, and fixed ones, off the front of bytes."""

    def __init__(self, raw):
        self.raw, self.at = raw, 0

    def __bool__(self):
        return self.at < len(self.raw)

    def next(self):
        number = shift = 0
        while True:
            byte = self.raw[self.at]
            self.at += 1
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return number

    def u64(self):
        self.at += 8
        return u64s(self.raw[self.at - 8 : self.at])[0]


def block(key, value):
    (number,) = u64s(key[1:])
    kind = {b"D": "block", b"K": "kept"}[key[:1]]
    return {kind: number, "arrival_ms": u64s(value[:8])[0], "pieces": pieces(value[8:])}


def manifest(key, value):
    numbers = Varints(value[8:])
    row = {"manifest": {"next_segment": numbers.next(), "indexed": numbers.next()}, "segments": []}
    names = ["id", "level", "traces", "last_block", "latest_us", "earliest_us", "bytes"]
    while numbers:
        row["segments"].append({name: numbers.next() for name in names})
    return row


def traces(numbers):
    found, time = [], None
    while numbers:
        first = numbers.next()
        time = first if time is None else time - first
        low, high = numbers.u64(), numbers.u64()
        row = {"trace": f"{high:x}:{low:x}", "time_us": time, "longest_us": numbers.next(), "parts": []}
        block = 0
        for _ in range(numbers.next()):
            block += numbers.next()
            row["parts"].append({"block": block, "offset": numbers.next(), "length": numbers.next()})
        found.append(row)
    return found


def ids(numbers):
    found = []
    while numbers:
        low, high = numbers.u64(), numbers.next()
        found.append({"trace": f"{high:x}:{low:x}", "place": numbers.next()})
    return found


def terms(numbers):
    found = {}
    while numbers:
        term, place, places = f"{numbers.u64():016x}", 0, []
        for _ in range(numbers.next()):
            place += numbers.next()
            places.append(place)
        found[term] = places
    return found


def fences(numbers):
    return {
        name: [[numbers.u64(), numbers.next()] for _ in range(numbers.next())]
        for name in ["traces", "ids", "terms"]
    }


def words(numbers):
    return [f"{word:016x}" for word in u64s(numbers.raw)]


def chunk(key, value):
    segment, column, number = struct.unpack(">QBI", key[1:])
    name, read = [("fences", fences), ("traces", traces), ("ids", ids), ("terms", terms), ("filter", words)][column - 1]
    return {"segment": segment, "chunk": number, name: read(Varints(value[8:]))}


def name(key, value):
    kind, length = struct.unpack_from(">BH", key, 1)
    (hour,) = u64s(value)
    return {"name": text(key[4 + length :]), "kind": kind, "of": text(key[4 : 4 + length]), "hour": hour}


def ledger(key, value):
    numbers = u64s(value)
    return {"ledger": [list(count) for count in zip(numbers[::2], numbers[1::2], strict=True)]}


def number_called(what):
    def read(key, value):
        return {what: int.from_bytes(value, "big")}

    return read


CHANGED = {
    b"EB": number_called("payload_bytes"),
    b"EL": ledger,
    b"EQ": number_called("next_block"),
}


def changed(key, value):
    return CHANGED[key](key, value)


FAMILIES = {
    b"V": number_called("version"),
    b"C": number_called("passed"),
    b"D": block,
    b"E": changed,
    b"K": block,
    b"M": manifest,
    b"X": chunk,
    b"N": name,
}


def main():
    rows = []
    with open(sys.argv[1], encoding="ascii") as lines:
        for line in lines:
            key, value = (bytes.fromhex(part.strip("-")) for part in line.split())
            rows.append(FAMILIES[key[:1]](key, value))
    assert {"version": 4} in rows
    print("\n".join(json.dumps(row, ensure_ascii=True) for row in rows))


main()
