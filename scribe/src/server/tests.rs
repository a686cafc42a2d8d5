//! Connections whose calls arrive complete, in pieces, in part or not at all, and the answers to them.

use super::*;
use std::future::pending;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicUsize, Ordering};

use blkin_daemon::health::State;
use blkin_daemon::{Health, Places};
use blkin_thrift::scribe::{decode_reply, encode_log_call, parse_call};
use blkin_thrift::{Limits, scribe};
use proptest::collection::vec;
use proptest::prelude::*;
use tokio::sync::watch;

/// Settles the calls once `wanted` of them have arrived.
struct Together {
    wanted: usize,
    came: watch::Sender<usize>,
}

impl Service for Together {
    type Pending = ();

    fn call(&self, frame: &[u8], _: SocketAddr) -> Result<Answer<()>, blkin_thrift::Error> {
        let seq = parse_call(frame, &Limits::default()).map_err(|bad| bad.cause)?.seq;
        self.came.send_modify(|came| *came += 1);
        Ok(Answer::Later { seq, wants_reply: true, pending: () })
    }

    async fn settled(&self, (): ()) -> ResultCode {
        let mut came = self.came.subscribe();
        match came.wait_for(|came| *came >= self.wanted).await {
            Ok(_) => ResultCode::Ok,
            Err(_) => ResultCode::TryLater,
        }
    }
}

/// The client of a connection that is not over TCP.
const PEER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 7);

/// The only place of a server.
fn seat() -> Seat {
    Seat::new(Places::new(1).take().unwrap().assign_to(PEER.ip()))
}

fn options() -> Options {
    let long = Duration::from_secs(60);
    Options {
        max_frame_bytes: 1 << 20,
        max_connections: 1,
        idle_time: long,
        frame_time: long,
        budget: Budget::new(2 << 20, 1 << 20),
    }
}

#[tokio::test]
async fn calls_are_read_ahead_of_the_answers_which_keep_their_order() {
    const CALLS: i32 = MAX_PIPELINED as i32;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let service = Together { wanted: CALLS as usize, came: watch::Sender::new(0) };
    let stop = CancellationToken::new();
    let heartbeat = Health::new().worker("scribe");
    let serving = tokio::spawn(serve(listener, Arc::new(service), options(), stop.clone(), heartbeat));
    let calls: Vec<u8> = (0..CALLS).flat_map(|seq| encode_log_call(seq, &[])).collect();
    client.write_all(&calls).await.unwrap();
    for seq in 0..CALLS {
        let length = client.read_u32().await.unwrap() as usize;
        let mut reply = vec![0; length];
        client.read_exact(&mut reply).await.unwrap();
        let reply = decode_reply(&reply, &Limits::default()).unwrap();
        assert_eq!((reply.seq, reply.outcome), (seq, scribe::Outcome::Result(ResultCode::Ok)));
    }
    stop.cancel();
    serving.await.unwrap();
}

#[tokio::test]
async fn accepted_connections_notice_a_vanished_peer_within_a_minute() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let _client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (stream, _) = listener.accept().await.unwrap();
    enable_keepalive(&stream).unwrap();
    assert!(sockopt::socket_keepalive(&stream).unwrap());
    let again = sockopt::tcp_keepintvl(&stream).unwrap() * sockopt::tcp_keepcnt(&stream).unwrap();
    assert_eq!(sockopt::tcp_keepidle(&stream).unwrap() + again, Duration::from_secs(60));
    assert_eq!(sockopt::tcp_user_timeout(&stream).unwrap(), 60_000);
}

/// Keeps no call, and treats every client as one that wants no answer.
struct Full;

impl Service for Full {
    type Pending = ();

    fn call(&self, _: &[u8], _: SocketAddr) -> Result<Answer<()>, blkin_thrift::Error> {
        Ok(Answer::Later { seq: 0, wants_reply: false, pending: () })
    }

    async fn settled(&self, (): ()) -> ResultCode {
        ResultCode::TryLater
    }
}

#[tokio::test]
async fn oneway_call_that_is_not_kept_ends_its_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let stop = CancellationToken::new();
    let heartbeat = Health::new().worker("scribe");
    let serving = tokio::spawn(serve(listener, Arc::new(Full), options(), stop.clone(), heartbeat));
    client.write_all(&encode_log_call(0, &[])).await.unwrap();
    assert_eq!(client.read(&mut [0; 8]).await.unwrap(), 0);
    stop.cancel();
    serving.await.unwrap();
}

