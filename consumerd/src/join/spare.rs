//! Memory of spans that left, for spans to come.

use super::part::Part;
use super::share::Share;
use super::span::SpanPiece;
use crate::annotation::Annotation;

/// Most lists, and messages, that are kept, and the longest list that is worth it.
const MOST: usize = 1024;
const MAX_CAPACITY: usize = 16;

#[derive(Debug, Default)]
pub(super) struct Spare {
    lists: Vec<(Vec<Share>, Vec<Part>)>,
    shares: Vec<Share>,
}

impl Spare {
    /// Empty lists.
    pub(super) fn lists(&mut self) -> (Vec<Share>, Vec<Part>) {
        self.lists.pop().unwrap_or_default()
    }

    /// A message of the service that wrote this annotation, without it yet.
    pub(super) fn share(&mut self, first: &Annotation<'_>) -> Share {
        self.shares.pop().map_or_else(|| Share::new(first), |old| old.renewed(first))
    }

    pub(super) fn put(&mut self, piece: SpanPiece) {
        let SpanPiece { mut shares, mut parts, .. } = piece;
        for share in shares.drain(..).filter(Share::is_small) {
            if self.shares.len() < MOST {
                self.shares.push(share);
            }
        }
        if self.lists.len() < MOST && shares.capacity().max(parts.capacity()) <= MAX_CAPACITY {
            parts.clear();
            self.lists.push((shares, parts));
        }
    }
}
