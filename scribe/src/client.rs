//! One upstream: a connection that is made when it is needed, and made again after any failure. Calls may be sent before earlier
//! ones are answered; answers arrive in the order of the calls.

mod arrival;
mod dial;
mod silence;

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use blkin_thrift::Limits;
use blkin_thrift::frame::FrameReader;
use blkin_thrift::scribe::{ExceptionKind, Outcome, ResultCode, decode_reply};

use crate::doorbell::{Doorbell, wait_readable};
use arrival::{arrived, is_unheard};
use dial::{Dial, Packets};
use silence::Silence;

/// Longest reply that is read.
const MAX_REPLY_BYTES: usize = 64 << 10;
/// Bytes of replies that are read at a time.
const READ_BYTES: usize = 4 << 10;
/// Longest wait in one system call before the caller's [`Alive`] is called again.
const SLICE: Duration = blkin_daemon::health::BEAT_EVERY;

/// Called at least every [`BEAT_EVERY`](blkin_daemon::health::BEAT_EVERY) while the client waits for the upstream; its error
/// ends the wait.
pub type Alive<'a> = &'a mut dyn FnMut() -> io::Result<()>;

/// The answer of an upstream to a `Log` call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// The upstream has the entries.
    Ok,
    /// The upstream has none of the entries: the same call has to be sent again later.
    TryLater,
    /// The upstream cannot read the call, and never will. With its message, on one line for the log.
    Refused(String),
    /// The upstream failed over the call, and may have a part of it. Either for its own reasons, such as a database that is down,
    /// and that passes; or because of the content of the call, and it would fail again. With its message, on one line for the log.
    Failed(String),
}

/// A client of one upstream.
#[derive(Debug)]
pub struct Client {
    dial: Dial,
    /// The packet size of the next connection.
    packets: Packets,
    told_of_small_packets: bool,
    connection: Option<Connection>,
    sequence: i32,
    was_sent: bool,
}

#[derive(Debug)]
struct Connection {
    stream: TcpStream,
    /// The calls that are not answered, the oldest first.
    unanswered: VecDeque<Unanswered>,
    /// Bytes of answers that were read and not decoded yet.
    incoming: FrameReader,
    /// Bytes written on this connection.
    written: u64,
    /// The silence of the upstream, since the oldest unanswered call became the oldest.
    silence: Silence,
}

#[derive(Debug)]
struct Unanswered {
    sequence: i32,
    /// Bytes written on the connection up to the end of this call.
    end: u64,
}

impl Client {
    /// A client that is not connected yet. Each step of a call (connecting, any progress of a write, a complete answer) may take
    /// `timeout`.
    pub fn new(upstream: &str, timeout: Duration) -> Self {
        let (dial, packets) = (Dial::new(upstream, timeout), Packets::Large);
        Client { dial, packets, told_of_small_packets: false, connection: None, sequence: 0, was_sent: false }
    }

    /// Never connects to `own`, where the caller itself listens: the name of its upstream may one day lead there.
    pub fn never_calling(self, own: SocketAddr) -> Self {
        Client { dial: Dial { own: Some(own), ..self.dial }, ..self }
    }

    /// Closes the connection, so that the next call makes a new one. Call it only while no call waits for its answer.
    pub fn disconnect(&mut self) {
        self.connection = None;
    }

    /// Whether sending of the last call began, so that the upstream may have it whatever became of the answer.
    pub fn was_sent(&self) -> bool {
        self.was_sent
    }

    /// The number of calls that were sent and not answered. After an error there are none: their answers will never arrive.
    pub fn unanswered(&self) -> usize {
        self.connection.as_ref().map_or(0, |connection| connection.unanswered.len())
    }

    /// Makes one call and waits for the answer; no other call may be unanswered. `request` writes the framed `Log` call for a
    /// sequence number.
    ///
    /// # Errors
    /// When the upstream cannot be reached, closes the connection, is silent for too long or answers something else. It may
    /// have the entries all the same.
    pub fn log(&mut self, request: impl FnOnce(i32) -> Vec<u8>, alive: Alive<'_>) -> io::Result<Reply> {
        self.send(request, alive)?;
        self.reply(alive)
    }

