//! SIGHUP: keys that can change while the collector runs do, the log names those that cannot, and nothing is lost.

use std::fs::File;
use std::path::Path;
use std::process::Stdio;

use blkin_thrift::scribe::ResultCode;

use crate::bad_input::JSON;
use crate::running::{Collector, Scribe, command, span_entry, wait_for};

const TWO: &[u8] = br#"[{"traceId":"3","id":"1"},{"traceId":"4","id":"1"}]"#;

/// A collector with a configuration file and a log file.
fn start(folder: &Path, text: &str) -> Collector {
    write(folder, text);
    let log = File::create(folder.join("log")).unwrap();
    let mut command = command(folder);
    command.arg("--config").arg(folder.join("collector.toml")).stdout(Stdio::null());
    Collector::spawn_logging_to(folder, &mut command, log.into())
}

fn write(folder: &Path, text: &str) {
    std::fs::write(folder.join("collector.toml"), text).unwrap();
}

fn log(folder: &Path) -> String {
    std::fs::read_to_string(folder.join("log")).unwrap()
}

/// Reloads, and returns what was logged about it.
fn reload(collector: &Collector, folder: &Path, text: &str, last_words: &str) -> String {
    let before = log(folder).len();
    write(folder, text);
    collector.signal("-HUP");
    wait_for(|| Some(log(folder)[before..].to_owned()).filter(|said| said.contains(last_words)))
}

#[test]
fn a_reload_changes_sampling_limits_and_log_level() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let collector = start(folder, "log = \"info\"\n");
    let mut scribe = Scribe::connect(collector.scribe);
    assert_eq!(scribe.log(&[span_entry(1)]).unwrap(), ResultCode::Ok);

    let quiet = "sample_rate = 0.0\nmax_entries = 1\nlog = \"warn\"\nqueue_mib = 1\n";
    reload(&collector, folder, quiet, "queue_mib");
    wait_for(|| (collector.post("/api/v2/spans", &[JSON], TWO).0 == 413).then_some(()));
    assert_eq!(scribe.log(&[span_entry(2)]).unwrap(), ResultCode::Ok);
    assert!(collector.has_trace(1) && !collector.has_trace(2));

    reload(&collector, folder, "log = \"info\"\n", "read the configuration again");
    assert_eq!(scribe.log(&[span_entry(5)]).unwrap(), ResultCode::Ok);
    assert!(collector.has_trace(5));
    assert_eq!(collector.ledger()["spans"]["received"], 4);
    let told = log(folder).matches("read the configuration again").count();
    assert_eq!(told, 1, "the first reload sets a level at which reloads are not logged");
}

#[test]
fn a_reload_names_fixed_keys_and_ignores_a_bad_file() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let collector = start(folder, "max_entries = 1\n");
    let said = reload(&collector, folder, "queue_mib = 1\nmax_entries = 2\n", "read the configuration again");
    assert!(
        said.contains("failed to change queue_mib while running") && !said.contains("max_entries"),
        "{said}"
    );
    assert_eq!(collector.post("/api/v2/spans", &[JSON], TWO).0, 202);
    let said = reload(&collector, folder, "max_entries = 1\nno_such_key = 1\n", "kept the configuration");
    assert!(said.contains("no_such_key"), "{said}");
    assert_eq!(collector.post("/api/v2/spans", &[JSON], TWO).0, 202);
}

#[test]
fn retention_changes_while_running() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let collector = start(folder, "retention_mib = 1000\n");
    let mut scribe = Scribe::connect(collector.scribe);
    for id in 1..=3 {
        let mut span = crate::running::span(id);
        span.name = "x".repeat(600_000);
        let entry = crate::running::entry(blkin_thrift::scribe::span_message(&span));
        assert_eq!(scribe.log(&[entry]).unwrap(), ResultCode::Ok);
    }
    reload(&collector, folder, "retention_mib = 1\n", "read the configuration again");
    wait_for(|| (!collector.has_trace(1)).then_some(()));
    assert!(collector.has_trace(3));
}
