//! Makes the spans of a Zipkin-shaped answer from pieces as they arrived.
//!
//! A span may arrive in pieces: one annotation at a time from classic BlkKin, one piece from each side of a call, a
//! late rest after a pause, and any of them twice. Zipkin converts each v1 piece alone, so a lone `sr` and a lone `ss`
//! never meet there. Here all v1 pieces of one span id are joined first, except those that contradict each other. The
//! order of arrival does not matter.

mod apart;

use std::collections::hash_map::RandomState;
use std::collections::{HashMap, HashSet};
use std::hash::BuildHasher;

use blkin_thrift::{Endpoint, Span as V1Span};

use crate::convert::{Texts, has_call_mark, is_plain_key, is_plain_value, service_of, v1_to_v2, view_to_v2};
use crate::model::{Span, SpanId, lower_name};
use crate::store::{Pieces, Stored};

/// A span as it arrived, or a part of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// A v1 span, which came by Scribe or by the v1 HTTP route.
    V1(V1Span),
    /// A v2 span, which came by the v2 HTTP route. It is a whole span, [normalized](Span::normalized): Zipkin answers such spans
    /// as they came.
    V2(Span),
}

/// Joins the pieces of one trace to spans, in the order in which each span was first seen. Equal spans become one.
pub fn assemble(pieces: Vec<Piece>) -> Vec<Span> {
    let mut assembly = Assembly::default();
    pieces.into_iter().for_each(|piece| assembly.add(piece));
    without_repeats(assembly.finish())
}

/// The same for stored pieces. For spans that came in one piece, texts that are not wanted are left out.
pub fn assemble_stored(pieces: &Pieces, texts: Texts<'_>) -> Vec<Span> {
    let split = pieces.split_spans();
    let mut assembly = Assembly::default();
    for (span, piece) in pieces.each() {
        if split.binary_search(&span).is_ok() {
            piece.into_piece().into_iter().for_each(|piece| assembly.add(piece));
        } else {
            assembly.spans.extend(convert_whole(piece, texts));
        }
    }
    let spans = assembly.finish();
    // If each span came in one piece, none can be equal: the two sides that one piece may yield differ.
    if split.is_empty() { spans } else { without_repeats(spans) }
}

/// Converts the only piece of a span.
fn convert_whole(piece: Stored<'_>, texts: Texts<'_>) -> Vec<Span> {
    match piece {
        Stored::V1(span) => view_to_v2(&span, texts),
        Stored::V2(span) => span.with_texts(texts).into_iter().collect(),
        Stored::Earlier(piece) => match *piece {
            Piece::V1(span) => v1_to_v2(&span),
            Piece::V2(span) => vec![span],
        },
    }
}

/// The pieces of one trace, which are added one by one.
#[derive(Default)]
struct Assembly {
    /// Spans that came whole.
    spans: Vec<Span>,
    /// Spans that came in pieces, in the order of their first pieces.
    split: Vec<Split>,
    split_of: HashMap<(i64, i64, i64), usize>,
}

/// The pieces of one v1 span.
struct Split {
    /// How many whole spans came before its first piece.
    place: usize,
    pieces: Vec<V1Span>,
}

impl Assembly {
    /// Adds the next piece.
    fn add(&mut self, piece: Piece) {
        match piece {
            Piece::V2(span) => self.spans.push(span),
            Piece::V1(piece) => {
                let key = (piece.trace_id_high.unwrap_or(0), piece.trace_id, piece.id);
                let split = *self.split_of.entry(key).or_insert(self.split.len());
                match self.split.get_mut(split) {
                    Some(split) => split.pieces.push(piece),
                    None => self.split.push(Split { place: self.spans.len(), pieces: vec![piece] }),
                }
            }
        }
    }

    /// The spans that the pieces make.
    fn finish(self) -> Vec<Span> {
        if self.split.is_empty() {
            return self.spans;
        }
        let (mut whole, mut placed) = (self.spans.into_iter(), 0);
        let mut spans = Vec::new();
        for Split { place, pieces } in self.split {
            spans.extend(whole.by_ref().take(place - placed));
            placed = place;
            spans.extend(convert_pieces(pieces));
        }
        spans.extend(whole);
        spans
    }
}

