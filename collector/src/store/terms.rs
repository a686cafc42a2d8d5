//! Terms: numbers that stand for what a search can ask of a trace.
//!
//! Terms are only a necessary condition. A search that asks for a service, a name and a tag finds the traces that have all
//! three, in any spans; whether one span has all of them shows when the trace is read ([`crate::query::matches`]). So a
//! term too many costs time, but a missing term would cost an answer. Pieces of v1 spans are merged before they are
//! answered, so each piece must have the terms of everything that may come out of the merge.
//!
//! Terms are stored, so their hash has no secret. Anybody can make different texts with the same term; that only makes
//! searches read more.

use std::borrow::Cow;
use std::ops::RangeInclusive;
use std::time::Instant;

use blkin_zipkin::query::{SearchRequest, TagQuery};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The kinds of terms. The number is part of the hash that is stored: never reuse one.
#[derive(Debug, Clone, Copy)]
#[repr(u64)]
enum Kind {
    Service = 1,
    RemoteService = 2,
    SpanName = 3,
    /// An annotation's value or a tag's key.
    Present = 4,
    TagKey = 5,
}

fn hash(kind: Kind, text: &str) -> u64 {
    xxh3_64_with_seed(text.as_bytes(), kind as u64)
}

/// The service that recorded a span, in lower case.
pub(super) fn service(name: &str) -> u64 {
    hash(Kind::Service, name)
}

/// The service on the other side, in lower case.
pub(super) fn remote_service(name: &str) -> u64 {
    hash(Kind::RemoteService, name)
}

/// The name of a span, in lower case.
pub(super) fn span_name(name: &str) -> u64 {
    hash(Kind::SpanName, name)
}

/// A tag's key, or an annotation's value.
pub(super) fn present(text: &str) -> u64 {
    hash(Kind::Present, text)
}

/// A tag.
pub(super) fn tag(key: &str, value: &str) -> u64 {
    xxh3_64_with_seed(value.as_bytes(), hash(Kind::TagKey, key))
}

/// A name in lower case, with its term.
#[derive(Debug, Clone, Copy)]
pub(super) struct Named<'n> {
    pub(super) text: &'n str,
    pub(super) term: u64,
}

impl<'n> Named<'n> {
    /// The service that recorded a span.
    pub(super) fn service(text: &'n str) -> Named<'n> {
        Named { text, term: service(text) }
    }

    /// The service on the other side.
    pub(super) fn remote_service(text: &'n str) -> Named<'n> {
        Named { text, term: remote_service(text) }
    }

    /// The name of a span.
    pub(super) fn span_name(text: &'n str) -> Named<'n> {
        Named { text, term: span_name(text) }
    }
}

/// A name as it is indexed and searched for.
pub(super) fn lowered(name: &str) -> Cow<'_, str> {
    if name.bytes().all(|byte| byte.is_ascii() && !byte.is_ascii_uppercase()) {
        Cow::Borrowed(name)
    } else {
        Cow::Owned(name.to_lowercase())
    }
}

/// The conditions under which a trace is worth reading.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wanted {
    /// The trace must have all these terms.
    pub(super) terms: Vec<u64>,
    /// Some span must possibly have taken at least this long, in microseconds.
    pub(super) least_duration_us: u64,
    /// Whether a trace without a time counts too, if a trace with the same low 64 bits has one.
    pub(super) may_be_timeless: bool,
    /// When to give up.
    until: Option<Instant>,
}

impl Wanted {
    /// The conditions of a search.
    pub fn by(request: &SearchRequest) -> Wanted {
        let mut terms = terms_of(request);
        terms.sort_unstable();
        terms.dedup();
        Wanted { terms, least_duration_us: least_duration_us(request), ..Wanted::default() }
    }

    /// The conditions of a search in which several traces count as one and may meet the conditions together: only a condition
    /// that one of these traces must meet alone.
    pub fn by_any_part(request: &SearchRequest) -> Wanted {
        let (terms, least_duration_us) = match terms_of(request).pop() {
            Some(rarest) => (vec![rarest], 0),
            None => (Vec::new(), least_duration_us(request)),
        };
        let may_be_timeless = !terms.is_empty() || least_duration_us > 0;
        Wanted { terms, least_duration_us, may_be_timeless, until: None }
    }

    /// All traces, or those that a service takes part in.
    pub fn of_service(name: Option<&str>) -> Wanted {
        Wanted { terms: name.map(service).into_iter().collect(), ..Wanted::default() }
    }

    /// The same conditions with a deadline: even a search that finds nothing may have much to look at.
    #[must_use]
    pub fn until(&self, until: Instant) -> Wanted {
        Wanted { until: Some(until), ..self.clone() }
    }

    /// Whether it is time to give up.
    pub(super) fn is_late(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() >= until)
    }
}

/// All terms that a search asks for; the last of them is probably in the fewest traces.
fn terms_of(request: &SearchRequest) -> Vec<u64> {
    let mut terms = Vec::new();
    terms.extend(request.service.as_deref().map(service));
    terms.extend(request.remote_service.as_deref().map(remote_service));
    terms.extend(request.span_name.as_deref().map(span_name));
    terms.extend(request.tags.iter().map(|query| match query {
        TagQuery::Present(text) => present(text),
        TagQuery::Equals(key, value) => tag(key, value),
    }));
    terms
}

fn least_duration_us(request: &SearchRequest) -> u64 {
    request.duration_us.as_ref().map_or(0, |range| *range.start())
}

/// The window, in microseconds, in which the time of a trace must lie.
pub(super) type Window = RangeInclusive<u64>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_that_are_stored_never_change() {
        let terms = [service("a"), remote_service("a"), span_name("a"), present("a"), tag("a", "b")];
        let known = [
            0xd2f6_d099_6f37_a720,
            0xaa71_cee2_aadf_d727,
            0xa598_1fe8_18d9_1b9c,
            0xfe46_50b5_1611_2b5b,
            0x0a2e_b609_43ec_9f20,
        ];
        assert_eq!(terms, known);
    }

    #[test]
    fn names_are_lowered_as_zipkin_lowers_them() {
        for name in ["osd.0", "OSD.0", "ΗΜΕΡΟΛΌΓΙΟ", "日誌", ""] {
            assert_eq!(lowered(name), name.to_lowercase());
        }
        assert!(matches!(lowered("osd.0"), Cow::Borrowed(_)));
    }
}
