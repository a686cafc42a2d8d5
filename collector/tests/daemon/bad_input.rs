//! Bad input: a clear error, neighbours unharmed, memory bounded.

use std::io::Write;
use std::net::{Shutdown, TcpStream};

use blkin_thrift::scribe::{LogEntry, Outcome, ResultCode, encode_log_call};
use flate2::Compression;
use flate2::write::GzEncoder;

use crate::running::{Collector, Scribe, command, entry, span_entry, told};

pub(crate) const JSON: (&str, &str) = ("content-type", "application/json");
pub(crate) const THRIFT: (&str, &str) = ("content-type", "application/x-thrift");
pub(crate) const PROTOBUF: (&str, &str) = ("content-type", "application/x-protobuf");
pub(crate) const GZIP: (&str, &str) = ("content-encoding", "gzip");

pub(crate) fn gzip(plain: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(plain).unwrap();
    encoder.finish().unwrap()
}

fn malformed(collector: &Collector) -> u64 {
    collector.ledger()["annotations"]["lost"]["malformed"].as_u64().unwrap()
}

#[test]
fn a_bad_scribe_entry_is_counted_and_its_neighbours_are_stored() {
    let folder = tempfile::tempdir().unwrap();
    let collector = Collector::start(folder.path());
    let zero_id = blkin_thrift::scribe::span_message(&crate::running::span(0));
    let truncated = blkin_thrift::scribe::span_message(&crate::running::span(9));
    let nested = nested_span();
    let bad: [Vec<u8>; 6] = [
        b"no base64: \x00\xff\xfe!".to_vec(),
        b"AAAA".to_vec(),
        Vec::new(),
        zero_id,
        truncated[..truncated.len() / 2].to_vec(),
        nested,
    ];
    let mut entries = vec![span_entry(1)];
    entries.extend(bad.iter().cloned().map(entry));
    entries.push(LogEntry { category: "access_log".to_owned(), message: b"not for us".to_vec() });
    entries.push(span_entry(2));
    let mut scribe = Scribe::connect(collector.scribe);
    assert_eq!(scribe.log(&entries).unwrap(), ResultCode::Ok);
    assert!(collector.has_trace(1) && collector.has_trace(2));
    assert_eq!(malformed(&collector), bad.len() as u64);
    assert_eq!(collector.ledger()["annotations"]["stored"], 4);
}

#[test]
fn entries_of_other_categories_are_counted_and_each_category_is_named_once() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let file = std::fs::File::create(&log).unwrap();
    let collector = Collector::spawn_logging_to(folder.path(), &mut command(folder.path()), file.into());
    let other = |category: &str| LogEntry { category: category.to_owned(), ..span_entry(1) };
    let mut scribe = Scribe::connect(collector.scribe);
    for entries in
        [vec![other("zipkn"), span_entry(2), other("zipkn")], vec![other("zipkn")], vec![other("a\nb")]]
    {
        assert_eq!(scribe.log(&entries).unwrap(), ResultCode::Ok);
    }
    assert!(!collector.has_trace(1) && collector.has_trace(2));
    let metrics = collector.get("/metrics").1;
    assert!(metrics.contains("\nblkin_collector_skipped_entries_total 4\n"), "{metrics}");
    let lines = told(&log, "of another category", 2);
    assert!(lines.len() == 2 && lines[0].contains("zipkn") && lines[1].contains(r"a\nb"), "{lines:?}");
}

/// A span with an unknown field of 100,000 structs within each other, in base64.
fn nested_span() -> Vec<u8> {
    use base64::Engine;
    let fields: Vec<u8> = [12, 0, 99].repeat(100_000);
    base64::engine::general_purpose::STANDARD.encode(fields).into_bytes()
}