/// Drops spans that are equal to earlier ones. Only spans of one id can be equal, and most ids have one span, which need not be
/// compared. A span that was read from here as JSON and sent again has lost its nanoseconds and marks. So of equal spans, the one
/// with the most of these stays, at the place of the first.
fn without_repeats(mut spans: Vec<Span>) -> Vec<Span> {
    let mut of_id: HashMap<SpanId, usize> = HashMap::with_capacity(spans.len());
    for span in &spans {
        *of_id.entry(span.id).or_default() += 1;
    }
    // Places by the hash of the span as Zipkin's JSON shows it: copies of all spans would take as much memory as the spans.
    let (hashes, mut places) = (RandomState::new(), HashMap::new());
    let mut kept = 0;
    for at in 0..spans.len() {
        let place = match of_id.get(&spans[at].id) {
            Some(1) => kept,
            _ => {
                let told = spans[at].clone().as_by_json();
                let hash = hashes.hash_one(&told);
                let known = places.get(&hash).copied();
                let same = known.filter(|&place: &usize| spans[place].clone().as_by_json() == told);
                same.unwrap_or_else(|| {
                    places.insert(hash, kept);
                    kept
                })
            }
        };
        if place == kept {
            spans.swap(kept, at);
            kept += 1;
        } else if beyond_json(&spans[at]) > beyond_json(&spans[place]) {
            spans.swap(place, at);
        }
    }
    spans.truncate(kept);
    spans
}

/// How much a span has that Zipkin's JSON does not show.
fn beyond_json(span: &Span) -> usize {
    let nanos = span.annotations.iter().filter(|annotation| annotation.nanos != 0).count();
    nanos + usize::from(span.marks.begin.is_some()) + usize::from(span.marks.end.is_some())
}

/// Converts the v1 pieces of one span id.
fn convert_pieces(pieces: Vec<V1Span>) -> Vec<Span> {
    let mut pieces = once_each(pieces);
    if let [piece] = pieces.as_slice() {
        return v1_to_v2(piece);
    }
    pieces.sort_by_key(first_moment);
    pieces.iter_mut().for_each(fill_hosts);
    apart::in_groups(pieces).into_iter().flat_map(convert_joined).collect()
}

/// Converts the pieces of one span, given with the earliest first.
fn convert_joined(pieces: Vec<V1Span>) -> Vec<Span> {
    if let [piece] = pieces.as_slice() {
        return v1_to_v2(piece);
    }
    let names = names_by_service(&pieces);
    let times = times_by_service(&pieces);
    let mut spans = v1_to_v2(&join(pieces));
    for span in &mut spans {
        let service = span.local_service().map(str::to_owned);
        if let Some(name) = names.get(&service) {
            span.name = Some(name.clone());
        }
        if let Some(&(Some(start), duration)) = times.get(&service).filter(|_| span.kind.is_none()) {
            span.timestamp = Some(start);
            span.duration = duration;
        }
    }
    spans
}

/// Drops repetitions: pieces that are equal, and annotations with the same source and position.
fn once_each(mut pieces: Vec<V1Span>) -> Vec<V1Span> {
    if pieces.len() > 1 {
        let mut whole = HashSet::new();
        pieces.retain(|piece| whole.insert(piece.clone()));
    }
    let mut places = HashSet::new();
    for piece in &mut pieces {
        let span_source = piece.source;
        let mut first_time = |source: Option<i64>, position: Option<i64>| {
            source.or(span_source).zip(position).is_none_or(|place| places.insert(place))
        };
        piece.annotations.retain(|annotation| first_time(annotation.source, annotation.position));
        piece.binary_annotations.retain(|annotation| first_time(annotation.source, annotation.position));
    }
    pieces
}

/// When a piece began; a piece without any time sorts last.
fn first_moment(piece: &V1Span) -> i64 {
    let moments = piece.annotations.iter().map(|annotation| annotation.timestamp).chain(piece.timestamp);
    moments.filter(|&moment| moment != 0).min().unwrap_or(i64::MAX)
}

/// Gives annotations and tags without a host the host of their piece; otherwise they would count for the first side of the joined
/// span. A core annotation without a host gets none: it does not count.
fn fill_hosts(piece: &mut V1Span) {
    let Some(home) = home_of(piece).cloned() else { return };
    for annotation in &mut piece.annotations {
        if service_of(annotation.host.as_ref()).is_none() && is_plain_value(&annotation.value) {
            annotation.host = Some(home.clone());
        }
    }
    for annotation in &mut piece.binary_annotations {
        if service_of(annotation.host.as_ref()).is_none() && is_plain_key(&annotation.key) {
            annotation.host = Some(home.clone());
        }
    }
}

