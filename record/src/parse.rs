//! Reading records from raw grains that were copied from a ring. Nothing in them is trusted.

use std::borrow::Cow;

use crate::cells::{
    ADDRESS_CELL, CELL_BYTES, CELLS_GRAINS, CELLS_TAIL_BYTES, KEY_CELLS, NAME_CELL, SERVICE_CELL,
};
use crate::draft::EndpointParts;
use crate::endpoint::EndpointRef;
use crate::layout::{
    ENTRY_HEADER_BYTES, FIRST_EXTENSION_TAG, FLAG_CELLS, FLAG_TRUNCATED, GRAIN_BYTES, KIND_EVENT,
    KIND_INTEGER, KIND_STRING, MAX_IP_BYTES, MAX_TEXT_BYTES, TAG_ENDPOINT, TAG_KEY, TAG_NAME, TAG_VALUE,
    TAIL_GRAIN_BYTES,
};
use crate::stamp::Stamp;

/// The kind of an annotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An event, with a time.
    Event,
    /// A key with an integer.
    Integer,
    /// A key with a string.
    String,
}

/// A text of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Text<'a> {
    /// Its id in the segment's table of names.
    Id(u32),
    /// The text itself, from the record.
    Inline(Cow<'a, [u8]>),
}

/// The value of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// No value: the record is an event.
    None,
    /// An integer.
    Integer(i64),
    /// A string: the bytes as the program gave them.
    Str(Cow<'a, [u8]>),
}

/// One annotation, read and checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Position of the head grain in its ring (mod 2^36).
    pub position: u64,
    /// Number of the record in its ring (mod 2^28).
    pub ordinal: u64,
    /// Kind of the annotation.
    pub kind: Kind,
    /// Severity, 0 to 7.
    pub level: u8,
    /// Whether a text was cut when the record was written.
    pub truncated: bool,
    /// Trace id, never 0.
    pub trace_id: u64,
    /// Span id.
    pub span_id: u64,
    /// Parent span id, 0 for none.
    pub parent_span_id: u64,
    /// Raw clock value of an event; 0 for other kinds.
    pub time: u64,
    /// Value of a key.
    pub value: Value<'a>,
    /// Name of the span.
    pub name: Text<'a>,
    /// The service that annotated.
    pub endpoint: EndpointRef<'a>,
    /// Key, or the event's text.
    pub key: Text<'a>,
}

/// Why bytes are not a valid record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// The stamp does not belong to this segment, or the record is longer than the bytes that were given.
    #[error("no valid stamp where a record should start")]
    Stamp,
    /// A continuation grain does not have the stamp that follows from the head.
    #[error("a continuation grain does not belong to its record")]
    Continuation,
    /// Kind, level or flags that this version does not know.
    #[error("unknown kind, level or flags")]
    Traits,
    /// The trace id is 0.
    #[error("trace id 0")]
    TraceId,
    /// The tail's length does not match the number of grains, or its entries do not fit in it.
    #[error("tail entries do not fit")]
    Tail,
    /// A text is neither in the table of names nor in the tail.
    #[error("a text is missing")]
    Missing,
}

/// Reads records from `raw`, a whole number of grains. A bad record is reported as an error, and the next record is found
/// by its stamp, so that a bad record never spoils its neighbours. Each item stands for one record that a program committed.
pub fn records(raw: &[u8], cookie: u32) -> Records<'_> {
    Records { raw, cookie }
}

/// Iterator of [`records`].
#[derive(Clone, Debug)]
pub struct Records<'a> {
    raw: &'a [u8],
    cookie: u32,
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<Record<'a>, Invalid>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        match self.next_single_grain() {
            Some(record) => {
                self.raw = &self.raw[GRAIN_BYTES..];
                Some(Ok(record))
            }
            None => {
                let head = self.raw.first_chunk::<GRAIN_BYTES>()?;
                let item = self.parse(head);
                self.pass(item.is_ok().then_some(head));
                Some(item)
            }
        }
    }
}

