//! A Scribe server that answers OK at once and counts, to measure the daemon that sends to it.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use anyhow::Result;
use blkin_thrift::scribe::{Method, ResultCode, decode_message, encode_log_reply, parse_call};
use blkin_thrift::{Limits, frame};

/// One call in this many is decoded completely.
const DECODE_EVERY: u64 = 64;

/// The server and its counts.
#[derive(Clone, Debug)]
pub struct Scribe {
    /// The address where it listens.
    pub address: String,
    bytes: Arc<AtomicU64>,
    calls: Arc<AtomicU64>,
    /// If set, spans of this name are counted, and every call is decoded for that.
    counted: Option<&'static str>,
    of_name: Arc<AtomicU64>,
}

impl Scribe {
    /// Serves on a free port, on the CPU of the calling thread, until the process ends.
    ///
    /// # Errors
    /// When there is no free port, or no thread can be started.
    pub fn start() -> Result<Self> {
        Self::start_at("127.0.0.1:0", None)
    }

    /// Like [`Scribe::start`], but at the given address, and counting the spans of the given name.
    ///
    /// # Errors
    /// When the address is in use, or no thread can be started.
    pub fn start_at(address: &str, counted: Option<&'static str>) -> Result<Self> {
        let listener = TcpListener::bind(address)?;
        let scribe = Self {
            address: listener.local_addr()?.to_string(),
            bytes: Arc::default(),
            calls: Arc::default(),
            counted,
            of_name: Arc::default(),
        };
        let server = scribe.clone();
        std::thread::Builder::new().name("scribe".into()).spawn(move || {
            for stream in listener.incoming().flatten() {
                let server = server.clone();
                std::thread::spawn(move || server.serve(stream));
            }
        })?;
        Ok(scribe)
    }

    /// Bytes received.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    /// Calls received.
    pub fn calls(&self) -> u64 {
        self.calls.load(Relaxed)
    }

    /// Received spans of the counted name.
    pub fn of_name(&self) -> u64 {
        self.of_name.load(Relaxed)
    }

    fn serve(&self, mut stream: TcpStream) -> io::Result<()> {
        let mut body = Vec::new();
        loop {
            let mut header = [0; frame::HEADER_BYTES];
            stream.read_exact(&mut header)?;
            body.resize(u32::from_be_bytes(header) as usize, 0);
            stream.read_exact(&mut body)?;
            self.bytes.fetch_add(body.len() as u64, Relaxed);
            let number = self.calls.fetch_add(1, Relaxed);
            if self.counted.is_some() || number.is_multiple_of(DECODE_EVERY) {
                self.of_name.fetch_add(self.decode(&body)?, Relaxed);
            }
            let sequence = sequence(&body).ok_or(io::ErrorKind::InvalidData)?;
            stream.write_all(&encode_log_reply(sequence, ResultCode::Ok))?;
        }
    }

    /// Decodes a call completely; returns how many of its spans have the counted name.
    fn decode(&self, body: &[u8]) -> io::Result<u64> {
        let limits = Limits::default();
        let call = parse_call(body, &limits).map_err(io::Error::other)?;
        let Method::Log(entries) = call.method else { return Err(io::ErrorKind::InvalidData.into()) };
        let mut of_name = 0;
        for entry in entries {
            let span = decode_message(&entry.message, &limits).map_err(io::Error::other)?;
            of_name += u64::from(self.counted.is_some_and(|name| span.name == name));
        }
        Ok(of_name)
    }
}

/// The sequence number of a call. It follows the version, the length of the name, and "Log".
fn sequence(body: &[u8]) -> Option<i32> {
    Some(i32::from_be_bytes(*body.get(11..)?.first_chunk()?))
}
