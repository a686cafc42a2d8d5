//! The untyped layer below the Rust API and the C interface: ids, sampling, recording.

use std::sync::atomic::Ordering::Relaxed;

use blkin_ringbuf::process::{self, Annotation};

pub(crate) use blkin_record::{EndpointParts as EndpointBytes, Payload};

/// Ids of a span. A trace id of 0 means: not sampled, record nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Ids {
    pub(crate) trace_id: u64,
    pub(crate) span_id: u64,
    pub(crate) parent_span_id: u64,
}

/// Attaches to consumerd early, so that the first annotation need not. Idempotent; never fails its caller.
pub fn init() -> process::Status {
    process::init()
}

/// A new root, or zeros if this request is not to be sampled.
pub(crate) fn new_root() -> Ids {
    let rate = process::sampling_rate();
    if rate == 0 {
        return Ids::default();
    }
    let local = process::slot_local();
    // Each slot counts its own roots: no CPU waits for another's counter.
    if rate > 1 && !local.roots.fetch_add(1, Relaxed).is_multiple_of(rate) {
        return Ids::default();
    }
    let id = new_id();
    Ids { trace_id: id, span_id: id, parent_span_id: 0 }
}

/// A child of `parent`; zeros are inherited.
pub(crate) fn new_child(parent: &Ids) -> Ids {
    if parent.trace_id == 0 {
        return Ids::default();
    }
    Ids { trace_id: parent.trace_id, span_id: new_id(), parent_span_id: parent.span_id }
}

/// A positive id of 63 bits: the next number of a sequence that starts at a random place in each slot of each
/// process (a forked child draws anew), mixed by the finaliser of SplitMix64 (Steele, Lea, Flood 2014).
fn new_id() -> u64 {
    const GOLDEN_GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;
    let state = process::slot_local().ids.fetch_add(GOLDEN_GAMMA, Relaxed);
    let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((mixed ^ mixed >> 31) & i64::MAX as u64).max(1)
}

/// Records one annotation. Async-signal-safe, never blocks, keeps errno; a trace id of 0 records nothing.
pub(crate) fn record(
    ids: &Ids,
    name: &[u8],
    endpoint: &EndpointBytes<'_>,
    key: &[u8],
    payload: Payload<'_>,
    level: u8,
) {
    process::record(&Annotation {
        trace_id: ids.trace_id,
        span_id: ids.span_id,
        parent_span_id: ids.parent_span_id,
        name,
        endpoint: *endpoint,
        key,
        payload,
        level,
    });
}
