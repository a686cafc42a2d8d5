#!/usr/bin/python3
"""Writes corpus.tsv: inputs, and how Zipkin's own library reads them.

    make.py CLASSPATH [SPANS] [SEED] [FILE]

CLASSPATH holds io.zipkin.zipkin2:zipkin (3.5.1 was used) and the compiled Oracle.java. The inputs are the cases below
and SPANS random ones of each kind. Needs Debian's python3-thrift. The Rust test reads every line of the corpus.
"""

import json
import pathlib
import random
import subprocess
import sys

HERE = pathlib.Path(__file__).parent
sys.dont_write_bytecode = True
sys.path.insert(0, str(HERE / "../../../thrift/tests/golden"))

from make import Fields, TMemoryBuffer, TBinaryProtocol, TType, endpoint  # noqa: E402

PLACES = [
    {"serviceName": "Frontend", "ipv4": "127.0.0.1"},
    {"serviceName": "frontend", "ipv4": "10.0.0.1", "port": 8080},
    {"serviceName": "backend", "ipv4": "192.168.99.101", "port": 9000},
    {"serviceName": "backend", "ipv6": "2001:db8::c001"},
    {"serviceName": "kafka"},
    {"ipv4": "10.0.0.9"},
    {"serviceName": "", "port": 0},
    None,
]
CORE = ["cs", "cr", "sr", "ss", "ms", "mr", "ws", "wr"]


def place(rng, unknown=0.2):
    return None if rng.random() < unknown else rng.choice(PLACES)


def without_none(members):
    return {name: value for name, value in members.items() if value is not None}


def v1_span(rng):
    """A span with random core annotations at a few random endpoints."""
    places = [place(rng, 0.1) for _ in range(rng.choice([1, 2, 2, 3]))]
    values = [v for v in CORE if rng.random() < rng.choice([0.2, 0.5])]
    values += rng.choices(["foo", "bar", "c", "cs"], k=rng.choice([0, 0, 1, 2]))
    annotations = [
        without_none({"timestamp": rng.randint(1, 30) * 10, "value": v, "endpoint": rng.choice(places)}) for v in values
    ]
    keys = rng.choices(["ca", "sa", "ma", "lc", "http.path", "error", "a"], k=rng.choice([0, 1, 2, 3]))
    binary = []
    for key in keys:
        value = rng.choice([True, "", "1", "/foo"]) if key in ("ca", "sa", "ma", "lc") else rng.choice(["", "x", "y"])
        if key == "lc" and value is True:
            value = ""
        binary.append(without_none({"key": key, "value": value, "endpoint": rng.choice(places + [place(rng)])}))
    timestamp = rng.choice([None, None, 10, 50, 100])
    ends = [a["timestamp"] - timestamp for a in annotations if timestamp and a["timestamp"] > timestamp]
    duration = rng.choice([None, 70] + ends) if timestamp else rng.choice([None, None, None, 70])
    return without_none(
        {
            "traceId": rng.choice(["1", "7f46165474d11ee5836777d85df2cdab", "ffffffffffffffff"]),
            "parentId": rng.choice([None, "1", "2", "0000000000000000"]),
            "id": rng.choice(["2", "3", "ffffffffffffffff"]),
            "name": rng.choice([None, "", "GET", "get /foo"]),
            "timestamp": timestamp,
            "duration": duration,
            "annotations": annotations or None,
            "binaryAnnotations": binary or None,
            "debug": rng.choice([None, None, True, False]),
        }
    )


def v1_list(rng):
    return [v1_span(rng) for _ in range(rng.choice([1, 1, 2]))]


def signed(text, bits=64):
    number = int(text, 16) & (2**bits - 1)
    return number - 2**bits if number >> (bits - 1) else number


def thrift_endpoint(where):
    ipv4 = 0
    if "ipv4" in where:
        a, b, c, d = map(int, where["ipv4"].split("."))
        ipv4 = signed(f"{a << 24 | b << 16 | c << 8 | d:x}", 32)
    ipv6 = bytes.fromhex("20010db800000000000000000000c001") if "ipv6" in where else None
    return endpoint(ipv4, signed(f"{where.get('port', 0):x}", 16), where.get("serviceName", ""), ipv6)