/// Settles each call with the result code that the test gives it.
struct AsTold;

impl Service for AsTold {
    type Pending = ResultCode;

    fn call(&self, _: &[u8], _: SocketAddr) -> Result<Answer<ResultCode>, blkin_thrift::Error> {
        Ok(Answer::Ready(Vec::new()))
    }

    async fn settled(&self, code: ResultCode) -> ResultCode {
        code
    }
}

#[tokio::test]
async fn kept_oneway_call_gets_no_reply_and_the_next_call_does() {
    let (answers, queue) = mpsc::channel(2);
    for (seq, wants_reply, pending) in [(1, false, ResultCode::Ok), (2, true, ResultCode::TryLater)] {
        answers.send(Answer::Later { seq, wants_reply, pending }).await.unwrap();
    }
    drop(answers);
    let mut written = Vec::new();
    write_answers(&mut written, queue, &AsTold, Duration::from_secs(60), &seat(), |_| {}).await;
    assert_eq!(written, encode_log_reply(2, ResultCode::TryLater));
}

/// Never settles a call.
#[derive(Default)]
struct Never(AtomicUsize);

impl Service for Never {
    type Pending = ();

    fn call(&self, _: &[u8], _: SocketAddr) -> Result<Answer<()>, blkin_thrift::Error> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(Answer::Later { seq: 0, wants_reply: true, pending: () })
    }

    async fn settled(&self, (): ()) -> ResultCode {
        pending().await
    }
}

#[tokio::test]
async fn calls_read_ahead_of_their_answers_are_limited() {
    let calls = encode_log_call(0, &[]).repeat(10 * MAX_PIPELINED);
    let (service, stop) = (Arc::new(Never::default()), CancellationToken::new());
    // Nothing takes answers out of the queue; one more call waits for a place in it.
    let (answers, _queue) = mpsc::channel(MAX_PIPELINED);
    let (options, seat) = (options(), seat());
    let reading = read_calls(&calls[..], &service, &options, &stop, (PEER, &seat), answers);
    assert!(tokio::time::timeout(Duration::from_millis(50), reading).await.is_err(), "all calls were read");
    assert_eq!(service.0.load(Ordering::Relaxed), MAX_PIPELINED + 1);
}

/// A connection to a service that settles each call, and the task that serves it.
fn connect(
    options: &Options,
    stop: &CancellationToken,
) -> (tokio::io::DuplexStream, tokio::task::JoinHandle<Result<(), Closing>>) {
    let (client, server) = tokio::io::duplex(1 << 20);
    let (reader, writer) = tokio::io::split(server);
    let (options, stop) = (options.clone(), stop.clone());
    let service = Arc::new(Together { wanted: 0, came: watch::Sender::new(0) });
    let (answers, queue) = mpsc::channel(MAX_PIPELINED);
    let serving = tokio::spawn(async move {
        let seat = seat();
        let reading = read_calls(reader, &service, &options, &stop, (PEER, &seat), answers);
        tokio::join!(reading, write_answers(writer, queue, &*service, options.frame_time, &seat, |_| {})).0
    });
    (client, serving)
}

/// A call with more bytes than a message may hold for free.
fn large_call() -> Vec<u8> {
    let entry = scribe::LogEntry { category: "zipkin".to_owned(), message: vec![b'A'; 100 << 10] };
    encode_log_call(1, &[entry])
}

#[tokio::test]
async fn frame_buffer_is_no_larger_than_its_granted_memory() {
    let (call, mut share) = (large_call(), options().budget.share());
    let (header, mut rest) = call.split_first_chunk().unwrap();
    let header = (*header, header.len());
    let body = read_frame(&mut rest, header, call.len(), &mut share, &seat()).await.unwrap();
    assert_eq!((body.len(), body.capacity()), (call.len() - header.1, body.len()));
}

/// Keeps the frames of its calls.
#[derive(Default)]
struct Kept(Mutex<Vec<Vec<u8>>>);

impl Service for Kept {
    type Pending = ();

    fn call(&self, frame: &[u8], _: SocketAddr) -> Result<Answer<()>, blkin_thrift::Error> {
        self.0.lock().unwrap().push(frame.to_vec());
        Ok(Answer::Ready(Vec::new()))
    }

    async fn settled(&self, (): ()) -> ResultCode {
        ResultCode::Ok
    }
}

