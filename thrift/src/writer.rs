//! The same bytes as [`span::encode`](crate::span::encode) and
//! [`encode_log_call`](crate::scribe::encode_log_call), written from borrowed parts into memory that is used again.
//!
//! Through owned [`Span`](crate::Span)s and Apache's protocol types, two thirds of what consumerd took for an
//! annotation went into copying strings and dispatching fields. The property tests hold this writer against them.

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

/// Version of the strict protocol, and the type of a call.
const CALL: u32 = 0x8001_0001;

/// The first fields of a span.
#[derive(Debug, Clone, Copy)]
pub struct SpanHead<'a> {
    /// The low 64 bits of the trace id.
    pub trace_id: i64,
    /// The name of the span.
    pub name: &'a str,
    /// The id of the span.
    pub id: i64,
    /// The id of the span that caused this one.
    pub parent_id: Option<i64>,
}

/// Where an annotation came from and who wrote it.
#[derive(Debug, Clone, Copy)]
pub struct Provenance<'a> {
    /// The place in the network, encoded by [`encode_endpoint`].
    pub host: Option<&'a [u8]>,
    /// Extension: the place in the ring.
    pub position: i64,
    /// Extension: the ring segment, where it is another than the span's.
    pub source: Option<i64>,
}

/// Encodes an endpoint once for all annotations that it writes.
pub fn encode_endpoint(endpoint: &Endpoint) -> Vec<u8> {
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

/// One span, in the order of its fields: [`SpanWriter::begin`], as many [`SpanWriter::annotation`]s as announced,
/// [`SpanWriter::begin_binary`], as many [`SpanWriter::binary`]s, [`SpanWriter::end`].
#[derive(Debug)]
pub struct SpanWriter<'a> {
    bytes: &'a mut Vec<u8>,
}

impl<'a> SpanWriter<'a> {
    /// Appends to `bytes`.
    pub fn begin(bytes: &'a mut Vec<u8>, head: &SpanHead<'_>, annotations: usize) -> Self {
        field(bytes, I64, 1, head.trace_id.to_be_bytes());
        string(bytes, 3, head.name.as_bytes());
        field(bytes, I64, 4, head.id.to_be_bytes());
        if let Some(parent_id) = head.parent_id {
            field(bytes, I64, 5, parent_id.to_be_bytes());
        }
        list(bytes, 6, annotations);
        Self { bytes }
    }

    /// Something that happened at `timestamp` (microseconds since 1970) and `nanos` (0 to 999).
    #[inline]
    pub fn annotation(&mut self, timestamp: i64, nanos: Option<i16>, value: &str, from: &Provenance<'_>) {
        field(self.bytes, I64, 1, timestamp.to_be_bytes());
        string(self.bytes, 2, value.as_bytes());
        self.host(3, from.host);
        self.extension(from);
        if let Some(nanos) = nanos {
            field(self.bytes, I16, FIELD_NANOS, nanos.to_be_bytes());
        }
        self.bytes.push(STOP);
    }

    /// Announces the binary annotations.
    pub fn begin_binary(&mut self, count: usize) {
        list(self.bytes, 8, count);
    }

    /// A key and its value.
    #[inline]
    pub fn binary(&mut self, key: &str, value: &[u8], kind: AnnotationType, from: &Provenance<'_>) {
        string(self.bytes, 1, key.as_bytes());
        string(self.bytes, 2, value);
        field(self.bytes, I32, 3, kind.to_wire().to_be_bytes());
        self.host(4, from.host);
        self.extension(from);
        self.bytes.push(STOP);
    }

    /// Ends the span: start and duration in microseconds, and the segment of its annotations.
    pub fn end(self, timestamp: Option<i64>, duration: Option<i64>, source: Option<i64>) {
        let Self { bytes } = self;
        field(bytes, BOOL, 9, [0]);
        for (id, value) in [(10, timestamp), (11, duration), (FIELD_SOURCE, source)] {
            if let Some(value) = value {
                field(bytes, I64, id, value.to_be_bytes());
            }
        }
        bytes.push(STOP);
    }

    #[inline]
    fn host(&mut self, id: i16, host: Option<&[u8]>) {
        if let Some(host) = host {
            field(self.bytes, STRUCT, id, []);
            self.bytes.extend_from_slice(host);
        }
    }

    #[inline]
    fn extension(&mut self, from: &Provenance<'_>) {
        field(self.bytes, I64, FIELD_POSITION, from.position.to_be_bytes());
        if let Some(source) = from.source {
            field(self.bytes, I64, FIELD_SOURCE, source.to_be_bytes());
        }
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

/// One growth of the vector for type, id and value.
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
