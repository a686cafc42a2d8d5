//! How to connect to an upstream: at which address, and with which packet size.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use blkin_daemon::own::leads_back;
use blkin_daemon::threads;
use blkin_daemon::upstream::addresses;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use socket2::{Domain, Protocol, Socket, Type};

use super::{Alive, SLICE};

/// Bytes that may wait unsent in the kernel. Waiting bytes show no progress: if a whole call waited there, and a slow link took
/// longer than the timeout to send it, the upstream would seem silent on every attempt.
const MAX_UNSENT_BYTES: u32 = 128 << 10;
/// A handshake that takes longer is started again: by then the kernel has sent the first packet three times, and its growing
/// pauses would leave an upstream that is back unnoticed for longer and longer.
const MAX_HANDSHAKE: Duration = Duration::from_secs(3);
/// Time for an address that is not the last one of a name, so that the next one is tried soon where IPv6 does not work.
const NEXT_ADDRESS: Duration = Duration::from_secs(1);
/// The payload of a small packet: with its headers it fits 1280 bytes, which every IPv6 path must carry.
const SMALL_PACKET_BYTES: u32 = 1200;

/// Finds the addresses of a name and port.
type Resolver = fn(&str) -> io::Result<Vec<SocketAddr>>;

/// The size of the packets to an upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Packets {
    /// As large as the first link allows.
    Large,
    /// Small enough for any path. Some paths drop larger packets, and filter the ICMP messages that would tell the sender: then
    /// connections are made and short calls are answered, but long calls never are.
    Small,
}

impl Packets {
    /// The size to try after this one failed.
    pub(super) fn other(self) -> Self {
        match self {
            Packets::Large => Packets::Small,
            Packets::Small => Packets::Large,
        }
    }
}

/// Makes connections to one upstream.
#[derive(Debug)]
pub(super) struct Dial {
    pub(super) upstream: String,
    pub(super) timeout: Duration,
    /// Where the caller itself listens.
    pub(super) own: Option<SocketAddr>,
    pub(super) resolver: Resolver,
    /// The pending result of a resolver that has not answered yet.
    pub(super) asked: Option<Receiver<io::Result<Vec<SocketAddr>>>>,
}

impl Dial {
    pub(super) fn new(upstream: &str, timeout: Duration) -> Self {
        Dial { upstream: upstream.to_owned(), timeout, own: None, resolver: addresses, asked: None }
    }

    /// A connection to the first of the upstream's addresses that answers.
    ///
    /// # Errors
    /// Why each of the addresses did not answer.
    pub(super) fn connect(&mut self, packets: Packets, alive: Alive<'_>) -> io::Result<TcpStream> {
        let (mut failures, addresses) = (Vec::new(), self.addresses(alive)?);
        for (place, &address) in addresses.iter().enumerate() {
            let is_last = place + 1 == addresses.len();
            let patience = self.timeout.min(if is_last { MAX_HANDSHAKE } else { NEXT_ADDRESS });
            alive()?;
            match self.connect_to(address, (packets, patience), alive)? {
                Ok(stream) => return Ok(stream),
                Err(error) => failures.push((address, error)),
            }
        }
        Err(of_all(failures))
    }

    /// Resolves the name. If an earlier resolver thread still waits for name servers, waits for that one: otherwise every attempt
    /// would add another thread.
    fn addresses(&mut self, alive: Alive<'_>) -> io::Result<Vec<SocketAddr>> {
        if let Ok(address) = self.upstream.parse() {
            return Ok(vec![address]);
        }
        let asked = match &mut self.asked {
            Some(asked) => asked,
            none => none.insert(ask(self.resolver, self.upstream.clone())?),
        };
        let began = Instant::now();
        while began.elapsed() < self.timeout {
            match asked.recv_timeout(SLICE) {
                Err(RecvTimeoutError::Timeout) => alive()?,
                answered => {
                    self.asked = None;
                    return answered
                        .unwrap_or_else(|_| Err(io::Error::other("the resolver ended without an answer")));
                }
            }
        }
        let silent = format!("no name server answered for {:?}", self.timeout);
        Err(io::Error::new(ErrorKind::TimedOut, silent))
    }

