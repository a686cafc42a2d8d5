//! `blkin traces`: recent traces as a list.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashSet};
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::Serialize;

use crate::http::{Answer, Client};
use crate::moments;
use crate::span::{self, Span};
use crate::terminal::{Colour, Style, cut, fit, fitting, safe, width};
use crate::units;
use crate::views;

/// Number of traces asked for at a time when the slowest of all are wanted.
const SEARCH_LIMIT: usize = 1_000;
/// Most traces that `--slowest` lists: half of that, so that at least half of each answer drops off the list before the next
/// request.
pub const MOST_SLOWEST: usize = SEARCH_LIMIT / 2;

/// The key that a collector names when its time for a search ran out before it had examined all traces.
const OUT_OF_TIME: &str = "query_seconds";

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
    /// The latest begin of a trace, in microseconds since the epoch; now if none.
    pub end_us: Option<u64>,
    /// How far back from there, in microseconds.
    pub lookback_us: u64,
    /// How many traces.
    pub limit: usize,
    /// Whether the traces with the longest spans are wanted, longest first, instead of the newest. At most [`MOST_SLOWEST`].
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
    /// The longest span: of the service that was searched for, or of all.
    pub longest_span_us: u64,
    /// What collectors sort by: the begin of the root, or without a root that of the earliest span.
    #[serde(skip)]
    time_us: u64,
}

impl Summary {
    fn of(spans: &[Span], service: Option<&str>) -> Option<Summary> {
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
            longest_span_us: longest(spans, service),
            time_us: root.timestamp.filter(|_| root.parent_id.is_none()).unwrap_or(begin),
        })
    }
}

/// What a search found.
#[derive(Debug, Default)]
pub struct Found {
    /// The traces.
    pub traces: Vec<Summary>,
    /// The key of the collector's configuration because of which something was left out.
    pub partial: Option<String>,
}

/// The longest span, which the collector compares with a search's minimum duration; only the service's spans if one is named.
fn longest(spans: &[Span], service: Option<&str>) -> u64 {
    let counts = |span: &&Span| service.is_none_or(|wanted| span.service().eq_ignore_ascii_case(wanted));
    spans.iter().filter(counts).filter_map(|span| span.duration).max().unwrap_or(0)
}

/// What a program recorded is stored at most this long after the program's end. While no trace is found the collector is asked
/// again, with pauses, until it has been asked after that time.
const STORED_WITHIN: Duration = Duration::from_millis(250);
const PAUSE: Duration = Duration::from_millis(50);

/// Asks the collector for traces. If there are none it is asked again for a moment, because they may be in transit.
///
/// # Errors
/// When the collector cannot be reached or refuses the search.
pub fn search(collector: &Client, search: &Search) -> Result<Found> {
    let ask = || {
        let found = search_once(collector, search)?;
        // The collector would run out of time again.
        Ok(Some(found).filter(|found| !found.traces.is_empty() || found.partial.is_some()))
    };
    Ok(arrived(ask, until_stored())?.unwrap_or_default())
}

/// Asks again while nothing is found and `wait` allows it.
fn arrived<T>(
    mut ask: impl FnMut() -> Result<Option<T>>,
    mut wait: impl FnMut() -> bool,
) -> Result<Option<T>> {
    loop {
        let found = ask()?;
        if found.is_some() || !wait() {
            return Ok(found);
        }
    }
}

/// Waits before the collector is asked again, unless it was last asked late enough. The time that a search takes counts.
fn until_stored() -> impl FnMut() -> bool {
    let begun = Instant::now();
    let mut asked = begun;
    move || {
        let is_late_enough = asked.duration_since(begun) >= STORED_WITHIN;
        if !is_late_enough {
            std::thread::sleep(PAUSE);
            asked = Instant::now();
        }
        !is_late_enough
    }
}

