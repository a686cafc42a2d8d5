//! Writing records: a draft tells how many grains it needs, and writes its words to a [`Place`].

use crate::layout::{
    ENDPOINT_FIXED_BYTES, ENTRY_HEADER_BYTES, FLAG_TRUNCATED, GRAIN_WORDS, KIND_EVENT, KIND_INTEGER,
    KIND_STRING, MAX_IP_BYTES, MAX_TEXT_BYTES, ORDINAL_MASK, TAG_ENDPOINT, TAG_KEY, TAG_NAME, TAG_VALUE,
    TAIL_GRAIN_BYTES,
};
use crate::pack::{Packer, TAIL_WORDS, Tail};
use crate::stamp::Stamp;

/// A text of a draft: already in the segment's table of names, or to be written into the record. Not an enum with both in
/// the same bytes: a load of the text's half would have to wait for the store of the id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source<T> {
    /// Id in the table of names; 0: the text itself is written into the record.
    id: u32,
    /// Without meaning if there is an id.
    text: T,
}

impl<T: Copy> Source<T> {
    /// The text with this id in the table of names or, if `id` is 0, `text` itself.
    #[inline(always)]
    pub const fn new(id: u32, text: T) -> Source<T> {
        Source { id, text }
    }

    /// A text without an id, which is written into the record.
    #[inline(always)]
    pub const fn inline(text: T) -> Source<T> {
        Source { id: 0, text }
    }

    /// The id in the table of names; 0 if the text is written into the record.
    #[inline(always)]
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Looks up the id of a text that has none yet. `find` returns the id, or 0 if there is none.
    #[inline(always)]
    pub fn or_id(self, find: impl FnOnce(T) -> u32) -> Source<T> {
        if self.id == 0 { Source { id: find(self.text), text: self.text } } else { self }
    }

    /// The text, if it is to be written into the record.
    #[inline(always)]
    pub fn inline_text(&self) -> Option<T> {
        if self.id == 0 { Some(self.text) } else { None }
    }
}

impl<T: Copy + Default> Source<T> {
    /// The text with this id in the table of names; `id` must not be 0.
    #[inline(always)]
    pub fn known(id: u32) -> Source<T> {
        Source { id, text: T::default() }
    }
}

/// The parts of an endpoint before they are encoded.
#[derive(Clone, Copy, Debug, Default)]
pub struct EndpointParts<'a> {
    /// Address text, at most [`MAX_IP_BYTES`]; empty for none.
    pub ip: &'a [u8],
    /// Port, 0 for none.
    pub port: u16,
    /// Service name, at most [`MAX_TEXT_BYTES`].
    pub name: &'a [u8],
}

impl EndpointParts<'_> {
    /// Length of the encoded form, in bytes.
    pub fn encoded_bytes(&self) -> usize {
        ENDPOINT_FIXED_BYTES + self.ip.len() + self.name.len()
    }

    /// Length of the result of [`EndpointParts::header`], in bytes.
    pub const HEADER_BYTES: usize = ENTRY_HEADER_BYTES + ENDPOINT_FIXED_BYTES;

    /// The bytes of an endpoint's tail entry that precede its texts, as the low bytes of a word.
    #[inline(always)]
    pub const fn header(port: u16, ip_bytes: usize, name_bytes: usize) -> u64 {
        let bytes = ENDPOINT_FIXED_BYTES + ip_bytes + name_bytes;
        let fixed = port as u64 | (ip_bytes as u64) << 16;
        entry_header(TAG_ENDPOINT, bytes) as u64 | fixed << (8 * ENTRY_HEADER_BYTES)
    }

    /// The first bytes of the encoded form: port and length of the address. The texts `ip` and `name` follow them.
    pub fn fixed(&self) -> [u8; ENDPOINT_FIXED_BYTES] {
        let port = self.port.to_le_bytes();
        [port[0], port[1], self.ip.len() as u8]
    }
}

/// The kind of an annotation, and its value.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// An event. Its raw clock value is passed to [`Draft::write`].
    Event,
    /// A key with an integer.
    Integer(i64),
    /// A key with a string, at most [`MAX_TEXT_BYTES`].
    Str(&'a [u8]),
}

/// One annotation, ready to be written. No text may be longer than a record allows: see [`Draft::cut`].
#[derive(Clone, Copy, Debug)]
pub struct Draft<'a> {
    /// Trace id, not 0.
    pub trace_id: u64,
    /// Span id.
    pub span_id: u64,
    /// Parent span id, 0 for none.
    pub parent_span_id: u64,
    /// Name of the span.
    pub name: Source<&'a [u8]>,
    /// The service that annotates.
    pub endpoint: Source<EndpointParts<'a>>,
    /// Key, or the event's text.
    pub key: Source<&'a [u8]>,
    /// Event or value.
    pub payload: Payload<'a>,
    /// Severity, 0 (emergency) to 7 (debug).
    pub level: u8,
    /// Whether a text was cut.
    pub truncated: bool,
}

