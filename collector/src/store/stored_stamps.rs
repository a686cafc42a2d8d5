//! Remembers which pieces of growing traces are stored already, so that they are not stored again. This is a cache: what it does
//! not have is read from the store.
//!
//! The pieces of a new trace are compared only with other pieces of the same commit, which are few and fit into the processor's
//! caches. The trace's stamps are needed only once it comes again; until then they lie one after the other. Nearly all traces
//! come once, and a place in a large table for each of their pieces would cost a cache miss each.
//!
//! All this is forgotten once the head becomes a segment. A trace that comes again after that is read, and followed from then
//! on: its stamps lie apart and are kept from one head to the next, so that it is not read again for each head. The number of
//! kept stamps is bounded. If they are too many, the stamps of a large trace are forgotten and not read again: if a program uses
//! one trace for everything it does, that would take seconds for each commit. For the same reason, only the beginning and the
//! last pieces of a large trace are read the first time, after a start. Pieces of the rest that are sent again are stored again,
//! but answered once.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use foldhash::fast::RandomState;

use super::batch::Part;
use super::commit::Stored;
use super::expire::Passed;
use super::facts::Time;
use crate::model::TraceId;

/// A hash that stands for a whole piece, or for one of its annotations.
type Stamp = u128;

/// Most stamps that are kept from one head to the next, for all followed traces together: some 120 MiB.
const MOST_KEPT: usize = 4 << 20;
/// A trace with more stamps than this is not read again when its stamps are forgotten.
const LARGE: usize = 64 << 10;
/// A followed trace takes as much memory as so many stamps, beside its own stamps.
const OF_TRACE: usize = 8;
/// After so many heads in which nothing came of it, not even a repetition, a trace is followed no more.
const PATIENCE: u64 = 8;

/// A trace that is followed from one head to the next.
#[derive(Debug)]
struct Followed {
    /// The stamps of all its stored pieces; of a large trace perhaps only of some.
    stamps: HashSet<Stamp, RandomState>,
    /// The time of the trace, by all its stored pieces.
    time: Time,
    /// The head in which it came last.
    head: u64,
    /// Whether it was logged that the trace is large.
    is_logged: bool,
}

impl Followed {
    /// The memory that it takes, in stamps.
    fn size(&self) -> usize {
        OF_TRACE + self.stamps.len()
    }

    /// Logs once that it is large.
    fn log_large_once(&mut self, trace: TraceId) {
        if !std::mem::replace(&mut self.is_logged, true) {
            tracing::warn!(
                %trace,
                "a trace is too large to remember all that is stored of it: spans of it that are sent again are stored \
                 again, but answered once; perhaps a program uses one trace for everything it does"
            );
        }
    }
}

/// Traces, and the stamps of their stored pieces.
#[derive(Debug, Default)]
pub(super) struct StoredStamps {
    /// The traces, each with the range of its stamps in `once`; the range is empty if they are in `again`.
    traces: HashMap<TraceId, Range<usize>, RandomState>,
    /// Stamps of traces that came with one commit.
    once: Vec<Stamp>,
    /// Stamps of traces that came again.
    again: HashSet<Stamp, RandomState>,
    /// Stamps of the traces that come with this commit for the first time; and the same in order, with the places of the traces.
    now: HashSet<Stamp, RandomState>,
    in_order: Vec<(usize, Stamp)>,
    /// The traces that are followed from one head to the next.
    followed: HashMap<TraceId, Followed, RandomState>,
    /// The memory that these take, in stamps.
    kept: usize,
    /// How many heads there were before this one.
    head: u64,
}

/// How much of a piece is new.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum New {
    All,
    Nothing,
    /// For each annotation that has an identity, in order, whether it is new.
    Some(Vec<bool>),
}

/// What a commit finds to be known of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TraceHistory {
    /// Nothing of it is stored.
    Fresh,
    /// Everything that is stored of it came since the head began, and is remembered.
    GoesOn,
    /// It is followed from one head to the next.
    Followed,
}

