//! The program's side: one state per process, made by its first record, and made anew in a forked child.
//!
//! ```text
//!            first use                 segment made
//!  FRESH ───────────────▶ STARTING ───────────────▶ RSEQ or PORTABLE
//!    ▲                       │ BLKIN_OFF ──▶ OFF
//!    │ fork (pages wiped)    │ no memory, no descriptors … ──▶ FAILED (reported once)
//!                            ▲                                          │
//!                            └──────────────── init() ──────────────────┘
//! ```
//!
//! What survives a fork is in `kept` and in the table of names. Nothing here blocks, takes a lock, allocates or touches
//! errno, and everything may run in a signal handler: a call that meets STARTING is counted as lost (cause `starting`)
//! and returns.

pub(crate) mod call;
mod long;
mod offered;
pub(crate) mod record;
pub(crate) mod roots;
mod start;
pub(crate) mod state;
pub(crate) mod strings;
pub(crate) mod text;
pub(crate) mod waking;

use std::sync::atomic::Ordering::Acquire;

use blkin_record::{EndpointParts, Payload, Source};

pub use crate::shapes::{Call, CallMatch, Ids, Size};
pub use call::{CallValue, record_call, record_known, string_bytes};
pub use long::{may_at_once, record, record_string};
pub use record::{Short, is_on, record_short, record_short_at};
pub use roots::{CountedRoot, Rate, count_root, new_id, rate, samples_root, try_new_id};
pub use strings::{
    LEGACY_LEVEL, Place, record_brief_call, record_in_cells, record_new_call, record_travelling_call,
};
pub use text::{
    declare, declare_endpoint, intern_span, intern_span_texts, recognise, recognise_call, recognise_endpoint,
    recognise_longer, recognise_span, recognise_texts,
};

/// One annotation as the caller has it. Longer texts than [`blkin_record::MAX_TEXT_BYTES`] are cut.
#[derive(Clone, Copy, Debug)]
pub struct Annotation<'a> {
    /// Trace id; 0 is never recorded.
    pub trace_id: u64,
    /// Span id.
    pub span_id: u64,
    /// Parent span id, 0 for none.
    pub parent_span_id: u64,
    /// Name of the span.
    pub name: Source<&'a [u8]>,
    /// The endpoint that annotates.
    pub endpoint: Source<EndpointParts<'a>>,
    /// Key, or the event's text.
    pub key: Source<&'a [u8]>,
    /// Event or value.
    pub payload: Payload<'a>,
    /// Severity, 0 (emergency) to 7 (debug).
    pub level: u8,
}

/// What this library does for the process now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Annotations are recorded, into rings that consumerd reads once it is there; `blkin doctor` says whether it is.
    Tracing,
    /// BLKIN_OFF is set. [`status`] also says so while `blkin set` has switched off every level.
    Off,
    /// There is no segment, or not yet: annotations are counted as lost.
    Without,
}

/// Creates the segment and offers it to consumerd, unless that was done already. Never fails its caller: without a segment
/// the program goes on untraced, and says so once. A start that failed is tried again by each call of this function, and by
/// nothing else; annotations lost meanwhile are counted in the segment that is made then.
pub fn init() -> Status {
    match start::ready_or_start_again() {
        state::PORTABLE | state::RSEQ => {
            offered::offer_if_due();
            Status::Tracing
        }
        state::OFF => Status::Off,
        _ => Status::Without,
    }
}

/// What this library does for the process now, without starting anything: `None` before the first use, and during it. A few
/// loads; async-signal-safe.
pub fn status() -> Option<Status> {
    match state::STATE.hot.phase.load(Acquire) {
        state::FRESH | state::STARTING => None,
        state::PORTABLE | state::RSEQ if (0..8).any(is_on) => Some(Status::Tracing),
        state::PORTABLE | state::RSEQ | state::OFF => Some(Status::Off),
        _ => Some(Status::Without),
    }
}
