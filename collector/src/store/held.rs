//! Pieces that were read, held as they lie in the store: there they take the least, and whoever makes spans of them need not
//! copy each of their texts twice.

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
    /// Takes a piece of the span of this id; it was read, so that its body is one.
    pub(super) fn push(&mut self, span: u64, body: &[u8]) {
        self.bodies.extend_from_slice(body);
        self.held.push(Held { span, end: self.bodies.len() });
    }

    /// Each with the id of its span.
    pub(crate) fn each(&self) -> impl Iterator<Item = (u64, Stored<'_>)> {
        let mut begin = 0;
        self.held.iter().filter_map(move |held| {
            let body = &self.bodies[std::mem::replace(&mut begin, held.end)..held.end];
            Some((held.span, Stored::read(body).ok()?))
        })
    }

    /// The ids of spans that have several, sorted.
    pub(crate) fn split_spans(&self) -> Vec<u64> {
        let mut spans: Vec<u64> = self.held.iter().map(|held| held.span).collect();
        spans.sort_unstable();
        let mut split: Vec<u64> = spans.windows(2).filter(|two| two[0] == two[1]).map(|two| two[0]).collect();
        split.dedup();
        split
    }
}
