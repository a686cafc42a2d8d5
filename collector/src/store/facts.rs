//! What the index needs to know of a piece. It is read without making owned spans, except where a span has to be converted.

use blkin_thrift::view::{AnnotationView, EndpointView, SpanView};

use super::terms::{self, Named, lowered};
use crate::convert::{self, Texts};
use crate::model::Span;
use crate::v2view::V2View;

/// The time of a trace in microseconds, as far as some of its pieces show it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Time {
    /// Time of the first span without a parent that has a time; 0 if there is none.
    root: u64,
    /// Least time of any span; `u64::MAX` if none has a time.
    least: u64,
    /// The first and the last moment in the pieces.
    earliest: u64,
    latest: u64,
    /// The longest duration that a piece states itself.
    longest: u64,
}

impl Default for Time {
    fn default() -> Self {
        Time { root: 0, least: u64::MAX, earliest: u64::MAX, latest: 0, longest: 0 }
    }
}

impl Time {
    /// Adds the times of later pieces.
    pub(super) fn add(&mut self, later: &Time) {
        if self.root == 0 {
            self.root = later.root;
        }
        self.least = self.least.min(later.least);
        self.earliest = self.earliest.min(later.earliest);
        self.latest = self.latest.max(later.latest);
        self.longest = self.longest.max(later.longest);
    }

    /// The time of a trace of which `self` covers only some pieces, while the whole trace has this time and no longer span. That
    /// the time is a root's is known only if those pieces show it.
    pub(super) fn within(&self, time_us: u64, longest_us: u64) -> Time {
        if time_us == 0 {
            return Time { longest: u64::MAX, ..Time::default() };
        }
        let is_of_root = self.root != 0 || self.least < time_us;
        Time {
            root: if is_of_root { time_us } else { 0 },
            least: self.least.min(time_us),
            // No moment of the trace is further away than this.
            earliest: time_us.saturating_sub(longest_us),
            latest: time_us.saturating_add(longest_us),
            longest: longest_us,
        }
    }

    /// The time of the trace: that of its root, else the least; 0 if it has none, and then no search finds it.
    pub(super) fn of_trace_us(&self) -> u64 {
        match (self.root, self.least) {
            (0, u64::MAX) => 0,
            (0, least) => least,
            (root, _) => root,
        }
    }

    /// A bound: no span of the trace has a longer duration, however its pieces are merged.
    pub(super) fn longest_possible_us(&self) -> u64 {
        self.longest.max(self.latest.saturating_sub(self.earliest))
    }

    fn see_span(&mut self, is_root: bool, timestamp: i64) {
        if let Some(time) = u64::try_from(timestamp).ok().filter(|&time| time > 0) {
            if is_root && self.root == 0 {
                self.root = time;
            }
            self.least = self.least.min(time);
        }
    }

    /// Adds a moment. After a moment before 1970, any duration is possible.
    fn see_moment(&mut self, moment: i64) {
        match u64::try_from(moment) {
            Ok(0) => {}
            Ok(moment) => {
                self.earliest = self.earliest.min(moment);
                self.latest = self.latest.max(moment);
            }
            Err(_) => self.longest = u64::MAX,
        }
    }

    fn see_own(&mut self, timestamp: Option<i64>, duration: Option<i64>) {
        let (timestamp, duration) = (timestamp.unwrap_or(0), duration.unwrap_or(0).max(0));
        self.longest = self.longest.max(duration as u64);
        self.see_moment(timestamp);
        if timestamp != 0 {
            self.see_moment(timestamp.saturating_add(duration));
        }
    }
}

