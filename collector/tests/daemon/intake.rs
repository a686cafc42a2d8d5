//! What HTTP accepts, what the answers say about the rest, and which web pages may post.

use std::io::{Read, Write};
use std::net::TcpStream;

use blkin_thrift::scribe::{LogEntry, ResultCode};
use flate2::read::MultiGzDecoder;
use serde_json::Value;

use crate::bad_input::{GZIP, JSON, PROTOBUF, THRIFT, gzip};
use crate::limits::configured;
use crate::running::{Collector, Scribe, command, entry, span_entry, told};

/// A list of one span with these ids, as protocol buffers.
fn proto3(trace_id: u8, id: u8) -> Vec<u8> {
    let mut span = vec![0x0a, 8, 0, 0, 0, 0, 0, 0, 0, trace_id];
    span.extend_from_slice(&[0x1a, 8, 0, 0, 0, 0, 0, 0, 0, id]);
    span.extend_from_slice(&[0x2a, 3, b'G', b'E', b'T']);
    [vec![0x0a, span.len() as u8], span].concat()
}

#[test]
fn protobuf_is_read_plain_and_gzipped_refusing_only_bad_spans() {
    let folder = tempfile::tempdir().unwrap();
    let collector = Collector::start(folder.path());
    assert_eq!(collector.post("/api/v2/spans", &[PROTOBUF], &proto3(1, 1)), (202, String::new()));
    assert_eq!(collector.post("/api/v2/spans", &[PROTOBUF, GZIP], &gzip(&proto3(2, 1))).0, 202);
    let mixed = [proto3(3, 1), proto3(4, 0), proto3(5, 1)].concat();
    assert_eq!(collector.post("/api/v2/spans", &[PROTOBUF], &mixed).0, 202);
    let (status, reason) = collector.post("/api/v2/spans", &[PROTOBUF], &proto3(0, 1));
    assert!(status == 400 && reason.contains("trace_id"), "{status} {reason}");
    assert!([1, 2, 3, 5].into_iter().all(|id| collector.has_trace(id)) && !collector.has_trace(4));
    assert_eq!(collector.json("/api/v2/trace/1")[0]["name"], "get");
    let ledger = collector.ledger();
    assert_eq!((&ledger["spans"]["stored"], &ledger["spans"]["lost"]["malformed"]), (&4.into(), &2.into()));
}

