//! How a configuration names upstreams, and their addresses.

use std::io;
use std::net::{Ipv6Addr, SocketAddr, ToSocketAddrs};

/// How an upstream is written, for error messages.
pub const HOST_AND_PORT: &str = "HOST:PORT, such as 10.0.0.5:9410 or [fd00::5]:9410";

/// Whether `text` is a host (name or address) and a port, as an upstream has to be; a URL is not. An IPv6 address must be in
/// brackets, since its last part looks like a port.
pub fn is_host_and_port(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else { return false };
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    let is_name = !host.is_empty() && host.chars().all(is_of_name);
    let is_address = |text: &str| text.split('%').next().is_some_and(|text| text.parse::<Ipv6Addr>().is_ok());
    (is_name || in_brackets(host).is_some_and(is_address)) && port.parse::<u16>().is_ok_and(|port| port > 0)
}

/// The addresses of an upstream, from the system's resolver, which may take long.
///
/// # Errors
/// The resolver's error, such as for an unknown name.
pub fn addresses(upstream: &str) -> io::Result<Vec<SocketAddr>> {
    // The resolver accepts an address with the name of an interface (`fe80::1%eth0`), but not in brackets.
    let bracketed =
        upstream.rsplit_once(':').and_then(|(host, port)| in_brackets(host).zip(port.parse().ok()));
    Ok(match bracketed {
        Some((host, port)) => (host, port).to_socket_addrs()?.collect(),
        None => upstream.to_socket_addrs()?.collect(),
    })
}

fn in_brackets(host: &str) -> Option<&str> {
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn upstream_must_be_host_and_port_not_a_url() {
        for good in ["10.0.0.5:9410", "collector_1.site:9410", "[::1]:9410", "[fe80::1%eth0]:9410"] {
            assert!(is_host_and_port(good), "{good}");
        }
        for bad in
            ["", "a", ":9410", "a:", "a:0", "a:65536", "http://10.0.0.5:9410", "http:a:9410", "a b:1", "a:1/"]
        {
            assert!(!is_host_and_port(bad), "{bad}");
        }
        // Ambiguous: the port 9410 of ::1, or the address ::1:9410 without a port.
        for bad in ["::1:9410", "fd00::5", "[::1:9410", "[::1]9410", "[]:9410", "[a]:9410"] {
            assert!(!is_host_and_port(bad), "{bad}");
        }
    }

    #[test]
    fn link_local_address_resolves_with_its_interface() {
        let found = |upstream: &str| addresses(upstream).unwrap();
        assert_eq!(found("127.0.0.1:9410"), [SocketAddr::from(([127, 0, 0, 1], 9410))]);
        assert_eq!(found("[::1]:9410"), [SocketAddr::from((Ipv6Addr::LOCALHOST, 9410))]);
        let of_interface = |address: &SocketAddr| match address {
            SocketAddr::V6(address) => (address.scope_id(), address.port()),
            SocketAddr::V4(_) => (0, 0),
        };
        assert_eq!(of_interface(&found("[fe80::1%lo]:9410")[0]), (1, 9410));
        assert!(addresses("[fe80::1%nothing]:9410").is_err());
    }
}