fn home_of(piece: &V1Span) -> Option<&Endpoint> {
    let events = piece.annotations.iter().map(|annotation| annotation.host.as_ref());
    let tags = piece.binary_annotations.iter().filter(|annotation| is_plain_key(&annotation.key));
    events
        .chain(tags.map(|annotation| annotation.host.as_ref()))
        .flatten()
        .find(|&host| service_of(Some(host)).is_some())
}

/// The name of the span by service: each side may name it in its own way.
fn names_by_service(pieces: &[V1Span]) -> HashMap<Option<String>, String> {
    let mut names = HashMap::new();
    for piece in pieces {
        let Some(name) = lower_name(&piece.name) else { continue };
        let events = piece.annotations.iter().map(|annotation| annotation.host.as_ref());
        let tags = piece.binary_annotations.iter().filter(|annotation| is_plain_key(&annotation.key));
        for service in events.chain(tags.map(|annotation| annotation.host.as_ref())).filter_map(service_of) {
            names.entry(service).or_insert_with(|| name.clone());
        }
    }
    names
}

/// Whether a piece has a mark of a call or a message that counts.
fn has_mark(piece: &V1Span) -> bool {
    let mut marks = piece.annotations.iter().filter(|annotation| !is_plain_value(&annotation.value));
    marks.any(|mark| service_of(mark.host.as_ref()).is_some())
}

/// The time of each service's own, local part of the span; a v1 span has room for only one such time.
fn times_by_service(pieces: &[V1Span]) -> HashMap<Option<String>, Time> {
    let mut parts: HashMap<Option<String>, Vec<&V1Span>> = HashMap::new();
    for piece in pieces.iter().filter(|piece| !has_mark(piece)) {
        if let Some(service) = service_of(home_of(piece)) {
            parts.entry(service).or_default().push(piece);
        }
    }
    parts.into_iter().map(|(service, part)| (service, join_times(part.into_iter()))).collect()
}

/// Joins pieces, given with the earliest first, to one span. Its time is the client's if there is a client, as in Zipkin; else
/// that of another side of the call or message; and only without such a side that of local parts.
fn join(pieces: Vec<V1Span>) -> V1Span {
    let tellers = [has_call_mark, has_mark].into_iter().find(|tells| pieces.iter().any(tells));
    let (timestamp, duration) =
        join_times(pieces.iter().filter(|piece| tellers.is_none_or(|tells| tells(piece))));
    let mut joined = V1Span { timestamp, duration, ..V1Span::default() };
    for mut piece in pieces {
        keep_source(&mut piece);
        joined.trace_id = piece.trace_id;
        joined.trace_id_high = piece.trace_id_high;
        joined.id = piece.id;
        joined.parent_id = joined.parent_id.filter(|&parent| parent != 0).or(piece.parent_id);
        joined.debug |= piece.debug;
        if joined.name.is_empty() {
            joined.name = piece.name;
        }
        joined.annotations.extend(piece.annotations);
        joined.binary_annotations.extend(piece.binary_annotations);
    }
    joined
}

/// Gives each annotation and tag its piece's ring segment as its own, because the piece's is lost when pieces are joined.
fn keep_source(piece: &mut V1Span) {
    let events = piece.annotations.iter_mut().map(|annotation| &mut annotation.source);
    let tags = piece.binary_annotations.iter_mut().map(|annotation| &mut annotation.source);
    events.chain(tags).for_each(|source| *source = source.or(piece.source));
}

/// Start and duration in microseconds.
type Time = (Option<i64>, Option<i64>);

/// From the earliest start to the latest end that any piece knows.
fn join_times<'a>(pieces: impl Iterator<Item = &'a V1Span>) -> Time {
    let timed: Vec<(i64, i64)> = pieces
        .filter_map(|piece| Some((piece.timestamp.filter(|&start| start > 0)?, piece.duration.unwrap_or(0))))
        .collect();
    let start = timed.iter().map(|&(start, _)| start).min();
    let end = timed.iter().map(|&(start, duration)| start.saturating_add(duration.max(0))).max();
    let any_duration = timed.iter().any(|&(_, duration)| duration > 0);
    (start, start.zip(end).filter(|_| any_duration).map(|(start, end)| end - start))
}
