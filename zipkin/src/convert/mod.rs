//! Converts a v1 span, which may hold both sides of a call, to v2 spans, each of one side.
//!
//! The rules are those of Zipkin's `V1SpanConverter`, in the same order:
//!
//! | step | file |
//! |---|---|
//! | reads the parts of the thrift span that count | `read` |
//! | finds the side that an endpoint belongs to | `sides` |
//! | core annotations set kinds, all others stay annotations | `core` |
//! | times, shared spans, messages | `timing` |
//! | tags and addresses | `tags` |
//!
//! BlkKin differs from Zipkin in two points. It also shows numeric values (`I16` to `DOUBLE`), which Zipkin drops. If a key
//! has several values, it shows the one that was written last, where Zipkin shows the one that arrived last (`order`).

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

/// Converts one v1 span into the v2 spans of its sides. The result is empty if the trace id or span id is zero.
pub fn v1_to_v2(span: &blkin_thrift::Span) -> Vec<Span> {
    view_to_v2(&SpanView::of(span), Texts::All)
}

/// Which annotations and tags are wanted. Copying them takes most of the time, and few queries need all of them.
#[derive(Debug, Clone, Copy)]
pub enum Texts<'a> {
    /// All annotations and tags.
    All,
    /// Only annotations with these values, and tags with these keys.
    Only(&'a [&'a str]),
}

impl Texts<'_> {
    /// Whether annotations with this value, or tags with this key, are wanted.
    pub fn has(self, text: &str) -> bool {
        match self {
            Texts::All => true,
            Texts::Only(wanted) => wanted.contains(&text),
        }
    }
}

/// As [`v1_to_v2`], from a view of the span. Annotations and tags that are not wanted are left out; apart from that the result is
/// the same as with them.
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

/// Whether the span has a core annotation of a client, with a known endpoint.
pub fn has_call_mark(span: &blkin_thrift::Span) -> bool {
    span.annotations
        .iter()
        .any(|a| matches!(a.value.as_str(), "cs" | "cr") && service_of(a.host.as_ref()).is_some())
}

/// Whether an annotation with this value is not a core annotation, so that the conversion only copies it.
pub fn is_plain_value(value: &str) -> bool {
    !matches!(value, "cs" | "cr" | "sr" | "ss" | "ms" | "mr" | "ws" | "wr")
}

/// Whether the host of a binary annotation with this key is the service that wrote it, and not the other side.
pub fn is_plain_key(key: &str) -> bool {
    !is_address(key)
}

/// The service name of an endpoint: `None` if nothing is known of the endpoint, `Some(None)` if only its name is unknown.
pub fn service_of(host: Option<&blkin_thrift::Endpoint>) -> Option<Option<String>> {
    read_host(host.map(EndpointView::of)).map(|endpoint| endpoint.service_name)
}
