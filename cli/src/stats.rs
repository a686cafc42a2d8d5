//! `blkin stats`: how long something takes in each service.

use std::fmt::Write as _;

use anyhow::{Context, Result};
use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use serde::{Deserialize, Serialize};

use crate::http::Client;
use crate::moments;
use crate::terminal::{Colour, Style, fit, fitting, safe, wrapped};
use crate::units;

/// What `blkin stats --help` says about its figures.
pub const NOTE: &str = "p50 and p99 are rounded, by at most 0.8 %; count, average and max are exact.";

/// Arguments of `blkin stats`.
#[derive(Debug, Clone, Args)]
pub struct StatsArguments {
    /// The annotation that begins the interval, such as 'Write begins'; cs or sr for the begin of a call, ms for that of a message
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub from: String,
    /// The annotation of the same span that ends it, such as 'Span ended'; cr or ss for the end of a call, mr for the arrival
    /// of a message, which is listed under the service that received it
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub to: String,
    /// Only this service
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    pub service: Option<String>,
    /// Only spans of this name
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    pub span: Option<String>,
    /// How far back from --end to look (10m, 2h, 1d)
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = units::parse_duration_us)]
    pub lookback: u64,
    /// End of the time to look at: 2h (ago), 2026-11-20 (00:00 UTC), 2026-11-20T19:52:00+01:00, or milliseconds since
    /// 1970 [default: now]
    #[arg(long, value_name = "WHEN", value_parser = moments::parse)]
    pub end: Option<u64>,
}

/// The collector's answer. An answer without the number of traces is not from a collector.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize)]
pub struct Stats {
    /// Number of traces that were examined.
    pub traces: u64,
    /// Whether these are all traces of that time, with all their spans; if not, they are the latest, or part of a huge one.
    #[serde(default)]
    pub complete: bool,
    /// How often the first annotation was not followed by the second in the same span.
    #[serde(default)]
    pub without_end: u64,
    /// The results by service.
    #[serde(default)]
    pub services: Vec<ServiceStats>,
}

/// The intervals of one service. Times are in microseconds.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct ServiceStats {
    /// The service that wrote both annotations; for a message, the service that received it.
    pub service: String,
    /// How many intervals.
    pub count: u64,
    /// Their average.
    pub average_us: f64,
    /// Half of them took at most this long.
    pub p50_us: u64,
    /// 99 of 100 took at most this long.
    pub p99_us: u64,
    /// The longest.
    pub max_us: u64,
}

/// Asks the collector.
///
/// # Errors
/// When it cannot be reached, refuses the question, or is a Zipkin server, which cannot answer it.
pub fn fetch(collector: &Client, wanted: &StatsArguments) -> Result<Stats> {
    let mut query = vec![
        ("from", wanted.from.clone()),
        ("to", wanted.to.clone()),
        ("lookback", (wanted.lookback / 1_000).max(1).to_string()),
    ];
    query.extend(wanted.service.clone().map(|name| ("serviceName", name)));
    query.extend(wanted.span.clone().map(|name| ("spanName", name)));
    query.extend(wanted.end.map(|end_us| ("endTs", end_us.div_ceil(1_000).to_string())));
    let query: Vec<(&str, &str)> = query.iter().map(|(key, value)| (*key, value.as_str())).collect();
    let body = collector.get_ok("/api/blkin/intervals", &query)?;
    serde_json::from_str(&body).with_context(|| collector.strange("intervals"))
}

/// The sentence to print for an answer without services.
pub fn nothing(stats: &Stats, wanted: &StatsArguments) -> String {
    let looked_at = units::counted(stats.traces, "trace");
    let both = format!("none of {looked_at} has a span with both {:?} and {:?}", wanted.from, wanted.to);
    let all = format!("{both}{}", rest(stats));
    std::iter::once(all).chain(left_out(stats)).collect::<Vec<_>>().join("; ")
}

/// A sentence about intervals that could not be measured, if there are any.
fn left_out(stats: &Stats) -> Option<String> {
    match stats.without_end {
        0 => None,
        1 => Some("1 begin was left out: no end came after it in its span".to_owned()),
        many => Some(format!("{many} begins were left out: no end came after them in their span")),
    }
}

/// An addition to the number of examined traces if there are more.
fn rest(stats: &Stats) -> &'static str {
    match stats.complete {
        true => "",
        false => ", and there are more: the collector's query_seconds or query_max_mib left out the rest",
    }
}