/// The sentence for a search that found nothing: what there is not, and what to do about that.
pub fn nothing(collector: &Client, search: &Search) -> String {
    let base = collector.base();
    if let Some(unknown) = search.service.as_deref().and_then(|service| unknown(collector, service)) {
        return unknown;
    }
    let is_narrowed = [&search.service, &search.span, &search.query].into_iter().any(Option::is_some);
    if is_narrowed || search.min_duration_us.is_some() || search.end_us.is_some() {
        return format!("no trace in {base} matches (--lookback and --end choose the time)");
    }
    let time = units::duration(search.lookback_us);
    format!("no traces of the last {time} in {base} (`blkin doctor` says whether tracing works)")
}

/// The sentence for a service that the collector does not know, with those that it knows. None if the service is known.
pub fn unknown(collector: &Client, service: &str) -> Option<String> {
    let known = known_services(collector);
    let is_unknown = !known.is_empty() && !known.contains(&service.to_lowercase());
    is_unknown.then(|| {
        let (base, names) = (collector.base(), services(&known, NAMED_COLUMNS));
        format!("no service is named {:?} in {base}; there are: {names}", safe(service))
    })
}

/// Most services that are listed when the one asked for is unknown.
const NAMED_COLUMNS: usize = 200;

/// The services that the collector knows; none if it cannot say.
fn known_services(collector: &Client) -> BTreeSet<String> {
    let body = collector.get_ok("/api/v2/services", &[]).unwrap_or_default();
    serde_json::from_str(&body).unwrap_or_default()
}

/// The note for an answer from which something was left out because of `key` in the configuration of the collector at `base`.
pub fn left_out(base: &str, key: &str) -> String {
    match key {
        OUT_OF_TIME => format!(
            "earlier traces may be missing here: {base} ran out of {key} before it reached them (--end and --lookback narrow the \
             time)"
        ),
        _ => format!(
            "traces, or spans of them, may be missing here: together they are larger than {key} of {base} allows"
        ),
    }
}

fn search_once(collector: &Client, search: &Search) -> Result<Found> {
    let end_ms = search.end_us.unwrap_or_else(moments::now_us).div_ceil(1_000);
    let first = |limit, least_us| Page { limit, least_us, until_us: search.end_us };
    let ask = |page: &Page| ask(collector, search, page, end_ms);
    if search.slowest {
        return slowest(search, |least| newest(first(SEARCH_LIMIT, least), ask));
    }
    let mut found = newest(first(search.limit, search.min_duration_us), ask)?;
    found.traces.sort_by_key(|trace| Reverse(trace.start_us));
    found.traces.truncate(search.limit);
    Ok(found)
}

/// One request to the collector.
#[derive(Debug)]
struct Page {
    /// Most traces to answer,
    limit: usize,
    /// each with a span of at least this duration,
    least_us: Option<u64>,
    /// that began no later than this, newest first.
    until_us: Option<u64>,
}

/// The newest traces. A collector answers with as many as its configuration allows, and does not say that there are more. So it is
/// asked again for traces as old as the oldest of the answer, or older, until nothing new comes. (If more traces than an answer may
/// have begin in the same microsecond, the rest of them cannot be fetched; with a Zipkin server, in the same millisecond.)
fn newest(mut page: Page, ask: impl Fn(&Page) -> Result<Found>) -> Result<Found> {
    let (mut found, mut known) = (Found::default(), HashSet::new());
    loop {
        let before = known.len();
        let Found { traces, partial } = ask(&page)?;
        page.until_us = traces.iter().map(|trace| trace.time_us).min();
        found.traces.extend(traces.into_iter().filter(|trace| known.insert(trace.trace_id.clone())));
        // The next page reaches what this one had no time for, but not what it had no room for.
        found.partial = partial.or(found.partial.filter(|key| key != OUT_OF_TIME));
        if known.len() >= page.limit || known.len() == before {
            return Ok(found);
        }
    }
}

