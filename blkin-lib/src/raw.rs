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

/// What is said by an annotation beside the ids of its span: texts, or what they are in the table of names.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Texts<'a> {
    pub(crate) name: Source<&'a [u8]>,
    pub(crate) endpoint: Source<EndpointBytes<'a>>,
    pub(crate) key: Source<&'a [u8]>,
}

/// Makes the rings and offers them to consumerd early, so that the first annotation need not. Idempotent; never fails its
/// caller, also not while no consumerd answers: what is recorded meanwhile waits in the rings as long as they have room.
/// Where they could not be made, as without a free descriptor, each further call tries again; nothing else does, but for
/// a forked child.
pub fn init() -> process::Status {
    process::init()
}

/// A new root, or zeros if this request is not to be sampled.
#[inline]
pub(crate) fn new_root() -> Ids {
    if process::samples_root() { sampled_root() } else { Ids::default() }
}

/// A new root that is sampled.
#[inline]
pub(crate) fn sampled_root() -> Ids {
    let id = process::new_id();
    Ids::new(id, id, 0)
}

/// As [`sampled_root`], if that is done at once; see [`process::try_new_id`].
#[cfg(any(test, feature = "c"))]
#[inline(always)]
pub(crate) fn try_sampled_root() -> Option<Ids> {
    process::try_new_id().map(|id| Ids::new(id, id, 0))
}

/// A child of `parent`; zeros are inherited.
#[inline]
pub(crate) fn new_child(parent: &Ids) -> Ids {
    if parent.trace_id() == 0 {
        return Ids::default();
    }
    Ids::new(parent.trace_id(), process::new_id(), parent.span_id())
}

/// As [`new_child`], if that is done at once. `parent` is asked for its ids last, so that nothing has to be kept meanwhile.
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

/// Records one annotation of a sampled span, whatever its texts are; the gate is the caller's to ask. Async-signal-safe,
/// never blocks, keeps errno.
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
