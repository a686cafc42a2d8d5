//! Shows live viewers what arrives. Entries are decoded only for them, on the hub's thread; what the relay passes on stays
//! unchanged.

use blkin_live::{Arrival, Hub};
use blkin_thrift::Limits;
use blkin_thrift::scribe::{decode_message, skim_log};
use blkin_zipkin::convert::v1_to_v2;
use blkin_zipkin::model::Span;

/// The hub for what the relay receives.
pub type Live = Hub<Arrived>;

/// A `Log` call that was received.
#[derive(Debug)]
pub struct Arrived {
    /// The call's frame.
    pub frame: Vec<u8>,
    /// The number of entries in the call.
    pub entries: u64,
    /// Entries of this category are spans.
    pub category: String,
    /// Limits for reading them.
    pub limits: Limits,
}

impl Arrival for Arrived {
    fn entries(&self) -> u64 {
        self.entries
    }

    fn bytes(&self) -> usize {
        self.frame.len()
    }

    fn spans(self, each: &mut dyn FnMut(Span)) {
        let Some(log) = skim_log(&self.frame, &self.limits) else { return };
        let spans = log.entries.iter().filter(|entry| entry.category == self.category.as_bytes());
        for entry in spans {
            if let Ok(span) = decode_message(entry.message, &self.limits) {
                v1_to_v2(&span).into_iter().for_each(&mut *each);
            }
        }
    }
}
