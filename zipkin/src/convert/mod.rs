//! From a v1 span, which may hold both sides of a call, to v2 spans, each of one side.
//!
//! The rules are Zipkin's (its `V1SpanConverter`), in its order:
//!
//! | step | file |
//! |---|---|
//! | what of the thrift span counts | `read` |
//! | which side an endpoint belongs to | `sides` |
//! | core annotations give kinds, all others stay | `core` |
//! | times, shared spans, messages | `timing` |
//! | tags and addresses | `tags` |
//!
//! BlkKin goes beyond Zipkin in two points: it also shows numeric values (`I16` to `DOUBLE`), which Zipkin drops; and of a key
//! with several values the one that was written last, where Zipkin shows the one that came last (`order`).

mod core;
mod order;
mod read;
mod sides;
mod tags;
mod timing;

use blkin_thrift::view::{EndpointView, SpanView};

use crate::model::Span;

use self::core::Core;
pub use self::read::shown_value;
use self::read::{V1, is_address, read_host};
use self::sides::Sides;

/// Converts one v1 span into the v2 spans of its sides; into none if an id is zero.
pub fn v1_to_v2(span: &blkin_thrift::Span) -> Vec<Span> {
    view_to_v2(&SpanView::of(span), Texts::All)
}

/// Which annotations and tags are wanted: a copy of each takes most of the time, and few questions are about all of them.
#[derive(Debug, Clone, Copy)]
pub enum Texts<'a> {
    /// All.
    All,
    /// Annotations of these values, and tags of these keys.
    Only(&'a [&'a str]),
}

impl Texts<'_> {
    /// Whether annotations of this value, or tags of this key, are wanted.
    pub fn has(self, text: &str) -> bool {
        match self {
            Texts::All => true,
            Texts::Only(wanted) => wanted.contains(&text),
        }
    }
}

/// The same from where the span lies. Annotations and tags that are not wanted are left out, but all that they tell beside their
/// texts is as it would be with them.
pub fn view_to_v2(span: &SpanView<'_>, texts: Texts<'_>) -> Vec<Span> {
    let Some(source) = V1::read(span) else { return Vec::new() };
    let mut sides = Sides::new(&source);
    let mut core = Core::take(&source, texts, &mut sides);
    core.add_missing_starts(&source);
    timing::time_calls(&source, &core, &mut sides);
    timing::mark_shared(&source, &core, &mut sides);
    timing::time_messages(&source, &core, &mut sides);
    let addresses = tags::add_tags(&source, texts, &mut sides);
    tags::add_addresses(addresses, &core, &mut sides);
    sides.finish()
}

/// Whether the client's side of a call left a core annotation.
pub fn has_call_mark(span: &blkin_thrift::Span) -> bool {
    span.annotations
        .iter()
        .any(|a| matches!(a.value.as_str(), "cs" | "cr") && service_of(a.host.as_ref()).is_some())
}

/// Whether an annotation has no meaning of its own for the conversion.
pub fn is_plain_value(value: &str) -> bool {
    !matches!(value, "cs" | "cr" | "sr" | "ss" | "ms" | "mr" | "ws" | "wr")
}

/// Whether a key's host is where the key was written, and not who is on the other side.
pub fn is_plain_key(key: &str) -> bool {
    !is_address(key)
}

/// The service of an endpoint, which may have no name; none if nothing is known of the endpoint.
pub fn service_of(host: Option<&blkin_thrift::Endpoint>) -> Option<Option<String>> {
    read_host(host.map(EndpointView::of)).map(|endpoint| endpoint.service_name)
}
