//! Sums up all traces of a window of time. Every query finds all of them through the index, which is cheap. Reading them is not;
//! so the result is remembered for each group of traces that the index yields one after the other.
//!
//! The ids alone decide where a group ends, unless it grows too large (content-defined chunking, as in Muthitacharoen et al.,
//! SOSP 2001, but of ids instead of bytes). So two overlapping windows have the same groups except at their ends, and a new
//! trace changes one group and shifts none.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hasher};
use std::ops::{ControlFlow, RangeInclusive};
use std::sync::Arc;
use std::time::Instant;

use super::remembered::{Key, Moment, Remembered, Weighed};
use super::search::{Answer, Cut, Reading, trace_with};
use crate::convert::Texts;
use crate::model::{Span, TraceId};
use crate::store::{Store, StoreError, Visited, Wanted};

/// The mean number of traces of a group.
pub(super) const MEAN: u64 = 2048;
/// The most traces of a group.
const MOST: usize = 16 * MEAN as usize;
/// The bytes, as stored, at which a group ends; its last trace may exceed them. Without this bound a query might not have the
/// time to read a group of large traces, and each later query would begin it again.
pub(super) const MOST_BYTES: u64 = 8 << 20;

/// A result summed over some traces.
pub(super) trait Sum: Default {
    /// The form in which it is remembered.
    type Kept: Weighed;

    /// Adds the result of other traces.
    fn add(&mut self, kept: &Self::Kept);

    /// The sum in the form in which it is remembered.
    fn keep(self) -> Self::Kept;
}

/// A question about each trace of a window.
pub(super) struct Question<'q, S: Sum> {
    pub(super) store: &'q dyn Store,
    pub(super) reading: Reading,
    /// Which traces are asked about.
    pub(super) wanted: Wanted,
    pub(super) window_us: &'q RangeInclusive<u64>,
    /// The texts of spans that the question needs.
    pub(super) texts: Texts<'q>,
    pub(super) remembered: &'q Remembered<S::Kept>,
    /// Hashes everything on which the result of a group depends, apart from its traces.
    pub(super) hash_question: &'q dyn Fn(&mut DefaultHasher),
    /// Adds the result of one trace.
    pub(super) add: &'q dyn Fn(&mut S, Vec<Span>),
}

impl<S: Sum> Question<'_, S> {
    /// The answer; if there is no time for all traces, over the latest of them.
    ///
    /// # Errors
    /// When the store fails.
    pub(super) fn answer(&self) -> Result<Answer<S>, StoreError> {
        let until = Instant::now() + self.reading.patience;
        let mut answering = Answering {
            question: self,
            until,
            moment: self.remembered.moment(),
            sum: S::default(),
            group: self.group(),
            seen: HashSet::new(),
            of_traces: None,
        };
        let wanted = self.wanted.until(until);
        self.store.traces_by_time(&wanted, self.window_us.clone(), &mut |found| answering.take(found))?;
        answering.end_group()?;
        let Answering { sum, of_traces, .. } = answering;
        let not_reached = Cut::noted(true, Instant::now() < until);
        Ok(Answer { found: sum, cut: of_traces.or(not_reached) })
    }

    /// A new, empty group.
    fn group(&self) -> Group {
        let mut state = self.remembered.hasher();
        (self.hash_question)(&mut state);
        Group { ids: Vec::new(), bytes: 0, state }
    }
}

/// Traces that the index yielded one after the other.
struct Group {
    ids: Vec<TraceId>,
    bytes: u64,
    /// A hash of everything on which the group's result depends.
    state: DefaultHasher,
}

impl Group {
    fn take(&mut self, found: &Visited<'_>) {
        self.ids.push(found.id);
        self.bytes += found.bytes();
        // Several traces may share their low 64 bits, and a strict query asks for each of them by itself.
        self.state.write_u64(found.id.high());
    }

    fn is_full(&self) -> bool {
        self.ids.len() >= MOST || self.bytes >= MOST_BYTES
    }
}

/// A question that is being answered.
struct Answering<'q, S: Sum> {
    question: &'q Question<'q, S>,
    until: Instant,
    moment: Moment,
    sum: S,
    group: Group,
    /// Low 64 bits that several traces share, if such traces count as one.
    seen: HashSet<u64>,
    of_traces: Option<Cut>,
}

impl<S: Sum> Answering<'_, S> {
    fn take(&mut self, found: &Visited<'_>) -> Result<ControlFlow<()>, StoreError> {
        let low = found.id.low();
        if self.seen.contains(&low) {
            return Ok(ControlFlow::Continue(()));
        }
        let is_alone = found.hash_state(&mut self.group.state)?;
        if !is_alone && !self.question.reading.strict {
            self.seen.insert(low);
        }
        self.group.take(found);
        if self.group.is_full() || self.question.remembered.number_of(low).is_multiple_of(MEAN) {
            self.end_group()?;
        }
        Ok(ControlFlow::Continue(()))
    }

    fn end_group(&mut self) -> Result<(), StoreError> {
        let Group { ids, state, .. } = std::mem::replace(&mut self.group, self.question.group());
        if ids.is_empty() {
            return Ok(());
        }
        let remembered = self.question.remembered;
        let key = Key { traces: ids.len(), state: state.finish() };
        if let Some(kept) = remembered.get(key, self.moment) {
            self.sum.add(&kept);
            return Ok(());
        }
        let mut of_group = S::default();
        let is_whole = self.read(&ids, &mut of_group)?;
        let kept = Arc::new(of_group.keep());
        self.sum.add(&kept);
        if is_whole {
            remembered.keep(key, kept, self.moment);
        }
        Ok(())
    }

    /// Reads traces while there is time. Returns whether every trace was read to its end.
    fn read(&mut self, ids: &[TraceId], sum: &mut S) -> Result<bool, StoreError> {
        let mut is_whole = true;
        for &id in ids {
            if Instant::now() >= self.until {
                return Ok(false);
            }
            let Question { store, reading, texts, add, .. } = *self.question;
            let of_trace = trace_with(store, id, reading, texts)?;
            add(sum, of_trace.found);
            is_whole &= of_trace.cut.is_none();
            self.of_traces = self.of_traces.or(of_trace.cut);
        }
        Ok(is_whole)
    }
}