/// The slowest traces of all. A collector answers with the newest, so it is asked again and again for traces whose longest span is
/// at least as long as that of the last one on the list, until no longer ones come. A trace that it left out of the last answer may
/// be missing.
fn slowest(search: &Search, mut ask: impl FnMut(Option<u64>) -> Result<Found>) -> Result<Found> {
    let mut least = search.min_duration_us;
    loop {
        let mut found = ask(least)?;
        let traces = &mut found.traces;
        traces.sort_by_key(|trace| Reverse(trace.longest_span_us));
        traces.truncate(search.limit);
        let last = traces.last().filter(|_| traces.len() == search.limit).map(|trace| trace.longest_span_us);
        // Traces without a duration are all alike, and a search with a minimum duration does not find them.
        if last.unwrap_or(0) <= least.unwrap_or(0) {
            return Ok(found);
        }
        least = last;
    }
}

fn ask(collector: &Client, search: &Search, page: &Page, end_ms: u64) -> Result<Found> {
    // The window of every page begins where that of the first page does.
    let until_ms = page.until_us.map(|until_us| until_us.div_ceil(1_000));
    let gone_ms = until_ms.map_or(0, |until_ms| end_ms.saturating_sub(until_ms));
    let lookback_ms = (search.lookback_us / 1_000).saturating_sub(gone_ms).max(1);
    let mut query = vec![("limit", page.limit.to_string()), ("lookback", lookback_ms.to_string())];
    query.extend(until_ms.map(|until_ms| ("endTs", until_ms.to_string())));
    // Zipkin knows only milliseconds, and ignores this parameter.
    query.extend(page.until_us.map(|until_us| ("endUs", until_us.to_string())));
    query.extend(search.service.clone().map(|name| ("serviceName", name)));
    query.extend(search.span.clone().map(|name| ("spanName", name)));
    query.extend(search.query.clone().map(|text| ("annotationQuery", text)));
    query.extend(page.least_us.map(|least| ("minDuration", least.max(1).to_string())));
    let query: Vec<(&str, &str)> = query.iter().map(|(key, value)| (*key, value.as_str())).collect();
    let Answer { body, partial, .. } = collector.answered("/api/v2/traces", &query)?;
    let traces: Vec<Vec<Span>> = serde_json::from_str(&body).with_context(|| collector.strange("traces"))?;
    let service = search.service.as_deref();
    Ok(Found { traces: traces.iter().filter_map(|spans| Summary::of(spans, service)).collect(), partial })
}

/// Reads a trace id, as the command line has it.
///
/// # Errors
/// A sentence that says what a trace id looks like.
pub fn parse_id(text: &str) -> Result<String, String> {
    if text.is_empty() || text.len() > 32 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err("trace ids are 1 to 32 hexadecimal digits (`blkin traces` lists them)".to_owned());
    }
    if text.bytes().all(|byte| byte == b'0') {
        return Err("0 is the id of a request that is not sampled: nothing is recorded for it".to_owned());
    }
    Ok(text.to_ascii_lowercase())
}

/// One trace, as far as the collector answers it.
#[derive(Debug)]
pub struct Trace {
    /// Its spans.
    pub spans: Vec<Span>,
    /// The key of the collector's configuration because of which some of them were left out.
    pub partial: Option<String>,
}

/// Asks the collector for one trace, by an id from [`parse_id`]. If it is not there, asks again for a moment, because it may be in
/// transit.
///
/// # Errors
/// When the collector cannot be reached, or there is no such trace.
pub fn fetch(collector: &Client, id: &str) -> Result<Trace> {
    let found = arrived(|| fetch_once(collector, id), until_stored())?;
    found.with_context(|| format!("no trace {id} in {} (`blkin traces` lists recent ones)", collector.base()))
}

