//! A span read in place: numbers, and slices of the bytes in which it arrived.
//!
//! A receiver of very many spans needs no copies of their texts. A [`SpanView`] reads spans in their plain form in one pass,
//! into memory that it keeps. It refuses everything unusual; then [`span::decode`](crate::span::decode), which defines the
//! format, has to read the span.
//!
//! The plain form is that of every generated writer: fields in the order of their ids, each at most once. The reader
//! therefore only checks whether the next field is the one it expects. A field that is missing or unreadable is not passed.
//! If it was unreadable or unexpected, the end of the struct is then not found where it must be, and the span is refused.

use crate::skim::wire;
use crate::span::{FIELD_NANOS, FIELD_POSITION, FIELD_SOURCE};
use crate::{Annotation, AnnotationType, BinaryAnnotation, Endpoint, Limits, Span};

/// A [`Span`] whose texts are borrowed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SpanView<'a> {
    /// The low 64 bits of the trace id.
    pub trace_id: i64,
    /// The high 64 bits of the trace id.
    pub trace_id_high: Option<i64>,
    /// The name of the span.
    pub name: &'a str,
    /// The id of the span.
    pub id: i64,
    /// The id of the span that caused this one.
    pub parent_id: Option<i64>,
    /// The events, with their times.
    pub annotations: Vec<AnnotationView<'a>>,
    /// The keys with their values, which have no time.
    pub binary_annotations: Vec<BinaryView<'a>>,
    /// Whether samplers must keep this span.
    pub debug: bool,
    /// Start in microseconds since 1970.
    pub timestamp: Option<i64>,
    /// Duration in microseconds.
    pub duration: Option<i64>,
    /// Extension: the ring segment that the annotations came from.
    pub source: Option<i64>,
}

/// An [`Annotation`] whose texts are borrowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AnnotationView<'a> {
    /// Microseconds since 1970, not 0.
    pub timestamp: i64,
    /// The text of the event.
    pub value: &'a str,
    /// The endpoint at which it happened.
    pub host: Option<EndpointView<'a>>,
    /// Extension: the place in the ring.
    pub position: Option<i64>,
    /// Extension: the ring segment, if it is not that of the span.
    pub source: Option<i64>,
    /// Extension: 0 to 999 nanoseconds below the microsecond.
    pub nanos: Option<i16>,
}

/// A [`BinaryAnnotation`] whose texts are borrowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BinaryView<'a> {
    /// The key.
    pub key: &'a str,
    /// The value, encoded according to `kind`.
    pub value: &'a [u8],
    /// The type of the value.
    pub kind: AnnotationType,
    /// The endpoint that wrote it; for the keys `ca`, `sa` and `ma` the address of another service.
    pub host: Option<EndpointView<'a>>,
    /// Extension: the place in the ring.
    pub position: Option<i64>,
    /// Extension: the ring segment, if it is not that of the span.
    pub source: Option<i64>,
}

/// An [`Endpoint`] whose name is borrowed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EndpointView<'a> {
    /// IPv4 address, with its first byte as the highest; 0: none.
    pub ipv4: i32,
    /// Port as a signed number (Thrift has no unsigned ones); 0: none.
    pub port: i16,
    /// The name of the service; "": none.
    pub service_name: &'a str,
    /// IPv6 address.
    pub ipv6: Option<[u8; 16]>,
}

impl<'a> SpanView<'a> {
    /// Reads one span, replacing the view's content (the vectors keep their memory). True: the view equals the result of
    /// [`span::decode`](crate::span::decode) for `bytes`. False: the bytes are not a span in plain form, and must be read by
    /// `span::decode`; the view's content is then undefined.
    pub fn read(&mut self, bytes: &'a [u8], limits: &Limits) -> bool {
        let (mut annotations, mut binary_annotations) =
            (std::mem::take(&mut self.annotations), std::mem::take(&mut self.binary_annotations));
        annotations.clear();
        binary_annotations.clear();
        *self = SpanView { annotations, binary_annotations, ..SpanView::default() };
        bytes.len() <= limits.max_span_bytes
            && limits.max_depth >= PLAIN_DEPTH
            && self.fill(bytes, limits.max_annotations).is_some()
    }

