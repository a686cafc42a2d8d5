//! The Scribe server: framed TBinary, requests of one connection pipelined and answered in order.
//!
//! A [`Service`] handles the calls. A call that cannot be read is answered with an exception; input that cannot even be cut into
//! frames ends its connection.

mod door;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use blkin_daemon::{CancellationToken, Heartbeat, Notices};
use blkin_thrift::frame;
use blkin_thrift::scribe::{ResultCode, encode_log_reply};
use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::{Budget, Denied, Share};
use door::{Door, Seat};

/// Answers of one connection that may wait for their outcome; beyond that, the server reads no further requests of it.
pub const MAX_PIPELINED: usize = 64;
/// Larger frames are handled on a blocking thread.
const LARGE_FRAME_BYTES: usize = 256 * 1024;

/// After this much silence of a peer, the kernel sends a keepalive probe.
const ASK_EVERY: Duration = Duration::from_secs(30);
/// Pause between two keepalive probes of a peer that does not answer them.
const ASK_AGAIN_EVERY: Duration = Duration::from_secs(10);
/// A peer that has not answered this many keepalive probes is gone.
const ASK_TIMES: u32 = 3;
/// A peer whose kernel has not acknowledged an answer for this long is gone too.
const GONE_AFTER_MS: u32 = 60_000;

/// Handles calls.
pub trait Service: Send + Sync + 'static {
    /// What a `Log` call waits for.
    type Pending: Send + 'static;

    /// Handles one frame, without its header, that came from `peer`.
    ///
    /// # Errors
    /// When the rest of the connection cannot be understood, so that it has to be closed.
    fn call(&self, frame: &[u8], peer: SocketAddr) -> Result<Answer<Self::Pending>, blkin_thrift::Error>;

    /// Waits for the outcome of a `Log` call.
    fn settled(&self, pending: Self::Pending) -> impl Future<Output = ResultCode> + Send;
}

/// An answer that is ready, or will be.
#[derive(Debug)]
pub enum Answer<P> {
    /// These bytes, framed; empty for a call that wants no answer.
    Ready(Vec<u8>),
    /// An exception: the call cannot be read. The log names the peer that sent it.
    Unreadable {
        /// The exception, framed.
        reply: Vec<u8>,
        /// Why the call cannot be read.
        reason: String,
    },
    /// The result code of a `Log` call.
    Later {
        /// The call's sequence number.
        seq: i32,
        /// Whether the client waits for the answer.
        wants_reply: bool,
        /// What the answer waits for.
        pending: P,
    },
}

/// How connections are served.
#[derive(Clone)]
pub struct Options {
    /// Longest frame.
    pub max_frame_bytes: usize,
    /// Most connections at a time.
    pub max_connections: usize,
    /// A connection that is silent for this long is closed.
    pub idle_time: Duration,
    /// A frame must be complete within this time after its first byte, and an answer must be read within this time.
    pub frame_time: Duration,
    /// Memory for frames being read; closed when serving ends.
    pub budget: Budget,
}

/// Serves until `stop`, then lets the connections finish the requests that were read completely.
pub async fn serve<S: Service>(
    listener: TcpListener,
    service: Arc<S>,
    options: Options,
    stop: CancellationToken,
    heartbeat: Heartbeat,
) {
    let mut door = Door::new(listener, options.max_connections);
    let mut connections = JoinSet::new();
    let mut pulse = tokio::time::interval(blkin_daemon::health::BEAT_EVERY);
    let log_limits = Arc::new(LogLimits::default());
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            _ = pulse.tick() => {
                heartbeat.beat();
                door.log_rest();
                log_limits.rest(Instant::now());
            }
            Some(_) = connections.join_next() => {}
            Some((stream, peer, seat)) = door.next() => {
                let (service, options, stop) = (service.clone(), options.clone(), stop.clone());
                let log_limits = log_limits.clone();
                connections.spawn(async move {
                    connection(stream, (peer, seat), &service, &options, &stop, &log_limits).await;
                });
            }
        }
    }
    drop(door);
    options.budget.close();
    let ending = async { while connections.join_next().await.is_some() {} };
    heartbeat.beating(ending).await.0.finish();
}

