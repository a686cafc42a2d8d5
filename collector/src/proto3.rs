//! Zipkin's v2 spans as protocol buffers (`proto/zipkin.proto`): a body of `POST /api/v2/spans`.
//!
//! Decoded by hand, because generated code cannot do three things: refuse a bad span alone, leave out and count empty
//! annotations and tags, and apply limits before memory is taken. `prost` is its oracle (`tests/proto3.rs`).
//!
//! Unknown fields, and known fields of another wire type, are skipped. If a field comes twice, the later one counts.

use blkin_thrift::Limits;

use crate::json::{read_port, required};
use crate::model::{Annotation, BadId, Endpoint, Kind, Marks, Span, SpanId, TraceId, lower_name};
use crate::refusal::{BadEntry, BadList};

const VARINT: u8 = 0;
const FIXED64: u8 = 1;
const CHUNK: u8 = 2;
const FIXED32: u8 = 5;

/// A span, and how much was left out of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The span.
    pub span: Span,
    /// Annotations without time or value and tags without key, which are left out.
    pub empty: usize,
}

/// Reads a `ListOfSpans`. Where the encoding is broken the list ends, because what follows cannot be found any more.
///
/// # Errors
/// When the list has too many entries.
pub fn read_list(body: &[u8], limits: &Limits) -> Result<Vec<Result<Entry, BadEntry>>, BadList> {
    let mut entries = Vec::new();
    let mut wire = Wire(body);
    loop {
        let entry = match wire.field() {
            Ok(None) => return Ok(entries),
            Ok(Some(Field::Chunk(1, bytes))) => read_span(bytes, limits),
            Ok(Some(_)) => continue,
            Err(broken) => {
                entries.push(Err(broken));
                return Ok(entries);
            }
        };
        if entries.len() == limits.max_entries {
            return Err(BadList::TooMany(limits.max_entries));
        }
        entries.push(entry);
    }
}

/// A field, with its number.
#[derive(Debug, Clone, Copy)]
enum Field<'a> {
    Varint(u32, u64),
    Fixed64(u32, u64),
    Chunk(u32, &'a [u8]),
    Fixed32,
}

/// The part of a message that has not been read yet.
struct Wire<'a>(&'a [u8]);

impl<'a> Wire<'a> {
    /// The next field; none at the end.
    fn field(&mut self) -> Result<Option<Field<'a>>, BadEntry> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let key = self.varint()?;
        let number = u32::try_from(key >> 3).map_err(|_| BadEntry::Proto("a field's number is too large"))?;
        if number == 0 {
            return Err(BadEntry::Proto("a field has the number 0"));
        }
        let field = match (key & 7) as u8 {
            VARINT => Field::Varint(number, self.varint()?),
            FIXED64 => Field::Fixed64(number, u64::from_le_bytes(self.array()?)),
            CHUNK => Field::Chunk(number, self.chunk()?),
            FIXED32 => {
                let _skipped: [u8; 4] = self.array()?;
                Field::Fixed32
            }
            _ => return Err(BadEntry::Proto("a field has a wire type that proto3 does not have")),
        };
        Ok(Some(field))
    }

    fn varint(&mut self) -> Result<u64, BadEntry> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let [byte] = self.array()?;
            if shift == 63 && byte > 1 {
                break;
            }
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(BadEntry::Proto("a number has more than 64 bits"))
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], BadEntry> {
        let (array, rest) = self.0.split_first_chunk().ok_or(BadEntry::Proto("it ends too early"))?;
        self.0 = rest;
        Ok(*array)
    }

    fn chunk(&mut self) -> Result<&'a [u8], BadEntry> {
        let length = usize::try_from(self.varint()?).unwrap_or(usize::MAX);
        let (chunk, rest) =
            self.0.split_at_checked(length).ok_or(BadEntry::Proto("a length goes beyond its end"))?;
        self.0 = rest;
        Ok(chunk)
    }
}

/// A span, field by field.
#[derive(Default)]
struct Parts<'a> {
    trace_id: &'a [u8],
    parent_id: &'a [u8],
    id: &'a [u8],
    kind: Option<Kind>,
    name: Option<String>,
    timestamp: u64,
    duration: u64,
    local_endpoint: Option<Endpoint>,
    remote_endpoint: Option<Endpoint>,
    annotations: Vec<Annotation>,
    tags: std::collections::BTreeMap<String, String>,
    debug: bool,
    shared: bool,
    /// How many annotations and tags were read so far.
    items: usize,
    /// How many of them are left out.
    empty: usize,
}

fn read_span(bytes: &[u8], limits: &Limits) -> Result<Entry, BadEntry> {
    BadEntry::check_length(bytes.len(), limits)?;
    let mut wire = Wire(bytes);
    let mut parts = Parts::default();
    while let Some(field) = wire.field()? {
        parts.take(field, limits)?;
    }
    parts.finish()
}

