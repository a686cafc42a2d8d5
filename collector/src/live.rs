//! Shows arriving pieces of spans to live viewers, before the pieces are committed.

use blkin_live::{Arrival, Hub};

use crate::convert::v1_to_v2;
use crate::model::Span;
use crate::store::{Batch, Piece};

/// The hub from which live viewers get the arriving pieces.
pub type Live = Hub<Arrived>;

/// A batch that arrived.
#[derive(Debug)]
pub struct Arrived(pub Batch);

impl Arrival for Arrived {
    fn entries(&self) -> u64 {
        self.0.len() as u64
    }

    fn bytes(&self) -> usize {
        self.0.memory()
    }

    fn spans(self, each: &mut dyn FnMut(Span)) {
        for piece in self.0.pieces() {
            match piece {
                Piece::V1(span) => v1_to_v2(&span).into_iter().for_each(&mut *each),
                Piece::V2(span) => each(span),
            }
        }
    }
}