/// Has the kernel probe whether a silent peer is still there. If many nodes lose power at once and come back, their old
/// connections would otherwise keep places from the new ones for as long as clients may be idle. No probes are sent while an
/// answer is not acknowledged, which the kernel would retransmit for a quarter of an hour: TCP_USER_TIMEOUT limits that.
fn enable_keepalive(stream: &TcpStream) -> rustix::io::Result<()> {
    sockopt::set_tcp_user_timeout(stream, GONE_AFTER_MS)?;
    sockopt::set_tcp_keepidle(stream, ASK_EVERY)?;
    sockopt::set_tcp_keepintvl(stream, ASK_AGAIN_EVERY)?;
    sockopt::set_tcp_keepcnt(stream, ASK_TIMES)?;
    sockopt::set_socket_keepalive(stream, true)
}

async fn connection<S: Service>(
    stream: TcpStream,
    (peer, seat): (SocketAddr, Seat),
    service: &Arc<S>,
    options: &Options,
    stop: &CancellationToken,
    log_limits: &LogLimits,
) {
    // Answers are small and the client waits for them; a failure costs only time.
    let _slower = stream.set_nodelay(true);
    let _later = enable_keepalive(&stream);
    let (reader, writer) = stream.into_split();
    let (answers, queue) = mpsc::channel(MAX_PIPELINED);
    let reading = read_calls(seat.watch(reader), service, options, stop, (peer, &seat), answers);
    let unreadable = |reason: &str| log_limits.unreadable(peer, reason);
    let serving = async {
        let writing = write_answers(writer, queue, &**service, options.frame_time, &seat, unreadable);
        tokio::join!(reading, writing).0
    };
    let served = tokio::select! {
        served = serving => served,
        () = seat.lost() => Err(Closing::MadeRoom),
    };
    if let Err(reason) = served {
        log_limits.closing(peer, &reason);
    }
}

/// Limits the log lines about all connections together, so that a client that opens one after another cannot fill the disk.
#[derive(Debug, Default)]
struct LogLimits {
    /// For calls and frames that cannot be read.
    unreadable: Mutex<Notices>,
    /// For every other reason to close a connection.
    closings: Mutex<Notices>,
}

impl LogLimits {
    fn unreadable(&self, peer: SocketAddr, reason: &str) {
        if let Some(held_back) = lock(&self.unreadable).admit(Instant::now()) {
            tracing::warn!(%peer, held_back, "a Scribe call cannot be read: {reason}");
        }
    }

    fn closing(&self, peer: SocketAddr, reason: &Closing) {
        let now = Instant::now();
        if matches!(reason, Closing::BadFrame(_)) {
            if let Some(held_back) = lock(&self.unreadable).admit(now) {
                tracing::warn!(%peer, held_back, "closing a Scribe connection: {reason}");
            }
        } else if let Some(held_back) = lock(&self.closings).admit(now) {
            tracing::info!(%peer, held_back, "closing a Scribe connection: {reason}");
        }
    }

    /// Logs how many events were held back.
    fn rest(&self, now: Instant) {
        if let Some(held_back) = lock(&self.unreadable).rest(now) {
            tracing::warn!(held_back, "more Scribe calls cannot be read");
        }
        if let Some(held_back) = lock(&self.closings).rest(now) {
            tracing::info!(held_back, "closed more Scribe connections");
        }
    }
}

fn lock(notices: &Mutex<Notices>) -> MutexGuard<'_, Notices> {
    notices.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Why a connection is closed before its client closed it.
