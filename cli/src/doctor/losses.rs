//! Counters of what daemons lost, left out or skipped that the ledger does not contain. The ledger follows annotations in transit;
//! these counters are about data in which no annotations can be counted, about annotations that had already arrived, or about what
//! is going to happen.

use super::Check;
use crate::metrics::Metrics;

/// A counter that should be zero.
struct Counter {
    name: &'static str,
    /// What it counts; printed before the number.
    what: &'static str,
    advice: &'static str,
}

const fn counter(name: &'static str, what: &'static str, advice: &'static str) -> Counter {
    Counter { name, what, advice }
}

/// A counter that every daemon has.
const LOG_LOST: Counter =
    counter("blkin_log_lines_lost_total", "lines of its log that were lost", LOG_ADVICE);
const LOG_ADVICE: &str = "whatever reads its standard error is too slow at times, or the disk behind it is full; nothing else was \
                          lost";

const CONSUMERD: [Counter; 6] = [
    LOG_LOST,
    counter("blkin_holder_log_lines_lost_total", "lines of its holder's log that were lost", LOG_ADVICE),
    counter(
        "blkin_worker_restarts_total",
        "times that the worker was killed or failed, and a new one took over",
        "its log (`journalctl -u blkin-consumerd`) says how it ended; a memory limit is a usual reason; nothing was lost",
    ),
    counter(
        "blkin_program_truncated_total",
        "records with a truncated text",
        "a text may have up to 4 KiB: let the program record shorter ones",
    ),
    counter(
        "blkin_programs_unsound_total",
        "programs whose own counters contradict each other; only what consumerd read of them is counted",
        "its log (`journalctl -u blkin-consumerd`) names them and what they had counted: look for memory corruption in the \
         program; valgrind or ASan may find it",
    ),
    counter(
        "blkin_recorders_evicted_total",
        "flight recorders of ended programs that were discarded before anybody took a snapshot",
        "take snapshots sooner, or raise recorder_keep, recorder_keep_bytes or recorder_keep_ms",
    ),
];

/// A counter of the daemons that can reload their configuration.
const CONFIG_REFUSED: Counter = counter(
    "blkin_config_refused",
    "times in a row that it could not use the configuration that it was told to reload",
    "its log (`journalctl -u 'blkin-*'`) says why, and so does `--check-config`: correct the file, or the next start fails",
);

const RELAY: [Counter; 7] = [
    CONFIG_REFUSED,
    LOG_LOST,
    counter(
        "blkin_relay_entries_lost_total",
        "entries that could not be read",
        "look at the relay's log (`journalctl -u blkin-relay`), and at who sends them",
    ),
    counter(
        "blkin_relay_entries_upstream_lost_total",
        "entries that did not reach an upstream",
        "`blkin ledger --relay` names upstreams and causes; docs/operations.md says what to do about each cause",
    ),
    counter(
        "blkin_relay_entries_forgotten_total",
        "entries that were kept for upstreams that are no longer configured",
        "an upstream that should still get its entries has to stay in the configuration until it has them",
    ),
    counter(
        "blkin_relay_damaged_regions_total",
        "regions of the spool that could not be read",
        "look at the relay's log (`journalctl -u blkin-relay`), and at the disk",
    ),
    counter(
        "blkin_relay_messages_dropped_total",
        "calls that arrived too slowly, and were dropped while others waited for memory",
        "raise max_reading_mib, or have senders make smaller messages; they send again what was dropped",
    ),
];

const COLLECTOR: [Counter; 7] = [
    CONFIG_REFUSED,
    LOG_LOST,
    counter(
        "blkin_collector_rejected_total",
        "entries, or annotations of entries, that were rejected",
        "`blkin rejects` lists the last of them, with senders and reasons",
    ),
    counter(
        "blkin_collector_skipped_entries_total",
        "Scribe entries of another category, which were acknowledged and not stored",
        "if they should have been stored: scribe_category differs between the sender and the collector, whose log names each such \
         category",
    ),
    counter(
        "blkin_collector_damaged_pieces_total",
        "times that a damaged piece was left out of an answer",
        "look at the collector's log (`journalctl -u blkin-collector`), and at the disk",
    ),
    counter(
        "blkin_collector_damaged_files_total",
        "damaged files of the store that were set aside",
        "look at the collector's log (`journalctl -u blkin-collector`), and at the disk; intact data in them was stored again",
    ),
    counter(
        "blkin_collector_messages_dropped_total",
        "messages that arrived too slowly, and were dropped while others waited for memory",
        "raise max_reading_mib, or have senders make smaller messages; they send again what was dropped",
    ),
];

