//! Writing: a draft knows how many grains it needs and puts its words wherever they go.

use crate::layout::{
    ENTRY_HEADER_BYTES, FLAG_TRUNCATED, GRAIN_WORDS, KIND_EVENT, KIND_INTEGER, KIND_STRING, MAX_IP_BYTES,
    MAX_TEXT_BYTES, ORDINAL_MASK, TAG_ENDPOINT, TAG_KEY, TAG_NAME, TAG_VALUE, TAIL_GRAIN_BYTES,
};
use crate::stamp::Stamp;

/// A text of a draft: already in the segment's table of names, or to be written into the record.
#[derive(Clone, Copy, Debug)]
pub enum Source<T> {
    /// Its id, never 0.
    Id(u32),
    /// The text itself.
    Inline(T),
}

impl<T> Source<T> {
    /// Whether the text has to travel in the record.
    pub fn is_inline(&self) -> bool {
        matches!(self, Source::Inline(_))
    }

    fn id(&self) -> u32 {
        match self {
            Source::Id(id) => *id,
            Source::Inline(_) => 0,
        }
    }
}

/// The parts of an endpoint before they are encoded.
#[derive(Clone, Copy, Debug)]
pub struct EndpointParts<'a> {
    /// Address text, at most [`MAX_IP_BYTES`]; empty for none.
    pub ip: &'a [u8],
    /// Port, 0 for none.
    pub port: u16,
    /// Service name, at most [`MAX_TEXT_BYTES`].
    pub name: &'a [u8],
}

impl EndpointParts<'_> {
    /// Length of the encoded form.
    pub fn encoded_bytes(&self) -> usize {
        3 + self.ip.len() + self.name.len()
    }

    /// The three pieces whose concatenation is the encoded form.
    pub fn fixed(&self) -> [u8; 3] {
        let port = self.port.to_le_bytes();
        [port[0], port[1], self.ip.len() as u8]
    }
}

/// What the annotation says beside its key.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// An event: the raw clock value is passed to [`Draft::write`].
    Event,
    /// A key with an integer.
    Integer(i64),
    /// A key with a string, at most [`MAX_TEXT_BYTES`].
    Str(&'a [u8]),
}

/// One annotation, ready to be written. All lengths must have been cut with [`cut`] before.
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
    /// Who annotates.
    pub endpoint: Source<EndpointParts<'a>>,
    /// Key, or the event's text.
    pub key: Source<&'a [u8]>,
    /// Event or value.
    pub payload: Payload<'a>,
    /// Severity, 0 (emergency) to 7 (debug).
    pub level: u8,
    /// A text was cut.
    pub truncated: bool,
}

/// Cuts `text` to at most `max` bytes, at a UTF-8 character boundary where there is one near.
#[inline]
pub fn cut(text: &[u8], max: usize) -> (&[u8], bool) {
    if text.len() <= max {
        return (text, false);
    }
    let mut end = max;
    // A character has at most four bytes: further back there is no boundary to be found.
    while end > max - 3 && text[end] & 0xc0 == 0x80 {
        end -= 1;
    }
    let end = if text[end] & 0xc0 == 0x80 { max } else { end };
    (&text[..end], true)
}

