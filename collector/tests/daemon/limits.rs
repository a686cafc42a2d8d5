//! Limits: none is exceeded, none costs memory, and each is a configuration key.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::ops::Range;
use std::path::Path;
use std::process::Stdio;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use blkin_thrift::scribe::ResultCode;

use crate::bad_input::{GZIP, JSON, PROTOBUF, THRIFT, gzip};
use crate::running::{Collector, PATIENCE, Scribe, command, entry, span, span_entry, wait_for};

pub(crate) fn configured(folder: &Path, text: &str) -> Collector {
    configured_logging_to(folder, text, Stdio::inherit())
}

pub(crate) fn configured_logging_to(folder: &Path, text: &str, log: Stdio) -> Collector {
    let file = folder.join("collector.toml");
    std::fs::write(&file, text).unwrap();
    Collector::spawn_logging_to(folder, command(folder).arg("--config").arg(&file), log)
}

/// A thrift list of one span with nothing but annotations of no members: one byte each on the wire.
fn thrift_bomb(count: u32) -> Vec<u8> {
    let mut body = vec![12, 0, 0, 0, 1, 15, 0, 6, 12];
    body.extend_from_slice(&count.to_be_bytes());
    body.resize(body.len() + count as usize, 0);
    body.extend_from_slice(&[10, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 10, 0, 4, 0, 0, 0, 0, 0, 0, 0, 1, 0]);
    body
}

fn proto3_chunk(key: u8, bytes: &[u8]) -> Vec<u8> {
    let mut length = bytes.len();
    let mut field = vec![key];
    while length >= 0x80 {
        field.push(length as u8 | 0x80);
        length >>= 7;
    }
    field.push(length as u8);
    [&field, bytes].concat()
}

/// A list of one span with nothing but empty annotations: two bytes each on the wire.
fn proto3_bomb(count: usize) -> Vec<u8> {
    proto3_chunk(0x0a, &[&b"\x0a\x01\x01\x1a\x01\x01"[..], &[0x52, 0].repeat(count)].concat())
}

