//! Reading a request's body: bounded on the wire, bounded once decompressed.

use std::io::Read;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, StatusCode, header};
use bytes::Bytes;
use flate2::read::MultiGzDecoder;

use super::Problem;
use crate::refusal::{Cause, Refusal};

/// A body that cannot be used: what the client is told, and under what cause it counts. A body that did not arrive does
/// not count, because its sender knows that.
#[derive(Debug)]
pub(super) struct BadBody {
    pub(super) problem: Problem,
    pub(super) refusal: Option<BadBytes>,
}

/// Why a body that arrived cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum BadBytes {
    #[error("failed to decompress the body: {0}")]
    Gzip(std::io::Error),
    #[error("failed to accept a body of more than {0} bytes: send smaller lists")]
    TooLarge(usize),
}

impl Refusal for BadBytes {
    fn cause(&self) -> Cause {
        match self {
            BadBytes::Gzip(_) => Cause::Encoding,
            BadBytes::TooLarge(_) => Cause::TooLarge,
        }
    }
}

impl From<Problem> for BadBody {
    fn from(problem: Problem) -> Self {
        BadBody { problem, refusal: None }
    }
}

impl From<BadBytes> for BadBody {
    fn from(refusal: BadBytes) -> Self {
        let status = match refusal {
            BadBytes::Gzip(_) => StatusCode::BAD_REQUEST,
            BadBytes::TooLarge(_) => StatusCode::PAYLOAD_TOO_LARGE,
        };
        BadBody { problem: Problem(status, refusal.to_string()), refusal: Some(refusal) }
    }
}

/// Reads a body that is whole after `patience`, and decompresses it if it says that it is gzip.
pub(super) async fn read(
    headers: &HeaderMap,
    body: Body,
    most: usize,
    patience: Duration,
) -> Result<Bytes, BadBody> {
    let gzip = is_gzip(headers)?;
    let bytes = tokio::time::timeout(patience, axum::body::to_bytes(body, most))
        .await
        .map_err(|_| Problem(StatusCode::REQUEST_TIMEOUT, "the body took too long to arrive".to_owned()))?
        .map_err(|e| broken(&e, most))?;
    if !gzip {
        return Ok(bytes);
    }
    let work = tokio::task::spawn_blocking(move || gunzip(&bytes, most));
    Ok(work.await.map_err(|e| Problem::unavailable(e.to_string()))??)
}

fn is_gzip(headers: &HeaderMap) -> Result<bool, Problem> {
    match headers.get(header::CONTENT_ENCODING).map(|value| value.as_bytes()) {
        None | Some(b"" | b"identity") => Ok(false),
        Some(value) if value.eq_ignore_ascii_case(b"gzip") => Ok(true),
        Some(other) => {
            let other = String::from_utf8_lossy(other).into_owned();
            Err(unsupported(format!("content encoding {other:?}: send gzip or none")))
        }
    }
}

/// What is of a type that is not read here.
pub(super) fn unsupported(reason: String) -> Problem {
    Problem(StatusCode::UNSUPPORTED_MEDIA_TYPE, reason)
}

fn broken(error: &axum::Error, most: usize) -> BadBody {
    let mut cause: Option<&dyn std::error::Error> = Some(error);
    while let Some(error) = cause {
        if error.to_string().contains("length limit exceeded") {
            return BadBytes::TooLarge(most).into();
        }
        cause = error.source();
    }
    Problem::bad(format!("failed to read the body: {error}")).into()
}

/// Decompresses up to `most` bytes; memory grows with what comes out, never beyond that.
fn gunzip(bytes: &[u8], most: usize) -> Result<Bytes, BadBytes> {
    let mut plain = Vec::new();
    let mut decoder = MultiGzDecoder::new(bytes).take(most as u64 + 1);
    decoder.read_to_end(&mut plain).map_err(BadBytes::Gzip)?;
    if plain.len() > most {
        return Err(BadBytes::TooLarge(most));
    }
    Ok(plain.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use std::io::Write;

    fn gzip(plain: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(plain).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn gzip_is_decompressed_up_to_the_limit_and_not_a_byte_beyond() {
        let bomb = gzip(&vec![b' '; 10 << 20]);
        assert!(bomb.len() < 20_000);
        assert!(matches!(gunzip(&bomb, 1 << 20), Err(BadBytes::TooLarge(_))));
        assert_eq!(gunzip(&bomb, 10 << 20).unwrap().len(), 10 << 20);
    }

    #[test]
    fn what_is_not_gzip_or_is_cut_off_is_a_bad_request() {
        let whole = gzip(b"[]");
        for bytes in [&b"[]"[..], &whole[..whole.len() - 9], &[]] {
            let result = gunzip(bytes, 100);
            assert!(result.is_err() || result.unwrap().is_empty(), "{bytes:?}");
        }
    }
}
