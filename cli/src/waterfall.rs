//! One trace as a waterfall: a line per span with its name, service, duration and a bar, its annotations below.

use std::fmt::Write as _;

use crate::moments;
use crate::skew;
use crate::span::{self, Annotation, Span};
use crate::terminal::{Colour, Style, cut, filled, fit, safe, width, wrapped};
use crate::tree::{self, Fold, Row};
use crate::units;
use crate::views;

/// Columns of the duration.
const DURATION_COLUMNS: usize = 12;

/// Least columns of a bar: shorter ones show nothing useful, and are left out.
const LEAST_BAR_COLUMNS: usize = 8;

/// How to draw.
#[derive(Debug, Clone, Copy)]
pub struct View {
    /// Width and colours.
    pub style: Style,
    /// Whether events and keys are printed below their span.
    pub annotations: bool,
}

struct Columns {
    fold: Fold,
    name: usize,
    service: usize,
    bar: usize,
}

/// The whole drawing, with a final newline.
pub fn draw(spans: &[Span], view: View) -> String {
    let spans = &views::joined(spans)[..];
    let rows = tree::rows(spans);
    let (begin, end) = span::extent(spans).unwrap_or((0, 0));
    let columns = columns(spans, &rows, view.style.columns);
    let mut out = heading(spans, &rows, begin, end, view.style);
    for (place, row) in rows.iter().enumerate() {
        line(&mut out, &spans[row.span], row, &columns, (begin, end), view.style);
        if view.annotations {
            let has_children = rows.get(place + 1).is_some_and(|next| next.depth() > row.depth());
            details(&mut out, &spans[row.span], &row.trunk(has_children, &columns.fold), begin, view.style);
        }
    }
    out
}

fn heading(spans: &[Span], rows: &[Row], begin: u64, end: u64, style: Style) -> String {
    let id = spans.first().map_or("", |span| span.trace_id.as_str());
    let (count, depth) = (views::count(spans), levels(spans, rows));
    let count = format!(" {},", units::counted(count as u64, "span"));
    let depth = format!("depth {depth},");
    let took = units::duration(end.saturating_sub(begin)) + ",";
    let when = if end == 0 { "no time recorded".to_owned() } else { moments::moment(begin) };
    let title = format!("trace {}", safe(id));
    let lines = filled([&*title, &count, &depth, &took, &when], style.columns);
    let lines = lines.join("\n").replacen(&title, &style.paint(Colour::Bold, &title), 1) + "\n";
    let skew = skew::warning(spans, end - begin).unwrap_or_default();
    let below = wrapped(&skew, style.columns).into_iter().filter(|line| !line.is_empty());
    below.fold(lines, |lines, line| lines + &style.paint(Colour::Yellow, &line) + "\n")
}

/// Number of levels of a trace. Both sides of a call are drawn, one below the other, but count as one level.
fn levels(spans: &[Span], rows: &[Row]) -> usize {
    let mut path: Vec<(&str, usize)> = Vec::new();
    let mut deepest = 0;
    for row in rows {
        path.truncate(row.depth());
        let id = spans[row.span].id.as_str();
        let level = match path.last() {
            Some((above, level)) if *above == id => *level,
            Some((_, level)) => level + 1,
            None => 1,
        };
        path.push((id, level));
        deepest = deepest.max(level);
    }
    deepest
}

fn label(span: &Span) -> String {
    safe(span.name.as_deref().filter(|name| !name.is_empty()).unwrap_or("(no name)"))
}

fn columns(spans: &[Span], rows: &[Row], total: usize) -> Columns {
    // The tree's lines and the name share a column.
    let fold = Fold::new(total * 2 / 5, rows, |row| width(&label(&spans[row.span])));
    let widest_name = rows.iter().map(|row| width(&row.branch(&fold)) + width(&label(&spans[row.span])));
    let widest_service = spans.iter().map(|span| width(span.service()));
    let name = widest_name.max().unwrap_or(0).clamp(10, total * 2 / 5);
    let service = widest_service.max().unwrap_or(0).clamp(7, total / 5);
    let room = total.saturating_sub(name + service + DURATION_COLUMNS + 6);
    Columns { fold, name, service, bar: if room < LEAST_BAR_COLUMNS { 0 } else { room } }
}