#[test]
fn nearly_valid_json_spans_are_stored_and_only_invalid_refused() {
    let folder = tempfile::tempdir().unwrap();
    let collector = Collector::start(folder.path());
    let span = |trace: &str, name: &str| format!(r#"{{"traceId":"{trace}","id":"1","name":"{name}"}}"#);
    for (path, trace) in [("/api/v2/spans", "a"), ("/api/v1/spans", "b")] {
        let [one, two, three] = [1, 2, 3].map(|number| format!("{trace}{number}"));
        let list =
            format!("[{},{},{}]", span(&one, "ok"), span(&two, r"cut \ud83d"), span(&three, "a\tb\u{1}"));
        assert_eq!(collector.post(path, &[JSON], list.as_bytes()), (202, String::new()));
        for (trace, name) in [(&one, "ok"), (&two, "cut \u{fffd}"), (&three, "a\tb\u{1}")] {
            assert_eq!(collector.json(&format!("/api/v2/trace/{trace}"))[0]["name"], name);
        }
        let odd = format!("[{},{}]{}", span("c", "ok"), span("d", r"a\xb"), span("e", "behind"));
        assert_eq!(collector.post(path, &[JSON], odd.as_bytes()).0, 202);
        assert!(collector.has_trace(0xc) && !collector.has_trace(0xd) && !collector.has_trace(0xe));
    }
    let rejects = &collector.json("/api/blkin/rejects")["counts"];
    assert_eq!(rejects["http_v1"], serde_json::json!({"syntax": 1, "bad_value": 1}));
    assert_eq!(rejects["http_v2"], rejects["http_v1"]);
}

#[test]
fn odd_spellings_of_paths_work_and_unknown_paths_log_once() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let file = std::fs::File::create(&log).unwrap();
    let collector = Collector::spawn_logging_to(folder.path(), &mut command(folder.path()), file.into());
    let span = r#"[{"traceId":"1","id":"1","localEndpoint":{"serviceName":"there"}}]"#;
    for path in ["//api/v2/spans", "/api/v2//spans", "/zipkin///api/v2/spans", "/api/v2/%73pans"] {
        assert_eq!(collector.post(path, &[JSON], span.as_bytes()).0, 202, "{path}");
    }
    for path in ["//api/v2/services", "//zipkin/api//v2/%73ervices", "/api/v2/services?a=//"] {
        assert_eq!(collector.get(path), (200, r#"["there"]"#.to_owned()), "{path}");
    }
    for path in ["/api/v2/span", "//api/v2/span", "/api%2Fv2/spans", "/api/v2/span"] {
        assert_eq!(collector.post(path, &[JSON], span.as_bytes()).0, 404, "{path}");
    }
    assert_eq!(collector.get("/api/v2/gone").0, 404);
    let lines = told(&log, "to an unknown path", 2);
    assert!(lines.len() == 2 && lines[0].contains("/api/v2/span\"") && lines[1].contains("%2F"), "{lines:?}");
}

#[test]
fn content_types_and_codings_ignore_case() {
    let folder = tempfile::tempdir().unwrap();
    let collector = Collector::start(folder.path());
    let json = |trace: u64| format!(r#"[{{"traceId":"{trace}","id":"1"}}]"#).into_bytes();
    let typed = ("content-type", "Application/X-Protobuf; a=b");
    assert_eq!(collector.post("/api/v2/spans", &[typed], &proto3(1, 1)).0, 202);
    let typed = ("content-type", "APPLICATION/X-THRIFT");
    let list = [&[12, 0, 0, 0, 1][..], &blkin_thrift::span::encode(&crate::running::span(2))].concat();
    assert_eq!(collector.post("/api/v1/spans", &[typed], &list).0, 202);
    for (trace, coding) in [(3, "x-gzip"), (4, "X-GZip"), (5, "GZIP")] {
        let coded = ("content-encoding", coding);
        assert_eq!(collector.post("/api/v2/spans", &[JSON, coded], &gzip(&json(trace))).0, 202, "{coding}");
    }
    let plain = ("content-encoding", "Identity");
    assert_eq!(collector.post("/api/v2/spans", &[JSON, plain], &json(6)).0, 202);
    assert!((1..=6).all(|trace| collector.has_trace(trace)));
    let (status, said) = collector.post("/api/v2/spans", &[JSON, ("content-encoding", "BR")], &json(7));
    assert!(status == 415 && said.contains(r#""BR""#), "{status} {said}");
}

#[test]
fn rejects_are_counted_by_transport_and_cause_with_reasons() {
    let folder = tempfile::tempdir().unwrap();
    let collector = Collector::start(folder.path());
    let mut scribe = Scribe::connect(collector.scribe);
    scribe.log(&[entry("%%%"), span_entry(1), span_entry(0)]).unwrap();
    collector.post("/api/v2/spans", &[JSON], br#"[{"traceId":"1","id":"1","kind":"NONE"}]"#);
    collector.post("/api/v2/spans", &[JSON, GZIP], b"not gzip");
    collector.post("/api/v1/spans", &[JSON], br#"[{"traceId":"1","id":"1","tags":{}}]"#);
    let rejects = collector.json("/api/blkin/rejects");
    let expected = serde_json::json!({
        "scribe": {"syntax": 1, "bad_id": 1},
        "http_v1": {"other_version": 1},
        "http_v2": {"bad_value": 1, "encoding": 1},
    });
    assert_eq!(rejects["counts"], expected);
    let recent = rejects["recent"].as_array().unwrap();
    assert_eq!(recent.len(), 5);
    let latest = &recent[0];
    assert_eq!((&latest["transport"], &latest["cause"]), (&"http_v1".into(), &"other_version".into()));
    assert!(latest["reason"].as_str().unwrap().contains("/api/v2/spans") && latest["time_ms"].is_u64());
    assert!(latest["peer"].as_str().unwrap().starts_with("127.0.0.1:"), "{latest}");
    let by_scribe = recent.iter().filter(|reject| reject["transport"] == "scribe");
    let senders: Vec<_> = by_scribe.map(|reject| &reject["peer"]).collect();
    assert_eq!(senders, [scribe.address().as_str(); 2]);
    let metrics = collector.get("/metrics").1;
    let line = r#"blkin_collector_rejected_total{transport="http_v2",cause="encoding"} 1"#;
    assert!(metrics.lines().any(|found| found == line), "{metrics}");
    let malformed: &Value = &collector.ledger()["spans"]["lost"]["malformed"];
    assert_eq!(malformed, &5);
}

/// Each commit costs a sync of the disk.
#[test]
fn only_messages_with_something_to_keep_cause_a_commit() {
    let folder = tempfile::tempdir().unwrap();
    let collector = Collector::start(folder.path());
    let mut scribe = Scribe::connect(collector.scribe);
    assert_eq!(scribe.log(&[span_entry(1)]).unwrap(), ResultCode::Ok);
    assert_eq!(collector.metric("commits"), 1);
    for (path, kind, body) in [
        ("/api/v2/spans", JSON, &b"[]"[..]),
        ("/api/v2/spans", PROTOBUF, b""),
        ("/api/v1/spans", JSON, b"[]"),
        ("/api/v1/spans", THRIFT, &[12, 0, 0, 0, 0]),
    ] {
        assert_eq!(collector.post(path, &[kind], body), (202, String::new()), "{path} {kind:?}");
    }
    let other = LogEntry { category: "access_log".to_owned(), ..span_entry(2) };
    for entries in [&[][..], &[other]] {
        assert_eq!(scribe.log(entries).unwrap(), ResultCode::Ok);
    }
    assert_eq!((collector.metric("commits"), collector.metric("skipped_entries")), (1, 1));
    // Nothing is stored of this one, but the ledger counts it, also after a restart.
    assert_eq!(scribe.log(&[entry("%%%")]).unwrap(), ResultCode::Ok);
    assert_eq!(collector.metric("commits"), 2);
}

/// The head of the answer to a request written by hand.
pub(super) fn head(collector: &Collector, request: &str) -> String {
    let mut stream = TcpStream::connect(collector.http).unwrap();
    stream.write_all(format!("{request}\r\nHost: x\r\nConnection: close\r\n\r\n").as_bytes()).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    String::from_utf8_lossy(&answer).split("\r\n\r\n").next().unwrap().to_lowercase()
}

/// `nc` and `socat` close their sending side like this at the end of their input.
#[test]
fn a_half_closed_connection_is_answered_and_its_spans_stored() {
    let folder = tempfile::tempdir().unwrap();
    let collector = Collector::start(folder.path());
    let answer_to = |request: &str| {
        let mut stream = TcpStream::connect(collector.http).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let spans = r#"[{"traceId": "7", "id": "1"}]"#;
    let head = format!("POST /api/v2/spans HTTP/1.0\r\nContent-Length: {}\r\n\r\n", spans.len());
    let posted = answer_to(&format!("{head}{spans}"));
    assert!(posted.starts_with("HTTP/1.0 202"), "{posted}");
    assert!(collector.has_trace(7));
    let found = answer_to("GET /api/v2/trace/7 HTTP/1.0\r\n\r\n");
    assert!(found.starts_with("HTTP/1.0 200") && found.ends_with("]"), "{found}");
    let broken_off = answer_to(&head);
    assert!(!broken_off.starts_with("HTTP/1.0 2"), "{broken_off}");
}

/// Each piece of a file is read by another thread and awaited; meanwhile the end of the client's input is seen again.
#[test]
fn a_half_closed_connection_gets_a_large_answer_whole() {
    const LENGTH: u64 = 8 << 20;
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("index.html"), "").unwrap();
    let file = std::fs::File::create(folder.path().join("large.bin")).unwrap();
    file.set_len(LENGTH).unwrap();
    let collector = configured(folder.path(), &format!("ui_dir = {:?}\n", folder.path()));
    for compressed in [false, true] {
        let accept = if compressed { "Accept-Encoding: gzip\r\n" } else { "" };
        let mut stream = TcpStream::connect(collector.http).unwrap();
        write!(stream, "GET /zipkin/large.bin HTTP/1.0\r\n{accept}\r\n").unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let body = answer.windows(4).position(|window| window == b"\r\n\r\n").unwrap() + 4;
        let mut whole = answer[body..].to_vec();
        if compressed {
            whole.clear();
            MultiGzDecoder::new(&answer[body..]).read_to_end(&mut whole).unwrap();
        }
        assert_eq!(whole.len() as u64, LENGTH, "compressed: {compressed}");
    }
}

#[test]
fn cors_allows_every_origin_unless_configured() {
    let folder = tempfile::tempdir().unwrap();
    let collector = Collector::start(folder.path());
    let answer = head(&collector, "GET /api/v2/services HTTP/1.1\r\nOrigin: http://page.example");
    assert!(answer.contains("access-control-allow-origin: *"), "{answer}");
    let exposed = "access-control-expose-headers: blkin-limit,blkin-partial,retry-after";
    assert!(answer.contains(exposed), "the headers of a partial answer are exposed: {answer}");
    let ask = "OPTIONS /api/v2/spans HTTP/1.1\r\nOrigin: http://page.example\r\nAccess-Control-Request-Method: POST\
               \r\nAccess-Control-Request-Headers: content-type";
    let answer = head(&collector, ask);
    assert!(
        answer.starts_with("http/1.1 200") && answer.contains("access-control-allow-methods: get,post"),
        "{answer}"
    );
    assert!(answer.contains("content-type"), "{answer}");
    drop(collector);

    let file = folder.path().join("collector.toml");
    std::fs::write(&file, "cors_origins = [\"http://ours.example\", \"https://Grafana.Example\"]\n").unwrap();
    let mut command = command(folder.path());
    let collector = Collector::spawn(folder.path(), command.arg("--config").arg(&file));
    for (origin, allowed) in
        [("http://ours.example", true), ("https://grafana.example", true), ("http://page.example", false)]
    {
        let answer = head(&collector, &format!("GET /api/v2/services HTTP/1.1\r\nOrigin: {origin}"));
        assert_eq!(answer.contains(&format!("access-control-allow-origin: {origin}")), allowed, "{answer}");
    }
}
