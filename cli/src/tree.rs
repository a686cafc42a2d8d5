//! The tree that a trace's spans form.
//!
//! The server half of a span (`shared`) is drawn below its client half, which has the same id. A span whose parent is
//! missing, or that is its own ancestor, becomes a root, so no span is left out.

use std::collections::HashMap;

use crate::span::Span;

/// Most levels whose lines a row stores: more than fit into a terminal. Without a bound the memory for a long chain of spans would
/// grow with the square of its length.
const NEAREST: usize = 64;

/// A span's place in the drawing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// Index into the spans given to [`rows`].
    pub span: usize,
    depth: usize,
    /// Whether a later sibling follows, for each of the nearest levels; the row's own level is last.
    open: Vec<bool>,
}

impl Row {
    fn new(span: usize, above: Option<&Self>, has_later_sibling: bool) -> Self {
        let (depth, above) = above.map_or((0, &[][..]), |row| (row.depth + 1, &row.open));
        let mut open = above[above.len().saturating_sub(NEAREST - 1)..].to_vec();
        open.push(has_later_sibling);
        Self { span, depth, open }
    }

    /// Levels below the root.
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// The lines that connect the row with its neighbours, such as `│  └─ `.
    pub fn branch(&self, fold: &Fold) -> String {
        let Some((last, above)) = self.drawn(fold).split_last() else { return String::new() };
        let mut text = fold.mark(self.depth);
        text.extend(above.iter().map(|open| fold.line(*open)));
        let branch = if *last { ["├─ ", "├ "] } else { ["└─ ", "└ "] };
        text.push_str(branch[usize::from(fold.step < 3)]);
        text
    }

    /// The lines in front of the row's details, which are printed below it.
    pub fn trunk(&self, has_children: bool, fold: &Fold) -> String {
        let mut text = " ".repeat(fold.mark(self.depth).chars().count());
        text.extend(self.drawn(fold).iter().map(|open| fold.line(*open)));
        text.push_str(["   ", "│  "][usize::from(has_children)]);
        text
    }

    /// The levels for which lines are drawn: the nearest ones, without the root's.
    fn drawn(&self, fold: &Fold) -> &[bool] {
        let levels = self.depth.min(fold.levels);
        &self.open[self.open.len() - levels..]
    }
}

/// How the lines of many levels fit: first all of them move closer together, then lines are drawn for the nearest levels only. A
/// deeper row then begins with a mark that says how many levels have no lines: `…12 │││└ `.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fold {
    /// Columns of a level, 1 to 3.
    step: usize,
    levels: usize,
    digits: usize,
}

impl Fold {
    /// Chooses the widest lines with which the rows, including the text whose width `label` returns, take at most `columns`. If
    /// even the closest lines leave too little room, lines are left out until the longest text fits, or has half of the columns;
    /// at least one level keeps its lines.
    pub fn new(columns: usize, rows: &[Row], label: impl Fn(&Row) -> usize) -> Self {
        let with = |step| Self { step, levels: NEAREST, digits: 0 };
        let longest = rows.iter().map(&label).max().unwrap_or(0);
        let lines = columns - longest.min(columns / 2);
        let deepest = rows.iter().map(|row| row.depth).max().unwrap_or(0);
        let fits = |fold: &Self| {
            let width = |row: &Row| fold.width(row.depth);
            fold.width(deepest) <= lines || rows.iter().all(|row| width(row) + label(row) <= columns)
        };
        if let Some(fold) = [3, 2, 1].map(with).into_iter().find(fits).filter(|_| deepest <= NEAREST) {
            return fold;
        }
        let digits = deepest.to_string().len();
        let levels = lines.saturating_sub(digits + 3).clamp(1, NEAREST);
        Self { step: 1, levels, digits }
    }

    /// Columns of the lines in front of a row if none is left out.
    fn width(&self, depth: usize) -> usize {
        let space_behind = usize::from(self.step == 1 && depth > 0);
        depth * self.step + space_behind
    }

    fn line(&self, open: bool) -> &'static str {
        let lines = if open { ["│", "│ ", "│  "] } else { [" ", "  ", "   "] };
        lines[self.step - 1]
    }

    fn mark(&self, depth: usize) -> String {
        let hidden = depth.saturating_sub(self.levels);
        if hidden == 0 { String::new() } else { format!("…{hidden:<digits$} ", digits = self.digits) }
    }
}

/// The spans in drawing order: depth first, siblings by begin.
pub fn rows(spans: &[Span]) -> Vec<Row> {
    let parents = parents(spans);
    let mut children: Vec<Vec<usize>> = vec![Vec::new(); spans.len()];
    let mut roots = Vec::new();
    for (index, parent) in parents.iter().enumerate() {
        match parent {
            Some(parent) => children[*parent].push(index),
            None => roots.push(index),
        }
    }
    let begin = |index: &usize| (spans[*index].extent().map_or(u64::MAX, |extent| extent.0), *index);
    children.iter_mut().for_each(|list| list.sort_by_key(begin));
    roots.sort_by_key(begin);
    let mut rows = Vec::with_capacity(spans.len());
    let mut stack: Vec<Row> = Vec::new();
    push_level(&mut stack, &roots, None);
    while let Some(row) = stack.pop() {
        push_level(&mut stack, &children[row.span], Some(&row));
        rows.push(row);
    }
    rows
}