impl<'a> Records<'a> {
    /// Calls `visit` with a reference to each record, without moving it: a record has so many words that moving it costs
    /// about as much as reading it. Longer records, which are rare, have a path of their own, so that records of one grain
    /// stay in registers.
    #[inline]
    pub fn each(mut self, mut visit: impl FnMut(Result<&Record<'a>, Invalid>)) {
        while self.raw.len() >= GRAIN_BYTES {
            match self.next_single_grain() {
                Some(record) => {
                    self.raw = &self.raw[GRAIN_BYTES..];
                    visit(Ok(&record));
                }
                None => self.show_other(&mut visit),
            }
        }
    }

    #[inline(never)]
    fn show_other(&mut self, visit: &mut impl FnMut(Result<&Record<'a>, Invalid>)) {
        let Some(head) = self.raw.first_chunk::<GRAIN_BYTES>() else { return };
        let item = self.parse(head);
        self.pass(item.is_ok().then_some(head));
        visit(item.as_ref().map_err(|invalid| *invalid));
    }

    /// The next record, if it is a valid one of one grain, as most are.
    #[inline(always)]
    fn next_single_grain(&self) -> Option<Record<'a>> {
        let grain = self.raw.first_chunk::<GRAIN_BYTES>()?;
        let stamp = Stamp(word(grain, 0));
        if stamp != Stamp::head(stamp.position(), 1, self.cookie) || word(grain, 2) == 0 {
            return None;
        }
        let traits = Traits::read(word(grain, 6)).ok()?;
        let head = Head::read(grain, stamp, traits);
        if head.tail_bytes == 0 && !traits.in_cells { head.single_grain().ok() } else { None }
    }

    #[inline(always)]
    fn parse(&self, head: &[u8; GRAIN_BYTES]) -> Result<Record<'a>, Invalid> {
        let stamp = Stamp(word(head, 0));
        let grains = stamp.head_length_at(stamp.position(), self.cookie).ok_or(Invalid::Stamp)?;
        let raw = self.raw.get(..grains * GRAIN_BYTES).ok_or(Invalid::Stamp)?;
        let traits = Traits::read(word(head, 6))?;
        if word(head, 2) == 0 {
            return Err(Invalid::TraceId);
        }
        let head = Head::read(head, stamp, traits);
        if traits.in_cells {
            head.in_cells(raw, stamp, self.cookie)
        } else if head.tail_bytes == 0 && grains == 1 {
            head.single_grain()
        } else {
            head.with_tail(raw, stamp, self.cookie)
        }
    }

    /// Moves past a good record, which begins with this grain; past a bad one, to the next head.
    fn pass(&mut self, good: Option<&[u8; GRAIN_BYTES]>) {
        match good {
            Some(head) => self.raw = &self.raw[Stamp(word(head, 0)).length() * GRAIN_BYTES..],
            // The length of a bad record is not trusted either: its neighbours could be lost with it.
            None => self.skip_to_next_head(),
        }
    }
}

impl Records<'_> {
    #[cold]
    fn skip_to_next_head(&mut self) {
        self.raw = &self.raw[GRAIN_BYTES..];
        while let Some(grain) = self.raw.first_chunk::<GRAIN_BYTES>() {
            let stamp = Stamp(word(grain, 0));
            if stamp.head_length_at(stamp.position(), self.cookie).is_some() {
                return;
            }
            self.raw = &self.raw[GRAIN_BYTES..];
        }
    }
}

/// A word of a grain. The grain's size is known, so a constant index is not checked at run time.
#[inline(always)]
fn word(grain: &[u8; GRAIN_BYTES], index: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&grain[index * 8..index * 8 + 8]);
    u64::from_le_bytes(bytes)
}

/// Kind, level and flags of a record, checked.
#[derive(Clone, Copy)]
struct Traits {
    kind: Kind,
    level: u8,
    truncated: bool,
    in_cells: bool,
}

impl Traits {
    #[inline(always)]
    fn read(word: u64) -> Result<Self, Invalid> {
        let (kind, level, flags) = (word.to_le_bytes()[4], word.to_le_bytes()[5], (word >> 48) as u16);
        let kind = match kind {
            KIND_EVENT => Kind::Event,
            KIND_INTEGER => Kind::Integer,
            KIND_STRING => Kind::String,
            _ => return Err(Invalid::Traits),
        };
        let in_cells = flags == FLAG_CELLS;
        if level > 7 || !in_cells && flags & !FLAG_TRUNCATED != 0 {
            return Err(Invalid::Traits);
        }
        Ok(Self { kind, level, truncated: flags == FLAG_TRUNCATED, in_cells })
    }
}

/// The fields of a record's head grain. Never put into a `Result`: there the first word was stored in pieces and then loaded
/// as a whole, which had to wait for all of the stores.
struct Head {
    position: u64,
    ordinal: u64,
    kind: Kind,
    level: u8,
    truncated: bool,
    trace_id: u64,
    span_id: u64,
    parent_span_id: u64,
    /// Time of an event, value of an integer key.
    scalar: u64,
    /// Ids in the table of names; 0: the text is in the tail.
    name: u32,
    endpoint: u32,
    key: u32,
    tail_bytes: usize,
}

