//! What all traces of a window of time have together. All of them are come to by the index each time, which is cheap; to read
//! them is not, so that what was read is remembered, by groups of traces that are found one after the other.
//!
//! Where a group ends is decided by the ids alone (content-defined chunking, as of Muthitacharoen et al., SOSP 2001, but of
//! ids instead of bytes): so two windows that overlap have the same groups but for those at their ends, and a trace that comes
//! changes one group and shifts none.

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

/// A group has so many traces in the mean.
pub(super) const MEAN: u64 = 2048;
/// And never more than these.
const MOST: usize = 16 * MEAN as usize;
/// Or, as they are stored, so many bytes and what its last trace has: else a group of large traces could not be read in the time that
/// a query has, and would be begun anew by each.
pub(super) const MOST_BYTES: u64 = 8 << 20;

/// What some traces have together.
pub(super) trait Sum: Default {
    /// As it is remembered.
    type Kept: Weighed;

    /// Adds what other traces have.
    fn add(&mut self, kept: &Self::Kept);

    /// All that was added.
    fn keep(self) -> Self::Kept;
}

/// What is asked of each trace of a window.
pub(super) struct Question<'q, S: Sum> {
    pub(super) store: &'q dyn Store,
    pub(super) reading: Reading,
    /// What traces have to have.
    pub(super) wanted: Wanted,
    pub(super) window_us: &'q RangeInclusive<u64>,
    /// The texts of spans that are enough.
    pub(super) texts: Texts<'q>,
    pub(super) remembered: &'q Remembered<S::Kept>,
    /// Tells all but what traces have on which an answer depends.
    pub(super) tell: &'q dyn Fn(&mut DefaultHasher),
    /// Adds what a trace has.
    pub(super) add: &'q dyn Fn(&mut S, Vec<Span>),
}

impl<S: Sum> Question<'_, S> {
    /// The answer, of the latest traces if there is no time for all.
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

    /// One that begins.
    fn group(&self) -> Group {
        let mut state = self.remembered.hasher();
        (self.tell)(&mut state);
        Group { ids: Vec::new(), bytes: 0, state }
    }
}

/// Traces that were found one after the other.
struct Group {
    ids: Vec<TraceId>,
    bytes: u64,
    /// All on which depends what is read of them.
    state: DefaultHasher,
}

impl Group {
    fn take(&mut self, found: &Visited<'_>) {
        self.ids.push(found.id);
        self.bytes += found.bytes();
        // Of several traces that share their low 64 bits each may be asked for by itself.
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
    /// Low 64 bits that several traces share, if these count as one.
    seen: HashSet<u64>,
    of_traces: Option<Cut>,
}

impl<S: Sum> Answering<'_, S> {
    fn take(&mut self, found: &Visited<'_>) -> Result<ControlFlow<()>, StoreError> {
        let low = found.id.low();
        if self.seen.contains(&low) {
            return Ok(ControlFlow::Continue(()));
        }
        let is_alone = found.tell(&mut self.group.state)?;
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

    /// Reads traces while there is time. Returns whether all of all of them was read.
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
