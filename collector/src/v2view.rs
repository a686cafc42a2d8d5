//! A v2 JSON span read in place: numbers, and slices of the text it came in.
//!
//! Copying the texts of very many spans would cost too much. A [`V2View`] reads the form that reporters write, in one
//! pass, into memory that it reuses. It is not tolerant: at anything unusual, such as a repeated or unknown member, a
//! number as text or an escaped string, it gives up, and [`v2json`](crate::v2json), which defines the format, reads the
//! span instead.

mod text;

use std::net::{Ipv4Addr, Ipv6Addr};

use blkin_thrift::Limits;

use self::text::Text;
use crate::convert::Texts;
pub use crate::json::{List, entries};
use crate::model::{Annotation, BadId, Endpoint, Kind, Marks, Span, SpanId, TraceId, lower_name};

/// A [`Span`] whose texts stay where they are, as written: not in lower case.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct V2View<'a> {
    /// The id of the trace; there is one when a span was read.
    pub trace_id: Option<TraceId>,
    /// The span that caused this one.
    pub parent: Option<SpanId>,
    /// The span itself; there is one when a span was read.
    pub id: Option<SpanId>,
    /// Which side of what kind of call the span is.
    pub kind: Option<Kind>,
    /// What the span does, as its sender names it.
    pub name: Option<&'a str>,
    /// Start in microseconds since 1970, above zero.
    pub timestamp: Option<i64>,
    /// Microseconds, above zero.
    pub duration: Option<i64>,
    /// The endpoint that recorded this span.
    pub local: Place<'a>,
    /// The endpoint on the other side.
    pub remote: Place<'a>,
    /// The annotations, sorted by time and value, each pair once.
    pub annotations: Vec<(i64, &'a str)>,
    /// The tags, sorted by key, each key once.
    pub tags: Vec<(&'a str, &'a str)>,
    /// Whether samplers must keep this span.
    pub debug: bool,
    /// Whether the span says that the other side recorded a span with the same id.
    pub shared: bool,
}

/// An [`Endpoint`] whose name stays where it is in the text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Place<'a> {
    /// The name of the service, not empty.
    pub service: Option<&'a str>,
    /// Its IPv4 address.
    pub ipv4: Option<Ipv4Addr>,
    /// Its IPv6 address.
    pub ipv6: Option<Ipv6Addr>,
    /// Its port, above zero.
    pub port: Option<u16>,
}

