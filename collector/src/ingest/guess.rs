//! Guesses the real format of a body that was sent as another one, so that the answer can say what to change. Such a body comes
//! from somebody who posts by hand, or from a client that is set up wrong.

use std::fmt;

use crate::refusal::{Cause, Refusal};

/// The format as which a body is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReadAs {
    Json,
    Thrift,
    Proto3,
}

/// What the sender should change, judging by the first bytes of the body; nothing if they fit the format as which it is read.
pub(super) fn advice(body: &[u8], read_as: ReadAs) -> Option<&'static str> {
    let text = body.trim_ascii_start();
    let is_json = matches!(text.first(), Some(b'[' | b'{'));
    match (read_as, body) {
        (_, [0x1f, 0x8b, ..]) => Some("it looks like gzip: send it with Content-Encoding: gzip"),
        (ReadAs::Thrift | ReadAs::Proto3, _) if is_json => {
            Some("it looks like JSON: send it with Content-Type: application/json")
        }
        (ReadAs::Json, _) if text.first() == Some(&b'{') => Some("send even a single span as a list: [{…}]"),
        // The element type of a list of structs.
        (ReadAs::Json, [0x0c, ..]) => {
            Some("it looks like thrift: send it with Content-Type: application/x-thrift to /api/v1/spans")
        }
        // The tag of the first field of a list of spans, which is also a newline.
        (ReadAs::Json, [0x0a, ..]) if !is_json => {
            Some("it looks like protobuf: send it with Content-Type: application/x-protobuf to /api/v2/spans")
        }
        _ => None,
    }
}

/// A refusal, with advice on its likely reason.
pub(super) struct Advised<'r> {
    pub(super) refusal: &'r dyn Refusal,
    pub(super) advice: Option<&'static str>,
}

impl fmt::Display for Advised<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.refusal.fmt(out)?;
        self.advice.map_or(Ok(()), |advice| write!(out, "; {advice}"))
    }
}

impl Refusal for Advised<'_> {
    fn cause(&self) -> Cause {
        self.refusal.cause()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_in_another_format_gets_the_matching_advice() {
        use ReadAs::{Json, Proto3, Thrift};
        for (body, read_as, expected) in [
            (&b"\x1f\x8b\x08"[..], Json, Some("gzip")),
            (b"\x1f\x8b\x08", Thrift, Some("gzip")),
            (b"\x1f\x8b\x08", Proto3, Some("gzip")),
            (b" [{}]", Thrift, Some("application/json")),
            (b"\n{}", Proto3, Some("application/json")),
            (b"\x0c\0\0\0\x01", Json, Some("application/x-thrift")),
            (b"\x0a\x10\x0a\x08", Json, Some("application/x-protobuf")),
            (b"\n{}", Json, Some("a list")),
            (b"\n[{}]", Json, None),
            (b"[]", Json, None),
            (b"null", Json, None),
            (b"", Json, None),
            (b"\x0c\0\0\0\x01", Thrift, None),
            (b"\x0a\x10\x0a\x08", Proto3, None),
        ] {
            let found = advice(body, read_as);
            let is_right = match (found, expected) {
                (Some(found), Some(expected)) => found.contains(expected),
                (found, expected) => found == expected,
            };
            assert!(is_right, "{body:?} as {read_as:?}: {found:?}");
        }
    }
}
