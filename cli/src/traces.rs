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
    if let Some(service) = search.service.as_deref().filter(|service| !service.is_empty()) {
        let known = known_services(collector);
        if !known.is_empty() && !known.contains(&service.to_lowercase()) {
            let names = services(&known, NAMED_COLUMNS);
            return format!("no service is named {:?} in {base}; there are: {names}", safe(service));
        }
    }
    let is_narrowed = [&search.service, &search.span, &search.query].into_iter().any(Option::is_some);
    if is_narrowed || search.min_duration_us.is_some() || search.end_us.is_some() {
        return format!("no trace in {base} matches (--lookback and --end say of what time)");
    }
    format!("no traces found in {base} (`blkin doctor` says whether tracing works)")
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
            &units::age(now_us.saturating_sub(trace.start_us)),
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
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::http::answering;
    use crate::span::Endpoint;

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
    fn a_daemon_without_traces_is_told_from_a_collector_that_has_not_this_one() {
        let said = |status: &'static str, body: &'static str| {
            let collector = answering(move |_| (status, body)).named_by("--collector");
            format!("{:#}", fetch(&collector, "1").unwrap_err())
        };
        for answer in [("404 Not Found", "0000000000000001 not found"), ("200 OK", "[]")] {
            assert!(said(answer.0, answer.1).starts_with("no trace 1 in "), "{answer:?}");
        }
        for answer in [("404 Not Found", ""), ("200 OK", "hello")] {
            assert!(
                said(answer.0, answer.1).contains("(is it another daemon? --collector names"),
                "{answer:?}"
            );
        }
    }

    #[test]
    fn of_a_trace_that_was_cut_the_key_is_told_that_cut_it() {
        let cut =
            |status| fetch(&answering(move |_| (status, r#"[{"traceId":"1","id":"1"}]"#)), "1").unwrap();
        assert_eq!(cut("200 OK").partial, None);
        let cut = cut("200 OK\r\nblkin-partial: query_max_mib");
        assert_eq!((cut.spans.len(), cut.partial.as_deref()), (1, Some("query_max_mib")));
    }

    #[test]
    fn a_summary_carries_the_roots_name_and_the_whole_extent() {
        let summary = Summary::of(&trace("a", 50, 7), None).unwrap();
        assert_eq!(
            (summary.name.as_str(), summary.spans, summary.start_us, summary.duration_us),
            ("write", 2, 50, 7)
        );
        assert_eq!(Summary::of(&[], None), None);
    }

    #[test]
    fn the_table_has_a_line_for_each_trace() {
        let traces = [Summary::of(&trace("ab", 1_000_000, 4_874), None).unwrap()];
        let shown = table(&traces, 4_000_000, false, Style { columns: 100, colours: false });
        assert!(
            shown
                .lines()
                .nth(1)
                .unwrap()
                .starts_with("ab                    3 s ago     4.874 ms      2  write"),
            "{shown}"
        );
    }

    #[test]
    fn a_narrow_terminal_gets_what_stands_first() {
        let mut spans = trace("4bf92f3577b34da6", 1_000_000, 4_874);
        let osd = Endpoint { service_name: Some("osd.0".into()), ..Endpoint::default() };
        spans[0].local_endpoint = Some(osd);
        let traces = [Summary::of(&spans, None).unwrap()];
        for columns in 40..120 {
            let shown = table(&traces, 4_000_000, true, Style { columns, colours: false });
            assert!(shown.lines().all(|line| line.chars().count() <= columns), "{columns}: {shown}");
            assert!(
                shown.contains("4bf92f3577b34da6 ") && (columns < 80 || shown.contains("osd.0")),
                "{shown}"
            );
        }
    }

    #[test]
    fn columns_stand_below_one_another_with_ids_of_128_bits_too() {
        let traces = ["ab", "4bf92f3577b34da6a3ce929d0e0e4736"]
            .map(|id| Summary::of(&trace(id, 1_000_000, 4_874), None).unwrap());
        let shown = table(&traces, 4_000_000, false, Style { columns: 100, colours: false });
        let names: Vec<_> = shown.lines().skip(1).map(|line| line.find("write").unwrap()).collect();
        assert_eq!(names[0], names[1], "{shown}");
        assert_eq!(shown.lines().next().unwrap().find("name"), Some(names[0]), "{shown}");
    }

    #[test]
    fn columns_stand_below_one_another_whatever_a_trace_took() {
        let took = [1_000, 725_000_000, 3_599_000_000, 359_999_000_000, u64::MAX - 1_000_000];
        let traces = took.map(|took| Summary::of(&trace("ab", 1_000_000, took), None).unwrap());
        for with_longest in [false, true] {
            let shown = table(&traces, 4_000_000, with_longest, Style { columns: 100, colours: false });
            let name = shown.find("name");
            assert!(shown.lines().skip(1).all(|line| line.find("write") == name), "{shown}");
        }
    }

    #[test]
    fn an_id_that_is_none_does_not_push_the_others_out_of_their_columns() {
        let traces =
            ["ab", &"c".repeat(1 << 16)].map(|id| Summary::of(&trace(id, 1_000_000, 4_874), None).unwrap());
        let shown = table(&traces, 4_000_000, false, Style { columns: 100, colours: false });
        assert!(shown.lines().all(|line| width(line) <= 100 && line.len() > 40), "{shown}");
    }

    #[test]
    fn traces_that_are_on_their_way_are_waited_for_and_not_for_ever() {
        let (mut answers, mut pauses) = (vec![Some(7), None, None], 0);
        let wait = || {
            pauses += 1;
            true
        };
        assert_eq!(arrived(|| Ok(answers.pop().unwrap()), wait).unwrap(), Some(7));
        assert_eq!((answers.len(), pauses), (0, 2));

        let mut asked = 0;
        let ask = || {
            asked += 1;
            Ok(None::<i32>)
        };
        assert_eq!(arrived(ask, until_stored()).unwrap(), None);
        assert!((2..=6).contains(&asked), "{asked}");

        assert!(arrived::<i32>(|| anyhow::bail!("away"), || panic!("nobody to wait for")).is_err());
    }

    #[test]
    fn who_took_long_to_find_nothing_is_asked_once_more() {
        let mut asked = 0;
        let ask = || {
            asked += 1;
            std::thread::sleep(STORED_WITHIN);
            Ok(None::<i32>)
        };
        assert_eq!(arrived(ask, until_stored()).unwrap(), None);
        assert_eq!(asked, 2);
    }

    #[test]
    fn what_an_answer_leaves_out_is_told_and_not_asked_for_again() {
        for (key, told) in
            [("query_seconds", "earlier traces"), ("query_max_mib", "traces, or spans of them,")]
        {
            let head: &str = format!("200 OK\r\nblkin-partial: {key}").leak();
            let asked = Arc::new(AtomicUsize::new(0));
            let count = asked.clone();
            let collector = answering(move |_| {
                count.fetch_add(1, Ordering::Relaxed);
                (head, "[]")
            });
            let found = search(&collector, &Search { limit: 10, ..Search::default() }).unwrap();
            assert_eq!((found.traces.len(), found.partial.as_deref()), (0, Some(key)));
            assert_eq!(asked.load(Ordering::Relaxed), 1);
            assert!(left_out(collector.base(), key).starts_with(&format!("{told} may be missing here: ")));
        }
    }

    #[test]
    fn what_one_page_did_not_come_to_the_next_one_does() {
        let found = |keys: [Option<&str>; 2]| {
            let keys = std::cell::RefCell::new(keys.map(|key| key.map(str::to_owned)).into_iter());
            let first = Page { limit: 9, least_us: None, until_us: None };
            let ask = |page: &Page| {
                let partial = keys.borrow_mut().next().unwrap();
                Ok(Found { partial, ..collector_of(1)(page)? })
            };
            newest(first, ask).unwrap().partial
        };
        let (time, room) = (Some("query_seconds"), Some("query_max_mib"));
        assert_eq!(found([time, None]), None);
        assert_eq!(found([time, time]).as_deref(), time);
        assert_eq!(found([room, None]).as_deref(), room);
    }

    /// A collector that answers with at most 1000 of so many traces, the newest first, two of which begin in each µs.
    fn collector_of(traces: u64) -> impl Fn(&Page) -> Result<Found> {
        move |page| {
            let all = (0..traces).rev().map(|at| (at, 1_000_000 + at / 2));
            let wanted = all.filter(|(_, begin)| page.until_us.is_none_or(|until| *begin <= until));
            let answer = wanted.take(page.limit.min(1_000));
            let summary =
                |(at, begin): (u64, u64)| Summary::of(&trace(&at.to_string(), begin, 7), None).unwrap();
            Ok(Found { traces: answer.map(summary).collect(), partial: None })
        }
    }

    #[test]
    fn more_traces_than_the_collector_answers_at_once_are_all_found() {
        for (there, wanted) in [(2_500, 5_000), (5_000, 2_500), (3, 5_000), (0, 5_000), (3, 2)] {
            let first = Page { limit: wanted, least_us: None, until_us: None };
            let found = newest(first, collector_of(there)).unwrap().traces;
            let expected = u64::try_from(wanted).unwrap().min(there);
            assert!(found.len() as u64 >= expected, "{} of {expected}", found.len());
            let ids = found.iter().map(|trace| trace.trace_id.parse::<u64>().unwrap());
            assert!(ids.eq((0..there).rev().take(found.len())), "the newest, each once");
        }
        let before = Page { limit: 5_000, least_us: None, until_us: Some(1_000_999) };
        assert_eq!(
            newest(before, collector_of(5_000)).unwrap().traces.len(),
            2_000,
            "of those that began by then"
        );
    }

    #[test]
    fn a_page_ends_where_the_last_one_did_by_what_the_collector_sorts_by() {
        let mut spans = trace("a", 50_001, 7);
        // Its clock is behind: it seems to begin before its root.
        spans[0].timestamp = Some(9);
        let summary = Summary::of(&spans, None).unwrap();
        assert_eq!((summary.start_us, summary.time_us), (9, 50_001));
        spans[1].parent_id = Some("unknown".into());
        assert_eq!(Summary::of(&spans, None).unwrap().time_us, 9);
    }

    /// What a collector with these traces, the newest last, answers: the newest of those that are slow enough. It is asked for
    /// 1 µs at least, which a span without a duration does not have.
    fn slow_enough(durations: &[u64], most: usize, least: Option<u64>) -> Found {
        let slow = durations.iter().filter(|&&duration| least.is_none_or(|least| duration >= least.max(1)));
        let summary = |&duration: &u64| Summary::of(&trace("a", 50, duration), None).unwrap();
        Found { traces: slow.rev().take(most).map(summary).collect(), partial: None }
    }

    #[test]
    fn the_slowest_are_found_behind_any_number_of_newer_ones() {
        let mut durations: Vec<u64> = (0..100_000).map(|at| at * 7_919 % 9_973).collect();
        durations[3] = 50_000;
        durations[5] = 40_000;
        let search = Search { slowest: true, limit: 3, ..Search::default() };
        let mut times = 0;
        let found = slowest(&search, |least| {
            times += 1;
            Ok(slow_enough(&durations, SEARCH_LIMIT, least))
        });
        let found: Vec<u64> = found.unwrap().traces.iter().map(|trace| trace.longest_span_us).collect();
        assert_eq!(found, [50_000, 40_000, 9_972]);
        assert!(times <= 4, "{times}");
    }

    #[test]
    fn the_slowest_of_a_few_and_of_many_alike_are_found_too() {
        let search = Search { slowest: true, limit: 5, ..Search::default() };
        for durations in [&[][..], &[3, 9], &[4; 20], &[0; 20], &[0, 0, 7, 0, 0, 9, 0]] {
            let found = slowest(&search, |least| Ok(slow_enough(durations, 10, least))).unwrap();
            assert_eq!(found.traces.len(), durations.len().min(5), "{durations:?}");
        }
    }

    #[test]
    fn the_longest_span_is_that_of_the_service_that_was_searched_for() {
        let mut spans = trace("a", 50, 7);
        let osd = Endpoint { service_name: Some("osd.0".into()), ..Endpoint::default() };
        spans.push(Span { local_endpoint: Some(osd), duration: Some(2), ..spans[0].clone() });
        assert_eq!((longest(&spans, None), longest(&spans, Some("OSD.0"))), (7, 2));
        assert_eq!(longest(&spans, Some("osd.1")), 0);
    }

    #[test]
    fn services_that_do_not_fit_are_counted() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        assert_eq!(services(&names(&["bench", "osd.0"]), 11), "bench osd.0");
        let long = "filestore (/var/lib/objects)";
        assert_eq!(services(&names(&["bench", long, "osd.0", "pg 1.7"]), 24), "bench osd.0 pg 1.7 +1");
        assert_eq!(services(&names(&[long, "journal (/var/lib/objects)"]), 12), "filestore (…");
    }

    #[test]
    fn a_malformed_id_is_refused_before_anyone_is_asked() {
        for id in ["", "xyz", "../../metrics", &"a".repeat(33)] {
            assert!(parse_id(id).unwrap_err().contains("hexadecimal"), "{id}");
        }
        assert_eq!(parse_id("4F2a").unwrap(), "4f2a");
    }
}