fn push_level(stack: &mut Vec<Row>, spans: &[usize], above: Option<&Row>) {
    for (place, span) in spans.iter().enumerate().rev() {
        stack.push(Row::new(*span, above, place + 1 < spans.len()));
    }
}

/// Each span's parent, without cycles.
fn parents(spans: &[Span]) -> Vec<Option<usize>> {
    let first = First::of(spans);
    let mut parents: Vec<Option<usize>> =
        spans.iter().enumerate().map(|(index, span)| first.parent_of(index, span)).collect();
    cut_cycles(&mut parents);
    parents
}

/// Makes the first span of each cycle a root. Each span is visited once, from wherever it is reached.
fn cut_cycles(parents: &mut [Option<usize>]) {
    let mut walk_of: Vec<Option<usize>> = vec![None; parents.len()];
    for start in 0..parents.len() {
        let mut at = Some(start);
        while let Some(index) = at.filter(|index| walk_of[*index].is_none()) {
            walk_of[index] = Some(start);
            at = parents[index];
        }
        // The walk has returned to a span of its own: a cycle.
        if let Some(index) = at.filter(|index| walk_of[*index] == Some(start)) {
            let first = cycle(parents, index).min().unwrap_or(index);
            parents[first] = None;
        }
    }
}

/// The spans of the cycle that contains `start`.
fn cycle(parents: &[Option<usize>], start: usize) -> impl Iterator<Item = usize> {
    let next = move |index: &usize| parents[*index].filter(|index| *index != start);
    std::iter::successors(Some(start), next)
}

/// For each id, the first span of each kind below which another may be drawn. Many spans may have the same id; they are not
/// searched one by one.
struct First<'a> {
    of_id: HashMap<&'a str, usize>,
    of_service: HashMap<(&'a str, &'a str), usize>,
    not_shared: HashMap<&'a str, usize>,
}

impl<'a> First<'a> {
    fn of(spans: &'a [Span]) -> Self {
        let mut first =
            Self { of_id: HashMap::new(), of_service: HashMap::new(), not_shared: HashMap::new() };
        for (index, span) in spans.iter().enumerate() {
            first.of_id.entry(&span.id).or_insert(index);
            first.of_service.entry((&span.id, span.service())).or_insert(index);
            if !span.shared {
                first.not_shared.entry(&span.id).or_insert(index);
            }
        }
        first
    }

