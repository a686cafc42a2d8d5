//! Recent traces as a list: `blkin traces`.

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

/// So many of the newest traces are looked through at a time when the slowest of all are wanted.
const SEARCH_LIMIT: usize = 1_000;
/// Most of the slowest: half of that, so that of what the collector answers half falls away each time it is asked again.
pub const MOST_SLOWEST: usize = SEARCH_LIMIT / 2;

/// The key that a collector names when its time for a search was over before it had looked at all traces.
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
    /// No later than then, in microseconds since the epoch; now if there is none.
    pub end_us: Option<u64>,
    /// How far back from there, in microseconds.
    pub lookback_us: u64,
    /// How many traces.
    pub limit: usize,
    /// Those with the longest spans, the longest first, instead of the newest. At most [`MOST_SLOWEST`].
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
    /// By what collectors sort: the begin of the root, or else of whatever began first.
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
    /// The key of the collector's configuration that left something out.
    pub partial: Option<String>,
}

/// What the collector compares with a search's least duration: the service's spans alone if one is named.
fn longest(spans: &[Span], service: Option<&str>) -> u64 {
    let counts = |span: &&Span| service.is_none_or(|wanted| span.service().eq_ignore_ascii_case(wanted));
    spans.iter().filter(counts).filter_map(|span| span.duration).max().unwrap_or(0)
}

/// What a program recorded right before is stored this long after its end, at the latest. While there are no traces the collector
/// is asked again until it was asked then, with a pause in between.
const STORED_WITHIN: Duration = Duration::from_millis(250);
const PAUSE: Duration = Duration::from_millis(50);

/// Asks the collector for traces; once more for a moment if there are none, because they may be on their way.
///
/// # Errors
/// When the collector cannot be reached or refuses the search.
pub fn search(collector: &Client, search: &Search) -> Result<Found> {
    let ask = || {
        let found = search_once(collector, search)?;
        // What it did not get to it would not get to again.
        Ok(Some(found).filter(|found| !found.traces.is_empty() || found.partial.is_some()))
    };
    Ok(arrived(ask, until_stored())?.unwrap_or_default())
}

/// Asks while nothing is answered, as long as `wait` does.
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

/// Waits before a collector is asked again, unless it was asked late enough. A search may take seconds: that counts.
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

/// The sentence of a search that found nothing: what was not there, and what to do about that.
pub fn nothing(collector: &Client, search: &Search) -> String {
    let base = collector.base();
    if let Some(unknown) = search.service.as_deref().and_then(|service| unknown(collector, service)) {
        return unknown;
    }
    let is_narrowed = [&search.service, &search.span, &search.query].into_iter().any(Option::is_some);
    if is_narrowed || search.min_duration_us.is_some() || search.end_us.is_some() {
        return format!("no trace in {base} matches (--lookback and --end say of what time)");
    }
    let time = units::duration(search.lookback_us);
    format!("no traces of the last {time} in {base} (`blkin doctor` says whether tracing works)")
}

/// The sentence of a service that the collector does not know, with those that it knows.
pub fn unknown(collector: &Client, service: &str) -> Option<String> {
    let known = known_services(collector);
    let is_unknown = !known.is_empty() && !known.contains(&service.to_lowercase());
    is_unknown.then(|| {
        let (base, names) = (collector.base(), services(&known, NAMED_COLUMNS));
        format!("no service is named {:?} in {base}; there are: {names}", safe(service))
    })
}

/// Names of services that are shown when one is not among them.
const NAMED_COLUMNS: usize = 200;

/// None if the collector cannot say.
fn known_services(collector: &Client) -> BTreeSet<String> {
    let body = collector.get_ok("/api/v2/services", &[]).unwrap_or_default();
    serde_json::from_str(&body).unwrap_or_default()
}

