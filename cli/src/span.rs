//! Zipkin v2 spans as the collector's API answers them.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// One host's view of an operation.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Span {
    /// 16 or 32 lower-case hexadecimal digits.
    pub trace_id: String,
    /// Id of the parent span, absent at a root.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent_id: Option<String>,
    /// 16 hexadecimal digits.
    pub id: String,
    /// CLIENT, SERVER, PRODUCER or CONSUMER.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Name of the operation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Begin, in microseconds since the epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timestamp: Option<u64>,
    /// Microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration: Option<u64>,
    /// The service that recorded it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub local_endpoint: Option<Endpoint>,
    /// The other side of a call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remote_endpoint: Option<Endpoint>,
    /// Events.
    pub annotations: Vec<Annotation>,
    /// Keys and values.
    pub tags: BTreeMap<String, String>,
    /// Set on the server half of a span whose client half has the same id.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub shared: bool,
}

/// An address with a service name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Endpoint {
    /// Lower-case service name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_name: Option<String>,
    /// IPv4 address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipv4: Option<String>,
    /// IPv6 address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipv6: Option<String>,
    /// Port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u32>,
}

/// One event.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct Annotation {
    /// Microseconds since the epoch.
    pub timestamp: u64,
    /// 0 to 999 nanoseconds within the microsecond; 0 if they are not known, which they never are on a Zipkin server.
    #[serde(skip_serializing_if = "is_zero")]
    pub nanos: u16,
    /// The event.
    pub value: String,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde hands over references")]
fn is_zero(nanos: &u16) -> bool {
    *nanos == 0
}

impl Span {
    /// The local service's name, empty if there is none.
    pub fn service(&self) -> &str {
        self.local_endpoint.as_ref().and_then(|endpoint| endpoint.service_name.as_deref()).unwrap_or("")
    }

    /// Begin and end in microseconds: the span's own, extended by its events; none if it has no time at all.
    pub fn extent(&self) -> Option<(u64, u64)> {
        let own = self.timestamp.map(|start| (start, start.saturating_add(self.duration.unwrap_or(0))));
        let events = self.annotations.iter().map(|annotation| (annotation.timestamp, annotation.timestamp));
        own.into_iter().chain(events).reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))
    }
}

/// Begin and end of all `spans`; none if no span has a time.
pub fn extent<'a>(spans: impl IntoIterator<Item = &'a Span>) -> Option<(u64, u64)> {
    spans.into_iter().filter_map(Span::extent).reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_in_zipkins_json_is_parsed() {
        let text = r#"{"traceId":"5982fe77008310cc80f1da5e10147519","parentId":"90394f6bcffb5d13","id":"67fae42571535f60",
            "kind":"SERVER","name":"/m/n/2.6.1","timestamp":1516781775726000,"duration":26000,"unknown":[1],
            "localEndpoint":{"serviceName":"api","ipv4":"1.2.3.4","port":80},
            "annotations":[{"timestamp":1516781775753000,"value":"late"}],"tags":{"k":""},"shared":true}"#;
        let span: Span = serde_json::from_str(text).unwrap();
        assert_eq!((span.service(), span.shared), ("api", true));
        assert_eq!(span.extent(), Some((1_516_781_775_726_000, 1_516_781_775_753_000)));
    }

    #[test]
    fn a_span_of_ids_only_has_no_extent() {
        let span: Span = serde_json::from_str(r#"{"traceId":"1","id":"2"}"#).unwrap();
        assert_eq!((span.extent(), span.service()), (None, ""));
    }
}
