//! Endpoints: the service that recorded a span, or the service on the other side.

use std::net::{Ipv4Addr, Ipv6Addr};

use blkin_thrift::span::compatible_ipv4;
use serde::{Serialize, Serializer};

use super::lower_name;

/// A service and its address. Each part may be unknown.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Endpoint {
    /// The name of the service, in lower case.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_name: Option<String>,
    /// The IPv4 address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipv4: Option<Ipv4Addr>,
    /// The IPv6 address.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "write_ipv6")]
    pub ipv6: Option<Ipv6Addr>,
    /// The port, above zero.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
}

impl Endpoint {
    /// An endpoint of which only the service is known.
    pub fn service(name: &str) -> Endpoint {
        Endpoint { service_name: lower_name(name), ..Endpoint::default() }
    }

    /// Whether nothing is known.
    pub fn is_empty(&self) -> bool {
        *self == Endpoint::default()
    }

    /// Sets the IPv6 address; an IPv4-compatible one (`::a.b.c.d`) is set as IPv4 address instead.
    pub fn set_ipv6(&mut self, address: Ipv6Addr) {
        match compatible_ipv4(address.octets()) {
            Some(ipv4) => self.ipv4 = Some((ipv4 as u32).into()),
            None => self.ipv6 = Some(address),
        }
    }

    /// Sets the address from a text; a text that is not an address is ignored, as Zipkin does.
    pub fn set_ip_text(&mut self, text: &str) {
        if let Ok(ipv4) = text.parse() {
            self.ipv4 = Some(ipv4);
        } else if let Some(ipv4) = embedded_ipv4_text(text) {
            self.ipv4 = Some(ipv4);
        } else if let Ok(ipv6) = text.parse() {
            self.ipv6 = Some(ipv6);
        }
    }

    /// Fills unknown parts from another piece of the same endpoint.
    pub fn fill_from(&mut self, other: &Endpoint) {
        if self.service_name.is_none() {
            self.service_name.clone_from(&other.service_name);
        }
        self.ipv4 = self.ipv4.or(other.ipv4);
        self.ipv6 = self.ipv6.or(other.ipv6);
        self.port = self.port.or(other.port);
    }

    /// Whether both can be the same endpoint: no part that is known in both differs.
    pub fn agrees_with(&self, other: &Endpoint) -> bool {
        fn agree<T: PartialEq>(left: &Option<T>, right: &Option<T>) -> bool {
            left.is_none() || right.is_none() || left == right
        }
        agree(&self.service_name, &other.service_name)
            && agree(&self.ipv4, &other.ipv4)
            && agree(&self.ipv6, &other.ipv6)
            && agree(&self.port, &other.port)
    }
}

/// The IPv4 address in a text of the form `::1.2.3.4`, `::ffff:1.2.3.4` or `::0000:1.2.3.4`.
fn embedded_ipv4_text(text: &str) -> Option<Ipv4Addr> {
    let rest = text.strip_prefix("::")?;
    let (prefix, ipv4) = rest.rsplit_once(':').unwrap_or(("", rest));
    let known = prefix.is_empty() || prefix == "0000" || prefix.eq_ignore_ascii_case("ffff");
    if known { ipv4.parse().ok() } else { None }
}

/// Writes an IPv6 address as Zipkin does, which differs from RFC 5952: a run of zeros at the end is shortened only if there
/// is no other run, and an IPv4-mapped address keeps its hexadecimal digits.
fn write_ipv6<S: Serializer>(address: &Option<Ipv6Addr>, serializer: S) -> Result<S::Ok, S::Error> {
    match address {
        Some(address) => serializer.serialize_str(&ipv6_text(address)),
        None => serializer.serialize_none(),
    }
}

fn ipv6_text(address: &Ipv6Addr) -> String {
    let groups = address.segments();
    let hex = |groups: &[u16]| groups.iter().map(|group| format!("{group:x}")).collect::<Vec<_>>().join(":");
    match shortened_run(&groups) {
        Some((start, end)) => format!("{}::{}", hex(&groups[..start]), hex(&groups[end..])),
        None => hex(&groups),
    }
}