/// Reads the calls of a connection whose bytes arrive in pieces of `piece`.
async fn read_by(piece: usize, bytes: &[u8]) -> (Vec<Vec<u8>>, Result<(), Closing>) {
    let (mut client, server) = tokio::io::duplex(piece);
    let (service, stop) = (Arc::new(Kept::default()), CancellationToken::new());
    let (answers, mut queue) = mpsc::channel(1);
    let (options, seat) = (options(), seat());
    let sending = async move { client.write_all(bytes).await.unwrap() };
    let reading = read_calls(server, &service, &options, &stop, (PEER, &seat), answers);
    let answering = async { while queue.recv().await.is_some() {} };
    let ((), closing, ()) = tokio::join!(sending, reading, answering);
    (std::mem::take(&mut *service.0.lock().unwrap()), closing)
}

proptest! {
    #[test]
    fn frames_are_read_intact_however_their_bytes_arrive(
        frames in vec(vec(any::<u8>(), 0..200), 1..5),
        piece in 1_usize..50,
        lost in 0_usize..4,
    ) {
        let framed = |frame: &Vec<u8>| [&(frame.len() as u32).to_be_bytes()[..], frame].concat();
        let mut bytes: Vec<u8> = frames.iter().flat_map(framed).collect();
        // Less than the header of the last frame.
        bytes.truncate(bytes.len() - lost);
        let whole = frames.len() - usize::from(lost > 0);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let (read, closing) = runtime.block_on(read_by(piece, &bytes));
        prop_assert_eq!(&read[..], &frames[..whole]);
        prop_assert_eq!(closing.is_err(), lost > 0, "{:?}", closing);
    }
}

#[tokio::test(start_paused = true)]
async fn announced_but_unsent_frames_block_no_other_client() {
    let (options, stop) = (options(), CancellationToken::new());
    let mut idle = Vec::new();
    for _ in 0..40 {
        let mut connection = connect(&options, &stop);
        connection.0.write_all(&(1_u32 << 20).to_be_bytes()).await.unwrap();
        idle.push(connection);
    }
    // Give the server time to read from all of them.
    tokio::time::sleep(Duration::from_millis(1)).await;
    let began = tokio::time::Instant::now();
    let (mut client, _serving) = connect(&options, &stop);
    client.write_all(&large_call()).await.unwrap();
    assert!(client.read_u32().await.unwrap() > 0);
    assert_eq!((began.elapsed(), options.budget.dropped()), (Duration::ZERO, 0));
}

#[tokio::test(start_paused = true)]
async fn half_a_frame_that_holds_memory_is_dropped_once_others_wait() {
    let (mut options, stop) = (options(), CancellationToken::new());
    // The whole budget is the lane: one message at a time.
    options.budget = Budget::new(1 << 20, 1 << 20);
    let (mut half, held) = connect(&options, &stop);
    let call = large_call();
    half.write_all(&call[..call.len() - 1]).await.unwrap();
    tokio::time::sleep(Duration::from_millis(1)).await;
    let (mut client, _serving) = connect(&options, &stop);
    client.write_all(&call).await.unwrap();
    assert!(client.read_u32().await.unwrap() > 0);
    assert!(matches!(held.await.unwrap(), Err(Closing::Denied(Denied::Slow))));
}

#[tokio::test(start_paused = true)]
async fn frame_timeout_includes_waiting_for_memory() {
    let (mut options, stop) = (options(), CancellationToken::new());
    options.budget = Budget::new(0, 0);
    let mut other = options.budget.share();
    other.grow(100 << 10).await.unwrap();
    let (mut client, serving) = connect(&options, &stop);
    client.write_all(&large_call()).await.unwrap();
    assert!(matches!(serving.await.unwrap(), Err(Closing::Slow)));
    assert_eq!(options.budget.waiting(), 0);
}

#[tokio::test(start_paused = true)]
async fn partial_or_waiting_frames_do_not_delay_the_stop() {
    let (mut options, stop) = (options(), CancellationToken::new());
    options.budget = Budget::new(0, 0);
    let call = large_call();
    let mut connections = Vec::new();
    for length in [4, call.len() - 1, call.len()] {
        let mut connection = connect(&options, &stop);
        connection.0.write_all(&call[..length]).await.unwrap();
        tokio::time::sleep(Duration::from_millis(1)).await;
        connections.push(connection);
    }
    assert_eq!(options.budget.waiting(), 1);
    let began = tokio::time::Instant::now();
    stop.cancel();
    for (_client, serving) in connections {
        serving.await.unwrap().unwrap();
    }
    assert_eq!(began.elapsed(), Duration::ZERO);
}

