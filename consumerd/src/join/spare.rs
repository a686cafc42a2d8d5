//! Reuses the memory of spans that left for spans to come.

use super::part::Part;
use super::share::Share;
use super::span::SpanPiece;
use crate::annotation::Annotation;

/// Most lists, and most messages, that are kept.
const MOST: usize = 1024;
/// Longest list that is kept.
const MAX_CAPACITY: usize = 16;

#[derive(Debug, Default)]
pub(super) struct Spare {
    lists: Vec<(Vec<Share>, Vec<Part>)>,
    shares: Vec<Share>,
}

impl Spare {
    /// Empty lists for a span.
    pub(super) fn lists(&mut self) -> (Vec<Share>, Vec<Part>) {
        self.lists.pop().unwrap_or_default()
    }

    /// A message for the service that wrote this annotation, which is still to be added.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::annotation::{Content, Labels, Origin};

    /// A span that leaves with so many events and values.
    fn piece(spare: &mut Spare, events: usize, values: usize) -> SpanPiece {
        let labels = Labels::new("op".into(), Default::default(), "key".into());
        let (shares, _) = spare.lists();
        let mut piece = SpanPiece::new(1, 2, shares);
        for number in 0..events + values {
            let content = if number < events { Content::Event(1000) } else { Content::Integer(7) };
            let annotation = Annotation {
                trace_id: 1,
                span_id: 2,
                parent_span_id: 0,
                labels: &labels,
                content,
                level: 4,
                truncated: false,
                origin: Origin::default(),
            };
            piece.add(&annotation, spare);
        }
        piece
    }

    #[test]
    fn a_small_piece_is_reused_without_its_old_content() {
        let mut spare = Spare::default();
        let mut first = piece(&mut spare, 3, 2);
        first.parts.push(Part::new(1));
        spare.put(first);
        let (shares, parts) = &spare.lists[0];
        assert!(
            shares.is_empty() && parts.is_empty(),
            "old parts would make the next span wait for their programs"
        );
        let kept = [spare.shares[0].events.capacity(), spare.shares[0].keys.capacity()];
        let next = piece(&mut spare, 1, 0);
        assert!(spare.shares.is_empty());
        let share = &next.shares[0];
        assert_eq!((share.events.count(), share.keys.count(), &share.frames), (1, 0, &vec![(0, 1)]));
        assert_eq!([share.events.capacity(), share.keys.capacity()], kept);
    }

    #[test]
    fn a_piece_with_any_large_list_is_freed() {
        let mut spare = Spare::default();
        for (events, values) in [(1000, 1), (1, 1000)] {
            let large = piece(&mut spare, events, values);
            spare.put(large);
            assert!(spare.shares.is_empty(), "{events}, {values}");
        }
    }

    #[test]
    fn few_spare_lists_are_kept_and_no_large_one() {
        let mut spare = Spare::default();
        let flood: Vec<_> = (0..=MOST).map(|_| piece(&mut spare, 1, 0)).collect();
        flood.into_iter().for_each(|piece| spare.put(piece));
        assert_eq!((spare.lists.len(), spare.shares.len()), (MOST, MOST));
        spare.lists.clear();
        for services in [MAX_CAPACITY, MAX_CAPACITY + 1] {
            spare.put(SpanPiece::new(1, 2, Vec::with_capacity(services)));
        }
        assert_eq!(spare.lists.len(), 1);
    }
}