impl<'a> Parts<'a> {
    fn take(&mut self, field: Field<'a>, limits: &Limits) -> Result<(), BadEntry> {
        match field {
            Field::Chunk(1, id) => self.trace_id = id,
            Field::Chunk(2, id) => self.parent_id = id,
            Field::Chunk(3, id) => self.id = id,
            Field::Varint(4, kind) => self.kind = read_kind(kind).or(self.kind),
            Field::Chunk(5, name) => self.name = lower_name(&text(name)),
            Field::Fixed64(6, timestamp) => self.timestamp = timestamp,
            Field::Varint(7, duration) => self.duration = duration,
            Field::Chunk(8, endpoint) => self.local_endpoint = Some(read_endpoint(endpoint)?),
            Field::Chunk(9, endpoint) => self.remote_endpoint = Some(read_endpoint(endpoint)?),
            Field::Chunk(10, annotation) => {
                self.one_more(limits)?;
                match read_annotation(annotation)? {
                    Some(annotation) => self.annotations.push(annotation),
                    None => self.empty += 1,
                }
            }
            Field::Chunk(11, tag) => {
                self.one_more(limits)?;
                match read_tag(tag)? {
                    Some((key, value)) => drop(self.tags.insert(key, value)),
                    None => self.empty += 1,
                }
            }
            Field::Varint(12, flag) => self.debug |= flag != 0,
            Field::Varint(13, flag) => self.shared |= flag != 0,
            _ => {}
        }
        Ok(())
    }

    fn one_more(&mut self, limits: &Limits) -> Result<(), BadEntry> {
        self.items += 1;
        BadEntry::check_count("annotations and tags", self.items, limits)
    }

    fn finish(self) -> Result<Entry, BadEntry> {
        let parent = number(self.parent_id, 8);
        let span = Span {
            trace_id: required(present(self.trace_id).map(read_trace_id), "trace_id")?,
            parent_id: SpanId::new(
                parent.map_err(|cause| BadEntry::Id { member: "parent_id", cause })? as u64
            ),
            id: required(present(self.id).map(read_span_id), "id")?,
            kind: self.kind,
            name: self.name,
            timestamp: i64::try_from(self.timestamp).ok(),
            duration: i64::try_from(self.duration).ok(),
            local_endpoint: self.local_endpoint,
            remote_endpoint: self.remote_endpoint,
            annotations: self.annotations,
            tags: self.tags.into_iter().collect(),
            debug: self.debug,
            shared: self.shared,
            marks: Marks::default(),
        };
        Ok(Entry { span: span.normalized(), empty: self.empty })
    }
}

fn present(bytes: &[u8]) -> Option<&[u8]> {
    (!bytes.is_empty()).then_some(bytes)
}

/// A big-endian number of at most `most` bytes, which is at most 16; leading zeros count as bytes, as in JSON.
fn number(bytes: &[u8], most: usize) -> Result<u128, BadId> {
    if bytes.len() > most {
        return Err(BadId::TooLong(2 * most));
    }
    Ok(bytes.iter().fold(0, |number, &byte| number << 8 | u128::from(byte)))
}

fn read_trace_id(bytes: &[u8]) -> Result<TraceId, BadId> {
    let number = number(bytes, 16)?;
    TraceId::new((number >> 64) as u64, number as u64).ok_or(BadId::Zero)
}

fn read_span_id(bytes: &[u8]) -> Result<SpanId, BadId> {
    SpanId::new(number(bytes, 8)? as u64).ok_or(BadId::Zero)
}

/// A kind; none if this version does not know it.
fn read_kind(number: u64) -> Option<Kind> {
    match number {
        1 => Some(Kind::Client),
        2 => Some(Kind::Server),
        3 => Some(Kind::Producer),
        4 => Some(Kind::Consumer),
        _ => None,
    }
}

/// A string; bytes that are not UTF-8 are replaced, as everywhere.
fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn read_endpoint(bytes: &[u8]) -> Result<Endpoint, BadEntry> {
    let mut wire = Wire(bytes);
    let mut endpoint = Endpoint::default();
    while let Some(field) = wire.field()? {
        match field {
            Field::Chunk(1, name) => endpoint.service_name = lower_name(&text(name)),
            Field::Chunk(2 | 3, ip) => read_ip(&mut endpoint, ip),
            // An int32: negative ones come in 64 bits.
            Field::Varint(4, port) => endpoint.port = read_port(i64::from(port as i32))?,
            _ => {}
        }
    }
    Ok(endpoint)
}

/// Reads an address of 4 or 16 bytes; addresses of other lengths are ignored, as in Zipkin.
fn read_ip(endpoint: &mut Endpoint, bytes: &[u8]) {
    if let Ok(ipv4) = <[u8; 4]>::try_from(bytes) {
        endpoint.ipv4 = Some(ipv4.into());
    } else if let Ok(ipv6) = <[u8; 16]>::try_from(bytes) {
        endpoint.set_ipv6(ipv6.into());
    }
}

/// Reads an annotation; none if it lacks a time or a value.
fn read_annotation(bytes: &[u8]) -> Result<Option<Annotation>, BadEntry> {
    let mut wire = Wire(bytes);
    let (mut timestamp, mut value) = (0, None);
    while let Some(field) = wire.field()? {
        match field {
            Field::Fixed64(1, number) => timestamp = number,
            Field::Chunk(2, bytes) => value = present(bytes).map(text),
            _ => {}
        }
    }
    let timestamp = Some(timestamp as i64).filter(|&timestamp| timestamp != 0);
    Ok(timestamp.zip(value).map(|(timestamp, value)| Annotation::new(timestamp, value)))
}

/// Reads a tag; none if it lacks a key. Its value may be empty.
fn read_tag(bytes: &[u8]) -> Result<Option<(String, String)>, BadEntry> {
    let mut wire = Wire(bytes);
    let (mut key, mut value) = (None, String::new());
    while let Some(field) = wire.field()? {
        match field {
            Field::Chunk(1, bytes) => key = present(bytes).map(text),
            Field::Chunk(2, bytes) => value = text(bytes),
            _ => {}
        }
    }
    Ok(key.map(|key| (key, value)))
}