    /// A connection to this address, or why there is none.
    ///
    /// # Errors
    /// The errors of `alive`.
    fn connect_to(
        &self,
        address: SocketAddr,
        (packets, patience): (Packets, Duration),
        alive: Alive<'_>,
    ) -> io::Result<io::Result<TcpStream>> {
        if self.own.is_some_and(|own| leads_back(own, address)) {
            return Ok(Err(io::Error::other("this daemon itself listens there")));
        }
        let socket = match self.begin(address, packets) {
            Ok(socket) => socket,
            Err(error) => return Ok(Err(error)),
        };
        let due = Instant::now() + patience;
        loop {
            match wait_connected(&socket, due.min(Instant::now() + SLICE)) {
                Ok(true) => return Ok(patient(socket)),
                Ok(false) if Instant::now() >= due => {
                    let silent = format!("no answer for {patience:?}");
                    return Ok(Err(io::Error::new(ErrorKind::TimedOut, silent)));
                }
                Ok(false) => alive()?,
                Err(error) => return Ok(Err(error)),
            }
        }
    }

    /// Starts to connect a socket.
    fn begin(&self, address: SocketAddr, packets: Packets) -> io::Result<Socket> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_nonblocking(true)?;
        socket.set_tcp_nodelay(true)?;
        socket.set_tcp_notsent_lowat(MAX_UNSENT_BYTES)?;
        if packets == Packets::Small {
            socket.set_tcp_mss(SMALL_PACKET_BYTES)?;
        }
        match socket.connect(&address.into()) {
            Err(error) if error.raw_os_error() != Some(Errno::INPROGRESS.raw_os_error()) => Err(error),
            _ => Ok(socket),
        }
    }
}

/// Resolves a name on a thread of its own: the system may wait for name servers for a long time.
fn ask(resolver: Resolver, name: String) -> io::Result<Receiver<io::Result<Vec<SocketAddr>>>> {
    let (found, addresses) = channel();
    let resolving = move || {
        let _given_up = found.send(resolver(&name));
    };
    threads::start("resolver", resolving)?;
    Ok(addresses)
}

/// One error for all addresses that did not answer.
fn of_all(mut failures: Vec<(SocketAddr, io::Error)>) -> io::Error {
    if failures.len() > 1 {
        let each = failures.iter().map(|(address, error)| format!("{address}: {error}"));
        return io::Error::other(each.collect::<Vec<_>>().join(", "));
    }
    failures
        .pop()
        .map_or_else(|| io::Error::new(ErrorKind::NotFound, "the name has no address"), |(_, error)| error)
}

/// Waits until a socket is connected, or until `due`.
fn wait_connected(socket: &Socket, due: Instant) -> io::Result<bool> {
    let left = Timespec::try_from(due.saturating_duration_since(Instant::now())).map_err(io::Error::other)?;
    match poll(&mut [PollFd::new(socket, PollFlags::OUT)], Some(&left)) {
        Ok(0) | Err(Errno::INTR) => return Ok(false),
        Ok(_) => {}
        Err(error) => return Err(error.into()),
    }
    socket.take_error()?.map_or(Ok(true), Err)
}

