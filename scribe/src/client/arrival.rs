//! Whether sent data arrives, as far as the kernel knows: from the bytes that are not acknowledged, and from retransmissions.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, SocketAddr, TcpStream};

/// The kernel's tables of IPv4 and IPv6 connections (proc_pid_net(5)).
const TABLES: [&str; 2] = ["/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"];
/// In these tables, marks the retransmission timer. Other timers are for window probes and keepalives.
const RETRANSMITS: &str = "01:";

/// Whether bytes were sent more than once, and the peer's kernel has not acknowledged them. False if that is not known.
pub(super) fn is_unheard(stream: &TcpStream) -> bool {
    sending(stream).is_some_and(|sending| sending.is_again)
}

/// How many of the `written` bytes the peer's kernel has acknowledged. 0 if that is not known.
pub(super) fn arrived(stream: &TcpStream, written: u64) -> u64 {
    sending(stream).map_or(0, |sending| written.saturating_sub(sending.unacknowledged))
}

/// What the kernel knows about the data that it sends.
#[derive(Debug, PartialEq, Eq)]
struct Sending {
    /// Bytes that were written and not acknowledged.
    unacknowledged: u64,
    /// Whether some of them were sent more than once.
    is_again: bool,
}

fn sending(stream: &TcpStream) -> Option<Sending> {
    let (local, peer) = (stream.local_addr().ok()?, stream.peer_addr().ok()?);
    let table = File::open(TABLES[usize::from(local.is_ipv6())]).ok()?;
    let (local, peer) = (written(local), written(peer));
    let mut lines = BufReader::new(table).lines().map_while(Result::ok);
    lines.find_map(|line| sending_in(&line, &local, &peer))
}

/// The content of a line of such a table; none if the line is about another connection.
fn sending_in(line: &str, local: &str, peer: &str) -> Option<Sending> {
    let mut fields = line.split_ascii_whitespace().skip(1);
    if (fields.next()?, fields.next()?) != (local, peer) {
        return None;
    }
    // Skip the connection's state.
    let (queues, timer, times) = (fields.nth(1)?, fields.next()?, fields.next()?);
    let (unacknowledged, _unread) = queues.split_once(':')?;
    let is_again = timer.starts_with(RETRANSMITS) && u32::from_str_radix(times, 16).ok()? > 0;
    Some(Sending { unacknowledged: u64::from_str_radix(unacknowledged, 16).ok()?, is_again })
}

/// An address as the tables write it: 32-bit words in the machine's byte order.
fn written(address: SocketAddr) -> String {
    let words: String = match address.ip() {
        IpAddr::V4(ip) => format!("{:08X}", u32::from_ne_bytes(ip.octets())),
        IpAddr::V6(ip) => ip
            .octets()
            .as_chunks::<4>()
            .0
            .iter()
            .map(|word| format!("{:08X}", u32::from_ne_bytes(*word)))
            .collect(),
    };
    format!("{words}:{:04X}", address.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_written_as_in_proc_net_tcp() {
        let of = |address: &str| written(address.parse().unwrap());
        assert_eq!(of("127.0.0.1:8080"), "0100007F:1F90");
        assert_eq!(of("[2001:db8::1]:9410"), "B80D0120000000000000000001000000:24C2");
    }

    #[test]
    fn retransmission_is_distinguished_from_a_zero_window_wait() {
        let line = |timer, times| {
            format!(
                "  12: 0100007F:A268 0100007F:B70D 01 00000E24:00000000 {timer}:0000001E {times}     0        0 \
                 1834 3 000000009b707997 84 4 20 10 20"
            )
        };
        for (timer, times, is_again) in
            [("01", "00000002", true), ("01", "00000000", false), ("04", "00000002", false)]
        {
            let told = sending_in(&line(timer, times), "0100007F:A268", "0100007F:B70D");
            assert_eq!(told, Some(Sending { unacknowledged: 0xe24, is_again }), "{timer} {times}");
        }
        assert_eq!(sending_in(&line("01", "00000002"), "0100007F:B70D", "0100007F:A268"), None);
        assert_eq!(sending_in("  sl  local_address rem_address   st", "local_address", "rem_address"), None);
    }
}
