//! What must be known of a piece before it is added to an answer. It is read without copying, because very many may be read.

use blkin_thrift::view::EndpointView;

use super::pieces::{COMPACT_V1, Stored, damaged, trace_of_v1};
use super::{StoreError, compact};
use crate::merge::Piece;
use crate::model::{SpanId, TraceId};
use crate::v2view::V2View;

/// To which span a piece belongs, and how large it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Outline {
    /// The trace it belongs to; none if its id is zero.
    pub(super) trace: Option<TraceId>,
    /// The id of its span; 0 if it has none.
    pub(super) span: u64,
    /// About how many bytes it takes in an answer, where nothing is abbreviated: a host that many annotations share is stored
    /// once, but an answer repeats it for each of them. A span of either version takes some bytes beside its texts.
    pub(super) spelled_out: usize,
}

/// Bytes beside the texts of an annotation, a tag or a host.
const EACH: usize = 24;
/// Bytes beside the texts of a span.
const SPAN: usize = 5 * EACH;

impl Outline {
    /// The outline of a body.
    ///
    /// # Errors
    /// When the bytes are not a valid body.
    pub(super) fn of(body: &[u8]) -> Result<Outline, StoreError> {
        if let Some((&COMPACT_V1, span)) = body.split_first() {
            return of_v1(span).ok_or_else(|| damaged("it is not a v1 span".to_owned()));
        }
        Ok(match Stored::read(body)? {
            Stored::V2(span) => of_v2(&span),
            earlier => of_earlier(&earlier.into_piece(), body.len()),
        })
    }
}

fn of_v1(bytes: &[u8]) -> Option<Outline> {
    let of_host = |host: Option<EndpointView<'_>>| host.map_or(0, |host| EACH + host.service_name.len());
    let (mut events, mut tags) = (0, 0);
    let span = compact::v1::read_each(
        bytes,
        &mut |event| events += EACH + event.value.len() + of_host(event.host),
        &mut |tag| tags += EACH + tag.key.len() + tag.value.len() + of_host(tag.host),
    )?;
    Some(Outline {
        trace: trace_of_v1(span.trace_id_high, span.trace_id),
        span: span.id as u64,
        spelled_out: SPAN + span.name.len() + events + tags,
    })
}

fn of_v2(span: &V2View<'_>) -> Outline {
    let names = [span.name, span.local.service, span.remote.service].into_iter().flatten().map(str::len);
    let events = span.annotations.iter().map(|(_, value)| EACH + value.len());
    let tags = span.tags.iter().map(|(key, value)| EACH + key.len() + value.len());
    let spelled_out = SPAN + names.chain(events).chain(tags).sum::<usize>();
    Outline { trace: span.trace_id, span: span.id.map_or(0, SpanId::get), spelled_out }
}

/// The outline of a body in an earlier format, in which nothing is abbreviated.
fn of_earlier(piece: &Option<Piece>, bytes: usize) -> Outline {
    let span = match piece {
        Some(Piece::V1(span)) => span.id as u64,
        Some(Piece::V2(span)) => span.id.get(),
        None => 0,
    };
    Outline { trace: piece.as_ref().and_then(Piece::trace_id), span, spelled_out: bytes }
}

#[cfg(test)]
mod tests {
    use blkin_thrift::{Annotation, Endpoint, Span as V1Span};

    use super::*;
    use crate::store::{Batch, frame};

    /// Otherwise a few stored bytes could fill the memory when they are read.
    #[test]
    fn a_host_that_many_annotations_share_counts_for_each_of_them() {
        const LONG: usize = 10_000;
        let host = Some(Endpoint { service_name: "x".repeat(LONG), ..Endpoint::default() });
        let event = Annotation { timestamp: 1, value: "v".to_owned(), host, ..Annotation::default() };
        let mut batch = Batch::default();
        batch.push(&Piece::V1(V1Span {
            trace_id: 1,
            id: 1,
            annotations: vec![event; 100],
            ..V1Span::default()
        }));
        let part = batch.part(0);
        assert!(part.sealed.len() < 2 * LONG);
        let outline = Outline::of(frame::open(part.sealed).unwrap()).unwrap();
        assert!(outline.spelled_out > 100 * LONG);
    }
}
