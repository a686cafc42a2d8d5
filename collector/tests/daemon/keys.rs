//! Keys of the configuration, by what they change; those that bound what a sender may do are in `limits.rs`.

use std::fs::File;
use std::path::Path;
use std::process::Command;

use blkin_collector::store::disk::FILE_NAME;
use blkin_thrift::Annotation;
use blkin_thrift::scribe::{LogEntry, ResultCode, span_message};

use crate::bad_input::{JSON, THRIFT};
use crate::limits::configured;
use crate::running::{Collector, Scribe, command, entry, ready_file, span, span_entry, told};

#[test]
fn scribe_entries_are_read_from_the_configured_category() {
    let folder = tempfile::tempdir().unwrap();
    let collector = configured(folder.path(), "scribe_category = \"spans\"\n");
    let other = LogEntry { category: "spans".to_owned(), ..span_entry(2) };
    let mut scribe = Scribe::connect(collector.scribe);
    assert_eq!(scribe.log(&[span_entry(1), other]).unwrap(), ResultCode::Ok);
    assert!(!collector.has_trace(1) && collector.has_trace(2));
}

#[test]
fn the_log_has_the_configured_format() {
    let folder = tempfile::tempdir().unwrap();
    let said_as = |format: &str| {
        let (file, log) = (folder.path().join("collector.toml"), folder.path().join("log"));
        std::fs::write(&file, format!("log_format = \"{format}\"\n")).unwrap();
        let mut configured = command(folder.path());
        configured.arg("--config").arg(&file);
        let output = File::create(&log).unwrap();
        let _collector = Collector::spawn_logging_to(folder.path(), &mut configured, output.into());
        told(&log, "ready", 1);
        std::fs::read_to_string(&log).unwrap()
    };
    let [json, text] = ["json", "text"].map(said_as);
    let is_json =
        |line: &str| serde_json::from_str::<serde_json::Value>(line).is_ok_and(|l| l["level"].is_string());
    assert!(json.contains("ready") && json.lines().all(is_json), "{json}");
    assert!(text.contains("ready") && !text.lines().any(is_json), "{text}");
}

/// Anybody who reads only the log must not take a collector for ready that ends.
#[test]
fn a_collector_failing_to_write_its_ready_file_logs_no_ready() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(ready_file(folder.path())).unwrap();
    let failed = command(folder.path()).output().unwrap();
    assert_eq!(failed.status.code(), Some(1));
    let words = String::from_utf8_lossy(&failed.stderr);
    assert!(words.contains("failed to write the ready file") && !words.contains(": ready "), "{words}");
}

/// A thrift list of one span with an unknown structure, in which structures are nested to this depth.
fn deep(levels: usize) -> Vec<u8> {
    let mut span = blkin_thrift::span::encode(&span(1));
    let stop = span.pop();
    let unknown = [&[12, 0, 99].repeat(levels)[..], &vec![0; levels]].concat();
    [&[12, 0, 0, 0, 1][..], &span, &unknown, &stop.into_iter().collect::<Vec<u8>>()].concat()
}

#[test]
fn structures_may_nest_to_the_configured_depth() {
    for (max_depth, levels, status) in [(4, 2, 202), (4, 10, 400), (16, 10, 202)] {
        let folder = tempfile::tempdir().unwrap();
        let collector = configured(folder.path(), &format!("max_depth = {max_depth}\n"));
        let (answer, reason) = collector.post("/api/v1/spans", &[THRIFT], &deep(levels));
        assert_eq!(answer, status, "{levels} levels where {max_depth} are allowed: {reason}");
    }
}

