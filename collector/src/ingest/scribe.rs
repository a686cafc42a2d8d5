//! The Scribe server: framed TBinary, requests of one connection pipelined and answered in order.
//!
//! `OK` is answered once the batch is committed durably; `TRY_LATER` when it was not stored, so the client still has
//! it. A call that cannot be read gets an exception; a frame that cannot even be cut ends its connection.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use blkin_daemon::{CancellationToken, Heartbeat};
use blkin_thrift::scribe::{Method, ResultCode, encode_log_reply, parse_call};
use blkin_thrift::{Limits, frame};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;

use super::{Budget, Ingest};
use crate::store::writer::Pending;

/// Answers of one connection that may wait for their commits; then its requests are read no further.
const MAX_PIPELINED: usize = 64;
/// A frame that has begun must be whole after this time.
const FRAME_TIME: Duration = Duration::from_secs(60);
/// Frames above this size are decoded on a thread of their own.
const LARGE_FRAME_BYTES: usize = 256 * 1024;
/// Pause after an error of accept, such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How connections are served.
#[derive(Clone)]
pub struct Options {
    /// Limits of frames and calls.
    pub limits: Limits,
    /// Most connections at a time.
    pub max_connections: usize,
    /// A connection that says nothing for this long is closed.
    pub idle_time: Duration,
    /// Memory for frames being read.
    pub budget: Budget,
}

/// Serves until `stop`, then lets the connections finish the requests that they have read.
pub async fn serve(
    listener: TcpListener,
    ingest: Arc<Ingest>,
    options: Options,
    stop: CancellationToken,
    heartbeat: Heartbeat,
) {
    let places = Arc::new(Semaphore::new(options.max_connections));
    let mut connections = JoinSet::new();
    let mut pulse = tokio::time::interval(blkin_daemon::health::BEAT_EVERY);
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            _ = pulse.tick() => heartbeat.beat(),
            Some(_) = connections.join_next() => {}
            accepted = accept(&listener) => {
                let Some((stream, peer)) = accepted else { continue };
                // Beyond the limit, a connection is closed at once: the client sees it and tries again.
                let Ok(place) = places.clone().try_acquire_owned() else {
                    tracing::warn!(%peer, "refused a Scribe connection: {} are open", options.max_connections);
                    continue;
                };
                let (ingest, options, stop) = (ingest.clone(), options.clone(), stop.clone());
                connections.spawn(async move {
                    connection(stream, peer, &ingest, &options, &stop).await;
                    drop(place);
                });
            }
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
    heartbeat.finish();
}

async fn accept(listener: &TcpListener) -> Option<(TcpStream, SocketAddr)> {
    match listener.accept().await {
        Ok(accepted) => Some(accepted),
        Err(error) => {
            tracing::warn!("failed to accept a Scribe connection: {error}");
            tokio::time::sleep(ACCEPT_PAUSE).await;
            None
        }
    }
}

async fn connection(
    stream: TcpStream,
    peer: SocketAddr,
    ingest: &Arc<Ingest>,
    options: &Options,
    stop: &CancellationToken,
) {
    // Answers are small and waited for; failing to say so costs only time.
    let _slower = stream.set_nodelay(true);
    let (reader, writer) = stream.into_split();
    let (answers, queue) = mpsc::channel(MAX_PIPELINED);
    let reading = read_calls(reader, ingest, options, stop, answers);
    let ((), ()) = tokio::join!(
        async {
            if let Err(reason) = reading.await {
                tracing::info!(%peer, "closing a Scribe connection: {reason}");
            }
        },
        write_answers(writer, queue, ingest),
    );
}

/// An answer that is ready, or will be once its batch is committed.
enum Answer {
    Ready(Vec<u8>),
    Commit { seq: i32, wanted: bool, pending: Option<Pending> },
}

