//! Ports for servers that cannot pick a free port themselves.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use anyhow::{Context, Result};

/// Below the ports that the kernel picks itself for listeners on port 0 and for outgoing connections.
const FIRST: u32 = 20_000;
const COUNT: u32 = 12_000;

/// A port that nothing listens on at any address, and that no other test of this process gets. A port that the kernel picks
/// could be taken again before the server binds it.
///
/// # Errors
/// When all are taken.
pub fn unused_port() -> Result<u16> {
    static GIVEN: AtomicU32 = AtomicU32::new(0);
    (0..COUNT)
        .map(|_| std::process::id().wrapping_add(GIVEN.fetch_add(1, Relaxed)) % COUNT)
        .filter_map(|at| u16::try_from(FIRST + at).ok())
        .find(|port| {
            is_free(Ipv4Addr::UNSPECIFIED.into(), *port) && is_free(Ipv6Addr::UNSPECIFIED.into(), *port)
        })
        .context("every port is taken")
}

/// Whether nothing listens there; true also on a machine without this kind of address.
fn is_free(address: IpAddr, port: u16) -> bool {
    !TcpListener::bind((address, port)).is_err_and(|error| error.kind() == ErrorKind::AddrInUse)
}
