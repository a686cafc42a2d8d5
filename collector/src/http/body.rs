//! Reading a request's body: bounded on the wire, bounded once decompressed.

use std::error::Error;
use std::future::poll_fn;
use std::io::{Cursor, Read};
use std::pin::Pin;
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::http::{HeaderMap, StatusCode, header};
use blkin_scribe::{Denied, Share};
use bytes::Bytes;
use flate2::bufread::MultiGzDecoder;

use super::Problem;
use crate::refusal::{Cause, Refusal};

/// A body that cannot be used: the answer to the client, and the cause under which the body is counted. A body that did not
/// arrive whole is not counted, because its sender knows that.
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
    #[error("failed to decompress the body: nothing is in it; send an empty body without Content-Encoding")]
    Nothing,
    #[error("failed to accept a body of more than {0} bytes: send smaller lists")]
    TooLarge(usize),
}

impl Refusal for BadBytes {
    fn cause(&self) -> Cause {
        match self {
            BadBytes::Gzip(_) | BadBytes::Nothing => Cause::Encoding,
            BadBytes::TooLarge(_) => Cause::TooLarge,
        }
    }
}

impl From<Problem> for BadBody {
    fn from(problem: Problem) -> Self {
        BadBody { problem, refusal: None }
    }
}

impl From<Denied> for BadBody {
    fn from(reason: Denied) -> Self {
        Problem::unavailable(format!("stopped reading the body: {reason}")).into()
    }
}

impl From<BadBytes> for BadBody {
    fn from(refusal: BadBytes) -> Self {
        let status = match refusal {
            BadBytes::Gzip(_) | BadBytes::Nothing => StatusCode::BAD_REQUEST,
            BadBytes::TooLarge(_) => StatusCode::PAYLOAD_TOO_LARGE,
        };
        BadBody { problem: Problem(status, refusal.to_string()), refusal: Some(refusal) }
    }
}

/// Reads a body, which must be whole within `patience`, and decompresses it if the headers say that it is gzip. An empty body is
/// not decompressed, whatever the headers say, as in Zipkin.
pub(super) async fn read(
    headers: &HeaderMap,
    body: Body,
    most: usize,
    patience: Duration,
    share: &mut Share,
) -> Result<Bytes, BadBody> {
    let gzip = is_gzip(headers)?;
    let whole = async {
        if body.size_hint().lower() > most as u64 {
            return Err(refused(headers, body, most).await);
        }
        let bytes = collect(body, most, share).await?;
        if gzip && !bytes.is_empty() { gunzip(bytes, most, share).await } else { Ok(bytes) }
    };
    tokio::time::timeout(patience, whole)
        .await
        .map_err(|_| Problem(StatusCode::REQUEST_TIMEOUT, "the body took too long to arrive".to_owned()))?
}

/// Refuses a body that announces too much. A client that sends without waiting for `100 Continue` reads the answer only once its
/// bytes have been taken; so they are read up to the limit, and discarded.
async fn refused(headers: &HeaderMap, mut body: Body, most: usize) -> BadBody {
    let mut came = if headers.contains_key(header::EXPECT) { most } else { 0 };
    while came < most {
        match next_piece(&mut body, came, most).await {
            Ok(Some(piece)) => came += piece.len(),
            Ok(None) => break,
            Err(bad) => return bad,
        }
    }
    BadBytes::TooLarge(most).into()
}

/// Whether the body is gzip. All `Content-Encoding` lines together are one list, and empty elements of the list do not count
/// (RFC 9110, 5.3 and 5.6.1).
fn is_gzip(headers: &HeaderMap) -> Result<bool, Problem> {
    let lines = headers.get_all(header::CONTENT_ENCODING).iter();
    let codings = Vec::from_iter(lines.map(|line| String::from_utf8_lossy(line.as_bytes()))).join(", ");
    let lower = codings.to_ascii_lowercase();
    let named: Vec<_> = lower.split(',').map(str::trim).filter(|coding| !coding.is_empty()).collect();
    match named[..] {
        [] | ["identity"] => Ok(false),
        // RFC 9110, 8.4.1.3: both are the same.
        ["gzip" | "x-gzip"] => Ok(true),
        _ => Err(unsupported(format!("content encoding {codings:?}: send gzip or none"))),
    }
}

