//! What arrives, shown to whoever watches: pieces of spans as they came, before they are committed.

use blkin_live::{Arrival, Hub};

use crate::convert::v1_to_v2;
use crate::model::Span;
use crate::store::{Batch, Piece};

/// The hub of what the collector takes in.
pub type Live = Hub<Arrived>;

/// A batch that was taken.
#[derive(Debug)]
pub struct Arrived {
    pieces: Vec<Piece>,
    bytes: usize,
}

impl Arrived {
    /// Copies the pieces of a batch.
    pub fn of(batch: &Batch) -> Self {
        Arrived { pieces: batch.pieces.clone(), bytes: batch.bytes }
    }
}

impl Arrival for Arrived {
    fn entries(&self) -> u64 {
        self.pieces.len() as u64
    }

    fn bytes(&self) -> usize {
        self.bytes
    }

    fn spans(self, each: &mut dyn FnMut(Span)) {
        for piece in self.pieces {
            match piece {
                Piece::V1(span) => v1_to_v2(&span).into_iter().for_each(&mut *each),
                Piece::V2(span) => each(span.normalized()),
            }
        }
    }
}