/// What is said of an answer from which the `key` of the configuration of the collector at `base` left something out.
pub fn left_out(base: &str, key: &str) -> String {
    match key {
        OUT_OF_TIME => format!(
            "earlier traces may be missing here: {key} of {base} were over before it came to them (--end and --lookback narrow the \
             time)"
        ),
        _ => format!(
            "traces, or spans of them, may be missing here: together they have more than {key} of {base} allows"
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

/// What one request asks for.
#[derive(Debug)]
struct Page {
    /// At most so many traces,
    limit: usize,
    /// with a span as long as this,
    least_us: Option<u64>,
    /// that began no later than then, the newest first.
    until_us: Option<u64>,
}

/// The newest traces. A collector answers with as many as its configuration allows, and does not say that there are more: it is
/// asked again for what is as old as the oldest of them, or older, until nothing new comes. (Of more traces than it answers with
/// that all begin in the same microsecond, the rest is not to be had; of a Zipkin server, in the same millisecond.)
fn newest(mut page: Page, ask: impl Fn(&Page) -> Result<Found>) -> Result<Found> {
    let (mut found, mut known) = (Found::default(), HashSet::new());
    loop {
        let before = known.len();
        let Found { traces, partial } = ask(&page)?;
        page.until_us = traces.iter().map(|trace| trace.time_us).min();
        found.traces.extend(traces.into_iter().filter(|trace| known.insert(trace.trace_id.clone())));
        // What one page did not come to in time the next one does, but not to what it had no room for.
        found.partial = partial.or(found.partial.filter(|key| key != OUT_OF_TIME));
        if known.len() >= page.limit || known.len() == before {
            return Ok(found);
        }
    }
}

/// The slowest of all: a collector knows the newest, so it is asked again for those with a span as long as that of
/// the last one wanted, until no longer ones come. What it leaves out of the last answer may be among them.
fn slowest(search: &Search, mut ask: impl FnMut(Option<u64>) -> Result<Found>) -> Result<Found> {
    let mut least = search.min_duration_us;
    loop {
        let mut found = ask(least)?;
        let traces = &mut found.traces;
        traces.sort_by_key(|trace| Reverse(trace.longest_span_us));
        traces.truncate(search.limit);
        let last = traces.last().filter(|_| traces.len() == search.limit).map(|trace| trace.longest_span_us);
        // Of those without a duration none is longer than another, and none is answered to who asks for any.
        if last.unwrap_or(0) <= least.unwrap_or(0) {
            return Ok(found);
        }
        least = last;
    }
}

fn ask(collector: &Client, search: &Search, page: &Page, end_ms: u64) -> Result<Found> {
    // The window begins where that of the first page does.
    let until_ms = page.until_us.map(|until_us| until_us.div_ceil(1_000));
    let gone_ms = until_ms.map_or(0, |until_ms| end_ms.saturating_sub(until_ms));
    let lookback_ms = (search.lookback_us / 1_000).saturating_sub(gone_ms).max(1);
    let mut query = vec![("limit", page.limit.to_string()), ("lookback", lookback_ms.to_string())];
    query.extend(until_ms.map(|until_ms| ("endTs", until_ms.to_string())));
    // Zipkin knows milliseconds only, and passes this over.
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
/// A sentence that says what an id is.
pub fn parse_id(text: &str) -> Result<String, String> {
    if text.is_empty() || text.len() > 32 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err("trace ids are 1 to 32 hexadecimal digits (`blkin traces` lists them)".to_owned());
    }
    if text.bytes().all(|byte| byte == b'0') {
        return Err("0 is the id of a request that is not sampled: nothing of it is recorded".to_owned());
    }
    Ok(text.to_ascii_lowercase())
}

/// One trace, as far as the collector answers it.
#[derive(Debug)]
pub struct Trace {
    /// Its spans.
    pub spans: Vec<Span>,
    /// The key of the collector's configuration that left some of them out.
    pub partial: Option<String>,
}

/// Asks the collector for one trace, by an id of [`parse_id`]; once more for a moment if it is not there, because it may be on
/// its way.
///
/// # Errors
/// When the collector cannot be reached, or there is no such trace.
pub fn fetch(collector: &Client, id: &str) -> Result<Trace> {
    let found = arrived(|| fetch_once(collector, id), until_stored())?;
    found.with_context(|| format!("no trace {id} in {} (`blkin traces` lists recent ones)", collector.base()))
}

fn fetch_once(collector: &Client, id: &str) -> Result<Option<Trace>> {
    // Zipkin does not know the parameter, and passes it over.
    let path = format!("/api/v2/trace/{id}");
    let answer = collector.get(&path, &[("nanos", "true")])?;
    match answer.status {
        200 => {
            let spans: Vec<Span> =
                serde_json::from_str(&answer.body).with_context(|| collector.strange("trace"))?;
            let partial = answer.partial;
            Ok((!spans.is_empty()).then_some(Trace { spans, partial }))
        }
        // Whoever answers nothing at all has no such path: a collector says what it has not found.
        404 if !answer.body.trim().is_empty() => Ok(None),
        _ => Err(collector.refused(&path, &answer)),
    }
}

/// Where the columns of the list are. What stands first is what leads on: a narrow terminal has no room for the rest.
struct Columns {
    ids: usize,
    names: usize,
    services: usize,
    with_longest: bool,
    /// So many of them, but for the services, have room.
    shown: usize,
}

impl Columns {
    /// As wide as the longest id, of 64 bits or of 128 (more is none); names and services share what is left.
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

/// The list as a table; `now_us` is the moment that ages are counted from. With `slowest`, what the list is sorted by stands
/// beside the duration.
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

/// As many names as fit, and how many others there are; one that alone would take all the room is one of the others.
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
