//! Writes the same bytes as [`span::encode`](crate::span::encode) and
//! [`encode_log_call`](crate::scribe::encode_log_call), from borrowed parts into reused memory.
//!
//! With owned [`Span`](crate::Span)s and Apache's protocol types, consumerd spent two thirds of its time for an annotation on
//! copying strings and dispatching fields. Property tests check that both ways give the same bytes.

use crate::frame::HEADER_BYTES;
use crate::span::{FIELD_NANOS, FIELD_POSITION, FIELD_SOURCE};
use crate::{AnnotationType, Endpoint};

const STOP: u8 = 0;
const BOOL: u8 = 2;
const I16: u8 = 6;
const I32: u8 = 8;
const I64: u8 = 10;
const STRING: u8 = 11;
const STRUCT: u8 = 12;
const LIST: u8 = 15;

/// The first word of a message: the version of the strict protocol, and the type of a call.
const CALL: u32 = 0x8001_0001;

/// The fields of a span other than its annotations.
#[derive(Debug, Clone, Copy, Default)]
pub struct SpanFields<'a> {
    /// The low 64 bits of the trace id.
    pub trace_id: i64,
    /// The name of the span.
    pub name: &'a str,
    /// The id of the span.
    pub id: i64,
    /// The id of the span that caused this one.
    pub parent_id: Option<i64>,
    /// Start in microseconds since 1970.
    pub timestamp: Option<i64>,
    /// Duration in microseconds.
    pub duration: Option<i64>,
    /// Extension: the ring segment that the annotations came from.
    pub source: Option<i64>,
}

/// Where an annotation came from.
#[derive(Debug, Clone, Copy)]
pub struct Provenance {
    /// Extension: the place in the ring.
    pub position: i64,
    /// Extension: the ring segment, if it is not that of the span.
    pub source: Option<i64>,
}

/// The parts that the annotations of one place in a program have in common, encoded once for all of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Of an annotation: the bytes between its time and its position.
    event: Box<[u8]>,
    /// Of a binary annotation: the bytes before its value.
    key: Box<[u8]>,
    /// Of a binary annotation: the bytes between its type and its position.
    host: Box<[u8]>,
}

impl Place {
    /// `text` is the value of an annotation, or the key of a binary one; `host` is the endpoint that writes it.
    pub fn new(text: &str, host: Option<&Endpoint>) -> Self {
        let host = host.map(encode_endpoint);
        let up_to_position = |mut bytes: Vec<u8>, id: i16| {
            if let Some(host) = &host {
                field(&mut bytes, STRUCT, id, []);
                bytes.extend_from_slice(host);
            }
            field(&mut bytes, I64, FIELD_POSITION, []);
            bytes.into()
        };
        let text_as = |id: i16| {
            let mut bytes = Vec::new();
            string(&mut bytes, id, text.as_bytes());
            bytes
        };
        Self {
            event: up_to_position(text_as(2), 3),
            key: text_as(1).into(),
            host: up_to_position(Vec::new(), 4),
        }
    }

    /// The memory that the encoded parts take, in bytes.
    pub fn bytes(&self) -> usize {
        self.event.len() + self.key.len() + self.host.len()
    }
}

fn encode_endpoint(endpoint: &Endpoint) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(32 + endpoint.service_name.len());
    field(&mut bytes, I32, 1, endpoint.ipv4.to_be_bytes());
    field(&mut bytes, I16, 2, endpoint.port.to_be_bytes());
    string(&mut bytes, 3, endpoint.service_name.as_bytes());
    if let Some(ipv6) = &endpoint.ipv6 {
        string(&mut bytes, 4, ipv6);
    }
    bytes.push(STOP);
    bytes
}

/// Encoded annotations, or encoded binary annotations.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct List {
    bytes: Vec<u8>,
    count: usize,
}

impl List {
    /// Adds an annotation: an event at `timestamp` (microseconds since 1970) and `nanos` (0 to 999).
    #[inline]
    pub fn event(&mut self, place: &Place, timestamp: i64, nanos: Option<i16>, from: Provenance) {
        let bytes = &mut self.bytes;
        field(bytes, I64, 1, timestamp.to_be_bytes());
        bytes.extend_from_slice(&place.event);
        from.append(bytes);
        if let Some(nanos) = nanos {
            field(bytes, I16, FIELD_NANOS, nanos.to_be_bytes());
        }
        bytes.push(STOP);
        self.count += 1;
    }