/// Cuts `text` to at most `max` bytes, at a UTF-8 character boundary if one is near. Returns whether it was cut.
#[inline]
pub fn cut(text: &[u8], max: usize) -> (&[u8], bool) {
    if text.len() <= max {
        return (text, false);
    }
    let mut end = max;
    // A character has at most four bytes, so there is no point in looking for a boundary further back.
    while end > max - 3 && text[end] & 0xc0 == 0x80 {
        end -= 1;
    }
    let end = if text[end] & 0xc0 == 0x80 { max } else { end };
    (&text[..end], true)
}

impl<'a> Draft<'a> {
    /// The same draft, with its texts cut to the length that a record allows.
    #[must_use]
    pub fn cut(&self) -> Draft<'a> {
        let EndpointParts { ip, port, name: service } = self.endpoint.text;
        let (name, name_cut) = cut(self.name.text, MAX_TEXT_BYTES);
        let (key, key_cut) = cut(self.key.text, MAX_TEXT_BYTES);
        let (ip, ip_cut) = cut(ip, MAX_IP_BYTES);
        let (service, service_cut) = cut(service, MAX_TEXT_BYTES);
        let (payload, value_cut) = match self.payload {
            Payload::Str(value) => {
                let (value, value_cut) = cut(value, MAX_TEXT_BYTES);
                (Payload::Str(value), value_cut)
            }
            other => (other, false),
        };
        let text_cut = name_cut && self.name.id == 0 || key_cut && self.key.id == 0;
        let endpoint_cut = (ip_cut || service_cut) && self.endpoint.id == 0;
        Draft {
            name: Source { text: name, ..self.name },
            endpoint: Source { text: EndpointParts { ip, port, name: service }, ..self.endpoint },
            key: Source { text: key, ..self.key },
            payload,
            truncated: self.truncated || value_cut || text_cut || endpoint_cut,
            ..*self
        }
    }

    #[inline(always)]
    fn tail_bytes(&self) -> usize {
        let entry = |is_there: bool, bytes: usize| if is_there { ENTRY_HEADER_BYTES + bytes } else { 0 };
        let value = if let Payload::Str(value) = self.payload { entry(true, value.len()) } else { 0 };
        entry(self.name.id == 0, self.name.text.len())
            + entry(self.endpoint.id == 0, self.endpoint.text.encoded_bytes())
            + entry(self.key.id == 0, self.key.text.len())
            + value
    }

    /// The number of grains that the record takes.
    #[inline(always)]
    pub fn grains(&self) -> usize {
        let tail = self.tail_bytes();
        if tail > 2 * TAIL_GRAIN_BYTES {
            return 1 + tail.div_ceil(TAIL_GRAIN_BYTES);
        }
        // Nearly all records: no division.
        1 + usize::from(tail > 0) + usize::from(tail > TAIL_GRAIN_BYTES)
    }

    /// The head grain. Its stamp, its ordinal and an event's time are still 0.
    #[inline(always)]
    pub fn head_words(&self) -> [u64; GRAIN_WORDS] {
        let value = if let Payload::Integer(value) = self.payload { value as u64 } else { 0 };
        [
            0,
            value,
            self.trace_id,
            self.span_id,
            self.parent_span_id,
            names_word(self.name.id(), self.endpoint.id()),
            traits_word(self.key.id(), &self.payload, self.level, self.truncated),
            (self.tail_bytes() as u64) << 32,
        ]
    }

    /// Writes every word except the head's stamp to `place`, and returns that stamp. The caller commits the record by storing
    /// the stamp in word 0 with release ordering.
    ///
    /// `position` is that of the head grain. `clock`, the raw clock value, is used for events only.
    #[inline]
    pub fn write(
        &self,
        position: u64,
        ordinal: u64,
        cookie: u32,
        clock: u64,
        mut place: impl Place,
    ) -> Stamp {
        let mut words = self.head_words();
        if let Payload::Event = self.payload {
            words[1] = clock;
        }
        words[7] |= ordinal & ORDINAL_MASK;
        for (index, word) in words.into_iter().enumerate().skip(1) {
            place.put(index, word);
        }
        let grains = self.grains();
        if grains > 1 {
            for index in 1..grains {
                place.put(index * GRAIN_WORDS, Stamp::continuation(position + index as u64, index, cookie).0);
            }
            let mut tail = Packer::new(TailWriter { place, index: GRAIN_WORDS + 1 });
            self.pack(&mut tail);
            tail.finish();
        }
        Stamp::head(position, grains, cookie)
    }

    /// Writes the tail's entries to `tail`.
    fn pack(&self, tail: &mut Packer<impl Tail>) {
        if let Some(name) = self.name.inline_text() {
            tail.push_bytes(Entry::Name.header(name.len()).into(), ENTRY_HEADER_BYTES);
            tail.push_text(name);
        }
        if let Some(endpoint) = self.endpoint.inline_text() {
            let header = EndpointParts::header(endpoint.port, endpoint.ip.len(), endpoint.name.len());
            tail.push_bytes(header, EndpointParts::HEADER_BYTES);
            tail.push_text(endpoint.ip);
            tail.push_text(endpoint.name);
        }
        if let Some(key) = self.key.inline_text() {
            tail.push_bytes(Entry::Key.header(key.len()).into(), ENTRY_HEADER_BYTES);
            tail.push_text(key);
        }
        if let Payload::Str(value) = self.payload {
            tail.push_bytes(Entry::Value.header(value.len()).into(), ENTRY_HEADER_BYTES);
            tail.push_text(value);
        }
    }
}