#[test]
fn autocomplete_keys_are_the_configured_ones_sorted() {
    let folder = tempfile::tempdir().unwrap();
    let collector = configured(folder.path(), "autocomplete_keys = [\"pool\", \"disk\"]\n");
    assert_eq!(collector.get("/api/v2/autocompleteKeys").1, r#"["disk","pool"]"#);
}

#[test]
fn without_ui_dir_the_page_names_the_missing_key() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("index.html"), "the page").unwrap();
    let paths = ["/", "/zipkin", "/zipkin/"];
    let collector = configured(folder.path(), "");
    for path in paths {
        let (status, said) = collector.get(path);
        assert!(
            status == 404 && said.contains("ui_dir is not set") && said.contains("docs/deploy.md"),
            "{said}"
        );
    }
    drop(collector);
    let collector = configured(folder.path(), &format!("ui_dir = {:?}\n", folder.path()));
    for path in paths {
        assert_eq!(collector.get(path), (200, "the page".to_owned()), "{path}");
    }
}

fn big_entry(trace_id: i64, bytes: usize) -> LogEntry {
    let mut big = span(trace_id);
    // A further annotation, because the span's first one is needed to find it.
    let long = Annotation { value: "x".repeat(bytes), ..big.annotations[0].clone() };
    big.annotations.push(long);
    entry(span_message(&big))
}

const PARTIAL: &str = "blkin-partial";

#[test]
fn an_answer_holds_at_most_the_configured_bytes_of_spans() {
    for (query_max_mib, traces, left_out) in [(1, 1, Some("query_max_mib")), (64, 3, None)] {
        let folder = tempfile::tempdir().unwrap();
        let collector = configured(folder.path(), &format!("query_max_mib = {query_max_mib}\n"));
        let mut scribe = Scribe::connect(collector.scribe);
        let some: Vec<_> = (1..=3).map(|trace| big_entry(trace, 700 << 10)).collect();
        assert_eq!(scribe.log(&some).unwrap(), ResultCode::Ok);
        let path = "/api/v2/traces?endTs=1700000001000&lookback=10000";
        assert_eq!(collector.json(path).as_array().unwrap().len(), traces, "with {query_max_mib} MiB");
        let more =
            ["/api/v2/traceMany?traceIds=1,2", "/api/v2/trace/1"].map(|path| collector.header(path, PARTIAL));
        let told = left_out.map(str::to_owned);
        assert_eq!((collector.header(path, PARTIAL), more), (told.clone(), [told, None]));
        assert_eq!(scribe.log(&[big_entry(4, 1536 << 10)]).unwrap(), ResultCode::Ok);
        for path in ["/api/v2/dependencies?", "/api/blkin/intervals?from=sr&to=ss&"] {
            let path = format!("{path}endTs=1700000001000&lookback=10000");
            assert_eq!(collector.header(&path, PARTIAL).as_deref(), left_out, "{path}");
        }
        let (status, said) = collector.get("/api/v2/trace/4");
        assert_eq!((status == 404, said.contains("query_max_mib")), (left_out.is_some(), left_out.is_some()));
    }
}

fn resident_bytes(file: &Path) -> usize {
    let told =
        Command::new("fincore").args(["--bytes", "--noheadings", "--output", "RES"]).arg(file).output();
    String::from_utf8(told.unwrap().stdout).unwrap().trim().parse().unwrap()
}

#[test]
fn the_page_cache_holds_about_as_much_as_cache_mib() {
    const SENT: usize = 24 << 20;
    let resident_with = |cache_mib: usize| {
        // A folder on a disk, which the system's temporary folder may not be.
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let collector = configured(folder.path(), &format!("cache_mib = {cache_mib}\n"));
        let mut scribe = Scribe::connect(collector.scribe);
        for trace in 1..=(SENT >> 20) as i64 {
            assert_eq!(scribe.log(&[big_entry(trace, 1 << 20)]).unwrap(), ResultCode::Ok);
        }
        let last = br#"[{"traceId":"ff","id":"1"}]"#;
        assert_eq!(collector.post("/api/v2/spans", &[JSON], last).0, 202);
        resident_bytes(&folder.path().join("data").join(FILE_NAME))
    };
    let (small, large) = (resident_with(2), resident_with(128));
    assert!(small < SENT / 3 && large > SENT * 2 / 3, "{small} and {large} of {SENT} bytes");
}
