//! Endpoints: the services that annotate.

use crate::raw::EndpointBytes;

/// A service and, if it has one, its address. Cheap to copy; can be a constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint<'a> {
    name: &'a str,
    ip: &'a str,
    port: u16,
}

impl<'a> Endpoint<'a> {
    /// A service without an address.
    pub const fn new(name: &'a str) -> Endpoint<'a> {
        Endpoint { name, ip: "", port: 0 }
    }

    /// The same service at an IPv4 or IPv6 address (as text) and port (0: none). Host names are not looked up: the
    /// collector shows no address if the text is not an IP address.
    #[must_use]
    pub const fn at(self, ip: &'a str, port: u16) -> Endpoint<'a> {
        Endpoint { name: self.name, ip, port }
    }

    /// The service's name.
    pub const fn name(&self) -> &'a str {
        self.name
    }

    pub(crate) fn bytes(&self) -> EndpointBytes<'a> {
        EndpointBytes { ip: self.ip.as_bytes(), port: self.port, name: self.name.as_bytes() }
    }
}
