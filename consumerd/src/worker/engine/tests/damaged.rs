//! Workers that find the staging memory damaged.

use super::unread::{Node, segment_of_spans};
use super::*;
use crate::staging::Memory;
use crate::staging::layout::{FRAME_HEADER_BYTES, HEAD_AT, SECOND_COPY_BYTES, SHOWN_AT};
use crate::worker::Totals;

/// Records of a program, a third in each of three frames.
const RECORDS: u64 = 30;
const FRAME_RAW_BYTES: usize = 10 * 2 * 64;
const FRAME_BYTES: u64 = (FRAME_HEADER_BYTES + FRAME_RAW_BYTES) as u64;

struct Damaged {
    staging: Memfd,
    segment: OwnedFd,
    control: OwnedFd,
}

impl Damaged {
    /// What a worker leaves that has staged three frames and ended.
    fn new() -> Self {
        let control = control(SealFlags::SHRINK | SealFlags::GROW);
        let left = Self { staging: staging(), segment: segment_of_spans(1, RECORDS / 2), control };
        let (mut engine, tail) = engine(&left.staging);
        engine.config.ring_budget_bytes = FRAME_RAW_BYTES;
        left.attach(&mut engine);
        engine.rebuild(tail).unwrap();
        (0..3).for_each(|_| assert!(engine.drain_all(Duration::ZERO).unwrap().drained));
        assert_eq!((engine.ledger.open_frames(), engine.staging.end()), (3, 3 * FRAME_BYTES));
        left
    }

    fn attach(&self, engine: &mut Engine) {
        let [segment, control] = [&self.segment, &self.control].map(|fd| fd.try_clone().unwrap());
        engine.attach(identity(1), segment, control).unwrap();
    }

    fn log_at(&self, position: u64) -> u64 {
        Config::default().geometry().log_at() + position
    }

    fn word(&self, at: u64) -> u64 {
        let mut raw = [0; 8];
        self.staging.read(at, &mut raw).unwrap();
        u64::from_le_bytes(raw)
    }

    fn set_word(&mut self, at: u64, word: u64) {
        self.staging.write(at, &word.to_le_bytes()).unwrap();
    }

    /// The figures of the next worker, which does one round if `settles` is set.
    fn next_worker(&self, settles: bool) -> Totals {
        let (mut engine, tail) = engine(&self.staging);
        self.attach(&mut engine);
        engine.rebuild(tail).unwrap();
        let totals = engine.programs[&1].totals();
        assert!(totals.balances(), "{totals:?}");
        assert_eq!(totals.pending, 0, "nothing is read twice");
        if settles {
            engine.last_checkpoint = Duration::ZERO;
            engine.born -= Duration::from_secs(1);
            engine.round().unwrap();
            assert_eq!(engine.ledger.open_frames(), 0);
        }
        totals
    }

    /// Asserts that all workers from now on find `valid` records whole, and count the others as invalid.
    fn is_found_with(&self, valid: u64) {
        self.is_counted_as(0, valid, RECORDS - valid);
    }

    fn is_counted_as(&self, unsettled: u64, valid: u64, invalid: u64) {
        for settles in [false, true, true, false] {
            let found = self.next_worker(settles);
            assert_eq!((found.drained_before, found.unsettled), (0, unsettled));
            assert_eq!((found.drain.valid, found.drain.invalid), (valid, invalid));
        }
    }
}

#[test]
fn a_damaged_staging_header_loses_nothing() {
    for at in [0, 8, 16, 24, 32] {
        let mut damaged = Damaged::new();
        damaged.set_word(at, 0x5858_5858_5858_5858);
        damaged.is_found_with(RECORDS);
    }
}

#[test]
fn frames_before_a_damaged_one_are_kept_the_rest_invalid() {
    for at in (0..FRAME_HEADER_BYTES as u64).step_by(8) {
        let mut damaged = Damaged::new();
        let at = damaged.log_at(FRAME_BYTES) + at;
        damaged.set_word(at, damaged.word(at) ^ 1 << 3);
        damaged.is_found_with(10);
    }
}

#[test]
fn a_damaged_record_does_not_invalidate_other_records() {
    let mut damaged = Damaged::new();
    let first_record = damaged.log_at(FRAME_BYTES) + FRAME_HEADER_BYTES as u64;
    damaged.set_word(first_record, 0);
    damaged.is_found_with(RECORDS - 1);
}

#[test]
fn a_damaged_end_of_the_log_loses_only_what_is_behind_it() {
    for (head, valid) in [(FRAME_BYTES, 10), (3 * FRAME_BYTES + 400, RECORDS), (3 * FRAME_BYTES - 8, 20)] {
        let mut damaged = Damaged::new();
        damaged.set_word(HEAD_AT, head);
        damaged.is_found_with(valid);
    }
    // If nothing at all is known of a program any more, its control page still says what was drained.
    for head in [0, u64::MAX] {
        let mut damaged = Damaged::new();
        damaged.set_word(HEAD_AT, head);
        damaged.is_counted_as(RECORDS, 0, 0);
    }
}

/// What a worker has shown as settled counts as settled from then on, so damaged figures must not be believed.
#[test]
fn shown_figures_are_used_while_one_copy_is_whole() {
    let spans = 1000;
    for (copies, is_known) in [(&[SHOWN_AT][..], true), (&[SHOWN_AT, SHOWN_AT + SECOND_COPY_BYTES], false)] {
        let mut node = Node::with_staged(spans, 64 << 20);
        let mut second = node.worker();
        while second.take(0).is_empty() {
            second.round();
        }
        second.round();
        let shown = 2 * spans - second.in_flight()[0];
        second.engine.note_shown().unwrap();
        drop(second);
        for copy in copies {
            node.staging.write(*copy, &u64::MAX.to_le_bytes()).unwrap();
        }
        let settled = 2 * spans - node.worker().in_flight()[0];
        assert_eq!(settled, if is_known { shown } else { 0 });
    }
}
