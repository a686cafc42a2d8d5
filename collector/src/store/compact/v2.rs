//! A v2 span.
//!
//! ```text
//! span        flags:u16 trace_id:u64 id:u64 [parent_id:u64] [trace_id_high:u64] [name:text] [timestamp:signed]
//!             [duration:signed] [local:place] [remote:place] annotations annotation* tags tag*
//! place       flags:u8 [service:text] [ipv4: 4 bytes] [ipv6: 16 bytes] [port:u16]
//! annotation  later:signed value:text
//! tag         key:text value:text
//! ```
//!
//! The kind of the span is in the upper bits of its flags. `later` is the time since the annotation before; for the first
//! annotation, since the span's timestamp, or 0. Names are stored as they came, and put in lower case when they are read.

use super::{Reading, Writing, flags, if_set};
use crate::model::{Kind, SpanId, TraceId};
use crate::v2view::{Place, V2View};

const PARENT: u16 = 1;
const HIGH: u16 = 2;
const NAME: u16 = 4;
const TIMESTAMP: u16 = 8;
const DURATION: u16 = 16;
const LOCAL: u16 = 32;
const REMOTE: u16 = 64;
const DEBUG: u16 = 128;
const SHARED: u16 = 256;
const KIND_SHIFT: u32 = 12;

const SERVICE: u16 = 1;
const IPV4: u16 = 2;
const IPV6: u16 = 4;
const PORT: u16 = 8;

/// Appends a span of a trace.
pub(in crate::store) fn put(trace: TraceId, span: &V2View<'_>, bytes: &mut Vec<u8>) {
    let mut to = Writing(bytes);
    let of_span = flags([
        (PARENT, span.parent.is_some()),
        (HIGH, trace.is_long()),
        (NAME, span.name.is_some()),
        (TIMESTAMP, span.timestamp.is_some()),
        (DURATION, span.duration.is_some()),
        (LOCAL, !span.local.is_empty()),
        (REMOTE, !span.remote.is_empty()),
        (DEBUG, span.debug),
        (SHARED, span.shared),
    ]);
    to.fixed((of_span | kind_number(span.kind) << KIND_SHIFT).to_be_bytes());
    to.fixed(trace.low().to_be_bytes());
    span.id.iter().chain(&span.parent).for_each(|id| to.fixed(id.get().to_be_bytes()));
    if trace.is_long() {
        to.fixed(trace.high().to_be_bytes());
    }
    span.name.iter().for_each(|name| to.text(name.as_bytes()));
    span.timestamp.iter().chain(&span.duration).for_each(|&time| to.signed(time));
    [&span.local, &span.remote].into_iter().for_each(|place| put_place(place, &mut to));
    let mut before = span.timestamp.unwrap_or(0);
    to.number(span.annotations.len());
    for &(time, value) in &span.annotations {
        to.signed(time.wrapping_sub(before));
        before = time;
        to.text(value.as_bytes());
    }
    to.number(span.tags.len());
    for (key, value) in &span.tags {
        to.text(key.as_bytes());
        to.text(value.as_bytes());
    }
}

fn put_place(place: &Place<'_>, to: &mut Writing<'_>) {
    if place.is_empty() {
        return;
    }
    let of_place = flags([
        (SERVICE, place.service.is_some()),
        (IPV4, place.ipv4.is_some()),
        (IPV6, place.ipv6.is_some()),
        (PORT, place.port.is_some()),
    ]);
    to.byte(of_place as u8);
    place.service.iter().for_each(|service| to.text(service.as_bytes()));
    place.ipv4.iter().for_each(|ipv4| to.fixed(ipv4.octets()));
    place.ipv6.iter().for_each(|ipv6| to.fixed(ipv6.octets()));
    place.port.iter().for_each(|port| to.fixed(port.to_be_bytes()));
}

fn kind_number(kind: Option<Kind>) -> u16 {
    match kind {
        None => 0,
        Some(Kind::Client) => 1,
        Some(Kind::Server) => 2,
        Some(Kind::Producer) => 3,
        Some(Kind::Consumer) => 4,
    }
}

/// The kind with a number; the outer `Option` is none if there is no such kind.
fn kind_of(number: u16) -> Option<Option<Kind>> {
    match number {
        0 => Some(None),
        1 => Some(Some(Kind::Client)),
        2 => Some(Some(Kind::Server)),
        3 => Some(Some(Kind::Producer)),
        4 => Some(Some(Kind::Consumer)),
        _ => None,
    }
}

/// Reads a whole span; none if it is not as [`put`] writes it.
pub(in crate::store) fn read(bytes: &[u8]) -> Option<V2View<'_>> {
    let mut from = Reading(bytes);
    let of_span = from.fixed().map(u16::from_be_bytes)?;
    let low = from.i64()? as u64;
    let id = take_id(&mut from)?;
    let parent = if_set(of_span, PARENT, || take_id(&mut from))?;
    let high = if_set(of_span, HIGH, || from.i64())?.unwrap_or(0) as u64;
    let mut span = V2View {
        trace_id: Some(TraceId::new(high, low)?),
        id: Some(id),
        parent,
        kind: kind_of(of_span >> KIND_SHIFT)?,
        debug: of_span & DEBUG != 0,
        shared: of_span & SHARED != 0,
        name: if_set(of_span, NAME, || from.text())?,
        timestamp: if_set(of_span, TIMESTAMP, || from.signed())?,
        duration: if_set(of_span, DURATION, || from.signed())?,
        local: if_set(of_span, LOCAL, || take_place(&mut from))?.unwrap_or_default(),
        remote: if_set(of_span, REMOTE, || take_place(&mut from))?.unwrap_or_default(),
        ..V2View::default()
    };
    let mut time = span.timestamp.unwrap_or(0);
    for _ in 0..from.number()? {
        time = time.wrapping_add(from.signed()?);
        span.annotations.push((time, from.text()?));
    }
    for _ in 0..from.number()? {
        span.tags.push((from.text()?, from.text()?));
    }
    from.end()?;
    Some(span)
}

fn take_id(from: &mut Reading<'_>) -> Option<SpanId> {
    SpanId::new(from.i64()? as u64)
}

fn take_place<'a>(from: &mut Reading<'a>) -> Option<Place<'a>> {
    let of_place = from.byte()?.into();
    Some(Place {
        service: if_set(of_place, SERVICE, || from.text())?,
        ipv4: if_set(of_place, IPV4, || from.fixed::<4>())?.map(Into::into),
        ipv6: if_set(of_place, IPV6, || from.fixed::<16>())?.map(Into::into),
        port: if_set(of_place, PORT, || from.fixed())?.map(u16::from_be_bytes),
    })
}
