//! The real binary: what it acknowledges is safe, whatever happens to it.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod bad_input;
mod damage;
mod floods;
mod intake;
mod keys;
mod limits;
mod proxied;
mod queries;
mod reload;
mod running;

use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

use blkin_collector::merge::Piece;
use blkin_collector::store::writer::now_ms;
use blkin_collector::store::{self, Batch, Store};
use blkin_thrift::scribe::{Outcome, ResultCode};
use running::{Collector, Scribe, command, span_entry, wait_for};

#[test]
fn acknowledged_spans_survive_kill_9() {
    let folder = tempfile::tempdir().unwrap();
    let mut acknowledged: Vec<i64> = Vec::new();
    for round in 1..=3 {
        let mut collector = Collector::start(folder.path());
        let (tell, told) = channel();
        let clients: Vec<_> = (0..4)
            .map(|client| {
                let (scribe, tell) = (Scribe::connect(collector.scribe), tell.clone());
                let first = round * 1_000_000_000 + client * 100_000_000;
                std::thread::spawn(move || send_until_killed(scribe, first, &tell))
            })
            .collect();
        drop(tell);
        acknowledged.extend(told.iter().take(300));
        collector.signal("-KILL");
        collector.wait();
        clients.into_iter().for_each(|client| client.join().unwrap());
        acknowledged.extend(told);
    }
    assert!(acknowledged.len() >= 900);
    let collector = Collector::start(folder.path());
    for &id in &acknowledged {
        assert!(collector.has_trace(id as u64), "trace {id:x} was acknowledged and is gone");
    }
    let ledger = collector.ledger();
    assert!(ledger["spans"]["stored"].as_u64() >= Some(acknowledged.len() as u64));
}

/// Sends pairs of traces; reports those that were acknowledged.
fn send_until_killed(mut scribe: Scribe, first: i64, tell: &Sender<i64>) {
    for id in (first..).step_by(2) {
        match scribe.log(&[span_entry(id), span_entry(id + 1)]) {
            Ok(ResultCode::Ok) => [id, id + 1].into_iter().for_each(|id| tell.send(id).unwrap()),
            Ok(ResultCode::TryLater) => {}
            Err(_) => break,
        }
    }
}

#[test]
fn sigterm_answers_requests_already_read_and_exits_with_0() {
    let folder = tempfile::tempdir().unwrap();
    let mut collector = Collector::start(folder.path());
    let mut scribe = Scribe::connect(collector.scribe);
    for seq in 1..=40 {
        scribe.send(seq, &[span_entry(i64::from(seq))]).unwrap();
    }
    let (first, _) = scribe.reply().unwrap();
    assert_eq!(first, 1);
    collector.signal("-TERM");
    let mut safe = vec![1];
    while let Ok((seq, outcome)) = scribe.reply() {
        assert_eq!(outcome, Outcome::Result(ResultCode::Ok));
        safe.push(seq);
    }
    assert_eq!(collector.wait().code(), Some(0));
    assert!(safe.iter().copied().eq(1..=safe.len() as i32), "in order: {safe:?}");
    let collector = Collector::start(folder.path());
    assert!(safe.iter().all(|&id| collector.has_trace(id as u64)));
    collector.ledger();
}

#[test]
fn pipelined_calls_are_answered_in_order_and_repeats_stored_once() {
    let folder = tempfile::tempdir().unwrap();
    let collector = Collector::start(folder.path());
    let mut scribe = Scribe::connect(collector.scribe);
    for seq in 0..200 {
        scribe.send(seq, &[span_entry(i64::from(seq % 10 + 1))]).unwrap();
    }
    for seq in 0..200 {
        assert_eq!(scribe.reply().unwrap(), (seq, Outcome::Result(ResultCode::Ok)));
    }
    let ledger = collector.ledger();
    assert_eq!(
        (&ledger["annotations"]["stored"], &ledger["annotations"]["duplicate"]),
        (&20.into(), &380.into())
    );
}

#[test]
fn the_ledger_continues_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    for round in 1..=3 {
        let mut collector = Collector::start(folder.path());
        Scribe::connect(collector.scribe).log(&[span_entry(round)]).unwrap();
        assert_eq!(collector.ledger()["annotations"]["received"], round * 2);
        let (_, metrics) = collector.get("/metrics");
        assert!(metrics.contains(&format!("\nblkin_collector_stored_total {}\n", round * 2)), "{metrics}");
        collector.signal("-TERM");
        assert!(collector.wait().success());
    }
}

