//! `POST /api/v1/spans` and `POST /api/v2/spans`.
//!
//! The answer is 202 once the spans are committed durably. Entries that cannot be read are left out and counted; the answer is
//! an error (400, or 413 if the first such entry is too large) only when nothing of the body could be used.

use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use blkin_daemon::serve::Peer;
use bytes::Bytes;

use super::body::{self, BadBody, unsupported};
use super::{App, Problem};
use crate::ingest::{Ingest, Sorted, Source, Transport};
use crate::refusal::Cause;
use crate::store::Batch;

/// A body of at most this size is sorted within a millisecond.
const SMALL_BYTES: usize = 128 << 10;

type Answer = Result<StatusCode, Problem>;

pub(super) async fn v1(
    State(app): State<Arc<App>>,
    peer: Option<Extension<Peer>>,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    let source = source(Transport::HttpV1, peer);
    match content_type(&headers) {
        ContentType::Thrift => take(app, source, &headers, body, Ingest::v1_thrift).await,
        ContentType::Protobuf => {
            Err(unsupported("protobuf is v2: post it to /api/v2/spans, or send JSON or thrift".to_owned()))
        }
        ContentType::Json => take(app, source, &headers, body, Ingest::v1_json).await,
    }
}

pub(super) async fn v2(
    State(app): State<Arc<App>>,
    peer: Option<Extension<Peer>>,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    let source = source(Transport::HttpV2, peer);
    match content_type(&headers) {
        ContentType::Protobuf => take(app, source, &headers, body, Ingest::v2_proto3).await,
        ContentType::Thrift => {
            Err(unsupported("thrift is v1: post it to /api/v1/spans, or send JSON or protobuf".to_owned()))
        }
        ContentType::Json => take(app, source, &headers, body, Ingest::v2_json).await,
    }
}

fn source(transport: Transport, peer: Option<Extension<Peer>>) -> Source {
    Source { transport, peer: peer.map(|Extension(Peer(address))| address) }
}

/// The formats in which a body may be read.
enum ContentType {
    Thrift,
    Protobuf,
    Json,
}

/// The format by the media type, whose parameters are ignored. As in Zipkin, any other type is read as JSON.
fn content_type(headers: &HeaderMap) -> ContentType {
    let value = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("");
    let kind = value.split(';').next().unwrap_or("").trim();
    if kind.eq_ignore_ascii_case("application/x-thrift") {
        ContentType::Thrift
    } else if kind.eq_ignore_ascii_case("application/x-protobuf") {
        ContentType::Protobuf
    } else {
        ContentType::Json
    }
}

async fn take(
    app: Arc<App>,
    source: Source,
    headers: &HeaderMap,
    body: Body,
    sort: fn(&Ingest, &[u8], Source) -> Sorted,
) -> Answer {
    let config = app.config();
    let most = config.max_message_bytes();
    let mut share = app.budget.share();
    let bytes = match body::read(headers, body, most, config.message_time(), &mut share).await {
        Ok(bytes) => bytes,
        Err(BadBody { problem, refusal }) => {
            if let Some(refusal) = refusal {
                // This only counts the body: whether the count is committed changes nothing for the client.
                let _counted = app.ingest.submit(app.ingest.broken(&refusal, source));
            }
            return Err(problem);
        }
    };
    let (batch, result) = sorted(app.ingest.clone(), bytes, source, sort).await?;
    drop(share);
    store(&app.ingest, batch).await?;
    match result {
        Ok(()) => Ok(StatusCode::ACCEPTED),
        Err(bad) if bad.cause == Cause::TooLarge => {
            Err(Problem(StatusCode::PAYLOAD_TOO_LARGE, bad.to_string()))
        }
        Err(bad) => Err(Problem::bad(bad.to_string())),
    }
}

/// Sorts the entries of a body; a large one on a thread of its own, so that no other request waits for it.
async fn sorted(
    ingest: Arc<Ingest>,
    bytes: Bytes,
    source: Source,
    sort: fn(&Ingest, &[u8], Source) -> Sorted,
) -> Result<Sorted, Problem> {
    if bytes.len() <= SMALL_BYTES {
        return Ok(sort(&ingest, &bytes, source));
    }
    let work = tokio::task::spawn_blocking(move || sort(&ingest, &bytes, source));
    work.await.map_err(|error| Problem::unavailable(error.to_string()))
}

/// Waits until a batch is durable.
async fn store(ingest: &Ingest, batch: Batch) -> Result<(), Problem> {
    let pending = ingest.submit(batch).map_err(|e| Problem::unavailable(e.to_string()))?;
    ingest.committed(pending).await.map_err(|e| Problem::unavailable(e.to_string()))
}