impl StoredStamps {
    /// Forgets everything, because rows may be gone: to remember pieces that are not stored would lose them when they come again.
    pub(super) fn forget(&mut self) {
        self.forget_head();
        self.followed.clear();
        self.kept = 0;
    }

    fn forget_head(&mut self) {
        self.traces.clear();
        self.once.clear();
        self.again.clear();
        self.now.clear();
        self.in_order.clear();
    }

    /// Begins another head: forgets everything except the followed traces.
    pub(super) fn begin_head(&mut self) {
        self.forget_head();
        self.head += 1;
        self.bound(MOST_KEPT);
    }

    /// Stops following traces that have not come for long. While there are still too many stamps, also drops the traces that
    /// came longest ago, or the stamps of the large ones among them.
    fn bound(&mut self, most: usize) {
        let now = self.head;
        self.followed.retain(|_, followed| now - followed.head <= PATIENCE);
        self.kept = self.followed.values().map(Followed::size).sum();
        if self.kept > most {
            let mut oldest: Vec<(u64, TraceId)> =
                self.followed.iter().map(|(id, followed)| (followed.head, *id)).collect();
            oldest.sort_unstable_by_key(|(head, _)| *head);
            for (_, id) in oldest {
                self.drop_stamps_or_trace(id);
                if self.kept <= most {
                    break;
                }
            }
        }
    }

    fn drop_stamps_or_trace(&mut self, trace: TraceId) {
        let Some(large) = self.followed.get_mut(&trace).filter(|followed| followed.stamps.len() > LARGE)
        else {
            return self.follow_no_more(trace);
        };
        self.kept -= std::mem::take(&mut large.stamps).len();
        large.log_large_once(trace);
    }

    fn follow_no_more(&mut self, trace: TraceId) {
        if let Some(gone) = self.followed.remove(&trace) {
            self.kept -= gone.size();
        }
    }

    /// Forgets the traces that retention has removed, so that they count as new if they come again. Their stamps in `again`
    /// cannot be told from those of others, so then the whole head is forgotten. That is rare, because nearly all removed traces
    /// came long before this head.
    pub(super) fn forget_removed(&mut self, passed: &Passed) {
        if passed.removed_unread {
            self.forget();
        }
        passed.removed_traces.iter().for_each(|trace| self.follow_no_more(*trace));
        if passed.removed_traces.iter().any(|trace| self.traces.contains_key(trace)) {
            self.forget_head();
        }
    }

    /// For a trace that comes again: whether it first came since the head began, so that all its stored pieces are remembered.
    pub(super) fn recall(&mut self, trace: TraceId) -> bool {
        let Some(stamps) = self.traces.get_mut(&trace) else { return false };
        self.again.extend(&self.once[std::mem::take(stamps)]);
        true
    }

    /// Adds a trace of which nothing is stored yet.
    pub(super) fn begin(&mut self, trace: TraceId) {
        self.traces.insert(trace, 0..0);
    }

    /// Begins to follow a trace, of which these pieces are stored.
    pub(super) fn remember(&mut self, trace: TraceId, stored: &Stored) {
        let mut stamps = HashSet::default();
        for part in stored.pieces.parts() {
            stamps.extend(part.entry.whole);
            stamps.extend(part.identities);
        }
        self.traces.remove(&trace);
        let mut followed = Followed { stamps, time: stored.time, head: self.head, is_logged: false };
        if !stored.is_all {
            followed.log_large_once(trace);
        }
        self.kept += followed.size();
        self.followed.insert(trace, followed);
    }

    /// For a trace that comes again: its time, if it is followed.
    pub(super) fn follow(&mut self, trace: TraceId) -> Option<Time> {
        let followed = self.followed.get_mut(&trace)?;
        followed.head = self.head;
        Some(followed.time)
    }

    /// Adds the time of new pieces to a trace, if it is followed.
    pub(super) fn add_time(&mut self, trace: TraceId, time: &Time) {
        if let Some(followed) = self.followed.get_mut(&trace) {
            followed.time.add(time);
        }
    }