#[test]
fn health_and_metrics_report_a_clock_behind_the_store() {
    const YEAR_MS: u64 = 365 * 86_400_000;
    let folder = tempfile::tempdir().unwrap();
    let store = store::open(&folder.path().join("data"), 1 << 20, &Arc::default()).unwrap();
    let mut batch = Batch::default();
    batch.push(&Piece::V1(running::span(1)));
    store.commit(&[batch], now_ms() + YEAR_MS).unwrap();
    drop(store);
    let collector = Collector::start(folder.path());
    let trouble = wait_for(|| collector.json("/healthz")["troubles"].get(0).cloned());
    assert_eq!((&trouble["cause"], &trouble["to"]), (&"clock".into(), &"clock".into()), "{trouble}");
    wait_for(|| {
        let (_, metrics) = collector.get("/metrics");
        let line = metrics.lines().find(|line| line.starts_with("blkin_collector_clock_trouble_seconds "));
        line.unwrap().rsplit_once(' ').filter(|(_, seconds)| *seconds != "0").map(|_| ())
    });
    assert!(collector.has_trace(1), "the trace is kept");
}

#[test]
fn a_full_disk_answers_try_later_and_recovers_without_senders() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let collector = on_a_small_disk(folder.path(), &log);
    let mut scribe = Scribe::connect(collector.scribe);
    // A step of retention in between may make room for one more.
    let mut safe = (0..100).fold(0, |safe, _| fill(&mut scribe, safe));
    wait_for(|| {
        safe = fill(&mut scribe, safe);
        (collector.get("/healthz").0 == 503).then_some(())
    });
    make_room(&collector);
    // It becomes healthy although nobody sends anything.
    wait_for(|| (collector.get("/healthz").0 == 200).then_some(()));
    assert_eq!(scribe.log(&[big_entry(safe + 1)]).unwrap(), ResultCode::Ok);
    assert!((1..=safe + 1).all(|id| collector.has_trace(id as u64)));
    assert_eq!(collector.ledger()["spans"]["stored"], safe + 1);
    let said = std::fs::read_to_string(&log).unwrap();
    let lines = |part: &str| said.lines().filter(|line| line.contains(part)).count();
    let (begun, over) = (lines("until commits succeed"), lines("commits succeed again"));
    assert!(
        (1..10).contains(&begun) && begun == over,
        "one line for each outage, not for each refused commit: {said}"
    );
    assert!(said.lines().count() < 50, "{said}");
}