#[test]
fn bombs_of_every_format_are_refused_and_take_little_memory() {
    let folder = tempfile::tempdir().unwrap();
    let collector = Collector::start(folder.path());
    let deep = |open: &str, count: usize| format!(r#"[{{"traceId":"1","id":"1","x":{}"#, open.repeat(count));
    let ids = r#"{"traceId":"1","id":"1""#;
    let many = |item: &str, count: usize| {
        format!("[{ids},\"annotations\":[{}{item}]}}]", format!("{item},").repeat(count))
    };
    let spans = format!("[{}{{}}]", "{},".repeat(5_000_000));
    let before = collector.peak_kib();
    type Bomb<'a> = (&'a str, &'a [(&'a str, &'a str)], Vec<u8>);
    let bombs: Vec<Bomb<'_>> = vec![
        ("/api/v2/spans", &[JSON], deep("[", 8_000_000).into_bytes()),
        ("/api/v1/spans", &[JSON], deep(r#"{"a":"#, 2_000_000).into_bytes()),
        ("/api/v2/spans", &[JSON], many(r#"{"timestamp":1,"value":""}"#, 140_000).into_bytes()),
        ("/api/v2/spans", &[JSON], many("{}", 1_300_000).into_bytes()),
        ("/api/v2/spans", &[JSON], spans.into_bytes()),
        ("/api/v2/spans", &[JSON], format!(r#"[{ids},"name":"{}"}}]"#, "x".repeat(15 << 20)).into_bytes()),
        ("/api/v1/spans", &[THRIFT], thrift_bomb(15 << 20)),
        ("/api/v1/spans", &[THRIFT], [&[12, 0, 0xff, 0xff, 0xff][..], &[0; 15 << 20]].concat()),
        ("/api/v2/spans", &[PROTOBUF], proto3_bomb(1_900_000)),
        ("/api/v2/spans", &[PROTOBUF], [0x0a, 0].repeat(7 << 20)),
        ("/api/v2/spans", &[PROTOBUF, GZIP], gzip(&[0x0a, 0].repeat(64 << 20))),
        ("/api/v1/spans", &[THRIFT, GZIP], gzip(&thrift_bomb(200 << 20))),
    ];
    for (at, (path, headers, body)) in bombs.iter().enumerate() {
        let (status, reason) = collector.post(path, headers, body);
        assert!(matches!(status, 400 | 413) && !reason.is_empty(), "bomb {at}: {status} {reason}");
    }
    let grown = collector.peak_kib() - before;
    assert!(grown < 160 * 1024, "{grown} KiB");
    assert_eq!(collector.post("/api/v2/spans", &[JSON], format!("[{ids}}}]").as_bytes()).0, 202);
    collector.ledger();
}

/// A trace of calls both sides of which have the same id, as most tracers make them.
fn calls(ids: Range<u64>) -> String {
    let side = |id, side| format!(r#"{{"traceId":"1","id":"{id:x}","timestamp":{id},{side}}}"#);
    let sides = |id| [side(id, r#""kind":"CLIENT""#), side(id, r#""kind":"SERVER","shared":true"#)];
    format!("[{}]", ids.flat_map(sides).collect::<Vec<_>>().join(","))
}

#[test]
fn an_answer_takes_little_more_memory_than_its_spans_and_their_text() {
    let folder = tempfile::tempdir().unwrap();
    let collector = Collector::start(folder.path());
    for first in (1..35_000).step_by(5_000) {
        let body = calls(first..first + 5_000);
        assert_eq!(collector.post("/api/v2/spans", &[JSON], body.as_bytes()).0, 202);
    }
    drop(collector);
    for query in ["/api/v2/trace/1", "/api/v2/trace/1?nanos=true"] {
        // A new process, so that memory taken before hides nothing.
        let collector = Collector::start(folder.path());
        let before = collector.peak_kib();
        let (status, answer) = collector.get(query);
        let grown = collector.peak_kib() - before;
        assert_eq!((status, answer.matches("CLIENT").count()), (200, 35_000));
        assert!(grown < 60 * 1024, "{query}: {grown} KiB for {} bytes", answer.len());
    }
}

/// Each of these spans takes much more memory than its text.
#[test]
fn an_answer_of_many_small_v1_spans_takes_bounded_memory() {
    const MOST_MIB: u64 = 8;
    let folder = tempfile::tempdir().unwrap();
    let settings = format!("query_max_mib = {MOST_MIB}\n");
    let collector = configured(folder.path(), &settings);
    let span = |id| {
        let tag = format!(r#"{{"key":"k","value":"{id}","endpoint":{{"serviceName":"a"}}}}"#);
        format!(r#"{{"traceId":"1","id":"{id:x}","binaryAnnotations":[{tag}]}}"#)
    };
    for first in (1..120_000).step_by(20_000) {
        let spans: Vec<String> = (first..first + 20_000).map(span).collect();
        let body = format!("[{}]", spans.join(","));
        assert_eq!(collector.post("/api/v1/spans", &[JSON], body.as_bytes()).0, 202);
    }
    drop(collector);
    let collector = configured(folder.path(), &settings);
    let before = collector.peak_kib();
    let (status, answer) = collector.get("/api/v2/trace/1");
    let grown = collector.peak_kib() - before;
    let spans = answer.matches("traceId").count();
    assert!(status == 200 && spans > 40_000 && spans < 120_000, "{status} {spans}");
    // This includes pages of the store.
    assert!(grown < 7 * MOST_MIB * 1024, "{grown} KiB for {spans} spans");
}

#[test]
fn configured_limits_on_counts_and_lengths_are_enforced() {
    let folder = tempfile::tempdir().unwrap();
    let text = "max_entries = 2\nmax_annotations = 2\nmax_span_kib = 1\nmax_message_mib = 1\nmax_depth = 4\n";
    let collector = configured(folder.path(), text);
    let list = |count: usize| format!("[{}]", vec![r#"{"traceId":"1","id":"1"}"#; count].join(","));
    assert_eq!(collector.post("/api/v2/spans", &[JSON], list(2).as_bytes()).0, 202);
    assert_eq!(collector.post("/api/v2/spans", &[JSON], list(3).as_bytes()).0, 413);
    assert_eq!(collector.post("/api/v1/spans", &[JSON], list(3).as_bytes()).0, 413);
    let spans = |count: u8| {
        [
            &[12, 0, 0, 0, count][..],
            &[10, 0, 1, 0, 0, 0, 0, 0, 0, 0, 7, 10, 0, 4, 0, 0, 0, 0, 0, 0, 0, 7, 0].repeat(count.into()),
        ]
        .concat()
    };
    assert_eq!(collector.post("/api/v1/spans", &[THRIFT], &spans(2)).0, 202);
    assert_eq!(collector.post("/api/v1/spans", &[THRIFT], &spans(3)).0, 413);
    let long = vec![b' '; (1 << 20) + 1];
    assert_eq!(collector.post("/api/v2/spans", &[JSON], &long).0, 413);
    assert_eq!(collector.post("/api/v2/spans", &[JSON, GZIP], &gzip(&long)).0, 413);

    let mut scribe = Scribe::connect(collector.scribe);
    let mut heavy = span(5);
    heavy.annotations.push(heavy.annotations[0].clone());
    let mut wordy = span(6);
    wordy.name = "x".repeat(2000);
    let messages = [heavy, wordy].map(|span| entry(blkin_thrift::scribe::span_message(&span)));
    assert_eq!(scribe.log(&messages).unwrap(), ResultCode::Ok);
    assert!(scribe.log(&[span_entry(1), span_entry(2), span_entry(3)]).is_err(), "too many entries");
    assert_eq!(scribe.log(&[span_entry(4)]).unwrap(), ResultCode::Ok);
    let stored: Vec<bool> = (4..=6).map(|id| collector.has_trace(id)).collect();
    assert_eq!(stored, [true, false, false]);
    let counts = &collector.json("/api/blkin/rejects")["counts"];
    assert_eq!(counts["scribe"]["too_large"], 3, "{counts}");
}

/// Waits until the peer closes, reading what it says until then.
fn closed(stream: &mut TcpStream) -> String {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut said = Vec::new();
    // A reset counts as an end too.
    let _end = stream.read_to_end(&mut said);
    String::from_utf8_lossy(&said).into_owned()
}

#[test]
fn slow_and_silent_http_clients_are_disconnected() {
    let folder = tempfile::tempdir().unwrap();
    let text = "http_idle_seconds = 1\nmessage_seconds = 1\nhttp_max_connections = 4\n";
    let collector = configured(folder.path(), text);
    let connect = || TcpStream::connect(collector.http).unwrap();
    let (mut silent, mut head, mut body, mut dripping) = (connect(), connect(), connect(), connect());
    let began = Instant::now();
    head.write_all(b"GET /health HTTP/1.1\r\nHost: x\r\n").unwrap();
    body.write_all(b"POST /api/v2/spans HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n[").unwrap();
    // All places are taken: the next answer shows that they were given back. A client that must wait with its request for as long
    // as a client may be idle is closed too.
    let waiting = std::thread::spawn({
        let address = collector.http;
        move || {
            wait_for(|| {
                let mut stream = TcpStream::connect(address).unwrap();
                stream.write_all(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").ok()?;
                Some(closed(&mut stream)).filter(|said| !said.is_empty())
            })
        }
    });
    // Sending one byte of the head at a time keeps a connection from being silent, but does not save it.
    while dripping.write_all(b"G").is_ok() {
        assert!(began.elapsed() < PATIENCE, "still open");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert_eq!((closed(&mut silent), closed(&mut head)), (String::new(), String::new()));
    let said = closed(&mut body);
    assert!(
        said.is_empty() || said.starts_with("HTTP/1.1 408") || said.starts_with("HTTP/1.1 400"),
        "{said}"
    );
    assert!(waiting.join().unwrap().starts_with("HTTP/1.1 200"));
}

#[test]
fn a_request_head_over_80_kib_is_refused() {
    const MOST: usize = 80 << 10;
    let folder = tempfile::tempdir().unwrap();
    let collector = Collector::start(folder.path());
    let head = |length: usize, end: &str| {
        let begin = "GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX: ";
        let head = format!("{begin}{}{end}", "x".repeat(length - begin.len() - end.len()));
        let mut stream = TcpStream::connect(collector.http).unwrap();
        stream.write_all(head.as_bytes()).unwrap();
        closed(&mut stream)
    };
    assert!(head(MOST, "").starts_with("HTTP/1.1 431 "));
    assert!(head(MOST - 1, "\r\n\r\n").starts_with("HTTP/1.1 200 "));
}

#[test]
fn a_client_that_reads_no_answers_is_disconnected() {
    let folder = tempfile::tempdir().unwrap();
    let collector = configured(folder.path(), "http_idle_seconds = 1\nhttp_max_connections = 1\n");
    let mut viewer = TcpStream::connect(collector.http).unwrap();
    viewer.write_all(b"GET /api/blkin/live HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    viewer.read_exact(&mut [0]).unwrap();
    // While the only place is taken, the kernel keeps what a new client sends; so the client does not count as silent once it
    // gets the place.
    let mut deaf = TcpStream::connect(collector.http).unwrap();
    deaf.set_write_timeout(Some(PATIENCE)).unwrap();
    let requests = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n".repeat(1_000);
    deaf.write_all(&requests).unwrap();
    drop(viewer);
    // The answers fill the socket's buffers; then neither side makes progress, and the place is given back.
    while deaf.write_all(&requests).is_ok() {}
    let metrics = wait_for(|| collector.get_unless_let_go("/metrics"));
    assert!(metrics.contains("\nblkin_collector_http_stalled_total 1\n"), "{metrics}");
}

#[test]
fn a_scribe_frame_that_takes_too_long_ends_its_connection() {
    let folder = tempfile::tempdir().unwrap();
    let collector = configured(folder.path(), "message_seconds = 1\n");
    let mut slow = Scribe::connect(collector.scribe);
    slow.0.write_all(&[0, 0, 0, 100, 1]).unwrap();
    assert!(slow.reply().is_err());
}

#[test]
fn connections_beyond_the_limit_wait_and_are_logged() {
    let folder = tempfile::tempdir().unwrap();
    let (file, log) = (folder.path().join("collector.toml"), folder.path().join("log"));
    std::fs::write(&file, "http_max_connections = 1\n").unwrap();
    let mut command = command(folder.path());
    let log_file = std::fs::File::create(&log).unwrap();
    let collector =
        Collector::spawn_logging_to(folder.path(), command.arg("--config").arg(&file), log_file.into());
    let ask = |more: &str| {
        let mut stream = TcpStream::connect(collector.http).unwrap();
        stream.write_all(format!("GET /health HTTP/1.1\r\nHost: x\r\n{more}\r\n").as_bytes()).unwrap();
        stream
    };
    let mut first = ask("");
    first.read_exact(&mut [0]).unwrap();
    let mut second = ask("Connection: close\r\n");
    wait_for(|| {
        let said = std::fs::read_to_string(&log).unwrap();
        said.contains("the limit on HTTP connections is reached").then_some(())
    });
    drop(first);
    assert!(closed(&mut second).starts_with("HTTP/1.1 200 "));
}

#[test]
fn silent_http_clients_make_room_for_asking_ones() {
    let folder = tempfile::tempdir().unwrap();
    let collector = configured(
        folder.path(),
        "http_max_connections = 4\nhttp_idle_seconds = 3600\nmessage_seconds = 3600\n",
    );
    let begun = |said: &str| {
        let mut stream = TcpStream::connect(collector.http).unwrap();
        stream.write_all(said.as_bytes()).unwrap();
        stream
    };
    let mut viewer = begun("GET /api/blkin/live HTTP/1.1\r\nHost: x\r\n\r\n");
    viewer.read_exact(&mut [0]).unwrap();
    let mut silent = vec![
        begun(""),
        begun("GET /health HTTP/1.1\r\nHost:"),
        begun("POST /api/v2/spans HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n["),
    ];
    // Each client keeps its place after its answer.
    for _ in 0..3 {
        let mut asking = begun("GET /health HTTP/1.1\r\nHost: x\r\n\r\n");
        asking.set_read_timeout(Some(PATIENCE)).unwrap();
        asking.read_exact(&mut [0]).unwrap();
        silent.push(asking);
    }
    silent.drain(3..);
    for mut made_room in silent {
        made_room.set_read_timeout(Some(PATIENCE)).unwrap();
        assert_eq!(closed(&mut made_room), "");
    }
    viewer.set_nonblocking(true).unwrap();
    let watched =
        std::iter::repeat_with(|| viewer.read(&mut [0; 1024])).find(|read| !matches!(read, Ok(1..)));
    assert_eq!(watched.unwrap().unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
}

#[test]
fn metrics_name_the_unit_of_each_fate_of_live_spans() {
    let folder = tempfile::tempdir().unwrap();
    let metrics = Collector::start(folder.path()).get("/metrics").1;
    let help =
        metrics.lines().find(|line| line.starts_with("# HELP blkin_collector_live_spans_total ")).unwrap();
    for unit in ["shown and missed count spans", "unseen and unkept count entries"] {
        assert!(help.contains(unit), "{help}");
    }
    let fates = metrics.lines().filter_map(|line| line.strip_prefix("blkin_collector_live_spans_total{"));
    assert_eq!(fates.filter(|fate| fate.ends_with("} 0")).count(), 4, "{metrics}");
}

#[test]
fn a_stalled_viewer_does_not_delay_shutdown() {
    let folder = tempfile::tempdir().unwrap();
    let mut collector = configured(folder.path(), "http_idle_seconds = 3600\nlive_queue_kib = 64\n");
    let mut viewer = TcpStream::connect(collector.http).unwrap();
    viewer.write_all(b"GET /api/blkin/live HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    viewer.read_exact(&mut [0]).unwrap();
    let text = "x".repeat(1 << 15);
    let missed = "blkin_collector_live_spans_total{fate=\"missed\"} 0\n";
    let mut id = 0;
    while collector.get("/metrics").1.contains(missed) {
        id += 1;
        let spans = format!(r#"[{{"traceId":"{id:x}","id":"1","name":"{text}"}}]"#);
        assert_eq!(collector.post("/api/v2/spans", &[JSON], spans.as_bytes()).0, 202);
    }
    collector.signal("-TERM");
    assert_eq!(collector.wait().code(), Some(0));
}

/// Traces that a search for a span with two properties has to read, because each trace has both, but on different spans.
fn traces_that_nearly_match(ids: Range<u32>) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let traces = ids.map(|id| {
        let of = |number: u8| {
            format!(
                r#"{{"traceId":"{id:x}","id":"{number}","name":"op{number}","timestamp":{},"localEndpoint":{{"serviceName":"s{number}"}}}}"#,
                now.as_micros()
            )
        };
        format!("{},{}", of(1), of(2))
    });
    format!("[{}]", traces.collect::<Vec<_>>().join(","))
}

#[test]
fn searches_leave_a_place_for_reading_one_trace() {
    const SEARCHES: usize = 12;
    let folder = tempfile::tempdir().unwrap();
    let collector = configured(folder.path(), "query_concurrency = 2\nquery_seconds = 3600\n");
    for batch in 0..20 {
        let ids = batch * 1000 + 1..(batch + 1) * 1000 + 1;
        assert_eq!(collector.post("/api/v2/spans", &[JSON], traces_that_nearly_match(ids).as_bytes()).0, 202);
    }
    let searches: Vec<TcpStream> = std::iter::repeat_with(|| {
        let mut search = TcpStream::connect(collector.http).unwrap();
        let path = "/api/v2/traces?serviceName=s1&spanName=op2&limit=1000";
        search.write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).unwrap();
        search
    })
    .take(SEARCHES)
    .collect();
    assert!(collector.get("/api/v2/trace/1").1.contains("op1"));
    let answered = searches.iter().filter(|search| {
        search.set_nonblocking(true).unwrap();
        search.peek(&mut [0]).is_ok()
    });
    // A query that waits behind all of them gets its turn once all but one are answered.
    assert!(answered.count() < SEARCHES / 2);
}

/// JSON of this length that is a list of one span.
fn padded(length: usize) -> Vec<u8> {
    let mut body = br#"[{"traceId":"1","id":"1"}]"#.to_vec();
    body.resize(length, b' ');
    body
}

#[test]
fn announced_but_unsent_messages_delay_no_others() {
    let folder = tempfile::tempdir().unwrap();
    let collector = configured(folder.path(), "message_seconds = 3600\nhttp_idle_seconds = 3600\n");
    let head = "POST /api/v2/spans HTTP/1.1\r\nHost: x\r\n";
    let mut idle = Vec::new();
    for rest in [
        "Transfer-Encoding: chunked",
        "Content-Encoding: gzip\r\nContent-Length: 99",
        "Content-Length: 16777216",
    ] {
        for _ in 0..8 {
            let mut stream = TcpStream::connect(collector.http).unwrap();
            stream.write_all(format!("{head}{rest}\r\n\r\n").as_bytes()).unwrap();
            idle.push(stream);
        }
    }
    for _ in 0..40 {
        let mut stream = TcpStream::connect(collector.scribe).unwrap();
        stream.write_all(&(16_u32 << 20).to_be_bytes()).unwrap();
        idle.push(stream);
    }
    for _ in 0..3 {
        assert_eq!(collector.post("/api/v2/spans", &[JSON, GZIP], &gzip(&padded(30))).0, 202);
        assert_eq!(collector.post("/api/v2/spans", &[JSON], &padded(1 << 20)).0, 202);
        let large = [span_entry(2), entry(vec![b'A'; 100 << 10])];
        assert_eq!(Scribe::connect(collector.scribe).log(&large).unwrap(), ResultCode::Ok);
    }
    let metrics = collector.get("/metrics").1;
    assert!(metrics.contains("\nblkin_collector_messages_waiting 0\n"), "{metrics}");
    assert!(metrics.contains("\nblkin_collector_messages_dropped_total 0\n"), "{metrics}");
}

#[test]
fn a_silent_sender_holding_memory_makes_room_for_others() {
    let folder = tempfile::tempdir().unwrap();
    // Only one large message can be read at a time.
    let text = "max_message_mib = 1\nmax_reading_mib = 2\nmessage_seconds = 3600\nhttp_idle_seconds = 3600\n";
    let collector = configured(folder.path(), text);
    let mut silent = TcpStream::connect(collector.http).unwrap();
    let head = "POST /api/v2/spans HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n";
    silent.write_all(&[head.as_bytes(), &padded(500_000)].concat()).unwrap();
    let post = || collector.post("/api/v2/spans", &[JSON], &padded(500_000)).0;
    wait_for(|| {
        // This post may itself be the first, and be too slow if the machine stalls.
        let _accepted_or_not = post();
        let metrics = collector.get("/metrics").1;
        (!metrics.contains("\nblkin_collector_messages_dropped_total 0\n")).then_some(())
    });
    wait_for(|| (post() == 202).then_some(()));
    let said = closed(&mut silent);
    assert!(said.starts_with("HTTP/1.1 503") && said.contains("others waited for memory"), "{said}");
}

#[test]
fn a_body_that_announces_too_much_is_refused_before_it_is_sent() {
    let folder = tempfile::tempdir().unwrap();
    let collector = Collector::start(folder.path());
    let mut stream = TcpStream::connect(collector.http).unwrap();
    let head = "POST /api/v2/spans HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n";
    stream.write_all(format!("{head}Expect: 100-continue\r\n\r\n").as_bytes()).unwrap();
    let said = closed(&mut stream);
    assert!(said.starts_with("HTTP/1.1 413"), "{said}");
    let counts = &collector.json("/api/blkin/rejects")["counts"];
    assert_eq!(counts["http_v2"]["too_large"], 1, "{counts}");
}
