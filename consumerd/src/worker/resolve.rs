//! From records to annotations: texts and endpoints are looked up, raw clock values become times.

use std::borrow::Cow;
use std::sync::Arc;

use blkin_record::{Endpoint, EndpointRef, Record, Text, Value};
use blkin_ringbuf::{Attachment, ClockSeries, RingTime};

use crate::annotation::{Annotation, Content, Labels, Origin};
use crate::hash::Map;

/// Texts of one program that have been looked up.
///
/// A record is committed after the texts that it refers to, so a text that was found once can be remembered.
#[derive(Debug, Default)]
pub(super) struct Texts {
    texts: Map<u32, Arc<str>>,
    endpoints: Map<u32, Arc<Endpoint>>,
    labels: Vec<CachedLabels>,
    /// Index in `labels` by ids.
    by_ids: Map<Ids, usize>,
    /// Index in `labels` of the last record's labels.
    last: usize,
    /// Labels of the last record whose labels are not remembered.
    once: Option<Labels>,
    bytes: usize,
}

/// The ids of name and endpoint together, and that of the key.
type Ids = (u64, u32);

/// Labels whose texts are all in the table of names.
#[derive(Debug)]
struct CachedLabels {
    ids: Ids,
    labels: Labels,
    /// Index of the labels that followed these last time: programs write the same sequences of records over and over.
    next: usize,
}

/// Most memory for what is remembered of one program; the table of names of an honest program (64 KiB) needs less. Texts for
/// which there is no room are looked up each time.
const MAX_BYTES: usize = 512 << 10;
/// About how much memory a text, an endpoint or labels take in addition to the bytes of texts.
const OVERHEAD_BYTES: usize = 96;

impl Texts {
    /// The annotation of a record; `None` if one of its texts is not in the table of names.
    #[inline]
    pub(super) fn annotation<'a>(
        &'a mut self,
        attachment: &Attachment,
        clocks: &ClockSeries,
        ring: &mut RingTime,
        record: &'a Record<'_>,
        origin: Origin,
    ) -> Option<Annotation<'a>> {
        let info = attachment.info();
        let content = match &record.value {
            Value::None => Content::Event(clocks.to_realtime_ns(info.clock, &info.anchor, record.time, ring)),
            Value::Integer(number) => Content::Integer(*number),
            Value::Str(bytes) => Content::Text(match str::from_utf8(bytes) {
                // Nearly every text is valid UTF-8, and this check is faster.
                Ok(text) => Cow::Borrowed(text),
                Err(_) => String::from_utf8_lossy(bytes),
            }),
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
    fn labels(&mut self, attachment: &Attachment, record: &Record<'_>) -> Option<&Labels> {
        let (Text::Id(name), EndpointRef::Id(endpoint), Text::Id(key)) =
            (&record.name, &record.endpoint, &record.key)
        else {
            return self.labels_once(attachment, record);
        };
        let ids = (u64::from(*name) << 32 | u64::from(*endpoint), *key);
        let expected = self.labels.get(self.last).map_or(0, |last| last.next);
        let found = match self.labels.get(expected) {
            Some(known) if known.ids == ids => expected,
            _ => match self.find(attachment, record, ids) {
                Some(found) => found,
                None => return self.labels_once(attachment, record),
            },
        };
        self.last = found;
        Some(&self.labels[found].labels)
    }

    /// Index of labels that were not expected after those of the record before.
    #[inline(never)]
    fn find(&mut self, attachment: &Attachment, record: &Record<'_>, ids: Ids) -> Option<usize> {
        let found = match self.by_ids.get(&ids) {
            Some(found) => *found,
            None => self.learn(attachment, record, ids)?,
        };
        if let Some(last) = self.labels.get_mut(self.last) {
            last.next = found;
        }
        Some(found)
    }

    #[cold]
    fn learn(&mut self, attachment: &Attachment, record: &Record<'_>, ids: Ids) -> Option<usize> {
        let labels = self.new_labels(attachment, record)?;
        let has_room = self.has_room_for(labels.place.bytes() + size_of::<CachedLabels>());
        has_room.then(|| {
            let index = self.labels.len();
            self.labels.push(CachedLabels { ids, labels, next: 0 });
            self.by_ids.insert(ids, index);
            index
        })
    }

    #[cold]
    fn labels_once(&mut self, attachment: &Attachment, record: &Record<'_>) -> Option<&Labels> {
        let labels = self.new_labels(attachment, record)?;
        Some(self.once.insert(labels))
    }

    fn new_labels(&mut self, attachment: &Attachment, record: &Record<'_>) -> Option<Labels> {
        let name = self.text(attachment, &record.name)?;
        let endpoint = self.endpoint(attachment, &record.endpoint)?;
        Some(Labels::new(name, endpoint, self.text(attachment, &record.key)?))
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
    fn remembered_texts_of_a_program_are_bounded_in_bytes() {
        let mut texts = Texts::default();
        let kept = (0..100_000).filter(|_| texts.has_room_for(256)).count();
        assert_eq!(kept, MAX_BYTES / (256 + OVERHEAD_BYTES));
        assert!(texts.bytes <= MAX_BYTES);
    }
}