/// A server with a limit on connections, which settles all calls once a given number has arrived.
struct Serving {
    address: SocketAddr,
    service: Arc<Together>,
    health: Health,
    stop: CancellationToken,
    ended: tokio::task::JoinHandle<()>,
}

impl Serving {
    async fn start(wanted: usize, options: Options) -> Serving {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let service = Arc::new(Together { wanted, came: watch::Sender::new(0) });
        let (health, stop) = (Health::new(), CancellationToken::new());
        let serving = serve(listener, service.clone(), options, stop.clone(), health.worker("scribe"));
        Serving { address, service, health, ended: tokio::spawn(serving), stop }
    }

    /// A client whose call is not settled yet.
    async fn call(&self) -> TcpStream {
        let mut client = TcpStream::connect(self.address).await.unwrap();
        client.write_all(&encode_log_call(0, &[])).await.unwrap();
        self.service.came.subscribe().wait_for(|came| *came > 0).await.unwrap();
        client
    }
}

#[tokio::test]
async fn stopping_server_keeps_beating_and_refuses_connections() {
    let serving = Serving::start(2, options()).await;
    let mut client = serving.call().await;
    serving.stop.cancel();
    while TcpStream::connect(serving.address).await.is_ok() {}
    // The call is not answered yet: the server has to beat meanwhile.
    let mut before_ms = 0;
    loop {
        let workers = serving.health.report().workers;
        assert_eq!(workers[0].state, State::Alive);
        if workers[0].since_last_beat_ms < before_ms {
            break;
        }
        before_ms = workers[0].since_last_beat_ms;
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    serving.service.came.send_modify(|came| *came += 1);
    assert!(client.read_u32().await.unwrap() > 0);
    serving.ended.await.unwrap();
    assert!(serving.health.report().workers.is_empty());
}

#[tokio::test]
async fn stopping_server_denies_waiting_memory_requests() {
    let options = Options { budget: Budget::new(0, 0), ..options() };
    let (mut holding, mut waiting) = (options.budget.share(), options.budget.share());
    holding.grow(100 << 10).await.unwrap();
    let serving = Serving::start(1, options).await;
    serving.stop.cancel();
    assert_eq!(waiting.grow(100 << 10).await, Err(Denied::Stopping));
}

#[tokio::test(start_paused = true)]
async fn client_waiting_for_an_answer_keeps_its_place() {
    let serving = Serving::start(2, options()).await;
    let mut client = serving.call().await;
    let mut other = TcpStream::connect(serving.address).await.unwrap();
    assert_eq!(other.read(&mut [0]).await.unwrap(), 0, "the new connection is not turned away");
    serving.service.came.send_modify(|came| *came += 1);
    assert!(client.read_u32().await.unwrap() > 0);
}

#[tokio::test(start_paused = true)]
async fn client_that_reads_no_answer_in_time_is_sent_no_more() {
    let (answers, queue) = mpsc::channel(2);
    for seq in [1, 2] {
        let pending = ResultCode::Ok;
        answers.send(Answer::Later { seq, wants_reply: true, pending }).await.unwrap();
    }
    let (_deaf, writer) = tokio::io::duplex(1);
    let (began, patience) = (tokio::time::Instant::now(), Duration::from_secs(5));
    write_answers(writer, queue, &AsTold, patience, &seat(), |_| {}).await;
    assert_eq!(began.elapsed(), patience);
}

#[tokio::test(start_paused = true)]
async fn call_waiting_for_the_answer_queue_holds_no_memory() {
    let options = Options { budget: Budget::new(0, 0), ..options() };
    let (service, stop, seat) = (Arc::new(Never::default()), CancellationToken::new(), seat());
    let (answers, _queue) = mpsc::channel(1);
    let calls = large_call().repeat(2);
    let mut reading = Box::pin(read_calls(&calls[..], &service, &options, &stop, (PEER, &seat), answers));
    assert!(tokio::time::timeout(Duration::from_secs(1), &mut reading).await.is_err());
    assert_eq!(service.0.load(Ordering::Relaxed), 2);
    let mut other = options.budget.share();
    assert!(tokio::time::timeout(Duration::from_secs(1), other.grow(100 << 10)).await.is_ok());
}
