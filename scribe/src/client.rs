//! One upstream: a connection that is made when it is needed, and made anew after any failure. Calls may be sent before
//! those ahead of them are answered; answers come in the order of the calls.

mod arrival;
mod dial;
mod silence;

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use blkin_thrift::scribe::{ExceptionKind, Outcome, ResultCode, decode_reply};
use blkin_thrift::{Limits, frame};

use crate::doorbell::{Doorbell, wait_readable};
use arrival::{arrived, is_unheard};
use dial::{Dial, Packets};
use silence::Silence;

/// Longest reply that is read.
const MAX_REPLY_BYTES: usize = 64 << 10;
/// What is read of replies at a time.
const READ_BYTES: usize = 4 << 10;
/// Longest wait for the system before the caller hears that the client still lives.
const SLICE: Duration = blkin_daemon::health::BEAT_EVERY;

/// Called at least every [`BEAT_EVERY`](blkin_daemon::health::BEAT_EVERY) while the upstream is waited for; its error ends
/// the wait.
pub type Alive<'a> = &'a mut dyn FnMut() -> io::Result<()>;

/// What an upstream said to a `Log` call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// It has the entries.
    Ok,
    /// It has none of them: the same call again, later.
    TryLater,
    /// It cannot read the call, and never will. What it says of that, on one line of a log.
    Refused(String),
    /// It failed over the call, and may have a part of it. Perhaps for its own reasons, such as a database that is away: then
    /// that ends; or because of what is in the call, of which it would fail again. What it says, on one line of a log.
    Failed(String),
}

/// A client of one upstream.
#[derive(Debug)]
pub struct Client {
    dial: Dial,
    /// Of the next connection.
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
    /// What was read of answers and not looked at.
    incoming: Vec<u8>,
    /// Bytes that were written.
    written: u64,
    /// Since the oldest of the calls became the oldest.
    silence: Silence,
}

#[derive(Debug)]
struct Unanswered {
    sequence: i32,
    /// Bytes that were written up to its end.
    end: u64,
}

impl Client {
    /// Not connected yet. Each step of a call (connecting, any progress of what is written, a whole answer) may take `timeout`.
    pub fn new(upstream: &str, timeout: Duration) -> Self {
        let (dial, packets) = (Dial::new(upstream, timeout), Packets::Large);
        Client { dial, packets, told_of_small_packets: false, connection: None, sequence: 0, was_sent: false }
    }

    /// Never calls who listens there: the caller itself, to whom the name of its upstream may lead one day.
    pub fn never_calling(self, own: SocketAddr) -> Self {
        Client { dial: Dial { own: Some(own), ..self.dial }, ..self }
    }

    /// Has the next call make a new connection; of use while nothing is unanswered.
    pub fn disconnect(&mut self) {
        self.connection = None;
    }

    /// Whether the last call got as far as being sent, so that the upstream may have it whatever became of the answer.
    pub fn was_sent(&self) -> bool {
        self.was_sent
    }

    /// Calls that were sent and not answered. After an error there are none: nobody will hear of them.
    pub fn unanswered(&self) -> usize {
        self.connection.as_ref().map_or(0, |connection| connection.unanswered.len())
    }

    /// Calls once and waits for the answer; nothing else may be unanswered. `request` writes the framed `Log` call of a
    /// sequence number.
    ///
    /// # Errors
    /// When the upstream cannot be reached, breaks off, is silent for too long or answers something else. It may have
    /// taken the entries all the same.
    pub fn log(&mut self, request: impl FnOnce(i32) -> Vec<u8>, alive: Alive<'_>) -> io::Result<Reply> {
        self.send(request, alive)?;
        self.reply(alive)
    }

