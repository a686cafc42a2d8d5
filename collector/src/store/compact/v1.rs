//! A v1 span, with BlkKin's extension fields.
//!
//! ```text
//! span        flags:u8 trace_id:i64 id:i64 [parent_id:i64] [trace_id_high:i64] name:text
//!             [timestamp:signed] [duration:signed] [source:i64] annotations annotation* tags tag*
//! annotation  mark:u8 [host] later:signed value:text own
//! tag         mark:u8 [host] kind:signed key:text value:text own
//! own         [further:signed] [source:i64] [nanos:signed]
//! host        has_ipv6:u8 ipv4:i32 port:i16 name:text [ipv6: 16 bytes]
//! ```
//!
//! A mark says which extension fields of its own an annotation has. Its upper bits say which host it has: none (0), the host
//! with this number in the span, or a new host (31), which follows. The first thirty hosts have numbers. `later` is the time
//! since the annotation before; for the first annotation, since the span's timestamp, or 0. `further` is the place in the ring
//! in the same way, counted from 0.

use blkin_thrift::AnnotationType;
use blkin_thrift::view::{AnnotationView, BinaryView, EndpointView, SpanView};

use super::super::facts;
use super::{Reading, Writing, flags, if_set};

const PARENT: u16 = 1;
const HIGH: u16 = 2;
const TIMESTAMP: u16 = 4;
const DURATION: u16 = 8;
const SOURCE: u16 = 16;
const DEBUG: u16 = 32;

const OWN_POSITION: u16 = 1;
const OWN_SOURCE: u16 = 2;
const OWN_NANOS: u16 = 4;
const HOST_SHIFT: u32 = 3;
const NO_HOST: u8 = 0;
const NEW_HOST: u8 = 31;
/// How many hosts get numbers.
const MOST_HOSTS: usize = 30;

/// Appends a span.
pub(in crate::store) fn put(span: &SpanView<'_>, bytes: &mut Vec<u8>) {
    let mut to = Writing(bytes);
    let of_span = flags([
        (PARENT, span.parent_id.is_some()),
        (HIGH, span.trace_id_high.is_some()),
        (TIMESTAMP, span.timestamp.is_some()),
        (DURATION, span.duration.is_some()),
        (SOURCE, span.source.is_some()),
        (DEBUG, span.debug),
    ]);
    to.byte(of_span as u8);
    to.fixed(span.trace_id.to_be_bytes());
    to.fixed(span.id.to_be_bytes());
    span.parent_id.iter().chain(&span.trace_id_high).for_each(|id| to.fixed(id.to_be_bytes()));
    to.text(span.name.as_bytes());
    span.timestamp.iter().chain(&span.duration).for_each(|&time| to.signed(time));
    span.source.iter().for_each(|source| to.fixed(source.to_be_bytes()));
    let mut before = Before::of(span.timestamp);
    to.number(span.annotations.len());
    span.annotations.iter().for_each(|annotation| put_annotation(annotation, &mut before, &mut to));
    to.number(span.binary_annotations.len());
    span.binary_annotations.iter().for_each(|tag| put_tag(tag, &mut before, &mut to));
}

/// The values from which an annotation is written as a difference.
struct Before<'a> {
    time: i64,
    position: i64,
    hosts: [EndpointView<'a>; MOST_HOSTS],
    known: usize,
    /// The index of the host of the annotation before, which nearly always is the host of the next one too.
    last: usize,
}

impl<'a> Before<'a> {
    fn of(timestamp: Option<i64>) -> Self {
        let hosts = [EndpointView::default(); MOST_HOSTS];
        Before { time: timestamp.unwrap_or(0), position: 0, hosts, known: 0, last: 0 }
    }

    /// The number that stands for a host in a mark.
    fn number(&mut self, host: Option<&EndpointView<'a>>) -> u8 {
        let Some(host) = host else { return NO_HOST };
        let known = &self.hosts[..self.known];
        if known.get(self.last).is_none_or(|last| !is_same(last, host)) {
            match known.iter().position(|known| is_same(known, host)) {
                Some(at) => self.last = at,
                None => {
                    self.add(*host);
                    return NEW_HOST;
                }
            }
        }
        self.last as u8 + 1
    }

    fn add(&mut self, host: EndpointView<'a>) {
        if let Some(place) = self.hosts.get_mut(self.known) {
            *place = host;
            self.last = self.known;
            self.known += 1;
        }
    }
}

fn is_same(one: &EndpointView<'_>, other: &EndpointView<'_>) -> bool {
    facts::is_same(one.service_name, other.service_name)
        && (one.ipv4, one.port, one.ipv6) == (other.ipv4, other.port, other.ipv6)
}

/// Writes the mark, and the host if it is a new one.
fn put_mark<'a>(host: Option<&EndpointView<'a>>, own: u16, before: &mut Before<'a>, to: &mut Writing<'_>) {
    let number = before.number(host);
    to.byte(number << HOST_SHIFT | own as u8);
    if let Some(host) = host.filter(|_| number == NEW_HOST) {
        to.byte(host.ipv6.is_some().into());
        to.fixed(host.ipv4.to_be_bytes());
        to.fixed(host.port.to_be_bytes());
        to.text(host.service_name.as_bytes());
        host.ipv6.into_iter().for_each(|ipv6| to.fixed(ipv6));
    }
}

fn own_flags(position: Option<i64>, source: Option<i64>, nanos: Option<i16>) -> u16 {
    flags([(OWN_POSITION, position.is_some()), (OWN_SOURCE, source.is_some()), (OWN_NANOS, nanos.is_some())])
}

