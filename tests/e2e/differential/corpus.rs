//! The inputs for both servers: the corpus of Zipkin's own library, with a trace id for each input and in every format that
//! can encode it, and edge cases that only a server has.

mod malformed;

use std::fs;

use anyhow::{Context, Result};
use blkin_tests::artifacts::root;
use blkin_tests::ingest::now_us;
use blkin_thrift::{AnnotationType, BinaryAnnotation, Endpoint, span};
use serde_json::{Value, json};

use super::wire::{gzip, proto3_list, scribe_message, thrift_list, thrift_span};

/// How an input is sent.
#[derive(Debug, Clone)]
pub(super) enum Road {
    /// POST to a path, with headers.
    Http { path: &'static str, headers: Vec<(&'static str, &'static str)>, body: Vec<u8> },
    /// One `Log` call.
    Scribe { category: &'static str, messages: Vec<Vec<u8>> },
}

/// One input.
#[derive(Debug, Clone)]
pub(super) struct Case {
    /// What it tests, after the name of the road.
    pub(super) name: String,
    pub(super) road: Road,
    /// The traces that it may create.
    pub(super) traces: Vec<String>,
}

const V2: &str = "/api/v2/spans";
const V1: &str = "/api/v1/spans";
const JSON: (&str, &str) = ("Content-Type", "application/json");
const THRIFT: (&str, &str) = ("Content-Type", "application/x-thrift");
const PROTOBUF: (&str, &str) = ("Content-Type", "application/x-protobuf");
const GZIP: (&str, &str) = ("Content-Encoding", "gzip");

/// Trace ids in the library's corpus: the high half of long ones, which stays, and the low halves, which are replaced.
const LONG: &str = "7f46165474d11ee5";
const PLACEHOLDERS: [&str; 2] = ["836777d85df2cdab", "ffffffffffffffff"];

/// Collects the cases, and gives out trace ids.
#[derive(Default)]
struct Corpus {
    cases: Vec<Case>,
    next: u64,
}

/// All cases.
pub(super) fn all() -> Result<Vec<Case>> {
    let mut corpus = Corpus { next: 0xb100_0000, ..Corpus::default() };
    corpus.of_the_library()?;
    corpus.v2_edges();
    corpus.v1_edges();
    corpus.bodies();
    corpus.mislabelled();
    corpus.nearly_json();
    corpus.malformed();
    corpus.shop();
    Ok(corpus.cases)
}

impl Corpus {
    fn trace_id(&mut self) -> String {
        self.next += 1;
        format!("{:016x}", self.next)
    }

    fn http(
        &mut self,
        name: &str,
        path: &'static str,
        headers: &[(&'static str, &'static str)],
        body: Vec<u8>,
        trace: &str,
    ) {
        let road = Road::Http { path, headers: headers.to_vec(), body };
        self.cases.push(Case {
            name: name.to_owned(),
            road,
            traces: vec![trace.to_owned(), format!("{LONG}{trace}")],
        });
    }

    fn of_the_library(&mut self) -> Result<()> {
        let text = fs::read_to_string(root().join("collector/tests/zipkin/corpus.tsv"))?;
        for (at, line) in text.lines().enumerate() {
            let mut parts = line.splitn(3, '\t');
            let (kind, input) = (parts.next().context("no kind")?, parts.next().context("no input")?);
            match kind {
                "v2json" => self.v2(&format!("library {at}"), input),
                "merge" => self.v2(&format!("library trace {at}"), input),
                "v1json" => self.v1(&format!("library {at}"), input),
                _ => {}
            }
        }
        Ok(())
    }

    /// A list of v2 spans, as JSON and, if these can encode it, as protocol buffers.
    fn v2(&mut self, name: &str, list: &str) {
        let trace = self.trace_id();
        let body = with_trace_id(list, &trace);
        self.http(&format!("v2 JSON, {name}"), V2, &[JSON], body.into_bytes(), &trace);
        let trace = self.trace_id();
        let Ok(spans) = serde_json::from_str::<Vec<Value>>(&with_trace_id(list, &trace)) else { return };
        if let Some(body) = proto3_list(&spans) {
            self.http(&format!("proto3, {name}"), V2, &[PROTOBUF], body, &trace);
        }
    }

    /// Each span of a list of v1 spans, as JSON and, if thrift can encode it, as thrift over HTTP and Scribe.
    fn v1(&mut self, name: &str, list: &str) {
        let Ok(spans) = serde_json::from_str::<Vec<Value>>(list) else { return };
        for span in spans {
            let single = Value::Array(vec![span]).to_string();
            let trace = self.trace_id();
            let body = with_trace_id(&single, &trace).into_bytes();
            self.http(&format!("v1 JSON, {name}"), V1, &[JSON], body, &trace);
            for road in ["v1 thrift", "Scribe"] {
                let trace = self.trace_id();
                let Ok(spans) = serde_json::from_str::<Vec<Value>>(&with_trace_id(&single, &trace)) else {
                    continue;
                };
                let Some(span) = thrift_span(&spans[0]) else { continue };
                match road {
                    "Scribe" => self.scribe(name, "zipkin", vec![scribe_message(&span)], &trace),
                    _ => {
                        let body = thrift_list(&[span::encode(&span)]);
                        self.http(&format!("{road}, {name}"), V1, &[THRIFT], body, &trace);
                    }
                }
            }
        }
    }

    fn scribe(&mut self, name: &str, category: &'static str, messages: Vec<Vec<u8>>, trace: &str) {
        let traces = vec![trace.to_owned(), format!("{LONG}{trace}")];
        let road = Road::Scribe { category, messages };
        self.cases.push(Case { name: format!("Scribe, {name}"), road, traces });
    }

    fn v2_edges(&mut self) {
        let ids = r#""traceId":"1","id":"2""#;
        let members = [
            ("a member twice", r#""name":"a","name":"b","timestamp":1,"timestamp":2"#),
            (
                "a list twice",
                r#""annotations":[{"timestamp":1,"value":"a"}],"annotations":[{"timestamp":2,"value":"b"}]"#,
            ),
            (
                "an endpoint twice",
                r#""localEndpoint":{"serviceName":"x","port":1},"localEndpoint":{"serviceName":"y"}"#,
            ),
            ("a tag twice", r#""tags":{"k":"1","k":"2"}"#),
            ("null after a value", r#""name":"a","name":null"#),
            ("line separators", r#""tags":{"a\u2028b":"c\u2029d"}"#),
            ("Chinese", r#""name":"读取","localEndpoint":{"serviceName":"对象存储"},"tags":{"键":"值 😀"}"#),
            (
                "an upper-case name that grows",
                r#""name":"İSTANBUL","localEndpoint":{"serviceName":"ẞERVICE"}"#,
            ),
            ("annotation at 0", r#""annotations":[{"timestamp":0,"value":"zero"}]"#),
            ("annotation before 1970", r#""annotations":[{"timestamp":-5,"value":"early"}]"#),
            ("an annotation of nothing", r#""annotations":[{"timestamp":5,"value":""}]"#),
            ("an empty key", r#""tags":{"":"x"}"#),
            ("numbers as strings", r#""timestamp":"17.0","localEndpoint":{"port":"80"}"#),
            ("a number with exponent", r#""timestamp":1.7e3,"duration":2e0"#),
            (
                "a time of 2027 with a point",
                r#""timestamp":1810000000000001.0,"duration":1810000000000003.000"#,
            ),
            ("a number as name", r#""name":17.0"#),
            (
                "numbers that no type holds",
                r#""name":1.10,"tags":{"digits":123456789012345678901234,"exponent":1e3}"#,
            ),
            ("time beyond 63 bits", r#""timestamp":9223372036854775808"#),
            ("deep unknown member", r#""x":[[[[[[[[[[[[[[[[{"a":[]}]]]]]]]]]]]]]]]]"#),
            ("an IPv4-mapped address", r#""localEndpoint":{"ipv6":"::ffff:43.0.192.2"}"#),
            ("an IPv4-compatible address", r#""localEndpoint":{"ipv6":"::43.0.192.2"}"#),
            ("an address with leading zeros", r#""localEndpoint":{"serviceName":"x","ipv4":"01.2.3.4"}"#),
            ("an address of five digits", r#""localEndpoint":{"serviceName":"x","ipv6":"00001::2"}"#),
            (
                "an address that ends as IPv4",
                r#""localEndpoint":{"serviceName":"x","ipv6":"64:ff9b::1.2.3.4"}"#,
            ),
            ("both addresses", r#""localEndpoint":{"ipv4":"1.2.3.4","ipv6":"2001:db8::c001","port":65535}"#),
        ];
        for (name, members) in members {
            self.v2(name, &format!("[{{{ids},{members}}}]"));
        }
        self.v2(
            "a value of 5,000 characters",
            &format!(r#"[{{{ids},"tags":{{"long":"{}"}}}}]"#, "x".repeat(5000)),
        );
        self.v2("the same span twice", &format!("[{{{ids}}},{{{ids}}}]"));
        self.v2(
            "the same id, debug and shared",
            &format!(r#"[{{{ids}}},{{{ids},"debug":true}},{{{ids},"kind":"SERVER","shared":true}}]"#),
        );
    }

    fn v1_edges(&mut self) {
        let ids = r#""traceId":"1","id":"2""#;
        let here = r#""endpoint":{"serviceName":"edge","ipv4":"10.1.2.3","port":80}"#;
        let members = [
            ("annotation at 0", r#""annotations":[{"timestamp":0,"value":"zero"}]"#.to_owned()),
            ("an annotation of nothing", format!(r#""annotations":[{{"timestamp":5,"value":"",{here}}}]"#)),
            ("a member twice", r#""name":"a","name":"b""#.to_owned()),
            ("cs at 0", format!(r#""annotations":[{{"timestamp":0,"value":"cs",{here}}},{{"timestamp":9,"value":"cr",{here}}}]"#)),
            ("only ss", format!(r#""annotations":[{{"timestamp":9,"value":"ss",{here}}}]"#)),
            ("ss at the end", format!(r#""timestamp":4,"duration":5,"annotations":[{{"timestamp":9,"value":"ss",{here}}}]"#)),
            ("an upper-case service", r#""annotations":[{"timestamp":9,"value":"x","endpoint":{"serviceName":"Edge"}}]"#.to_owned()),
            ("Chinese", r#""name":"读取","binaryAnnotations":[{"key":"键","value":"值","endpoint":{"serviceName":"对象存储"}}]"#.to_owned()),
            ("a number beyond all as value", r#""binaryAnnotations":[{"key":"a","value":1e400}]"#.to_owned()),
            ("an object as value", r#""binaryAnnotations":[{"key":"a","value":{"b":[1]}}]"#.to_owned()),
        ];
        for (name, members) in members {
            self.v1(name, &format!("[{{{ids},{members}}}]"));
        }
        self.numbers();
        self.nanoseconds();
        self.pieces();
        self.v1_sides();
        self.beyond_thrift();
        self.scribe_calls();
    }

    /// Kinds of values that JSON lacks.
    fn numbers(&mut self) {
        let host = Some(Endpoint { service_name: "edge".to_owned(), ..Endpoint::default() });
        let binary = |kind, value: &[u8]| BinaryAnnotation {
            key: "number".to_owned(),
            value: value.to_vec(),
            kind,
            host: host.clone(),
            ..BinaryAnnotation::default()
        };
        for (name, annotation) in [
            ("bytes", binary(AnnotationType::Bytes, b"abc")),
            ("a number", binary(AnnotationType::I32, &[0, 0, 1, 0])),
            ("an unknown type", binary(AnnotationType::Other(9), b"abc")),
        ] {
            let trace = self.trace_id();
            let mut span = span_of(&trace);
            span.binary_annotations.push(annotation);
            let body = thrift_list(&[span::encode(&span)]);
            self.http(&format!("v1 thrift, {name}"), V1, &[THRIFT], body, &trace);
        }
        let trace = self.trace_id();
        let mut span = span_of(&trace);
        span.annotations
            .push(blkin_thrift::Annotation { value: "timeless".to_owned(), ..Default::default() });
        let body = thrift_list(&[span::encode(&span)]);
        self.http("v1 thrift, annotation at 0", V1, &[THRIFT], body, &trace);
        self.nothing_said();
        self.short_address();
    }

    /// A span most of whose annotations are empty.
    fn nothing_said(&mut self) {
        let trace = self.trace_id();
        let mut body = thrift_list(&[span::encode(&span_of(&trace))]);
        // Replaces the last byte, which ends the span, with lists of three empty structs.
        body.pop();
        for list in [6, 8] {
            body.extend([15, 0, list, 12, 0, 0, 0, 3, 0, 0, 0]);
        }
        body.push(0);
        self.http("v1 thrift, empty annotations", V1, &[THRIFT], body, &trace);
    }

    /// An IPv4 address in the field of an IPv6 address.
    fn short_address(&mut self) {
        let trace = self.trace_id();
        let mut body = thrift_list(&[span::encode(&span_of(&trace))]);
        body.pop();
        body.extend([15, 0, 6, 12, 0, 0, 0, 1, 10, 0, 1, 0, 0, 0, 0, 0, 0, 0, 9, 11, 0, 2, 0, 0, 0, 1, b'x']);
        body.extend([12, 0, 3, 11, 0, 3, 0, 0, 0, 1, b's', 11, 0, 4, 0, 0, 0, 4, 1, 2, 3, 4, 0, 0, 0]);
        self.http("v1 thrift, an address of four bytes", V1, &[THRIFT], body, &trace);
    }

    /// Two events of one microsecond, with the nanoseconds that consumerd sends.
    fn nanoseconds(&mut self) {
        let trace = self.trace_id();
        let mut span = span_of(&trace);
        let at = |nanos, value: &str| blkin_thrift::Annotation {
            timestamp: 9,
            value: value.to_owned(),
            nanos: Some(nanos),
            ..Default::default()
        };
        span.annotations.extend([at(100, "Enqueuing op"), at(200, "Enqueued op")]);
        self.scribe("nanoseconds", "zipkin", vec![scribe_message(&span)], &trace);
    }

    /// One span in two pieces in one list: the server's begin and its end.
    fn pieces(&mut self) {
        let trace = self.trace_id();
        let piece = |timestamp: i64, value: &str| {
            json!({"traceId": trace, "id": "2", "name": "piece",
            "annotations": [{"timestamp": timestamp, "value": value, "endpoint": {"serviceName": "edge"}}]})
        };
        let body = Value::Array(vec![piece(10, "sr"), piece(30, "ss")]).to_string().into_bytes();
        self.http("v1 JSON, pieces of a span", V1, &[JSON], body, &trace);
    }

    /// Two parties that use the same span id, each with a complete span.
    fn v1_sides(&mut self) {
        const CLIENT: [&str; 2] = ["cs", "cr"];
        const SERVER: [&str; 2] = ["sr", "ss"];
        let cases = [
            ("both sides of a service", [(CLIENT, "osd", 1), (SERVER, "osd", 2)]),
            ("two servers of a service", [(SERVER, "osd", 1), (SERVER, "osd", 2)]),
            ("two servers", [(SERVER, "x", 1), (SERVER, "y", 2)]),
            ("two clients", [(CLIENT, "a", 1), (CLIENT, "b", 2)]),
        ];
        for (name, sides) in cases {
            let (trace, now) = (self.trace_id(), now_us());
            let side = |(ends, service, number): ([&str; 2], &str, i64)| {
                let endpoint = json!({"serviceName": service, "ipv4": format!("10.0.0.{number}")});
                let at = |value, moment| json!({"timestamp": moment, "value": value, "endpoint": endpoint});
                let (begin, end) = (now + number, now + 10 * number);
                json!({"traceId": trace, "id": "2", "name": format!("call {number}"), "timestamp": begin,
                    "duration": end - begin, "annotations": [at(ends[0], begin), at(ends[1], end)],
                    "binaryAnnotations": [{"key": "n", "value": number.to_string(), "endpoint": endpoint}]})
            };
            let body = Value::Array(sides.map(side).to_vec()).to_string().into_bytes();
            self.http(&format!("v1 JSON, {name}"), V1, &[JSON], body, &trace);
        }
    }

    /// What v1 can express only in JSON: in thrift zeros mean no address, and ids have 64 or 128 bits.
    fn beyond_thrift(&mut self) {
        for (name, address) in [
            ("no address", r#""ipv4":"0.0.0.0""#),
            ("no address, longer", r#""ipv6":"::""#),
            ("a short address", r#""ipv6":"::2""#),
        ] {
            let trace = self.trace_id();
            let endpoint = format!(r#"{{"serviceName":"edge",{address}}}"#);
            let annotations = format!(r#"[{{"timestamp":9,"value":"x","endpoint":{endpoint}}}]"#);
            let body = format!(r#"[{{"traceId":"{trace}","id":"2","annotations":{annotations}}}]"#);
            self.http(&format!("v1 JSON, {name}"), V1, &[JSON], body.into_bytes(), &trace);
        }
        let trace = self.trace_id();
        let body = format!(r#"[{{"traceId":"3{trace}","id":"2"}}]"#);
        self.http("v1 JSON, an id of 17 digits", V1, &[JSON], body.into_bytes(), &trace);
        // The id under which we store it. Without it, both answers would be empty until Zipkin has stored the span.
        let ours = format!("{:0>32}", format!("3{trace}"));
        if let Some(case) = self.cases.last_mut() {
            case.traces.push(ours);
        }
    }

    fn scribe_calls(&mut self) {
        let trace = self.trace_id();
        let good = scribe_message(&span_of(&trace));
        let lines = good.chunks(20).collect::<Vec<_>>().join(&b"\r\n"[..]);
        self.scribe("base64 in lines", "zipkin", vec![lines], &trace);
        let trace = self.trace_id();
        let good = scribe_message(&span_of(&trace));
        self.scribe("another category", "other", vec![good.clone()], &trace);
        self.scribe("an upper-case category", "ZIPKIN", vec![good.clone()], &trace);
        self.scribe("no entries", "zipkin", Vec::new(), &trace);
        self.scribe("a bad entry among good ones", "zipkin", vec![good, b"%%%".to_vec()], &trace);
        let trace = self.trace_id();
        self.scribe("an id of 0", "zipkin", vec![scribe_message(&span_of("0"))], &trace);
    }

    /// Bodies that do not match their headers.
    fn bodies(&mut self) {
        let trace = self.trace_id();
        let one = |trace: &str| format!(r#"[{{"traceId":"{trace}","id":"2"}}]"#).into_bytes();
        self.http("v2 JSON, compressed", V2, &[JSON, GZIP], gzip(&one(&trace)), &trace);
        let trace = self.trace_id();
        self.http("v2 JSON, without a type", V2, &[], one(&trace), &trace);
        let trace = self.trace_id();
        self.http(
            "v2 JSON, with a charset",
            V2,
            &[("Content-Type", "application/json; charset=utf-8")],
            one(&trace),
            &trace,
        );
        let trace = self.trace_id();
        self.http("v2 JSON, in /zipkin", "/zipkin/api/v2/spans", &[JSON], one(&trace), &trace);
        let trace = self.trace_id();
        self.http("v1 JSON, in /zipkin", "/zipkin/api/v1/spans", &[JSON], one(&trace), &trace);
        for path in
            ["//api/v2/spans", "/api/v2//spans", "/api/v2/%73pans", "/api%2Fv2/spans", "/api/v2/spans/"]
        {
            let trace = self.trace_id();
            self.http(&format!("v2 JSON, at {path}"), path, &[JSON], one(&trace), &trace);
        }
        let trace = self.trace_id();
        let coded = [JSON, ("Content-Encoding", "GZIP")];
        self.http("v2 JSON, compressed in capitals", V2, &coded, gzip(&one(&trace)), &trace);
        let trace = self.trace_id();
        let coded = [JSON, ("Content-Encoding", "x-gzip")];
        self.http("v2 JSON, compressed as it was once called", V2, &coded, gzip(&one(&trace)), &trace);
        let trace = self.trace_id();
        let coded = [JSON, ("Content-Encoding", "gzip,")];
        self.http("v2 JSON, compressed, and a comma", V2, &coded, gzip(&one(&trace)), &trace);
        let trace = self.trace_id();
        let coded = [JSON, GZIP, GZIP];
        self.http("v2 JSON, compressed as each of two lines says", V2, &coded, gzip(&one(&trace)), &trace);
        let trace = self.trace_id();
        if let Some(body) = proto3_list(&[json!({"traceId": trace, "id": "2"})]) {
            let typed = [("Content-Type", "Application/X-Protobuf")];
            self.http("proto3, in another case", V2, &typed, body, &trace);
        }
        let trace = self.trace_id();
        self.http("v2 JSON, not compressed as it says", V2, &[JSON, GZIP], one(&trace), &trace);
        for (name, body) in [
            ("nothing", &b""[..]),
            ("an empty list", b"[]"),
            ("an object", b"{}"),
            ("no JSON", b"hello"),
            ("a list without end", br#"[{"traceId":"1","id":"2"}"#),
            ("a number in a list", b"[7]"),
        ] {
            self.http(&format!("v2 JSON, {name}"), V2, &[JSON], body.to_vec(), &trace);
            self.http(&format!("v1 JSON, {name}"), V1, &[JSON], body.to_vec(), &trace);
        }
        for (name, body) in
            [("nothing", &b""[..]), ("garbage", b"\xff\xff"), ("an empty list", &[12, 0, 0, 0, 0])]
        {
            self.http(&format!("v1 thrift, {name}"), V1, &[THRIFT], body.to_vec(), &trace);
        }
        for (name, body) in
            [("nothing", &b""[..]), ("garbage", b"\xff\xff"), ("a span cut off", b"\x0a\x20\x0a\x08")]
        {
            self.http(&format!("proto3, {name}"), V2, &[PROTOBUF], body.to_vec(), &trace);
        }
        for (name, path, kind) in [
            ("v2 JSON", V2, JSON),
            ("proto3", V2, PROTOBUF),
            ("v1 JSON", V1, JSON),
            ("v1 thrift", V1, THRIFT),
        ] {
            self.http(&format!("{name}, nothing, compressed"), path, &[kind, GZIP], gzip(b""), &trace);
            self.http(
                &format!("{name}, nothing, not compressed as it says"),
                path,
                &[kind, GZIP],
                Vec::new(),
                &trace,
            );
        }
        let trace = self.trace_id();
        let zero = format!(r#"[{{"traceId":"{trace}","id":"0"}}]"#);
        self.http("v2 JSON, a short id of 0", V2, &[JSON], zero.into_bytes(), &trace);
        let trace = self.trace_id();
        let v1 = format!(r#"[{{"traceId":"{trace}","id":"2","binaryAnnotations":[]}}]"#);
        self.http("v2 JSON, a span of v1", V2, &[JSON], v1.into_bytes(), &trace);
        let v2 = format!(r#"[{{"traceId":"{trace}","id":"2","localEndpoint":{{"serviceName":"x"}}}}]"#);
        self.http("v1 JSON, a span of v2", V1, &[JSON], v2.into_bytes(), &trace);
        let trace = self.trace_id();
        let mixed =
            format!(r#"[{{"traceId":"{trace}","id":"2"}},{{"traceId":"{trace}","id":"X"}}]"#).into_bytes();
        self.http("v2 JSON, a bad entry among good ones", V2, &[JSON], mixed.clone(), &trace);
        self.http("v1 JSON, a bad entry among good ones", V1, &[JSON], mixed, &trace);
    }

    /// Bodies with the content type of another format.
    fn mislabelled(&mut self) {
        let one = |trace: &str| format!(r#"[{{"traceId":"{trace}","id":"2"}}]"#).into_bytes();
        for (road, path) in [("v2 JSON", V2), ("v1 JSON", V1)] {
            for coding in ["deflate", "br", "zstd", "x"] {
                let trace = self.trace_id();
                let coded = [JSON, ("Content-Encoding", coding)];
                self.http(&format!("{road}, plain but called {coding}"), path, &coded, one(&trace), &trace);
            }
            for codings in ["gzip, gzip", "gzip, identity"] {
                let trace = self.trace_id();
                let coded = [JSON, ("Content-Encoding", codings)];
                let name = format!("{road}, compressed once but called {codings}");
                self.http(&name, path, &coded, gzip(&one(&trace)), &trace);
            }
            let trace = self.trace_id();
            let typed = [("Content-Type", "text/plain")];
            self.http(&format!("{road}, called text"), path, &typed, one(&trace), &trace);
        }
        let trace = self.trace_id();
        self.http("v2 JSON, called thrift", V2, &[THRIFT], one(&trace), &trace);
        let trace = self.trace_id();
        self.http("v1 JSON, called protocol buffers", V1, &[PROTOBUF], one(&trace), &trace);
    }

    /// Bodies that are not valid JSON, some of which Zipkin's reader accepts.
    fn nearly_json(&mut self) {
        for (name, text, rest) in [
            ("half a surrogate pair", r"cut \ud83d", ""),
            ("the other half", r"\ude00 cut", ""),
            ("a tab", "a\tb", ""),
            ("a control character", "a\u{1}b", ""),
            ("an escaped apostrophe", r"it\'s", ""),
            ("a wrong escape among good ones", r"a\xb", ""),
            ("something after the list", "a", "x"),
            ("a list after the list", "a", r#"[{"traceId":"1","id":"5"}]"#),
        ] {
            for (road, path) in [("v2 JSON", V2), ("v1 JSON", V1)] {
                let trace = self.trace_id();
                let span = |id, name| format!(r#"{{"traceId":"{trace}","id":"{id}","name":"{name}"}}"#);
                let body = format!("[{},{},{}]{rest}", span(2, "one"), span(3, text), span(4, "three"));
                self.http(&format!("{road}, {name}"), path, &[JSON], body.into_bytes(), &trace);
            }
        }
        let trace = self.trace_id();
        self.http("v2 JSON, something after nothing", V2, &[JSON], b"[]x".to_vec(), &trace);
        let deep = format!("{}{}", "[".repeat(300), "]".repeat(300));
        for (name, before, member) in [
            ("a blank before the list", " ", "null"),
            ("a control character before the list", "\u{1}", "null"),
            ("a member of 300 lists within each other", "", &*deep),
            ("a word in capitals", "", "TRUE"),
        ] {
            for (road, path) in [("v2 JSON", V2), ("v1 JSON", V1)] {
                let trace = self.trace_id();
                let body = format!(r#"{before}[{{"traceId":"{trace}","id":"2","x":{member}}}]"#);
                self.http(&format!("{road}, {name}"), path, &[JSON], body.into_bytes(), &trace);
            }
        }
    }

    /// Traces of today, for searches.
    fn shop(&mut self) {
        for at in 0..5_i64 {
            let trace = self.trace_id();
            let start = now_us() - 60_000_000 + at * 1_000_000;
            let web = json!({"serviceName": "Shop-Web", "ipv4": "10.0.0.1"});
            let store = json!({"serviceName": "shop-store", "ipv4": "10.0.0.2"});
            let error = if at % 2 == 0 {
                json!({"error": "broken", "item": at.to_string()})
            } else {
                json!({"item": "x"})
            };
            let spans = json!([
                {"traceId": trace, "id": "1", "kind": "SERVER", "name": "GET /", "timestamp": start, "duration": 1000 * (at + 1),
                 "localEndpoint": web, "remoteEndpoint": {"serviceName": "shop-browser"}},
                {"traceId": trace, "id": "2", "parentId": "1", "kind": "CLIENT", "name": "Fetch", "timestamp": start + 10,
                 "duration": 500, "localEndpoint": web, "remoteEndpoint": store, "tags": error},
                {"traceId": trace, "id": "2", "parentId": "1", "kind": "SERVER", "name": "fetch", "timestamp": start + 20,
                 "duration": 300, "localEndpoint": store, "shared": true,
                 "annotations": [{"timestamp": start + 30, "value": "cache.miss"}]},
            ]);
            self.http(&format!("v2 JSON, shop {at}"), V2, &[JSON], spans.to_string().into_bytes(), &trace);
        }
    }
}

fn span_of(trace: &str) -> blkin_thrift::Span {
    let trace_id = i64::from_str_radix(trace, 16).unwrap_or(0);
    blkin_thrift::Span { trace_id, id: 2, name: "thrift".to_owned(), ..Default::default() }
}

/// Gives an input its own trace id in place of a placeholder; other trace ids, which are invalid, stay.
fn with_trace_id(list: &str, trace: &str) -> String {
    let mut list = list.to_owned();
    for placeholder in PLACEHOLDERS {
        for quoted in ["\"traceId\": \"", "\"traceId\":\""] {
            list = list.replace(&format!("{quoted}{placeholder}\""), &format!("{quoted}{trace}\""));
            list =
                list.replace(&format!("{quoted}{LONG}{placeholder}\""), &format!("{quoted}{LONG}{trace}\""));
        }
    }
    for quoted in ["\"traceId\": \"", "\"traceId\":\""] {
        list = list.replace(&format!("{quoted}1\""), &format!("{quoted}{trace}\""));
    }
    list
}
