//! Figures of anybody who answers for a daemon: a sample beside them is read as it was written, and the ledger tells them
//! in lines that drive no terminal. If the first byte says so all of it comes often, and still has a sum.
#![no_main]

use blkin_cli::ledger::Ledger;
use blkin_cli::metrics::Metrics;
use blkin_cli::terminal::{Style, safe};
use libfuzzer_sys::fuzz_target;

/// A figure that nothing else has the name of.
const OWN: &str = "own_total";
const OFTEN: u8 = 0xff;
/// As many large figures have a sum that is larger than any number.
const TIMES: usize = 1100;
const MOST_BYTES: usize = 64;

/// As it stands in a label.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// A sample whose label has that value, between lines of others.
fn check_neighbour(value: &str, others: &str) {
    // Nothing, which has a sum with whatever is beside it.
    let own = format!("{OWN}{{a=\"b\",process=\"{}\"}} 0", escaped(value));
    let others = others.replace(OWN, "-");
    let metrics = Metrics::parse(&format!("{others}\n{own}\n{others}"));
    assert_eq!(metrics.select(OWN, &[("process", value), ("a", "b")]).count(), 1);
    assert_eq!(metrics.values(OWN, "process"), [value]);
}

fn check_ledger(metrics: &Metrics) {
    let ledger = Ledger::of_consumerd(metrics)
        .and(Ledger::of_relay("r:1", metrics))
        .and(Ledger::of_collector(metrics));
    let table = ledger.table(Style { columns: 80, colours: false });
    assert!(table.lines().all(|line| safe(line) == line), "{table:?}");
    let told = table.matches(" holds\n").count() + table.matches(" DOES NOT HOLD\n").count();
    assert!(told > 0 || ledger.equations.is_empty(), "{table}");
    // Of what is lost, each has a cause.
    assert_eq!(ledger.lost_by_cause().values().sum::<i64>(), ledger.lost());
}

fuzz_target!(|input: &[u8]| {
    let Some((&first, rest)) = input.split_first() else { return };
    let text = String::from_utf8_lossy(rest);
    check_neighbour(text.lines().next().unwrap_or_default(), &text);
    let once = Metrics::parse(&text);
    check_ledger(&once);
    if first == OFTEN && text.len() <= MOST_BYTES {
        check_ledger(&Metrics::parse(&format!("{text}\n").repeat(TIMES)));
    }
});
