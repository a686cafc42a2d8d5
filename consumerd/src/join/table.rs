//! The open spans. They are stored in places that are reused, the last freed place first, and a map of small entries finds
//! them. So the spans that are open now stay in the CPU's caches, however many spans were open before. A [`Ticket`] leads to
//! its span without the map.

use super::part::Part;
use super::span::SpanPiece;
use crate::hash::Map;
use std::time::Duration;

/// Trace and span.
pub(super) type Key = (u64, u64);

/// The map is shrunk when it is this many times larger than needed.
const TOO_LARGE: usize = 16;
/// A map of no more entries than this is not shrunk.
const SMALL: usize = 4096;

/// An open span.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) piece: SpanPiece,
    pub(super) parts: Vec<Part>,
    pub(super) touched: Duration,
    pub(super) bytes: usize,
    pub(super) listed_as_closed: bool,
}

/// Where a span was put. Another span, with a larger `born`, may have the place by now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket {
    index: usize,
    born: u64,
}

#[derive(Debug)]
struct Place {
    born: u64,
    open: Option<Open>,
}

#[derive(Debug, Default)]
pub(super) struct Table {
    by_key: Map<Key, usize>,
    places: Vec<Place>,
    free: Vec<usize>,
    births: u64,
    /// The span that was found last: programs write several annotations of the same span in a row.
    last: Option<(Key, usize)>,
    /// How many places were looked up by a ticket.
    #[cfg(test)]
    pub(super) looks: usize,
}

impl Table {
    pub(super) fn len(&self) -> usize {
        self.by_key.len()
    }

    /// The span of this key, and whether it was inserted just now, made by `new`.
    #[inline]
    pub(super) fn find_or_insert(&mut self, key: Key, new: impl FnOnce() -> Open) -> (Ticket, bool) {
        let known = self.last.filter(|(last, _)| *last == key).map(|(_, index)| index);
        let found = known.or_else(|| self.by_key.get(&key).copied());
        let index = found.unwrap_or_else(|| self.insert(key, new()));
        self.last = Some((key, index));
        (Ticket { index, born: self.places[index].born }, found.is_none())
    }

    fn insert(&mut self, key: Key, open: Open) -> usize {
        self.births += 1;
        let place = Place { born: self.births, open: Some(open) };
        let index = match self.free.pop() {
            Some(index) => {
                self.places[index] = place;
                index
            }
            None => {
                self.places.push(place);
                self.places.len() - 1
            }
        };
        self.by_key.insert(key, index);
        index
    }

    /// The span, if it is still open.
    #[inline]
    pub(super) fn get(&mut self, ticket: Ticket) -> Option<&mut Open> {
        #[cfg(test)]
        {
            self.looks += 1;
        }
        self.places.get_mut(ticket.index).filter(|place| place.born == ticket.born)?.open.as_mut()
    }

    /// Whether the span is still open.
    pub(super) fn holds(&self, ticket: Ticket) -> bool {
        let place = self.places.get(ticket.index);
        place.is_some_and(|place| place.born == ticket.born && place.open.is_some())
    }

    /// Takes the span out, if it is still open.
    pub(super) fn remove(&mut self, ticket: Ticket) -> Option<Open> {
        let place = self.places.get_mut(ticket.index).filter(|place| place.born == ticket.born)?;
        let open = place.open.take()?;
        let key = open.piece.key();
        self.by_key.remove(&key);
        self.free.push(ticket.index);
        self.last = self.last.filter(|(last, _)| *last != key);
        Some(open)
    }

    /// Frees memory that a flood of spans took.
    pub(super) fn shrink(&mut self) {
        let needed = self.len().max(SMALL / TOO_LARGE);
        if self.by_key.capacity() > TOO_LARGE * needed {
            self.by_key.shrink_to(2 * needed);
        }
        if self.by_key.is_empty() && self.places.len() > SMALL {
            (self.places, self.free) = (Vec::new(), Vec::new());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(key: Key) -> Open {
        Open {
            piece: SpanPiece::new(key.0, key.1, Vec::new()),
            parts: Vec::new(),
            touched: Duration::ZERO,
            bytes: 0,
            listed_as_closed: false,
        }
    }

    fn insert(table: &mut Table, key: Key) -> Ticket {
        table.find_or_insert(key, || open(key)).0
    }

    #[test]
    fn a_ticket_is_invalid_for_the_next_span_in_its_place() {
        let mut table = Table::default();
        let first = insert(&mut table, (1, 1));
        assert_eq!(table.find_or_insert((1, 1), || open((1, 1))), (first, false));
        assert!(table.remove(first).is_some() && table.remove(first).is_none());
        assert!(!table.holds(first), "the span has left");
        let second = insert(&mut table, (1, 1));
        assert_eq!(second.index, first.index);
        assert!(!table.holds(first) && table.get(first).is_none() && table.remove(first).is_none());
        assert!(table.holds(second) && table.get(second).is_some());
    }

    #[test]
    fn memory_of_a_flood_of_spans_is_given_back() {
        let mut table = Table::default();
        let tickets: Vec<_> = (0..100_000).map(|id| insert(&mut table, (1, id))).collect();
        let (kept, gone) = tickets.split_first().unwrap();
        gone.iter().for_each(|ticket| drop(table.remove(*ticket)));
        table.shrink();
        assert!(table.by_key.capacity() <= SMALL, "{}", table.by_key.capacity());
        assert_eq!(table.find_or_insert((1, 0), || open((1, 0))), (*kept, false));
        table.remove(*kept);
        table.shrink();
        assert_eq!(table.places.capacity(), 0);
        assert!(!table.holds(*kept));
    }
}