#[derive(Debug, thiserror::Error)]
enum Closing {
    #[error("it was silent for too long")]
    Idle,
    #[error("it was silent while others waited for its place: the limit on connections is reached")]
    MadeRoom,
    #[error("a frame took too long to arrive")]
    Slow,
    #[error("{0}")]
    Denied(#[from] Denied),
    #[error("{0}")]
    Broken(#[from] std::io::Error),
    #[error("{0}")]
    BadFrame(#[from] blkin_thrift::Error),
}

async fn read_calls<S: Service>(
    mut reader: impl AsyncRead + Unpin,
    service: &Arc<S>,
    options: &Options,
    stop: &CancellationToken,
    (peer, seat): (SocketAddr, &Seat),
    answers: mpsc::Sender<Answer<S::Pending>>,
) -> Result<(), Closing> {
    loop {
        let mut header = [0; frame::HEADER_BYTES];
        let got = tokio::select! {
            () = stop.cancelled() => return Ok(()),
            () = answers.closed() => return Ok(()),
            got = tokio::time::timeout(options.idle_time, reader.read(&mut header)) => got.map_err(|_| Closing::Idle)??,
        };
        if got == 0 {
            return Ok(());
        }
        let mut share = options.budget.share();
        let reading = read_frame(&mut reader, (header, got), options.max_frame_bytes, &mut share, seat);
        // The time runs from the first byte on, even while the frame waits for memory.
        let frame = tokio::select! {
            () = stop.cancelled() => return Ok(()),
            frame = tokio::time::timeout(options.frame_time, reading) => frame.map_err(|_| Closing::Slow)??,
        };
        seat.asked();
        let answer = if frame.len() > LARGE_FRAME_BYTES {
            let service = service.clone();
            let work = tokio::task::spawn_blocking(move || service.call(&frame, peer));
            work.await.map_err(std::io::Error::other)??
        } else {
            service.call(&frame, peer)?
        };
        drop(share);
        if answers.send(answer).await.is_err() {
            return Ok(());
        }
    }
}

/// Reads a frame without its header; `got` bytes of the header are already there. Memory grows with the bytes that arrive, not
/// with the announced length.
async fn read_frame(
    reader: &mut (impl AsyncRead + Unpin),
    (mut header, got): ([u8; frame::HEADER_BYTES], usize),
    max_frame_bytes: usize,
    share: &mut Share,
    seat: &Seat,
) -> Result<Vec<u8>, Closing> {
    reader.read_exact(&mut header[got..]).await?;
    let length = frame::read_length(header, max_frame_bytes)?;
    let (mut reader, mut body) = (reader.take(length as u64), Vec::new());
    while body.len() < length {
        let room = seat.hold(share.grow(body.len() + 1)).await?.min(length);
        body.reserve_exact(room - body.len());
        if share.hurry(reader.read_buf(&mut body)).await?? == 0 {
            let reason = format!("a frame of {length} bytes ended after {}", body.len());
            return Err(std::io::Error::new(std::io::ErrorKind::UnexpectedEof, reason).into());
        }
    }
    Ok(body)
}

async fn write_answers<S: Service>(
    mut writer: impl AsyncWrite + Unpin,
    mut queue: mpsc::Receiver<Answer<S::Pending>>,
    service: &S,
    patience: Duration,
    seat: &Seat,
    unreadable: impl Fn(&str),
) {
    while let Some(answer) = queue.recv().await {
        let bytes = match answer {
            Answer::Ready(bytes) => bytes,
            Answer::Unreadable { reply, reason } => {
                unreadable(&reason);
                reply
            }
            Answer::Later { seq, wants_reply, pending } => {
                let code = service.settled(pending).await;
                // A client that wants no answer would assume that the entries were kept; closing the connection can tell it.
                if !wants_reply && code != ResultCode::Ok {
                    return;
                }
                if wants_reply { encode_log_reply(seq, code) } else { Vec::new() }
            }
        };
        // The client has gone, or does not read answers; dropping the queue ends the reading side too.
        let writing = seat.answer(writer.write_all(&bytes));
        if !matches!(tokio::time::timeout(patience, writing).await, Ok(Ok(()))) {
            return;
        }
    }
}

#[cfg(test)]
mod tests;
