//! A client, and upstreams that answer, are silent, close the connection, or do not read.

use super::*;
use blkin_thrift::scribe::{LogEntry, encode_exception, encode_log_call, encode_log_reply};
use socket2::{SockFilter, SockRef};
use std::net::{Shutdown, TcpListener};

/// Longest wait for anything, even on a slow machine.
const LIMIT: Duration = Duration::from_secs(60);

fn is_connected(client: &Client) -> bool {
    client.connection.is_some()
}

fn call(client: &mut Client) -> io::Result<Reply> {
    let entry = LogEntry { category: "zipkin".into(), message: b"AA==".to_vec() };
    client.log(|seq| encode_log_call(seq, std::slice::from_ref(&entry)), &mut || Ok(()))
}

/// Answers each call with what `answer` returns for its sequence number; `None` ends the connection.
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
fn ok_and_try_later_are_distinguished_on_one_connection() {
    let address = server(|seq| {
        let code = if seq == 1 { ResultCode::Ok } else { ResultCode::TryLater };
        Some(encode_log_reply(seq, code))
    });
    let mut client = Client::new(&address, LIMIT);
    assert_eq!(call(&mut client).unwrap(), Reply::Ok);
    assert!(is_connected(&client));
    assert_eq!(call(&mut client).unwrap(), Reply::TryLater);
    client.disconnect();
    assert!(!is_connected(&client));
}

#[test]
fn answer_timeout_starts_with_the_call_not_the_idle_time() {
    let mut client = Client::new(&server(|seq| Some(encode_log_reply(seq, ResultCode::Ok))), LIMIT);
    call(&mut client).unwrap();
    let look_at = |client: &Client| client.connection.as_ref().unwrap().silence.look_at();
    let idle = look_at(&client);
    client.send(|seq| encode_log_call(seq, &[]), &mut || Ok(())).unwrap();
    assert!(look_at(&client) > idle);
}

#[test]
fn refusal_text_is_reduced_to_a_single_line() {
    let said = "bad\n2026-11-24T00:00:00Z INFO all is well\r\u{2028}\n";
    let address = server(move |seq| Some(encode_exception("Log", seq, ExceptionKind::ProtocolError, said)));
    let refused = Reply::Refused("bad 2026-11-24T00:00:00Z INFO all is well".into());
    assert_eq!(call(&mut Client::new(&address, LIMIT)).unwrap(), refused);
}

#[test]
fn wrong_or_missing_reply_ends_the_connection() {
    let mut client = Client::new(&server(|seq| Some(encode_log_reply(seq + 1, ResultCode::Ok))), SLICE);
    assert!(call(&mut client).is_err() && !is_connected(&client));
    let mut client = Client::new(&server(|_| None), SLICE);
    assert!(call(&mut client).is_err() && !is_connected(&client));
}

#[test]
fn send_fails_if_the_upstream_reads_nothing() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    SockRef::from(&listener).set_recv_buffer_size(64 << 10).unwrap();
    let mut client = Client::new(&listener.local_addr().unwrap().to_string(), SLICE);
    let error = client.send(|_| vec![0; 1 << 20], &mut || Ok(())).unwrap_err();
    assert!(error.to_string().starts_with("it accepted no data"), "{error}");
}

#[test]
fn failed_write_drops_the_connection_at_once() {
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
    // No call is unanswered, so that a closed connection is not a failure.
    drop(answering.join().unwrap());
    while is_connected(&client) {
        client.wait(None, Some(Instant::now() + SLICE)).unwrap();
    }
}

#[test]
fn incomplete_answer_is_not_reported_as_silence() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut client = Client::new(&listener.local_addr().unwrap().to_string(), SLICE);
    client.send(|seq| encode_log_call(seq, &[]), &mut || Ok(())).unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    stream.write_all(&[0]).unwrap();
    let error = client.reply(&mut || Ok(())).unwrap_err().to_string();
    assert!(error.starts_with("its answer was incomplete after"), "{error}");
}

#[test]
fn callers_own_address_is_never_called() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let own = listener.local_addr().unwrap();
    let upstream = format!("localhost:{}", own.port());
    let mut client = Client::new(&upstream, LIMIT).never_calling(own);
    let error = call(&mut client).unwrap_err().to_string();
    // The name may have other addresses too, at which nothing listens.
    assert!(error.contains("itself listens") || error.contains("refused"), "{error}");
    assert!(!client.was_sent());
    assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
}