    /// Sends a call behind those that are not answered. `request` writes the framed `Log` call of a sequence number.
    ///
    /// # Errors
    /// As [`log`](Client::log); every call that was not answered is then in the dark.
    pub fn send(&mut self, request: impl FnOnce(i32) -> Vec<u8>, alive: Alive<'_>) -> io::Result<()> {
        self.was_sent = false;
        let mut connection = match self.connection.take() {
            Some(connection) => {
                // Many calls may be sent one behind the other, each of which takes its time.
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
        // Whatever a failed call leaves under way on a connection belongs to nobody any more.
        let Some(mut connection) = self.connection.take() else { return Ok(None) };
        let reply = connection.next_reply()?;
        if reply.is_some() && self.packets == Packets::Small {
            self.tell_of_small_packets();
        }
        self.connection = Some(connection);
        Ok(reply)
    }

    /// Waits until there may be an answer, `bell` is rung, or until `due`, if there is such a time. A connection that the
    /// upstream closes while nothing waits for an answer is made anew by the next call.
    ///
    /// # Errors
    /// When the upstream breaks off, or is silent for too long.
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
        // Who cannot be reached at all is not out of reach of large packets only.
        let connected = self.dial.connect(self.packets, alive);
        let connected = connected.map(|stream| Connection::new(stream, self.dial.timeout));
        connected.inspect_err(|_| self.packets = Packets::Large)
    }

    /// A connection is of no use any more. If what was sent on it does not arrive, the next one has packets of another size.
    fn broke(&mut self, connection: &Connection, error: io::Error) -> io::Error {
        if error.kind() != ErrorKind::TimedOut || !is_unheard(&connection.stream) {
            return error;
        }
        self.packets = self.packets.other();
        io::Error::new(ErrorKind::TimedOut, format!("{error}, and what was sent to it does not arrive"))
    }

    fn tell_of_small_packets(&mut self) {
        if !std::mem::replace(&mut self.told_of_small_packets, true) {
            let upstream = &self.dial.upstream;
            tracing::warn!(
                %upstream,
                "it is reached by small packets after it was not by large ones: the path to it may drop these; look at the MTU \
                 along it"
            );
        }
    }
}

impl Connection {
    fn new(stream: TcpStream, timeout: Duration) -> Self {
        Connection {
            stream,
            unanswered: VecDeque::new(),
            incoming: Vec::new(),
            written: 0,
            silence: Silence::begin(timeout),
        }
    }

    /// Waits until there may be an answer, or one of the others ends the wait.
    fn wait(&mut self, bell: Option<&Doorbell>, due: Option<Instant>) -> io::Result<()> {
        let awaited = self.unanswered.front().map(|oldest| oldest.end);
        let look_at = awaited.map(|_| self.silence.look_at());
        let due = [due, look_at].into_iter().flatten().min();
        let came = self.has_more(bell, due)? && self.read()?;
        let Some(end) = awaited.filter(|_| !came) else { return Ok(()) };
        // What arrives of the calls behind it says nothing: a peer that stands still has a kernel that takes some.
        let of_oldest = || arrived(&self.stream, self.written).min(end);
        if self.silence.is_too_long(of_oldest) { Err(self.too_slow()) } else { Ok(()) }
    }

    /// Waits until the upstream says something; false when the bell or the time ended the wait.
    fn has_more(&self, bell: Option<&Doorbell>, due: Option<Instant>) -> io::Result<bool> {
        let stream = Some(self.stream.as_fd());
        match bell {
            Some(bell) => bell.wait_beside(stream, due),
            None => wait_readable([stream], due).map(|[is_readable]| is_readable),
        }
    }

    /// Why an answer that was waited for so long is waited for no longer.
    fn too_slow(&self) -> io::Error {
        let reason =
            if self.incoming.is_empty() { "it was silent for" } else { "its answer was not whole after" };
        io::Error::new(ErrorKind::TimedOut, format!("{reason} {:?}", self.silence.timeout()))
    }