def thrift_annotation(rng, annotation):
    timestamp = rng.choice([0] + [annotation["timestamp"]] * 9)
    fields = [(TType.I64, 1, timestamp), (TType.STRING, 2, annotation["value"])]
    if rng.random() < 0.05:
        fields.pop()
    if "endpoint" in annotation:
        fields.append((TType.STRUCT, 3, thrift_endpoint(annotation["endpoint"])))
    fields.append((TType.I64, 32001, rng.randint(0, 2**50)))
    return Fields(*fields)


def thrift_binary(rng, annotation):
    value = annotation["value"]
    if value is True:
        value, kind = rng.choice([b"\x01"] * 8 + [b"\x00", b"\x01\x01"]), 0
    else:
        value, kind = value.encode(), rng.choice([6] * 9 + [1])
    fields = [(TType.STRING, 1, annotation["key"]), (TType.STRING, 2, value), (TType.I32, 3, kind)]
    if "endpoint" in annotation:
        fields.append((TType.STRUCT, 4, thrift_endpoint(annotation["endpoint"])))
    return Fields(*fields)


def thrift_span(rng, span):
    fields = [(TType.I64, 1, signed(span["traceId"])), (TType.STRING, 3, span.get("name", ""))]
    fields.append((TType.I64, 4, signed(span["id"])))
    if "parentId" in span:
        fields.append((TType.I64, 5, signed(span["parentId"])))
    fields.append((TType.LIST, 6, [thrift_annotation(rng, a) for a in span.get("annotations", [])]))
    fields.append((TType.LIST, 8, [thrift_binary(rng, b) for b in span.get("binaryAnnotations", [])]))
    if span.get("debug"):
        fields.append((TType.BOOL, 9, True))
    for name, fid in [("timestamp", 10), ("duration", 11)]:
        if name in span:
            fields.append((TType.I64, fid, span[name]))
    if len(span["traceId"]) == 32:
        fields.append((TType.I64, 12, signed(span["traceId"][:16])))
    return Fields(*fields)


def thrift_list(rng):
    spans = [thrift_span(rng, span) for span in v1_list(rng)]
    memory = TMemoryBuffer()
    out = TBinaryProtocol(memory)
    out.writeListBegin(TType.STRUCT, len(spans))
    for span in spans:
        span.write(out)
    return memory.getvalue().hex()


def trace(rng):
    """Spans that share ids, parents and places more often than they should."""
    long = rng.random() < 0.2
    spans = []
    for _ in range(rng.choice([1, 2, 3, 4, 6])):
        local, remote = place(rng), place(rng, 0.6)
        spans.append(
            without_none(
                {
                    "traceId": "7f46165474d11ee5836777d85df2cdab" if long and rng.random() < 0.7 else "836777d85df2cdab",
                    "parentId": rng.choice([None, "1", "1", "2", "3", "4"]),
                    "id": rng.choice(["1", "1", "2", "2", "3", "4", "5"]),
                    "kind": rng.choice([None, "CLIENT", "CLIENT", "SERVER", "SERVER", "PRODUCER", "CONSUMER"]),
                    "name": rng.choice([None, "GET", "post"]),
                    "timestamp": rng.choice([None, 10, 20, 30]),
                    "duration": rng.choice([None, 5, 7]),
                    "localEndpoint": local or None,
                    "remoteEndpoint": remote or None,
                    "annotations": rng.choice([None, [{"timestamp": 15, "value": "foo"}]]),
                    "tags": rng.choice([None, None, {"error": ""}, {"a": "b"}, {"a": "c"}]),
                    "shared": rng.choice([None, None, True]),
                    "debug": rng.choice([None, None, None, True]),
                }
            )
        )
    return spans