    /// How much of a piece is new; from now on, all of it is known. `place` is that of its trace in the commit.
    pub(super) fn new_part(&mut self, part: &Part<'_>, history: TraceHistory, place: usize) -> New {
        if part.entry.whole.is_some_and(|whole| !self.insert(whole, history, (part.entry.trace, place))) {
            return New::Nothing;
        }
        let mut known = 0;
        let mut note = |identity: &Stamp| {
            let is_new = self.insert(*identity, history, (part.entry.trace, place));
            known += usize::from(!is_new);
            is_new
        };
        let is_new: Vec<bool> = part.identities.iter().map(&mut note).collect();
        match known {
            0 => New::All,
            // Annotations and tags without an identity always count as new, so the piece has something new if it has one of them.
            _ if known == part.entry.annotations as usize => New::Nothing,
            _ => New::Some(is_new),
        }
    }

    fn insert(&mut self, stamp: Stamp, history: TraceHistory, (trace, place): (TraceId, usize)) -> bool {
        match history {
            // If the trace is followed no more, nothing is known of it, and its piece must not be lost.
            TraceHistory::Followed => {
                let is_new = |followed: &mut Followed| followed.stamps.insert(stamp);
                let is_new = self.followed.get_mut(&trace).map(is_new);
                self.kept += usize::from(is_new == Some(true));
                is_new.unwrap_or(true)
            }
            TraceHistory::GoesOn => self.again.insert(stamp),
            TraceHistory::Fresh => {
                let is_new = self.now.insert(stamp);
                if is_new {
                    self.in_order.push((place, stamp));
                }
                is_new
            }
        }
    }

