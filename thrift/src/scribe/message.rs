//! The message of a log entry: one span in base64.

use std::ops::Range;

use base64::DecodeError;
use base64::Engine as _;
use base64::engine::{DecodePaddingMode, GeneralPurposeConfig};
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
use base64::{alphabet, engine::GeneralPurpose};

use crate::{Error, Limits, Span, span};

/// Accepts base64 with or without padding, because senders differ.
const CONFIG: GeneralPurposeConfig = GeneralPurposeConfig::new()
    .with_decode_padding_mode(DecodePaddingMode::Indifferent)
    .with_decode_allow_trailing_bits(true);

/// Uses vector instructions if the CPU has them.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
static ENGINE: std::sync::LazyLock<base64::engine::Simd> =
    std::sync::LazyLock::new(|| base64::engine::Simd::standard(CONFIG));
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
static ENGINE: GeneralPurpose = GeneralPurpose::new(&alphabet::STANDARD, CONFIG);

/// The message of a log entry for this span.
pub fn span_message(span: &Span) -> Vec<u8> {
    ENGINE.encode(span::encode(span)).into_bytes()
}

/// The length of the message for an encoded span of `span` bytes, in bytes.
pub fn message_bytes(span: usize) -> usize {
    span.div_ceil(3) * 4
}

/// Writes the message for an encoded span to `message`, whose length must be [`message_bytes`].
pub fn write_message(span: &[u8], message: &mut [u8]) {
    let written = ENGINE.encode_slice(span, message);
    debug_assert_eq!(written.ok(), Some(message_bytes(span.len())));
}

/// Decodes a message from base64, appends the result to `bytes` and returns its range, so that the messages of a call can
/// share one buffer. As in MIME, line breaks and other bytes outside the alphabet are ignored, and so is everything after
/// the padding.
///
/// # Errors
/// [`Error::Base64`] if the message is not base64; then nothing is appended.
pub fn append_decoded(message: &[u8], bytes: &mut Vec<u8>) -> Result<Range<usize>, Error> {
    let start = bytes.len();
    if decode(message, bytes).is_err() {
        decode(&alphabet_only(message), bytes).map_err(|error| Error::Base64(error.to_string()))?;
    }
    Ok(start..bytes.len())
}

fn decode(message: &[u8], bytes: &mut Vec<u8>) -> Result<(), DecodeError> {
    let start = bytes.len();
    ENGINE.decode_vec(message, bytes).inspect_err(|_| bytes.truncate(start))
}

/// Reads the span of one log entry; base64 is decoded as by [`append_decoded`].
pub fn decode_message(message: &[u8], limits: &Limits) -> Result<Span, Error> {
    let mut bytes = Vec::new();
    append_decoded(message, &mut bytes)?;
    span::decode(&bytes, limits)
}

/// The number of annotations in the span of a log entry; `None` if it is not a span. The lists are skipped, not decoded; for
/// every message that [`decode_message`] reads, the number is the same, including the empty annotations that it leaves out. `scratch` is a buffer that the caller reuses.
pub fn annotation_count(message: &[u8], scratch: &mut Vec<u8>, limits: &Limits) -> Option<usize> {
    scratch.clear();
    append_decoded(message, scratch).ok()?;
    span::annotation_count(scratch, limits)
}

fn alphabet_only(message: &[u8]) -> Vec<u8> {
    let in_alphabet = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/');
    let end = message.iter().position(|&byte| byte == b'=').unwrap_or(message.len());
    message[..end].iter().copied().filter(in_alphabet).collect()
}
