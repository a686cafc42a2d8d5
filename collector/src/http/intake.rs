//! `POST /api/v1/spans` and `POST /api/v2/spans`.
//!
//! 202 once the spans are committed durably. Entries that cannot be read are left out and counted; 400 only when
//! nothing of the body could be used.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use bytes::Bytes;

use super::body::{read, unsupported};
use super::{App, Problem};
use crate::ingest::{BadBody, Ingest};
use crate::store::Batch;

type Sorted = (Batch, Result<(), BadBody>);

pub(super) async fn v1(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    body: Body,
) -> Result<StatusCode, Problem> {
    match content_type(&headers) {
        "application/x-thrift" => take(app, &headers, body, Ingest::v1_thrift).await,
        "application/x-protobuf" => {
            Err(unsupported("protobuf: send application/json or application/x-thrift".to_owned()))
        }
        // As Zipkin: whatever else it calls itself is read as JSON.
        _ => take(app, &headers, body, Ingest::v1_json).await,
    }
}

pub(super) async fn v2(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    body: Body,
) -> Result<StatusCode, Problem> {
    match content_type(&headers) {
        "application/x-protobuf" | "application/x-thrift" => {
            Err(unsupported("neither protobuf nor thrift is read here: send application/json".to_owned()))
        }
        _ => take(app, &headers, body, Ingest::v2_json).await,
    }
}

/// The media type without its parameters.
fn content_type(headers: &HeaderMap) -> &str {
    let value = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("");
    value.split(';').next().unwrap_or("").trim()
}

async fn take(
    app: Arc<App>,
    headers: &HeaderMap,
    body: Body,
    sort: fn(&Ingest, &[u8]) -> Sorted,
) -> Result<StatusCode, Problem> {
    let most = app.config.max_message_bytes();
    let share = app.budget.take(announced(headers, most)).await;
    let bytes: Bytes = read(headers, body, most).await?;
    let ingest = app.ingest.clone();
    let work = tokio::task::spawn_blocking(move || sort(&ingest, &bytes));
    let (batch, result) = work.await.map_err(|e| Problem::unavailable(e.to_string()))?;
    drop(share);
    let pending = app.ingest.submit(batch).map_err(|e| Problem::unavailable(e.to_string()))?;
    app.ingest.committed(pending).await.map_err(|e| Problem::unavailable(e.to_string()))?;
    match result {
        Ok(()) => Ok(StatusCode::ACCEPTED),
        Err(reason) => Err(Problem::bad(reason.to_string())),
    }
}

/// Memory that reading this body may take: what it announces, and as much as may be if it is compressed or silent.
fn announced(headers: &HeaderMap, most: usize) -> usize {
    let length = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    let compressed = headers.contains_key(header::CONTENT_ENCODING);
    match length {
        Some(length) if !compressed => most.min(length),
        Some(length) => most.min(length) + most,
        None => 2 * most,
    }
}