    /// Reads what is there; false when that is nothing.
    fn read(&mut self) -> io::Result<bool> {
        let held = self.incoming.len();
        self.incoming.resize(held + READ_BYTES, 0);
        let read = self.stream.read(&mut self.incoming[held..]);
        self.incoming.truncate(held + read.as_ref().copied().unwrap_or(0));
        match read {
            Ok(0) => Err(io::Error::new(ErrorKind::UnexpectedEof, "it closed the connection")),
            Ok(_) => Ok(true),
            Err(e) if is_patience(&e) => Ok(false),
            Err(e) => Err(e),
        }
    }

    fn next_reply(&mut self) -> io::Result<Option<Reply>> {
        let Some((header, rest)) = self.incoming.split_first_chunk() else { return Ok(None) };
        let length = frame::read_length(*header, MAX_REPLY_BYTES).map_err(io::Error::other)?;
        let Some(body) = rest.get(..length) else { return Ok(None) };
        let reply = decode_reply(body, &Limits::default()).map_err(io::Error::other)?;
        if self.unanswered.pop_front().is_none_or(|call| call.sequence != reply.seq) {
            return Err(io::Error::other("the reply belongs to another call"));
        }
        self.incoming.drain(..frame::HEADER_BYTES + length);
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

fn is_patience(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

/// A stream whose short waits are repeated until there was no progress for `timeout`. Each of them ends with a part written, or
/// with nothing.
struct Patient<'a, S> {
    stream: S,
    timeout: Duration,
    /// What the peer has of what was written before, counted from anywhere.
    arrived: fn(&S) -> u64,
    alive: Alive<'a>,
}

impl<S: Write> Write for Patient<'_, S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut silence = Silence::begin(self.timeout);
        loop {
            let written = match self.stream.write(bytes) {
                Err(e) if is_patience(&e) => None,
                Ok(part) if part < bytes.len() => Some(part),
                done => return done,
            };
            // Of whatever kind: what is only interrupted, `write_all` would try again.
            (self.alive)().map_err(io::Error::other)?;
            if let Some(part) = written {
                return Ok(part);
            }
            if silence.is_too_long(|| (self.arrived)(&self.stream)) {
                let silent = format!("it took nothing for {:?}", self.timeout);
                return Err(io::Error::new(ErrorKind::TimedOut, silent));
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blkin_thrift::scribe::{LogEntry, encode_exception, encode_log_call, encode_log_reply};
    use socket2::{SockFilter, SockRef};
    use std::net::{Shutdown, TcpListener};

    /// Longest wait for anything, on whatever machine.
    const LIMIT: Duration = Duration::from_secs(60);

    fn is_connected(client: &Client) -> bool {
        client.connection.is_some()
    }

    fn call(client: &mut Client) -> io::Result<Reply> {
        let entry = LogEntry { category: "zipkin".into(), message: b"AA==".to_vec() };
        client.log(|seq| encode_log_call(seq, std::slice::from_ref(&entry)), &mut || Ok(()))
    }

    /// Answers each call by what `answer` makes of its sequence number; nothing ends the connection.
    fn server(answer: impl Fn(i32) -> Option<Vec<u8>> + Send + Copy + 'static) -> String {
        server_at(TcpListener::bind("127.0.0.1:0").unwrap(), answer)
    }

    fn server_at(
        listener: TcpListener,
        answer: impl Fn(i32) -> Option<Vec<u8>> + Send + Copy + 'static,
    ) -> String {
        let address = listener.local_addr().unwrap().to_string();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let stream = stream.unwrap();
                std::thread::spawn(move || serve(stream, answer));
            }
        });
        address
    }

    fn serve(mut stream: TcpStream, answer: impl Fn(i32) -> Option<Vec<u8>>) {
        let mut header = [0; 4];
        while stream.read_exact(&mut header).is_ok() {
            let mut body = vec![0; u32::from_be_bytes(header) as usize];
            stream.read_exact(&mut body).unwrap();
            let call = blkin_thrift::scribe::parse_call(&body, &Limits::default()).unwrap();
            let Some(reply) = answer(call.seq) else { break };
            stream.write_all(&reply).unwrap();
        }
    }

