//! A resolved annotation: texts instead of ids, real times instead of raw clock values.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;

use blkin_record::Endpoint;
use blkin_thrift as thrift;
use blkin_thrift::writer::Place;

/// What an annotation says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content<'a> {
    /// The event named by the key happened at this time, in nanoseconds since 1970.
    Event(i64),
    /// The key's value.
    Integer(i64),
    /// The key's value; bytes that are not UTF-8 read as U+FFFD.
    Text(Cow<'a, str>),
}

/// Where an annotation came from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// The holder's number of the program.
    pub program: u64,
    /// Hash of the segment's identity, the same for every consumer of this boot.
    pub source: i64,
    /// Ring and grain, encoded by [`thrift::position`].
    pub position: i64,
    /// Staged frame that holds it.
    pub frame: u64,
}

/// The meaning of an event to Zipkin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// "cs"
    ClientSend,
    /// "cr"
    ClientReceive,
    /// "csf", "crf"
    ClientFragment,
    /// "sr"
    ServerReceive,
    /// "ss"
    ServerSend,
    /// "srf", "ssf"
    ServerFragment,
    /// "ms", "mr"
    Message,
    /// Any other event.
    None,
}

impl Role {
    fn of(event: &str) -> Self {
        match event {
            "cs" => Self::ClientSend,
            "cr" => Self::ClientReceive,
            "csf" | "crf" => Self::ClientFragment,
            "sr" => Self::ServerReceive,
            "ss" => Self::ServerSend,
            "srf" | "ssf" => Self::ServerFragment,
            "ms" | "mr" => Self::Message,
            _ => Self::None,
        }
    }

    /// Whether a span with it is more than local.
    pub fn is_core(self) -> bool {
        !matches!(self, Self::None | Self::ClientFragment | Self::ServerFragment)
    }
}

/// The texts that a program's annotations from one place in its code share, and what follows from these texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Labels {
    /// Name of the span, as the annotation gives it.
    pub name: Arc<str>,
    /// The service that annotated.
    pub endpoint: Arc<Endpoint>,
    /// The key, or the name of the event.
    pub key: Arc<str>,
    /// Role of the key if it is an event.
    pub role: Role,
    /// Key and endpoint, encoded for Zipkin.
    pub place: Place,
}

impl Labels {
    /// Labels with these texts.
    pub fn new(name: Arc<str>, endpoint: Arc<Endpoint>, key: Arc<str>) -> Self {
        let (role, place) = (Role::of(&key), Place::new(&key, host(&endpoint).as_ref()));
        Self { name, endpoint, key, role, place }
    }
}

/// The endpoint in Zipkin's form; `None` if all of its fields are empty.
fn host(endpoint: &Endpoint) -> Option<thrift::Endpoint> {
    let (ipv4, ipv6) = match endpoint.ip.parse() {
        Ok(IpAddr::V4(v4)) => (u32::from(v4).cast_signed(), None),
        Ok(IpAddr::V6(v6)) => (0, Some(v6.octets())),
        Err(_) => (0, None),
    };
    if ipv4 == 0 && ipv6.is_none() && endpoint.port == 0 && endpoint.name.is_empty() {
        return None;
    }
    Some(thrift::Endpoint {
        ipv4,
        port: endpoint.port.cast_signed(),
        service_name: endpoint.name.clone(),
        ipv6,
    })
}

/// One annotation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Annotation<'a> {
    /// Trace.
    pub trace_id: u64,
    /// Span.
    pub span_id: u64,
    /// Parent span, 0 for none.
    pub parent_span_id: u64,
    /// Its texts.
    pub labels: &'a Labels,
    /// Time or value.
    pub content: Content<'a>,
    /// Severity, 0 to 7.
    pub level: u8,
    /// A text was cut when it was recorded.
    pub truncated: bool,
    /// Where it came from.
    pub origin: Origin,
}

impl Annotation<'_> {
    /// Time of an event.
    pub fn time_ns(&self) -> Option<i64> {
        match self.content {
            Content::Event(time_ns) => Some(time_ns),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoint_addresses_may_be_ipv6_or_empty() {
        let of = |ip: &str, name: &str| host(&Endpoint { ip: ip.into(), port: 0, name: name.into() });
        assert_eq!(of("::1", "x").unwrap().ipv6.unwrap()[15], 1);
        assert_eq!(of("", "x").unwrap().ipv4, 0);
        assert_eq!(of("", ""), None);
    }
}
