//! Input that no correct writer of the formats produces.

use blkin_thrift::span;

use super::{Corpus, JSON, PROTOBUF, THRIFT, V1, V2, span_of};
use crate::differential::wire::{chunk, thrift_list, varint};

/// Fields of a thrift endpoint: an address, and zeros, which mean none.
const IPV4: &[u8] = &[8, 0, 1, 1, 2, 3, 4];
const ZEROS: &[u8] = &[8, 0, 1, 0, 0, 0, 0];
const FOUR_BYTES: &[u8] = &[11, 0, 4, 0, 0, 0, 4, 5, 6, 7, 8];
const THREE_BYTES: &[u8] = &[11, 0, 4, 0, 0, 0, 3, 1, 2, 3];
const COMPATIBLE: &[u8] = &[11, 0, 4, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9, 9, 9, 9];
const IPV6: &[u8] = &[11, 0, 4, 0, 0, 0, 16, 0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];

impl Corpus {
    pub(super) fn malformed(&mut self) {
        self.thrift_flags();
        self.thrift_fields();
        self.thrift_addresses();
        self.proto3_numbers();
        self.proto3_fields_of_the_list();
        self.proto3_unknown_fields();
        self.json_numbers();
    }

    /// A thrift span with further fields.
    fn thrift_with(&mut self, name: &str, fields: &[u8]) {
        let trace = self.trace_id();
        let mut body = thrift_list(&[span::encode(&span_of(&trace))]);
        // The last byte ends the span.
        body.pop();
        body.extend(fields);
        body.push(0);
        self.http(&format!("v1 thrift, {name}"), V1, &[THRIFT], body, &trace);
    }

    fn thrift_flags(&mut self) {
        for value in [1, 2, 0xff] {
            self.thrift_with(&format!("debug of {value}"), &[2, 0, 9, value]);
        }
        self.thrift_with("debug taken back", &[2, 0, 9, 1, 2, 0, 9, 0]);
    }

    /// Lists that occur twice, and unknown fields.
    fn thrift_fields(&mut self) {
        let list = |value: u8| {
            let time = [10, 0, 1, 0, 0, 0, 0, 0, 0, 0, value];
            [&[15, 0, 6, 12, 0, 0, 0, 1][..], &time, &[11, 0, 2, 0, 0, 0, 1, value, 0]].concat()
        };
        self.thrift_with("a list twice", &[list(b'a'), list(b'b')].concat());
        for (name, field) in [
            ("number", &[8, 0, 99, 0, 0, 0, 1][..]),
            ("text", &[11, 0, 99, 0, 0, 0, 1, b'x']),
            ("list of numbers", &[15, 0, 99, 8, 0, 0, 0, 1, 0, 0, 0, 1]),
        ] {
            self.thrift_with(&format!("an unknown field, {name}"), field);
        }
    }

    /// Endpoints with several address fields, some without an address.
    fn thrift_addresses(&mut self) {
        for (name, addresses) in [
            ("IPv4, then compatible", [IPV4, COMPATIBLE]),
            ("compatible, then IPv4", [COMPATIBLE, IPV4]),
            ("compatible, then zeros", [COMPATIBLE, ZEROS]),
            ("compatible, then four bytes", [COMPATIBLE, FOUR_BYTES]),
            ("compatible, then IPv6", [COMPATIBLE, IPV6]),
            ("IPv6, then compatible", [IPV6, COMPATIBLE]),
            ("IPv6, then IPv4", [IPV6, IPV4]),
            ("IPv6, then three bytes", [IPV6, THREE_BYTES]),
            ("IPv4, then zeros", [IPV4, ZEROS]),
            ("four bytes, then zeros", [FOUR_BYTES, ZEROS]),
            ("four bytes, then compatible", [FOUR_BYTES, COMPATIBLE]),
        ] {
            let annotation = [15, 0, 6, 12, 0, 0, 0, 1, 10, 0, 1, 0, 0, 0, 0, 0, 0, 0, 9];
            let value_and_host = [11, 0, 2, 0, 0, 0, 1, b'x', 12, 0, 3, 11, 0, 3, 0, 0, 0, 1, b's'];
            let fields = [&annotation[..], &value_and_host, &addresses.concat(), &[0, 0]].concat();
            self.thrift_with(&format!("addresses: {name}"), &fields);
        }
    }