    /// Sends a call behind those that are not answered. `request` writes the framed `Log` call for a sequence number.
    ///
    /// # Errors
    /// As [`log`](Client::log); the outcome of every call that was not answered is then unknown.
    pub fn send(&mut self, request: impl FnOnce(i32) -> Vec<u8>, alive: Alive<'_>) -> io::Result<()> {
        self.was_sent = false;
        let mut connection = match self.connection.take() {
            Some(connection) => {
                // Many calls may be sent one after another, and each may take its time.
                alive()?;
                connection
            }
            None => self.connect(alive)?,
        };
        self.sequence = self.sequence.wrapping_add(1);
        let request = request(self.sequence);
        self.was_sent = true;
        let (stream, timeout) = (&mut connection.stream, self.dial.timeout);
        let mut stream = Patient { stream, timeout, arrived: |stream| arrived(stream, u64::MAX), alive };
        if let Err(error) = stream.write_all(&request) {
            return Err(self.broke(&connection, error));
        }
        connection.written += request.len() as u64;
        if connection.unanswered.is_empty() {
            connection.silence.begin_anew();
        }
        connection.unanswered.push_back(Unanswered { sequence: self.sequence, end: connection.written });
        self.connection = Some(connection);
        Ok(())
    }

    /// Waits for the answer to the oldest call.
    ///
    /// # Errors
    /// As [`log`](Client::log), and when there is no such call.
    pub fn reply(&mut self, alive: Alive<'_>) -> io::Result<Reply> {
        loop {
            if let Some(reply) = self.next_reply()? {
                return Ok(reply);
            }
            if self.unanswered() == 0 {
                return Err(io::Error::new(ErrorKind::NotConnected, "no call waits for an answer"));
            }
            alive().inspect_err(|_| self.connection = None)?;
            self.wait(None, Some(Instant::now() + SLICE))?;
        }
    }

    /// The answer to the oldest call, if it is there.
    ///
    /// # Errors
    /// As [`log`](Client::log).
    pub fn next_reply(&mut self) -> io::Result<Option<Reply>> {
        // An error drops the connection: answers that are still to come on it belong to no call any more.
        let Some(mut connection) = self.connection.take() else { return Ok(None) };
        let reply = connection.next_reply()?;
        if reply.is_some() && self.packets == Packets::Small {
            self.tell_of_small_packets();
        }
        self.connection = Some(connection);
        Ok(reply)
    }

    /// Waits until there may be an answer, `bell` is rung, or until `due`, if that is given. If the upstream closes the connection
    /// while no call waits for an answer, the next call makes a new one.
    ///
    /// # Errors
    /// When the upstream closes the connection while calls wait, or is silent for too long.
    pub fn wait(&mut self, bell: Option<&Doorbell>, due: Option<Instant>) -> io::Result<()> {
        let Some(mut connection) = self.connection.take() else {
            return bell.map_or(Ok(()), |bell| bell.wait(due));
        };
        let is_awaited = !connection.unanswered.is_empty();
        match connection.wait(bell, due) {
            Ok(()) => {
                self.connection = Some(connection);
                Ok(())
            }
            Err(_) if !is_awaited => Ok(()),
            Err(error) => Err(self.broke(&connection, error)),
        }
    }

    fn connect(&mut self, alive: Alive<'_>) -> io::Result<Connection> {
        // An upstream that cannot be reached at all has another problem than large packets.
        let connected = self.dial.connect(self.packets, alive);
        let connected = connected.map(|stream| Connection::new(stream, self.dial.timeout));
        connected.inspect_err(|_| self.packets = Packets::Large)
    }

    /// Notes that a connection broke. If the upstream has not acknowledged what was sent, the next connection uses packets of the
    /// other size.
    fn broke(&mut self, connection: &Connection, error: io::Error) -> io::Error {
        if error.kind() != ErrorKind::TimedOut || !is_unheard(&connection.stream) {
            return error;
        }
        self.packets = self.packets.other();
        io::Error::new(ErrorKind::TimedOut, format!("{error}, and what was sent to it is not acknowledged"))
    }

    fn tell_of_small_packets(&mut self) {
        if !std::mem::replace(&mut self.told_of_small_packets, true) {
            let upstream = &self.dial.upstream;
            tracing::warn!(
                %upstream,
                "small packets reach the upstream after large ones did not: the path to it may drop large packets; check the \
                 MTU along it"
            );
        }
    }
}