    /// Ends a commit, whose traces have these ids.
    pub(super) fn end(&mut self, trace_at: impl Fn(usize) -> TraceId) {
        self.now.clear();
        self.in_order.sort_by_key(|(place, _)| *place);
        for of_trace in self.in_order.chunk_by(|left, right| left.0 == right.0) {
            let begin = self.once.len();
            self.once.extend(of_trace.iter().map(|(_, stamp)| *stamp));
            self.traces.insert(trace_at(of_trace[0].0), begin..self.once.len());
        }
        self.in_order.clear();
        // Pieces that were stored before do not fill the head, so no new head may begin for long; hence this bound as well.
        if self.kept > MOST_KEPT {
            self.bound(MOST_KEPT / 2);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Batch;
    use super::*;
    use crate::merge::Piece;
    use blkin_thrift::Span;
    use std::hash::BuildHasher;

    fn pieces(of: &[(i64, i64)]) -> Batch {
        let mut batch = Batch::default();
        for &(trace_id, id) in of {
            batch.push(&Piece::V1(Span { trace_id, id, ..Span::default() }));
        }
        batch
    }

    fn stored(of: &[(i64, i64)]) -> Stored {
        Stored { pieces: pieces(of), time: Time::default(), is_all: true }
    }

    /// Commits pieces of traces, where the place of each trace is its number; returns which pieces are new.
    fn commit(stamps: &mut StoredStamps, of: &[(i64, i64)]) -> Vec<bool> {
        let trace_at = |place| TraceId::new(0, place as u64).unwrap();
        let mut histories: HashMap<usize, TraceHistory> = HashMap::new();
        let pieces = pieces(of);
        let is_new = pieces.parts().map(|part| {
            let place = part.entry.trace.low() as usize;
            let history = *histories.entry(place).or_insert_with(|| {
                let trace = trace_at(place);
                if stamps.recall(trace) {
                    return TraceHistory::GoesOn;
                }
                stamps.begin(trace);
                TraceHistory::Fresh
            });
            stamps.new_part(&part, history, place) == New::All
        });
        let is_new = is_new.collect();
        stamps.end(trace_at);
        is_new
    }

    /// If the high half of an id is the first word of the fixed seed, its low half has no influence on the hash.
    #[test]
    fn trace_ids_hash_apart_where_a_fixed_seed_collides() {
        const WORD: u64 = 0xc0ac_29b7_c97c_50dd;
        let hashes = |hasher: &dyn Fn(TraceId) -> u64| {
            (0..100).map(|low| hasher(TraceId::new(WORD, low).unwrap())).collect::<HashSet<u64>>().len()
        };
        let fixed = foldhash::fast::FixedState::default();
        assert_eq!(hashes(&|id| fixed.hash_one(id)), 1);
        let stamps = StoredStamps::default();
        assert!(hashes(&|id| stamps.traces.hasher().hash_one(id)) > 90);
    }

    #[test]
    fn each_store_hashes_with_its_own_seed() {
        let [one, other] = [StoredStamps::default(), StoredStamps::default()];
        let of_traces = |stamps: &StoredStamps| stamps.traces.hasher().hash_one(7);
        let of_stamps =
            |stamps: &StoredStamps| [&stamps.again, &stamps.now].map(|set| set.hasher().hash_one(7));
        assert!(of_traces(&one) != of_traces(&other) && of_stamps(&one) != of_stamps(&other));
    }

    #[test]
    fn followed_traces_take_bounded_memory_within_one_head() {
        let mut stamps = StoredStamps::default();
        let most = MOST_KEPT / (OF_TRACE + 1);
        let stored = stored(&[(1, 1)]);
        for number in 1..=most as u64 + 1 {
            stamps.remember(TraceId::new(0, number).unwrap(), &stored);
        }
        assert_eq!(stamps.kept, (most + 1) * (OF_TRACE + 1));
        stamps.end(|_| unreachable!("nothing came for the first time"));
        assert!(stamps.kept <= MOST_KEPT / 2 && stamps.followed.len() <= most / 2, "{}", stamps.kept);
        assert_eq!(stamps.kept, stamps.followed.values().map(Followed::size).sum::<usize>());
        stamps.forget();
        assert_eq!((stamps.kept, stamps.followed.len()), (0, 0));
    }

    #[test]
    fn a_large_trace_is_followed_without_room_for_all_of_it() {
        let mut stamps = StoredStamps::default();
        let trace = TraceId::new(0, 1).unwrap();
        let is_stored: Vec<_> = (1..LARGE as i64 + 2).map(|id| (1, id)).collect();
        stamps.remember(trace, &stored(&is_stored));
        stamps.bound(LARGE);
        assert!(stamps.follow(trace).is_some(), "a large trace stays followed");
        assert_eq!(stamps.kept, OF_TRACE);
        let came = pieces(&[(1, 7)]);
        let mut come = || stamps.new_part(&came.parts().next().unwrap(), TraceHistory::Followed, 0);
        assert_eq!([come(), come()], [New::All, New::Nothing]);
        stamps.bound(0);
        assert_eq!(
            (stamps.follow(trace), stamps.kept),
            (None, 0),
            "a small trace is dropped, and read again"
        );
    }

    #[test]
    fn a_piece_is_new_only_once_across_commits() {
        let mut stamps = StoredStamps::default();
        assert_eq!(commit(&mut stamps, &[(1, 1), (2, 1), (1, 2), (1, 1)]), [true, true, true, false]);
        assert_eq!(commit(&mut stamps, &[(3, 1)]), [true]);
        assert_eq!(commit(&mut stamps, &[(1, 2), (1, 3), (1, 1), (1, 3)]), [false, true, false, false]);
        assert_eq!(commit(&mut stamps, &[(1, 3), (2, 2), (2, 1), (3, 1)]), [false, true, false, false]);
        stamps.forget();
        assert_eq!(commit(&mut stamps, &[(1, 1), (3, 1)]), [true, true]);
    }

    #[test]
    fn forgetting_discards_an_unfinished_commit() {
        let mut stamps = StoredStamps::default();
        let trace_at = |place| TraceId::new(0, place as u64).unwrap();
        let came = pieces(&[(1, 1)]);
        let come = |stamps: &mut StoredStamps| {
            stamps.begin(trace_at(1));
            stamps.new_part(&came.parts().next().unwrap(), TraceHistory::Fresh, 1)
        };
        assert_eq!(come(&mut stamps), New::All);
        stamps.forget();
        assert_eq!(come(&mut stamps), New::All);
        stamps.forget();
        stamps.end(trace_at);
        assert!(!stamps.recall(trace_at(1)));
    }

    #[test]
    fn a_new_head_keeps_only_followed_traces() {
        let mut stamps = StoredStamps::default();
        commit(&mut stamps, &[(1, 1), (2, 1)]);
        commit(&mut stamps, &[(1, 2)]);
        stamps.remember(TraceId::new(0, 3).unwrap(), &stored(&[(3, 1)]));
        stamps.begin_head();
        assert_eq!((stamps.traces.len(), stamps.once.len(), stamps.again.len()), (0, 0, 0));
        assert_eq!(stamps.followed.len(), 1);
        assert_eq!(commit(&mut stamps, &[(1, 1), (1, 2), (2, 1)]), [true; 3]);
    }

    #[test]
    fn a_trace_is_followed_until_it_is_silent_for_some_heads() {
        let mut stamps = StoredStamps::default();
        let [silent, active] = [1, 2].map(|id| TraceId::new(0, id).unwrap());
        for trace in [silent, active] {
            stamps.remember(trace, &stored(&[(1, 1)]));
        }
        for _ in 0..PATIENCE {
            stamps.begin_head();
            assert!(stamps.follow(active).is_some());
        }
        assert!(stamps.followed.contains_key(&silent));
        stamps.begin_head();
        assert!(!stamps.followed.contains_key(&silent) && stamps.follow(active).is_some());
        assert_eq!(stamps.kept, OF_TRACE + 1);
    }

    #[test]
    fn the_longest_silent_followed_traces_are_dropped_first() {
        for order in [[1, 2, 3], [3, 1, 2], [2, 3, 1]] {
            let mut stamps = StoredStamps::default();
            let of = |id| TraceId::new(0, id).unwrap();
            for id in order {
                stamps.remember(of(id), &stored(&[(1, 1)]));
            }
            for came in 1..=3 {
                stamps.begin_head();
                stamps.follow(of(came));
            }
            let each = OF_TRACE + 1;
            (0..2).for_each(|_| stamps.bound(2 * each));
            let left = || [1, 2, 3].map(|id| stamps.followed.contains_key(&of(id)));
            assert_eq!((left(), stamps.kept), ([false, true, true], 2 * each), "{order:?}");
        }
    }

    #[test]
    fn expiring_blocks_unread_stops_following_traces() {
        let trace = TraceId::new(0, 1).unwrap();
        let still_followed = |removed_unread| {
            let mut stamps = StoredStamps::default();
            stamps.remember(trace, &stored(&[(1, 1)]));
            stamps.forget_removed(&Passed { end: 0, removed_traces: HashSet::new(), removed_unread });
            stamps.follow(trace).is_some()
        };
        assert_eq!([false, true].map(still_followed), [true, false]);
    }

    #[test]
    fn an_expired_trace_counts_as_new_when_it_comes_again() {
        let mut stamps = StoredStamps::default();
        commit(&mut stamps, &[(1, 1)]);
        let removed_traces = [1, 2].map(|id| TraceId::new(0, id).unwrap()).into();
        stamps.forget_removed(&Passed { end: 0, removed_traces, removed_unread: false });
        assert_eq!(commit(&mut stamps, &[(1, 1)]), [true]);
    }

    #[test]
    fn a_piece_of_a_trace_no_longer_followed_is_new() {
        let came = pieces(&[(1, 1)]);
        let part = came.parts().next().unwrap();
        assert_eq!(StoredStamps::default().new_part(&part, TraceHistory::Followed, 1), New::All);
    }

    #[test]
    fn a_trace_remembered_late_is_followed_and_no_longer_known() {
        let mut stamps = StoredStamps::default();
        let trace = TraceId::new(0, 1).unwrap();
        (0..=PATIENCE).for_each(|_| stamps.begin_head());
        stamps.begin(trace);
        stamps.remember(trace, &stored(&[(1, 1)]));
        assert!(!stamps.recall(trace));
        stamps.begin_head();
        assert!(stamps.follow(trace).is_some());
    }
}