def tidy_trace(rng):
    """A trace as tracers make it: nested calls, whose server half shares the client's id or has its own."""
    services = ["web", "app", "db", "cache", "queue"]
    spans = [without_none({"traceId": "a", "id": "1", "kind": rng.choice(["SERVER", None]), "timestamp": 1,
                           "localEndpoint": {"serviceName": "web"},
                           "remoteEndpoint": rng.choice([None, {"serviceName": "browser"}])})]
    owners = [("1", "web")]
    for number in range(2, rng.choice([3, 5, 9])):
        parent, owner = rng.choice(owners)
        callee = rng.choice(services)
        sid, error = f"{number:x}", rng.choice([None, None, {"error": "x"}])
        near = without_none({"traceId": "a", "parentId": parent, "id": sid, "kind": "CLIENT", "timestamp": number * 10,
                             "localEndpoint": {"serviceName": owner}, "tags": error,
                             "remoteEndpoint": rng.choice([None, {"serviceName": callee}])})
        shape = rng.choice(["shared", "split", "client", "local", "message"])
        far = {"traceId": "a", "kind": "SERVER", "timestamp": number * 10 + 3, "localEndpoint": {"serviceName": callee}}
        if shape == "local":
            spans.append({"traceId": "a", "parentId": parent, "id": sid, "localEndpoint": {"serviceName": owner}})
            owners.append((sid, owner))
        elif shape == "message":
            near.update(kind=rng.choice(["PRODUCER", "CONSUMER"]))
            spans.append(near)
        else:
            spans.append(near)
            if shape == "shared":
                spans.append({**far, "parentId": parent, "id": sid, "shared": True})
                owners.append((sid, callee))
            elif shape == "split":
                spans.append({**far, "parentId": sid, "id": f"{number:x}00"})
                owners.append((f"{number:x}00", callee))
    if rng.random() < 0.3:
        spans.pop(rng.randrange(len(spans)))
    rng.shuffle(spans)
    return spans or [{"traceId": "a", "id": "1"}]


def v2_reader_cases():
    """Inputs of one span each, well-formed and malformed."""
    ids = {"traceId": "1", "id": "2"}
    variants = [
        {},
        {"parentId": None, "kind": None, "name": None, "timestamp": None, "duration": None, "localEndpoint": None,
         "remoteEndpoint": None, "annotations": None, "tags": None, "debug": None, "shared": None},
        {"unknown": {"deep": [1, {"x": None}]}, "duration": 5},
        {"traceId": None}, {"id": None}, {"traceId": ""}, {"id": ""}, {"parentId": ""},
        {"traceId": "1F"}, {"id": "FF"}, {"parentId": "0x1"}, {"id": "12345678901234567"}, {"traceId": "1" * 33},
        {"traceId": "463ac35c9f6413ad48485a3953bb6124"}, {"traceId": "000000000000000048485a3953bb6124"},
        {"traceId": "3ac35c9f6413ad48485a3953bb6124"}, {"parentId": "2"}, {"parentId": "3"}, {"parentId": "0"},
        {"traceId": "0"}, {"traceId": "0" * 32}, {"id": "0" * 16},
        {"kind": "CLIENT", "shared": True}, {"kind": "SERVER", "shared": True}, {"kind": "client"}, {"kind": ""},
        {"name": "GET /Foo"}, {"name": ""}, {"name": 5}, {"name": []},
        {"timestamp": -1, "duration": -5}, {"timestamp": 0}, {"timestamp": "17"}, {"timestamp": 17.0},
        {"timestamp": 17.5}, {"timestamp": "x"}, {"timestamp": 9223372036854775807}, {"timestamp": True},
        {"localEndpoint": {}}, {"localEndpoint": {"serviceName": ""}}, {"localEndpoint": {"serviceName": "Foo"}},
        {"localEndpoint": {"ipv4": "1.2.3.4", "port": 80}}, {"localEndpoint": {"ipv4": "bad", "port": 80}},
        {"localEndpoint": {"ipv6": "::1"}}, {"localEndpoint": {"ipv6": "2001:DB8:0:0:0:0:0:C001"}},
        {"localEndpoint": {"ipv6": "::ffff:1.2.3.4"}}, {"localEndpoint": {"ipv4": "2001:db8::1"}},
        {"localEndpoint": {"port": 70000}}, {"localEndpoint": {"port": -1}}, {"localEndpoint": {"port": 0}},
        {"localEndpoint": {"port": None, "serviceName": None}}, {"localEndpoint": []},
        {"annotations": []}, {"annotations": [{"timestamp": 2, "value": "b"}, {"timestamp": 1, "value": "z"},
                                              {"timestamp": 2, "value": "b"}, {"value": "a", "timestamp": 2}]},
        {"annotations": [{"timestamp": 1}]}, {"annotations": [{"value": "a"}]}, {"annotations": [{}]},
        {"annotations": [{"timestamp": 1, "value": "a", "endpoint": {"serviceName": "x"}}]},
        {"tags": {}}, {"tags": {"b": "2", "a": "1"}}, {"tags": {"a": ""}}, {"tags": {"a": 5}}, {"tags": {"a": None}},
        {"tags": {"a": {}}}, {"tags": {"a": "\u2713 \"q\" \\ / \t \u0001 \U0001f600"}}, {"tags": []},
        {"tags": {"long": "x" * 2000}},
        {"debug": True, "shared": True}, {"debug": False, "shared": False}, {"debug": "yes"}, {"debug": 1},
    ]
    for variant in variants:
        yield [{**ids, **variant}]
    yield [{"id": "1"}]
    yield [{"traceId": "1"}]