#[test]
fn stopping_caller_does_not_wait_for_a_stalled_upstream() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut client = Client::new(&listener.local_addr().unwrap().to_string(), Duration::from_secs(60));
    let mut asked = 0;
    // Once while connecting, and once while the system accepts no more data.
    let mut alive = || {
        asked += 1;
        assert!(asked < 9, "the client goes on although its caller stopped it");
        if asked < 2 { Ok(()) } else { Err(io::Error::new(ErrorKind::Interrupted, "the end")) }
    };
    let error = client.send(|_| vec![0; 64 << 20], &mut alive).unwrap_err();
    assert_eq!((error.to_string().as_str(), asked), ("the end", 2));
}

/// Accepts one byte per write.
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
fn caller_can_stop_a_write_that_advances_slowly() {
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
fn alive_callback_runs_on_every_call_and_can_stop_the_client() {
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
fn call_that_makes_progress_may_exceed_the_timeout() {
    const TIMEOUT: Duration = Duration::from_millis(800);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    SockRef::from(&listener).set_recv_buffer_size(4 << 10).unwrap();
    let mut client = Client::new(&listener.local_addr().unwrap().to_string(), TIMEOUT);
    let reading = std::thread::spawn(move || {
        let (mut stream, began) = (listener.accept().unwrap().0, Instant::now());
        // Less than what waits in the client's kernel after everything was written.
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
fn further_calls_do_not_extend_the_wait_for_an_answer() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut client = Client::new(&listener.local_addr().unwrap().to_string(), SLICE * 2);
    let began = Instant::now();
    let error = loop {
        client.send(|seq| encode_log_call(seq, &[]), &mut || Ok(())).unwrap();
        if let Err(error) = client.wait(None, Some(Instant::now() + SLICE / 8)) {
            break error;
        }
        assert!(began.elapsed() < SLICE * 6, "the client still waits for a silent upstream");
    };
    assert_eq!(error.kind(), ErrorKind::TimedOut);
}

#[test]
fn bell_or_deadline_ends_the_wait_but_not_the_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut client = Client::new(&listener.local_addr().unwrap().to_string(), LIMIT);
    client.send(|seq| encode_log_call(seq, &[]), &mut || Ok(())).unwrap();
    // Without checking first whether there is anything to read, the client would wait until this timeout.
    client.connection.as_ref().unwrap().stream.set_read_timeout(Some(LIMIT)).unwrap();
    let bell = Doorbell::new().unwrap();
    bell.ring();
    client.wait(Some(&bell), None).unwrap();
    client.wait(Some(&bell), Some(Instant::now())).unwrap();
    assert_eq!(client.unanswered(), 1);
}

/// A packet filter (bpf(4)) that drops packets with more than `than` bytes.
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
fn small_packets_are_used_if_large_ones_do_not_arrive() {
    for host in ["127.0.0.1:0", "[::1]:0"] {
        let listener = TcpListener::bind(host).unwrap();
        SockRef::from(&listener).attach_filter(&drop_longer(1280)).unwrap();
        let address = server_at(listener, |seq| Some(encode_log_reply(seq, ResultCode::Ok)));
        let mut client = Client::new(&address, SLICE * 4);
        let entry = LogEntry { category: "zipkin".into(), message: vec![b'A'; 2000] };
        let long = |seq| encode_log_call(seq, std::slice::from_ref(&entry));
        assert_eq!(call(&mut client).unwrap(), Reply::Ok);
        let error = client.log(long, &mut || Ok(())).unwrap_err().to_string();
        assert!(error.ends_with("what was sent to it is not acknowledged"), "{error}");
        assert!(!client.told_of_small_packets);
        assert_eq!(client.log(long, &mut || Ok(())).unwrap(), Reply::Ok);
        assert!(client.told_of_small_packets);
    }
}

#[test]
fn packets_stay_large_for_silent_or_unreachable_upstreams() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut client = Client::new(&listener.local_addr().unwrap().to_string(), SLICE);
    let error = call(&mut client).unwrap_err().to_string();
    assert!(error.starts_with("it was silent"), "{error}");
    assert_eq!(client.packets, Packets::Large);
    client.packets = Packets::Small;
    assert!(call(&mut client).is_err());
    assert!(!client.told_of_small_packets, "small packets do not reach it either");
    drop(listener);
    assert!(call(&mut client).is_err());
    assert_eq!(client.packets, Packets::Large);
}

#[test]
fn silent_upstream_times_out_and_the_caller_is_polled() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut client = Client::new(&listener.local_addr().unwrap().to_string(), SLICE * 2);
    let mut heard = 0;
    let mut alive = || {
        heard += 1;
        Ok(())
    };
    let error = client.log(|seq| encode_log_call(seq, &[]), &mut alive).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    // Once while connecting, and then once per slice: the wait does not spin.
    assert!((2..=5).contains(&heard), "{heard}");
}
