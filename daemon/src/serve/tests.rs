use std::net::Shutdown;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody, to_bytes};
use axum::extract::State;
use axum::http::{StatusCode, Uri, Version};
use axum::routing::{get, post};
use http_body::Frame;
use hyper::client::conn::http2::{Builder, SendRequest, handshake};
use hyper_util::rt::TokioExecutor;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;

use super::*;

const PATIENCE: Duration = Duration::from_secs(3600);
const LARGE: usize = 300_000;

/// Requests that wait for their answers: how many wait now, how many waited at most, and permits to answer them.
#[derive(Clone)]
struct Held {
    here: Arc<watch::Sender<(usize, usize)>>,
    answers: Arc<Semaphore>,
}

impl Held {
    async fn are(&self, count: usize) {
        self.here.subscribe().wait_for(|(here, _)| *here == count).await.unwrap();
    }

    async fn hold(State(held): State<Held>) -> &'static str {
        let _here = Here::one(held.clone());
        held.answers.acquire().await.unwrap().forget();
        "answered"
    }

    async fn endless(State(held): State<Held>) -> Body {
        Body::new(Endless(Here::one(held)))
    }
}

/// A request that waits for its answer.
struct Here(Held);

impl Here {
    fn one(held: Held) -> Here {
        held.here.send_modify(|(here, most)| (*here, *most) = (*here + 1, (*most).max(*here + 1)));
        Here(held)
    }
}

impl Drop for Here {
    fn drop(&mut self) {
        self.0.here.send_modify(|(here, _)| *here -= 1);
    }
}

/// An endless answer, sent for as long as the client reads it.
struct Endless(#[expect(dead_code)] Here);

impl HttpBody for Endless {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&[0; 8 << 10])))))
    }
}

struct Serving {
    address: SocketAddr,
    patience: Patience,
    held: Held,
    stop: CancellationToken,
    ended: JoinHandle<()>,
}

impl Serving {
    async fn start(patience: Duration) -> Serving {
        let patience = Patience::new(patience);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let held = Held { here: Arc::new(watch::Sender::new((0, 0))), answers: Arc::new(Semaphore::new(0)) };
        let router = Router::new()
            .route("/held", get(Held::hold))
            .route("/endless", get(Held::endless))
            .route("/large", get(async || "x".repeat(LARGE)))
            .route("/held/empty", get(async |held: State<Held>| _ = Held::hold(held).await))
            .route(
                "/length",
                post(async |body: Body| to_bytes(body, 64 << 20).await.unwrap().len().to_string()),
            )
            .route("/prepared", get(async |version: Version| format!("{version:?}")))
            .with_state(held.clone());
        let stop = CancellationToken::new();
        let server = Server::new(listener, router, 8, patience.clone()).prepared_by(|request| {
            if request.uri().path() == "/" {
                *request.uri_mut() = Uri::from_static("/prepared");
            }
        });
        Serving { address, patience, held, ended: tokio::spawn(server.serve(stop.clone())), stop }
    }

    /// An HTTP/2 connection that has received the server's settings.
    async fn http2(&self) -> SendRequest<Body> {
        self.http2_on_socket().await.0
    }

    /// An HTTP/2 connection that has received the server's settings, and its socket.
    async fn http2_on_socket(&self) -> (SendRequest<Body>, std::net::TcpStream) {
        let socket = TcpStream::connect(self.address).await.unwrap().into_std().unwrap();
        let stream = TcpStream::from_std(socket.try_clone().unwrap()).unwrap();
        let (mut client, connection) = handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        assert_eq!(said(get_of(&mut client, "/").await.unwrap()).await, (StatusCode::OK, "HTTP/2.0".into()));
        (client, socket)
    }
}

fn get_of(
    client: &mut SendRequest<Body>,
    path: &str,
) -> impl Future<Output = hyper::Result<hyper::Response<Incoming>>> + use<> {
    let uri = format!("http://here{path}");
    client.send_request(Request::builder().uri(uri).body(Body::empty()).unwrap())
}

async fn said(answer: hyper::Response<Incoming>) -> (StatusCode, String) {
    let (head, body) = answer.into_parts();
    let body = to_bytes(Body::new(body), 1 << 20).await.unwrap();
    (head.status, String::from_utf8(body.to_vec()).unwrap())
}

#[tokio::test]
async fn http1_and_http2_are_served_on_one_port() {
    let serving = Serving::start(PATIENCE).await;
    let _client = serving.http2().await;
    let mut stream = TcpStream::connect(serving.address).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK") && answer.ends_with("HTTP/1.1"), "{answer}");
}

#[tokio::test]
async fn concurrent_requests_of_a_connection_are_limited() {
    let serving = Serving::start(PATIENCE).await;
    let mut client = serving.http2().await;
    let asked: Vec<_> = (0..STREAMS + 4).map(|_| tokio::spawn(get_of(&mut client, "/held"))).collect();
    serving.held.are(STREAMS as usize).await;
    serving.held.answers.add_permits(asked.len());
    for answer in asked {
        assert_eq!(said(answer.await.unwrap().unwrap()).await, (StatusCode::OK, "answered".into()));
    }
    assert_eq!(serving.held.here.borrow().1, STREAMS as usize);
}

