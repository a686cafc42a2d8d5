//! Searches against collectors that answer with a given number of traces or with a part of them, and the table of results.

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
fn a_foreign_daemon_is_distinguished_from_an_unknown_trace() {
    let said = |status: &'static str, body: &'static str| {
        let collector = answering(move |_| (status, body)).named_by("--collector");
        format!("{:#}", fetch(&collector, "1").unwrap_err())
    };
    for answer in [("404 Not Found", "0000000000000001 not found"), ("200 OK", "[]")] {
        assert!(said(answer.0, answer.1).starts_with("no trace 1 in "), "{answer:?}");
    }
    for answer in [("404 Not Found", ""), ("200 OK", "hello")] {
        assert!(said(answer.0, answer.1).contains("(is it another daemon? --collector names"), "{answer:?}");
    }
}

#[test]
fn a_partial_trace_names_the_limit_that_cut_it() {
    let cut = |status| fetch(&answering(move |_| (status, r#"[{"traceId":"1","id":"1"}]"#)), "1").unwrap();
    assert_eq!(cut("200 OK").partial, None);
    let cut = cut("200 OK\r\nblkin-partial: query_max_mib");
    assert_eq!((cut.spans.len(), cut.partial.as_deref()), (1, Some("query_max_mib")));
}

#[test]
fn a_summary_has_the_roots_name_and_the_whole_extent() {
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
        shown.lines().nth(1).unwrap().starts_with("ab                    3 s ago     4.874 ms      2  write"),
        "{shown}"
    );
}

#[test]
fn the_table_of_traces_fits_narrow_terminals() {
    let mut spans = trace("4bf92f3577b34da6", 1_000_000, 4_874);
    let osd = Endpoint { service_name: Some("osd.0".into()), ..Endpoint::default() };
    spans[0].local_endpoint = Some(osd);
    let traces = [Summary::of(&spans, None).unwrap()];
    for columns in 40..120 {
        let shown = table(&traces, 4_000_000, true, Style { columns, colours: false });
        assert!(shown.lines().all(|line| line.chars().count() <= columns), "{columns}: {shown}");
        assert!(shown.contains("4bf92f3577b34da6 ") && (columns < 80 || shown.contains("osd.0")), "{shown}");
    }
}

#[test]
fn trace_columns_are_aligned_with_128_bit_ids() {
    let traces = ["ab", "4bf92f3577b34da6a3ce929d0e0e4736"]
        .map(|id| Summary::of(&trace(id, 1_000_000, 4_874), None).unwrap());
    let shown = table(&traces, 4_000_000, false, Style { columns: 100, colours: false });
    let names: Vec<_> = shown.lines().skip(1).map(|line| line.find("write").unwrap()).collect();
    assert_eq!(names[0], names[1], "{shown}");
    assert_eq!(shown.lines().next().unwrap().find("name"), Some(names[0]), "{shown}");
}

#[test]
fn trace_columns_are_aligned_for_any_duration() {
    let took = [1_000, 725_000_000, 3_599_000_000, 359_999_000_000, u64::MAX - 1_000_000];
    let traces = took.map(|took| Summary::of(&trace("ab", 1_000_000, took), None).unwrap());
    for with_longest in [false, true] {
        let shown = table(&traces, 4_000_000, with_longest, Style { columns: 100, colours: false });
        let name = shown.find("name");
        assert!(shown.lines().skip(1).all(|line| line.find("write") == name), "{shown}");
    }
}

#[test]
fn an_overlong_id_does_not_widen_the_table_of_traces() {
    let traces =
        ["ab", &"c".repeat(1 << 16)].map(|id| Summary::of(&trace(id, 1_000_000, 4_874), None).unwrap());
    let shown = table(&traces, 4_000_000, false, Style { columns: 100, colours: false });
    assert!(shown.lines().all(|line| width(line) <= 100 && line.len() > 40), "{shown}");
}

#[test]
fn traces_on_the_way_are_awaited_for_a_bounded_time() {
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

    assert!(arrived::<i32>(|| anyhow::bail!("away"), || panic!("an error is not waited out")).is_err());
}

#[test]
fn a_slow_empty_answer_is_asked_for_once_more() {
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
fn a_partial_answer_is_reported_and_not_asked_for_again() {
    for (key, told) in [("query_seconds", "earlier traces"), ("query_max_mib", "traces, or spans of them,")] {
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
fn an_empty_search_names_its_period() {
    let search = Search { lookback_us: 300_000_000, ..Search::default() };
    let said = nothing(&Client::new("127.0.0.1:1"), &search);
    assert!(said.starts_with("no traces of the last 5 min 0 s in http://127.0.0.1:1 ("), "{said}");
}

#[test]
fn a_page_that_ran_out_of_time_is_completed_by_the_next() {
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
        let summary = |(at, begin): (u64, u64)| Summary::of(&trace(&at.to_string(), begin, 7), None).unwrap();
        Ok(Found { traces: answer.map(summary).collect(), partial: None })
    }
}

#[test]
fn searches_beyond_one_page_find_all_traces() {
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
        "only those that began by then"
    );
}

#[test]
fn pages_are_cut_at_the_time_that_the_collector_sorts_by() {
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
fn the_slowest_traces_are_found_behind_many_newer_ones() {
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
fn the_slowest_traces_are_found_among_few_or_equal_ones() {
    let search = Search { slowest: true, limit: 5, ..Search::default() };
    for durations in [&[][..], &[3, 9], &[4; 20], &[0; 20], &[0, 0, 7, 0, 0, 9, 0]] {
        let found = slowest(&search, |least| Ok(slow_enough(durations, 10, least))).unwrap();
        assert_eq!(found.traces.len(), durations.len().min(5), "{durations:?}");
    }
}

#[test]
fn the_longest_span_is_one_of_the_searched_service() {
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
fn a_malformed_trace_id_is_refused() {
    for id in ["", "xyz", "../../metrics", &"a".repeat(33)] {
        assert!(parse_id(id).unwrap_err().contains("hexadecimal"), "{id}");
    }
    assert_eq!(parse_id("4F2a").unwrap(), "4f2a");
}