    /// Adds a binary annotation: a key and its value.
    #[inline]
    pub fn binary(&mut self, place: &Place, value: &[u8], kind: AnnotationType, from: Provenance) {
        let bytes = &mut self.bytes;
        bytes.extend_from_slice(&place.key);
        string(bytes, 2, value);
        field(bytes, I32, 3, kind.to_wire().to_be_bytes());
        bytes.extend_from_slice(&place.host);
        from.append(bytes);
        bytes.push(STOP);
        self.count += 1;
    }

    /// The number of annotations.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The length of the encoded annotations, in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// The memory that is allocated for them, in bytes.
    pub fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    /// Removes all annotations, and keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.count = 0;
    }
}

impl Provenance {
    /// Appends position and source. The type and id of the position are already written.
    #[inline(always)]
    fn append(self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(&self.position.to_be_bytes());
        if let Some(source) = self.source {
            field(bytes, I64, FIELD_SOURCE, source.to_be_bytes());
        }
    }
}

/// Appends a span as a TBinary struct to `bytes`.
pub fn append_span(bytes: &mut Vec<u8>, span: &SpanFields<'_>, annotations: &List, binary: &List) {
    field(bytes, I64, 1, span.trace_id.to_be_bytes());
    string(bytes, 3, span.name.as_bytes());
    field(bytes, I64, 4, span.id.to_be_bytes());
    optional(bytes, 5, span.parent_id);
    for (id, elements) in [(6, annotations), (8, binary)] {
        list(bytes, id, elements.count);
        bytes.extend_from_slice(&elements.bytes);
    }
    field(bytes, BOOL, 9, [0]);
    optional(bytes, 10, span.timestamp);
    optional(bytes, 11, span.duration);
    optional(bytes, FIELD_SOURCE, span.source);
    bytes.push(STOP);
}

fn optional(bytes: &mut Vec<u8>, id: i16, value: Option<i64>) {
    if let Some(value) = value {
        field(bytes, I64, id, value.to_be_bytes());
    }
}

/// A framed `Log` call, written entry by entry.
#[derive(Debug)]
pub struct LogCallWriter<'a> {
    bytes: &'a mut Vec<u8>,
    count_at: usize,
    count: u32,
}

impl<'a> LogCallWriter<'a> {
    /// Empties `bytes` and begins a call in it.
    pub fn begin(bytes: &'a mut Vec<u8>, seq: i32) -> Self {
        bytes.clear();
        bytes.extend_from_slice(&[0; HEADER_BYTES]);
        bytes.extend_from_slice(&CALL.to_be_bytes());
        text(bytes, b"Log");
        bytes.extend_from_slice(&seq.to_be_bytes());
        list(bytes, 1, 0);
        let count_at = bytes.len() - size_of::<u32>();
        Self { bytes, count_at, count: 0 }
    }

    /// Adds an entry.
    pub fn entry(&mut self, category: &str, message: &[u8]) {
        string(self.bytes, 1, category.as_bytes());
        string(self.bytes, 2, message);
        self.bytes.push(STOP);
        self.count += 1;
    }

    /// Ends the call: `bytes` now holds the frame.
    pub fn end(self) {
        let Self { bytes, count_at, count } = self;
        bytes.push(STOP);
        bytes[count_at..count_at + size_of::<u32>()].copy_from_slice(&count.to_be_bytes());
        let length = u32::try_from(bytes.len() - HEADER_BYTES).unwrap_or(u32::MAX);
        bytes[..HEADER_BYTES].copy_from_slice(&length.to_be_bytes());
    }
}

/// Appends a field with a value of fixed size; the vector grows once.
#[inline(always)]
fn field<const N: usize>(bytes: &mut Vec<u8>, kind: u8, id: i16, value: [u8; N]) {
    let [high, low] = id.to_be_bytes();
    bytes.reserve(3 + N);
    bytes.extend_from_slice(&[kind, high, low]);
    bytes.extend_from_slice(&value);
}

#[inline(always)]
fn string(bytes: &mut Vec<u8>, id: i16, value: &[u8]) {
    let [high, low] = id.to_be_bytes();
    bytes.reserve(7 + value.len());
    bytes.extend_from_slice(&[STRING, high, low]);
    text(bytes, value);
}

#[inline(always)]
fn text(bytes: &mut Vec<u8>, value: &[u8]) {
    bytes.extend_from_slice(&(value.len() as u32).to_be_bytes());
    bytes.extend_from_slice(value);
}

fn list(bytes: &mut Vec<u8>, id: i16, count: usize) {
    field(bytes, LIST, id, [STRUCT]);
    bytes.extend_from_slice(&(count as u32).to_be_bytes());
}