#[test]
fn empty_annotations_are_counted_and_the_others_stored() {
    let folder = tempfile::tempdir().unwrap();
    let collector = Collector::start(folder.path());
    let mut span = crate::running::span(5);
    span.annotations.push(blkin_thrift::Annotation {
        timestamp: 0,
        value: "x".to_owned(),
        ..Default::default()
    });
    span.annotations.push(blkin_thrift::Annotation { timestamp: 1, ..Default::default() });
    let message = blkin_thrift::scribe::span_message(&span);
    assert_eq!(Scribe::connect(collector.scribe).log(&[entry(message)]).unwrap(), ResultCode::Ok);
    let ledger = collector.ledger();
    assert_eq!((&ledger["annotations"]["stored"], malformed(&collector)), (&3.into(), 1));
}

#[test]
fn an_unreadable_scribe_call_gets_an_exception_not_a_hangup() {
    let folder = tempfile::tempdir().unwrap();
    let collector = Collector::start(folder.path());
    let mut scribe = Scribe::connect(collector.scribe);
    let call = encode_log_call(7, &[span_entry(1)]);
    scribe.send_frame(&call[4..call.len() - 20]);
    assert_exception(&mut scribe, 7);
    let unknown: Vec<u8> = [&[0x80, 1, 0, 1, 0, 0, 0, 4][..], b"nope", &[0, 0, 0, 8, 0]].concat();
    scribe.send_frame(&unknown);
    assert_exception(&mut scribe, 1);
    let mut many = call[4..].to_vec();
    let count_at = many.windows(2).position(|w| w == [15, 0]).unwrap() + 4;
    many[count_at..count_at + 4].copy_from_slice(&i32::MAX.to_be_bytes());
    scribe.send_frame(&many);
    assert_exception(&mut scribe, 7);
    assert_eq!(scribe.log(&[span_entry(2)]).unwrap(), ResultCode::Ok);
    assert!(!collector.has_trace(1) && collector.has_trace(2));
    assert_eq!(malformed(&collector), 2);
    let recent = &collector.json("/api/blkin/rejects")["recent"];
    let senders = recent.as_array().unwrap().iter().map(|reject| reject["peer"].as_str());
    assert_eq!(Vec::from_iter(senders), [Some(&*scribe.address()); 2]);
}

fn assert_exception(scribe: &mut Scribe, kind: i32) {
    match scribe.reply().unwrap().1 {
        Outcome::Exception(exception) => assert_eq!(exception.kind, kind, "{exception}"),
        other => panic!("{other:?} is no exception"),
    }
}

#[test]
fn absurd_or_truncated_frames_end_only_their_connection() {
    let folder = tempfile::tempdir().unwrap();
    let collector = Collector::start(folder.path());
    let mut neighbour = Scribe::connect(collector.scribe);
    for header in [[0x7f, 0xff, 0xff, 0xff], [0xff; 4], *b"GET ", [0x80, 1, 0, 1]] {
        let mut scribe = Scribe::connect(collector.scribe);
        scribe.0.write_all(&header).unwrap();
        assert!(scribe.reply().is_err(), "{header:?}");
    }
    let mut garbage = Scribe::connect(collector.scribe);
    garbage.send_frame(&[0xff; 100]);
    assert!(garbage.reply().is_err());
    let call = encode_log_call(1, &[span_entry(1)]);
    for length in [0, 1, 3, 4, 10, call.len() - 1] {
        let mut scribe = Scribe::connect(collector.scribe);
        scribe.0.write_all(&call[..length]).unwrap();
        scribe.0.shutdown(Shutdown::Write).unwrap();
        assert!(scribe.reply().is_err(), "{length} bytes");
    }
    assert_eq!(neighbour.log(&[span_entry(2)]).unwrap(), ResultCode::Ok);
    assert!(!collector.has_trace(1) && collector.has_trace(2));
}