    fn fill(&mut self, bytes: &'a [u8], max_annotations: usize) -> Option<()> {
        let mut fields = Fields { rest: bytes };
        let mut hosts = Hosts::default();
        self.trace_id = fields.i64(1).filter(|id| *id != 0)?;
        self.name = fields.text(3).unwrap_or_default();
        self.id = fields.i64(4).filter(|id| *id != 0)?;
        self.parent_id = fields.i64(5);
        for _ in 0..fields.list(6, max_annotations) {
            self.annotations.push(annotation(&mut fields, &mut hosts)?);
        }
        for _ in 0..fields.list(8, max_annotations) {
            self.binary_annotations.push(binary(&mut fields, &mut hosts)?);
        }
        self.debug = fields.value(wire::BOOL, 9) == Some([1]);
        self.timestamp = fields.i64(10);
        self.duration = fields.i64(11);
        self.trace_id_high = fields.i64(12);
        self.source = fields.i64(FIELD_SOURCE);
        fields.end()?;
        Some(())
    }
}

impl<'a> SpanView<'a> {
    /// A view of a span.
    pub fn of(span: &'a Span) -> SpanView<'a> {
        SpanView {
            trace_id: span.trace_id,
            trace_id_high: span.trace_id_high,
            name: &span.name,
            id: span.id,
            parent_id: span.parent_id,
            annotations: span.annotations.iter().map(AnnotationView::of).collect(),
            binary_annotations: span.binary_annotations.iter().map(BinaryView::of).collect(),
            debug: span.debug,
            timestamp: span.timestamp,
            duration: span.duration,
            source: span.source,
        }
    }

    /// The same span, with owned copies of the texts.
    pub fn to_span(&self) -> Span {
        Span {
            trace_id: self.trace_id,
            trace_id_high: self.trace_id_high,
            name: self.name.to_owned(),
            id: self.id,
            parent_id: self.parent_id,
            annotations: self.annotations.iter().copied().map(AnnotationView::to_annotation).collect(),
            binary_annotations: self.binary_annotations.iter().copied().map(BinaryView::to_binary).collect(),
            debug: self.debug,
            timestamp: self.timestamp,
            duration: self.duration,
            source: self.source,
            left_out: 0,
        }
    }
}

impl<'a> AnnotationView<'a> {
    fn of(annotation: &'a Annotation) -> Self {
        let Annotation { timestamp, value, host, position, source, nanos } = annotation;
        let (timestamp, host) = (*timestamp, host.as_ref().map(EndpointView::of));
        AnnotationView { timestamp, value, host, position: *position, source: *source, nanos: *nanos }
    }

    fn to_annotation(self) -> Annotation {
        let AnnotationView { timestamp, value, host, position, source, nanos } = self;
        let host = host.map(EndpointView::to_endpoint);
        Annotation { timestamp, value: value.to_owned(), host, position, source, nanos }
    }
}

impl<'a> BinaryView<'a> {
    fn of(annotation: &'a BinaryAnnotation) -> Self {
        let BinaryAnnotation { key, value, kind, host, position, source } = annotation;
        let (kind, host) = (*kind, host.as_ref().map(EndpointView::of));
        BinaryView { key, value, kind, host, position: *position, source: *source }
    }

    fn to_binary(self) -> BinaryAnnotation {
        let BinaryView { key, value, kind, host, position, source } = self;
        let (key, value, host) = (key.to_owned(), value.to_vec(), host.map(EndpointView::to_endpoint));
        BinaryAnnotation { key, value, kind, host, position, source }
    }
}

impl<'a> EndpointView<'a> {
    /// A view of an endpoint.
    pub fn of(endpoint: &'a Endpoint) -> EndpointView<'a> {
        let Endpoint { ipv4, port, service_name, ipv6 } = endpoint;
        EndpointView { ipv4: *ipv4, port: *port, service_name, ipv6: *ipv6 }
    }

    fn to_endpoint(self) -> Endpoint {
        let EndpointView { ipv4, port, service_name, ipv6 } = self;
        Endpoint { ipv4, port, service_name: service_name.to_owned(), ipv6 }
    }
}

/// The nesting depth of structs in a span: endpoints are in annotations, and these in the span.
const PLAIN_DEPTH: usize = 3;

/// Reads an annotation with a time and a value. The decoder leaves out annotations without, so others are not plain.
#[inline]
fn annotation<'a>(fields: &mut Fields<'a>, hosts: &mut Hosts<'a>) -> Option<AnnotationView<'a>> {
    let timestamp = fields.i64(1).filter(|timestamp| *timestamp != 0)?;
    let value = fields.text(2)?;
    let host = hosts.next(fields, 3);
    let (position, source) = (fields.i64(FIELD_POSITION), fields.i64(FIELD_SOURCE));
    let nanos = fields.value(wire::I16, FIELD_NANOS).map(i16::from_be_bytes);
    fields.end()?;
    Some(AnnotationView { timestamp, value, host, position, source, nanos })
}

/// Reads a binary annotation with a key, a value and a type. The decoder leaves out those without key or value, so these are
/// not plain.
#[inline]
fn binary<'a>(fields: &mut Fields<'a>, hosts: &mut Hosts<'a>) -> Option<BinaryView<'a>> {
    let key = fields.text(1)?;
    let value = fields.string(2)?;
    let kind = AnnotationType::from_wire(fields.i32(3)?);
    let host = hosts.next(fields, 4);
    let (position, source) = (fields.i64(FIELD_POSITION), fields.i64(FIELD_SOURCE));
    fields.end()?;
    Some(BinaryView { key, value, kind, host, position, source })
}

fn endpoint<'a>(fields: &mut Fields<'a>) -> Option<EndpointView<'a>> {
    let endpoint = EndpointView {
        ipv4: fields.i32(1).unwrap_or_default(),
        port: fields.value(wire::I16, 2).map_or(0, i16::from_be_bytes),
        service_name: fields.text(3).unwrap_or_default(),
        ipv6: fields.string_if(4, |ip| ip.try_into().ok()),
    };
    fields.end()?;
    Some(endpoint)
}

