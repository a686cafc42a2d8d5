//! One upstream: a connection that is made when it is needed, and made anew after any failure.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use blkin_thrift::scribe::{Outcome, ResultCode, decode_reply};
use blkin_thrift::{Limits, frame};

/// Longest reply that is read.
const MAX_REPLY_BYTES: usize = 64 << 10;
/// Longest wait for the system before the caller hears that the client still lives.
const SLICE: Duration = blkin_daemon::health::BEAT_EVERY;

/// What an upstream said to a `Log` call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// It has the entries.
    Ok,
    /// It has none of them: the same call again, later.
    TryLater,
    /// It cannot read the call, and never will.
    Refused(String),
}

/// A client of one upstream.
#[derive(Debug)]
pub struct Client {
    upstream: String,
    timeout: Duration,
    connection: Option<TcpStream>,
    sequence: i32,
    was_sent: bool,
}

impl Client {
    /// Not connected yet. Each step of a call (connecting, any progress of writing, of reading) may take `timeout`.
    pub fn new(upstream: &str, timeout: Duration) -> Self {
        Client { upstream: upstream.to_owned(), timeout, connection: None, sequence: 0, was_sent: false }
    }

    /// Whether the last call left a connection that can be used again.
    pub fn is_connected(&self) -> bool {
        self.connection.is_some()
    }

    /// Whether the last call got as far as being sent, so that the upstream may have it whatever became of the answer.
    pub fn was_sent(&self) -> bool {
        self.was_sent
    }

    /// Calls once. `request` writes the framed `Log` call of a sequence number; `alive` is called at least every
    /// [`BEAT_EVERY`](blkin_daemon::health::BEAT_EVERY) while the upstream is waited for, and ends the wait by an error.
    ///
    /// # Errors
    /// When the upstream cannot be reached, breaks off, is silent for too long or answers something else. It may have
    /// taken the entries all the same.
    pub fn log(
        &mut self,
        request: impl FnOnce(i32) -> Vec<u8>,
        alive: &mut dyn FnMut() -> io::Result<()>,
    ) -> io::Result<Reply> {
        self.was_sent = false;
        // Whatever a failed call left under way on a connection belongs to nobody any more.
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => connect(&self.upstream, self.timeout, alive)?,
        };
        self.sequence = self.sequence.wrapping_add(1);
        let request = request(self.sequence);
        self.was_sent = true;
        let mut patient = Patient { stream: &mut connection, timeout: self.timeout, alive };
        patient.write_all(&request)?;
        let reply = read_reply(&mut patient, self.sequence)?;
        self.connection = Some(connection);
        Ok(reply)
    }
}

fn read_reply(connection: &mut impl Read, sequence: i32) -> io::Result<Reply> {
    let mut header = [0; frame::HEADER_BYTES];
    connection.read_exact(&mut header)?;
    let length = frame::read_length(header, MAX_REPLY_BYTES).map_err(io::Error::other)?;
    let mut body = vec![0; length];
    connection.read_exact(&mut body)?;
    let reply = decode_reply(&body, &Limits::default()).map_err(io::Error::other)?;
    if reply.seq != sequence {
        return Err(io::Error::other("the reply belongs to another call"));
    }
    Ok(match reply.outcome {
        Outcome::Result(ResultCode::Ok) => Reply::Ok,
        Outcome::Result(ResultCode::TryLater) => Reply::TryLater,
        Outcome::Exception(exception) => Reply::Refused(exception.message),
    })
}

fn connect(
    upstream: &str,
    timeout: Duration,
    alive: &mut dyn FnMut() -> io::Result<()>,
) -> io::Result<TcpStream> {
    let mut last = io::Error::new(ErrorKind::NotFound, "the name has no address");
    for address in upstream.to_socket_addrs()? {
        alive()?;
        // A handshake that takes longer than a second would be sent again by the kernel anyway.
        match TcpStream::connect_timeout(&address, timeout.min(Duration::from_secs(1))) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(SLICE))?;
                stream.set_write_timeout(Some(SLICE))?;
                return Ok(stream);
            }
            Err(e) => last = e,
        }
    }
    Err(last)
}

/// A stream whose short waits are repeated until there was no progress for `timeout`.
struct Patient<'a> {
    stream: &'a mut TcpStream,
    timeout: Duration,
    alive: &'a mut dyn FnMut() -> io::Result<()>,
}

impl Patient<'_> {
    fn wait<T>(&mut self, mut step: impl FnMut(&mut TcpStream) -> io::Result<T>) -> io::Result<T> {
        let began = Instant::now();
        loop {
            match step(self.stream) {
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                done => return done,
            }
            (self.alive)()?;
            if began.elapsed() >= self.timeout {
                let silent = format!("it was silent for {:?}", self.timeout);
                return Err(io::Error::new(ErrorKind::TimedOut, silent));
            }
        }
    }
}

impl Read for Patient<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.wait(|stream| stream.read(buffer))
    }
}

impl Write for Patient<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.wait(|stream| stream.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blkin_thrift::scribe::{LogEntry, encode_log_call, encode_log_reply};
    use std::net::TcpListener;

    fn call(client: &mut Client) -> io::Result<Reply> {
        let entry = LogEntry { category: "zipkin".into(), message: b"AA==".to_vec() };
        client.log(|seq| encode_log_call(seq, std::slice::from_ref(&entry)), &mut || Ok(()))
    }

    /// Answers each call by what `answer` makes of its sequence number; nothing ends the connection.
    fn server(answer: impl Fn(i32) -> Option<Vec<u8>> + Send + 'static) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut header = [0; 4];
                while stream.read_exact(&mut header).is_ok() {
                    let mut body = vec![0; u32::from_be_bytes(header) as usize];
                    stream.read_exact(&mut body).unwrap();
                    let call = blkin_thrift::scribe::parse_call(&body, &Limits::default()).unwrap();
                    let Some(reply) = answer(call.seq) else { break };
                    stream.write_all(&reply).unwrap();
                }
            }
        });
        address
    }

    #[test]
    fn answers_are_told_apart_and_the_connection_is_kept() {
        let address = server(|seq| {
            let code = if seq == 1 { ResultCode::Ok } else { ResultCode::TryLater };
            Some(encode_log_reply(seq, code))
        });
        let mut client = Client::new(&address, Duration::from_secs(5));
        assert_eq!(call(&mut client).unwrap(), Reply::Ok);
        assert!(client.is_connected());
        assert_eq!(call(&mut client).unwrap(), Reply::TryLater);
    }

    #[test]
    fn a_reply_to_another_call_or_none_ends_the_connection() {
        let mut client = Client::new(&server(|seq| Some(encode_log_reply(seq + 1, ResultCode::Ok))), SLICE);
        assert!(call(&mut client).is_err() && !client.is_connected());
        let mut client = Client::new(&server(|_| None), SLICE);
        assert!(call(&mut client).is_err() && !client.is_connected());
    }

    #[test]
    fn a_silent_upstream_is_given_up_and_the_caller_hears_of_the_wait() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = Client::new(&listener.local_addr().unwrap().to_string(), SLICE * 2);
        let mut heard = 0;
        let mut alive = || {
            heard += 1;
            Ok(())
        };
        let error = client.log(|seq| encode_log_call(seq, &[]), &mut alive).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert!(heard >= 2, "{heard}");
    }
}