#[tokio::test]
async fn requests_beyond_one_per_connection_share_a_limit() {
    let serving = Serving::start(PATIENCE).await;
    let (mut first, mut second) = (serving.http2().await, serving.http2().await);
    let ask = |client: &mut SendRequest<Body>| tokio::spawn(get_of(client, "/held"));
    // One request for each connection, and a hundred that they share.
    let mut asked: Vec<_> = (0..STREAMS).map(|_| ask(&mut first)).collect();
    serving.held.are(STREAMS as usize).await;
    asked.extend([ask(&mut second), ask(&mut second)]);
    serving.held.are(STREAMS as usize + 2).await;
    let refused = get_of(&mut second, "/").await.unwrap();
    assert_eq!(refused.headers()["retry-after"], "1");
    assert_eq!(said(refused).await.0, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(said(get_of(&mut serving.http2().await, "/").await.unwrap()).await.0, StatusCode::OK);
    serving.held.answers.add_permits(asked.len());
    for answer in asked {
        assert_eq!(said(answer.await.unwrap().unwrap()).await, (StatusCode::OK, "answered".into()));
    }
    assert_eq!(said(get_of(&mut second, "/").await.unwrap()).await.0, StatusCode::OK);
}

#[tokio::test]
async fn cancelled_request_ends_and_its_connection_stays_usable() {
    let serving = Serving::start(PATIENCE).await;
    let mut client = serving.http2().await;
    let asked = tokio::spawn(get_of(&mut client, "/held"));
    serving.held.are(1).await;
    asked.abort();
    serving.held.are(0).await;
    assert_eq!(said(get_of(&mut client, "/").await.unwrap()).await.0, StatusCode::OK);
}

#[tokio::test]
async fn requests_under_way_at_the_stop_are_answered() {
    let serving = Serving::start(PATIENCE).await;
    let (mut client, _silent) = (serving.http2().await, TcpStream::connect(serving.address).await.unwrap());
    let asked = tokio::spawn(get_of(&mut client, "/held"));
    serving.held.are(1).await;
    serving.stop.cancel();
    // Wait until new connections are refused.
    while TcpStream::connect(serving.address).await.is_ok() {}
    serving.held.answers.add_permits(1);
    assert_eq!(said(asked.await.unwrap().unwrap()).await.1, "answered");
    serving.ended.await.unwrap();
    assert!(get_of(&mut client, "/").await.is_err());
}

#[tokio::test]
async fn unread_answer_is_dropped_and_its_connection_stays_usable() {
    let serving = Serving::start(Duration::from_millis(200)).await;
    let mut client = serving.http2().await;
    let _untaken = get_of(&mut client, "/endless").await.unwrap();
    while serving.held.here.borrow().0 > 0 {
        assert_eq!(said(get_of(&mut client, "/").await.unwrap()).await.0, StatusCode::OK);
    }
    assert_eq!(said(get_of(&mut client, "/").await.unwrap()).await.0, StatusCode::OK);
    assert_eq!(serving.patience.stalled(), 1);
}

/// An HTTP/2 connection with a window of `bytes` for each answer.
async fn with_window(serving: &Serving, bytes: usize) -> SendRequest<Body> {
    let stream = TcpStream::connect(serving.address).await.unwrap();
    let mut client = Builder::new(TokioExecutor::new());
    client.initial_stream_window_size(bytes as u32).initial_connection_window_size(10 * LARGE as u32);
    let (client, connection) = client.handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    client
}

#[tokio::test]
async fn last_part_of_an_answer_must_be_read_in_time_too() {
    let serving = Serving::start(Duration::from_millis(200)).await;
    for (window, is_taken) in [(LARGE - 1, false), (LARGE, true), (LARGE + 1, true)] {
        let mut client = with_window(&serving, window).await;
        let stalled = serving.patience.stalled();
        let answer = get_of(&mut client, "/large").await.unwrap();
        if !is_taken {
            while serving.patience.stalled() == stalled {
                assert_eq!(said(get_of(&mut client, "/").await.unwrap()).await.0, StatusCode::OK);
            }
            assert!(to_bytes(Body::new(answer.into_body()), LARGE).await.is_err());
            continue;
        }
        assert_eq!(said(answer).await.1.len(), LARGE);
        assert_eq!(serving.patience.stalled(), stalled);
    }
}

/// Requests a path by HTTP/2 with a window of `window` bytes for the answer, and closes the sending direction.
async fn ask_and_say_no_more(serving: &Serving, path: &str, window: u32) -> TcpStream {
    let frame = |kind: u8, flags: u8, stream: u8, payload: &[u8]| {
        [&[0, 0, payload.len() as u8, kind, flags, 0, 0, 0, stream][..], payload].concat()
    };
    // Headers by their index in RFC 7541, appendix A: GET, http, and a literal path.
    let head = [&[0x82, 0x86, 0x44, path.len() as u8], path.as_bytes()].concat();
    let initial_window = [&[0, 4][..], &window.to_be_bytes()].concat();
    let all = [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        frame(4, 0, 0, &initial_window),
        frame(8, 0, 0, &(LARGE as u32).to_be_bytes()),
        frame(1, 5, 1, &head),
    ];
    let mut stream = TcpStream::connect(serving.address).await.unwrap();
    stream.write_all(&all.concat()).await.unwrap();
    stream.shutdown().await.unwrap();
    stream
}

/// All frames until the end of the stream: their kinds and their payloads.
async fn frames(mut stream: TcpStream) -> Vec<(u8, Vec<u8>)> {
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    let (mut frames, mut rest) = (Vec::new(), &answer[..]);
    while let Some((head, behind)) = rest.split_first_chunk::<9>() {
        let (payload, next) = behind.split_at(usize::from(head[1]) << 8 | usize::from(head[2]));
        frames.push((head[3], payload.to_vec()));
        rest = next;
    }
    frames
}

#[tokio::test]
async fn client_that_shuts_down_writing_still_gets_its_answer() {
    let serving = Serving::start(PATIENCE).await;
    for (path, length) in [("/held/empty", 0), ("/held", "answered".len()), ("/large", LARGE)] {
        let stream = ask_and_say_no_more(&serving, path, LARGE as u32).await;
        if path.starts_with("/held") {
            serving.held.are(1).await;
            // An answer to a later connection shows that the server has read the first one.
            serving.http2().await;
            serving.held.answers.add_permits(1);
        }
        let frames = frames(stream).await;
        assert!(frames.iter().any(|(kind, _)| *kind == 1), "{path}: no head");
        let data = frames.iter().filter(|(kind, _)| *kind == 0).map(|(_, payload)| payload.len());
        assert_eq!(data.sum::<usize>(), length, "{path}");
    }
    // The server does not wait for a window that can never open.
    let frames = frames(ask_and_say_no_more(&serving, "/large", 1000).await).await;
    assert!(frames.iter().any(|(kind, payload)| (*kind, payload.len()) == (0, 1000)));
}

#[tokio::test]
async fn unread_answer_does_not_delay_the_stop() {
    let serving = Serving::start(PATIENCE).await;
    let mut client = serving.http2().await;
    let _untaken = get_of(&mut client, "/endless").await.unwrap();
    serving.stop.cancel();
    serving.ended.await.unwrap();
}

#[tokio::test]
async fn client_without_a_request_does_not_delay_the_stop() {
    let serving = Serving::start(PATIENCE).await;
    let mut silent = Vec::new();
    for begin in ["PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0", "GET / HTTP/1.1\r\n", ""] {
        let mut stream = TcpStream::connect(serving.address).await.unwrap();
        stream.write_all(begin.as_bytes()).await.unwrap();
        silent.push(stream);
    }
    // The server has answered the settings of the first peer.
    silent[0].read_u8().await.unwrap();
    serving.stop.cancel();
    serving.ended.await.unwrap();
}

#[tokio::test]
async fn unread_answer_is_dropped_once_its_client_is_gone() {
    let serving = Serving::start(PATIENCE).await;
    let (mut client, socket) = serving.http2_on_socket().await;
    let _untaken = get_of(&mut client, "/endless").await.unwrap();
    // The peer refuses nothing, since nothing more is sent.
    socket.shutdown(Shutdown::Write).unwrap();
    serving.held.are(0).await;
}

#[tokio::test]
async fn aborting_the_server_cancels_its_requests() {
    let serving = Serving::start(PATIENCE).await;
    let mut client = serving.http2().await;
    let _asked = tokio::spawn(get_of(&mut client, "/held"));
    serving.held.are(1).await;
    serving.ended.abort();
    serving.held.are(0).await;
}

#[tokio::test]
async fn request_head_beyond_the_limit_is_rejected() {
    let serving = Serving::start(PATIENCE).await;
    let mut client = serving.http2().await;
    for (length, status) in
        [(12 << 10, StatusCode::OK), (20 << 10, StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE)]
    {
        let request = Request::builder().uri("http://here/").header("long", "x".repeat(length));
        let answer = client.send_request(request.body(Body::empty()).unwrap()).await.unwrap();
        assert_eq!(said(answer).await.0, status, "{length}");
    }
}

#[tokio::test]
async fn body_may_exceed_the_flow_control_window() {
    let serving = Serving::start(PATIENCE).await;
    let mut client = serving.http2().await;
    let length = 4 * CONNECTION_WINDOW as usize;
    let request = Request::post("http://here/length").body(Body::from("x".repeat(length))).unwrap();
    assert_eq!(said(client.send_request(request).await.unwrap()).await.1, length.to_string());
}

// Time passes only while no task can make progress.
#[tokio::test(start_paused = true)]
async fn connection_with_an_incomplete_request_times_out() {
    let serving = Serving::start(Duration::from_secs(5)).await;
    for begin in ["", "PR", "PRI * HTTP/2.0\r\n", "GET /"] {
        let mut stream = TcpStream::connect(serving.address).await.unwrap();
        stream.write_all(begin.as_bytes()).await.unwrap();
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).await.unwrap();
    }
}