/// The answer to a body of a type that is not read here.
pub(super) fn unsupported(reason: String) -> Problem {
    Problem(StatusCode::UNSUPPORTED_MEDIA_TYPE, reason)
}

/// Collects a body of at most `most` bytes; a body that comes in one piece is not copied.
async fn collect(mut body: Body, most: usize, share: &mut Share) -> Result<Bytes, BadBody> {
    let first = share.hurry(next_piece(&mut body, 0, most)).await??.unwrap_or_default();
    share.grow(first.len()).await?;
    let Some(mut piece) = share.hurry(next_piece(&mut body, first.len(), most)).await?? else {
        return Ok(first);
    };
    let mut whole = first.to_vec();
    loop {
        let room = share.grow(whole.len() + piece.len()).await?.min(most);
        whole.reserve_exact(room - whole.len());
        whole.extend_from_slice(&piece);
        match share.hurry(next_piece(&mut body, whole.len(), most)).await?? {
            Some(next) => piece = next,
            None => return Ok(whole.into()),
        }
    }
}

/// The next piece of a body of which `before` bytes have come, or nothing at its end; fails if the total exceeds `most`.
async fn next_piece(body: &mut Body, before: usize, most: usize) -> Result<Option<Bytes>, BadBody> {
    while let Some(frame) = poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await {
        let frame =
            frame.map_err(|error| Problem::bad(format!("failed to read the body: {}", root(&error))))?;
        match frame.into_data() {
            Ok(piece) if piece.len() > most - before => return Err(BadBytes::TooLarge(most).into()),
            Ok(piece) => return Ok(Some(piece)),
            Err(_trailers) => {}
        }
    }
    Ok(None)
}