/// What to do about each cause of loss in the ledger, in short; docs/operations.md says it at length.
const CAUSES: [(&str, &str); 14] = [
    (
        "full",
        "if no consumerd was running, or no upstream accepted anything, that is why; otherwise give the program a larger \
         BLKIN_RING_BYTES or a BLKIN_RATE, or consumerd more CPU",
    ),
    (
        "stalled",
        "continue a stopped program; if a thread or process was killed while recording, the losses end with the program",
    ),
    ("starting", "call blkin_init() before starting threads"),
    ("no_segment", "raise the limit that the program named on its standard error"),
    ("too_large", "give the program a larger BLKIN_RING_BYTES"),
    ("torn", "find out why a program died while it recorded"),
    ("invalid", "look for memory corruption in the program: valgrind or ASan may find it"),
    ("unsettled", "give consumerd a longer stop_timeout_ms, or repair the upstream"),
    (
        "no_sink",
        "consumerd has, or had when it drained them, nowhere to ship to: set scribe_upstream, json_scribe_upstream or json_lines",
    ),
    ("queue_full", "repair the upstream, or raise queue_bytes of consumerd"),
    ("spool_evicted", "repair the upstream, or raise staging_bytes of consumerd, spool_bytes of a relay"),
    ("rejected", "look at the receiver's log; `blkin rejects`, if it is the collector"),
    ("damaged", "look at the relay's log (`journalctl -u blkin-relay`), and at its disk"),
    ("malformed", "`blkin rejects`, or the relay's log, names senders and reasons"),
];

/// One line of advice for each of these causes.
pub(super) fn advice<'a>(causes: impl Iterator<Item = &'a str>) -> String {
    let line = |cause: &str| {
        let known = CAUSES.iter().find(|(known, _)| *known == cause);
        format!("{cause}: {}", known.map_or("docs/operations.md says what to do", |(_, advice)| advice))
    };
    causes.map(line).collect::<Vec<_>>().join("\n")
}

/// The names of all counters that the doctor warns about here, so that a test can tell whether the alerts cover all of them.
pub fn counters() -> impl Iterator<Item = &'static str> {
    CONSUMERD.iter().chain(&RELAY).chain(&COLLECTOR).map(|counter| counter.name)
}

/// A warning for each counter of consumerd that is not zero.
pub(super) fn of_consumerd(metrics: &Metrics) -> Vec<Check> {
    not_zero("consumerd's counters", &CONSUMERD, metrics, "")
}

/// A warning for each counter of the relay at `address` that is not zero.
pub(super) fn of_relay(address: &str, metrics: &Metrics) -> Vec<Check> {
    not_zero("relay's counters", &RELAY, metrics, &format!("{address}: "))
}

/// A warning for each counter of the collector that is not zero.
pub(super) fn of_collector(metrics: &Metrics) -> Vec<Check> {
    not_zero("collector's counters", &COLLECTOR, metrics, "")
}

fn not_zero(name: &'static str, counters: &[Counter], metrics: &Metrics, whose: &str) -> Vec<Check> {
    let check = |counter: &Counter| {
        let count = metrics.sum(counter.name, &[]);
        let found = format!("{whose}{}: {count} ({})", counter.what, counter.name);
        (count > 0).then(|| Check::warning(name, found, counter.advice))
    };
    counters.iter().filter_map(check).collect()
}

#[cfg(test)]
mod tests {
    use super::super::Status;
    use super::*;

    #[test]
    fn each_documented_cause_of_loss_has_advice() {
        let document = include_str!("../../../docs/operations.md");
        let (_, table) = document.split_once("| cause | counted in |").unwrap();
        let rows = table.lines().skip(2).map_while(|row| row.strip_prefix("| `")?.split('`').next());
        let causes: Vec<&str> = rows.filter(|cause| !super::super::AS_CONFIGURED.contains(cause)).collect();
        let known: Vec<&str> = CAUSES.iter().map(|(cause, _)| *cause).collect();
        assert_eq!(causes, known);
        assert_eq!(advice(["torn"].into_iter()), "torn: find out why a program died while it recorded");
    }

    #[test]
    fn each_loss_counter_is_a_warning_only_if_not_zero() {
        for (counters, of) in [
            (&CONSUMERD[..], &of_consumerd as &dyn Fn(&Metrics) -> Vec<Check>),
            (&RELAY, &|metrics| of_relay("http://r:1", metrics)),
            (&COLLECTOR, &of_collector),
        ] {
            let all = |value: u32| {
                let lines = counters.iter().map(|counter| format!("{}{{a=\"b\"}} {value}\n", counter.name));
                of(&Metrics::parse(&lines.collect::<String>()))
            };
            assert!(all(0).is_empty() && of(&Metrics::default()).is_empty());
            assert_eq!(all(3).len(), counters.len());
            assert!(
                all(3)
                    .iter()
                    .all(|check| check.status == Status::Warning && check.found.contains(": 3 (blkin_"))
            );
        }
    }
}
