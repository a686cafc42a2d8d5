//! Both ends of a relay: a sender of entries, and the upstream that the relay calls.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::channel;
use std::time::Duration;

use blkin_scribe::{Client, Reply};
use blkin_thrift::Limits;
use blkin_thrift::frame::FrameReader;
use blkin_thrift::scribe::{
    ExceptionKind, LogEntry, Method, ResultCode, encode_exception, encode_log_call, encode_log_reply,
    parse_call,
};

use crate::process::Relay;

/// Longest wait for anything, even on a slow machine: half of the time for which the relays of these tests wait for an upstream.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// A sender of single entries; each is on the relay's disk when `send` returns.
pub(crate) struct Sender(Client);

impl Sender {
    pub(crate) fn of(relay: &Relay) -> Sender {
        Sender(Client::new(&relay.scribe, LIMIT))
    }

    pub(crate) fn send(&mut self, category: &str, message: Vec<u8>) {
        let entry = LogEntry { category: category.into(), message };
        let call = |seq| encode_log_call(seq, std::slice::from_ref(&entry));
        assert_eq!(self.0.log(call, &mut || Ok(())).unwrap(), Reply::Ok);
    }
}

/// A listener for a relay to call, and its address.
pub(crate) fn upstream() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    (listener, address)
}

/// A relay's connection to its upstream, as the upstream sees it.
pub(crate) struct Calls {
    stream: TcpStream,
    frames: FrameReader,
}

impl Calls {
    /// Waits for the relay to connect, up to [`LIMIT`].
    pub(crate) fn accept(listener: &TcpListener) -> Calls {
        let (told, accepted) = channel();
        let listener = listener.try_clone().unwrap();
        std::thread::spawn(move || told.send(listener.accept().unwrap().0));
        let stream = accepted.recv_timeout(LIMIT).expect("the relay did not connect");
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        Calls { stream, frames: FrameReader::new(&Limits::default()) }
    }

    /// The sequence number of the next call, and the messages of its entries.
    pub(crate) fn next(&mut self) -> (i32, Vec<Vec<u8>>) {
        self.next_or_end().expect("the relay closed the connection")
    }

    /// As [`next`](Self::next); none when the relay has closed this connection.
    pub(crate) fn next_or_end(&mut self) -> Option<(i32, Vec<Vec<u8>>)> {
        let mut bytes = [0; 4096];
        loop {
            if let Some(frame) = self.frames.next_frame().unwrap() {
                let call = parse_call(frame, &Limits::default()).unwrap();
                let Method::Log(entries) = call.method else { panic!("{:?}", call.method) };
                return Some((call.seq, entries.iter().map(|entry| entry.message.to_vec()).collect()));
            }
            let read = self.stream.read(&mut bytes).expect("the relay sends nothing");
            if read == 0 {
                return None;
            }
            self.frames.extend(&bytes[..read]);
        }
    }

    pub(crate) fn answer(&mut self, seq: i32) {
        self.stream.write_all(&encode_log_reply(seq, ResultCode::Ok)).unwrap();
    }

    pub(crate) fn refuse(&mut self, seq: i32) {
        let refusal = encode_exception("Log", seq, ExceptionKind::ProtocolError, "no");
        self.stream.write_all(&refusal).unwrap();
    }
}
