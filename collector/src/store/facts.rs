//! What the index needs to know of a piece, read from it without making owned spans of it where that can be told.

use blkin_thrift::Span as V1Span;
use blkin_thrift::view::{AnnotationView, EndpointView, SpanView};

use super::terms::{self, lowered};
use crate::convert;
use crate::model::Span;
use crate::v2view::V2View;

/// When a trace was, as far as some of its pieces tell. Microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Time {
    /// Time of the first span without parent that has a time; 0 without one.
    root: u64,
    /// Least time of any span; `u64::MAX` without one.
    least: u64,
    /// The first and the last moment that anything tells.
    earliest: u64,
    latest: u64,
    /// The longest duration that a piece gives of itself.
    longest: u64,
}

impl Default for Time {
    fn default() -> Self {
        Time { root: 0, least: u64::MAX, earliest: u64::MAX, latest: 0, longest: 0 }
    }
}

impl Time {
    /// Takes in what later pieces tell.
    pub(super) fn add(&mut self, later: &Time) {
        if self.root == 0 {
            self.root = later.root;
        }
        self.least = self.least.min(later.least);
        self.earliest = self.earliest.min(later.earliest);
        self.latest = self.latest.max(later.latest);
        self.longest = self.longest.max(later.longest);
    }

    /// The time of the trace: that of its root, else the least; 0 if it has none and no search finds it.
    pub(super) fn of_trace_us(&self) -> u64 {
        match (self.root, self.least) {
            (0, u64::MAX) => 0,
            (0, least) => least,
            (root, _) => root,
        }
    }

    /// No span of the trace has a longer duration, however its pieces are merged.
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

    /// A moment; with one before 1970 nothing is known of durations.
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

/// Who is told what a piece has.
pub(super) trait Look {
    /// It has a term.
    fn term(&mut self, term: u64);
    /// A service recorded it.
    fn service(&mut self, service: &str);
    /// A service gave a span this name.
    fn span_name(&mut self, service: &str, name: &str);
    /// A service talked to another.
    fn remote_service(&mut self, service: &str, remote: &str);
    /// It has this tag.
    fn tag(&mut self, key: &str, value: &str);
}

/// Looks at a piece of a v1 span. `owned` makes the span of the view, should the view not tell.
pub(super) fn of_v1(view: &SpanView<'_>, owned: impl FnOnce() -> V1Span, look: &mut impl Look) -> Time {
    let mut time = Time::default();
    time.see_own(view.timestamp, view.duration);
    view.annotations.iter().for_each(|annotation| time.see_moment(annotation.timestamp));
    terms_of_v1(view, look);
    match own_time(view) {
        Some(own) => {
            time.see_span(view.parent_id.unwrap_or(0) == 0, own);
            names_of_v1(view, look);
        }
        None => convert::v1_to_v2(&owned()).iter().for_each(|span| see_converted(span, &mut time, look)),
    }
    time
}

/// The names and the time of a span as it is answered.
fn see_converted(span: &Span, time: &mut Time, look: &mut impl Look) {
    time.see_span(span.parent_id.is_none(), span.timestamp.unwrap_or(0));
    let Some(service) = span.local_service() else { return };
    look.service(service);
    if let Some(name) = &span.name {
        look.span_name(service, name);
    }
    if let Some(remote) = span.remote_service() {
        look.remote_service(service, remote);
    }
}

/// The one time that the spans of a piece have (0: none), if it is simple to tell: no address, no message, and of a call
/// nothing or both ends of one side.
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

/// The services of plain annotations and tags, each of which has a side of the span.
fn names_of_v1(view: &SpanView<'_>, look: &mut impl Look) {
    let name = lowered(view.name);
    let mut last = "";
    for host in hosts(view).filter(|host| !host.service_name.is_empty()) {
        if host.service_name == last {
            continue;
        }
        last = host.service_name;
        let service = lowered(last);
        look.service(&service);
        if !name.is_empty() {
            look.span_name(&service, &name);
        }
    }
}

fn terms_of_v1(view: &SpanView<'_>, look: &mut impl Look) {
    if !view.name.is_empty() {
        look.term(terms::span_name(&lowered(view.name)));
    }
    let mut last = "";
    for host in hosts(view).filter(|host| !host.service_name.is_empty()) {
        if host.service_name != last {
            last = host.service_name;
            look.term(terms::service(&lowered(last)));
        }
    }
    view.annotations.iter().for_each(|annotation| look.term(terms::present(annotation.value)));
    for tag in &view.binary_annotations {
        if convert::is_plain_key(tag.key) {
            if let Some(value) = convert::shown_value(tag.kind, tag.value) {
                look.term(terms::present(tag.key));
                look.term(terms::tag(tag.key, &value));
                look.tag(tag.key, &value);
            }
        } else if let Some(host) = tag.host.filter(|host| !host.service_name.is_empty()) {
            look.term(terms::remote_service(&lowered(host.service_name)));
        }
    }
}

/// Looks at a v2 span.
pub(super) fn of_v2(view: &V2View<'_>, look: &mut impl Look) -> Time {
    let mut time = Time::default();
    let timestamp = view.timestamp.unwrap_or(0).max(0);
    time.see_own(Some(timestamp), view.duration);
    time.see_span(!view.parent, timestamp);
    let name = view.name.map(lowered).filter(|name| !name.is_empty());
    if let Some(name) = &name {
        look.term(terms::span_name(name));
    }
    let service = view.service.map(lowered).filter(|service| !service.is_empty());
    let remote = view.remote_service.map(lowered).filter(|remote| !remote.is_empty());
    if let Some(remote) = &remote {
        look.term(terms::remote_service(remote));
    }
    if let Some(service) = &service {
        look.term(terms::service(service));
        look.service(service);
        if let Some(name) = &name {
            look.span_name(service, name);
        }
        if let Some(remote) = &remote {
            look.remote_service(service, remote);
        }
    }
    view.annotations.iter().for_each(|(_, value)| look.term(terms::present(value)));
    for (key, value) in &view.tags {
        look.term(terms::present(key));
        look.term(terms::tag(key, value));
        look.tag(key, value);
    }
    time
}
