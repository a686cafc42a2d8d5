//! From records to annotations: texts and endpoints are looked up, raw clock values become times.

use std::collections::HashMap;
use std::sync::Arc;

use blkin_record::{Endpoint, EndpointRef, Record, Text, Value};
use blkin_ringbuf::{Anchor, Attachment, ClockSeries};

use crate::annotation::{Annotation, Content, Origin};

/// Texts of one program that have been looked up.
///
/// A record that came through its ring was committed after its texts were, so what is found once stays.
#[derive(Debug, Default)]
pub(super) struct Texts {
    texts: HashMap<u32, Arc<str>>,
    endpoints: HashMap<u32, Arc<Endpoint>>,
}

/// Most texts that are remembered for one program; the table of names of an honest one holds fewer.
const MAX_TEXTS: usize = 16_384;

impl Texts {
    /// The annotation that a record stands for; `None` when a text of it is in no table.
    pub(super) fn annotation(
        &mut self,
        attachment: &Attachment,
        clocks: &ClockSeries,
        record: Record<'_>,
        origin: Origin,
    ) -> Option<Annotation> {
        let info = attachment.info();
        // A program may claim any moment; none is before 1970, and differences then stay within bounds.
        let anchor = Anchor { realtime_ns: info.anchor.realtime_ns.max(0), ..info.anchor };
        let content = match record.value {
            Value::None => Content::Event(clocks.to_realtime_ns(info.clock, &anchor, record.time)),
            Value::Integer(number) => Content::Integer(number),
            Value::Str(bytes) => Content::Text(String::from_utf8_lossy(&bytes).into()),
        };
        Some(Annotation {
            trace_id: record.trace_id,
            span_id: record.span_id,
            parent_span_id: record.parent_span_id,
            name: self.text(attachment, record.name)?,
            endpoint: self.endpoint(attachment, record.endpoint)?,
            key: self.text(attachment, record.key)?,
            content,
            level: record.level,
            truncated: record.truncated,
            origin,
        })
    }

    fn text(&mut self, attachment: &Attachment, text: Text<'_>) -> Option<Arc<str>> {
        let id = match text {
            Text::Inline(bytes) => return Some(String::from_utf8_lossy(&bytes).into()),
            Text::Id(id) => id,
        };
        if let Some(known) = self.texts.get(&id) {
            return Some(known.clone());
        }
        let found: Arc<str> = String::from_utf8_lossy(&attachment.text(id)?).into();
        if self.texts.len() < MAX_TEXTS {
            self.texts.insert(id, found.clone());
        }
        Some(found)
    }

    fn endpoint(&mut self, attachment: &Attachment, endpoint: EndpointRef<'_>) -> Option<Arc<Endpoint>> {
        let id = match endpoint {
            EndpointRef::Inline(bytes) => return Endpoint::decode(&bytes).map(Arc::new),
            EndpointRef::Id(id) => id,
        };
        if let Some(known) = self.endpoints.get(&id) {
            return Some(known.clone());
        }
        let found = Arc::new(Endpoint::decode(&attachment.text(id)?)?);
        if self.endpoints.len() < MAX_TEXTS {
            self.endpoints.insert(id, found.clone());
        }
        Some(found)
    }
}