/// The innermost cause of an error: those around it say only that there was one.
fn root<'e>(mut error: &'e (dyn Error + 'static)) -> &'e (dyn Error + 'static) {
    while let Some(source) = error.source() {
        error = source;
    }
    error
}

/// Decompresses up to `most` bytes; memory grows with the output, never beyond that. An empty result is refused: a body may be
/// empty, but a compressed body without content is more likely broken, and Zipkin refuses it too.
async fn gunzip(bytes: Bytes, most: usize, share: &mut Share) -> Result<Bytes, BadBody> {
    let compressed = bytes.len();
    let (mut decoder, mut plain) = (MultiGzDecoder::new(Cursor::new(bytes)), Vec::new());
    loop {
        // One byte more than the limit shows that the output exceeds it.
        let room = (share.grow(compressed + plain.len() + 1).await? - compressed).min(most + 1);
        let work = tokio::task::spawn_blocking(move || {
            plain.reserve_exact(room - plain.len());
            let read = decoder.by_ref().take((room - plain.len()) as u64).read_to_end(&mut plain);
            read.map(|_| (decoder, plain))
        });
        let read = work.await.map_err(|e| Problem::unavailable(e.to_string()))?;
        (decoder, plain) = read.map_err(BadBytes::Gzip)?;
        if plain.len() > most {
            return Err(BadBytes::TooLarge(most).into());
        }
        if plain.is_empty() {
            return Err(BadBytes::Nothing.into());
        }
        if plain.len() < room {
            return Ok(plain.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blkin_scribe::Budget;
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use http_body::Frame;
    use std::collections::VecDeque;
    use std::io::Write;
    use std::task::{Context, Poll};

    /// A body that arrives in these pieces; `None` breaks it off.
    struct Pieces(VecDeque<Option<&'static str>>);

    impl HttpBody for Pieces {
        type Data = Bytes;
        type Error = String;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, String>>> {
            let broken = || "length limit exceeded, says whoever sends it".to_owned();
            let piece = self.0.pop_front();
            Poll::Ready(piece.map(|piece| piece.map(|bytes| Frame::data(bytes.into())).ok_or_else(broken)))
        }
    }

    fn share() -> Share {
        Budget::new(64 << 20, 32 << 20).share()
    }

    async fn collected(pieces: &[Option<&'static str>], most: usize) -> Result<Bytes, StatusCode> {
        let body = Body::new(Pieces(pieces.iter().copied().collect()));
        collect(body, most, &mut share()).await.map_err(|bad| {
            let is_too_large = matches!(bad.refusal, Some(BadBytes::TooLarge(of)) if of == most);
            assert_eq!(is_too_large, bad.problem.0 == StatusCode::PAYLOAD_TOO_LARGE);
            bad.problem.0
        })
    }

    #[tokio::test]
    async fn bodies_up_to_the_limit_are_collected_however_split() {
        for pieces in [&[][..], &[Some("")], &[Some("abcd")], &[Some("ab"), Some("c"), Some("d")]] {
            let whole: String = pieces.iter().flatten().copied().collect();
            assert_eq!(collected(pieces, 4).await.unwrap(), whole);
        }
        for pieces in [&[Some("abcde")][..], &[Some("abcd"), Some("e")], &[Some("a"), Some("bcde")]] {
            assert_eq!(collected(pieces, 4).await, Err(StatusCode::PAYLOAD_TOO_LARGE));
        }
    }

    #[tokio::test]
    async fn an_interrupted_body_is_a_bad_request_not_too_large() {
        for pieces in [&[None][..], &[Some("ab"), None]] {
            assert_eq!(collected(pieces, 4).await, Err(StatusCode::BAD_REQUEST));
        }
    }

    fn gzip(plain: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(plain).unwrap();
        encoder.finish().unwrap()
    }

    #[tokio::test]
    async fn gzip_is_decompressed_up_to_exactly_the_limit() {
        let bomb = Bytes::from(gzip(&vec![b' '; 10 << 20]));
        assert!(bomb.len() < 20_000);
        for too_few in [1 << 20, (10 << 20) - 1] {
            let bad = gunzip(bomb.clone(), too_few, &mut share()).await.unwrap_err();
            assert!(matches!(bad.refusal, Some(BadBytes::TooLarge(of)) if of == too_few));
        }
        assert_eq!(gunzip(bomb, 10 << 20, &mut share()).await.unwrap(), vec![b' '; 10 << 20]);
    }

    #[tokio::test]
    async fn invalid_or_truncated_gzip_is_refused() {
        let whole = gzip(b"[]");
        for bytes in [&b"[]"[..], &whole[..whole.len() - 9], &[]] {
            assert!(gunzip(bytes.to_vec().into(), 100, &mut share()).await.is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn content_encoding_lines_are_read_as_one_list() {
        let read = |lines: &[&'static str]| {
            let lines = lines.iter().map(|line| (header::CONTENT_ENCODING, line.parse().unwrap()));
            let mut headers = HeaderMap::new();
            lines.for_each(|(name, line)| _ = headers.append(name, line));
            is_gzip(&headers).map_err(|Problem(status, _)| status)
        };
        for none in [&[][..], &[""], &["Identity"], &[",", ""], &["", "identity"]] {
            assert_eq!(read(none), Ok(false), "{none:?}");
        }
        for gzip in [&["gzip"][..], &["X-Gzip"], &["gzip,"], &["", " , gzip"]] {
            assert_eq!(read(gzip), Ok(true), "{gzip:?}");
        }
        for other in [&["br"][..], &["identity", "gzip"], &["gzip", "gzip"], &["gzip, identity"]] {
            assert_eq!(read(other), Err(StatusCode::UNSUPPORTED_MEDIA_TYPE), "{other:?}");
        }
    }

    #[tokio::test]
    async fn an_empty_body_is_accepted_but_gzip_of_nothing_is_refused() {
        let headers = HeaderMap::from_iter([(header::CONTENT_ENCODING, "gzip".parse().unwrap())]);
        let long = Duration::from_secs(600);
        let read_body = async |bytes: Vec<u8>| read(&headers, bytes.into(), 100, long, &mut share()).await;
        assert!(read_body(Vec::new()).await.unwrap().is_empty());
        let compressed = read_body(gzip(b"")).await.unwrap_err();
        assert_eq!(compressed.problem.0, StatusCode::BAD_REQUEST);
        assert!(matches!(compressed.refusal, Some(BadBytes::Nothing)));
    }
}