/// The run of zero groups that is left out: the longest one that is followed by another group, else the one at the end.
fn shortened_run(groups: &[u16; 8]) -> Option<(usize, usize)> {
    let mut best: Option<(usize, usize)> = None;
    let mut start = None;
    for (at, &group) in groups.iter().enumerate() {
        if group == 0 {
            start.get_or_insert(at);
        } else if let Some(run) = start.take()
            && best.is_none_or(|(from, to)| at - run > to - from)
        {
            best = Some((run, at));
        }
    }
    best.or(start.map(|run| (run, groups.len())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_text(text: &str) -> (Option<String>, Option<String>) {
        let mut endpoint = Endpoint::default();
        endpoint.set_ip_text(text);
        (endpoint.ipv4.map(|ip| ip.to_string()), endpoint.ipv6.map(|ip| ipv6_text(&ip)))
    }

    #[test]
    fn addresses_are_written_as_zipkin_writes_them() {
        for (text, written) in [
            ("2001:db8::c001", "2001:db8::c001"),
            ("2001:DB8:0:0:0:0:0:C001", "2001:db8::c001"),
            ("2001:0:0:4:0:0:0:8", "2001:0:0:4::8"),
            ("2001:0:0:4:0:0:0:0", "2001::4:0:0:0:0"),
            ("2001:0:0:4:5:0:0:8", "2001::4:5:0:0:8"),
            ("1:0:0:0:5:0:0:8", "1::5:0:0:8"),
            ("1:2:3:4:5:6:7:8", "1:2:3:4:5:6:7:8"),
            ("1:2:3:4:5:6:7:0", "1:2:3:4:5:6:7::"),
            ("::1", "::1"),
            ("::", "::"),
            ("::abcd:43.0.192.2", "::abcd:2b00:c002"),
            ("1::43.0.192.2", "1::2b00:c002"),
        ] {
            assert_eq!(of_text(text), (None, Some(written.to_owned())), "{text}");
        }
    }

    #[test]
    fn ipv4_in_ipv6_text_becomes_ipv4() {
        for text in
            ["43.0.192.2", "::43.0.192.2", "::ffff:43.0.192.2", "::FFFF:43.0.192.2", "::0000:43.0.192.2"]
        {
            assert_eq!(of_text(text), (Some("43.0.192.2".to_owned()), None), "{text}");
        }
    }

    #[test]
    fn text_that_is_not_an_address_is_ignored() {
        for text in ["", "localhost", "256.1.1.1", "1.2.3", "12345::", "1:2"] {
            assert_eq!(of_text(text), (None, None), "{text}");
        }
    }

    #[test]
    fn only_ipv4_compatible_bytes_become_ipv4() {
        let cases = [
            ("::102:304", Some(Ipv4Addr::new(1, 2, 3, 4))),
            ("::1", None),
            ("::", Some(Ipv4Addr::UNSPECIFIED)),
            ("::ffff:102:304", None),
            ("1::102:304", None),
        ];
        for (text, ipv4) in cases {
            let mut endpoint = Endpoint::default();
            endpoint.set_ipv6(text.parse().unwrap());
            assert_eq!(endpoint.ipv4, ipv4, "{text}");
            assert_eq!(endpoint.ipv6.is_none(), ipv4.is_some(), "{text}");
        }
    }

    /// For each part of an endpoint, two endpoints that know only this part, with different values.
    fn members() -> [[Endpoint; 2]; 4] {
        let of_service = |name| Endpoint::service(name);
        let of_text = |text| {
            let mut endpoint = Endpoint::default();
            endpoint.set_ip_text(text);
            endpoint
        };
        let of_port = |port| Endpoint { port: Some(port), ..Endpoint::default() };
        [
            ["osd", "mon"].map(of_service),
            ["10.0.0.1", "10.0.0.2"].map(of_text),
            ["2001:db8::1", "2001:db8::2"].map(of_text),
            [1, 2].map(of_port),
        ]
    }

    #[test]
    fn endpoints_agree_unless_a_field_known_to_both_differs() {
        let nothing = Endpoint::default();
        for [one, other] in members() {
            assert!(one.agrees_with(&one) && !one.agrees_with(&other), "{one:?}, {other:?}");
            assert!(one.agrees_with(&nothing) && nothing.agrees_with(&one), "{one:?}");
            for [elsewhere, _] in members() {
                let mut both = elsewhere.clone();
                both.fill_from(&one);
                assert!(both.agrees_with(&one) && both.agrees_with(&elsewhere), "{both:?}");
            }
        }
    }

    #[test]
    fn filling_sets_unknown_fields_and_keeps_known_ones() {
        let mut filled = Endpoint::default();
        for (at, [first, later]) in members().iter().enumerate() {
            filled.fill_from(first);
            filled.fill_from(later);
            for (known, [first, _]) in members().iter().enumerate() {
                let mut with_first = filled.clone();
                with_first.fill_from(first);
                assert_eq!(with_first == filled, known <= at, "{first:?} into {filled:?}");
            }
            assert!(filled.agrees_with(first) && !filled.agrees_with(later), "{filled:?}");
        }
    }
}
