//! A Scribe server as a sink: many messages in one `Log` call over framed TBinary.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use blkin_thrift::scribe::{Outcome as ReplyOutcome, ResultCode, decode_reply};
use blkin_thrift::writer::LogCallWriter;
use blkin_thrift::{Limits, frame};

use super::pump::{Delivery, Outlet};
use super::queue::{Batch, Entry, Outcome};
use crate::config::Config;

/// Longest reply that is read.
const MAX_REPLY_BYTES: usize = 64 << 10;

/// One upstream.
#[derive(Debug)]
pub struct Scribe {
    upstream: String,
    category: String,
    timeout: Duration,
    connection: Option<TcpStream>,
    sequence: i32,
    /// The call, in memory that is used again.
    request: Vec<u8>,
}

enum Answer {
    Ok,
    TryLater,
    Refused(String),
}

impl Scribe {
    /// Not connected yet.
    pub fn new(upstream: &str, category: &str, config: &Config) -> Self {
        Self {
            upstream: upstream.into(),
            category: category.into(),
            timeout: Duration::from_millis(config.io_timeout_ms),
            connection: None,
            sequence: 0,
            request: Vec::new(),
        }
    }

    fn log(&mut self, entries: &[Entry]) -> io::Result<Answer> {
        let answer = self.call(entries);
        if answer.is_err() {
            // Whatever is still under way on this connection belongs to nobody any more.
            self.connection = None;
        }
        answer
    }

    fn call(&mut self, entries: &[Entry]) -> io::Result<Answer> {
        self.sequence = self.sequence.wrapping_add(1);
        self.encode(entries);
        let connection = match &mut self.connection {
            Some(connection) => connection,
            none => none.insert(connect(&self.upstream, self.timeout)?),
        };
        connection.write_all(&self.request)?;
        let mut header = [0; frame::HEADER_BYTES];
        connection.read_exact(&mut header)?;
        let length = frame::read_length(header, MAX_REPLY_BYTES).map_err(io::Error::other)?;
        let mut body = vec![0; length];
        connection.read_exact(&mut body)?;
        let reply = decode_reply(&body, &Limits::default()).map_err(io::Error::other)?;
        if reply.seq != self.sequence {
            return Err(io::Error::other("the reply belongs to another call"));
        }
        Ok(match reply.outcome {
            ReplyOutcome::Result(ResultCode::Ok) => Answer::Ok,
            ReplyOutcome::Result(_) => Answer::TryLater,
            ReplyOutcome::Exception(exception) => Answer::Refused(exception.message),
        })
    }

    /// The upstream refuses the whole batch: finds the entries that it takes, one by one.
    fn deliver_singly(&mut self, batch: &Batch) -> Delivery {
        let mut outcomes = Vec::with_capacity(batch.entries.len());
        for entry in batch.entries.iter() {
            let outcome = match self.log(std::slice::from_ref(entry)) {
                Ok(Answer::Ok) => Outcome::Acked,
                Ok(Answer::Refused(why)) => {
                    tracing::warn!(upstream = self.upstream, "a message was refused: {why}");
                    Outcome::Rejected
                }
                Ok(Answer::TryLater) => return later(),
                Err(e) => return Delivery::Later(e),
            };
            outcomes.push(outcome);
        }
        Delivery::Settled(outcomes)
    }

    fn encode(&mut self, entries: &[Entry]) {
        let mut writer = LogCallWriter::begin(&mut self.request, self.sequence);
        for entry in entries {
            match entry.lines.strip_suffix(b"\n") {
                Some(message) if entry.messages == 1 => writer.entry(&self.category, message),
                _ => {
                    let lines = entry.lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
                    lines.for_each(|line| writer.entry(&self.category, line));
                }
            }
        }
        writer.end();
    }
}

fn later() -> Delivery {
    Delivery::Later(io::Error::new(ErrorKind::ResourceBusy, "the upstream answered TRY_LATER"))
}

impl Outlet for Scribe {
    fn deliver(&mut self, batch: &Batch) -> Delivery {
        match self.log(&batch.entries) {
            Ok(Answer::Ok) => Delivery::Settled(vec![Outcome::Acked; batch.entries.len()]),
            Ok(Answer::TryLater) => later(),
            Ok(Answer::Refused(_)) => self.deliver_singly(batch),
            Err(e) => Delivery::Later(e),
        }
    }
}

fn connect(upstream: &str, timeout: Duration) -> io::Result<TcpStream> {
    let mut last = io::Error::new(ErrorKind::NotFound, "the name has no address");
    for address in upstream.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, timeout) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(timeout))?;
                stream.set_write_timeout(Some(timeout))?;
                return Ok(stream);
            }
            Err(e) => last = e,
        }
    }
    Err(last)
}
