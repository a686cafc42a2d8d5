//! An endpoint (the service that annotated) as bytes in the table of names or in a record's tail.
//!
//! `[port u16][length of ip u8][ip text][name]`

use std::borrow::Cow;

use crate::layout::MAX_IP_BYTES;

/// The endpoint of a record that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndpointRef<'a> {
    /// Its id in the segment's table of names.
    Id(u32),
    /// Encoded in the record itself; see [`Endpoint::decode`].
    Inline(Cow<'a, [u8]>),
}

/// A decoded endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// IPv4 or IPv6 address as text, as the program gave it; empty if it gave none.
    pub ip: String,
    /// Port; 0 if the program gave none.
    pub port: u16,
    /// The service's name.
    pub name: String,
}

impl Endpoint {
    /// Decodes an endpoint. Bytes that are not UTF-8 become U+FFFD; `None` if the lengths do not fit.
    pub fn decode(bytes: &[u8]) -> Option<Endpoint> {
        let (fixed, rest) = bytes.split_at_checked(3)?;
        let ip_bytes = usize::from(fixed[2]);
        if ip_bytes > MAX_IP_BYTES {
            return None;
        }
        let (ip, name) = rest.split_at_checked(ip_bytes)?;
        Some(Endpoint {
            ip: String::from_utf8_lossy(ip).into_owned(),
            port: u16::from_le_bytes([fixed[0], fixed[1]]),
            name: String::from_utf8_lossy(name).into_owned(),
        })
    }
}
