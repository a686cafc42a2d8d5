//! Pieces of spans: as they arrive, and as they lie in the store.

use blkin_thrift::view::{AnnotationView, BinaryView, EndpointView, SpanView};
use blkin_thrift::{Endpoint, Limits, Span as V1Span, span as v1};

use super::{StoreError, frame};
use crate::merge::Piece;
use crate::model::{Span, TraceId};
use crate::v2json;
use crate::v2view::V2View;

/// First byte of a piece's body: a TBinary `zipkinCore.Span` with BlkKin's extension fields follows.
pub(super) const FORM_V1: u8 = 1;
/// First byte of a piece's body: a Zipkin v2 JSON list of one span follows.
pub(super) const FORM_V2: u8 = 2;

/// Limits for reading what this store wrote: whatever was accepted once is read back.
pub(super) const STORED: Limits = Limits {
    max_frame_bytes: usize::MAX,
    max_entries: usize::MAX,
    max_span_bytes: usize::MAX,
    max_annotations: usize::MAX,
    max_depth: 64,
};

/// Where a v1 annotation was recorded: ring segment and place in it.
pub(super) type Identity = (u64, u64);

impl Piece {
    /// The trace this piece belongs to; none if its id is zero.
    pub fn trace_id(&self) -> Option<TraceId> {
        match self {
            Piece::V1(span) => TraceId::new(span.trace_id_high.unwrap_or(0) as u64, span.trace_id as u64),
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
            None => Err(StoreError::Damaged("a piece of a span: its checksum is wrong, so it".to_owned())),
        }
    }

    /// Reads a body back.
    ///
    /// # Errors
    /// When it is none.
    pub(super) fn decode_body(bytes: &[u8]) -> Result<Piece, StoreError> {
        let damaged = |reason: String| StoreError::Damaged(format!("a piece of a span: {reason}"));
        match bytes.split_first() {
            Some((&FORM_V1, span)) => {
                v1::decode(span, &STORED).map(Piece::V1).map_err(|e| damaged(e.to_string()))
            }
            Some((&FORM_V2, list)) => {
                let spans = v2json::read_list(list, &STORED).map_err(|e| damaged(e.to_string()))?;
                match spans.into_iter().next() {
                    Some(Ok(span)) => Ok(Piece::V2(span)),
                    Some(Err(error)) => Err(damaged(error.to_string())),
                    None => Err(damaged("it is empty".to_owned())),
                }
            }
            _ => Err(damaged("its form is unknown".to_owned())),
        }
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

/// Where an annotation was recorded, if it says so.
pub(super) fn identity(of_span: Option<i64>, source: Option<i64>, position: Option<i64>) -> Option<Identity> {
    Some((source.or(of_span)? as u64, position? as u64))
}

/// A v1 span as a view of it.
pub(super) fn view_of_v1(span: &V1Span) -> SpanView<'_> {
    SpanView {
        trace_id: span.trace_id,
        trace_id_high: span.trace_id_high,
        name: &span.name,
        id: span.id,
        parent_id: span.parent_id,
        annotations: span
            .annotations
            .iter()
            .map(|a| AnnotationView {
                timestamp: a.timestamp,
                value: &a.value,
                host: a.host.as_ref().map(view_of_endpoint),
                position: a.position,
                source: a.source,
            })
            .collect(),
        binary_annotations: span
            .binary_annotations
            .iter()
            .map(|b| BinaryView {
                key: &b.key,
                value: &b.value,
                kind: b.kind,
                host: b.host.as_ref().map(view_of_endpoint),
                position: b.position,
                source: b.source,
            })
            .collect(),
        debug: span.debug,
        timestamp: span.timestamp,
        duration: span.duration,
        source: span.source,
        encoded: &[],
    }
}

fn view_of_endpoint(host: &Endpoint) -> EndpointView<'_> {
    EndpointView { ipv4: host.ipv4, port: host.port, service_name: &host.service_name, ipv6: host.ipv6 }
}

/// A v2 span as a view of it.
pub(super) fn view_of_v2(span: &Span) -> V2View<'_> {
    V2View {
        trace_id: Some(span.trace_id),
        parent: span.parent_id.is_some(),
        debug: span.debug,
        name: span.name.as_deref(),
        timestamp: span.timestamp,
        duration: span.duration,
        service: span.local_service(),
        remote_service: span.remote_service(),
        annotations: span.annotations.iter().map(|a| (a.timestamp, a.value.as_str())).collect(),
        tags: span.tags.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect(),
    }
}