impl<'a> Place<'a> {
    /// The place of an endpoint; empty without an endpoint.
    pub fn of(endpoint: Option<&'a Endpoint>) -> Place<'a> {
        endpoint.map_or_else(Place::default, |endpoint| Place {
            service: endpoint.service_name.as_deref(),
            ipv4: endpoint.ipv4,
            ipv6: endpoint.ipv6,
            port: endpoint.port,
        })
    }

    /// Whether nothing is known.
    pub fn is_empty(&self) -> bool {
        *self == Place::default()
    }

    fn to_endpoint(self) -> Endpoint {
        let Place { service, ipv4, ipv6, port } = self;
        Endpoint { service_name: service.and_then(lower_name), ipv4, ipv6, port }
    }
}

impl<'a> V2View<'a> {
    /// A span as a view of it.
    pub fn of(span: &'a Span) -> V2View<'a> {
        V2View {
            trace_id: Some(span.trace_id),
            parent: span.parent_id,
            id: Some(span.id),
            kind: span.kind,
            name: span.name.as_deref(),
            timestamp: span.timestamp,
            duration: span.duration,
            local: Place::of(span.local_endpoint.as_ref()),
            remote: Place::of(span.remote_endpoint.as_ref()),
            annotations: span.annotations.iter().map(|a| (a.timestamp, a.value.as_str())).collect(),
            tags: span.tags.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect(),
            debug: span.debug,
            shared: span.shared,
        }
    }

    /// The span with texts of its own, as [`v2json`](crate::v2json) reads it; none if no span was read.
    pub fn to_span(&self) -> Option<Span> {
        self.with_texts(Texts::All)
    }

    /// The same, but annotations and tags that are not wanted are left out.
    pub fn with_texts(&self, texts: Texts<'_>) -> Option<Span> {
        let annotations = self.annotations.iter().filter(|(_, value)| texts.has(value));
        let tags = self.tags.iter().filter(|(key, _)| texts.has(key));
        let span = Span {
            trace_id: self.trace_id?,
            parent_id: self.parent,
            id: self.id?,
            kind: self.kind,
            name: self.name.and_then(lower_name),
            timestamp: self.timestamp,
            duration: self.duration,
            local_endpoint: Some(self.local.to_endpoint()),
            remote_endpoint: Some(self.remote.to_endpoint()),
            annotations: annotations.map(|&(timestamp, value)| Annotation::new(timestamp, value)).collect(),
            tags: tags.map(|&(key, value)| (key.to_owned(), value.to_owned())).collect(),
            debug: self.debug,
            shared: self.shared,
            marks: Marks::default(),
        };
        Some(span.normalized())
    }

    /// Reads one entry of a list, and replaces the span that the view held; the vectors keep their memory. If true,
    /// [`v2json`](crate::v2json) would read the same span. If false, the view is unusable, and `v2json` has to read the entry.
    pub fn read(&mut self, json: &'a str, limits: &Limits) -> bool {
        let mut text = Text::new(json);
        self.read_next(&mut text, &mut Locals::default(), limits) && text.end().is_some()
    }

    /// As [`V2View::read`], for the next entry in a text.
    fn read_next(&mut self, text: &mut Text<'a>, locals: &mut Locals<'a>, limits: &Limits) -> bool {
        let (mut annotations, mut tags) =
            (std::mem::take(&mut self.annotations), std::mem::take(&mut self.tags));
        annotations.clear();
        tags.clear();
        *self = V2View { annotations, tags, ..V2View::default() };
        let begin = text.at;
        self.fill(text, locals, limits.max_annotations).is_some() && text.at - begin <= limits.max_span_bytes
    }

    fn fill(&mut self, text: &mut Text<'a>, locals: &mut Locals<'a>, max: usize) -> Option<()> {
        let mut members = Members::default();
        text.object(|text| {
            if text.named("traceId") {
                once(&mut members.trace_id, text.id())
            } else if text.named("id") {
                once(&mut members.id, text.id())
            } else if text.named("parentId") {
                once(&mut members.parent_id, text.id())
            } else if text.named("kind") {
                once(&mut members.kind, text.string().and_then(Kind::from_name))
            } else if text.named("name") {
                once(&mut members.name, text.string())
            } else if text.named("timestamp") {
                once(&mut members.timestamp, text.number())
            } else if text.named("duration") {
                once(&mut members.duration, text.number())
            } else if text.named("localEndpoint") {
                once(&mut members.local, locals.next(text))
            } else if text.named("remoteEndpoint") {
                once(&mut members.remote, place(text))
            } else if text.named("annotations") {
                once(&mut members.annotations, annotations(text, &mut self.annotations, max))
            } else if text.named("tags") {
                once(&mut members.tags, tags(text, &mut self.tags, max))
            } else if text.named("debug") {
                once(&mut members.debug, text.flag())
            } else if text.named("shared") {
                once(&mut members.shared, text.flag())
            } else {
                None
            }
        })?;
        let id = members.id?.parse::<SpanId>().ok()?;
        self.trace_id = Some(members.trace_id?.parse().ok()?);
        self.id = Some(id);
        self.parent = members.parent_id.map_or(Ok(None), |parent| parent_of(parent, id)).ok()?;
        self.kind = members.kind;
        self.debug = members.debug.unwrap_or(false);
        self.shared = members.shared.unwrap_or(false);
        self.name = members.name.filter(|name| !name.is_empty());
        self.timestamp = members.timestamp.filter(|timestamp| *timestamp > 0);
        self.duration = members.duration.filter(|duration| *duration > 0);
        self.local = members.local.unwrap_or_default();
        self.remote = members.remote.unwrap_or_default();
        self.sort().then_some(())
    }

    /// Sorts annotations and tags; false if any comes twice.
    fn sort(&mut self) -> bool {
        self.annotations.sort_unstable();
        self.tags.sort_unstable_by_key(|(key, _)| *key);
        self.annotations.is_sorted_by(|one, next| one < next)
            && self.tags.is_sorted_by(|(one, _), (next, _)| one < next)
    }
}

/// A list of spans, read in place from its beginning, for as long as it has the form that reporters write.
pub struct V2List<'a> {
    text: Text<'a>,
    locals: Locals<'a>,
    read: usize,
    state: State,
}

#[derive(PartialEq, Eq)]
enum State {
    /// Nothing was read.
    Fresh,
    /// There may be further entries.
    GoesOn,
    /// All entries were read, and nothing comes after them.
    Ended,
    /// The next text has another form, or the body is not a list.
    Unusual,
}

impl<'a> V2List<'a> {
    /// The list of a body.
    pub fn new(json: &'a str) -> V2List<'a> {
        V2List { text: Text::new(json), locals: Locals::default(), read: 0, state: State::Fresh }
    }

    /// Reads the next entry into `view`, as [`V2View::read`] does, and returns its text; none at the end, and where the list has
    /// another form.
    pub fn next(&mut self, view: &mut V2View<'a>, limits: &Limits) -> Option<&'a str> {
        if !self.goes_on() {
            return None;
        }
        // Past the blanks.
        self.text.peek();
        let begin = self.text.at;
        if self.read == limits.max_entries || !view.read_next(&mut self.text, &mut self.locals, limits) {
            self.state = State::Unusual;
            return None;
        }
        self.read += 1;
        Some(&self.text.json[begin..self.text.at])
    }

    fn goes_on(&mut self) -> bool {
        let text = &mut self.text;
        let (next, ends) = match self.state {
            State::Fresh => {
                let is_list = text.pass(b'[');
                let is_empty = is_list && text.pass(b']');
                (is_list && !is_empty, is_empty)
            }
            State::GoesOn => {
                let next = text.pass(b',');
                (next, !next && text.pass(b']'))
            }
            State::Ended | State::Unusual => return false,
        };
        self.state = match next {
            true => State::GoesOn,
            false if ends && text.end().is_some() => State::Ended,
            false => State::Unusual,
        };
        next
    }

    /// How many entries were read.
    pub fn read(&self) -> usize {
        self.read
    }

    /// Whether the body is a list and all its entries were read.
    pub fn is_whole(&self) -> bool {
        self.state == State::Ended
    }
}

/// The parent's id; none if it is zeros or the span's own id.
fn parent_of(text: &str, id: SpanId) -> Result<Option<SpanId>, BadId> {
    match text.parse::<SpanId>() {
        Ok(parent) => Ok(Some(parent).filter(|parent| *parent != id)),
        Err(BadId::Zero) => Ok(None),
        Err(cause) => Err(cause),
    }
}

#[derive(Default)]
struct Members<'a> {
    trace_id: Option<&'a str>,
    id: Option<&'a str>,
    parent_id: Option<&'a str>,
    kind: Option<Kind>,
    name: Option<&'a str>,
    timestamp: Option<i64>,
    duration: Option<i64>,
    local: Option<Place<'a>>,
    remote: Option<Place<'a>>,
    annotations: Option<()>,
    tags: Option<()>,
    debug: Option<bool>,
    shared: Option<bool>,
}

/// Stores the value of a member; fails if there is no value, or if the member came before.
#[inline]
fn once<T>(place: &mut Option<T>, value: Option<T>) -> Option<()> {
    place.replace(value?).is_none().then_some(())
}

/// The local endpoint of the span before, as text and as read: nearly always all spans of a list have the same one.
#[derive(Default)]
struct Locals<'a> {
    written: &'a [u8],
    last: Place<'a>,
}

impl<'a> Locals<'a> {
    fn next(&mut self, text: &mut Text<'a>) -> Option<Place<'a>> {
        let rest = &text.json.as_bytes()[text.at..];
        if !self.written.is_empty() && rest.starts_with(self.written) {
            text.at += self.written.len();
            return Some(self.last);
        }
        let begin = text.at;
        self.last = place(text)?;
        self.written = &rest[..text.at - begin];
        Some(self.last)
    }
}

/// Reads an endpoint. As in [`v2json`](crate::v2json), the form of an address decides whether it is IPv4 or IPv6.
fn place<'a>(text: &mut Text<'a>) -> Option<Place<'a>> {
    let (mut service, mut ipv4, mut ipv6, mut port) = (None, None, None, None);
    let mut addresses = Endpoint::default();
    let mut address = |place: &mut Option<()>, text: Option<&str>| {
        text.inspect(|ip| addresses.set_ip_text(ip));
        once(place, text.map(|_| ()))
    };
    text.object(|text| {
        if text.named("serviceName") {
            once(&mut service, text.string())
        } else if text.named("ipv4") {
            address(&mut ipv4, text.string())
        } else if text.named("ipv6") {
            address(&mut ipv6, text.string())
        } else if text.named("port") {
            once(&mut port, text.number().filter(|port| *port <= u16::MAX.into()))
        } else {
            None
        }
    })?;
    Some(Place {
        service: service.filter(|name| !name.is_empty()),
        ipv4: addresses.ipv4,
        ipv6: addresses.ipv6,
        port: port.and_then(|port| u16::try_from(port).ok()).filter(|port| *port > 0),
    })
}

