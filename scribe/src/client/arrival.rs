//! Whether what was sent arrives, as far as the kernel knows: it waits for an acknowledgement, and sends again.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, SocketAddr, TcpStream};

/// Where the kernel tells of the connections of IPv4 and IPv6 (proc_pid_net(5)).
const TABLES: [&str; 2] = ["/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"];
/// In these the timer that sends again. Others wait for a window to open, or for a sign of life.
const RETRANSMITS: &str = "01:";

/// Whether bytes were sent more than once, and the peer's kernel has not acknowledged them. False if nobody tells.
pub(super) fn is_unheard(stream: &TcpStream) -> bool {
    let (Ok(local), Ok(peer)) = (stream.local_addr(), stream.peer_addr()) else { return false };
    let Ok(table) = File::open(TABLES[usize::from(local.is_ipv6())]) else { return false };
    let (local, peer) = (written(local), written(peer));
    let mut lines = BufReader::new(table).lines().map_while(Result::ok);
    lines.find_map(|line| is_sent_again(&line, &local, &peer)).unwrap_or(false)
}

/// What a line of such a table says of this connection; none if it is another's.
fn is_sent_again(line: &str, local: &str, peer: &str) -> Option<bool> {
    let mut fields = line.split_ascii_whitespace().skip(1);
    if (fields.next()?, fields.next()?) != (local, peer) {
        return None;
    }
    // Behind its state and what waits in its queues.
    let (timer, times) = (fields.nth(2)?, fields.next()?);
    Some(timer.starts_with(RETRANSMITS) && u32::from_str_radix(times, 16).ok()? > 0)
}

/// An address as the tables have it: its words in the machine's order.
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
    fn addresses_are_written_as_the_kernel_does() {
        let of = |address: &str| written(address.parse().unwrap());
        assert_eq!(of("127.0.0.1:8080"), "0100007F:1F90");
        assert_eq!(of("[2001:db8::1]:9410"), "B80D0120000000000000000001000000:24C2");
    }

    #[test]
    fn what_is_sent_again_is_told_from_what_waits_for_a_window() {
        let line = |timer, times| {
            format!(
                "  12: 0100007F:A268 0100007F:B70D 01 00000E24:00000000 {timer}:0000001E {times}     0        0 \
                 1834 3 000000009b707997 84 4 20 10 20"
            )
        };
        for (timer, times, expected) in
            [("01", "00000002", true), ("01", "00000000", false), ("04", "00000002", false)]
        {
            let told = is_sent_again(&line(timer, times), "0100007F:A268", "0100007F:B70D");
            assert_eq!(told, Some(expected), "{timer} {times}");
        }
        assert_eq!(is_sent_again(&line("01", "00000002"), "0100007F:B70D", "0100007F:A268"), None);
        assert_eq!(
            is_sent_again("  sl  local_address rem_address   st", "local_address", "rem_address"),
            None
        );
    }
}