/// The place to which a record is written. Implemented by functions that take an index and a word.
pub trait Place {
    /// Stores a word at this index, counted from the start of the record.
    fn put(&mut self, index: usize, word: u64);

    /// Stores all words after the stamp of the grain with this index.
    fn put_grain(&mut self, grain: usize, words: [u64; TAIL_WORDS]) {
        for (index, word) in words.into_iter().enumerate() {
            self.put(grain * GRAIN_WORDS + 1 + index, word);
        }
    }
}

impl<P: FnMut(usize, u64)> Place for P {
    #[inline(always)]
    fn put(&mut self, index: usize, word: u64) {
        self(index, word);
    }
}

/// Writes a tail to its place: into the continuation grains, after their stamps.
struct TailWriter<P> {
    place: P,
    /// Index of the next word.
    index: usize,
}

impl<P: Place> Tail for TailWriter<P> {
    #[inline(always)]
    fn put(&mut self, word: u64) {
        self.place.put(self.index, word);
        self.index += if (self.index + 1).is_multiple_of(GRAIN_WORDS) { 2 } else { 1 };
    }

    fn words_left(&self) -> usize {
        (GRAIN_WORDS - self.index % GRAIN_WORDS) % TAIL_WORDS
    }

    #[inline(always)]
    fn put_grain(&mut self, words: [u64; TAIL_WORDS]) {
        self.place.put_grain(self.index / GRAIN_WORDS, words);
        self.index += GRAIN_WORDS;
    }
}

/// The kinds of tail entries that consist of a single text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// Name of the span.
    Name,
    /// Key, or the event's text.
    Key,
    /// String value.
    Value,
}

impl Entry {
    /// Length of the result of [`Entry::header`], in bytes.
    pub const HEADER_BYTES: usize = ENTRY_HEADER_BYTES;

    /// The header of an entry whose text has this many bytes.
    #[inline(always)]
    pub const fn header(self, bytes: usize) -> u32 {
        let tag = match self {
            Entry::Name => TAG_NAME,
            Entry::Key => TAG_KEY,
            Entry::Value => TAG_VALUE,
        };
        entry_header(tag, bytes)
    }
}

/// The header of a tail entry.
#[inline(always)]
const fn entry_header(tag: u8, bytes: usize) -> u32 {
    tag as u32 | (bytes as u32) << 16
}

/// Word 5 of a record's head grain: the ids of name and endpoint.
#[inline(always)]
pub fn names_word(name: u32, endpoint: u32) -> u64 {
    u64::from(name) | u64::from(endpoint) << 32
}

/// Word 6 of a record's head grain: key id, kind, level and flags.
#[inline(always)]
pub fn traits_word(key: u32, payload: &Payload<'_>, level: u8, truncated: bool) -> u64 {
    let kind = match payload {
        Payload::Event => KIND_EVENT,
        Payload::Integer(_) => KIND_INTEGER,
        Payload::Str(_) => KIND_STRING,
    };
    let flags = if truncated { FLAG_TRUNCATED } else { 0 };
    u64::from(key) | u64::from(kind) << 32 | u64::from(level) << 40 | u64::from(flags) << 48
}

const _: () = assert!(MAX_IP_BYTES <= u8::MAX as usize && MAX_TEXT_BYTES.is_power_of_two());
const _: () = assert!(MAX_TEXT_BYTES + 3 + MAX_IP_BYTES <= u16::MAX as usize);