fn line(out: &mut String, span: &Span, row: &Row, columns: &Columns, whole: (u64, u64), style: Style) {
    let name = fit(&format!("{}{}", row.branch(&columns.fold), label(span)), columns.name);
    let service = style.paint(Colour::Cyan, &fit(&safe(span.service()), columns.service));
    let extent = span.extent();
    let took =
        extent.map_or_else(String::new, |(begin, end)| units::duration(span.duration.unwrap_or(end - begin)));
    let _ = write!(out, "{name}  {service}  {took:>DURATION_COLUMNS$}");
    if columns.bar > 0 {
        let bar = extent.map_or_else(String::new, |extent| bar(extent, whole, columns.bar));
        let _ = write!(out, "  {}", style.paint(Colour::Blue, &bar));
    }
    out.push('\n');
}

/// Blocks from begin to end, at least one. Half blocks at the edges would suggest more precision than a terminal has.
fn bar(extent: (u64, u64), whole: (u64, u64), columns: usize) -> String {
    let length = u128::from((whole.1 - whole.0).max(1));
    let place = |at: u64| (u128::from(at.saturating_sub(whole.0)) * columns as u128 / length) as usize;
    let from = place(extent.0).min(columns - 1);
    let to = place(extent.1).clamp(from + 1, columns);
    format!("{}{}", " ".repeat(from), "█".repeat(to - from))
}

/// A span's own events keep their order; events of other endpoints, which were joined to them, are merged by time.
fn in_order(span: &Span) -> Vec<&Annotation> {
    let mut events: Vec<_> = span.annotations.iter().collect();
    events.sort_by_key(|event| (event.timestamp, event.nanos));
    events
}

fn details(out: &mut String, span: &Span, trunk: &str, begin: u64, style: Style) {
    for event in in_order(span) {
        let after = units::duration(event.timestamp.saturating_sub(begin));
        put_detail(out, trunk, &format!("+{after}  {}", safe(&event.value)), style);
    }
    for (key, value) in &span.tags {
        put_detail(out, trunk, &format!("{} = {}", safe(key), safe(value)), style);
    }
    if let Some(remote) = span.remote_endpoint.as_ref().and_then(|endpoint| endpoint.service_name.as_deref())
    {
        put_detail(out, trunk, &format!("with {}", safe(remote)), style);
    }
}

