//! Pieces of spans: as they arrive, as they lie in the store, and what the indexes need to know of them.

use std::collections::BTreeSet;

use blkin_thrift::{Limits, span as v1};

use super::{StoreError, frame};
use crate::merge::Piece;
use crate::model::{Span, TraceId};
use crate::{convert, v2json};

/// First byte of a piece's body: a TBinary `zipkinCore.Span` with BlkKin's extension fields follows.
const FORM_V1: u8 = 1;
/// First byte of a piece's body: a Zipkin v2 JSON list of one span follows.
const FORM_V2: u8 = 2;

/// Limits for reading what this store wrote: whatever was accepted once is read back.
const STORED: Limits = Limits {
    max_frame_bytes: usize::MAX,
    max_entries: usize::MAX,
    max_span_bytes: usize::MAX,
    max_annotations: usize::MAX,
    max_depth: 64,
};

/// What the indexes need to know of a piece.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Facts {
    /// Time of the first span without parent that has a time.
    pub(super) root_time_us: Option<u64>,
    /// Least time of any span.
    pub(super) least_time_us: Option<u64>,
    /// Services that recorded the spans.
    pub(super) services: BTreeSet<String>,
    /// Service and name of each span.
    pub(super) span_names: BTreeSet<(String, String)>,
    /// Service and remote service of each span.
    pub(super) remote_services: BTreeSet<(String, String)>,
    /// Tags with a key that is offered for completion.
    pub(super) tags: BTreeSet<(String, String)>,
}

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

    /// The bytes that are stored.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        match self {
            Piece::V1(span) => {
                bytes.push(FORM_V1);
                v1::encode_into(span, &mut bytes);
            }
            Piece::V2(span) => {
                bytes.push(FORM_V2);
                bytes.extend_from_slice(v2json::write_trace(std::slice::from_ref(span)).as_bytes());
            }
        }
        bytes
    }

    /// Reads a stored row back.
    ///
    /// # Errors
    /// When it is damaged.
    pub(super) fn decode(value: &[u8]) -> Result<Piece, StoreError> {
        match frame::open(value) {
            Some(body) => Piece::decode_body(body),
            None => Err(StoreError::Damaged("a piece of a span: its checksum is wrong, so it".to_owned())),
        }
    }

    /// Reads what [`Piece::encode`] wrote.
    ///
    /// # Errors
    /// When it did not write this.
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

    /// Removes every annotation whose identity `seen` knows (or that came before in this piece), and returns how many.
    ///
    /// # Errors
    /// When `seen` fails.
    pub(super) fn trim(
        &mut self,
        seen: &mut dyn FnMut(Identity) -> Result<bool, StoreError>,
    ) -> Result<usize, StoreError> {
        let Piece::V1(span) = self else { return Ok(0) };
        let before = span.annotations.len() + span.binary_annotations.len();
        let of_span = span.source;
        let mut failure = None;
        let mut is_new =
            |source: Option<i64>, position: Option<i64>| match identity(of_span, source, position) {
                Some(identity) => match seen(identity) {
                    Ok(seen) => !seen,
                    Err(error) => {
                        failure = Some(error);
                        true
                    }
                },
                None => true,
            };
        span.annotations.retain(|a| is_new(a.source, a.position));
        span.binary_annotations.retain(|b| is_new(b.source, b.position));
        match failure {
            Some(error) => Err(error),
            None => Ok(before - span.annotations.len() - span.binary_annotations.len()),
        }
    }

    /// Whether every annotation has an identity, and there is one: then identities alone tell what is a duplicate.
    pub(super) fn is_identified(&self) -> bool {
        let Piece::V1(span) = self else { return false };
        let annotations = span.annotations.iter().map(|a| (a.source, a.position));
        let binary = span.binary_annotations.iter().map(|b| (b.source, b.position));
        let mut all = annotations.chain(binary).peekable();
        all.peek().is_some()
            && all.all(|(source, position)| identity(span.source, source, position).is_some())
    }

    /// Whether some annotation has an identity.
    pub(super) fn has_identities(&self) -> bool {
        let Piece::V1(span) = self else { return false };
        let annotations = span.annotations.iter().map(|a| a.position);
        annotations
            .chain(span.binary_annotations.iter().map(|b| b.position))
            .any(|position| position.is_some())
    }

    /// What the indexes need to know.
    pub(super) fn facts(&self, autocomplete_keys: &[String]) -> Facts {
        let mut facts = Facts::default();
        match self {
            Piece::V1(span) => {
                for span in convert::v1_to_v2(span) {
                    facts.learn(&span, autocomplete_keys);
                }
            }
            Piece::V2(span) => facts.learn(span, autocomplete_keys),
        }
        facts
    }
}

impl Facts {
    fn learn(&mut self, span: &Span, autocomplete_keys: &[String]) {
        let time_us = span.timestamp.and_then(|t| u64::try_from(t).ok()).filter(|&t| t > 0);
        if span.parent_id.is_none() {
            self.root_time_us = self.root_time_us.or(time_us);
        }
        self.least_time_us = self.least_time_us.into_iter().chain(time_us).min();
        if let Some(service) = span.local_service() {
            self.services.insert(service.to_owned());
            if let Some(name) = &span.name {
                self.span_names.insert((service.to_owned(), name.clone()));
            }
            if let Some(remote) = span.remote_service() {
                self.remote_services.insert((service.to_owned(), remote.to_owned()));
            }
        }
        for key in autocomplete_keys {
            if let Some(value) = span.tags.get(key) {
                self.tags.insert((key.clone(), value.clone()));
            }
        }
    }
}

fn identity(of_span: Option<i64>, source: Option<i64>, position: Option<i64>) -> Option<Identity> {
    Some((source.or(of_span)? as u64, position? as u64))
}