impl Connection {
    fn new(stream: TcpStream, timeout: Duration) -> Self {
        Connection {
            stream,
            unanswered: VecDeque::new(),
            incoming: FrameReader::new(&Limits { max_frame_bytes: MAX_REPLY_BYTES, ..Limits::default() }),
            written: 0,
            silence: Silence::begin(timeout),
        }
    }

    /// Waits until there may be an answer, `bell` is rung, or until `due`.
    fn wait(&mut self, bell: Option<&Doorbell>, due: Option<Instant>) -> io::Result<()> {
        let awaited = self.unanswered.front().map(|oldest| oldest.end);
        let look_at = awaited.map(|_| self.silence.look_at());
        let due = [due, look_at].into_iter().flatten().min();
        let came = self.has_more(bell, due)? && self.read()?;
        let Some(end) = awaited.filter(|_| !came) else { return Ok(()) };
        // Only bytes of the oldest call count as progress: the kernel of a stalled peer still accepts some of the later calls.
        let of_oldest = || arrived(&self.stream, self.written).min(end);
        if self.silence.is_too_long(of_oldest) { Err(self.too_slow()) } else { Ok(()) }
    }

    /// Waits until the upstream sends something; false if the bell or the time ended the wait.
    fn has_more(&self, bell: Option<&Doorbell>, due: Option<Instant>) -> io::Result<bool> {
        let stream = Some(self.stream.as_fd());
        match bell {
            Some(bell) => bell.wait_beside(stream, due),
            None => wait_readable([stream], due).map(|[is_readable]| is_readable),
        }
    }

    /// The error after waiting too long for an answer.
    fn too_slow(&self) -> io::Error {
        let reason = if self.incoming.pending_bytes() == 0 {
            "it was silent for"
        } else {
            "its answer was incomplete after"
        };
        io::Error::new(ErrorKind::TimedOut, format!("{reason} {:?}", self.silence.timeout()))
    }

    /// Reads what has arrived; false if that is nothing.
    fn read(&mut self) -> io::Result<bool> {
        let mut bytes = [0; READ_BYTES];
        match self.stream.read(&mut bytes) {
            Ok(0) => Err(io::Error::new(ErrorKind::UnexpectedEof, "it closed the connection")),
            Ok(read) => {
                self.incoming.extend(&bytes[..read]);
                Ok(true)
            }
            Err(e) if is_retryable(&e) => Ok(false),
            Err(e) => Err(e),
        }
    }

    fn next_reply(&mut self) -> io::Result<Option<Reply>> {
        let Some(body) = self.incoming.next_frame().map_err(io::Error::other)? else { return Ok(None) };
        let reply = decode_reply(body, &Limits::default()).map_err(io::Error::other)?;
        if self.unanswered.pop_front().is_none_or(|call| call.sequence != reply.seq) {
            return Err(io::Error::other("the reply belongs to another call"));
        }
        self.silence.begin_anew();
        Ok(Some(match reply.outcome {
            Outcome::Result(ResultCode::Ok) => Reply::Ok,
            Outcome::Result(ResultCode::TryLater) => Reply::TryLater,
            Outcome::Exception(exception) if exception.kind == ExceptionKind::InternalError as i32 => {
                Reply::Failed(one_line(&exception.message))
            }
            Outcome::Exception(exception) => Reply::Refused(one_line(&exception.message)),
        }))
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn is_retryable(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

/// A stream whose short writes are repeated until there was no progress for `timeout`. Each write may write a part, or nothing.
struct Patient<'a, S> {
    stream: S,
    timeout: Duration,
    /// How many bytes the peer has received, from any starting point.
    arrived: fn(&S) -> u64,
    alive: Alive<'a>,
}

impl<S: Write> Write for Patient<'_, S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut silence = Silence::begin(self.timeout);
        loop {
            let written = match self.stream.write(bytes) {
                Err(e) if is_retryable(&e) => None,
                Ok(part) if part < bytes.len() => Some(part),
                done => return done,
            };
            // Whatever its kind, the error becomes `Other`: `write_all` would retry an `Interrupted` one.
            (self.alive)().map_err(io::Error::other)?;
            if let Some(part) = written {
                return Ok(part);
            }
            if silence.is_too_long(|| (self.arrived)(&self.stream)) {
                let silent = format!("it accepted no data for {:?}", self.timeout);
                return Err(io::Error::new(ErrorKind::TimedOut, silent));
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

#[cfg(test)]
mod tests;
