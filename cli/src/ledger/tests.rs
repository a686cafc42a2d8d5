//! Whether the ledger balances, which losses it names, and how it is shown.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::equations::term;
use super::table::STEPS;
use super::*;
use crate::http::answering;
use crate::terminal::{Style, width};

const CONSUMERD: &str = "\
blkin_program_attempted_total{process=\"osd:1\"} 116
blkin_program_committed_total{process=\"osd:1\"} 106
blkin_program_lost_total{process=\"osd:1\",cause=\"full\"} 7
blkin_program_lost_total{process=\"osd:1\",cause=\"too_large\"} 3
blkin_drained_total{process=\"osd:1\"} 80
blkin_drained_before_total{process=\"osd:1\"} 10
blkin_lost_total{process=\"osd:1\",cause=\"unsettled\"} 6
blkin_pending{process=\"osd:1\"} 4
blkin_lost_total{process=\"osd:1\",cause=\"overwritten\"} 2
blkin_lost_total{process=\"osd:1\",cause=\"recorder_released\"} 3
blkin_lost_total{process=\"osd:1\",cause=\"torn\"} 1
blkin_lost_total{process=\"osd:1\",cause=\"invalid\"} 2
blkin_valid_total{process=\"osd:1\"} 78
blkin_sink_acked_total{sink=\"scribe\"} 70
blkin_sink_in_flight{sink=\"scribe\"} 5
blkin_sink_lost_total{sink=\"scribe\",cause=\"queue_full\"} 3
";
const COLLECTOR: &str = "\
blkin_collector_received_total{transport=\"scribe\"} 60
blkin_collector_received_total{transport=\"http_v2\"} 10
blkin_collector_in_store 58
blkin_collector_duplicate_total 4
blkin_collector_lost_total{cause=\"malformed\"} 1
blkin_collector_lost_total{cause=\"expired\"} 7
";
const ZIPKIN: &str = r#"{"counter.zipkin_collector.spans.http":4.0}"#;
const RELAY: &str = "\
blkin_relay_received_total 50
blkin_relay_accepted_total 48
blkin_relay_lost_total{cause=\"malformed\"} 2
blkin_relay_upstream_offered_total{upstream=\"a:1\"} 48
blkin_relay_upstream_acked_total{upstream=\"a:1\"} 40
blkin_relay_upstream_in_flight{upstream=\"a:1\"} 5
blkin_relay_upstream_lost_total{upstream=\"a:1\",cause=\"spool_evicted\"} 3
blkin_relay_entries_received_total 12
blkin_relay_entries_accepted_total 10
blkin_relay_entries_lost_total{cause=\"malformed\"} 2
blkin_relay_entries_upstream_offered_total{upstream=\"a:1\"} 10
blkin_relay_entries_upstream_acked_total{upstream=\"a:1\"} 9
blkin_relay_entries_upstream_in_flight{upstream=\"a:1\"} 1
blkin_relay_entries_upstream_lost_total{upstream=\"a:1\",cause=\"spool_evicted\"} 0
";

#[test]
fn each_figure_of_a_relay_is_in_an_equation() {
    let of = |text: &str| Ledger::of_relay("r:1", &Metrics::parse(text));
    let ledger = of(RELAY);
    assert_eq!(ledger.equations.len(), 4);
    assert!(ledger.balances());
    assert_eq!((ledger.lost(), ledger.on_the_way()), (2 + 3, 5), "entries are not annotations");
    assert_eq!(ledger.equations[3].scope, "relay r:1 entries to a:1");
    for place in 0..RELAY.lines().count() {
        let more = |(at, line): (usize, &str)| format!("{line}{}\n", if at == place { "1" } else { "" });
        let mutated: String = RELAY.lines().enumerate().map(more).collect();
        assert!(!of(&mutated).balances(), "mutation {place} went unseen");
    }
}

fn ledger(consumerd: &str, collector: &str) -> Ledger {
    Ledger::of_consumerd(&Metrics::parse(consumerd)).and(Ledger::of_collector(&Metrics::parse(collector)))
}

#[test]
fn a_balanced_ledger_sums_and_names_its_losses() {
    let ledger = ledger(CONSUMERD, COLLECTOR);
    assert_eq!(ledger.equations.len(), 5);
    assert!(ledger.balances());
    assert_eq!(ledger.lost(), 7 + 3 + 1 + 5 + 6 + 2 + 3 + 1 + 7);
    let shown = ledger.table(Style { columns: 100, colours: false });
    assert!(
        shown
            .contains("    osd:1  attempted 116 = committed 106 + lost{full} 7 + lost{too_large} 3  holds\n"),
        "{shown}"
    );
}

#[test]
fn losses_of_zero_entries_are_not_shown() {
    let right = vec![term("entries_accepted", 4), term("entries_lost{malformed}", 0)];
    let equation = Equation { scope: "relay".into(), left: term("entries_received", 4), right };
    let shown = Ledger { equations: vec![equation] }.table(Style { columns: 100, colours: false });
    let expected = "    relay  entries_received 4 = entries_accepted 4  holds";
    assert_eq!(shown.lines().skip(1).collect::<Vec<_>>(), [expected]);
}

#[test]
fn equations_wrap_below_their_scope_on_narrow_terminals() {
    let of_relay = Ledger::of_relay("relay.site-a.example:9413", &Metrics::parse(RELAY));
    let all = ledger(&CONSUMERD.replace("osd:1", "store-daemon:4711"), COLLECTOR).and(of_relay);
    for columns in [50, 60, 80, 100] {
        let shown = all.table(Style { columns, colours: false });
        // Names are never cut: one of a relay has its upstream's behind it.
        let wide = shown.lines().filter(|line| width(line) > columns);
        assert!(wide.into_iter().all(|line| line.trim().starts_with("relay ")), "{shown}");
        assert_eq!(shown.matches(" holds\n").count(), all.equations.len(), "{shown}");
    }
    let shown = all.table(Style { columns: 60, colours: true });
    let expected = "    store-daemon:4711\n      attempted 116 = committed 106 + lost{full} 7 +\n      \
                    lost{too_large} 3 \u{1b}[32mholds\u{1b}[0m\n";
    assert!(shown.contains(expected), "{shown}");
}

#[test]
fn each_step_is_shown_once_and_departed_as_ended_programs() {
    let departed = CONSUMERD.lines().filter(|line| line.contains("osd:1"));
    let departed: String = departed.map(|line| line.replace("osd:1", DEPARTED) + "\n").collect();
    let of_relay = Ledger::of_relay("r:1", &Metrics::parse(RELAY));
    let all = ledger(&(departed + CONSUMERD), COLLECTOR).and(of_relay);
    let shown = all.table(Style { columns: 200, colours: false });
    let told: Vec<&str> = shown.lines().filter_map(|line| line.strip_prefix("  ")).collect();
    let (lines, steps): (Vec<&str>, Vec<&str>) = told.into_iter().partition(|line| line.starts_with(' '));
    assert_eq!(steps, STEPS);
    assert_eq!(lines.len(), all.equations.len());
    assert_eq!(lines.iter().filter(|line| line.trim_start().starts_with("ended programs ")).count(), 3);
}

#[test]
fn ended_programs_are_shown_if_they_recorded_or_are_alone() {
    let of = |process: &str, attempted: u32| {
        format!("blkin_program_attempted_total{{process=\"{process}\"}} {attempted}\n")
    };
    let told_of = |metrics: &str| {
        let ledger = Ledger::of_consumerd(&Metrics::parse(metrics));
        ledger.table(Style { columns: 100, colours: false }).matches("ended programs ").count()
    };
    assert_eq!(told_of(&(of(DEPARTED, 0) + &of("osd:1", 4))), 0);
    assert_eq!(told_of(&(of(DEPARTED, 1) + &of("osd:1", 4))), 1, "those that recorded something are shown");
    assert_eq!(told_of(&of(DEPARTED, 0)), 3);
}

#[test]
fn programs_without_losses_share_one_line_of_the_ledger() {
    let of = |process: &str, attempted: u32, full: u32| {
        let of = format!("process=\"{process}\"");
        format!(
            "blkin_program_attempted_total{{{of}}} {attempted}\nblkin_program_committed_total{{{of}}} 5\n\
             blkin_program_lost_total{{{of},cause=\"full\"}} {full}\nblkin_drained_total{{{of}}} 3\n\
             blkin_pending{{{of}}} 2\nblkin_valid_total{{{of}}} 3\n"
        )
    };
    let sound: String = (0..300).map(|pid| of(&format!("osd:{pid}"), 5, 0)).collect();
    let metrics = sound + &of("lossy:1", 7, 2) + &of("wrong:1", 6, 0) + &of(DEPARTED, 5, 0);
    let shown = ledger(&metrics, COLLECTOR).table(Style { columns: 100, colours: false });
    let told: Vec<String> =
        shown.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    let of_rings = [
        "300 programs without a loss attempted 1500 = committed 1500 holds",
        "ended programs attempted 5 = committed 5 holds",
        "lossy:1 attempted 7 = committed 5 + lost{full} 2 holds",
        "wrong:1 attempted 6 = committed 5 DOES NOT HOLD",
    ];
    for line in of_rings
        .into_iter()
        .chain(["302 programs without a loss committed 1510 = drained 906 + pending 604 holds"])
    {
        assert!(told.iter().any(|told| told == line), "{line} in {shown}");
    }
    assert_eq!(told.len(), 5 + 3 + 3 + 2, "{shown}");
}

#[test]
fn ledger_time_is_linear_in_the_number_of_programs() {
    // By the square of it, this would take an hour.
    let of = |pid: u32| format!("blkin_program_attempted_total{{process=\"osd:{pid}\"}} 0\n");
    let metrics: String = (0..100_000).map(of).collect();
    assert_eq!(Ledger::of_consumerd(&Metrics::parse(&metrics)).equations.len(), 300_000);
}

#[test]
fn an_unreadable_daemon_does_not_hide_the_others() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let collector = Client::new(&listener.local_addr().unwrap().to_string());
    let nobody = Client::new("127.0.0.1:1");
    thread::scope(|scope| {
        scope.spawn(|| {
            let (mut stream, _) = listener.accept().unwrap();
            let _asked = stream.read(&mut [0; 4096]).unwrap();
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", COLLECTOR.len());
            stream.write_all(format!("{head}{COLLECTOR}").as_bytes()).unwrap();
        });
        let reading =
            Ledger::settled(&nobody, &[Client::new("127.0.0.1:2")], &collector, Duration::from_secs(60));
        let scopes: Vec<&str> = reading.ledger.equations.iter().map(|found| found.scope.as_str()).collect();
        assert_eq!(scopes, ["collector"]);
        assert!(reading.ledger.balances() && !reading.balances());
        assert_eq!(reading.unread.len(), 2);
        assert!(reading.unread[0].starts_with("consumerd is missing in "), "{:?}", reading.unread);
        assert!(reading.unread[1].contains("http://127.0.0.1:2"), "{:?}", reading.unread);
    });
}

#[test]
fn the_ledger_waits_for_a_daemon_that_answers_503() {
    let settled = |patience| {
        let asked = AtomicUsize::new(0);
        let consumerd = answering(move |_| match asked.fetch_add(1, Ordering::Relaxed) {
            0 => ("503 Service Unavailable", "{\"healthy\":false}"),
            _ => (
                "200 OK",
                "blkin_sink_acked_total{sink=\"scribe\"} 0\nblkin_valid_total{process=\"osd:1\"} 0\n",
            ),
        });
        Ledger::settled(&consumerd, &[], &serving(COLLECTOR), patience)
    };
    let at_once = settled(Duration::ZERO);
    assert!(at_once.unread[0].contains("/metrics answered 503: "), "{:?}", at_once.unread);
    assert_eq!(settled(Duration::from_secs(60)).unread, Vec::<String>::new());
}

fn serving(metrics: &'static str) -> Client {
    answering(move |_| ("200 OK", metrics))
}

#[test]
fn wrong_daemons_are_reported_as_missing_in_the_ledger() {
    let read = |[consumerd, relay, collector]: [&'static str; 3]| {
        Ledger::read(&serving(consumerd), &[serving(relay)], &serving(collector).named_by("--collector"))
    };
    assert!(read([CONSUMERD, RELAY, COLLECTOR]).balances());
    for (metrics, missing) in [
        (["hi", "hi", "hi"], &["consumerd", "relay", "collector"][..]),
        ([RELAY, COLLECTOR, CONSUMERD], &["consumerd", "relay", "collector"]),
        ([ZIPKIN, ZIPKIN, ZIPKIN], &["consumerd", "relay"]),
        ([CONSUMERD, COLLECTOR, RELAY], &["relay", "collector"]),
    ] {
        let reading = read(metrics);
        let told: Vec<&str> = reading.unread.iter().map(|why| why.split(' ').next().unwrap()).collect();
        assert_eq!(told, missing, "{:?}", reading.unread);
        assert!(!reading.balances());
    }
    let wrong = read([CONSUMERD, RELAY, RELAY]).unread.remove(0);
    assert!(wrong.contains(" has no figures of a collector (is it"), "{wrong}");
}

#[test]
fn daemons_are_read_concurrently() {
    let all_are_asked: &'static Barrier = Box::leak(Box::new(Barrier::new(4)));
    let slow = |metrics| {
        answering(move |_| {
            all_are_asked.wait();
            ("200 OK", metrics)
        })
    };
    let reading = Ledger::read(&slow(CONSUMERD), &[slow(RELAY), slow(RELAY)], &slow(COLLECTOR));
    assert_eq!(reading.unread, Vec::<String>::new());
    let ends = [reading.ledger.equations.first(), reading.ledger.equations.last()];
    assert_eq!(ends.map(|end| end.unwrap().scope.as_str()), ["osd:1", "collector"]);
}

#[test]
fn a_zipkin_server_has_no_equation_and_is_reported_as_silent() {
    let reading = Ledger::read(&serving(CONSUMERD), &[], &serving(ZIPKIN));
    assert_eq!(reading.ledger, Ledger::of_consumerd(&Metrics::parse(CONSUMERD)));
    assert!(reading.balances(), "{:?}", reading.unread);
    assert!(reading.silent.unwrap().contains("a Zipkin server, which does not count"));
    assert_eq!(Ledger::read(&serving(CONSUMERD), &[], &serving(COLLECTOR)).silent, None);
}

#[test]
fn one_missing_annotation_anywhere_unbalances_the_ledger() {
    for place in 0..CONSUMERD.lines().count() + COLLECTOR.lines().count() {
        let mutate = |text: &str, from: usize| -> String {
            let less = |line: &str| {
                let (name, value) = line.rsplit_once(' ').unwrap();
                format!("{name} {}\n", value.parse::<i64>().unwrap() - 1)
            };
            let numbered = text.lines().enumerate();
            numbered
                .map(|(at, line)| if at + from == place { less(line) } else { format!("{line}\n") })
                .collect()
        };
        let mutated = ledger(&mutate(CONSUMERD, 0), &mutate(COLLECTOR, CONSUMERD.lines().count()));
        assert!(!mutated.balances(), "mutation {place} went unseen");
    }
}
