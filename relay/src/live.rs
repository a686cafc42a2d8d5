//! What arrives, shown to whoever watches. Only for them are entries decoded, on the hub's thread; what is passed on is
//! what came.

use blkin_live::{Arrival, Hub};
use blkin_thrift::Limits;
use blkin_thrift::scribe::{decode_message, skim_log};
use blkin_zipkin::convert::v1_to_v2;
use blkin_zipkin::model::Span;

/// The hub of what the relay takes in.
pub type Live = Hub<Arrived>;

/// A `Log` call that was taken.
#[derive(Debug)]
pub struct Arrived {
    /// The call's frame.
    pub frame: Vec<u8>,
    /// How many entries it has.
    pub entries: u64,
    /// Entries of this category are spans.
    pub category: String,
    /// What is read of them.
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
