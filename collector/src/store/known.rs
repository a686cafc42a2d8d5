//! What of the traces that grow is stored already, so that it is not stored again. A cache: what is not in it is read.

use std::collections::HashSet;

use foldhash::fast::FixedState;

use super::batch::{Batch, Part};
use crate::model::TraceId;

/// Traces, and what stands for their pieces and annotations.
#[derive(Debug, Default)]
pub(super) struct Known {
    traces: HashSet<TraceId, FixedState>,
    wholes: HashSet<u128, FixedState>,
    identities: HashSet<u128, FixedState>,
}

/// How much of a piece is new.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum New {
    All,
    Nothing,
    /// Of the annotations that have an identity, in their order, those that are.
    Some(Vec<bool>),
}

impl Known {
    /// What is remembered of a trace that it has no rows of is worse than nothing.
    pub(super) fn forget(&mut self) {
        self.traces.clear();
        self.wholes.clear();
        self.identities.clear();
    }

    /// Whether this is a trace of which nothing is remembered; from now on all of it is.
    pub(super) fn begin(&mut self, trace: TraceId) -> bool {
        self.traces.insert(trace)
    }

    /// Remembers what is stored.
    pub(super) fn remember(&mut self, stored: &Batch) {
        for part in stored.parts() {
            self.wholes.extend(part.entry.whole);
            self.identities.extend(part.identities);
        }
    }

    /// How much of a piece is new; from now on nothing of it is.
    pub(super) fn new_part(&mut self, part: &Part<'_>) -> New {
        if part.entry.whole.is_some_and(|whole| !self.wholes.insert(whole)) {
            return New::Nothing;
        }
        let mut known = 0;
        let mut note = |identity: &u128| {
            let is_new = self.identities.insert(*identity);
            known += usize::from(!is_new);
            is_new
        };
        let is_new: Vec<bool> = part.identities.iter().map(&mut note).collect();
        match known {
            0 => New::All,
            // A piece of which only tags or annotations without identity are left has something new.
            _ if known == part.entry.annotations as usize => New::Nothing,
            _ => New::Some(is_new),
        }
    }
}
