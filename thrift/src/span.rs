//! Zipkin's v1 span (`idl/zipkinCore.thrift`) with BlkKin's extension fields.
//!
//! Zipkin skips extension fields because it does not know their ids. They tell where an annotation came from, so that a
//! collector stores a piece that was sent twice only once, and keep the nanoseconds for which v1 has no room.

use thrift::protocol::{TInputProtocol, TOutputProtocol, TType};

use crate::binary::{
    Input, Output, WriteResult, input, read_struct, read_struct_list, read_text, write_bytes, write_field,
    write_i64, write_optional_i64, write_struct_list, write_to,
};
use crate::skim::{Skim, wire};
use crate::{Error, Limits};

/// Extension field of [`Annotation`] and [`BinaryAnnotation`]: the place in the ring, see [`position`](crate::position).
pub const FIELD_POSITION: i16 = 32001;
/// Extension field of [`Span`], [`Annotation`] and [`BinaryAnnotation`]: the ring segment.
pub const FIELD_SOURCE: i16 = 32002;
/// Extension field of [`Annotation`]: nanoseconds below the microsecond.
pub const FIELD_NANOS: i16 = 32003;

/// A piece of a span in Zipkin's v1 model. Nothing is interpreted: names are as they arrived, and zeros stay zeros.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Span {
    /// The low 64 bits of the trace id.
    pub trace_id: i64,
    /// The high 64 bits of the trace id.
    pub trace_id_high: Option<i64>,
    /// The name of the span.
    pub name: String,
    /// The id of the span.
    pub id: i64,
    /// The id of the span that caused this one.
    pub parent_id: Option<i64>,
    /// The events, with their times.
    pub annotations: Vec<Annotation>,
    /// The keys with their values, which have no time.
    pub binary_annotations: Vec<BinaryAnnotation>,
    /// Whether samplers must keep this span.
    pub debug: bool,
    /// Start in microseconds since 1970.
    pub timestamp: Option<i64>,
    /// Duration in microseconds.
    pub duration: Option<i64>,
    /// Extension: the ring segment that the annotations came from.
    pub source: Option<i64>,
    /// The number of annotations that a decoder left out because they are empty: those without a time or a value, and binary
    /// ones without a key or a value. No reader shows such annotations.
    pub left_out: usize,
}

/// An event: something that happened at a time.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Annotation {
    /// Microseconds since 1970.
    pub timestamp: i64,
    /// The text of the event.
    pub value: String,
    /// The endpoint at which it happened.
    pub host: Option<Endpoint>,
    /// Extension: the place in the ring.
    pub position: Option<i64>,
    /// Extension: the ring segment, if it is not that of the span.
    pub source: Option<i64>,
    /// Extension: 0 to 999 nanoseconds below the microsecond.
    pub nanos: Option<i16>,
}

/// A key and its value.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct BinaryAnnotation {
    /// The key.
    pub key: String,
    /// The value, encoded according to `kind`.
    pub value: Vec<u8>,
    /// The type of the value.
    pub kind: AnnotationType,
    /// The endpoint that wrote it; for the keys `ca`, `sa` and `ma` the address of another service.
    pub host: Option<Endpoint>,
    /// Extension: the place in the ring.
    pub position: Option<i64>,
    /// Extension: the ring segment, if it is not that of the span.
    pub source: Option<i64>,
}

/// The type of a binary annotation's value, and its encoding.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum AnnotationType {
    /// One byte, 0 or 1.
    Bool,
    /// Any bytes.
    #[default]
    Bytes,
    /// Two bytes, big-endian.
    I16,
    /// Four bytes, big-endian.
    I32,
    /// Eight bytes, big-endian.
    I64,
    /// Eight bytes, IEEE 754, big-endian.
    Double,
    /// UTF-8.
    String,
    /// A type that `zipkinCore.thrift` does not have.
    Other(i32),
}

impl AnnotationType {
    /// The type's number on the wire.
    pub fn to_wire(self) -> i32 {
        match self {
            AnnotationType::Bool => 0,
            AnnotationType::Bytes => 1,
            AnnotationType::I16 => 2,
            AnnotationType::I32 => 3,
            AnnotationType::I64 => 4,
            AnnotationType::Double => 5,
            AnnotationType::String => 6,
            AnnotationType::Other(number) => number,
        }
    }