/// Remembers the last endpoint that was read. The annotations of a span nearly always have the same endpoint in the same
/// encoding, which is then not read again.
#[derive(Default)]
struct Hosts<'a> {
    encoded: &'a [u8],
    last: EndpointView<'a>,
}

impl<'a> Hosts<'a> {
    #[inline]
    fn next(&mut self, fields: &mut Fields<'a>, id: i16) -> Option<EndpointView<'a>> {
        let mut inner = Fields { rest: fields.header(wire::STRUCT, id)? };
        match inner.rest.strip_prefix(self.encoded) {
            Some(rest) if !self.encoded.is_empty() => inner.rest = rest,
            _ => {
                let start = inner.rest;
                self.last = endpoint(&mut inner)?;
                self.encoded = &start[..start.len() - inner.rest.len()];
            }
        }
        *fields = inner;
        Some(self.last)
    }
}

/// The bytes from the next field of a struct on. Each method reads one field, if that is the next one.
struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    /// The bytes after the header of this field, if it is the next field.
    #[inline]
    fn header(&self, kind: u8, id: i16) -> Option<&'a [u8]> {
        match self.rest {
            [next, high, low, rest @ ..] if *next == kind && i16::from_be_bytes([*high, *low]) == id => {
                Some(rest)
            }
            _ => None,
        }
    }

    #[inline]
    fn value<const N: usize>(&mut self, kind: u8, id: i16) -> Option<[u8; N]> {
        let (value, rest) = self.header(kind, id)?.split_first_chunk::<N>()?;
        self.rest = rest;
        Some(*value)
    }

    #[inline]
    fn i64(&mut self, id: i16) -> Option<i64> {
        self.value(wire::I64, id).map(i64::from_be_bytes)
    }

    #[inline]
    fn i32(&mut self, id: i16) -> Option<i32> {
        self.value(wire::I32, id).map(i32::from_be_bytes)
    }

    /// Reads a string field and converts it by `read`.
    #[inline]
    fn string_if<T>(&mut self, id: i16, read: impl FnOnce(&'a [u8]) -> Option<T>) -> Option<T> {
        let (length, rest) = self.header(wire::STRING, id)?.split_first_chunk()?;
        let length = usize::try_from(i32::from_be_bytes(*length)).ok()?;
        let (string, rest) = rest.split_at_checked(length)?;
        let value = read(string)?;
        self.rest = rest;
        Some(value)
    }

    #[inline]
    fn string(&mut self, id: i16) -> Option<&'a [u8]> {
        self.string_if(id, Some)
    }

    #[inline]
    fn text(&mut self, id: i16) -> Option<&'a str> {
        self.string_if(id, |string| std::str::from_utf8(string).ok())
    }

    /// Reads the header of a list of structs, and returns the number of its elements, which follow. 0 if that is not the next
    /// field.
    #[inline]
    fn list(&mut self, id: i16, max: usize) -> usize {
        self.list_header(id, max).unwrap_or(0)
    }

    #[inline]
    fn list_header(&mut self, id: i16, max: usize) -> Option<usize> {
        let (list, rest) = self.header(wire::LIST, id)?.split_first_chunk::<5>()?;
        let [wire::STRUCT, count @ ..] = *list else { return None };
        let count = usize::try_from(i32::from_be_bytes(count)).ok().filter(|count| *count <= max)?;
        self.rest = rest;
        Some(count)
    }

    #[inline]
    fn end(&mut self) -> Option<()> {
        let [wire::STOP, rest @ ..] = self.rest else { return None };
        self.rest = rest;
        Some(())
    }
}
