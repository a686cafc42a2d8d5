//! Recent traces as a list: `blkin traces`.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use anyhow::{Context, Result, bail};
use serde::Serialize;

use crate::http::Client;
use crate::span::{self, Span};
use crate::terminal::{Colour, Style, fit, safe};
use crate::units;
use crate::views;

/// The collector is asked for so many traces when the slowest of all are wanted.
const SEARCH_LIMIT: usize = 1_000;

/// What to look for.
#[derive(Debug, Clone, Default)]
pub struct Search {
    /// Service name.
    pub service: Option<String>,
    /// Span name.
    pub span: Option<String>,
    /// Zipkin's annotationQuery, such as `error and Object=foo`.
    pub query: Option<String>,
    /// Shortest span, in microseconds.
    pub min_duration_us: Option<u64>,
    /// How far back, in microseconds.
    pub lookback_us: u64,
    /// How many traces.
    pub limit: usize,
    /// The slowest first, instead of the newest.
    pub slowest: bool,
}

/// One line of the list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// Hexadecimal trace id.
    pub trace_id: String,
    /// Name of the first root.
    pub name: String,
    /// All services that took part.
    pub services: BTreeSet<String>,
    /// Count of spans.
    pub spans: usize,
    /// Begin, in microseconds since the epoch.
    pub start_us: u64,
    /// From the first begin to the last end.
    pub duration_us: u64,
}

impl Summary {
    fn of(spans: &[Span]) -> Option<Summary> {
        let first = spans.first()?;
        let (begin, end) = span::extent(spans).unwrap_or((0, 0));
        let root = spans.iter().find(|span| span.parent_id.is_none()).unwrap_or(first);
        Some(Summary {
            trace_id: first.trace_id.clone(),
            name: root.name.clone().unwrap_or_default(),
            services: spans
                .iter()
                .map(|span| span.service().to_owned())
                .filter(|name| !name.is_empty())
                .collect(),
            spans: views::count(spans),
            start_us: begin,
            duration_us: end - begin,
        })
    }
}

/// Asks the collector for traces.
///
/// # Errors
/// When the collector cannot be reached or refuses the search.
pub fn search(collector: &Client, search: &Search) -> Result<Vec<Summary>> {
    let limit = if search.slowest { SEARCH_LIMIT.max(search.limit) } else { search.limit };
    let mut query =
        vec![("limit", limit.to_string()), ("lookback", (search.lookback_us / 1_000).max(1).to_string())];
    query.extend(search.service.clone().map(|name| ("serviceName", name)));
    query.extend(search.span.clone().map(|name| ("spanName", name)));
    query.extend(search.query.clone().map(|text| ("annotationQuery", text)));
    query.extend(search.min_duration_us.map(|least| ("minDuration", least.max(1).to_string())));
    let query: Vec<(&str, &str)> = query.iter().map(|(key, value)| (*key, value.as_str())).collect();
    let body = collector.get_ok("/api/v2/traces", &query)?;
    let traces: Vec<Vec<Span>> = serde_json::from_str(&body)
        .with_context(|| format!("failed to read the traces that {} answered", collector.base()))?;
    let mut found: Vec<Summary> = traces.iter().filter_map(|spans| Summary::of(spans)).collect();
    if search.slowest {
        found.sort_by_key(|trace| std::cmp::Reverse(trace.duration_us));
    } else {
        found.sort_by_key(|trace| std::cmp::Reverse(trace.start_us));
    }
    found.truncate(search.limit);
    Ok(found)
}

/// Reads a trace id, as the command line has it.
///
/// # Errors
/// A sentence that says what an id is.
pub fn parse_id(text: &str) -> Result<String, String> {
    if text.is_empty() || text.len() > 32 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err("trace ids are 1 to 32 hexadecimal digits (`blkin traces` lists them)".to_owned());
    }
    Ok(text.to_ascii_lowercase())
}

/// Asks the collector for one trace, by an id of [`parse_id`].
///
/// # Errors
/// When the collector cannot be reached, or there is no such trace.
pub fn fetch(collector: &Client, id: &str) -> Result<Vec<Span>> {
    let answer = collector.get(&format!("/api/v2/trace/{id}"), &[])?;
    match answer.status {
        200 => serde_json::from_str(&answer.body)
            .with_context(|| format!("failed to read the trace that {} answered", collector.base())),
        404 => bail!("no trace {id} in {} (`blkin traces` lists recent ones)", collector.base()),
        status => bail!("{} answered {status}: {}", collector.base(), safe(answer.body.trim())),
    }
}

/// The list as a table; `now_us` is the moment that ages are counted from.
pub fn table(traces: &[Summary], now_us: u64, style: Style) -> String {
    let name_columns = style.columns.saturating_sub(62).max(10);
    let head = format!(
        "{:<17} {:>11}  {:>10}  {:>5}  {}  services",
        "trace",
        "begin",
        "duration",
        "spans",
        fit("name", name_columns / 2)
    );
    let mut out = format!("{}\n", style.paint(Colour::Bold, &head));
    for trace in traces {
        let services: Vec<String> = trace.services.iter().map(|name| safe(name)).collect();
        let _ = writeln!(
            out,
            "{:<17} {:>11}  {:>10}  {:>5}  {}  {}",
            safe(&trace.trace_id),
            units::age(now_us.saturating_sub(trace.start_us)),
            units::duration(trace.duration_us),
            trace.spans,
            fit(&safe(&trace.name), name_columns / 2),
            style.paint(
                Colour::Cyan,
                fit(&services.join(" "), name_columns - name_columns / 2 + 8).trim_end()
            ),
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace(id: &str, start: u64, duration: u64) -> Vec<Span> {
        let root = Span {
            trace_id: id.into(),
            id: id.into(),
            name: Some("write".into()),
            timestamp: Some(start),
            duration: Some(duration),
            ..Span::default()
        };
        let child =
            Span { id: "c".into(), parent_id: Some(id.into()), name: Some("journal".into()), ..root.clone() };
        vec![child, root]
    }

    #[test]
    fn a_summary_carries_the_roots_name_and_the_whole_extent() {
        let summary = Summary::of(&trace("a", 50, 7)).unwrap();
        assert_eq!(
            (summary.name.as_str(), summary.spans, summary.start_us, summary.duration_us),
            ("write", 2, 50, 7)
        );
        assert_eq!(Summary::of(&[]), None);
    }

    #[test]
    fn the_table_has_a_line_for_each_trace() {
        let traces = [Summary::of(&trace("ab", 1_000_000, 4_874)).unwrap()];
        let shown = table(&traces, 4_000_000, Style { columns: 100, colours: false });
        assert!(
            shown
                .lines()
                .nth(1)
                .unwrap()
                .starts_with("ab                    3 s ago    4.874 ms      2  write"),
            "{shown}"
        );
    }

    #[test]
    fn a_malformed_id_is_refused_before_anyone_is_asked() {
        for id in ["", "xyz", "../../metrics", &"a".repeat(33)] {
            assert!(parse_id(id).unwrap_err().contains("hexadecimal"), "{id}");
        }
        assert_eq!(parse_id("4F2a").unwrap(), "4f2a");
    }
}
