//! From records to annotations: texts and endpoints are looked up, raw clock values become times.

use std::sync::Arc;

use blkin_record::{Endpoint, EndpointRef, Record, Text, Value};
use blkin_ringbuf::{Attachment, ClockSeries, RingTime};

use crate::annotation::{Annotation, Content, Labels, Origin};
use crate::hash::Map;

/// Texts of one program that have been looked up.
///
/// A record that came through its ring was committed after its texts were, so what is found once stays.
#[derive(Debug, Default)]
pub(super) struct Texts {
    texts: Map<u32, Arc<str>>,
    endpoints: Map<u32, Arc<Endpoint>>,
    /// By the ids of name and endpoint, and that of the key.
    labels: Map<(u64, u32), Arc<Labels>>,
    bytes: usize,
}

/// Most memory for what is remembered of one program; the table of names of an honest one (64 KiB) needs less. What
/// finds no room is looked up each time.
const MAX_BYTES: usize = 512 << 10;
/// About what a text, an endpoint or labels take beside the bytes of texts.
const OVERHEAD_BYTES: usize = 96;

impl Texts {
    /// The annotation that a record stands for; `None` when a text of it is in no table.
    #[inline]
    pub(super) fn annotation(
        &mut self,
        attachment: &Attachment,
        clocks: &ClockSeries,
        ring: &mut RingTime,
        record: &Record<'_>,
        origin: Origin,
    ) -> Option<Annotation> {
        let info = attachment.info();
        let content = match &record.value {
            Value::None => Content::Event(clocks.to_realtime_ns(info.clock, &info.anchor, record.time, ring)),
            Value::Integer(number) => Content::Integer(*number),
            Value::Str(bytes) => Content::Text(String::from_utf8_lossy(bytes).into()),
        };
        Some(Annotation {
            trace_id: record.trace_id,
            span_id: record.span_id,
            parent_span_id: record.parent_span_id,
            labels: self.labels(attachment, record)?,
            content,
            level: record.level,
            truncated: record.truncated,
            origin,
        })
    }

    #[inline]
    fn labels(&mut self, attachment: &Attachment, record: &Record<'_>) -> Option<Arc<Labels>> {
        let (Text::Id(name), EndpointRef::Id(endpoint), Text::Id(key)) =
            (&record.name, &record.endpoint, &record.key)
        else {
            return self.new_labels(attachment, record);
        };
        let ids = (u64::from(*name) << 32 | u64::from(*endpoint), *key);
        if let Some(known) = self.labels.get(&ids) {
            return Some(known.clone());
        }
        let found = self.new_labels(attachment, record)?;
        if self.has_room_for(0) {
            self.labels.insert(ids, found.clone());
        }
        Some(found)
    }

    #[cold]
    fn new_labels(&mut self, attachment: &Attachment, record: &Record<'_>) -> Option<Arc<Labels>> {
        let name = self.text(attachment, &record.name)?;
        let endpoint = self.endpoint(attachment, &record.endpoint)?;
        Some(Arc::new(Labels { name, endpoint, key: self.text(attachment, &record.key)? }))
    }

    fn text(&mut self, attachment: &Attachment, text: &Text<'_>) -> Option<Arc<str>> {
        let id = match text {
            Text::Inline(bytes) => return Some(String::from_utf8_lossy(bytes).into()),
            Text::Id(id) => *id,
        };
        if let Some(known) = self.texts.get(&id) {
            return Some(known.clone());
        }
        let found: Arc<str> = String::from_utf8_lossy(&attachment.text(id)?).into();
        if self.has_room_for(found.len()) {
            self.texts.insert(id, found.clone());
        }
        Some(found)
    }

    fn endpoint(&mut self, attachment: &Attachment, endpoint: &EndpointRef<'_>) -> Option<Arc<Endpoint>> {
        let id = match endpoint {
            EndpointRef::Inline(bytes) => return Endpoint::decode(bytes).map(Arc::new),
            EndpointRef::Id(id) => *id,
        };
        if let Some(known) = self.endpoints.get(&id) {
            return Some(known.clone());
        }
        let found = Arc::new(Endpoint::decode(&attachment.text(id)?)?);
        if self.has_room_for(found.ip.len() + found.name.len()) {
            self.endpoints.insert(id, found.clone());
        }
        Some(found)
    }

    fn has_room_for(&mut self, bytes: usize) -> bool {
        let more = self.bytes + bytes + OVERHEAD_BYTES;
        let has_room = more <= MAX_BYTES;
        if has_room {
            self.bytes = more;
        }
        has_room
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_remembered_of_a_program_is_bounded_by_its_bytes() {
        let mut texts = Texts::default();
        let kept = (0..100_000).filter(|_| texts.has_room_for(256)).count();
        assert_eq!(kept, MAX_BYTES / (256 + OVERHEAD_BYTES));
        assert!(texts.bytes <= MAX_BYTES);
    }
}
