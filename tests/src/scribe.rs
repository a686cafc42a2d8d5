//! A Scribe server that answers as a test decides, and keeps what it has accepted.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Result, bail};
use blkin_thrift::frame::HEADER_BYTES;
use blkin_thrift::scribe::{
    ExceptionKind, LogEntry, Method, ResultCode, decode_message, encode_exception, encode_log_reply,
    parse_call,
};
use blkin_thrift::{Limits, Span};

/// How it answers one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Behaviour {
    /// Keeps the entries and answers OK.
    Ok,
    /// Keeps nothing and answers TRY_LATER.
    TryLater,
    /// Answers with an exception.
    Exception,
}

type Decide = dyn Fn(&[LogEntry]) -> Behaviour + Send + Sync;

/// The server. Its threads end with the connections made to it.
#[derive(Debug, Clone)]
pub struct Server {
    address: String,
    messages: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Server {
    /// Serves on a free port until the process ends.
    ///
    /// # Errors
    /// When it cannot listen.
    pub fn start(decide: impl Fn(&[LogEntry]) -> Behaviour + Send + Sync + 'static) -> Result<Server> {
        Server::start_at("127.0.0.1:0", decide)
    }

    /// Serves on an address.
    ///
    /// # Errors
    /// When it cannot listen.
    pub fn start_at(
        address: &str,
        decide: impl Fn(&[LogEntry]) -> Behaviour + Send + Sync + 'static,
    ) -> Result<Server> {
        let listener = TcpListener::bind(address)?;
        let server = Server { address: listener.local_addr()?.to_string(), messages: Arc::default() };
        let (messages, decide): (_, Arc<Decide>) = (server.messages.clone(), Arc::new(decide));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (messages, decide) = (messages.clone(), decide.clone());
                std::thread::spawn(move || serve(stream, &*decide, &messages));
            }
        });
        Ok(server)
    }

    /// The address to send calls to.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The messages that were accepted, in order.
    pub fn messages(&self) -> Vec<Vec<u8>> {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The accepted messages that are spans, decoded.
    pub fn spans(&self) -> Vec<Span> {
        let limits = Limits::default();
        self.messages().iter().filter_map(|message| decode_message(message, &limits).ok()).collect()
    }
}

fn serve(mut stream: TcpStream, decide: &Decide, messages: &Mutex<Vec<Vec<u8>>>) -> Result<()> {
    let mut header = [0; HEADER_BYTES];
    loop {
        stream.read_exact(&mut header)?;
        let mut body = vec![0; u32::from_be_bytes(header) as usize];
        stream.read_exact(&mut body)?;
        let call = parse_call(&body, &Limits::default())?;
        let Method::Log(entries) = call.method else { bail!("not a Log call") };
        let reply = match decide(&entries) {
            Behaviour::Ok => {
                let mut messages = messages.lock().unwrap_or_else(PoisonError::into_inner);
                messages.extend(entries.into_iter().map(|entry| entry.message));
                encode_log_reply(call.seq, ResultCode::Ok)
            }
            Behaviour::TryLater => encode_log_reply(call.seq, ResultCode::TryLater),
            Behaviour::Exception => {
                encode_exception("Log", call.seq, ExceptionKind::ProtocolError, "a bad entry")
            }
        };
        stream.write_all(&reply)?;
    }
}
