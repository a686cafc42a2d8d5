//! Spans as v2 JSON, as Zipkin answers them.

use std::io;

use serde_json::ser::Formatter;

use crate::model::Span;

/// Writes one span.
pub fn write_span(span: &Span) -> String {
    json(span)
}

/// Writes the spans of one trace as a list.
pub fn write_trace(spans: &[Span]) -> String {
    json(spans)
}

/// Writes several traces as a list of lists.
pub fn write_traces(traces: &[Vec<Span>]) -> String {
    json(traces)
}

fn json<T: serde::Serialize + ?Sized>(value: &T) -> String {
    let mut bytes = Vec::with_capacity(256);
    let mut serializer = serde_json::Serializer::with_formatter(&mut bytes, LineSafe);
    value.serialize(&mut serializer).expect("a span has string keys and fits into memory");
    String::from_utf8(bytes).expect("the serializer writes UTF-8")
}

/// Escapes U+2028 and U+2029 as Zipkin does: JSON allows them in strings, older JavaScript takes them for line ends.
struct LineSafe;

impl Formatter for LineSafe {
    fn write_string_fragment<W: ?Sized + io::Write>(&mut self, writer: &mut W, text: &str) -> io::Result<()> {
        let mut written = 0;
        for (at, separator) in text.match_indices(['\u{2028}', '\u{2029}']) {
            writer.write_all(&text.as_bytes()[written..at])?;
            writer.write_all(if separator == "\u{2028}" { b"\\u2028" } else { b"\\u2029" })?;
            written = at + separator.len();
        }
        writer.write_all(&text.as_bytes()[written..])
    }
}