fn put_own(
    position: Option<i64>,
    source: Option<i64>,
    nanos: Option<i16>,
    before: &mut Before<'_>,
    to: &mut Writing<'_>,
) {
    if let Some(position) = position {
        to.signed(position.wrapping_sub(before.position));
        before.position = position;
    }
    source.iter().for_each(|source| to.fixed(source.to_be_bytes()));
    nanos.iter().for_each(|&nanos| to.signed(nanos.into()));
}

fn put_annotation<'a>(event: &AnnotationView<'a>, before: &mut Before<'a>, to: &mut Writing<'_>) {
    let own = own_flags(event.position, event.source, event.nanos);
    put_mark(event.host.as_ref(), own, before, to);
    to.signed(event.timestamp.wrapping_sub(before.time));
    before.time = event.timestamp;
    to.text(event.value.as_bytes());
    put_own(event.position, event.source, event.nanos, before, to);
}

fn put_tag<'a>(tag: &BinaryView<'a>, before: &mut Before<'a>, to: &mut Writing<'_>) {
    put_mark(tag.host.as_ref(), own_flags(tag.position, tag.source, None), before, to);
    to.signed(tag.kind.to_wire().into());
    to.text(tag.key.as_bytes());
    to.text(tag.value);
    put_own(tag.position, tag.source, None, before, to);
}

/// Reads a whole span; none if it is not as [`put`] writes it.
pub(in crate::store) fn read(bytes: &[u8]) -> Option<SpanView<'_>> {
    let (mut annotations, mut binary_annotations) = (Vec::new(), Vec::new());
    let span =
        read_each(bytes, &mut |event| annotations.push(event), &mut |tag| binary_annotations.push(tag))?;
    Some(SpanView { annotations, binary_annotations, ..span })
}

/// The same, but annotations and tags are shown one by one, and the returned span has none: nothing is allocated.
pub(in crate::store) fn read_each<'a>(
    bytes: &'a [u8],
    event: &mut impl FnMut(AnnotationView<'a>),
    tag: &mut impl FnMut(BinaryView<'a>),
) -> Option<SpanView<'a>> {
    let mut from = Reading(bytes);
    let of_span = u16::from(from.byte()?);
    let span = SpanView {
        debug: of_span & DEBUG != 0,
        trace_id: from.i64()?,
        id: from.i64()?,
        parent_id: if_set(of_span, PARENT, || from.i64())?,
        trace_id_high: if_set(of_span, HIGH, || from.i64())?,
        name: from.text()?,
        timestamp: if_set(of_span, TIMESTAMP, || from.signed())?,
        duration: if_set(of_span, DURATION, || from.signed())?,
        source: if_set(of_span, SOURCE, || from.i64())?,
        ..SpanView::default()
    };
    let mut before = Before::of(span.timestamp);
    for _ in 0..from.number()? {
        event(take_annotation(&mut before, &mut from)?);
    }
    for _ in 0..from.number()? {
        tag(take_tag(&mut before, &mut from)?);
    }
    from.end()?;
    Some(span)
}

fn take_annotation<'a>(before: &mut Before<'a>, from: &mut Reading<'a>) -> Option<AnnotationView<'a>> {
    let mark = from.byte()?;
    let host = take_host(mark, before, from)?;
    let timestamp = before.time.wrapping_add(from.signed()?);
    before.time = timestamp;
    let value = from.text()?;
    let (position, source, nanos) = take_own(mark, before, from)?;
    Some(AnnotationView { timestamp, value, host, position, source, nanos })
}

fn take_tag<'a>(before: &mut Before<'a>, from: &mut Reading<'a>) -> Option<BinaryView<'a>> {
    let mark = from.byte()?;
    let host = take_host(mark, before, from)?;
    let kind = AnnotationType::from_wire(i32::try_from(from.signed()?).ok()?);
    let (key, value) = (from.text()?, from.bytes()?);
    let (position, source, _) = take_own(mark, before, from)?;
    Some(BinaryView { key, value, kind, host, position, source })
}

/// The host to which a mark refers; the outer `Option` is none if there is no such host.
fn take_host<'a>(
    mark: u8,
    before: &mut Before<'a>,
    from: &mut Reading<'a>,
) -> Option<Option<EndpointView<'a>>> {
    match mark >> HOST_SHIFT {
        NO_HOST => Some(None),
        NEW_HOST => {
            let has_ipv6 = from.byte()?;
            let host = EndpointView {
                ipv4: from.fixed().map(i32::from_be_bytes)?,
                port: from.fixed().map(i16::from_be_bytes)?,
                service_name: from.text()?,
                ipv6: if_set(has_ipv6.into(), 1, || from.fixed())?,
            };
            before.add(host);
            Some(Some(host))
        }
        number => before.hosts[..before.known].get(usize::from(number) - 1).map(|host| Some(*host)),
    }
}

type Own = (Option<i64>, Option<i64>, Option<i16>);

fn take_own(mark: u8, before: &mut Before<'_>, from: &mut Reading<'_>) -> Option<Own> {
    let own = mark.into();
    let position = if_set(own, OWN_POSITION, || Some(before.position.wrapping_add(from.signed()?)))?;
    before.position = position.unwrap_or(before.position);
    let source = if_set(own, OWN_SOURCE, || from.i64())?;
    let nanos = if_set(own, OWN_NANOS, || i16::try_from(from.signed()?).ok())?;
    Some((position, source, nanos))
}