impl Head {
    #[inline(always)]
    fn read(grain: &[u8; GRAIN_BYTES], stamp: Stamp, traits: Traits) -> Self {
        let (names, counts) = (word(grain, 5), word(grain, 7));
        let Traits { kind, level, truncated, .. } = traits;
        Self {
            position: stamp.position(),
            ordinal: counts & crate::ORDINAL_MASK,
            kind,
            level,
            truncated,
            trace_id: word(grain, 2),
            span_id: word(grain, 3),
            parent_span_id: word(grain, 4),
            scalar: word(grain, 1),
            name: names as u32,
            endpoint: (names >> 32) as u32,
            key: word(grain, 6) as u32,
            tail_bytes: (counts >> 32) as usize,
        }
    }

    /// A record of one grain, as most are. Separate from the others, so that no absent texts are moved.
    #[inline(always)]
    fn single_grain<'a>(&self) -> Result<Record<'a>, Invalid> {
        if self.kind == Kind::String || self.name == 0 || self.endpoint == 0 || self.key == 0 {
            return Err(Invalid::Missing);
        }
        let value = if self.kind == Kind::Integer { Value::Integer(self.scalar as i64) } else { Value::None };
        let (name, endpoint) = (Text::Id(self.name), EndpointRef::Id(self.endpoint));
        Ok(self.record(value, name, endpoint, Text::Id(self.key)))
    }

    #[inline(never)]
    fn with_tail<'a>(&self, raw: &'a [u8], stamp: Stamp, cookie: u32) -> Result<Record<'a>, Invalid> {
        let tail = Tail::read(raw, stamp, cookie, self.tail_bytes)?;
        let value = match self.kind {
            Kind::Event => Value::None,
            Kind::Integer => Value::Integer(self.scalar as i64),
            Kind::String => Value::Str(tail.value.ok_or(Invalid::Missing)?),
        };
        let endpoint = match text(self.endpoint, tail.endpoint)? {
            Text::Id(id) => EndpointRef::Id(id),
            Text::Inline(bytes) => EndpointRef::Inline(bytes),
        };
        Ok(self.record(value, text(self.name, tail.name)?, endpoint, text(self.key, tail.key)?))
    }

    /// An event whose texts are in cells, and whose port is where other records have their key's id.
    #[inline(never)]
    fn in_cells<'a>(&self, raw: &'a [u8], stamp: Stamp, cookie: u32) -> Result<Record<'a>, Invalid> {
        let port = u16::try_from(self.key).map_err(|_| Invalid::Traits)?;
        if self.kind != Kind::Event || self.name | self.endpoint != 0 {
            return Err(Invalid::Traits);
        }
        if self.tail_bytes != CELLS_TAIL_BYTES || raw.len() != CELLS_GRAINS * GRAIN_BYTES {
            return Err(Invalid::Tail);
        }
        check_continuations(raw, stamp, cookie)?;
        let text = |at: usize, bytes: usize| up_to_zero(&raw[at..at + bytes]);
        let (ip, service) = (text(ADDRESS_CELL, CELL_BYTES), text(SERVICE_CELL, CELL_BYTES));
        let endpoint = EndpointParts { ip, port, name: service };
        let endpoint = EndpointRef::Inline([&endpoint.fixed()[..], ip, service].concat().into());
        let (name, key) = (text(NAME_CELL, CELL_BYTES), text(KEY_CELLS, 2 * CELL_BYTES));
        Ok(self.record(Value::None, Text::Inline(name.into()), endpoint, Text::Inline(key.into())))
    }

    #[inline(always)]
    fn record<'a>(
        &self,
        value: Value<'a>,
        name: Text<'a>,
        endpoint: EndpointRef<'a>,
        key: Text<'a>,
    ) -> Record<'a> {
        Record {
            position: self.position,
            ordinal: self.ordinal,
            kind: self.kind,
            level: self.level,
            truncated: self.truncated,
            trace_id: self.trace_id,
            span_id: self.span_id,
            parent_span_id: self.parent_span_id,
            time: if self.kind == Kind::Event { self.scalar } else { 0 },
            value,
            name,
            endpoint,
            key,
        }
    }
}

fn up_to_zero(cells: &[u8]) -> &[u8] {
    let end = cells.iter().position(|byte| *byte == 0).unwrap_or(cells.len());
    &cells[..end]
}