impl Draft<'_> {
    #[inline(always)]
    fn tail_bytes(&self) -> usize {
        let entry = |bytes: usize| ENTRY_HEADER_BYTES + bytes;
        let mut bytes = 0;
        if let Source::Inline(name) = self.name {
            bytes += entry(name.len());
        }
        if let Source::Inline(endpoint) = self.endpoint {
            bytes += entry(endpoint.encoded_bytes());
        }
        if let Source::Inline(key) = self.key {
            bytes += entry(key.len());
        }
        if let Payload::Str(value) = self.payload {
            bytes += entry(value.len());
        }
        bytes
    }

    /// Grains that the record takes.
    #[inline(always)]
    pub fn grains(&self) -> usize {
        1 + self.tail_bytes().div_ceil(TAIL_GRAIN_BYTES)
    }

    /// The head grain, but for its stamp, ordinal and (of an event) time, which are 0.
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

    /// Puts the tail, without the stamps between its grains, at the start of `tail`, as far as it fits.
    #[inline(always)]
    pub fn write_tail(&self, tail: &mut [u8]) {
        let mut at = 0;
        self.each_entry(|tag, pieces| {
            let length = pieces.iter().map(|piece| piece.len()).sum::<usize>() as u32;
            at = put(tail, at, &(u32::from(tag) | length << 16).to_le_bytes());
            for piece in pieces {
                at = put(tail, at, piece);
            }
        });
    }

    /// Writes every word but the head's stamp through `put(word index, value)` and returns that stamp: storing it
    /// in word 0, with release ordering, is what makes the record true.
    ///
    /// `position` is that of the head grain; indices count words from the start of the record.
    #[inline]
    pub fn write(
        &self,
        position: u64,
        ordinal: u64,
        cookie: u32,
        clock: u64,
        mut put: impl FnMut(usize, u64),
    ) -> Stamp {
        let mut words = self.head_words();
        if let Payload::Event = self.payload {
            words[1] = clock;
        }
        words[7] |= ordinal & ORDINAL_MASK;
        for (index, word) in words.into_iter().enumerate().skip(1) {
            put(index, word);
        }
        let grains = self.grains();
        if grains > 1 {
            for index in 1..grains {
                put(index * GRAIN_WORDS, Stamp::continuation(position + index as u64, index, cookie).0);
            }
            let mut tail = TailWriter::new(&mut put);
            self.each_entry(|tag, pieces| tail.entry(tag, pieces));
            tail.finish();
        }
        Stamp::head(position, grains, cookie)
    }

    #[inline(always)]
    fn each_entry(&self, mut entry: impl FnMut(u8, &[&[u8]])) {
        if let Source::Inline(name) = self.name {
            entry(TAG_NAME, &[name]);
        }
        if let Source::Inline(endpoint) = self.endpoint {
            entry(TAG_ENDPOINT, &[&endpoint.fixed(), endpoint.ip, endpoint.name]);
        }
        if let Source::Inline(key) = self.key {
            entry(TAG_KEY, &[key]);
        }
        if let Payload::Str(value) = self.payload {
            entry(TAG_VALUE, &[value]);
        }
    }
}

/// Word 5 of a record's head.
#[inline(always)]
pub fn names_word(name: u32, endpoint: u32) -> u64 {
    u64::from(name) | u64::from(endpoint) << 32
}

/// Word 6 of a record's head.
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

/// Copies `piece` to `at`, as far as it fits, and returns where it ends. Overlapping words instead of a call of memcpy:
/// nearly all texts are a few bytes long.
#[inline(always)]
fn put(tail: &mut [u8], at: usize, piece: &[u8]) -> usize {
    let end = at + piece.len();
    let Some(room) = tail.get_mut(at..end) else { return at };
    match piece.len() {
        8..=16 => copy_ends::<8>(room, piece),
        4..=7 => copy_ends::<4>(room, piece),
        0..=3 => room.iter_mut().zip(piece).for_each(|(to, from)| *to = *from),
        _ => room.copy_from_slice(piece),
    }
    end
}

/// Copies the first and the last `N` bytes; together they are all of it.
#[inline(always)]
fn copy_ends<const N: usize>(to: &mut [u8], from: &[u8]) {
    if let (Some(to), Some(from)) = (to.first_chunk_mut::<N>(), from.first_chunk::<N>()) {
        *to = *from;
    }
    if let (Some(to), Some(from)) = (to.last_chunk_mut::<N>(), from.last_chunk::<N>()) {
        *to = *from;
    }
}

const _: () = assert!(MAX_IP_BYTES <= u8::MAX as usize);
const _: () = assert!(MAX_TEXT_BYTES + 3 + MAX_IP_BYTES <= u16::MAX as usize);

/// Gathers bytes into words and puts them behind the stamps of the continuation grains.
struct TailWriter<'p, P: FnMut(usize, u64)> {
    put: &'p mut P,
    word: u64,
    filled_bits: u32,
    index: usize,
}

impl<'p, P: FnMut(usize, u64)> TailWriter<'p, P> {
    fn new(put: &'p mut P) -> Self {
        TailWriter { put, word: 0, filled_bits: 0, index: GRAIN_WORDS + 1 }
    }

    fn entry(&mut self, tag: u8, pieces: &[&[u8]]) {
        let length: usize = pieces.iter().map(|piece| piece.len()).sum();
        let length = (length as u16).to_le_bytes();
        self.bytes(&[tag, 0, length[0], length[1]]);
        for piece in pieces {
            self.bytes(piece);
        }
    }

    fn bytes(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.word |= u64::from(byte) << self.filled_bits;
            self.filled_bits += 8;
            if self.filled_bits == 64 {
                self.flush();
            }
        }
    }

    fn flush(&mut self) {
        (self.put)(self.index, self.word);
        self.word = 0;
        self.filled_bits = 0;
        self.index += 1;
        if self.index.is_multiple_of(GRAIN_WORDS) {
            self.index += 1;
        }
    }

    fn finish(mut self) {
        if self.filled_bits > 0 {
            self.flush();
        }
    }
}
