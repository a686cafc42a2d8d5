#!/usr/bin/python3
"""A Scribe client over Apache's Python Thrift library, with nothing of BlkKin in it.

    scribe_client.py HOST:PORT TRACE_ID

Sends one span of two annotations and a key in a Log call, beside an entry of another category, and prints the
ResultCode. Then asks for a method that does not exist and prints the exception's type.
"""

import base64
import sys
import time

from thrift.protocol import TBinaryProtocol
from thrift.Thrift import TApplicationException, TMessageType, TType
from thrift.transport import TSocket, TTransport


def field(out, kind, number, write, value):
    out.writeFieldBegin("", kind, number)
    write(value)
    out.writeFieldEnd()


def endpoint(out, number, service):
    out.writeFieldBegin("host", TType.STRUCT, number)
    out.writeStructBegin("Endpoint")
    field(out, TType.I32, 1, out.writeI32, 0x7F000001)
    field(out, TType.I16, 2, out.writeI16, 8080)
    field(out, TType.STRING, 3, out.writeString, service)
    out.writeFieldStop()
    out.writeStructEnd()
    out.writeFieldEnd()


def annotation(out, timestamp, value):
    out.writeStructBegin("Annotation")
    field(out, TType.I64, 1, out.writeI64, timestamp)
    field(out, TType.STRING, 2, out.writeString, value)
    endpoint(out, 3, "Foreign")
    out.writeFieldStop()
    out.writeStructEnd()


def binary_annotation(out, key, value):
    out.writeStructBegin("BinaryAnnotation")
    field(out, TType.STRING, 1, out.writeString, key)
    field(out, TType.STRING, 2, out.writeString, value)
    field(out, TType.I32, 3, out.writeI32, 6)
    endpoint(out, 4, "Foreign")
    out.writeFieldStop()
    out.writeStructEnd()


def span(trace_id, begin):
    memory = TTransport.TMemoryBuffer()
    out = TBinaryProtocol.TBinaryProtocol(memory)
    out.writeStructBegin("Span")
    field(out, TType.I64, 1, out.writeI64, trace_id)
    field(out, TType.STRING, 3, out.writeString, "Foreign Call")
    field(out, TType.I64, 4, out.writeI64, trace_id)
    out.writeFieldBegin("annotations", TType.LIST, 6)
    out.writeListBegin(TType.STRUCT, 2)
    annotation(out, begin, "sr")
    annotation(out, begin + 1500, "ss")
    out.writeListEnd()
    out.writeFieldEnd()
    out.writeFieldBegin("binary_annotations", TType.LIST, 8)
    out.writeListBegin(TType.STRUCT, 1)
    binary_annotation(out, "Object", "alpha")
    out.writeListEnd()
    out.writeFieldEnd()
    out.writeFieldStop()
    out.writeStructEnd()
    return memory.getvalue()


def call(out, name, entries):
    out.writeMessageBegin(name, TMessageType.CALL, 7)
    out.writeStructBegin("args")
    out.writeFieldBegin("messages", TType.LIST, 1)
    out.writeListBegin(TType.STRUCT, len(entries))
    for category, message in entries:
        out.writeStructBegin("LogEntry")
        field(out, TType.STRING, 1, out.writeString, category)
        field(out, TType.STRING, 2, out.writeString, message)
        out.writeFieldStop()
        out.writeStructEnd()
    out.writeListEnd()
    out.writeFieldEnd()
    out.writeFieldStop()
    out.writeStructEnd()
    out.writeMessageEnd()
    out.trans.flush()


def answer(incoming):
    """The i32 in the reply, or the type of the exception."""
    _, kind, sequence = incoming.readMessageBegin()
    assert sequence == 7, sequence
    if kind == TMessageType.EXCEPTION:
        error = TApplicationException()
        error.read(incoming)
        incoming.readMessageEnd()
        return f"exception {error.type}"
    incoming.readStructBegin()
    _, kind, number = incoming.readFieldBegin()
    assert (kind, number) == (TType.I32, 0), (kind, number)
    code = incoming.readI32()
    incoming.readFieldEnd()
    _, kind, _ = incoming.readFieldBegin()
    assert kind == TType.STOP, kind
    incoming.readMessageEnd()
    return f"result {code}"


def main():
    host, port = sys.argv[1].rsplit(":", 1)
    transport = TTransport.TFramedTransport(TSocket.TSocket(host, int(port)))
    protocol = TBinaryProtocol.TBinaryProtocol(transport)
    transport.open()
    message = base64.b64encode(span(int(sys.argv[2], 16), int(time.time() * 1e6))).decode()
    call(protocol, "Log", [("other", "not for you"), ("zipkin", message)])
    print(answer(protocol))
    call(protocol, "Frobnicate", [])
    print(answer(protocol))
    transport.close()


main()