    /// The type with this number on the wire.
    pub fn from_wire(number: i32) -> Self {
        match number {
            0 => AnnotationType::Bool,
            1 => AnnotationType::Bytes,
            2 => AnnotationType::I16,
            3 => AnnotationType::I32,
            4 => AnnotationType::I64,
            5 => AnnotationType::Double,
            6 => AnnotationType::String,
            other => AnnotationType::Other(other),
        }
    }
}

/// A service and its address.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// IPv4 address, with its first byte as the highest; 0: none.
    pub ipv4: i32,
    /// Port as a signed number (Thrift has no unsigned ones); 0: none.
    pub port: i16,
    /// The name of the service; "": none.
    pub service_name: String,
    /// IPv6 address.
    pub ipv6: Option<[u8; 16]>,
}

/// Of several addresses the last one counts, as in Zipkin, where an IPv4-compatible IPv6 address counts as an IPv4 address.
impl Endpoint {
    fn take_ipv4(&mut self, ipv4: i32) {
        if ipv4 != 0 {
            self.ipv4 = ipv4;
            self.ipv6 = self.ipv6.filter(|ipv6| compatible_ipv4(*ipv6).is_none());
        }
    }

    fn take_ipv6(&mut self, ipv6: [u8; 16]) {
        let before = self.ipv6.replace(ipv6);
        match before.map(|before| (before, compatible_ipv4(before), compatible_ipv4(ipv6))) {
            Some((_, Some(ipv4), _)) => self.ipv4 = ipv4,
            Some((before, None, Some(ipv4))) => (self.ipv4, self.ipv6) = (ipv4, Some(before)),
            Some((_, None, None)) | None => {}
        }
    }
}

/// The IPv4 address in an IPv4-compatible IPv6 address (`::a.b.c.d`); `None` for others and for `::1`.
pub fn compatible_ipv4(ipv6: [u8; 16]) -> Option<i32> {
    match ipv6 {
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1] => None,
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, a, b, c, d] => Some(i32::from_be_bytes([a, b, c, d])),
        _ => None,
    }
}

/// Encodes one span as a TBinary struct.
pub fn encode(span: &Span) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(128 + 64 * (span.annotations.len() + span.binary_annotations.len()));
    encode_into(span, &mut bytes);
    bytes
}

/// Appends one span as a TBinary struct to `bytes`.
pub fn encode_into(span: &Span, bytes: &mut Vec<u8>) {
    write_to(bytes, |output| write_span(output, span));
}

/// Decodes one span. Bytes after its end are ignored, as in Zipkin.
///
/// # Errors
/// If the bytes are not a span, if they are over a limit, or if an id is zero.
pub fn decode(bytes: &[u8], limits: &Limits) -> Result<Span, Error> {
    check_size(bytes, limits)?;
    checked(read_span(&mut input(bytes, limits)?, limits)?)
}

/// Decodes a TBinary list of spans (the body of `POST /api/v1/spans`). A span without ids is refused alone. After a span that
/// breaks the encoding the start of the next one is unknown, so the list ends with [`Error::ListBroken`].
///
/// # Errors
/// If the bytes do not begin a list of structs, or if the list has too many spans.
pub fn decode_list(bytes: &[u8], limits: &Limits) -> Result<Vec<Result<Span, Error>>, Error> {
    let mut input = input(bytes, limits)?;
    let header = input.read_list_begin()?;
    let announced = usize::try_from(header.size).unwrap_or(0);
    if announced > limits.max_entries {
        let limit = limits.max_entries as u64;
        return Err(Error::TooLarge { what: "a list of spans", size: announced as u64, limit });
    }
    if header.element_type != TType::Struct {
        return Err(Error::Malformed("a list of spans holds no structs".to_owned()));
    }
    let mut spans = Vec::new();
    for at in 0..announced {
        match read_span(&mut input, limits) {
            Ok(span) => spans.push(checked(span)),
            Err(cause) => {
                spans.push(Err(Error::ListBroken { at, announced, cause: cause.to_string() }));
                break;
            }
        }
    }
    Ok(spans)
}

/// The number of annotations in one span, binary ones included; `None` if the bytes are not a span that could be decoded.
pub(crate) fn annotation_count(bytes: &[u8], limits: &Limits) -> Option<usize> {
    check_size(bytes, limits).ok()?;
    let mut skim = Skim::new(bytes, limits.max_depth);
    let (mut trace_id, mut id, mut annotations) = (0, 0, 0);
    let walk = skim.fields(|skim, kind, field| {
        match (kind, field) {
            (wire::I64, 1) => trace_id = skim.i64()?,
            (wire::I64, 4) => id = skim.i64()?,
            (wire::LIST, 6 | 8) => annotations += struct_count(skim)?,
            _ => return Some(false),
        }
        Some(true)
    });
    let is_span = walk.is_some() && trace_id != 0 && id != 0;
    is_span.then_some(annotations)
}

