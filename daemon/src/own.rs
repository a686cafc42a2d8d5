//! Whether an address leads back to the daemon that would call it: everything that it sent there would come in again.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use crate::upstream::addresses;

/// Longest wait for the resolution of all names.
const PATIENCE: Duration = Duration::from_secs(2);

/// Whether a call from this machine to `address` reaches the daemon that listens at `listen`.
pub fn leads_back(listen: SocketAddr, address: SocketAddr) -> bool {
    let (own, other) = (listen.ip().to_canonical(), called(address.ip().to_canonical()));
    let answers = own == other || (own.is_unspecified() && hears(own, other) && is_local(other, address));
    listen.port() == address.port() && answers
}

/// The first of `upstreams`, each HOST:PORT, found to lead back to the daemon that listens at `listen`. A name that cannot be
/// resolved, or not soon, counts as another machine.
pub fn find_leading_back(listen: SocketAddr, upstreams: &[String]) -> Option<&String> {
    let (found, all) = channel();
    for (index, upstream) in upstreams.iter().cloned().enumerate() {
        let found = found.clone();
        let any_leads_back = move || {
            let mut addresses = addresses(&upstream).into_iter().flatten();
            addresses.any(|address| leads_back(listen, address))
        };
        // A name server that does not answer holds up only this thread, and nobody waits for it.
        let resolving = move || {
            let _nobody_waits = found.send(any_leads_back().then_some(index));
        };
        std::thread::Builder::new().name("resolver".into()).spawn(resolving).ok()?;
    }
    drop(found);
    let due = Instant::now() + PATIENCE;
    let next = || all.recv_timeout(due.saturating_duration_since(Instant::now())).ok();
    let own = std::iter::from_fn(next).flatten().next()?;
    upstreams.get(own)
}

/// The address that a call really goes to: the system maps the unspecified address to this machine.
fn called(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => Ipv6Addr::LOCALHOST.into(),
        other => other,
    }
}

/// Whether a socket on this unspecified address receives calls to `other`: IPv6 receives both versions.
fn hears(unspecified: IpAddr, other: IpAddr) -> bool {
    unspecified.is_ipv6() || other.is_ipv4()
}

/// Whether an address belongs to this machine: the system would use it as the source of packets to itself. Nothing is sent.
/// (A successful bind would prove less: some machines allow binding to any address.)
fn is_local(ip: IpAddr, address: SocketAddr) -> bool {
    let any: IpAddr = if ip.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let source = || {
        let socket = UdpSocket::bind((any, 0))?;
        socket.connect(address)?;
        socket.local_addr()
    };
    ip.is_loopback() || source().is_ok_and(|source| source.ip().to_canonical() == ip)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own(listen: &str, address: &str) -> bool {
        leads_back(listen.parse().unwrap(), address.parse().unwrap())
    }

    #[test]
    fn the_same_address_and_port_is_the_daemon_itself() {
        assert!(own("127.0.0.1:1463", "127.0.0.1:1463"));
        assert!(own("[::1]:1463", "[::1]:1463"));
        assert!(own("127.0.0.1:1463", "[::ffff:127.0.0.1]:1463"));
        assert!(own("127.0.0.1:1463", "0.0.0.0:1463"), "a call there goes to this machine");
        assert!(!own("127.0.0.1:1463", "127.0.0.1:9410"));
        assert!(!own("127.0.0.1:1463", "127.0.0.2:1463"));
        assert!(
            !own("10.0.0.5:1463", "127.0.0.1:1463"),
            "a listener on another address does not listen on loopback"
        );
    }

    #[test]
    fn wildcard_listener_owns_local_addresses_only() {
        for address in ["127.0.0.1:1463", "127.9.9.9:1463", "0.0.0.0:1463"] {
            assert!(own("0.0.0.0:1463", address) && own("[::]:1463", address), "{address}");
        }
        assert!(own("[::]:1463", "[::1]:1463") && !own("0.0.0.0:1463", "[::1]:1463"));
        for address in ["192.0.2.1:1463", "[2001:db8::1]:1463"] {
            assert!(!own("0.0.0.0:1463", address) && !own("[::]:1463", address), "{address}");
        }
    }

    #[test]
    fn names_are_resolved_and_unknown_names_are_not_own() {
        let listen = SocketAddr::from(([127, 0, 0, 1], 1463));
        let own = |upstreams: &[&str]| {
            let upstreams: Vec<String> = upstreams.iter().map(|name| (*name).to_owned()).collect();
            find_leading_back(listen, &upstreams).cloned()
        };
        assert_eq!(
            own(&["nobody.invalid:1463", "localhost:1463", "127.0.0.2:1463"]).unwrap(),
            "localhost:1463"
        );
        assert_eq!(own(&["nobody.invalid:1463", "localhost:1464"]), None);
        assert_eq!(own(&[]), None);
    }
}