/// A stream whose reads and writes return after [`SLICE`] at the latest, so that the caller can do other things.
fn patient(socket: Socket) -> io::Result<TcpStream> {
    socket.set_nonblocking(false)?;
    socket.set_read_timeout(Some(SLICE))?;
    socket.set_write_timeout(Some(SLICE))?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use socket2::SockRef;
    use std::net::TcpListener;
    use std::sync::atomic::AtomicU32;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn small_packet_mode_limits_the_tcp_segment_size() {
        for host in ["127.0.0.1:0", "[::1]:0"] {
            let listener = TcpListener::bind(host).unwrap();
            let mut dial = Dial::new(&listener.local_addr().unwrap().to_string(), SLICE);
            let [large, small] = [Packets::Large, Packets::Small].map(|packets| {
                let stream = dial.connect(packets, &mut || Ok(())).unwrap();
                SockRef::from(&stream).tcp_mss().unwrap()
            });
            assert!(small <= SMALL_PACKET_BYTES && large > SMALL_PACKET_BYTES, "{small} {large}");
        }
    }

    #[test]
    fn connect_error_gives_the_reason_for_each_address() {
        fn two(_: &str) -> io::Result<Vec<SocketAddr>> {
            Ok(vec![([127, 0, 0, 1], 1).into(), ([127, 0, 0, 2], 2).into()])
        }
        let mut dial = Dial { resolver: two, own: Some(two("").unwrap()[1]), ..Dial::new("a.site:1", SLICE) };
        let error = dial.connect(Packets::Large, &mut || Ok(())).unwrap_err().to_string();
        assert!(error.starts_with("127.0.0.1:1: Connection refused"), "{error}");
        assert!(error.ends_with(", 127.0.0.2:2: this daemon itself listens there"), "{error}");
    }

    #[test]
    fn stopping_caller_does_not_wait_for_a_tcp_handshake() {
        let listener = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        let any: SocketAddr = ([127, 0, 0, 1], 0).into();
        listener.bind(&any.into()).unwrap();
        listener.listen(0).unwrap();
        let address = listener.local_addr().unwrap().as_socket().unwrap();
        let dial = Dial::new(&address.to_string(), Duration::from_secs(60));
        let mut alive = || Err(io::Error::new(ErrorKind::Interrupted, "the end"));
        let mut taken = Vec::new();
        // Fill the accept queue: further connections get no answer.
        let error = loop {
            match dial.connect_to(address, (Packets::Large, MAX_HANDSHAKE), &mut alive) {
                Ok(connected) => taken.push(connected.unwrap()),
                Err(error) => break error,
            }
        };
        assert_eq!(error.to_string(), "the end");
    }

    #[test]
    fn unanswered_name_lookup_times_out_and_polls_the_caller() {
        static ASKED: AtomicU32 = AtomicU32::new(0);
        fn never(_: &str) -> io::Result<Vec<SocketAddr>> {
            ASKED.fetch_add(1, Relaxed);
            loop {
                std::thread::park();
            }
        }
        let mut dial = Dial { resolver: never, ..Dial::new("collector.site:9410", SLICE * 2) };
        let mut heard = 0;
        let mut alive = || {
            heard += 1;
            Ok(())
        };
        let error = dial.connect(Packets::Large, &mut alive).unwrap_err();
        assert!(error.to_string().starts_with("no name server answered"), "{error}");
        assert!(heard >= 1, "{heard}");
        let _given_up_too = dial.connect(Packets::Large, &mut || Ok(())).unwrap_err();
        assert_eq!(ASKED.load(Relaxed), 1, "the first lookup still waits, so no other is started");
    }

    #[test]
    fn name_is_looked_up_again_after_each_answer() {
        static ASKED: AtomicU32 = AtomicU32::new(0);
        fn none(_: &str) -> io::Result<Vec<SocketAddr>> {
            ASKED.fetch_add(1, Relaxed);
            Ok(Vec::new())
        }
        let mut dial = Dial { resolver: none, ..Dial::new("a.site:1", Duration::from_secs(60)) };
        for _ in 0..2 {
            let error = dial.connect(Packets::Large, &mut || Ok(())).unwrap_err().to_string();
            assert_eq!(error, "the name has no address");
        }
        assert_eq!(ASKED.load(Relaxed), 2);
    }
}