/// Why a connection is closed before its client closed it.
#[derive(Debug, thiserror::Error)]
enum Closing {
    #[error("it was silent for too long")]
    Idle,
    #[error("a frame took too long to arrive")]
    Slow,
    #[error("{0}")]
    Broken(#[from] std::io::Error),
    #[error("{0}")]
    BadFrame(#[from] blkin_thrift::Error),
    #[error("{0}")]
    BadCall(blkin_thrift::Error),
}

async fn read_calls(
    mut reader: impl AsyncRead + Unpin,
    ingest: &Arc<Ingest>,
    options: &Options,
    stop: &CancellationToken,
    answers: mpsc::Sender<Answer>,
) -> Result<(), Closing> {
    loop {
        let length = tokio::select! {
            () = stop.cancelled() => return Ok(()),
            length = read_header(&mut reader, options) => length?,
        };
        let Some(length) = length else { return Ok(()) };
        let share = options.budget.take(length).await;
        let frame = tokio::time::timeout(FRAME_TIME, read_body(&mut reader, length))
            .await
            .map_err(|_| Closing::Slow)??;
        let answer = if frame.len() > LARGE_FRAME_BYTES {
            let (ingest, limits) = (ingest.clone(), options.limits);
            let work = tokio::task::spawn_blocking(move || answer_to(&frame, &ingest, &limits));
            work.await.map_err(std::io::Error::other)??
        } else {
            answer_to(&frame, ingest, &options.limits)?
        };
        drop(share);
        if answers.send(answer).await.is_err() {
            return Ok(());
        }
    }
}

/// The length of the next frame; none when the client has closed between two frames.
async fn read_header(
    reader: &mut (impl AsyncRead + Unpin),
    options: &Options,
) -> Result<Option<usize>, Closing> {
    let mut header = [0; frame::HEADER_BYTES];
    let first = tokio::time::timeout(options.idle_time, reader.read(&mut header)).await;
    let got = first.map_err(|_| Closing::Idle)??;
    if got == 0 {
        return Ok(None);
    }
    let rest = tokio::time::timeout(FRAME_TIME, reader.read_exact(&mut header[got..])).await;
    rest.map_err(|_| Closing::Slow)??;
    Ok(Some(frame::read_length(header, options.limits.max_frame_bytes)?))
}

/// Reads a frame's body; memory grows with what came, not with what was announced.
async fn read_body(reader: &mut (impl AsyncRead + Unpin), length: usize) -> std::io::Result<Vec<u8>> {
    let mut body = Vec::with_capacity(length.min(64 * 1024));
    reader.take(length as u64).read_to_end(&mut body).await?;
    if body.len() < length {
        return Err(std::io::Error::new(
            std::io::ErrorKind::UnexpectedEof,
            format!("a frame of {length} bytes ended after {}", body.len()),
        ));
    }
    Ok(body)
}

fn answer_to(frame: &[u8], ingest: &Ingest, limits: &Limits) -> Result<Answer, Closing> {
    let call = match parse_call(frame, limits) {
        Ok(call) => call,
        Err(bad) => {
            // Only counted: whether that count is committed changes nothing for the client.
            let _counted = ingest.submit(ingest.bad_scribe_call(&bad));
            return bad.reply.map(Answer::Ready).ok_or(Closing::BadCall(bad.cause));
        }
    };
    Ok(match &call.method {
        Method::Log(entries) => {
            let batch = ingest.scribe_entries(entries);
            Answer::Commit { seq: call.seq, wanted: call.wants_reply, pending: ingest.submit(batch).ok() }
        }
        Method::Fb303(_) => Answer::Ready(ingest.fb303_status().answer(&call).unwrap_or_default()),
        Method::Unknown(_) => Answer::Ready(call.unknown_method_reply().unwrap_or_default()),
    })
}

async fn write_answers(
    mut writer: impl AsyncWrite + Unpin,
    mut queue: mpsc::Receiver<Answer>,
    ingest: &Ingest,
) {
    while let Some(answer) = queue.recv().await {
        let bytes = match answer {
            Answer::Ready(bytes) => bytes,
            Answer::Commit { seq, wanted, pending } => {
                let committed = match pending {
                    Some(pending) => ingest.committed(pending).await.is_ok(),
                    None => false,
                };
                let code = if committed { ResultCode::Ok } else { ResultCode::TryLater };
                if wanted { encode_log_reply(seq, code) } else { Vec::new() }
            }
        };
        // A client that no longer listens is noticed by its reader too; dropping the queue ends both.
        if writer.write_all(&bytes).await.is_err() {
            return;
        }
    }
}