#[test]
fn a_collector_killed_on_a_full_disk_restarts_and_recovers() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let mut collector = on_a_small_disk(folder.path(), &log);
    let safe = fill(&mut Scribe::connect(collector.scribe), 0);
    collector.signal("-KILL");
    collector.wait();
    let collector = on_a_small_disk(folder.path(), &log);
    let mut scribe = Scribe::connect(collector.scribe);
    let all_are_there = |safe: i64| (1..=safe).all(|id| collector.has_trace(id as u64));
    assert!(all_are_there(safe));
    // What the collector before had begun to write has become free room.
    let mut safe = fill(&mut scribe, safe);
    let trouble = wait_for(|| {
        assert!(all_are_there(safe), "stored traces stay readable on a full disk");
        safe = fill(&mut scribe, safe);
        let (status, told) = collector.get("/healthz");
        let told: serde_json::Value = serde_json::from_str(&told).unwrap();
        let trouble = told["troubles"].as_array()?.iter().find(|trouble| trouble["name"] == "store").cloned();
        trouble.filter(|_| status == 503)
    });
    assert_eq!(trouble["to"], "disk", "{trouble}");
    let is_told = |what: &str, count: u64| {
        let line = format!("blkin_collector_disk_trouble{{what=\"{what}\",cause=\"failed\"}} {count}");
        collector.get("/metrics").1.lines().any(|told| told == line)
    };
    assert!(is_told("store", 1), "{}", collector.get("/metrics").1);
    assert!(trouble["reason"].as_str().unwrap().contains("failed to use the store"), "{trouble}");
    make_room(&collector);
    wait_for(|| (scribe.log(&[big_entry(safe + 1)]).unwrap() == ResultCode::Ok).then_some(()));
    wait_for(|| (collector.get("/healthz").0 == 200).then_some(()));
    assert!(all_are_there(safe + 1));
    // Retention may have had trouble too, if it ran meanwhile.
    wait_for(|| collector.get("/healthz").1.contains(r#""troubles":[]"#).then_some(()));
    assert!(is_told("store", 0) && is_told("retention", 0), "{}", collector.get("/metrics").1);
    assert_eq!(collector.ledger()["spans"]["stored"], safe + 1);
}

#[test]
fn an_unwritable_disk_still_answers_queries_and_recovers() {
    let folder = tempfile::tempdir().unwrap();
    let collector = Collector::spawn(folder.path(), &mut command(folder.path()));
    let mut scribe = Scribe::connect(collector.scribe);
    for id in 1..=3 {
        assert_eq!(scribe.log(&[big_entry(id)]).unwrap(), ResultCode::Ok);
    }
    let all_are_there = |last: i64| (1..=last).all(|id| collector.has_trace(id as u64));
    for last in [3, 4] {
        limit_files(&collector, "0:");
        assert_eq!(scribe.log(&[big_entry(last + 1)]).unwrap(), ResultCode::TryLater);
        wait_for(|| {
            assert!(all_are_there(last) && !collector.has_trace(last as u64 + 1));
            let (status, told) = collector.get("/healthz");
            (status == 503)
                .then(|| assert!(told.contains("File too large"), "health gives the system's reason: {told}"))
        });
        assert_eq!(scribe.log(&[big_entry(last + 1)]).unwrap(), ResultCode::TryLater);
        assert!(all_are_there(last) && collector.get("/api/v2/services").0 == 200);
        make_room(&collector);
        wait_for(|| {
            assert!(all_are_there(last));
            (collector.get("/healthz").0 == 200).then_some(())
        });
        assert_eq!(scribe.log(&[big_entry(last + 1)]).unwrap(), ResultCode::Ok);
        assert!(all_are_there(last + 1));
        assert_eq!(collector.ledger()["spans"]["stored"], last + 1);
    }
}

#[test]
fn a_start_on_a_read_only_disk_answers_and_recovers() {
    let folder = tempfile::tempdir().unwrap();
    let mut before = Collector::start(folder.path());
    assert_eq!(Scribe::connect(before.scribe).log(&[big_entry(1)]).unwrap(), ResultCode::Ok);
    before.signal("-KILL");
    before.wait();
    let data = folder.path().join("data");
    let mut apart = Command::new("unshare");
    let script = r#"mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && cd / && exec "$@""#;
    apart.args(["--user", "--map-root-user", "--mount", "bash", "-c", script]).arg(&data);
    let plain = command(folder.path());
    apart.arg(plain.get_program()).args(plain.get_args()).env_clear().env("PATH", "/usr/bin:/bin:/usr/sbin");
    let collector = Collector::spawn(folder.path(), &mut apart);
    let mut scribe = Scribe::connect(collector.scribe);
    assert!(collector.has_trace(1) && !data.join("traces.redb.trial").exists());
    assert_eq!(scribe.log(&[big_entry(2)]).unwrap(), ResultCode::TryLater);
    wait_for(|| {
        let (status, told) = collector.get("/healthz");
        (status == 503).then(|| assert!(told.contains("Read-only file system"), "{told}"))
    });
    let pid = collector.child.id().to_string();
    let mut enter = Command::new("nsenter");
    enter.args(["--target", &pid, "--user", "--mount", "mount", "-o", "remount,bind,rw"]).arg(&data);
    assert!(enter.status().unwrap().success());
    wait_for(|| (collector.get("/healthz").0 == 200).then_some(()));
    assert_eq!(scribe.log(&[big_entry(2)]).unwrap(), ResultCode::Ok);
    assert!(collector.has_trace(1) && collector.has_trace(2));
}

/// A collector whose files may not grow beyond 4 MiB: writes fail as on a full disk, and the signal that comes with such a
/// failure does no harm.
fn on_a_small_disk(folder: &std::path::Path, log: &std::path::Path) -> Collector {
    let mut limited = Command::new("bash");
    limited.args(["-c", r#"ulimit -S -f 4096; exec "$@""#, "bash"]);
    let plain = command(folder);
    limited.arg(plain.get_program()).args(plain.get_args()).env_clear().env("PATH", "/usr/bin:/bin");
    Collector::spawn_logging_to(folder, &mut limited, std::fs::File::create(log).unwrap().into())
}

/// Sends spans with numbers after `stored` until there is no room; returns the number of the last one that was stored.
fn fill(scribe: &mut Scribe, stored: i64) -> i64 {
    let mut safe = stored;
    while scribe.log(&[big_entry(safe + 1)]).unwrap() == ResultCode::Ok {
        safe += 1;
        assert!(safe < 100, "the limit was never reached");
    }
    safe
}

fn make_room(collector: &Collector) {
    limit_files(collector, "unlimited");
}

/// Limits how long a file may grow: `SOFT:`, or both.
fn limit_files(collector: &Collector, limit: &str) {
    let (pid, limit) = (collector.child.id().to_string(), format!("--fsize={limit}"));
    assert!(Command::new("prlimit").args(["--pid", &pid, &limit]).status().unwrap().success());
}

/// A span with 200 KiB of incompressible text.
fn big_entry(trace_id: i64) -> blkin_thrift::scribe::LogEntry {
    let mut span = running::span(trace_id);
    span.annotations[0].value = format!("{trace_id:x}").repeat(200_000);
    running::entry(blkin_thrift::scribe::span_message(&span))
}

#[test]
fn exit_codes_tell_a_good_a_bad_and_an_unusable_configuration_apart() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("collector.toml");
    let run = |extra: &[&str]| {
        let output = command(folder.path()).args(extra).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let path = file.to_str().unwrap();
    std::fs::write(&file, "sample_rate = 0.5\n").unwrap();
    assert_eq!(run(&["--check-config", "--config", path]).0, Some(0));
    std::fs::write(&file, "sample_rat = 0.5\n").unwrap();
    let (code, said) = run(&["--check-config", "--config", path]);
    assert!(code == Some(78) && said.contains("sample_rat"), "{said}");
    std::fs::write(&file, "max_message_mib = 65\n").unwrap();
    let (code, said) = run(&["--check-config", "--config", path]);
    assert!(code == Some(78) && said.contains("max_reading_mib: 128 is not between 130"), "{said}");
    std::fs::write(&file, "http_listen = \"::1:9411\"\n").unwrap();
    let no_flags =
        Command::new(env!("CARGO_BIN_EXE_blkin-collector")).args(["--config", path]).output().unwrap();
    let said = String::from_utf8(no_flags.stderr).unwrap();
    let told = said.contains("[::1]:9410") && said.contains("line 1: http_listen: ");
    assert!(no_flags.status.code() == Some(78) && told, "{said}");
    assert_eq!(run(&["--no-such-flag"]).0, Some(2));
    assert_eq!(run(&["--sample-rate", "7"]).0, Some(78));
}

#[test]
fn an_invalid_variable_is_a_configuration_error_naming_it() {
    for (variable, text) in [
        ("BLKIN_COLLECTOR_SAMPLE_RATE", "half"),
        ("BLKIN_COLLECTOR_SAMPLE_RATE", "7"),
        ("BLKIN_COLLECTOR_UI_DIR", "/nonexistent"),
        ("BLKIN_COLLECTOR_CACHE_MIB", "1G"),
        ("BLKIN_COLLECTOR_DATA_DIR", ""),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_blkin-collector"));
        let check = command.args(["--check-config", "--config", "/dev/null"]).env(variable, text);
        let refused = check.output().unwrap();
        let words = String::from_utf8_lossy(&refused.stderr);
        assert!(words.contains(&format!("failed to use the variable {variable}: ")), "{words}");
        assert_eq!(refused.status.code(), Some(78));
    }
}

#[test]
fn check_config_finds_an_unwritable_store_and_creates_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let check = |data: &std::path::Path| {
        let flags = ["--check-config", "--config", "/dev/null", "--data-dir", data.to_str().unwrap()];
        let output = Command::new(env!("CARGO_BIN_EXE_blkin-collector")).args(flags).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    assert_eq!(check(&folder.path().join("to/come")), (Some(0), String::new()));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let (code, said) = check(&file.join("data"));
    assert!(code == Some(78) && said.contains("data_dir") && said.contains("is not a folder"), "{said}");
    let started = command(&file.join("data")).output().unwrap();
    let said = String::from_utf8(started.stderr).unwrap();
    assert!(started.status.code() == Some(1) && said.contains("--data-dir: data_dir: "), "{said}");
    assert!(said.contains("is not a folder"), "{said}");
}

#[test]
fn a_store_in_use_or_a_taken_port_fails_with_advice() {
    let folder = tempfile::tempdir().unwrap();
    let collector = Collector::start(folder.path());
    let output = command(folder.path()).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && said.contains("no other collector uses it"), "{said}");
    let other = tempfile::tempdir().unwrap();
    let mut taken = command(other.path());
    let output = taken.args(["--http-listen", &collector.http.to_string()]).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "a flag twice is wrong usage");
    let taken = Command::new(env!("CARGO_BIN_EXE_blkin-collector"))
        .args(["--scribe-listen", "127.0.0.1:0", "--http-listen", &collector.http.to_string(), "--data-dir"])
        .arg(other.path())
        .output()
        .unwrap();
    let said = String::from_utf8(taken.stderr).unwrap();
    assert!(taken.status.code() == Some(1) && said.contains("--http-listen"), "{said}");
}

#[test]
fn sampling_keeps_or_leaves_out_whole_traces_and_counts_them() {
    let folder = tempfile::tempdir().unwrap();
    let collector = Collector::spawn(folder.path(), command(folder.path()).args(["--sample-rate", "0.5"]));
    let mut scribe = Scribe::connect(collector.scribe);
    let ids = [1, i64::MAX / 2 - 10_000, i64::MAX / 2 + 10_000, -1, i64::MIN, i64::MAX];
    let entries: Vec<_> = ids.into_iter().map(span_entry).collect();
    assert_eq!(scribe.log(&entries).unwrap(), ResultCode::Ok);
    let kept: Vec<bool> = ids.into_iter().map(|id| collector.has_trace(id as u64)).collect();
    assert_eq!(kept, [true, true, false, true, false, false]);
    assert_eq!(collector.ledger()["annotations"]["lost"]["sampled_out"], 6);
}

#[test]
fn a_page_is_served_with_its_routes_types_and_configuration() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page");
    std::fs::create_dir_all(page.join("static/js")).unwrap();
    std::fs::write(page.join("index.html"), "<html>page</html>").unwrap();
    std::fs::write(page.join("static/js/index.js"), "script").unwrap();
    std::fs::write(folder.path().join("secret"), "secret").unwrap();
    let collector = Collector::spawn(folder.path(), command(folder.path()).arg("--ui-dir").arg(&page));
    let (html, text) = ("text/html; charset=utf-8", "text/plain; charset=utf-8");
    let (soon, late) = (Some("max-age=60"), Some("max-age=31536000"));
    for (path, status, kind, body, kept) in [
        ("/", 200, html, "<html>page</html>", soon),
        ("/zipkin", 200, html, "<html>page</html>", soon),
        ("/zipkin/", 200, html, "<html>page</html>", soon),
        ("//zipkin//", 200, html, "<html>page</html>", soon),
        ("/zipkin/index.html", 200, html, "<html>page</html>", soon),
        ("/zipkin/traces/0000000000000001", 200, html, "<html>page</html>", soon),
        ("/zipkin/dependency?endTs=1", 200, html, "<html>page</html>", soon),
        ("/zipkin/traceViewer", 200, html, "<html>page</html>", soon),
        ("/zipkin/static/js/index.js", 200, "text/javascript", "script", late),
        ("/zipkin/static/js/gone.js", 404, text, "no such file", None),
        ("/zipkin/static/", 404, text, "no such file", None),
        ("/zipkin/health", 404, text, "no such file", None),
        ("/zipkin/api/v2/services", 200, "application/json", "[]", None),
        ("/zipkin/api/v2/nothing", 404, text, "no such file", None),
    ] {
        let (found, found_kind, found_body) = collector.get_typed(path);
        assert_eq!((found, found_kind.as_str(), found_body.as_str()), (status, kind, body), "{path}");
        assert_eq!(collector.header(path, "cache-control").as_deref(), kept, "{path}");
    }
    for outside in ["/zipkin/../secret", "/zipkin/%2e%2e/secret", "/zipkin/..%2fsecret"] {
        assert_ne!(collector.get(outside).1, "secret", "{outside}");
    }
    assert_eq!(collector.json("/zipkin/config.json")["searchEnabled"], true);
}

#[test]
fn paths_without_zipkin_redirect_there_keeping_the_query() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("index.html"), "the page").unwrap();
    let collector =
        Collector::spawn(folder.path(), command(folder.path()).arg("--ui-dir").arg(folder.path()));
    for (path, place) in [
        ("/", "/zipkin/"),
        ("/zipkin", "/zipkin/"),
        ("/zipkin?serviceName=osd.0", "/zipkin/?serviceName=osd.0"),
        ("/?lookback=1", "/zipkin/?lookback=1"),
        ("/favicon.ico", "/zipkin/favicon.ico"),
    ] {
        assert_eq!(collector.sent_to(path), (302, Some(place.to_owned())), "{path}");
    }
}
