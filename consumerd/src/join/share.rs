//! One service's annotations of a span. Each annotation is encoded for Zipkin as it comes, so only its bytes are kept, and it is
//! not processed again.

use std::sync::Arc;

use blkin_record::Endpoint;
use blkin_thrift::AnnotationType;
use blkin_thrift::writer::{List, Provenance};

use crate::annotation::{Annotation, Content, Role};

/// Most annotations of one message: a service with more gets several messages.
pub const MAX_ANNOTATIONS: usize = 4096;
/// A message that has reached this many bytes takes no more annotations.
const MAX_BYTES: usize = 1 << 20;
/// Largest lists whose memory is kept for reuse.
const MAX_SPARE_BYTES: usize = 3 << 10;

/// The annotations of one message to come.
#[derive(Clone, Debug)]
pub struct Share {
    endpoint: Arc<Endpoint>,
    /// Program of the first annotation.
    pub program: u64,
    /// Its segment.
    pub source: i64,
    /// In the order in which they were drained.
    pub events: List,
    /// Keys with their values, in the same order.
    pub keys: List,
    /// How many annotations came from each staged frame, in the frames' order.
    pub frames: Vec<(u64, u32)>,
    /// The service has an earlier message.
    pub is_further: bool,
    /// Times of all of the service's annotations, kept in its first message.
    pub(super) times: Times,
}

impl Share {
    /// Starts a message of the service that wrote this annotation, which is still to be added.
    pub(super) fn new(first: &Annotation<'_>) -> Self {
        Self {
            endpoint: first.labels.endpoint.clone(),
            program: first.origin.program,
            source: first.origin.source,
            events: List::default(),
            keys: List::default(),
            frames: Vec::new(),
            is_further: false,
            times: Times::default(),
        }
    }

    /// Like [`Share::new`], but reuses the memory of `self`.
    pub(super) fn renewed(mut self, first: &Annotation<'_>) -> Self {
        self.events.clear();
        self.keys.clear();
        self.frames.clear();
        let (events, keys, frames) = (self.events, self.keys, self.frames);
        Self { events, keys, frames, ..Self::new(first) }
    }

    /// Whether its memory is small enough to be kept for reuse.
    pub(super) fn is_small(&self) -> bool {
        self.events.capacity() <= MAX_SPARE_BYTES
            && self.keys.capacity() <= MAX_SPARE_BYTES
            && self.frames.capacity() <= MAX_SPARE_BYTES / size_of::<(u64, u32)>()
    }

    /// Number of annotations.
    pub fn annotations(&self) -> usize {
        self.events.count() + self.keys.count()
    }

    /// Name of the service.
    pub fn service(&self) -> &str {
        &self.endpoint.name
    }

    #[inline]
    pub(super) fn is_of(&self, endpoint: &Arc<Endpoint>) -> bool {
        Arc::ptr_eq(&self.endpoint, endpoint) || self.endpoint.name == endpoint.name
    }

    pub(super) fn is_full(&self) -> bool {
        self.annotations() >= MAX_ANNOTATIONS || self.bytes() >= MAX_BYTES
    }

    fn bytes(&self) -> usize {
        self.events.bytes() + self.keys.bytes()
    }

    /// Adds an annotation, and returns how many bytes it takes.
    #[inline]
    pub(super) fn add(&mut self, annotation: &Annotation<'_>) -> usize {
        let (before, place, origin) = (self.bytes(), &annotation.labels.place, annotation.origin);
        let source = (self.source != origin.source).then_some(origin.source);
        let from = Provenance { position: origin.position, source };
        match &annotation.content {
            Content::Event(time_ns) => {
                let nanos = i16::try_from(time_ns.rem_euclid(1000)).ok();
                self.events.event(place, time_ns.div_euclid(1000), nanos, from);
            }
            Content::Integer(integer) => {
                self.keys.binary(place, decimal(*integer, &mut [0; DIGITS]), AnnotationType::String, from);
            }
            Content::Text(text) => self.keys.binary(place, text.as_bytes(), AnnotationType::String, from),
        }
        match self.frames.last_mut() {
            Some((frame, count)) if *frame == origin.frame => *count += 1,
            _ => self.frames.push((origin.frame, 1)),
        }
        self.bytes() - before
    }
}

/// The times from which start and duration are computed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Times {
    pub(super) events: usize,
    pub(super) first: Option<i64>,
    pub(super) last: Option<i64>,
    pub(super) client_send: Option<i64>,
    pub(super) client_receive: Option<i64>,
}

impl Times {
    #[inline]
    pub(super) fn note(&mut self, time: i64, role: Role) {
        self.events += 1;
        earliest(&mut self.first, time);
        self.last = self.last.max(Some(time));
        match role {
            Role::ClientSend => earliest(&mut self.client_send, time),
            Role::ClientReceive => self.client_receive = self.client_receive.max(Some(time)),
            _ => {}
        }
    }
}

#[inline]
fn earliest(known: &mut Option<i64>, time: i64) {
    *known = Some(known.map_or(time, |known| known.min(time)));
}

/// Digits of the longest integer, with its sign.
const DIGITS: usize = 20;

fn decimal(integer: i64, digits: &mut [u8; DIGITS]) -> &[u8] {
    let (mut rest, mut at) = (integer.unsigned_abs(), DIGITS);
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if integer < 0 {
        at -= 1;
        digits[at] = b'-';
    }
    &digits[at..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_written_in_decimal() {
        for integer in [0, 7, -7, 10, 4096, i64::MAX, i64::MIN] {
            assert_eq!(decimal(integer, &mut [0; DIGITS]), integer.to_string().as_bytes());
        }
    }
}
