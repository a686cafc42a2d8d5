//! What a body looks like that is not what it was sent as: whoever posts by hand, or by a client that was set up wrong,
//! is told what to change.

use std::fmt;

use crate::refusal::{Cause, Refusal};

/// What a body is read as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReadAs {
    Json,
    Thrift,
    Proto3,
}

/// What to do about a body that begins so; nothing if it may be what it is read as.
pub(super) fn advice(body: &[u8], read_as: ReadAs) -> Option<&'static str> {
    let text = body.trim_ascii_start();
    let is_json = matches!(text.first(), Some(b'[' | b'{'));
    match (read_as, body) {
        (_, [0x1f, 0x8b, ..]) => Some("it looks like gzip: say so by Content-Encoding: gzip"),
        (ReadAs::Thrift | ReadAs::Proto3, _) if is_json => {
            Some("it looks like JSON: say so by Content-Type: application/json")
        }
        (ReadAs::Json, _) if text.first() == Some(&b'{') => Some("a single span is a list, too: [{…}]"),
        // A list of structs.
        (ReadAs::Json, [0x0c, ..]) => Some(
            "it looks like thrift: say so by Content-Type: application/x-thrift, and post it to /api/v1/spans",
        ),
        // The first field of a list of spans, which is also a line's end.
        (ReadAs::Json, [0x0a, ..]) if !is_json => Some(
            "it looks like protobuf: say so by Content-Type: application/x-protobuf, and post it to /api/v2/spans",
        ),
        _ => None,
    }
}

/// A refusal, with what may be the reason for it.
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
    fn a_body_that_begins_as_another_kind_is_taken_for_that_and_no_other() {
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
