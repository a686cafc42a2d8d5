"""Decodes the rows of a store by the description in store/keys.rs, without any code of the collector.

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


def pieces(row):
    found = []
    while row:
        magic, length, _checksum = struct.unpack_from(">4sIQ", row)
        assert magic == b"\xffBkp" and length <= len(row) - 16
        found.append(piece(row[16 : 16 + length]))
        row = row[16 + length :]
    return found


def piece(value):
    name, read = {3: ("v1", compact_v1), 4: ("v2", compact_v2)}[value[0]]
    compact = Varints(value[1:])
    said = read(compact)
    assert not compact
    return {name: said}


def there(flags, members):
    """Reads the members whose flags are set."""
    return {name: read() for flag, name, read in members if flags & flag}


def compact_v1(span):
    """See store/compact/v1.rs."""
    flags = span.u8()
    said = {"trace_id": span.i64(), "id": span.i64()}
    said |= there(flags, [(1, "parent_id", span.i64), (2, "trace_id_high", span.i64)])
    said["name"] = span.text()
    said |= there(flags, [(4, "timestamp", span.signed), (8, "duration", span.signed), (16, "source", span.i64)])
    said["debug"] = bool(flags & 32)
    time, position, hosts = said.get("timestamp", 0), 0, []

    def host(mark):
        if mark >> 3 == 0:
            return None
        if mark >> 3 < 31:
            return hosts[(mark >> 3) - 1]
        has_ipv6 = span.u8()
        new = {"ipv4": span.take(4).hex(), "port": int.from_bytes(span.take(2), "big", signed=True), "name": span.text()}
        if has_ipv6:
            new["ipv6"] = span.take(16).hex()
        if len(hosts) < 30:
            hosts.append(new)
        return new

    def own(mark, into):
        nonlocal position
        if mark & 1:
            position += span.signed()
            into["position"] = position
        if mark & 2:
            into["source"] = span.i64()
        if mark & 4:
            into["nanos"] = span.signed()
        return into

    said["annotations"], said["tags"] = [], []
    for _ in range(span.next()):
        mark = span.u8()
        event = {"host": host(mark)}
        time += span.signed()
        event |= {"timestamp": time, "value": span.text()}
        said["annotations"].append(own(mark, event))
    for _ in range(span.next()):
        mark = span.u8()
        tag = {"host": host(mark), "kind": span.signed(), "key": span.text(), "value": span.text()}
        said["tags"].append(own(mark, tag))
    return said


def compact_v2(span):
    """See store/compact/v2.rs."""

    def id_():
        return f"{span.u64():x}"

    def hex_of(length):
        return lambda: span.take(length).hex()

    def place():
        port = lambda: int.from_bytes(span.take(2), "big")
        members = [(1, "service", span.text), (2, "ipv4", hex_of(4)), (4, "ipv6", hex_of(16)), (8, "port", port)]
        return there(span.u8(), members)

    flags = span.u8() << 8 | span.u8()
    said = {"trace_id": id_(), "id": id_()}
    said |= there(flags, [(1, "parent_id", id_), (2, "trace_id_high", id_), (4, "name", span.text)])
    said |= there(flags, [(8, "timestamp", span.signed), (16, "duration", span.signed)])
    said |= there(flags, [(32, "local", place), (64, "remote", place)])
    said |= {"debug": bool(flags & 128), "shared": bool(flags & 256)}
    said["kind"] = [None, "client", "server", "producer", "consumer"][flags >> 12]
    time, said["annotations"] = said.get("timestamp", 0), []
    for _ in range(span.next()):
        time += span.signed()
        said["annotations"].append([time, span.text()])
    said["tags"] = {span.text(): span.text() for _ in range(span.next())}
    return said


def u64s(raw):
    assert len(raw) % 8 == 0
    return list(struct.unpack(f">{len(raw) // 8}Q", raw))


class Varints:
    """Takes LEB128 and fixed-size numbers from the front of bytes."""

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

    def take(self, length):
        self.at += length
        assert self.at <= len(self.raw)
        return self.raw[self.at - length : self.at]

    def u8(self):
        return self.take(1)[0]

    def u64(self):
        return u64s(self.take(8))[0]

    def i64(self):
        return int.from_bytes(self.take(8), "big", signed=True)

    def signed(self):
        number = self.next()
        return number >> 1 ^ -(number & 1)

    def text(self):
        return text(self.take(self.next()))


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


def places(numbers):
    place, found = 0, []
    for _ in range(numbers.next()):
        place += numbers.next()
        found.append(place)
    return found


def terms(numbers):
    found = {}
    while numbers:
        term = f"{numbers.u64():016x}"
        found[term] = places(numbers)
    return found


def fences(numbers):
    row = {
        name: [[numbers.u64(), numbers.next()] for _ in range(numbers.next())]
        for name in ["traces", "ids", "terms"]
    }
    return {**row, "goes_on": places(numbers)}


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
    assert {"version": 6} in rows
    print("\n".join(json.dumps(row, ensure_ascii=True) for row in rows))


main()
