//! The untyped layer below the Rust API and the C interface: ids, and the way to the rings.

use blkin_ringbuf::process::{self, Annotation};

pub(crate) use blkin_record::{EndpointParts as EndpointBytes, Payload, Source};

/// Ids of a span. A trace id of 0 means: not sampled, record nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Ids {
    /// Trace, span and parent span, as records take them.
    pub(crate) words: [u64; 3],
}

impl Ids {
    pub(crate) const fn new(trace_id: u64, span_id: u64, parent_span_id: u64) -> Ids {
        Ids { words: [trace_id, span_id, parent_span_id] }
    }

    pub(crate) const fn trace_id(&self) -> u64 {
        self.words[0]
    }

    pub(crate) const fn span_id(&self) -> u64 {
        self.words[1]
    }

    pub(crate) const fn parent_span_id(&self) -> u64 {
        self.words[2]
    }
}

/// The texts of an annotation, or their ids in the table of names.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Texts<'a> {
    pub(crate) name: Source<&'a [u8]>,
    pub(crate) endpoint: Source<EndpointBytes<'a>>,
    pub(crate) key: Source<&'a [u8]>,
}

/// Creates the rings and offers them to consumerd early, so that the first annotation need not.
///
/// May be called any number of times. It never fails, also while no consumerd answers: until then annotations wait in the
/// rings, as long as these have room. If the rings cannot be created, for example because no descriptor is free, each
/// further call tries again; apart from that only a forked child tries again. Returns the state after the call.
pub fn init() -> process::Status {
    process::init()
}

/// A new root, or zeros if this request is not to be sampled.
#[inline]
pub(crate) fn new_root() -> Ids {
    if process::samples_root() { sampled_root() } else { Ids::default() }
}

/// A new root, always sampled.
#[inline]
pub(crate) fn sampled_root() -> Ids {
    let id = process::new_id();
    Ids::new(id, id, 0)
}

/// As [`sampled_root`], if an id can be drawn at the first try; see [`process::try_new_id`].
#[cfg(any(test, feature = "c"))]
#[inline(always)]
pub(crate) fn try_sampled_root() -> Option<Ids> {
    process::try_new_id().map(|id| Ids::new(id, id, 0))
}

/// A child of `parent`; the ids of a parent that is not sampled, zeros, are inherited.
#[inline]
pub(crate) fn new_child(parent: &Ids) -> Ids {
    if parent.trace_id() == 0 {
        return Ids::default();
    }
    Ids::new(parent.trace_id(), process::new_id(), parent.span_id())
}

/// As [`new_child`], if an id can be drawn at the first try. `parent` is called last, so that its ids need no registers
/// while the id is drawn.
#[cfg(any(test, feature = "c"))]
#[inline(always)]
pub(crate) fn try_new_child(is_sampled: bool, parent: impl FnOnce() -> Ids) -> Option<Ids> {
    if !is_sampled {
        return Some(Ids::default());
    }
    process::try_new_id().map(|id| {
        let parent = parent();
        Ids::new(parent.trace_id(), id, parent.span_id())
    })
}

/// Records one annotation of a sampled span, with any texts. The caller has checked that the level is on.
/// Async-signal-safe, never blocks, keeps errno.
#[inline(never)]
pub(crate) fn record(ids: &Ids, texts: &Texts<'_>, payload: Payload<'_>, level: u8) {
    process::record(&Annotation {
        trace_id: ids.trace_id(),
        span_id: ids.span_id(),
        parent_span_id: ids.parent_span_id(),
        name: texts.name,
        endpoint: texts.endpoint,
        key: texts.key,
        payload,
        level,
    });
}
