//! The spool under random sequences of events.

use std::collections::{BTreeSet, VecDeque};

use proptest::prelude::*;

use super::*;

#[derive(Debug, Clone)]
enum Step {
    Append(u64),
    /// Reads further ahead of the settled batches.
    Read(usize),
    Settle(usize),
    Reject(usize),
    Lose(usize),
    Sweep,
    /// Empties the newest segment, as after a write to a full disk.
    Empty,
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1..60u64).prop_map(Step::Append),
        6 => (0..2usize).prop_map(Step::Read),
        6 => (0..2usize).prop_map(Step::Settle),
        1 => (0..2usize).prop_map(Step::Reject),
        1 => (0..2usize).prop_map(Step::Lose),
        2 => Just(Step::Sweep),
        2 => Just(Step::Empty),
        1 => Just(Step::Restart),
    ]
}

/// Settles a batch as rejected completely.
fn reject(spool: &Spool, upstream: usize, batch: &Batch) {
    (0..batch.len()).for_each(|record| spool.settle_record(upstream, batch, record, Count::MAX));
    spool.pass(upstream, batch);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// In any order of events, each upstream either gets every entry, or misses it and counts it.
    #[test]
    fn nothing_is_lost_without_being_counted(steps in proptest::collection::vec(step(), 1..120)) {
        let mut fixture = Fixture::new(tight(WhenFull::DropOldest), &["a:1", "b:2"]);
        let mut got = [BTreeSet::new(), BTreeSet::new()];
        let mut rejected = [BTreeSet::new(), BTreeSet::new()];
        let mut ahead = [VecDeque::new(), VecDeque::new()];
        for step in steps {
            match step {
                Step::Append(entries) => fixture.append(entries).unwrap(),
                Step::Sweep => fixture.spool().sweep().unwrap(),
                Step::Empty => drop(fixture.spool().empty_passed().unwrap()),
                Step::Restart => {
                    ahead = Default::default();
                    fixture.open();
                }
                // The batches were sent, but the answers never arrived.
                Step::Lose(upstream) => ahead[upstream].clear(),
                Step::Read(upstream) => {
                    if let Some(batch) = fixture.batch_behind(upstream, ahead[upstream].back()) {
                        got[upstream].extend(numbers_in(&batch));
                        ahead[upstream].push_back(batch);
                    }
                }
                Step::Settle(upstream) => {
                    if let Some(batch) = ahead[upstream].pop_front() {
                        fixture.spool().settle(upstream, &batch);
                    }
                }
                Step::Reject(upstream) => {
                    if let Some(batch) = ahead[upstream].pop_front() {
                        rejected[upstream].extend(numbers_in(&batch));
                        reject(fixture.spool(), upstream, &batch);
                    }
                }
            }
            fixture.check();
        }
        for upstream in 0..2 {
            got[upstream].extend(fixture.drain(upstream));
            let delivered = fixture.delivered(upstream);
            prop_assert_eq!(delivered.in_flight, Count::default());
            prop_assert_eq!(delivered.offered.entries, fixture.next);
            prop_assert_eq!(fixture.lost(upstream, Loss::Damaged), 0);
            let reached = got[upstream].union(&rejected[upstream]).count() as u64;
            let evicted = fixture.lost(upstream, Loss::SpoolEvicted);
            // A batch that was sent without an answer may be evicted later: it arrived, and is counted as lost all the same.
            prop_assert!(reached + evicted >= fixture.next);
        }
        fixture.check();
    }
}
