//! The other answers of daemons, whoever gives them: what is said of them drives no terminal, and what it is told of has a row.
//! The first byte says which answer, and how wide the terminal is.
#![no_main]

use blkin_cli::rejects::{self, Rejects};
use blkin_cli::set::{self, SetArguments};
use blkin_cli::stats::{self, Stats};
use blkin_cli::terminal::{Style, safe, width};
use clap::Parser;
use libfuzzer_sys::fuzz_target;

/// Narrower terminals wrap lines.
const LEAST_COLUMNS: usize = 40;
const NOW_US: u64 = 1_700_000_000_000_000;

#[derive(Parser)]
struct Command {
    #[command(flatten)]
    set: SetArguments,
}

fn check(text: &str, least_lines: usize) {
    assert!(text.lines().all(|line| safe(line) == line), "{text:?}");
    assert!(text.lines().count() >= least_lines, "{text:?}");
}

fn check_stats(json: &[u8], style: Style) {
    let Ok(stats) = serde_json::from_slice::<Stats>(json) else { return };
    let table = stats::table(&stats, style);
    check(&table, stats.services.len() + 2);
    assert!(table.lines().all(|line| width(line) <= style.columns), "{table}");
}

fn check_rejects(json: &[u8], style: Style) {
    let Ok(rejects) = serde_json::from_slice::<Rejects>(json) else { return };
    let counts = rejects.counts.values().map(|causes| causes.len()).sum::<usize>();
    check(&rejects::table(&rejects, NOW_US, style), rejects.recent.len() + counts + 1);
}

/// What consumerd answers to who sets something, and to who asks what is set.
fn check_set(json: &[u8], style: Style) {
    let Ok(text) = str::from_utf8(json) else { return };
    for words in [&["set", "--show"][..], &["set", "--all", "--off"]] {
        let arguments = Command::try_parse_from(words).ok().expect("words that are understood").set;
        match set::answer_text(&arguments, text, false, style) {
            Ok(text) => check(&text, 1),
            Err(refused) => check(&refused.to_string(), 0),
        }
        let _json = set::answer_text(&arguments, text, true, style);
    }
}

fuzz_target!(|input: &[u8]| {
    let Some((&first, json)) = input.split_first() else { return };
    let style = Style { columns: LEAST_COLUMNS + usize::from(first / 3), colours: false };
    match first % 3 {
        0 => check_stats(json, style),
        1 => check_rejects(json, style),
        _ => check_set(json, style),
    }
});