    /// A list with a span that has `fields`, between the bytes `before` and `after`.
    fn proto3(&mut self, name: &str, [before, fields, after]: [&[u8]; 3]) {
        let trace = self.trace_id();
        let trace_id = u64::from_str_radix(&trace, 16).unwrap_or(0).to_be_bytes();
        let span = [&chunk(1, &trace_id), &chunk(3, &2_u64.to_be_bytes()), fields].concat();
        let body = [before, &chunk(1, &span), after].concat();
        self.http(&format!("proto3, {name}"), V2, &[PROTOBUF], body, &trace);
    }

    fn proto3_numbers(&mut self) {
        let number = |field: u8, number| [vec![field << 3], varint(number)].concat();
        let port = |port| chunk(8, &[chunk(1, b"s"), number(4, port)].concat());
        for (name, field) in [
            ("a port above all", port(65_536)),
            ("a negative port of 32 bits", port(1 << 31)),
            ("more than 32 bits in a port of -1", port(u64::MAX)),
            ("more than 32 bits in a port", port((1 << 32) + 80)),
            ("an unknown kind", number(4, 5)),
            ("an unknown kind after a known one", [number(4, 1), number(4, 5)].concat()),
            ("no kind after a known one", [number(4, 1), number(4, 0)].concat()),
            ("a negative kind of 32 bits", number(4, 0xffff_ffff)),
            ("more than 32 bits in a kind of -1", number(4, u64::MAX)),
            ("more than 32 bits in a kind", number(4, (1 << 32) + 1)),
            ("a flag of 2", number(12, 2)),
            ("a flag of 128", number(13, 128)),
            ("a flag taken back", [number(12, 1), number(12, 0)].concat()),
        ] {
            self.proto3(name, [&[], &field, &[]]);
        }
    }

    fn proto3_fields_of_the_list(&mut self) {
        for (name, field) in [
            ("number", vec![2 << 3, 1]),
            ("fixed number", vec![2 << 3 | 5, 1, 2, 3, 4]),
            ("text", chunk(2, b"hello")),
            ("empty text", chunk(2, b"")),
        ] {
            self.proto3(&format!("another field before the spans, {name}"), [&field, &[], &[]]);
            self.proto3(&format!("another field after the spans, {name}"), [&[], &[], &field]);
        }
        self.proto3("an empty span after others", [&[], &[], &chunk(1, b"")]);
    }

    fn proto3_unknown_fields(&mut self) {
        let unknown = chunk(9, b"x");
        let name = chunk(5, b"after");
        let endpoint = chunk(8, &[chunk(1, b"s"), unknown.clone()].concat());
        for (place, field) in [
            ("an endpoint", endpoint),
            ("a tag", chunk(11, &[chunk(1, b"k"), unknown].concat())),
            ("a span, of 32 bits", vec![15 << 3 | 5, 1, 2, 3, 4]),
        ] {
            self.proto3(&format!("an unknown field in {place}"), [&[], &[field, name.clone()].concat(), &[]]);
        }
    }

    fn json_numbers(&mut self) {
        for (name, port) in [
            ("a negative port", "-2147483648"),
            ("a port below 32 bits", "-2147483649"),
            ("a port below 32 bits, in quotes", r#""-2147483649""#),
            ("a port below 32 bits, the least of 64", "-9223372036854775808"),
            ("a port below 32 bits and 64", "-9223372036854775809"),
        ] {
            let endpoint = format!(r#"{{"serviceName":"x","port":{port}}}"#);
            let (v2, v1) = (self.trace_id(), self.trace_id());
            let body = format!(r#"[{{"traceId":"{v2}","id":"2","localEndpoint":{endpoint}}}]"#);
            self.http(&format!("v2 JSON, {name}"), V2, &[JSON], body.into_bytes(), &v2);
            let annotations = format!(r#"[{{"timestamp":9,"value":"x","endpoint":{endpoint}}}]"#);
            let body = format!(r#"[{{"traceId":"{v1}","id":"2","annotations":{annotations}}}]"#);
            self.http(&format!("v1 JSON, {name}"), V1, &[JSON], body.into_bytes(), &v1);
        }
        for (name, id) in [
            ("a bare negative id", "-5"),
            ("a bare negative id of sixteen digits", "-1234567890123456"),
            ("a bare id", "5"),
            ("a bare id of a fraction", "1.5"),
        ] {
            let (v2, v1) = (self.trace_id(), self.trace_id());
            let body = |trace: &str| format!(r#"[{{"traceId":"{trace}","id":{id},"parentId":{id}}}]"#);
            self.http(&format!("v2 JSON, {name}"), V2, &[JSON], body(&v2).into_bytes(), &v2);
            self.http(&format!("v1 JSON, {name}"), V1, &[JSON], body(&v1).into_bytes(), &v1);
        }
    }
}