fn struct_count(skim: &mut Skim<'_>) -> Option<usize> {
    let list = skim.list()?;
    skim.skip_elements(list)?;
    Some(if list.element == wire::STRUCT { list.count } else { 0 })
}

fn check_size(bytes: &[u8], limits: &Limits) -> Result<(), Error> {
    if bytes.len() > limits.max_span_bytes {
        let (size, limit) = (bytes.len() as u64, limits.max_span_bytes as u64);
        return Err(Error::TooLarge { what: "a span", size, limit });
    }
    Ok(())
}

fn checked(span: Span) -> Result<Span, Error> {
    match span {
        Span { trace_id: 0, .. } => Err(Error::ZeroId("a trace id")),
        Span { id: 0, .. } => Err(Error::ZeroId("an id")),
        span => Ok(span),
    }
}

fn read_span<'a>(input: &mut Input<'a>, limits: &Limits) -> Result<Span, Error> {
    let mut span = Span::default();
    let (mut annotations, mut binary_annotations) = (NonEmpty::default(), NonEmpty::default());
    read_struct(input, |input, field_type, id| {
        match (field_type, id) {
            (TType::I64, 1) => span.trace_id = input.read_i64()?,
            (TType::String, 3) => span.name = read_text(input)?,
            (TType::I64, 4) => span.id = input.read_i64()?,
            (TType::I64, 5) => span.parent_id = Some(input.read_i64()?),
            (TType::List, 6) => annotations.extend(input, "annotations", limits, read_annotation)?,
            (TType::List, 8) => {
                binary_annotations.extend(input, "binary annotations", limits, read_binary)?;
            }
            // Only 1 is true, as in Zipkin: a debug span passes all samplers.
            (TType::Bool, 9) => span.debug = input.read_byte()? == 1,
            (TType::I64, 10) => span.timestamp = Some(input.read_i64()?),
            (TType::I64, 11) => span.duration = Some(input.read_i64()?),
            (TType::I64, 12) => span.trace_id_high = Some(input.read_i64()?),
            (TType::I64, FIELD_SOURCE) => span.source = Some(input.read_i64()?),
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    span.left_out = annotations.left_out + binary_annotations.left_out;
    (span.annotations, span.binary_annotations) = (annotations.kept, binary_annotations.kept);
    Ok(span)
}

/// The elements of a list that are not empty, and the number of empty ones. Empty elements are not held: such a struct is one
/// byte on the wire, and would take over a hundred bytes of memory.
#[derive(Default)]
struct NonEmpty<T> {
    kept: Vec<T>,
    left_out: usize,
}

impl<T> NonEmpty<T> {
    /// Adds the elements of another list: if the field comes twice, its lists are joined, as in Zipkin and in JSON.
    fn extend<'a>(
        &mut self,
        input: &mut Input<'a>,
        what: &'static str,
        limits: &Limits,
        mut element: impl FnMut(&mut Input<'a>) -> Result<Option<T>, Error>,
    ) -> Result<(), Error> {
        let most = limits.max_annotations;
        read_struct_list(input, what, most, |input| {
            let size = self.kept.len() + self.left_out + 1;
            if size > most {
                return Err(Error::TooLarge { what, size: size as u64, limit: most as u64 });
            }
            match element(input)? {
                Some(element) => self.kept.push(element),
                None => self.left_out += 1,
            }
            Ok(())
        })
    }
}

/// Reads an annotation; `None` if it has no time or no value.
fn read_annotation(input: &mut Input<'_>) -> Result<Option<Annotation>, Error> {
    let mut annotation = Annotation::default();
    let mut has_value = false;
    read_struct(input, |input, field_type, id| {
        match (field_type, id) {
            (TType::I64, 1) => annotation.timestamp = input.read_i64()?,
            (TType::String, 2) => {
                annotation.value = read_text(input)?;
                has_value = true;
            }
            (TType::Struct, 3) => annotation.host = Some(read_endpoint(input)?),
            (TType::I64, FIELD_POSITION) => annotation.position = Some(input.read_i64()?),
            (TType::I64, FIELD_SOURCE) => annotation.source = Some(input.read_i64()?),
            (TType::I16, FIELD_NANOS) => annotation.nanos = Some(input.read_i16()?),
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    Ok((has_value && annotation.timestamp != 0).then_some(annotation))
}

/// Reads a binary annotation; `None` if it has no key or no value.
fn read_binary(input: &mut Input<'_>) -> Result<Option<BinaryAnnotation>, Error> {
    let mut annotation = BinaryAnnotation::default();
    let (mut has_key, mut has_value) = (false, false);
    read_struct(input, |input, field_type, id| {
        match (field_type, id) {
            (TType::String, 1) => {
                annotation.key = read_text(input)?;
                has_key = true;
            }
            (TType::String, 2) => {
                annotation.value = input.read_bytes()?;
                has_value = true;
            }
            (TType::I32, 3) => annotation.kind = AnnotationType::from_wire(input.read_i32()?),
            (TType::Struct, 4) => annotation.host = Some(read_endpoint(input)?),
            (TType::I64, FIELD_POSITION) => annotation.position = Some(input.read_i64()?),
            (TType::I64, FIELD_SOURCE) => annotation.source = Some(input.read_i64()?),
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    Ok((has_key && has_value).then_some(annotation))
}

fn read_endpoint(input: &mut Input<'_>) -> Result<Endpoint, Error> {
    let mut endpoint = Endpoint::default();
    read_struct(input, |input, field_type, id| {
        match (field_type, id) {
            (TType::I32, 1) => endpoint.take_ipv4(input.read_i32()?),
            (TType::I16, 2) => endpoint.port = input.read_i16()?,
            (TType::String, 3) => endpoint.service_name = read_text(input)?,
            (TType::String, 4) => match *input.read_bytes()? {
                // An IPv4 address in this field, as Zipkin accepts it.
                [a, b, c, d] => endpoint.take_ipv4(i32::from_be_bytes([a, b, c, d])),
                ref bytes => bytes.try_into().map_or((), |ipv6| endpoint.take_ipv6(ipv6)),
            },
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    Ok(endpoint)
}

fn write_span(output: &mut Output<'_>, span: &Span) -> WriteResult {
    write_i64(output, 1, span.trace_id)?;
    write_bytes(output, 3, span.name.as_bytes())?;
    write_i64(output, 4, span.id)?;
    write_optional_i64(output, 5, span.parent_id)?;
    write_struct_list(output, 6, &span.annotations, write_annotation)?;
    write_struct_list(output, 8, &span.binary_annotations, write_binary)?;
    write_field(output, TType::Bool, 9)?;
    output.write_bool(span.debug)?;
    write_optional_i64(output, 10, span.timestamp)?;
    write_optional_i64(output, 11, span.duration)?;
    write_optional_i64(output, 12, span.trace_id_high)?;
    write_optional_i64(output, FIELD_SOURCE, span.source)?;
    output.write_field_stop()
}

fn write_annotation(output: &mut Output<'_>, annotation: &Annotation) -> WriteResult {
    write_i64(output, 1, annotation.timestamp)?;
    write_bytes(output, 2, annotation.value.as_bytes())?;
    write_host(output, 3, annotation.host.as_ref())?;
    write_optional_i64(output, FIELD_POSITION, annotation.position)?;
    write_optional_i64(output, FIELD_SOURCE, annotation.source)?;
    if let Some(nanos) = annotation.nanos {
        write_field(output, TType::I16, FIELD_NANOS)?;
        output.write_i16(nanos)?;
    }
    output.write_field_stop()
}

fn write_binary(output: &mut Output<'_>, annotation: &BinaryAnnotation) -> WriteResult {
    write_bytes(output, 1, annotation.key.as_bytes())?;
    write_bytes(output, 2, &annotation.value)?;
    write_field(output, TType::I32, 3)?;
    output.write_i32(annotation.kind.to_wire())?;
    write_host(output, 4, annotation.host.as_ref())?;
    write_optional_i64(output, FIELD_POSITION, annotation.position)?;
    write_optional_i64(output, FIELD_SOURCE, annotation.source)?;
    output.write_field_stop()
}

fn write_host(output: &mut Output<'_>, id: i16, host: Option<&Endpoint>) -> WriteResult {
    let Some(endpoint) = host else { return Ok(()) };
    write_field(output, TType::Struct, id)?;
    write_field(output, TType::I32, 1)?;
    output.write_i32(endpoint.ipv4)?;
    write_field(output, TType::I16, 2)?;
    output.write_i16(endpoint.port)?;
    write_bytes(output, 3, endpoint.service_name.as_bytes())?;
    if let Some(ipv6) = &endpoint.ipv6 {
        write_bytes(output, 4, ipv6)?;
    }
    output.write_field_stop()
}