    /// The parent of a span: for a shared span its client half; otherwise a span with the parent's id, preferably of the same
    /// service, then the client half, then whichever began first by its own clock. Zipkin's page does the same.
    fn parent_of(&self, index: usize, span: &Span) -> Option<usize> {
        if span.shared
            && let Some(client) = self.not_shared.get(span.id.as_str())
        {
            return Some(*client);
        }
        let parent = span.parent_id.as_deref()?;
        let of_service = self.of_service.get(&(parent, span.service()));
        let found = of_service.or_else(|| self.not_shared.get(parent)).or_else(|| self.of_id.get(parent));
        found.copied().filter(|found| *found != index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::span::Endpoint;

    fn span(id: &str, parent: Option<&str>, start: u64) -> Span {
        Span {
            id: id.into(),
            parent_id: parent.map(str::to_owned),
            timestamp: Some(start),
            ..Span::default()
        }
    }

    fn drawn(spans: &[Span]) -> Vec<String> {
        drawn_within(100, spans)
    }

    fn drawn_within(columns: usize, spans: &[Span]) -> Vec<String> {
        let rows = rows(spans);
        let fold = Fold::new(columns, &rows, |row| spans[row.span].id.len());
        rows.iter().map(|row| format!("{}{}", row.branch(&fold), spans[row.span].id)).collect()
    }

    fn chain(length: usize) -> Vec<Span> {
        (0..length)
            .map(|i| span(&i.to_string(), i.checked_sub(1).map(|p| p.to_string()).as_deref(), i as u64))
            .collect()
    }

    #[test]
    fn siblings_are_ordered_by_their_begin() {
        let spans = [
            span("c", Some("a"), 30),
            span("d", Some("b"), 25),
            span("b", Some("a"), 20),
            span("a", None, 10),
        ];
        assert_eq!(drawn(&spans), ["a", "├─ b", "│  └─ d", "└─ c"]);
    }

    #[test]
    fn a_server_half_is_placed_below_its_client_half() {
        let mut server = span("b", Some("a"), 21);
        server.shared = true;
        let spans = [server, span("b", Some("a"), 20), span("a", None, 10)];
        let rows = rows(&spans);
        assert_eq!(
            rows.iter().map(|row| (row.span, row.depth)).collect::<Vec<_>>(),
            [(2, 0), (1, 1), (0, 2)]
        );
    }

    #[test]
    fn a_span_of_a_third_service_is_placed_below_the_client_half() {
        for server_begin in [15, 5] {
            let server = Span { shared: true, ..span("a", None, server_begin) };
            let mut spans = [span("a", None, 10), server, span("b", Some("a"), 20)];
            spans.sort_by_key(|span| span.timestamp);
            spans[2].local_endpoint =
                Some(Endpoint { service_name: Some("disk".into()), ..Endpoint::default() });
            let client = spans.iter().position(|span| !span.shared);
            assert_eq!(parents(&spans)[2], client, "{server_begin}");
        }
    }

    #[test]
    fn orphans_and_cycles_are_drawn_as_roots() {
        let spans = [
            span("a", Some("missing"), 1),
            span("b", Some("c"), 2),
            span("c", Some("b"), 3),
            span("d", Some("d"), 4),
        ];
        let mut ids: Vec<&str> = rows(&spans).iter().map(|row| spans[row.span].id.as_str()).collect();
        ids.sort_unstable();
        assert_eq!(ids, ["a", "b", "c", "d"]);
    }

    #[test]
    fn one_span_of_each_cycle_becomes_a_root() {
        let spans = [
            span("into", Some("e"), 9),
            span("a", Some("b"), 1),
            span("b", Some("a"), 2),
            span("c", Some("e"), 3),
            span("d", Some("c"), 4),
            span("e", Some("d"), 5),
        ];
        assert_eq!(drawn(&spans), ["a", "└─ b", "c", "└─ d", "   └─ e", "      └─ into"]);
    }

    #[test]
    fn the_indentation_narrows_with_many_levels() {
        let mut spans = chain(6);
        spans.push(span("last", Some("3"), 99));
        assert_eq!(
            drawn_within(20, &spans)[4..],
            ["         └─ 4".replace("└─", "├─"), "         │  └─ 5".into(), "         └─ last".into()][..]
        );
        assert_eq!(drawn_within(13, &spans)[3..], ["    └ 3", "      ├ 4", "      │ └ 5", "      └ last"]);
        assert_eq!(drawn_within(10, &spans)[3..], ["  └ 3", "   ├ 4", "   │└ 5", "   └ last"]);
    }

    #[test]
    fn very_deep_rows_show_the_nearest_levels_and_count_the_others() {
        let mut spans = chain(13);
        spans.push(span("last", Some("11"), 99));
        let drawn = drawn_within(16, &spans);
        assert_eq!(drawn[6..9], ["     └ 6", "      └ 7", "…1        └ 8"]);
        assert_eq!(drawn[12..], ["…5        ├ 12", "…5        └ last"]);
    }

    #[test]
    fn details_are_indented_below_their_folded_row() {
        let spans = chain(8);
        let rows = rows(&spans);
        let fold = Fold::new(6, &rows, |_| 2);
        assert_eq!(rows[7].branch(&fold), "…6 └ ");
        assert_eq!(rows[6].trunk(true, &fold), "    │  ");
        assert_eq!(rows[0].trunk(true, &fold), "│  ");
    }

    #[test]
    fn a_deep_chain_takes_linear_time_and_memory() {
        // By the square of it, this would take gigabytes and minutes.
        let spans = chain(200_000);
        let rows = rows(&spans);
        assert_eq!(rows.last().unwrap().depth, 199_999);
        assert!(rows.iter().all(|row| row.open.len() <= NEAREST));
    }

    #[test]
    fn many_spans_with_one_id_take_linear_time() {
        // By the square of it, this would take minutes.
        let many = 200_000;
        let of = |service: &str| Endpoint { service_name: Some(service.to_owned()), ..Endpoint::default() };
        let mut spans = vec![Span { local_endpoint: Some(of("osd.0")), ..span("a", None, 1) }; many];
        let below = Span { local_endpoint: Some(of("osd.1")), ..span("b", Some("a"), 2) };
        let half = Span { shared: true, ..span("b", None, 2) };
        spans.extend(std::iter::repeat_n(below, many).chain(std::iter::repeat_n(half, many)));
        assert_eq!(rows(&spans).iter().filter(|row| row.depth == 0).count(), many);
    }

    #[test]
    fn the_first_parent_of_the_same_service_is_chosen() {
        let of = |service: &str, span| {
            let endpoint = Endpoint { service_name: Some(service.to_owned()), ..Endpoint::default() };
            Span { local_endpoint: Some(endpoint), ..span }
        };
        let spans = [
            of("osd.0", span("a", None, 1)),
            of("osd.1", span("a", None, 2)),
            of("osd.1", span("a", None, 3)),
            of("osd.1", span("b", Some("a"), 4)),
            of("osd.2", span("c", Some("a"), 5)),
        ];
        assert_eq!(parents(&spans), [None, None, None, Some(1), Some(0)]);
    }
}
