#!/usr/bin/python3
"""Writes the golden files beside it with Apache's Python library (Debian: python3-thrift).

The Rust tests compare the codec with these bytes, so the two implementations check each other. The values are those of
`full_span()` in ../common/mod.rs; the field numbers are those of ../../idl/.
"""

import base64
import pathlib
import struct

from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.Thrift import TApplicationException, TMessageType, TType
from thrift.transport.TTransport import TMemoryBuffer

HERE = pathlib.Path(__file__).parent


class Fields:
    """A struct as a list of (type, id, value)."""

    def __init__(self, *fields):
        self.fields = fields

    def write(self, out):
        out.writeStructBegin("")
        for ftype, fid, value in self.fields:
            out.writeFieldBegin("", ftype, fid)
            write_value(out, ftype, value)
            out.writeFieldEnd()
        out.writeFieldStop()
        out.writeStructEnd()


def write_value(out, ftype, value):
    if ftype == TType.STRUCT:
        value.write(out)
    elif ftype == TType.LIST:
        out.writeListBegin(TType.STRUCT, len(value))
        for element in value:
            element.write(out)
        out.writeListEnd()
    elif ftype == TType.MAP:
        out.writeMapBegin(TType.STRING, TType.I64, len(value))
        for key, number in value:
            out.writeString(key)
            out.writeI64(number)
        out.writeMapEnd()
    elif ftype == TType.STRING:
        out.writeBinary(value.encode() if isinstance(value, str) else value)
    else:
        writer = {TType.BOOL: out.writeBool, TType.I16: out.writeI16, TType.I32: out.writeI32, TType.I64: out.writeI64}
        writer[ftype](value)


def struct_bytes(fields):
    memory = TMemoryBuffer()
    fields.write(TBinaryProtocol(memory))
    return memory.getvalue()


def message(name, kind, seq, fields, strict=True):
    memory = TMemoryBuffer()
    out = TBinaryProtocol(memory, strictWrite=strict)
    out.writeMessageBegin(name, kind, seq)
    fields.write(out)
    out.writeMessageEnd()
    return framed(memory.getvalue())


def framed(body):
    return struct.pack(">I", len(body)) + body


def endpoint(ipv4, port, service, ipv6=None):
    fields = [(TType.I32, 1, ipv4), (TType.I16, 2, port), (TType.STRING, 3, service)]
    if ipv6 is not None:
        fields.append((TType.STRING, 4, ipv6))
    return Fields(*fields)


def full_span():
    osd = endpoint(0x0A000001, -25126, "osd.1")
    gateway = endpoint(0, 6789, "gateway", bytes.fromhex("20010db8000000000000000000000002"))
    received = Fields(
        (TType.I64, 1, 1_700_000_000_000_001),
        (TType.STRING, 2, "sr"),
        (TType.STRUCT, 3, osd),
        (TType.I64, 32001, (3 << 40) | 17),
        (TType.I16, 32003, 999),
    )
    sent = Fields((TType.I64, 1, 1_700_000_000_000_250), (TType.STRING, 2, "ss"))
    name = Fields(
        (TType.STRING, 1, "Object"),
        (TType.STRING, 2, "rbd_data.1 – ä"),
        (TType.I32, 3, 6),
        (TType.STRUCT, 4, osd),
        (TType.I64, 32001, 18),
        (TType.I64, 32002, -7),
    )
    client = Fields(
        (TType.STRING, 1, "ca"),
        (TType.STRING, 2, b"\x01"),
        (TType.I32, 3, 0),
        (TType.STRUCT, 4, gateway),
    )
    return Fields(
        (TType.I64, 1, -0x7FFFFFFFFFFFFFF1),
        (TType.STRING, 3, "osd op"),
        (TType.I64, 4, 0x1122334455667788),
        (TType.I64, 5, 42),
        (TType.LIST, 6, [received, sent]),
        (TType.LIST, 8, [name, client]),
        (TType.BOOL, 9, True),
        (TType.I64, 10, 1_700_000_000_000_001),
        (TType.I64, 11, 249),
        (TType.I64, 12, 0x0102030405060708),
        (TType.I64, 32002, 0x0F0F),
    )


def main():
    span = struct_bytes(full_span())
    entry = Fields((TType.STRING, 1, "zipkin"), (TType.STRING, 2, base64.b64encode(span)))
    other = Fields((TType.STRING, 1, "other"), (TType.STRING, 2, "not base64 !"))
    log = Fields((TType.LIST, 1, [entry, other]))
    unknown = Fields(
        (TType.STRING, 1, "Invalid method name: 'Nope'"),
        (TType.I32, 2, TApplicationException.UNKNOWN_METHOD),
    )
    counters = Fields((TType.MAP, 0, [("received", 3), ("stored", 2)]))
    files = {
        "span": span,
        "log_call": message("Log", TMessageType.CALL, 7, log),
        "log_call_old_style": message("Log", TMessageType.CALL, 7, log, strict=False),
        "reply_ok": message("Log", TMessageType.REPLY, 7, Fields((TType.I32, 0, 0))),
        "reply_try_later": message("Log", TMessageType.REPLY, 7, Fields((TType.I32, 0, 1))),
        "reply_unknown_method": message("Nope", TMessageType.EXCEPTION, 8, unknown),
        "get_name_call": message("getName", TMessageType.CALL, 9, Fields()),
        "get_name_reply": message("getName", TMessageType.REPLY, 9, Fields((TType.STRING, 0, "blkin-collector"))),
        "get_status_reply": message("getStatus", TMessageType.REPLY, 10, Fields((TType.I32, 0, 2))),
        "get_counters_reply": message("getCounters", TMessageType.REPLY, 11, counters),
        "alive_since_reply": message("aliveSince", TMessageType.REPLY, 12, Fields((TType.I64, 0, 1_700_000_000))),
    }
    for name, content in files.items():
        (HERE / f"{name}.bin").write_bytes(content)


if __name__ == "__main__":
    main()
