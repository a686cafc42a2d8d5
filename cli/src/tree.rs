//! The tree that a trace's spans form.
//!
//! The server half of a span (`shared`) stands below its client half, which has the same id. A span whose parent is
//! missing, or that is its own ancestor, becomes a root: nothing is left out of a drawing.

use std::collections::HashMap;

use crate::span::Span;

/// A span's place in the drawing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// Index into the spans given to [`rows`].
    pub span: usize,
    /// For each level above: whether a later sibling follows there. Its length is the depth.
    pub open: Vec<bool>,
}

impl Row {
    /// The lines that connect the row with those around it, such as `│  └─ `.
    pub fn branch(&self) -> String {
        let Some((last, above)) = self.open.split_last() else { return String::new() };
        let mut text: String = above.iter().skip(1).map(|open| if *open { "│  " } else { "   " }).collect();
        if !above.is_empty() {
            text.push_str(if *last { "├─ " } else { "└─ " });
        }
        text
    }

    /// The lines that pass below the row: in front of its details.
    pub fn trunk(&self, has_children: bool) -> String {
        let mut text: String =
            self.open.iter().skip(1).map(|open| if *open { "│  " } else { "   " }).collect();
        text.push_str(if has_children { "│  " } else { "   " });
        text
    }

    /// Levels below the root.
    pub fn depth(&self) -> usize {
        self.open.len() - 1
    }
}

/// The spans in drawing order: depth first, siblings by their begin.
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
    push_level(&mut stack, &roots, &[]);
    while let Some(row) = stack.pop() {
        push_level(&mut stack, &children[row.span], &row.open);
        rows.push(row);
    }
    rows
}

fn push_level(stack: &mut Vec<Row>, spans: &[usize], above: &[bool]) {
    for (place, span) in spans.iter().enumerate().rev() {
        let mut open = above.to_vec();
        open.push(place + 1 < spans.len());
        stack.push(Row { span: *span, open });
    }
}

/// Each span's parent, without cycles.
fn parents(spans: &[Span]) -> Vec<Option<usize>> {
    let mut by_id: HashMap<&str, Vec<usize>> = HashMap::new();
    for (index, span) in spans.iter().enumerate() {
        by_id.entry(&span.id).or_default().push(index);
    }
    let mut parents: Vec<Option<usize>> =
        (0..spans.len()).map(|index| parent_of(spans, &by_id, index)).collect();
    for index in 0..spans.len() {
        if leads_back(&parents, index) {
            parents[index] = None;
        }
    }
    parents
}

/// The client half of a shared span; else the parent id's span, the one of the same service first.
fn parent_of(spans: &[Span], by_id: &HashMap<&str, Vec<usize>>, index: usize) -> Option<usize> {
    let span = &spans[index];
    let halves = by_id.get(span.id.as_str()).into_iter().flatten();
    let client = halves.copied().find(|other| *other != index && span.shared && !spans[*other].shared);
    client.or_else(|| {
        let candidates = by_id.get(span.parent_id.as_deref()?)?;
        let same_service = candidates.iter().copied().find(|other| spans[*other].service() == span.service());
        same_service.or_else(|| candidates.first().copied()).filter(|parent| *parent != index)
    })
}

fn leads_back(parents: &[Option<usize>], start: usize) -> bool {
    let mut at = parents[start];
    for _ in 0..parents.len() {
        match at {
            None => return false,
            Some(index) if index == start => return true,
            Some(index) => at = parents[index],
        }
    }
    // A cycle above that does not pass through `start`: it is cut where it runs.
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(id: &str, parent: Option<&str>, start: u64) -> Span {
        Span {
            id: id.into(),
            parent_id: parent.map(str::to_owned),
            timestamp: Some(start),
            ..Span::default()
        }
    }

    fn drawn(spans: &[Span]) -> Vec<String> {
        rows(spans).iter().map(|row| format!("{}{}", row.branch(), spans[row.span].id)).collect()
    }

    #[test]
    fn siblings_stand_in_the_order_of_their_begin() {
        let spans = [
            span("c", Some("a"), 30),
            span("d", Some("b"), 25),
            span("b", Some("a"), 20),
            span("a", None, 10),
        ];
        assert_eq!(drawn(&spans), ["a", "├─ b", "│  └─ d", "└─ c"]);
    }

    #[test]
    fn the_server_half_stands_below_its_client_half() {
        let mut server = span("b", Some("a"), 21);
        server.shared = true;
        let spans = [server, span("b", Some("a"), 20), span("a", None, 10)];
        let rows = rows(&spans);
        assert_eq!(
            rows.iter().map(|row| (row.span, row.depth())).collect::<Vec<_>>(),
            [(2, 0), (1, 1), (0, 2)]
        );
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
    fn a_deep_chain_needs_no_stack() {
        let spans: Vec<Span> = (0..3_000_u64)
            .map(|i| span(&i.to_string(), i.checked_sub(1).map(|p| p.to_string()).as_deref(), i))
            .collect();
        assert_eq!(rows(&spans).last().unwrap().depth(), 2_999);
    }
}
