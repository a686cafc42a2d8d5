//! Start and duration of each side.

use crate::model::{Endpoint, Kind, Marks, Span};

use super::core::{Core, Mark};
use super::read::V1;
use super::sides::{Side, Sides};

/// Sets the times of the sides of a call.
pub(super) fn time_calls(source: &V1<'_>, core: &Core<'_>, sides: &mut Sides<'_>) {
    match (core.client_send, core.client_receive, core.server_receive, core.server_send) {
        (Some(cs), cr, Some(sr), ss) => time_both_sides(source, (cs, cr), (sr, ss), sides),
        (Some(cs), Some(cr), None, _) => time_one(source, cs, Some(cr), sides),
        (None, _, Some(sr), Some(ss)) => time_one(source, sr, Some(ss), sides),
        _ => time_incomplete(source, core, sides),
    }
}

/// The span's own time is that of the client. The server's time is shorter, and follows from its annotations only.
fn time_both_sides(
    source: &V1<'_>,
    (cs, cr): (Mark<'_>, Option<Mark<'_>>),
    (sr, ss): (Mark<'_>, Option<Mark<'_>>),
    sides: &mut Sides<'_>,
) {
    time_one(source, cs, cr, sides);
    let (_, server) = two_sides(sides, cs.endpoint, sr.endpoint, Kind::Client, Kind::Server);
    let server = sides.span(server);
    server.shared = true;
    server.marks = marks_of(sr, ss);
    server.timestamp = Some(sr.timestamp);
    if let Some(ss) = ss {
        server.duration = Some(ss.timestamp.wrapping_sub(sr.timestamp));
    }
}

/// The sides of two endpoints. A service that calls itself gets a second side; the kind of its first side is set again, because
/// the annotations of the second have overwritten it.
fn two_sides(
    sides: &mut Sides<'_>,
    near: &Endpoint,
    far: &Endpoint,
    near_kind: Kind,
    far_kind: Kind,
) -> (Side, Side) {
    let near_side = sides.of(Some(near));
    if near.service_name != far.service_name {
        return (near_side, sides.of(Some(far)));
    }
    sides.set_kind(near_side, near_kind);
    let far_side = sides.fork(far);
    sides.set_kind(far_side, far_kind);
    (near_side, far_side)
}

/// Sets the time of the side on which `begin` happened: the span's own time if it is complete, else from `begin` to `end`.
fn time_one(source: &V1<'_>, begin: Mark<'_>, end: Option<Mark<'_>>, sides: &mut Sides<'_>) {
    let side = sides.of(Some(begin.endpoint));
    let span = sides.span(side);
    span.marks = marks_of(begin, end);
    if source.timestamp != 0 && source.duration != 0 {
        span.timestamp = Some(source.timestamp);
        span.duration = Some(source.duration);
        return;
    }
    span.timestamp = Some(begin.timestamp);
    if let Some(end) = end {
        span.duration = Some(end.timestamp.wrapping_sub(begin.timestamp));
    }
}

fn marks_of(begin: Mark<'_>, end: Option<Mark<'_>>) -> Marks {
    Marks { begin: Some(begin.moment()), end: end.map(|end| end.moment()) }
}

/// A call with a missing start or end. A known start becomes the side's time; an end becomes an annotation.
fn time_incomplete(source: &V1<'_>, core: &Core<'_>, sides: &mut Sides<'_>) {
    for span in sides.iter_mut() {
        match span.kind {
            Some(Kind::Client) => start_and_keep(span, core.client_send, core.client_receive),
            Some(Kind::Server) => start_and_keep(span, core.server_receive, core.server_send),
            _ => {}
        }
    }
    if source.timestamp != 0 {
        let first = sides.span(Sides::FIRST);
        first.timestamp = Some(source.timestamp);
        first.duration = Some(source.duration);
    }
}

fn start_and_keep(span: &mut Span, begin: Option<Mark<'_>>, end: Option<Mark<'_>>) {
    if let Some(begin) = begin {
        span.timestamp = Some(begin.timestamp);
        span.marks = marks_of(begin, None);
    }
    if let Some(end) = end {
        span.annotations.push(end.annotation());
    }
}

/// Marks a server's side as shared. v1 has no flag for a server that shares its client's span. By convention such a server does
/// not report the span's time, or leaves out the duration although it knows it.
pub(super) fn mark_shared(source: &V1<'_>, core: &Core<'_>, sides: &mut Sides<'_>) {
    let (None, Some(sr)) = (core.client_send, core.server_receive) else { return };
    if source.timestamp == 0 || (core.server_send.is_some() && source.duration == 0) {
        let side = sides.of(Some(sr.endpoint));
        sides.span(side).shared = true;
    }
}

/// Sets the times of the sides of a message.
pub(super) fn time_messages(source: &V1<'_>, core: &Core<'_>, sides: &mut Sides<'_>) {
    match (core.message_send, core.message_receive) {
        (Some(ms), Some(mr)) => time_both_message_sides(core, ms, mr, sides),
        (Some(ms), None) => time_one(source, ms, core.wire_send, sides),
        (None, Some(mr)) => match core.wire_receive {
            Some(wr) => time_one(source, wr, Some(mr), sides),
            None => time_one(source, mr, None, sides),
        },
        (None, None) => {
            for wire in [core.wire_send, core.wire_receive].into_iter().flatten() {
                let side = sides.of(Some(wire.endpoint));
                sides.annotate(side, wire.annotation());
            }
        }
    }
}

fn time_both_message_sides(core: &Core<'_>, ms: Mark<'_>, mr: Mark<'_>, sides: &mut Sides<'_>) {
    let (producer, consumer) = two_sides(sides, ms.endpoint, mr.endpoint, Kind::Producer, Kind::Consumer);
    let consumer = sides.span(consumer);
    consumer.shared = true;
    consumer.timestamp = Some(core.wire_receive.map_or(mr.timestamp, |wr| wr.timestamp));
    consumer.marks = core.wire_receive.map_or(marks_of(mr, None), |wr| marks_of(wr, Some(mr)));
    if let Some(wr) = core.wire_receive {
        consumer.duration = Some(mr.timestamp.wrapping_sub(wr.timestamp));
    }
    let producer = sides.span(producer);
    producer.timestamp = Some(ms.timestamp);
    producer.marks = marks_of(ms, core.wire_send);
    producer.duration = core.wire_send.map(|ws| ws.timestamp.wrapping_sub(ms.timestamp));
}