/// Checks that the grains after a record's first one belong to it.
fn check_continuations(raw: &[u8], stamp: Stamp, cookie: u32) -> Result<(), Invalid> {
    let (grains, _) = raw.as_chunks::<GRAIN_BYTES>();
    for (index, grain) in grains.iter().enumerate().skip(1) {
        let position = stamp.position() + index as u64;
        if Stamp(word(grain, 0)) != Stamp::continuation(position, index, cookie) {
            return Err(Invalid::Continuation);
        }
    }
    Ok(())
}

fn text(id: u32, inline: Option<Cow<'_, [u8]>>) -> Result<Text<'_>, Invalid> {
    match (id, inline) {
        (0, Some(bytes)) => Ok(Text::Inline(bytes)),
        (0, None) => Err(Invalid::Missing),
        (id, _) => Ok(Text::Id(id)),
    }
}

#[derive(Default)]
struct Tail<'a> {
    name: Option<Cow<'a, [u8]>>,
    endpoint: Option<Cow<'a, [u8]>>,
    key: Option<Cow<'a, [u8]>>,
    value: Option<Cow<'a, [u8]>>,
}

impl<'a> Tail<'a> {
    fn read(raw: &'a [u8], stamp: Stamp, cookie: u32, bytes: usize) -> Result<Tail<'a>, Invalid> {
        let grains = raw.len() / GRAIN_BYTES;
        if 1 + bytes.div_ceil(TAIL_GRAIN_BYTES) != grains {
            return Err(Invalid::Tail);
        }
        check_continuations(raw, stamp, cookie)?;
        Tail::entries(TailBytes { raw, bytes })
    }

    fn entries(source: TailBytes<'a>) -> Result<Tail<'a>, Invalid> {
        let mut tail = Tail::default();
        let mut at = 0;
        while at < source.bytes {
            let header = source.get(at, ENTRY_HEADER_BYTES)?;
            let length = usize::from(u16::from_le_bytes([header[2], header[3]]));
            let (tag, zero) = (header[0], header[1]);
            let content = source.get(at + ENTRY_HEADER_BYTES, length)?;
            at += ENTRY_HEADER_BYTES + length;
            tail.put(tag, zero, content)?;
        }
        Ok(tail)
    }

    fn put(&mut self, tag: u8, zero: u8, content: Cow<'a, [u8]>) -> Result<(), Invalid> {
        let (place, max) = match tag {
            TAG_NAME => (&mut self.name, MAX_TEXT_BYTES),
            TAG_ENDPOINT => (&mut self.endpoint, MAX_TEXT_BYTES + MAX_IP_BYTES + 3),
            TAG_KEY => (&mut self.key, MAX_TEXT_BYTES),
            TAG_VALUE => (&mut self.value, MAX_TEXT_BYTES),
            FIRST_EXTENSION_TAG.. => return Ok(()),
            _ => return Err(Invalid::Tail),
        };
        if zero != 0 || content.len() > max || place.is_some() {
            return Err(Invalid::Tail);
        }
        *place = Some(content);
        Ok(())
    }
}

/// The tail's bytes, in pieces of 56 after the stamps.
struct TailBytes<'a> {
    raw: &'a [u8],
    bytes: usize,
}

impl<'a> TailBytes<'a> {
    fn get(&self, at: usize, length: usize) -> Result<Cow<'a, [u8]>, Invalid> {
        if length > self.bytes || at > self.bytes - length {
            return Err(Invalid::Tail);
        }
        let piece = self.piece(at);
        if length <= piece.len() {
            return Ok(Cow::Borrowed(&piece[..length]));
        }
        let mut gathered = Vec::with_capacity(length);
        while gathered.len() < length {
            let piece = self.piece(at + gathered.len());
            let wanted = (length - gathered.len()).min(piece.len());
            gathered.extend_from_slice(&piece[..wanted]);
        }
        Ok(Cow::Owned(gathered))
    }

    /// The bytes from `at` to the end of the grain that holds them. `at` is within the tail, or at its end if no bytes are
    /// wanted.
    fn piece(&self, at: usize) -> &'a [u8] {
        let grain = 1 + at / TAIL_GRAIN_BYTES;
        let start = (grain * GRAIN_BYTES + 8 + at % TAIL_GRAIN_BYTES).min(self.raw.len());
        let end = ((grain + 1) * GRAIN_BYTES).min(self.raw.len());
        &self.raw[start..end]
    }
}
