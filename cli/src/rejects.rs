//! `blkin rejects`: what the collector rejected recently, and why.

use std::collections::BTreeMap;
use std::fmt::Write;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::http::Client;
use crate::terminal::{Colour, Style, cut, fit, fitting, safe, width, wrapped};
use crate::units;

/// The collector's answer. An answer without counts is not from a collector.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct Rejects {
    /// Transport → cause → how many since the collector started.
    pub counts: BTreeMap<String, BTreeMap<String, u64>>,
    /// The latest rejected entries, newest first.
    #[serde(default)]
    pub recent: Vec<Reject>,
}

impl Rejects {
    /// Whether nothing was rejected since the collector started.
    pub fn is_empty(&self) -> bool {
        self.recent.is_empty() && self.counts.values().flat_map(BTreeMap::values).all(|count| *count == 0)
    }
}

/// One rejected entry.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct Reject {
    /// When, in milliseconds since 1970.
    pub time_ms: u64,
    /// The transport by which it arrived.
    pub transport: String,
    /// The sender, if the collector knows it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// The cause under which it is counted.
    pub cause: String,
    /// What exactly was wrong.
    pub reason: String,
}

/// Asks the collector for the counts and the latest `limit` rejects.
///
/// # Errors
/// When it cannot be reached, or is a Zipkin server, which does not list rejects.
pub fn fetch(collector: &Client, limit: usize) -> Result<Rejects> {
    let body = collector.get_ok("/api/blkin/rejects", &[])?;
    let mut rejects: Rejects = serde_json::from_str(&body).with_context(|| collector.strange("rejects"))?;
    rejects.recent.truncate(limit);
    Ok(rejects)
}

/// Widths of the columns for time, transport, sender and cause.
const WIDTHS: [usize; 4] = [11, 9, 21, 16];

/// The rejects as a table, then the counts. A reason for which a line has no room is printed below it.
pub fn table(rejects: &Rejects, now_us: u64, style: Style) -> String {
    let shown = fitting(&WIDTHS, style.columns);
    let line = |when: &str, others: [&str; 3]| {
        let mut cells = vec![format!("{when:>11}")];
        cells.extend(others.iter().zip(&WIDTHS[1..]).map(|(cell, columns)| fit(&safe(cell), *columns)));
        cells.truncate(shown);
        cells.join("  ")
    };
    let head = line("when", ["transport", "from", "cause"]) + "  reason";
    let mut out = format!("{}\n", style.paint(Colour::Bold, &cut(&head, style.columns)));
    for reject in &rejects.recent {
        let when = units::age(reject.time_ms.saturating_mul(1000), now_us);
        let from = reject.peer.as_deref().unwrap_or("");
        let line = line(&when, [&reject.transport, from, &reject.cause]);
        let reason = safe(&reject.reason);
        let beside = format!("{line}  {reason}");
        if width(&beside) <= style.columns {
            let _ = writeln!(out, "{beside}");
        } else {
            let below = wrapped(&reason, style.columns.saturating_sub(4)).join("\n    ");
            let _ = writeln!(out, "{}\n    {below}", line.trim_end());
        }
    }
    for (transport, causes) in &rejects.counts {
        for (cause, count) in causes {
            let _ = writeln!(out, "{count} by {}: {}", safe(transport), safe(cause));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::answering;

    #[test]
    fn rejects_with_counts_of_zero_are_empty() {
        let of = |count: u64| Rejects {
            counts: [("http_v2".to_owned(), [("bad_value".to_owned(), count)].into())].into(),
            recent: Vec::new(),
        };
        assert!(Rejects::default().is_empty() && of(0).is_empty() && !of(1).is_empty());
    }

    #[test]
    fn the_latest_rejects_are_given_up_to_the_limit() {
        let body = r#"{"counts":{"scribe":{"syntax":2}},"recent":[{"time_ms":2,"cause":"new"},{"time_ms":1,"cause":"old"}]}"#;
        let found = fetch(&answering(move |_| ("200 OK", body)), 1).unwrap();
        assert_eq!((found.recent.len(), &*found.recent[0].cause), (1, "new"));
        assert_eq!(found.counts["scribe"]["syntax"], 2);
    }

    #[test]
    fn an_answer_without_counts_of_rejects_is_an_error() {
        for body in ["{}", "[]"] {
            let error = format!("{:#}", fetch(&answering(move |_| ("200 OK", body)), 1).unwrap_err());
            assert!(error.starts_with("failed to read the rejects that "), "{error}");
        }
    }

    #[test]
    fn rejects_are_shown_without_control_characters() {
        let reject = Reject {
            time_ms: 1_000,
            transport: "http_v2".into(),
            peer: Some("10.0.0.1:5".into()),
            cause: "bad_value".into(),
            reason: "unknown kind \"\u{1b}[2J\"".into(),
        };
        let counts = [("http_v2".to_owned(), [("bad_value".to_owned(), 7)].into())].into();
        let rejects = Rejects { counts, recent: vec![reject] };
        let text = table(&rejects, 61_000_000, Style { columns: 100, colours: false });
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3, "{text}");
        assert!(lines[1].contains("10.0.0.1:5") && lines[1].contains("bad_value"), "{text}");
        assert!(!text.contains('\u{1b}'), "{text}");
        assert_eq!(lines[2], "7 by http_v2: bad_value");
        for columns in [40, 60, 80] {
            let text = table(&rejects, 61_000_000, Style { columns, colours: false });
            assert!(text.lines().all(|line| line.chars().count() <= columns), "{text}");
            assert!(text.contains("\n    unknown kind "), "{text}");
        }
    }
}
