//! How an upstream is called: by which address, and with packets of which size.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use blkin_daemon::own::is_own;
use blkin_daemon::threads;
use blkin_daemon::upstream::addresses;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use socket2::{Domain, Protocol, Socket, Type};

use super::{Alive, SLICE};

/// Of what is written so much may wait in the kernel until it can be sent. What waits there does not show that it gets on: of a
/// call that takes a slow link longer than the timeout the upstream would seem to be silent, each time anew.
const MAX_UNSENT_BYTES: u32 = 128 << 10;
/// A handshake that takes longer is begun anew: by then the kernel has sent its first packet three times, and what follows would
/// leave an upstream that is back unnoticed for ever longer.
const MAX_HANDSHAKE: Duration = Duration::from_secs(3);
/// An address of a name that is not the last has less: where IPv6 leads nowhere, the next one is soon called.
const NEXT_ADDRESS: Duration = Duration::from_secs(1);
/// What a small packet carries: with its heads it fits 1280 bytes, the least that each path of IPv6 has to take.
const SMALL_PACKET_BYTES: u32 = 1200;

/// Finds the addresses of a name and port.
type Resolver = fn(&str) -> io::Result<Vec<SocketAddr>>;

/// What the packets to an upstream may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Packets {
    /// As much as the first link takes.
    Large,
    /// As much as any path takes. Some drop what is larger and do not say so, for what would tell the sender is filtered: then a
    /// connection is made, and brief calls are answered, but no long one ever is.
    Small,
}

impl Packets {
    /// What is tried after these brought nothing.
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
    /// What a resolver that has not answered yet will say.
    pub(super) asked: Option<Receiver<io::Result<Vec<SocketAddr>>>>,
}

impl Dial {
    pub(super) fn new(upstream: &str, timeout: Duration) -> Self {
        Dial { upstream: upstream.to_owned(), timeout, own: None, resolver: addresses, asked: None }
    }

    /// A connection to the first of its addresses that answers.
    ///
    /// # Errors
    /// Why each of them did not.
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

    /// Asks for the addresses, unless who was asked before still waits for name servers: with one more at each try there would be
    /// ever more of them.
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
    /// Those of `alive`.
    fn connect_to(
        &self,
        address: SocketAddr,
        (packets, patience): (Packets, Duration),
        alive: Alive<'_>,
    ) -> io::Result<io::Result<TcpStream>> {
        if self.own.is_some_and(|own| is_own(own, address)) {
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

    /// A socket that is being connected.
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

/// Asks for the addresses of a name on a thread of its own: the system may wait for name servers for a long time, without a word.
fn ask(resolver: Resolver, name: String) -> io::Result<Receiver<io::Result<Vec<SocketAddr>>>> {
    let (found, addresses) = channel();
    let resolving = move || {
        let _given_up = found.send(resolver(&name));
    };
    threads::start("resolver", resolving)?;
    Ok(addresses)
}

/// Why no address answered.
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

/// Waits of its calls end after a while, so that something else can be seen to.
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
    fn small_packets_fit_every_path() {
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
    fn why_each_address_of_a_name_did_not_answer_is_told() {
        fn two(_: &str) -> io::Result<Vec<SocketAddr>> {
            Ok(vec![([127, 0, 0, 1], 1).into(), ([127, 0, 0, 2], 2).into()])
        }
        let mut dial = Dial { resolver: two, own: Some(two("").unwrap()[1]), ..Dial::new("a.site:1", SLICE) };
        let error = dial.connect(Packets::Large, &mut || Ok(())).unwrap_err().to_string();
        assert!(error.starts_with("127.0.0.1:1: Connection refused"), "{error}");
        assert!(error.ends_with(", 127.0.0.2:2: this daemon itself listens there"), "{error}");
    }

    #[test]
    fn a_caller_who_ends_does_not_wait_for_a_handshake() {
        let listener = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        let any: SocketAddr = ([127, 0, 0, 1], 0).into();
        listener.bind(&any.into()).unwrap();
        listener.listen(0).unwrap();
        let address = listener.local_addr().unwrap().as_socket().unwrap();
        let dial = Dial::new(&address.to_string(), Duration::from_secs(60));
        let mut alive = || Err(io::Error::new(ErrorKind::Interrupted, "the end"));
        let mut taken = Vec::new();
        // As many as the queue takes; who comes then has no answer.
        let error = loop {
            match dial.connect_to(address, (Packets::Large, MAX_HANDSHAKE), &mut alive) {
                Ok(connected) => taken.push(connected.unwrap()),
                Err(error) => break error,
            }
        };
        assert_eq!(error.to_string(), "the end");
    }

    #[test]
    fn name_servers_that_do_not_answer_are_given_up_and_the_caller_hears_of_the_wait() {
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
        assert_eq!(ASKED.load(Relaxed), 1, "who was asked waits still");
    }

    #[test]
    fn names_are_asked_for_anew_once_there_was_an_answer() {
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
