//! Pieces that were read, held in the form that they have in the store. This takes the least memory, and their texts need not be
//! copied twice when spans are made of them.

use super::pieces::Stored;

/// Pieces of a trace, in order of arrival.
#[derive(Debug, Default)]
pub struct Pieces {
    bodies: Vec<u8>,
    held: Vec<Held>,
}

/// A piece.
#[derive(Debug)]
struct Held {
    /// The id of its span.
    span: u64,
    /// Where its body ends, and the next one begins.
    end: usize,
}

impl Pieces {
    /// Adds a piece of the span with this id. The body was read before, so it is valid.
    pub(super) fn push(&mut self, span: u64, body: &[u8]) {
        self.bodies.extend_from_slice(body);
        self.held.push(Held { span, end: self.bodies.len() });
    }

    /// All pieces, each with the id of its span.
    pub(crate) fn each(&self) -> impl Iterator<Item = (u64, Stored<'_>)> {
        let mut begin = 0;
        self.held.iter().filter_map(move |held| {
            let body = &self.bodies[std::mem::replace(&mut begin, held.end)..held.end];
            Some((held.span, Stored::read(body).ok()?))
        })
    }

    /// The ids of spans that have several pieces, sorted.
    pub(crate) fn split_spans(&self) -> Vec<u64> {
        let mut spans: Vec<u64> = self.held.iter().map(|held| held.span).collect();
        spans.sort_unstable();
        let mut split: Vec<u64> = spans.windows(2).filter(|two| two[0] == two[1]).map(|two| two[0]).collect();
        split.dedup();
        split
    }
}