    #[test]
    fn answers_are_told_apart_and_the_connection_is_kept() {
        let address = server(|seq| {
            let code = if seq == 1 { ResultCode::Ok } else { ResultCode::TryLater };
            Some(encode_log_reply(seq, code))
        });
        let mut client = Client::new(&address, LIMIT);
        assert_eq!(call(&mut client).unwrap(), Reply::Ok);
        assert!(is_connected(&client));
        assert_eq!(call(&mut client).unwrap(), Reply::TryLater);
    }

    #[test]
    fn what_an_upstream_says_of_a_refusal_makes_no_lines_of_its_own() {
        let said = "bad\n2026-11-24T00:00:00Z INFO all is well\r\u{2028}\n";
        let address =
            server(move |seq| Some(encode_exception("Log", seq, ExceptionKind::ProtocolError, said)));
        let refused = Reply::Refused("bad 2026-11-24T00:00:00Z INFO all is well".into());
        assert_eq!(call(&mut Client::new(&address, LIMIT)).unwrap(), refused);
    }

    #[test]
    fn a_reply_to_another_call_or_none_ends_the_connection() {
        let mut client = Client::new(&server(|seq| Some(encode_log_reply(seq + 1, ResultCode::Ok))), SLICE);
        assert!(call(&mut client).is_err() && !is_connected(&client));
        let mut client = Client::new(&server(|_| None), SLICE);
        assert!(call(&mut client).is_err() && !is_connected(&client));
    }

    #[test]
    fn what_the_upstream_does_not_take_is_not_taken_for_written() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        SockRef::from(&listener).set_recv_buffer_size(64 << 10).unwrap();
        let mut client = Client::new(&listener.local_addr().unwrap().to_string(), SLICE);
        let error = client.send(|_| vec![0; 1 << 20], &mut || Ok(())).unwrap_err();
        assert!(error.to_string().starts_with("it took nothing"), "{error}");
    }