/// The answer as a table, the service that takes longest on average first.
pub fn table(stats: &Stats, style: Style) -> String {
    let names = style.columns.saturating_sub(63).max(12);
    let shown = fitting(&[names, 9, 11, 11, 11, 11], style.columns);
    let line = |name: &str, count: &str, times: [&str; 4]| {
        let mut cells = vec![fit(name, names), format!("{count:>9}")];
        cells.extend(times.map(|time| format!("{time:>11}")));
        cells.truncate(shown);
        cells.join("  ")
    };
    let head = line("service", "count", ["average", "p50", "p99", "max"]);
    let mut out = format!("{}\n", style.paint(Colour::Bold, &head));
    let mut services: Vec<&ServiceStats> = stats.services.iter().collect();
    services.sort_by(|a, b| b.average_us.total_cmp(&a.average_us));
    for found in services {
        let times =
            [found.average_us.round() as u64, found.p50_us, found.p99_us, found.max_us].map(units::duration);
        let times = times.each_ref().map(String::as_str);
        let _ = writeln!(out, "{}", line(&safe(&found.service), &found.count.to_string(), times));
    }
    let looked_at = format!("of {}{}", units::counted(stats.traces, "trace"), rest(stats));
    let below = std::iter::once(looked_at).chain(left_out(stats));
    for line in below.flat_map(|text| wrapped(&text, style.columns)) {
        let _ = writeln!(out, "{line}");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_without_the_fields_of_stats_is_an_error() {
        assert!(["{}", "[]"].iter().all(|body| serde_json::from_str::<Stats>(body).is_err()));
    }

    #[test]
    fn stats_without_services_are_explained_in_a_sentence() {
        let wanted = StatsArguments {
            from: "a".into(),
            to: "b".into(),
            service: None,
            span: None,
            lookback: 60_000_000,
            end: None,
        };
        assert_eq!(
            nothing(&Stats { traces: 7, complete: true, ..Stats::default() }, &wanted),
            "none of 7 traces has a span with both \"a\" and \"b\""
        );
        assert_eq!(
            nothing(&Stats { traces: 7, complete: true, without_end: 3, ..Stats::default() }, &wanted),
            "none of 7 traces has a span with both \"a\" and \"b\"; 3 begins were left out: no end came after them in their span"
        );
        let cut = nothing(&Stats { traces: 7, ..Stats::default() }, &wanted);
        assert!(cut.contains(" and \"b\", and there are more: the collector's query_seconds or"), "{cut}");
    }

    #[test]
    fn the_figures_of_stats_are_aligned_whatever_their_size() {
        let service = |took: u64| ServiceStats {
            service: "osd.0".into(),
            count: 3,
            average_us: took as f64,
            p50_us: took,
            p99_us: took,
            max_us: took,
        };
        let services = [1, 725_000_000, 3_599_000_000].map(service).into();
        let text = table(&Stats { services, ..Stats::default() }, Style { columns: 80, colours: false });
        assert!(text.lines().take(4).all(|line| line.chars().count() == 80), "{text}");
    }

    #[test]
    fn stats_list_the_slowest_service_first_and_what_is_left_out() {
        let service = |name: &str, average_us| ServiceStats {
            service: name.into(),
            count: 3,
            average_us,
            p50_us: 90,
            p99_us: 2_000,
            max_us: 2_500,
        };
        let services = vec![service("osd.0", 250.4), service("osd.1\u{1b}[2J", 1_500.0)];
        let stats = Stats { traces: 7, complete: false, without_end: 12_345, services };
        let one = Stats { traces: 1, complete: true, without_end: 0, ..stats.clone() };
        assert_eq!(table(&one, Style { columns: 80, colours: false }).lines().last(), Some("of 1 trace"));
        let text = table(&stats, Style { columns: 80, colours: false });
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 6, "{text}");
        assert!(lines[1].starts_with("osd.1") && !text.contains('\u{1b}'), "{text}");
        assert!(lines[2].contains(&units::duration(250)), "{text}");
        assert!(lines[3].contains("7 traces, and there are more:"), "{text}");
        assert_eq!(lines[5], "12345 begins were left out: no end came after them in their span");
        for columns in [40, 60, 80] {
            let text = table(&stats, Style { columns, colours: false });
            assert!(text.lines().all(|line| line.chars().count() <= columns), "{text}");
        }
    }
}
