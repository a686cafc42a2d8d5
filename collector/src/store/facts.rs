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

#[cfg(test)]
mod tests {
    use std::collections::{BTreeSet, HashSet};

    use blkin_thrift::{Annotation, AnnotationType, BinaryAnnotation, Endpoint, Span as V1Span};
    use proptest::collection::vec;
    use proptest::option;
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::*;

    /// Everything that is reported of a piece.
    #[derive(Debug, Default)]
    struct Reported {
        terms: HashSet<u64>,
        /// Each with what it is, and whose.
        names: BTreeSet<(&'static str, String, String)>,
    }

    impl Reported {
        fn name(&mut self, what: &'static str, of: &str, name: &str) {
            self.names.insert((what, of.to_owned(), name.to_owned()));
        }
    }

    impl Look for Reported {
        fn term(&mut self, term: u64) {
            self.terms.insert(term);
        }
        fn service(&mut self, service: Named<'_>) {
            self.name("service", "", service.text);
        }
        fn span_name(&mut self, service: Named<'_>, name: Named<'_>) {
            self.name("span", service.text, name.text);
        }
        fn remote_service(&mut self, service: Named<'_>, remote: Named<'_>) {
            self.name("remote", service.text, remote.text);
        }
        fn tag(&mut self, key: Named<'_>, value: Named<'_>) {
            self.terms.extend([key.term, value.term]);
        }
    }

    /// What must be reported of a piece that is answered as these spans.
    fn expected_of(spans: &[Span]) -> Reported {
        let mut expected = Reported::default();
        for span in spans {
            let (name, remote) = (span.name.as_deref(), span.remote_service());
            expected.terms.extend(name.map(terms::span_name));
            expected.terms.extend(remote.map(terms::remote_service));
            expected
                .terms
                .extend(span.annotations.iter().map(|annotation| terms::present(&annotation.value)));
            for (key, value) in span.tags.iter() {
                expected.terms.extend([terms::present(key), terms::tag(key, value)]);
            }
            let Some(service) = span.local_service() else { continue };
            expected.terms.insert(terms::service(service));
            expected.name("service", "", service);
            name.iter().for_each(|name| expected.name("span", service, name));
            remote.iter().for_each(|remote| expected.name("remote", service, remote));
        }
        expected
    }

    /// The time of the first root that has one, else the least time; 0 without any.
    fn time_of(spans: &[Span]) -> u64 {
        let timed = || spans.iter().filter_map(|span| Some((span, span.timestamp.filter(|time| *time > 0)?)));
        let root = timed().find(|(span, _)| span.parent_id.is_none()).map(|(_, time)| time);
        root.or(timed().map(|(_, time)| time).min()).unwrap_or(0) as u64
    }

    fn host() -> impl Strategy<Value = Option<Endpoint>> {
        let parts =
            (select(vec!["", "", "a", "B"]), 0..2_i32, 0..2_i16, option::weighted(0.1, Just([1; 16])));
        option::weighted(
            0.8,
            parts.prop_map(|(service, ipv4, port, ipv6)| Endpoint {
                service_name: service.to_owned(),
                ipv4,
                port,
                ipv6,
            }),
        )
    }

    fn moment() -> impl Strategy<Value = i64> {
        prop_oneof![8 => 1..100_i64, 1 => Just(0), 1 => -50..0_i64]
    }

    fn span() -> impl Strategy<Value = V1Span> {
        let value = select(vec!["cs", "cs", "cr", "sr", "sr", "ss", "ms", "x", "y"]);
        // Readers leave out annotations without a time.
        let time = moment().prop_filter("an annotation has a time", |&moment| moment != 0);
        let events = vec((time, value, host()), 0..5);
        let tags = vec((select(vec!["k", "l", "sa", "ca"]), "[xy]", host()), 0..3);
        let whence = (option::of(select(vec![0, 2, 9])), select(vec!["", "get", "PUT"]));
        let own = (option::of(moment()), option::of(-1..60_i64));
        (events, tags, whence, own).prop_map(|(events, tags, (parent_id, name), (timestamp, duration))| {
            let event = |(timestamp, value, host): (i64, &str, _)| Annotation {
                timestamp,
                value: value.to_owned(),
                host,
                ..Annotation::default()
            };
            let tag = |(key, value, host): (&str, String, _)| BinaryAnnotation {
                key: key.to_owned(),
                value: if convert::is_plain_key(key) { value.into_bytes() } else { vec![1] },
                kind: if convert::is_plain_key(key) { AnnotationType::String } else { AnnotationType::Bool },
                host,
                ..BinaryAnnotation::default()
            };
            V1Span {
                trace_id: 1,
                id: 2,
                parent_id,
                name: name.to_owned(),
                timestamp,
                duration,
                annotations: events.into_iter().map(event).collect(),
                binary_annotations: tags.into_iter().map(tag).collect(),
                ..V1Span::default()
            }
        })
    }

    /// The time of a piece, and its own duration.
    fn time_of_piece() -> impl Strategy<Value = (Time, u64)> {
        let own = (option::of(1..100_i64), option::of(0..60_i64));
        (any::<bool>(), own, vec(moment(), 0..3)).prop_map(|(is_root, (timestamp, duration), moments)| {
            let mut time = Time::default();
            time.see_own(timestamp, duration);
            moments.into_iter().for_each(|moment| time.see_moment(moment));
            time.see_span(is_root, timestamp.unwrap_or(0));
            (time, duration.unwrap_or(0) as u64)
        })
    }

    fn sum<'t>(times: impl IntoIterator<Item = &'t Time>) -> Time {
        let mut sum = Time::default();
        times.into_iter().for_each(|time| sum.add(time));
        sum
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, cases: 4096, ..ProptestConfig::default() })]

        #[test]
        fn a_piece_has_the_time_names_and_terms_of_the_spans_it_is_answered_as(span in span()) {
            let view = SpanView::of(&span);
            let mut reported = Reported::default();
            let time = of_v1(&view, &mut reported);
            let spans = convert::view_to_v2(&view, Texts::All);
            let expected = expected_of(&spans);
            prop_assert_eq!(time.of_trace_us(), time_of(&spans));
            prop_assert_eq!(reported.names, expected.names);
            prop_assert!(reported.terms.is_superset(&expected.terms));
            let longest = spans.iter().filter_map(|span| span.duration).max().unwrap_or(0);
            prop_assert!(time.longest_possible_us() >= longest as u64);
        }

        #[test]
        fn a_trace_of_which_some_pieces_are_read_keeps_its_time_and_its_bound(
            pieces in vec((time_of_piece(), any::<bool>()), 0..6),
            (later, _) in time_of_piece(),
        ) {
            let whole = sum(pieces.iter().map(|((time, _), _)| time));
            let longest = pieces.iter().map(|((_, duration), _)| *duration).max().unwrap_or(0);
            prop_assert!(whole.longest_possible_us() >= longest);
            let read = sum(pieces.iter().filter(|(_, is_read)| *is_read).map(|((time, _), _)| time));
            let known = read.within(whole.of_trace_us(), whole.longest_possible_us());
            prop_assert_eq!(known.of_trace_us(), whole.of_trace_us());
            let [known, whole] = [known, whole].map(|before| sum([&before, &later]).longest_possible_us());
            prop_assert!(known >= whole, "{} is no bound of {}", known, whole);
        }
    }
}