fn put_detail(out: &mut String, trunk: &str, text: &str, style: Style) {
    let room = style.columns.saturating_sub(width(trunk) + 2);
    let _ = writeln!(out, "{trunk}· {}", style.paint(Colour::Dim, &cut(text, room)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::span::Endpoint;

    fn span(id: &str, parent: Option<&str>, start: u64, duration: u64) -> Span {
        Span {
            trace_id: "00000000000000ab".into(),
            id: id.into(),
            parent_id: parent.map(str::to_owned),
            name: Some(format!("op {id}")),
            timestamp: Some(1_000_000 + start),
            duration: Some(duration),
            local_endpoint: Some(Endpoint { service_name: Some("osd.0".into()), ..Endpoint::default() }),
            ..Span::default()
        }
    }

    fn view(annotations: bool) -> View {
        View { style: Style { columns: 84, colours: false }, annotations }
    }

    #[test]
    fn bars_are_placed_by_the_times_of_their_spans() {
        let spans =
            [span("a", None, 0, 4_000), span("b", Some("a"), 1_000, 2_000), span("c", Some("a"), 3_999, 1)];
        let expected = "\
trace 00000000000000ab  3 spans, depth 2, 4.000 ms, 1970-01-01 00:00:01.000000 UTC
op a        osd.0        4.000 ms  █████████████████████████████████████████████████
├─ op b     osd.0        2.000 ms              ████████████████████████
└─ op c     osd.0            1 µs                                                  █
";
        assert_eq!(draw(&spans, view(false)), expected);
    }

    #[test]
    fn bars_are_aligned_despite_wide_characters_in_names() {
        let mut child = span("b", Some("a"), 0, 4_000);
        child.name = Some("读取对象".into());
        child.local_endpoint =
            Some(Endpoint { service_name: Some("对象存储".into()), ..Endpoint::default() });
        let drawn = draw(&[span("a", None, 0, 4_000), child], view(false));
        let before: Vec<usize> =
            drawn.lines().skip(1).map(|line| width(line.split('█').next().unwrap_or_default())).collect();
        assert_eq!(before[0], before[1], "{drawn}");
        assert!(drawn.lines().all(|line| width(line) <= 84), "{drawn}");
    }

    #[test]
    fn the_two_sides_of_a_call_count_as_one_span_and_one_level() {
        let mut server = span("a", None, 10, 3_000);
        server.shared = true;
        let drawn = draw(&[span("a", None, 0, 4_000), server, span("b", Some("a"), 20, 1)], view(false));
        assert!(drawn.contains(" 2 spans, depth 2, "), "{drawn}");
    }

    #[test]
    fn clock_skew_is_reported_above_the_spans() {
        let mut sides = [span("a", None, 0, 4_000), span("a", None, 180_000_000, 3_000)];
        sides[0].kind = Some("CLIENT".into());
        sides[1].shared = true;
        for columns in [40, 84] {
            let drawn = draw(&sides, View { style: Style { columns, colours: false }, annotations: false });
            assert!(drawn.contains("\nthe clock of osd.0 seems to be"), "{drawn}");
            assert!(drawn.lines().all(|line| width(line) <= columns), "{drawn}");
        }
    }

    #[test]
    fn events_and_tags_are_drawn_below_their_span() {
        let mut root = span("a", None, 0, 4_000);
        root.annotations = vec![Annotation { timestamp: 1_000_250, nanos: 0, value: "journal\u{1b}".into() }];
        root.tags.insert("Object".into(), "foo".into());
        let drawn = draw(&[root, span("b", Some("a"), 1, 2)], view(true));
        assert!(drawn.contains("│  · +250 µs  journal\u{fffd}\n│  · Object = foo\n"), "{drawn}");
    }

    /// The events of what is drawn of one span that two endpoints saw, each at its nanosecond of the same microsecond.
    fn drawn_events(of_osd: &[(&str, u16)], of_pg: &[(&str, u16)]) -> Vec<String> {
        let annotation = |(value, nanos): &(&str, u16)| Annotation {
            timestamp: 1_000_250,
            nanos: *nanos,
            value: (*value).to_owned(),
        };
        let mut sides = [span("a", None, 0, 4_000), span("a", None, 1, 2)];
        sides[1].local_endpoint.get_or_insert_default().service_name = Some("pg 1.7".into());
        sides[0].annotations = of_osd.iter().map(annotation).collect();
        sides[1].annotations = of_pg.iter().map(annotation).collect();
        let drawn = draw(&sides, view(true));
        drawn
            .lines()
            .filter_map(|line| line.split_once("+250 µs  ").map(|(_, event)| event.to_owned()))
            .collect()
    }

    #[test]
    fn events_of_one_microsecond_are_drawn_by_nanosecond() {
        let drawn = drawn_events(&[("begun", 10), ("ended", 40)], &[("enqueuing", 20), ("enqueued", 30)]);
        assert_eq!(drawn, ["begun", "enqueuing", "enqueued", "ended"]);
    }

    #[test]
    fn events_without_nanoseconds_are_drawn_in_answer_order() {
        let drawn = drawn_events(&[("enqueuing", 0), ("enqueued", 0)], &[]);
        assert_eq!(drawn, ["enqueuing", "enqueued"]);
    }

    #[test]
    fn waterfall_lines_fit_the_terminal() {
        let mut spans = vec![span("a", None, 0, 4_000), span("b", Some("a"), 0, u64::MAX / 2)];
        spans[1].name = Some("n".repeat(500));
        spans[1].tags.insert("k".repeat(300), "v".repeat(300));
        spans[1].trace_id = "4bf92f3577b34da6a3ce929d0e0e4736".into();
        for columns in [40, 50, 60, 84] {
            let drawn = draw(&spans, View { style: Style { columns, colours: false }, annotations: true });
            assert!(drawn.contains("  4.000 ms"), "{drawn}");
            assert_eq!(drawn.contains('█'), columns >= 60, "{drawn}");
            for line in drawn.lines() {
                assert!(line.chars().count() <= columns, "{columns}: {line}");
            }
        }
    }

    #[test]
    fn names_and_tags_of_deep_spans_are_readable() {
        let mut spans: Vec<Span> = (0..100_u64)
            .map(|i| span(&i.to_string(), i.checked_sub(1).map(|p| p.to_string()).as_deref(), i, 1))
            .collect();
        spans[99].tags.insert("Object".into(), "foo".into());
        let drawn = draw(&spans, view(true));
        assert!((0..100).all(|i| drawn.contains(&format!("op {i} "))), "{drawn}");
        assert!(drawn.contains("· Object = foo\n"), "{drawn}");
    }

    #[test]
    fn a_trace_without_times_is_drawn() {
        let drawn = draw(&[Span { id: "a".into(), ..Span::default() }], view(true));
        assert!(drawn.contains("no time recorded") && drawn.contains("(no name)"), "{drawn}");
    }
}
