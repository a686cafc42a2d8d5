//! The page: a folder of static files under `/zipkin/`. The paths that the page itself interprets, such as
//! `/zipkin/traces/{id}`, get `index.html`, as in Zipkin. Any other path without a file gets 404, `/zipkin/health` too: a health
//! probe must not take the page for an answer.

use std::path::{Path, PathBuf};

use axum::Router;
use axum::extract::Request;
use axum::http::{HeaderValue, StatusCode, Uri, header};
use axum::middleware::{map_request, map_response};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::{MethodRouter, get, get_service};
use tower_http::services::{ServeDir, ServeFile};

use super::{Problem, kept};
use crate::config::UI_PATH;

/// The page names its scripts, so browsers ask for it again soon.
const PAGE_KEPT: &str = "max-age=60";
/// Files are named after their content, so another version has other names.
const FILES_KEPT: &str = "max-age=31536000";

/// The routes of the page in `folder`, for browsers that find it at `base`.
pub(super) fn routes(folder: &Path, base: &str) -> Router {
    // A redirect to a folder would lack the prefix `/zipkin`; no folder of the page has an index of its own.
    let files =
        ServeDir::new(folder).redirect_to_trailing_slash(false).append_index_html_on_directories(false);
    let missing = Router::new().fallback(async || Problem::not_found("no such file"));
    let files = Router::new()
        .fallback_service(files.fallback(missing))
        .layer(map_response(async |answer: Response| kept(in_any_coding(answer), FILES_KEPT)));
    let to_base = {
        // With an empty base, `/` would redirect to itself.
        let base = if base.is_empty() { UI_PATH } else { base }.to_owned();
        get(async move |uri: Uri| redirect(&base, &uri))
    };
    Router::new()
        .route("/", to_base.clone())
        .route("/zipkin", to_base.clone())
        .route("/favicon.ico", to_base)
        .nest_service("/zipkin/", own_routes(folder, base).fallback_service(files))
        .layer(map_request(with_plain_range))
}

/// Ignores a `Range` that is not one plain range of bytes, as RFC 9110, 14.2 allows: the file service would refuse it. The file
/// service does not know If-Range either, so a range with it is ignored too: a client that holds a part of an older file would
/// get a part of the newer one.
async fn with_plain_range(mut request: Request) -> Request {
    let mut ranges = request.headers().get_all(header::RANGE).iter();
    let is_plain = ranges.next().is_some_and(is_plain_range) && ranges.next().is_none();
    if !is_plain || request.headers().contains_key(header::IF_RANGE) {
        request.headers_mut().remove(header::RANGE);
    }
    request
}

/// Whether it is `bytes=a-b`, `bytes=a-` or `bytes=-b`. Whether the file has these bytes is not checked here.
fn is_plain_range(range: &HeaderValue) -> bool {
    let range = range.to_str().ok().and_then(|range| range.strip_prefix("bytes="));
    match range.and_then(|range| range.split_once('-')) {
        None => false,
        Some((first, "")) => number(first).is_some(),
        Some(("", last)) => number(last).is_some(),
        Some((first, last)) => number(first).zip(number(last)).is_some_and(|(first, last)| first <= last),
    }
}

/// A number as the file service reads it: without leading zeros.
fn number(text: &str) -> Option<u64> {
    let is_plain =
        text.bytes().all(|byte| byte.is_ascii_digit()) && (text.len() == 1 || !text.starts_with('0'));
    text.parse().ok().filter(|_| is_plain)
}

/// The routes that get `index.html`.
fn own_routes(folder: &Path, base: &str) -> Router {
    let file = folder.join("index.html");
    let index = if base == UI_PATH { get_service(ServeFile::new(file)) } else { moved(file, base) };
    ["/", "/index.html", "/traces/{id}", "/dependency", "/traceViewer"]
        .into_iter()
        .fold(Router::new(), |routes, path| routes.route(path, index.clone()))
        .layer(map_response(async |answer| kept(in_any_coding(as_utf8(answer)), PAGE_KEPT)))
}

/// The page for browsers that find it at another base: it names its files, and through its base the API, by absolute paths.
fn moved(file: PathBuf, base: &str) -> MethodRouter {
    let (here, there) = (format!("\"{UI_PATH}/"), format!("\"{base}/"));
    get(async move || match tokio::fs::read_to_string(&file).await {
        Ok(page) => Ok(Html(page.replace(&here, &there))),
        Err(error) => Err(Problem::not_found(format!("failed to read the page: {error}"))),
    })
}

/// A file has the same ETag whether it is sent compressed or not, so the tag is made a weak one (RFC 9110, 8.8.3.3). `Vary` is
/// sent with 304 too, where there is no body, because a cache has the file (15.4.5).
fn in_any_coding(mut answer: Response) -> Response {
    let headers = answer.headers_mut();
    let strong = headers.get(header::ETAG).map(HeaderValue::as_bytes).filter(|tag| tag.starts_with(b"\""));
    if let Some(weak) = strong.and_then(|tag| HeaderValue::from_bytes(&[b"W/", tag].concat()).ok()) {
        headers.insert(header::ETAG, weak);
        headers.insert(header::VARY, HeaderValue::from_name(header::ACCEPT_ENCODING));
    }
    answer
}

/// Names the character encoding of the page, which the file service cannot tell from its name.
fn as_utf8(mut answer: Response) -> Response {
    if let Some(kind) = answer.headers_mut().get_mut(header::CONTENT_TYPE) {
        *kind = HeaderValue::from_static("text/html; charset=utf-8");
    }
    answer
}

/// Redirects to the same file below `base`, as Zipkin does: with 302, and with the query.
fn redirect(base: &str, uri: &Uri) -> impl IntoResponse + use<> {
    let file = uri.path().trim_start_matches('/').trim_start_matches("zipkin");
    let query = uri.query().map_or_else(String::new, |query| format!("?{query}"));
    (StatusCode::FOUND, [(header::LOCATION, format!("{base}/{file}{query}"))])
}

/// The routes in place of the page if `ui_dir` is not set.
pub(super) fn missing() -> Router {
    let told = || async {
        Problem::not_found(
            "no page here: ui_dir is not set. docs/deploy.md (\"Zipkin's page\") says how to get one; the API works without it",
        )
    };
    Router::new().route("/", get(told)).route("/zipkin", get(told)).route("/zipkin/", get(told))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_single_byte_range_is_plain() {
        for plain in ["bytes=0-1", "bytes=7-7", "bytes=0-", "bytes=-5", "bytes=-0"] {
            assert!(is_plain_range(&HeaderValue::from_static(plain)), "{plain}");
        }
        let others = [
            "",
            "bytes",
            "bytes=",
            "bytes=x",
            "bytes=-",
            "bytes=1",
            "bytes=2-1",
            "bytes=0-1,3-4",
            "bytes=0-1-2",
            "bytes=+0-1",
            "bytes= 0-1",
            "bytes=00-1",
            "bytes=0-99999999999999999999",
            "bytes=--1",
            "lines=1-2",
        ];
        for other in others {
            assert!(!is_plain_range(&HeaderValue::from_static(other)), "{other}");
        }
        assert!(!is_plain_range(&HeaderValue::from_bytes(b"bytes=\xff-").unwrap()));
    }
}
