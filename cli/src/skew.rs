//! How far two hosts' clocks are apart, judged by the two halves of a call: unless the client gives up early, the server's half
//! lies within the client's.

use std::collections::HashMap;

use crate::span::Span;
use crate::terminal::{cut, safe};
use crate::units;

/// A smaller fraction of a drawing than this misleads nobody.
const SHARE: u64 = 20;
/// Nor does a difference that can occur on one machine.
const LEAST_US: u64 = 100;
/// Most columns of a service's name.
const NAME_COLUMNS: usize = 40;

/// A sentence for a drawing of that many microseconds in which a server's half lies outside its client's: which clock differs most,
/// and by how much at least. None if no half does, or not so far that it shows.
pub(crate) fn warning(spans: &[Span], drawn_us: u64) -> Option<String> {
    let client_of: HashMap<&str, &Span> =
        spans.iter().filter(|span| is_client(span)).map(|span| (span.id.as_str(), span)).collect();
    let servers = spans.iter().filter(|span| span.shared);
    let pairs = servers.filter_map(|server| Some((*client_of.get(server.id.as_str())?, server)));
    let apart = pairs.filter_map(|(client, server)| Some((apart_us(client, server)?, client, server)));
    let (most, client, server) = apart.max_by_key(|(apart_us, ..)| apart_us.unsigned_abs())?;
    if most.unsigned_abs() < (drawn_us / SHARE).max(LEAST_US) {
        return None;
    }
    let far = units::duration(most.unsigned_abs());
    let way = if most > 0 { "ahead of" } else { "behind" };
    let [client, server] = [client, server].map(|span| cut(&safe(span.service()), NAME_COLUMNS));
    Some(format!(
        "the clock of {server} seems to be {far} {way} that of {client}: each span is drawn by its own host's clock"
    ))
}

fn is_client(span: &Span) -> bool {
    !span.shared && span.kind.as_deref() == Some("CLIENT")
}

/// How far the server's half lies outside: beyond its client's end, or, if negative, before its begin. A server that took longer
/// than its client waited says nothing about clocks.
fn apart_us(client: &Span, server: &Span) -> Option<i64> {
    let own = |span: &Span| Some((span.timestamp?, span.timestamp?.saturating_add(span.duration?)));
    let ((begin, end), (server_begin, server_end)) = (own(client)?, own(server)?);
    if server.duration > client.duration {
        return None;
    }
    let before = i64::try_from(begin.saturating_sub(server_begin)).ok()?;
    let behind = i64::try_from(server_end.saturating_sub(end)).ok()?;
    Some(if before > 0 { -before } else { behind })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::span::Endpoint;

    fn half(service: &str, begin: u64, duration: u64) -> Span {
        Span {
            id: "a".into(),
            kind: Some(if service == "gateway" { "CLIENT" } else { "SERVER" }.into()),
            shared: service != "gateway",
            timestamp: Some(begin),
            duration: Some(duration),
            local_endpoint: Some(Endpoint { service_name: Some(service.into()), ..Endpoint::default() }),
            ..Span::default()
        }
    }

    fn told_of(server: Span) -> Option<String> {
        let spans = [server, half("gateway", 1_000_000, 4_000)];
        let (begin, end) = crate::span::extent(&spans).unwrap();
        warning(&spans, end - begin)
    }

    #[test]
    fn a_server_half_outside_its_client_half_means_clock_skew() {
        let ahead = told_of(half("osd.0", 181_001_000, 3_000)).unwrap();
        assert!(
            ahead.starts_with("the clock of osd.0 seems to be 3 min 0 s ahead of that of gateway: "),
            "{ahead}"
        );
        let behind = told_of(half("osd.0", 990_000, 3_000)).unwrap();
        assert!(behind.contains(" 10.000 ms behind that of gateway"), "{behind}");
    }

    #[test]
    fn no_clock_skew_is_reported_without_evidence() {
        for server in [
            half("osd.0", 1_000_500, 3_000),
            half("osd.0", 999_850, 3_000),
            half("osd.0", 1_000_500, 90_000),
            Span { duration: None, ..half("osd.0", 9, 0) },
        ] {
            assert_eq!(told_of(server.clone()), None, "{server:?}");
        }
        assert_eq!(warning(&[half("osd.0", 1, 1), half("gateway", 9, 2)], 10), None);
    }
}