fn fetch_once(collector: &Client, id: &str) -> Result<Option<Trace>> {
    // Zipkin does not know the parameter, and ignores it.
    let path = format!("/api/v2/trace/{id}");
    let answer = collector.get(&path, &[("nanos", "true")])?;
    match answer.status {
        200 => {
            let spans: Vec<Span> =
                serde_json::from_str(&answer.body).with_context(|| collector.strange("trace"))?;
            let partial = answer.partial;
            Ok((!spans.is_empty()).then_some(Trace { spans, partial }))
        }
        // An empty answer is from a server without such a path: a collector says what it has not found.
        404 if !answer.body.trim().is_empty() => Ok(None),
        _ => Err(collector.refused(&path, &answer)),
    }
}

/// The widths of the list's columns. The first columns are those that one acts on: a narrow terminal has no room for the rest.
struct Columns {
    ids: usize,
    names: usize,
    services: usize,
    with_longest: bool,
    /// How many of them, without the services, have room.
    shown: usize,
}

impl Columns {
    /// The column of ids is as wide as the longest id, of 64 or 128 bits; names and services share the rest.
    fn of(traces: &[Summary], with_longest: bool, style: Style) -> Columns {
        let ids = traces.iter().map(|trace| trace.trace_id.len()).max().unwrap_or(0).clamp(16, 32);
        let figures: &[usize] = if with_longest { &[11, 11, 12, 5] } else { &[11, 11, 5] };
        let left = |taken: usize| style.columns.saturating_sub(taken);
        let taken = ids + figures.iter().map(|width| 2 + width).sum::<usize>() + 2;
        let both = left(taken + 10).max(10);
        let names = both / 2;
        let services = left(taken + names + 2).min(both - names + 8);
        let widths = [&[ids], figures, &[names]].concat();
        Columns { ids, names, services, with_longest, shown: fitting(&widths, style.columns) }
    }

    fn line(&self, cells: [&str; 6], services: &str) -> String {
        let [id, begin, duration, longest, spans, name] = cells;
        let mut line = vec![fit(id, self.ids), format!("{begin:>11}"), format!("{duration:>11}")];
        line.extend(self.with_longest.then(|| format!("{longest:>12}")));
        line.extend([format!("{spans:>5}"), fit(name, self.names)]);
        let all = line.len();
        line.truncate(self.shown);
        line.extend((self.shown == all && self.services > 0).then(|| services.to_owned()));
        line.join("  ")
    }
}

/// The list as a table. Ages are counted from `now_us`. With `slowest`, a column beside the duration shows what the list is sorted
/// by.
pub fn table(traces: &[Summary], now_us: u64, slowest: bool, style: Style) -> String {
    let columns = Columns::of(traces, slowest, style);
    let titles = ["trace", "begin", "duration", "longest span", "spans", "name"];
    let head = columns.line(titles, &cut("services", columns.services));
    let mut out = format!("{}\n", style.paint(Colour::Bold, &head));
    for trace in traces {
        let cells = [
            &*safe(&trace.trace_id),
            &units::age(trace.start_us, now_us),
            &units::duration(trace.duration_us),
            &units::duration(trace.longest_span_us),
            &trace.spans.to_string(),
            &safe(&trace.name),
        ];
        let services = style.paint(Colour::Cyan, &services(&trace.services, columns.services));
        let _ = writeln!(out, "{}", columns.line(cells, &services));
    }
    out
}

/// As many names as fit, and how many others there are. A name that would take all the room counts as one of the others.
fn services(names: &BTreeSet<String>, columns: usize) -> String {
    let names: Vec<String> = names.iter().map(|name| safe(name)).collect();
    let all = names.join(" ");
    if width(&all) <= columns {
        return all;
    }
    let mut left = columns.saturating_sub(" +999".len());
    let mut shown = Vec::new();
    for name in &names {
        if let Some(rest) = left.checked_sub(width(name) + usize::from(!shown.is_empty())) {
            left = rest;
            shown.push(name.as_str());
        }
    }
    if shown.is_empty() {
        return fit(&all, columns).trim_end().to_owned();
    }
    format!("{} +{}", shown.join(" "), names.len() - shown.len())
}

#[cfg(test)]
mod tests;