#[test]
fn announced_lengths_take_no_memory_before_their_bytes_come() {
    let folder = tempfile::tempdir().unwrap();
    let collector = Collector::start(folder.path());
    let before = collector.peak_kib();
    let _held: Vec<TcpStream> = (0..500)
        .map(|_| {
            let mut stream = TcpStream::connect(collector.scribe).unwrap();
            stream.write_all(&(16_u32 << 20).to_be_bytes()).unwrap();
            stream.write_all(b"x").unwrap();
            stream
        })
        .collect();
    let mut neighbour = Scribe::connect(collector.scribe);
    assert_eq!(neighbour.log(&[span_entry(1)]).unwrap(), ResultCode::Ok);
    let grown = collector.peak_kib() - before;
    assert!(grown < 64 * 1024, "{grown} KiB");
}

#[test]
fn a_silent_connection_is_closed_after_its_idle_time() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("collector.toml");
    std::fs::write(&file, "scribe_idle_seconds = 1\n").unwrap();
    let collector = Collector::spawn(folder.path(), command(folder.path()).arg("--config").arg(&file));
    let mut client = Scribe::connect(collector.scribe);
    assert_eq!(client.log(&[span_entry(1)]).unwrap(), ResultCode::Ok);
    assert!(client.reply().is_err(), "a silent connection is closed");
}

#[test]
fn silent_connections_make_room_for_talking_ones() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("collector.toml");
    std::fs::write(&file, "scribe_max_connections = 2\n").unwrap();
    let collector = Collector::spawn(folder.path(), command(folder.path()).arg("--config").arg(&file));
    let silent = [Scribe::connect(collector.scribe), Scribe::connect(collector.scribe)];
    let mut talking = [Scribe::connect(collector.scribe), Scribe::connect(collector.scribe)];
    for (client, id) in talking.iter_mut().zip(1..) {
        assert_eq!(client.log(&[span_entry(id)]).unwrap(), ResultCode::Ok);
    }
    for mut client in silent {
        assert!(client.reply().is_err(), "a silent connection is closed");
    }
}

#[test]
fn a_bad_entry_of_a_json_list_is_counted_and_its_neighbours_are_stored() {
    let folder = tempfile::tempdir().unwrap();
    let collector = Collector::start(folder.path());
    let v2 = br#"[{"traceId":"1","id":"1"},{"traceId":"2"},{"traceId":"2","id":"ABC"},7,
        {"traceId":"2","id":"1","kind":"NONE"},{"traceId":"2","id":"1","tags":{"a":null}},{"traceId":"3","id":"1"}]"#;
    assert_eq!(collector.post("/api/v2/spans", &[JSON], v2), (202, String::new()));
    assert_eq!(malformed(&collector), 5);
    let v1 = br#"[{"traceId":"4","id":"1"},{"id":"1"},{"traceId":"x","id":"1"},{"traceId":"5","id":"1","annotations":7}]"#;
    assert_eq!(collector.post("/api/v1/spans", &[JSON], v1).0, 202);
    assert_eq!(malformed(&collector), 8);
    let stored: Vec<bool> = (1..=5).map(|id| collector.has_trace(id)).collect();
    assert_eq!(stored, [true, false, true, true, false]);
}

