//! Finds which of a key's values was written last, from the places of annotations in their rings.
//!
//! A value has no time of its own. The rings of two CPUs are read one after the other, in any order: if a thread moved to
//! another CPU between two values, these may arrive in either order. But each value has a place in its ring, and the events
//! of its span that are next to it in that ring have a time.

use blkin_thrift::position;
use blkin_thrift::view::SpanView;

use super::read::Tag;

/// The place of an annotation: segment and position.
pub(super) type Place = (i64, i64);

/// The place of an annotation, if its sender stated it.
pub(super) fn place(span: &SpanView<'_>, source: Option<i64>, position: Option<i64>) -> Option<Place> {
    source.or(span.source).zip(position)
}

/// As much of a value's time as is known: the time of an event, whether the value comes after that event, and its position.
type Moment = ((i64, i16), bool, i64);

/// Sorts the values of each key into the order in which they were written, if that is known for all of them. `tags` must be
/// sorted by key.
pub(super) fn settle_repeats(span: &SpanView<'_>, tags: &mut [Tag<'_>]) {
    let mut events = None;
    for same in tags.chunk_by_mut(|left, right| left.key == right.key).filter(|same| same.len() > 1) {
        let events = events.get_or_insert_with(|| Events::of(span));
        if same.iter().all(|tag| events.moment(tag.place).is_some()) {
            same.sort_by_cached_key(|tag| events.moment(tag.place));
        }
    }
}

/// The events of a span, sorted by place, with their times.
struct Events(Vec<(Place, (i64, i16))>);

impl Events {
    fn of(span: &SpanView<'_>) -> Self {
        let events = span.annotations.iter().filter_map(|annotation| {
            let place = place(span, annotation.source, annotation.position)?;
            Some((place, (annotation.timestamp, annotation.nanos.unwrap_or(0))))
        });
        let mut events: Vec<_> = events.collect();
        events.sort_unstable();
        Self(events)
    }

    /// Takes the time from the event before the place in its ring or, if there is none, from the event after it.
    fn moment(&self, place: Option<Place>) -> Option<Moment> {
        let (source, position) = place?;
        let ring = |place: Place| (place.0, position::ring(place.1));
        let is_beside = |event: &&(Place, _)| ring(event.0) == ring((source, position));
        let (before, after) = self.0.split_at(self.0.partition_point(|event| event.0 < (source, position)));
        let behind = before.last().filter(is_beside).map(|event| (event.1, true, position));
        behind.or_else(|| after.first().filter(is_beside).map(|event| (event.1, false, position)))
    }
}

#[cfg(test)]
mod tests {
    use blkin_thrift::{Annotation, AnnotationType, BinaryAnnotation, Span};

    use super::*;
    use crate::convert::v1_to_v2;

    fn event(slot: u32, grain: u64, timestamp: i64) -> Annotation {
        let position = Some(position::of(slot, grain));
        Annotation { timestamp, value: "e".to_owned(), position, ..Annotation::default() }
    }

    fn value(slot: u32, grain: u64, value: &str) -> BinaryAnnotation {
        BinaryAnnotation {
            key: "k".to_owned(),
            value: value.as_bytes().to_vec(),
            kind: AnnotationType::String,
            position: Some(position::of(slot, grain)),
            ..BinaryAnnotation::default()
        }
    }

    /// Returns the value of "k" that is shown.
    fn shown(annotations: Vec<Annotation>, binary_annotations: Vec<BinaryAnnotation>) -> String {
        let span =
            Span { trace_id: 1, id: 1, source: Some(9), annotations, binary_annotations, ..Span::default() };
        v1_to_v2(&span)[0].tags["k"].clone()
    }

    #[test]
    fn the_later_value_of_a_key_is_shown_in_any_order_of_rings() {
        let events = || vec![event(1, 5, 100), event(0, 9, 300)];
        for slots in [[1, 0], [0, 1]] {
            let events = vec![event(slots[0], 5, 100), event(slots[1], 9, 300)];
            let values = vec![value(slots[1], 8, "later"), value(slots[0], 6, "earlier")];
            assert_eq!(shown(events, values), "later", "from ring {} to {}", slots[0], slots[1]);
        }
        let back = vec![value(1, 6, "a"), value(0, 10, "c"), value(0, 8, "b")];
        assert_eq!(shown(events(), back), "c", "within a ring its order counts");
    }

    #[test]
    fn values_without_comparable_times_keep_their_order() {
        let unbounded = vec![value(0, 8, "first"), value(2, 6, "second"), value(1, 1, "third")];
        assert_eq!(shown(vec![event(1, 5, 100), event(0, 9, 300)], unbounded), "third");
        let after_another_ring = vec![value(0, 10, "first"), value(2, 6, "second")];
        assert_eq!(shown(vec![event(1, 5, 100), event(0, 9, 300)], after_another_ring), "second");
        let before_another_ring = vec![value(2, 6, "first"), value(0, 1, "second")];
        assert_eq!(shown(vec![event(1, 5, 100), event(2, 5, 300)], before_another_ring), "second");
        let of_others =
            vec![value(0, 8, "first"), BinaryAnnotation { position: None, ..value(1, 1, "second") }];
        assert_eq!(shown(vec![event(1, 5, 100), event(0, 9, 300)], of_others), "second");
    }

    #[test]
    fn rings_of_different_segments_are_not_compared() {
        let elsewhere = BinaryAnnotation { source: Some(8), ..value(1, 6, "second") };
        assert_eq!(shown(vec![event(1, 5, 100)], vec![value(1, 7, "first"), elsewhere]), "second");
    }
}
