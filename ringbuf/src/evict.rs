//! How far OLDEST of an overwriting ring moves when a new record needs room; common to both producers.

use std::sync::atomic::Ordering::Acquire;

use blkin_record::{POSITION_MASK, Stamp};

use crate::ring::{Head, RingShape};
use crate::words::Words;

/// More than one record is given up at a time, so that OLDEST, which every snapshot looks at, moves seldom: a page of
/// grains, but never more than a sixteenth of the ring.
const STEP_GRAINS: u64 = 64;
const LEAST_STEPS: u64 = 16;

/// The OLDEST with which `grains` more fit after `head`: `oldest` moved past whole committed records. `oldest` itself
/// when there is room. `None` when a hole is in the way: a grain there is reserved and not committed, and its writer
/// may still write it. Also `None` when the two are further apart than the ring is long, as words loaded at different
/// times may be.
///
/// The answer is reliable only for grains that nobody may write. A caller that gets `None` checks whether OLDEST and head
/// still are what it passed; one that moves OLDEST does so by compare-and-swap from `oldest` (invariant 9).
pub(crate) fn next_oldest<W: Words + ?Sized>(
    ring: &W,
    shape: RingShape,
    oldest: Head,
    head: Head,
    grains: u64,
) -> Option<Head> {
    let used = head.grains_since(oldest);
    let needed = (used + grains).saturating_sub(shape.grains());
    if used > shape.grains() {
        return None;
    }
    if needed == 0 {
        return Some(oldest);
    }
    let step = STEP_GRAINS.min(shape.grains() / LEAST_STEPS);
    let mut next = oldest;
    let mut given = 0;
    while given < needed || given < step {
        let length = committed_at(ring, shape, next.position()).filter(|length| given + length <= used);
        match length {
            Some(length) => {
                next = next.after(length);
                given += length;
            }
            None if given < needed => return None,
            None => break,
        }
    }
    Some(next)
}

fn committed_at<W: Words + ?Sized>(ring: &W, shape: RingShape, position: u64) -> Option<u64> {
    // SYNC POINT commit: pairs with the release in ring: the next writer there comes after the one that committed (invariant 9).
    let stamp = Stamp(ring.load(shape.word_of(position), Acquire));
    stamp.head_length_at(position & POSITION_MASK, shape.cookie()).map(|grains| grains as u64)
}