fn annotations<'a>(text: &mut Text<'a>, read: &mut Vec<(i64, &'a str)>, max: usize) -> Option<()> {
    text.list(|text| {
        let (mut timestamp, mut value) = (None, None);
        text.object(|text| {
            if text.named("timestamp") {
                once(&mut timestamp, text.number())
            } else if text.named("value") {
                once(&mut value, text.string())
            } else {
                None
            }
        })?;
        push(read, (timestamp?, value?), max)
    })
}

fn tags<'a>(text: &mut Text<'a>, read: &mut Vec<(&'a str, &'a str)>, max: usize) -> Option<()> {
    text.object(|text| {
        let key = text.unquoted()?;
        text.expect(b':')?;
        push(read, (key, text.string()?), max)
    })
}

fn push<T>(list: &mut Vec<T>, item: T, max: usize) -> Option<()> {
    (list.len() < max).then(|| list.push(item))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An escape in one string must not be overlooked because the other strings are plain.
    #[test]
    fn a_list_with_an_escape_or_a_control_character_is_read_up_to_it() {
        for (odd, read) in [("\\n", 1), ("\\\"", 1), ("\n", 1), ("\u{1}", 1), ("\u{7f}", 2), ("日", 2)] {
            let json = format!(r#"[{{"traceId":"1","id":"2"}},{{"traceId":"1","id":"3","name":"a{odd}b"}}]"#);
            let (mut list, mut view) = (V2List::new(&json), V2View::default());
            while list.next(&mut view, &Limits::default()).is_some() {}
            assert_eq!((list.read(), list.is_whole()), (read, read == 2), "{odd:?}");
        }
    }

    /// The remembered text of an endpoint includes its last brace, so an endpoint that only begins alike is never taken for it.
    #[test]
    fn each_span_keeps_its_own_endpoint_among_similar_ones() {
        let places = [
            r#"{"serviceName":"a","ipv4":"10.0.0.1"}"#,
            r#"{"serviceName":"a","ipv4":"10.0.0.1"}"#,
            r#"{"serviceName":"a","ipv4":"10.0.0.1","port":7}"#,
            r#" {"serviceName":"a","ipv4":"10.0.0.1"}"#,
            r#"{"serviceName":"a"}"#,
            "{}",
            "{}",
            r#"{"serviceName":"a"}"#,
        ];
        let spans: Vec<_> = places
            .iter()
            .map(|place| format!(r#"{{"traceId":"1","id":"2","localEndpoint":{place},"name":"n"}}"#))
            .collect();
        let json = format!("[{}]", spans.join(","));
        let (mut list, mut view, mut read) = (V2List::new(&json), V2View::default(), Vec::new());
        while list.next(&mut view, &Limits::default()).is_some() {
            read.push((view.local, view.name));
        }
        assert!(list.is_whole());
        let alone: Vec<_> = spans
            .iter()
            .map(|span| {
                let mut view = V2View::default();
                assert!(view.read(span, &Limits::default()));
                (view.local, view.name)
            })
            .collect();
        assert_eq!(read, alone);
        let ports: Vec<_> = read.iter().map(|(place, _)| place.port).collect();
        assert_eq!(ports, [None, None, Some(7), None, None, None, None, None]);
        assert!(read.iter().all(|(_, name)| *name == Some("n")));
    }
}
