//! Pieces of spans, as they arrive and as they are stored.

use blkin_thrift::view::SpanView;
use blkin_thrift::{Limits, span as v1};

use super::{StoreError, compact, frame};
use crate::merge::Piece;
use crate::model::{Span, TraceId};
use crate::v2json;
use crate::v2view::V2View;

/// First byte of a piece's body: a TBinary `zipkinCore.Span` with BlkKin's extension fields follows. Like [`JSON_V2`], it is
/// still read, but no longer written since format 5.
pub(super) const TBINARY_V1: u8 = 1;
/// First byte of a piece's body: a Zipkin v2 JSON list of one span follows.
pub(super) const JSON_V2: u8 = 2;
/// First byte of a piece's body: a v1 span in its short form follows ([`compact::v1`]).
pub(super) const COMPACT_V1: u8 = 3;
/// First byte of a piece's body: a v2 span in its short form follows ([`compact::v2`]).
pub(super) const COMPACT_V2: u8 = 4;

/// Whether a piece's body is that of a v1 span.
pub(super) fn is_v1(body: &[u8]) -> bool {
    matches!(body.first(), Some(&(TBINARY_V1 | COMPACT_V1)))
}

/// Limits for reading stored pieces: whatever was accepted once can be read back.
pub(super) const STORED: Limits = Limits {
    max_frame_bytes: usize::MAX,
    max_entries: usize::MAX,
    max_span_bytes: usize::MAX,
    max_annotations: usize::MAX,
    max_depth: 64,
};

/// Where a v1 annotation was recorded: the ring segment, and the place in it.
pub(super) type Identity = (u64, u64);

impl Piece {
    /// The trace this piece belongs to; none if its id is zero.
    pub fn trace_id(&self) -> Option<TraceId> {
        match self {
            Piece::V1(span) => trace_of_v1(span.trace_id_high, span.trace_id),
            Piece::V2(span) => Some(span.trace_id),
        }
    }

    /// The number of annotations: the unit of the ledger.
    pub fn annotation_count(&self) -> usize {
        match self {
            Piece::V1(span) => span.annotations.len() + span.binary_annotations.len(),
            Piece::V2(span) => span.annotation_count(),
        }
    }

    /// Reads a sealed piece back.
    ///
    /// # Errors
    /// When it is damaged.
    pub(super) fn decode(sealed: &[u8]) -> Result<Piece, StoreError> {
        match frame::open(sealed) {
            Some(body) => Piece::decode_body(body),
            None => Err(damaged("its checksum is wrong".to_owned())),
        }
    }

    /// Reads a body back.
    ///
    /// # Errors
    /// When the bytes are not a valid body.
    pub(super) fn decode_body(bytes: &[u8]) -> Result<Piece, StoreError> {
        Stored::read(bytes)?.into_piece().ok_or_else(|| damaged("it has no ids".to_owned()))
    }

    /// Removes every annotation whose identity `is_new` denies, and returns how many.
    pub(super) fn trim(&mut self, is_new: &mut dyn FnMut(Identity) -> bool) -> usize {
        let Piece::V1(span) = self else { return 0 };
        let before = span.annotations.len() + span.binary_annotations.len();
        let of_span = span.source;
        let mut keep = |source: Option<i64>, position: Option<i64>| {
            identity(of_span, source, position).is_none_or(&mut *is_new)
        };
        span.annotations.retain(|a| keep(a.source, a.position));
        span.binary_annotations.retain(|b| keep(b.source, b.position));
        before - span.annotations.len() - span.binary_annotations.len()
    }
}

/// The trace of a v1 span; none if its id is zero.
pub(super) fn trace_of_v1(high: Option<i64>, low: i64) -> Option<TraceId> {
    TraceId::new(high.unwrap_or(0) as u64, low as u64)
}

pub(super) fn damaged(reason: String) -> StoreError {
    StoreError::Damaged(format!("a piece of a span: {reason}"))
}

/// A piece that was read in place.
pub(crate) enum Stored<'a> {
    V1(SpanView<'a>),
    V2(V2View<'a>),
    /// A piece in an earlier format.
    Earlier(Box<Piece>),
}

impl<'a> Stored<'a> {
    /// Reads a body.
    ///
    /// # Errors
    /// When the bytes are not a valid body.
    pub(super) fn read(bytes: &'a [u8]) -> Result<Stored<'a>, StoreError> {
        let earlier = |piece| Stored::Earlier(Box::new(piece));
        match bytes.split_first() {
            Some((&COMPACT_V1, span)) => {
                compact::v1::read(span).map(Stored::V1).ok_or_else(|| damaged("it is no v1 span".to_owned()))
            }
            Some((&COMPACT_V2, span)) => {
                compact::v2::read(span).map(Stored::V2).ok_or_else(|| damaged("it is no v2 span".to_owned()))
            }
            Some((&TBINARY_V1, span)) => v1::decode(span, &STORED)
                .map(|span| earlier(Piece::V1(span)))
                .map_err(|e| damaged(e.to_string())),
            Some((&JSON_V2, list)) => read_json(list).map(|span| earlier(Piece::V2(span))),
            _ => Err(damaged("its form is unknown".to_owned())),
        }
    }

    /// The trace it belongs to; none if its id is zero.
    pub(super) fn trace_id(&self) -> Option<TraceId> {
        match self {
            Stored::V1(span) => trace_of_v1(span.trace_id_high, span.trace_id),
            Stored::V2(span) => span.trace_id,
            Stored::Earlier(piece) => piece.trace_id(),
        }
    }

    /// The number of its annotations, as it was counted when the piece arrived.
    pub(super) fn annotation_count(&self) -> usize {
        match self {
            Stored::V1(span) => span.annotations.len() + span.binary_annotations.len(),
            Stored::V2(span) => span.annotations.len() + span.tags.len(),
            Stored::Earlier(piece) => piece.annotation_count(),
        }
    }

    /// The piece with texts of its own; none if it has no ids.
    pub(crate) fn into_piece(self) -> Option<Piece> {
        match self {
            Stored::V1(span) => Some(Piece::V1(span.to_span())),
            Stored::V2(span) => span.to_span().map(Piece::V2),
            Stored::Earlier(piece) => Some(*piece),
        }
    }
}

fn read_json(list: &[u8]) -> Result<Span, StoreError> {
    let spans = v2json::read_list(list, &STORED).map_err(|e| damaged(e.to_string()))?;
    match spans.into_iter().next() {
        Some(span) => span.map_err(|e| damaged(e.to_string())),
        None => Err(damaged("it is empty".to_owned())),
    }
}

/// Where an annotation was recorded, if the annotation says so.
pub(super) fn identity(of_span: Option<i64>, source: Option<i64>, position: Option<i64>) -> Option<Identity> {
    Some((source.or(of_span)? as u64, position? as u64))
}
