//! One annotation, resolved: names and times are what people understand.

use std::sync::Arc;

use blkin_record::Endpoint;

/// What an annotation says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// The event named by the key happened at this time, in nanoseconds since 1970.
    Event(i64),
    /// The key's value.
    Integer(i64),
    /// The key's value; bytes that are not UTF-8 read as U+FFFD.
    Text(Box<str>),
}

/// Where an annotation came from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// The holder's number of the program.
    pub program: u64,
    /// Hash of the segment's identity, the same for every consumer of this boot.
    pub source: i64,
    /// Ring and grain: `slot << 40 | grain`.
    pub position: i64,
    /// Staged frame that holds it.
    pub frame: u64,
}

/// The texts of annotations that one program writes at one place, shared by all of these.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Labels {
    /// Name of the span, as the annotation gives it.
    pub name: Arc<str>,
    /// Who annotated.
    pub endpoint: Arc<Endpoint>,
    /// Key, or the event.
    pub key: Arc<str>,
}

/// One annotation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Annotation {
    /// Trace.
    pub trace_id: u64,
    /// Span.
    pub span_id: u64,
    /// Parent span, 0 for none.
    pub parent_span_id: u64,
    /// Its texts.
    pub labels: Arc<Labels>,
    /// Time or value.
    pub content: Content,
    /// Severity, 0 to 7.
    pub level: u8,
    /// A text was cut when it was recorded.
    pub truncated: bool,
    /// Where it came from.
    pub origin: Origin,
}

impl Annotation {
    /// Time of an event.
    pub fn time_ns(&self) -> Option<i64> {
        match self.content {
            Content::Event(time_ns) => Some(time_ns),
            _ => None,
        }
    }

    /// Memory that holding it costs, in bytes; shared names count as if they were not.
    pub fn cost_bytes(&self) -> usize {
        let text = if let Content::Text(text) = &self.content { text.len() } else { 0 };
        size_of::<Self>() + self.labels.key.len() + text
    }
}

/// Puts ring and grain into one number.
pub fn position(slot: u32, grain: u64) -> i64 {
    ((i64::from(slot) & 0x7f_ffff) << 40) | (grain & ((1 << 40) - 1)) as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ring_and_grain_share_a_positive_number() {
        assert_eq!(position(3, 7), 3 << 40 | 7);
        assert_eq!(position(0, (1 << 40) + 5), 5);
        assert!(position(u32::MAX, u64::MAX) > 0);
    }
}
