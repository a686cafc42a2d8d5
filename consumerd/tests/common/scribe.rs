//! A Scribe server that does what a test wants.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

use blkin_thrift::scribe::{
    ExceptionKind, LogEntry, Method, ResultCode, decode_message, encode_exception, encode_log_reply,
    parse_call,
};
use blkin_thrift::{Limits, Span};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, getsockname, listen, socket_with};

/// What the server does with one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behaviour {
    Ok,
    TryLater,
    Exception,
    HangUp,
}

type Decide = Box<dyn FnMut(&[LogEntry]) -> Behaviour + Send>;

/// A reserved address at which nobody listens yet.
pub struct Reserved {
    socket: OwnedFd,
    pub address: String,
}

impl Reserved {
    pub fn new() -> Self {
        let socket =
            socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = SocketAddrV4::try_from(getsockname(&socket).unwrap()).unwrap().to_string();
        Self { socket, address }
    }

    /// Serves at the address until the process ends.
    pub fn start(self, decide: impl FnMut(&[LogEntry]) -> Behaviour + Send + 'static) -> Scribe {
        listen(&self.socket, 128).unwrap();
        Scribe::serve(self.socket.into(), decide)
    }
}

/// The server, and the calls that it has accepted.
#[derive(Clone)]
pub struct Scribe {
    pub address: String,
    calls: Arc<Mutex<Vec<Vec<LogEntry>>>>,
}

impl Scribe {
    /// Serves on a free port until the process ends.
    pub fn start(decide: impl FnMut(&[LogEntry]) -> Behaviour + Send + 'static) -> Self {
        Reserved::new().start(decide)
    }

    fn serve(listener: TcpListener, decide: impl FnMut(&[LogEntry]) -> Behaviour + Send + 'static) -> Self {
        let address = listener.local_addr().unwrap().to_string();
        let server = Self { address, calls: Arc::default() };
        let calls = server.calls.clone();
        let mut decide: Decide = Box::new(decide);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                serve(stream.unwrap(), &mut decide, &calls);
            }
        });
        server
    }

    /// The accepted calls.
    pub fn calls(&self) -> Vec<Vec<LogEntry>> {
        self.calls.lock().unwrap().clone()
    }

    /// The accepted entries.
    pub fn entries(&self) -> Vec<LogEntry> {
        self.calls().concat()
    }

    /// The accepted entries as spans.
    pub fn spans(&self) -> Vec<Span> {
        let limits = Limits::default();
        self.entries().iter().map(|entry| decode_message(&entry.message, &limits).unwrap()).collect()
    }

    /// How many annotations the accepted spans have.
    pub fn annotations(&self) -> usize {
        self.spans().iter().map(|span| span.annotations.len() + span.binary_annotations.len()).sum()
    }
}

/// Serves one connection after the other: the daemon has only one at a time.
fn serve(mut stream: TcpStream, decide: &mut Decide, calls: &Mutex<Vec<Vec<LogEntry>>>) {
    let mut header = [0; 4];
    while stream.read_exact(&mut header).is_ok() {
        let mut body = vec![0; u32::from_be_bytes(header) as usize];
        if stream.read_exact(&mut body).is_err() {
            return;
        }
        let call = parse_call(&body, &Limits::default()).unwrap();
        let Method::Log(entries) = call.method else { panic!("not a Log call") };
        let reply = match decide(&entries) {
            Behaviour::Ok => {
                calls.lock().unwrap().push(entries);
                encode_log_reply(call.seq, ResultCode::Ok)
            }
            Behaviour::TryLater => encode_log_reply(call.seq, ResultCode::TryLater),
            Behaviour::Exception => {
                encode_exception("Log", call.seq, ExceptionKind::ProtocolError, "bad entry")
            }
            Behaviour::HangUp => return,
        };
        // Fails if the daemon has waited too long and disconnected.
        if stream.write_all(&reply).is_err() {
            return;
        }
    }
}