/// Receives the terms and names of a piece.
pub(super) trait Look {
    /// The piece has a term.
    fn term(&mut self, term: u64);
    /// A service recorded it.
    fn service(&mut self, service: Named<'_>);
    /// A service gave a span this name.
    fn span_name(&mut self, service: Named<'_>, name: Named<'_>);
    /// A service talked to another.
    fn remote_service(&mut self, service: Named<'_>, remote: Named<'_>);
    /// The piece has this tag, and the terms of its key and of both.
    fn tag(&mut self, key: Named<'_>, value: Named<'_>);
}

/// Looks at a piece of a v1 span.
pub(super) fn of_v1(view: &SpanView<'_>, look: &mut impl Look) -> Time {
    let mut time = Time::default();
    time.see_own(view.timestamp, view.duration);
    view.annotations.iter().for_each(|annotation| time.see_moment(annotation.timestamp));
    let own = own_time(view);
    terms_of_v1(view, own.is_some(), look);
    match own {
        Some(own) => time.see_span(view.parent_id.unwrap_or(0) == 0, own),
        None => {
            let spans = convert::view_to_v2(view, Texts::Only(&[]));
            spans.iter().for_each(|span| see_converted(span, &mut time, look));
        }
    }
    time
}

/// The names and the time of a span as it is answered.
fn see_converted(span: &Span, time: &mut Time, look: &mut impl Look) {
    time.see_span(span.parent_id.is_none(), span.timestamp.unwrap_or(0));
    let Some(service) = span.local_service().map(Named::service) else { return };
    look.service(service);
    if let Some(name) = &span.name {
        look.span_name(service, Named::span_name(name));
    }
    if let Some(remote) = span.remote_service() {
        look.remote_service(service, Named::remote_service(remote));
    }
}

/// The one time that the spans of a piece have (0: none), if it is simple to find: the piece has no address and no message, and
/// of a call it has nothing, or both ends of one side.
fn own_time(view: &SpanView<'_>) -> Option<i64> {
    if view.parent_id == Some(view.id)
        || view.binary_annotations.iter().any(|tag| !convert::is_plain_key(tag.key))
    {
        return None;
    }
    let (mut begin, mut ends) = (None, 0);
    for mark in view.annotations.iter().filter(|annotation| !convert::is_plain_value(annotation.value)) {
        mark.host.filter(is_known)?;
        match mark.value {
            "cs" | "sr" if begin.is_none() => begin = Some(mark),
            "cr" | "ss" => ends += 1,
            _ => return None,
        }
    }
    let own = view.timestamp.unwrap_or(0);
    match (begin, ends) {
        (None, 0) => Some(own),
        (Some(begin), 1) if is_answered(view, begin) => {
            Some(if own != 0 && view.duration.unwrap_or(0) != 0 { own } else { begin.timestamp })
        }
        _ => None,
    }
}

fn is_answered(view: &SpanView<'_>, begin: &AnnotationView<'_>) -> bool {
    let end = if begin.value == "cs" { "cr" } else { "ss" };
    view.annotations.iter().any(|annotation| annotation.value == end)
}

/// Whether anything is known of an endpoint.
fn is_known(host: &EndpointView<'_>) -> bool {
    !host.service_name.is_empty() || host.ipv4 != 0 || host.port != 0 || host.ipv6.is_some()
}

fn hosts<'v>(view: &'v SpanView<'_>) -> impl Iterator<Item = &'v EndpointView<'v>> {
    let events = view.annotations.iter().filter_map(|annotation| annotation.host.as_ref());
    events.chain(view.binary_annotations.iter().filter_map(|annotation| annotation.host.as_ref()))
}

/// Whether two texts are equal. Texts of a view are often the same slice; then they need not be compared.
pub(super) fn is_same(one: &str, other: &str) -> bool {
    std::ptr::eq(one, other) || one == other
}

/// Reports all terms, and the names too if they are simple to find: then each plain annotation or tag belongs to a side of the
/// span.
fn terms_of_v1(view: &SpanView<'_>, with_names: bool, look: &mut impl Look) {
    let name = lowered(view.name);
    let name = (!name.is_empty()).then(|| Named::span_name(&name));
    if let Some(name) = name {
        look.term(name.term);
    }
    let mut last = "";
    for host in hosts(view).filter(|host| !host.service_name.is_empty()) {
        if is_same(host.service_name, last) {
            continue;
        }
        last = host.service_name;
        let service = lowered(last);
        let service = Named::service(&service);
        look.term(service.term);
        if with_names {
            look.service(service);
            if let Some(name) = name {
                look.span_name(service, name);
            }
        }
    }
    view.annotations.iter().for_each(|annotation| look.term(terms::present(annotation.value)));
    for tag in &view.binary_annotations {
        if convert::is_plain_key(tag.key) {
            if let Some(value) = convert::shown_value(tag.kind, tag.value) {
                see_tag(tag.key, &value, look);
            }
        } else if let Some(host) = tag.host.filter(|host| !host.service_name.is_empty()) {
            look.term(terms::remote_service(&lowered(host.service_name)));
        }
    }
}

/// Looks at a v2 span.
pub(super) fn of_v2<'a>(view: &V2View<'a>, look: &mut impl Look) -> Time {
    let mut time = Time::default();
    let timestamp = view.timestamp.unwrap_or(0).max(0);
    time.see_own(Some(timestamp), view.duration);
    time.see_span(view.parent.is_none(), timestamp);
    let lowered_one = |name: Option<&'a str>| name.map(lowered).filter(|name| !name.is_empty());
    let (name, service) = (lowered_one(view.name), lowered_one(view.local.service));
    let remote = lowered_one(view.remote.service);
    let name = name.as_deref().map(Named::span_name);
    let remote = remote.as_deref().map(Named::remote_service);
    name.iter().chain(&remote).for_each(|named| look.term(named.term));
    if let Some(service) = service.as_deref().map(Named::service) {
        look.term(service.term);
        look.service(service);
        if let Some(name) = name {
            look.span_name(service, name);
        }
        if let Some(remote) = remote {
            look.remote_service(service, remote);
        }
    }
    view.annotations.iter().for_each(|(_, value)| look.term(terms::present(value)));
    view.tags.iter().for_each(|(key, value)| see_tag(key, value, look));
    time
}

fn see_tag(key: &str, value: &str, look: &mut impl Look) {
    let of_value = terms::tag(key, value);
    look.tag(Named { text: key, term: terms::present(key) }, Named { text: value, term: of_value });
}
