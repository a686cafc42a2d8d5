//! How often the log reports what queries can cause again and again: nobody who may query may fill the disk.

use std::fs::File;
use std::path::Path;
use std::time::Instant;

use crate::bad_input::JSON;
use crate::damage::{filled, needle, places, write};
use crate::limits::configured_logging_to;
use crate::running::Collector;

const QUERIES: usize = 100;

fn logging_to(log: &Path, folder: &Path, settings: &str) -> Collector {
    configured_logging_to(folder, settings, File::create(log).unwrap().into())
}

/// Ends the collector, and checks that its log has lines with each of these words, and at most one a second since `begun`.
fn assert_few(mut collector: Collector, log: &Path, words: &[&str], begun: Instant) {
    collector.signal("-TERM");
    assert_eq!(collector.wait().code(), Some(0));
    let (told, most) = (std::fs::read_to_string(log).unwrap(), 1 + begun.elapsed().as_secs() as usize);
    for words in words {
        let lines: Vec<_> = told.lines().filter(|line| line.contains(words)).collect();
        assert!((1..=most).contains(&lines.len()), "{} lines with {words:?}, at most {most}", lines.len());
        assert!(lines[0].contains("held_back=0"), "{}", lines[0]);
    }
}

#[test]
fn cut_answers_are_logged_at_most_once_a_second() {
    let (folder, begun) = (tempfile::tempdir().unwrap(), Instant::now());
    let log = folder.path().join("log");
    let collector = logging_to(&log, folder.path(), "query_max_mib = 1\n");
    let text = "x".repeat(700 << 10);
    // The latest trace is larger than an answer, and only one of the others fits into one.
    for (trace, id) in [(1, 1), (2, 1), (3, 1), (3, 2)] {
        let time = 1_700_000_000_000_000_u64 + trace;
        let span =
            format!(r#"[{{"traceId":"{trace}","id":"{id}","timestamp":{time},"tags":{{"k":"{text}"}}}}]"#);
        assert_eq!(collector.post("/api/v2/spans", &[JSON], span.as_bytes()).0, 202);
    }
    let search = "/api/v2/traces?endTs=1700000001000&lookback=10000";
    for _ in 0..QUERIES {
        assert_eq!(collector.get(search).0, 200);
        assert_eq!(collector.get("/api/v2/traceMany?traceIds=1,2").0, 200);
        assert_eq!(collector.get("/api/v2/trace/3").0, 200);
    }
    let words = [
        "together they have more than query_max_mib",
        "the trace has more than query_max_mib",
        "it is larger than the rest of query_max_mib",
    ];
    assert_few(collector, &log, &words, begun);
}

#[test]
fn a_damaged_piece_is_logged_at_most_once_a_second() {
    let (folder, begun) = (tempfile::tempdir().unwrap(), Instant::now());
    let (log, data) = (folder.path().join("log"), folder.path().join("data"));
    std::fs::create_dir(&data).unwrap();
    let mut bytes = filled(&data);
    places(needle(17).as_bytes(), &bytes).iter().for_each(|&at| bytes[at] ^= 1);
    write(&data, &bytes);
    // What was stored arrived years ago.
    let collector = logging_to(&log, folder.path(), "retention_hours = 0\n");
    for _ in 0..QUERIES {
        assert!(!collector.has_trace(17));
    }
    let counted = format!("blkin_collector_damaged_pieces_total {QUERIES}\n");
    let metrics = collector.get("/metrics").1;
    assert!(metrics.contains(&counted), "each time is counted: {metrics}");
    assert_few(collector, &log, &["left out a damaged piece of a span"], begun);
}