#[test]
fn a_truncated_json_list_is_refused_whole_and_counts_once() {
    let folder = tempfile::tempdir().unwrap();
    let collector = Collector::start(folder.path());
    let spans = r#"[{"traceId":"1","id":"1","tags":{"a":"b"}},{"traceId":"2","id":"1"}"#;
    for (count, end) in ["", ",", "}", r#",{"traceId":"3","id":"ABC"},{"#].into_iter().enumerate() {
        let (status, reason) = collector.post("/api/v2/spans", &[JSON], format!("{spans}{end}").as_bytes());
        assert_eq!(status, 400, "{reason}");
        assert_eq!(malformed(&collector), count as u64 + 1, "{end:?}");
    }
    assert!(!collector.has_trace(1) && !collector.has_trace(2));
    let ledger = collector.ledger();
    assert_eq!(
        (&ledger["annotations"]["stored"], &ledger["annotations"]["received"]),
        (&0.into(), &4.into())
    );
    let unusual =
        format!(r#"{spans},{{"traceId":"3","id":"1","name":"\u0061"}},{{"traceId":"4","id":"1"}}]"#);
    assert_eq!(collector.post("/api/v2/spans", &[JSON], unusual.as_bytes()).0, 202);
    assert!((1..=4).all(|id| collector.has_trace(id)));
    assert_eq!(malformed(&collector), 4);
}

#[test]
fn unusable_bodies_are_bad_requests_with_a_reason() {
    let folder = tempfile::tempdir().unwrap();
    let collector = Collector::start(folder.path());
    let deep = "[".repeat(200_000);
    let deep_tag = format!(r#"[{{"traceId":"1","id":"1","x":{}}}]"#, "[".repeat(100_000));
    type Headers<'a> = &'a [(&'a str, &'a str)];
    let bodies: [(&str, Headers<'_>, &[u8]); 12] = [
        ("/api/v2/spans", &[PROTOBUF], b"x"),
        ("/api/v2/spans", &[JSON], b"{}"),
        ("/api/v2/spans", &[JSON], b"[{"),
        ("/api/v2/spans", &[JSON], b"[{\"traceId\":\"1\"}]"),
        ("/api/v2/spans", &[JSON], deep.as_bytes()),
        ("/api/v2/spans", &[JSON], deep_tag.as_bytes()),
        ("/api/v2/spans", &[JSON], b"\xff\xfe"),
        ("/api/v2/spans", &[JSON, GZIP], b"not gzip"),
        ("/api/v1/spans", &[JSON], b"[7]"),
        ("/api/v1/spans", &[THRIFT], &[11]),
        ("/api/v1/spans", &[THRIFT], &[12, 0x7f, 0xff, 0xff, 0xff]),
        ("/api/v1/spans", &[THRIFT], &[12, 0, 0, 0, 1, 10, 0]),
    ];
    for (path, headers, body) in bodies {
        let (status, reason) = collector.post(path, headers, body);
        assert!(
            status == 400 && !reason.is_empty(),
            "{path} {:?}: {status} {reason}",
            &body[..body.len().min(20)]
        );
    }
    for (headers, body) in [(JSON, &b"[]"[..]), (JSON, b""), (PROTOBUF, b"")] {
        assert_eq!(collector.post("/api/v2/spans", &[headers], body), (202, String::new()));
    }
    assert_eq!(collector.post("/api/v1/spans", &[THRIFT], b"").0, 202);
    for (path, kind) in
        [("/api/v2/spans", "application/x-thrift"), ("/api/v1/spans", "application/x-protobuf")]
    {
        assert_eq!(collector.post(path, &[("content-type", kind)], b"x").0, 415);
    }
    assert_eq!(collector.post("/api/v2/spans", &[JSON, ("content-encoding", "br")], b"x").0, 415);
    collector.ledger();
}

#[test]
fn mislabelled_bodies_are_refused_with_advice_what_to_change() {
    let folder = tempfile::tempdir().unwrap();
    let collector = Collector::start(folder.path());
    let span = br#"{"traceId":"1","id":"1"}"#;
    let list = [b"[", &span[..], b"]"].concat();
    for (header, body, expected) in [
        (JSON, span.to_vec(), "even a single span as a list"),
        (JSON, gzip(&list), "Content-Encoding: gzip"),
        (PROTOBUF, gzip(&list), "Content-Encoding: gzip"),
        (PROTOBUF, list.clone(), "Content-Type: application/json"),
        (JSON, b"\x0a\x02\x0a\x00".to_vec(), "Content-Type: application/x-protobuf"),
    ] {
        let (status, reason) = collector.post("/api/v2/spans", &[header], &body);
        assert!(status == 400 && reason.contains(expected), "{status} {reason}");
        assert!(collector.get("/api/blkin/rejects").1.contains(expected), "{expected}");
    }
    let (status, reason) = collector.post("/api/v1/spans", &[THRIFT], &list);
    assert!(status == 400 && reason.contains("Content-Type: application/json"), "{status} {reason}");
    let (status, reason) = collector.post("/api/v1/spans", &[THRIFT], &[12, 0, 0, 0, 1, 10, 0]);
    assert!(status == 400 && reason.contains("it ends too early"), "{status} {reason}");
}

#[test]
fn gzip_is_read_and_a_bomb_is_refused_before_it_takes_memory() {
    let folder = tempfile::tempdir().unwrap();
    let collector = Collector::start(folder.path());
    let good = gzip(br#"[{"traceId":"1","id":"1"}]"#);
    assert_eq!(collector.post("/api/v2/spans", &[JSON, GZIP], &good).0, 202);
    assert!(collector.has_trace(1));
    let before = collector.peak_kib();
    let bomb = gzip(&vec![b' '; 256 << 20]);
    assert!(bomb.len() < 1 << 20);
    for _ in 0..3 {
        let (status, reason) = collector.post("/api/v2/spans", &[JSON, GZIP], &bomb);
        assert!(status == 413 && reason.contains("smaller"), "{status} {reason}");
    }
    let grown = collector.peak_kib() - before;
    assert!(grown < 128 * 1024, "{grown} KiB");
    let too_long = vec![b' '; (16 << 20) + 1];
    assert_eq!(collector.post("/api/v2/spans", &[JSON], &too_long).0, 413);
}

#[test]
fn queries_that_make_no_sense_are_bad_requests_in_plain_text() {
    let folder = tempfile::tempdir().unwrap();
    let collector = Collector::start(folder.path());
    for path in [
        "/api/v2/trace/xyz",
        "/api/v2/trace/0",
        "/api/v2/trace/%20",
        "/api/v2/trace/11111111111111111111111111111111111",
        "/api/v2/traceMany",
        "/api/v2/traceMany?traceIds=1",
        "/api/v2/traceMany?traceIds=1,1",
        "/api/v2/traceMany?traceIds=1,z",
        "/api/v2/traces?limit=0",
        "/api/v2/traces?limit=x",
        "/api/v2/traces?minDuration=-1",
        "/api/v2/traces?limit=",
        "/api/v2/traces?limit=2147483648",
        "/api/v2/traces?endTs=9223372036854775808",
        "/api/v2/traces?lookback=0",
        "/api/v2/dependencies",
        "/api/v2/dependencies?endTs=x",
        "/api/v2/spans",
        "/api/v2/remoteServices",
        "/api/v2/autocompleteValues",
        "/api/blkin/ledger?count=all",
        "/api/v2/services?nobody=%",
        "/api/v2/traces?serviceName=100%&limit=1",
        "/zipkin/api/v2/spans?serviceName=%zz",
        "/health?%zz=1",
        "/nothing/%2",
    ] {
        let (status, kind, reason) = collector.get_typed(path);
        assert_eq!((status, kind.as_str()), (400, "text/plain; charset=utf-8"), "{path}: {reason}");
        assert!(!reason.is_empty(), "{path}");
    }
    assert_eq!(
        collector.get("/api/v2/trace/00000000000000ab"),
        (404, "00000000000000ab not found".to_owned())
    );
    assert_eq!(collector.get("/api/v2/trace/").0, 404, "no id is no route, as in Zipkin");
    assert_eq!(collector.get("/api/v2/traces?endTs=9223372036854775807&lookback=9223372036854775807").0, 200);
    for path in
        ["/health", "/healthz", "/info", "/metrics", "/prometheus", "/config.json", "/zipkin/config.json"]
    {
        assert_eq!(collector.get(path).0, 200, "{path}");
    }
    assert_eq!(collector.json("/actuator/info"), collector.json("/info"));
    assert_eq!(collector.json("/actuator/health")["zipkin"], collector.json("/health")["zipkin"]);
    let posted = collector.post("/api/v2/spans?nobody=%zz", &[JSON], br#"[{"traceId":"1","id":"1"}]"#);
    assert!(posted.0 == 400 && !collector.has_trace(1), "{posted:?}");
}