def v1_reader_cases():
    ids = {"traceId": "1", "id": "2"}
    here = {"serviceName": "here"}
    variants = [
        {}, {"traceId": "0"}, {"id": "0"}, {"traceId": "X"}, {"id": "1F"}, {"parentId": "0"},
        {"traceId": "463ac35c9f6413ad48485a3953bb6124"}, {"unknown": [None], "name": None, "annotations": None},
        {"annotations": [{"timestamp": 1, "value": "a", "endpoint": None}]}, {"annotations": [{"timestamp": 1}]},
        {"annotations": [{"value": "a"}]}, {"annotations": [{"timestamp": 5, "value": "cs"}]},
        {"binaryAnnotations": [{"key": "a", "value": 5, "endpoint": here}]},
        {"binaryAnnotations": [{"key": "a", "value": False, "endpoint": here}]},
        {"binaryAnnotations": [{"key": "a", "value": True, "endpoint": here}]},
        {"binaryAnnotations": [{"key": "sa", "value": False, "endpoint": here}]},
        {"binaryAnnotations": [{"key": "sa", "value": True}]}, {"binaryAnnotations": [{"key": "sa", "value": True,
                                                                                      "endpoint": here}]},
        {"binaryAnnotations": [{"value": "x"}]}, {"binaryAnnotations": [{"key": "a", "value": None}]},
        {"binaryAnnotations": [{"key": "lc", "value": "", "endpoint": here}]},
        {"binaryAnnotations": [{"key": "lc", "value": "x", "endpoint": here}]},
        {"timestamp": "5", "duration": 2.0},
    ]
    for variant in variants:
        yield [{**ids, **variant}]


def inputs(count, rng):
    for case in v2_reader_cases():
        yield "v2json", json.dumps(case)
    for case in v1_reader_cases():
        yield "v1json", json.dumps(case)
    for _ in range(count):
        yield "v1json", json.dumps(v1_list(rng))
        yield "v1thrift", thrift_list(rng)
        yield "merge", json.dumps(trace(rng))
        yield "links", json.dumps(trace(rng))
        yield "links", json.dumps(tidy_trace(rng))


def main():
    classpath, count = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 60
    rng = random.Random(int(sys.argv[3]) if len(sys.argv) > 3 else 1)
    target = pathlib.Path(sys.argv[4]) if len(sys.argv) > 4 else HERE / "corpus.tsv"
    lines = [f"{kind}\t{text}" for kind, text in inputs(count, rng)]
    run = subprocess.run(["java", "-cp", classpath, "Oracle"], input="\n".join(lines) + "\n", text=True, check=True,
                         stdout=subprocess.PIPE, encoding="utf-8")
    answers = run.stdout.splitlines()
    assert len(answers) == len(lines), (len(answers), len(lines))
    target.write_text("".join(f"{line}\t{answer}\n" for line, answer in zip(lines, answers)), encoding="utf-8")


if __name__ == "__main__":
    main()
