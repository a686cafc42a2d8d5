//! Percent escapes in HTTP requests: a malformed one is refused. Otherwise the request would find nothing, and its sender would
//! not know why.

use axum::extract::Request;
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

/// Refuses a request whose path or query has a malformed escape.
pub async fn refuse_wrong(request: Request, next: Next) -> Response {
    let uri = request.uri();
    if is_wrong(uri.path()) || uri.query().is_some_and(is_wrong) {
        let reason = "a % must be followed by two hexadecimal digits: write %25 for a plain %";
        return (StatusCode::BAD_REQUEST, reason).into_response();
    }
    next.run(request).await
}

/// Whether a text has a % that does not begin an escape.
pub fn is_wrong(text: &str) -> bool {
    let is_escape = |behind: &str| {
        behind.get(..2).is_some_and(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()))
    };
    text.split('%').skip(1).any(|behind| !is_escape(behind))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_escape_has_two_hexadecimal_digits() {
        for right in ["", "a", "%20", "a=%e4%F6&b=%25", "%2525"] {
            assert!(!is_wrong(right), "{right}");
        }
        for wrong in ["%", "a=100%", "%2", "%zz", "%2g", "%+1", "%%20", "%20%", "%2%20", "%1é"] {
            assert!(is_wrong(wrong), "{wrong}");
        }
    }
}