    #[test]
    fn a_connection_that_takes_nothing_any_more_is_given_up_at_once() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = Client::new(&listener.local_addr().unwrap().to_string(), SLICE);
        client.send(|seq| encode_log_call(seq, &[]), &mut || Ok(())).unwrap();
        client.connection.as_ref().unwrap().stream.shutdown(Shutdown::Write).unwrap();
        let error = client.send(|seq| encode_log_call(seq, &[]), &mut || Ok(())).unwrap_err();
        assert_eq!((error.kind(), is_connected(&client)), (ErrorKind::BrokenPipe, false));
    }

    #[test]
    fn an_answer_may_come_byte_by_byte_and_several_at_once() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = Client::new(&listener.local_addr().unwrap().to_string(), LIMIT);
        for _ in 0..3 {
            client.send(|seq| encode_log_call(seq, &[]), &mut || Ok(())).unwrap();
        }
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_nodelay(true).unwrap();
        let answers: Vec<u8> = (1..4).flat_map(|seq| encode_log_reply(seq, ResultCode::Ok)).collect();
        let (single, rest) = answers.split_at(7);
        let answering = std::thread::spawn({
            let (single, rest) = (single.to_vec(), rest.to_vec());
            move || {
                single.iter().for_each(|byte| stream.write_all(&[*byte]).unwrap());
                stream.write_all(&rest).unwrap();
                stream
            }
        });
        for left in [2, 1, 0] {
            assert_eq!(client.reply(&mut || Ok(())).unwrap(), Reply::Ok);
            assert_eq!(client.unanswered(), left);
        }
        // Nothing is unanswered: that it closes is no failure.
        drop(answering.join().unwrap());
        while is_connected(&client) {
            client.wait(None, Some(Instant::now() + SLICE)).unwrap();
        }
    }

    #[test]
    fn an_answer_that_does_not_end_is_not_taken_for_silence() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = Client::new(&listener.local_addr().unwrap().to_string(), SLICE);
        client.send(|seq| encode_log_call(seq, &[]), &mut || Ok(())).unwrap();
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(&[0]).unwrap();
        let error = client.reply(&mut || Ok(())).unwrap_err().to_string();
        assert!(error.starts_with("its answer was not whole after"), "{error}");
    }

    #[test]
    fn the_caller_s_own_address_is_never_called() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let own = listener.local_addr().unwrap();
        let upstream = format!("localhost:{}", own.port());
        let mut client = Client::new(&upstream, LIMIT).never_calling(own);
        let error = call(&mut client).unwrap_err().to_string();
        // The name has other addresses too, perhaps, at which nobody listens.
        assert!(error.contains("itself listens") || error.contains("refused"), "{error}");
        assert!(!client.was_sent());
        assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
    }

    #[test]
    fn a_caller_who_ends_does_not_wait_for_an_upstream_that_reads_nothing() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = Client::new(&listener.local_addr().unwrap().to_string(), Duration::from_secs(60));
        let mut asked = 0;
        // Once to connect, and once while the system takes no more.
        let mut alive = || {
            asked += 1;
            assert!(asked < 9, "it goes on in spite of the end");
            if asked < 2 { Ok(()) } else { Err(io::Error::new(ErrorKind::Interrupted, "the end")) }
        };
        let error = client.send(|_| vec![0; 64 << 20], &mut alive).unwrap_err();
        assert_eq!((error.to_string().as_str(), asked), ("the end", 2));
    }

    /// Takes a byte at a time.
    struct Dripping(usize);

    impl Write for Dripping {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            self.0 += 1;
            Ok(1)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_caller_hears_of_the_wait_and_ends_it_while_an_upstream_takes_little_by_little() {
        let mut asked = 0;
        let mut alive = || {
            asked += 1;
            if asked < 5 { Ok(()) } else { Err(io::Error::new(ErrorKind::Interrupted, "the end")) }
        };
        let mut patient = Patient { stream: Dripping(0), timeout: LIMIT, arrived: |_| 0, alive: &mut alive };
        assert_eq!(patient.write_all(&[0; 100]).unwrap_err().to_string(), "the end");
        assert_eq!((patient.stream.0, asked), (5, 5));
    }

    #[test]
    fn a_caller_hears_of_every_call_and_none_waits_for_an_answer_once_it_ends() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = Client::new(&listener.local_addr().unwrap().to_string(), LIMIT);
        let mut asked = 0;
        let mut alive = || {
            asked += 1;
            if asked < 4 { Ok(()) } else { Err(io::Error::new(ErrorKind::Interrupted, "the end")) }
        };
        for sent in 1..4 {
            client.send(|seq| encode_log_call(seq, &[]), &mut alive).unwrap();
            assert_eq!(client.unanswered(), sent);
        }
        assert!(client.send(|seq| encode_log_call(seq, &[]), &mut alive).is_err());
        assert_eq!((client.unanswered(), client.was_sent()), (0, false));
    }

    #[test]
    fn a_call_that_gets_on_may_take_longer_than_the_timeout() {
        const TIMEOUT: Duration = Duration::from_millis(800);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        SockRef::from(&listener).set_recv_buffer_size(4 << 10).unwrap();
        let mut client = Client::new(&listener.local_addr().unwrap().to_string(), TIMEOUT);
        let reading = std::thread::spawn(move || {
            let (mut stream, began) = (listener.accept().unwrap().0, Instant::now());
            // Less than what waits in the client's kernel once all of it is written.
            let mut bytes = [0; 4 << 10];
            for _ in 0..32 {
                stream.read_exact(&mut bytes).unwrap();
                std::thread::sleep(TIMEOUT / 8);
            }
            stream.write_all(&encode_log_reply(1, ResultCode::Ok)).unwrap();
            began.elapsed()
        });
        let replied = client.log(|_| vec![0; 128 << 10], &mut || Ok(()));
        assert_eq!(replied.unwrap(), Reply::Ok);
        assert!(reading.join().unwrap() > TIMEOUT * 3);
    }

    #[test]
    fn calls_that_arrive_behind_one_that_is_not_answered_are_no_answer() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = Client::new(&listener.local_addr().unwrap().to_string(), SLICE * 2);
        let began = Instant::now();
        let error = loop {
            client.send(|seq| encode_log_call(seq, &[]), &mut || Ok(())).unwrap();
            if let Err(error) = client.wait(None, Some(Instant::now() + SLICE / 8)) {
                break error;
            }
            assert!(began.elapsed() < SLICE * 6, "it is waited for although it is silent");
        };
        assert_eq!(error.kind(), ErrorKind::TimedOut);
    }

    #[test]
    fn a_bell_or_a_time_ends_the_wait_for_an_answer_and_not_the_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = Client::new(&listener.local_addr().unwrap().to_string(), LIMIT);
        client.send(|seq| encode_log_call(seq, &[]), &mut || Ok(())).unwrap();
        // Whoever reads before there is something to be read would wait until it is given up.
        client.connection.as_ref().unwrap().stream.set_read_timeout(Some(LIMIT)).unwrap();
        let bell = Doorbell::new().unwrap();
        bell.ring();
        client.wait(Some(&bell), None).unwrap();
        client.wait(Some(&bell), Some(Instant::now())).unwrap();
        assert_eq!(client.unanswered(), 1);
    }

    /// A program for packets (bpf(4)) that drops what is longer than so many bytes.
    fn drop_longer(than: u32) -> [SockFilter; 4] {
        const LOAD_LENGTH: u16 = 0x80;
        const JUMP_IF_GREATER: u16 = 0x25;
        const RETURN: u16 = 0x06;
        [
            SockFilter::new(LOAD_LENGTH, 0, 0, 0),
            SockFilter::new(JUMP_IF_GREATER, 1, 0, than),
            SockFilter::new(RETURN, 0, 0, u32::MAX),
            SockFilter::new(RETURN, 0, 0, 0),
        ]
    }

    #[test]
    fn an_upstream_that_large_packets_do_not_reach_is_sent_small_ones() {
        for host in ["127.0.0.1:0", "[::1]:0"] {
            let listener = TcpListener::bind(host).unwrap();
            SockRef::from(&listener).attach_filter(&drop_longer(1280)).unwrap();
            let address = server_at(listener, |seq| Some(encode_log_reply(seq, ResultCode::Ok)));
            let mut client = Client::new(&address, SLICE * 4);
            let entry = LogEntry { category: "zipkin".into(), message: vec![b'A'; 2000] };
            let call = |seq| encode_log_call(seq, std::slice::from_ref(&entry));
            let error = client.log(call, &mut || Ok(())).unwrap_err().to_string();
            assert!(error.ends_with("what was sent to it does not arrive"), "{error}");
            assert_eq!(client.log(call, &mut || Ok(())).unwrap(), Reply::Ok);
        }
    }

    #[test]
    fn packets_stay_large_for_who_is_silent_or_not_there() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = Client::new(&listener.local_addr().unwrap().to_string(), SLICE);
        let error = call(&mut client).unwrap_err().to_string();
        assert!(error.starts_with("it was silent"), "{error}");
        assert_eq!(client.packets, Packets::Large);
        client.packets = Packets::Small;
        drop(listener);
        assert!(call(&mut client).is_err());
        assert_eq!(client.packets, Packets::Large);
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
        // Once to connect, and then once a slice: whoever waits does not spin.
        assert!((2..=5).contains(&heard), "{heard}");
    }
}
