//! The message of a log entry: one span, base64.

use std::ops::Range;

use base64::DecodeError;
use base64::Engine as _;
use base64::engine::{DecodePaddingMode, GeneralPurposeConfig};
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
use base64::{alphabet, engine::GeneralPurpose};

use crate::{Error, Limits, Span, span};

/// Reads with or without padding: senders differ.
const CONFIG: GeneralPurposeConfig = GeneralPurposeConfig::new()
    .with_decode_padding_mode(DecodePaddingMode::Indifferent)
    .with_decode_allow_trailing_bits(true);

/// With vector instructions where the CPU has them.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
static ENGINE: std::sync::LazyLock<base64::engine::Simd> =
    std::sync::LazyLock::new(|| base64::engine::Simd::standard(CONFIG));
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
static ENGINE: GeneralPurpose = GeneralPurpose::new(&alphabet::STANDARD, CONFIG);

/// The message of a log entry that carries this span.
pub fn span_message(span: &Span) -> Vec<u8> {
    ENGINE.encode(span::encode(span)).into_bytes()
}

/// How many bytes the message of a log entry has that carries an encoded span of so many.
pub fn message_bytes(span: usize) -> usize {
    span.div_ceil(3) * 4
}

/// Writes the message of a log entry that carries an encoded span into memory of its [`message_bytes`].
pub fn write_message(span: &[u8], message: &mut [u8]) {
    let written = ENGINE.encode_slice(span, message);
    debug_assert_eq!(written.ok(), Some(message_bytes(span.len())));
}

/// Appends what a message holds as base64 to `bytes`, and tells where: the messages of a call share one memory. Line
/// breaks and other bytes outside of the alphabet are ignored (MIME), and so is what follows the padding. What is not
/// base64 appends nothing.
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

/// Reads the span of one log entry, whose base64 is read as [`append_decoded`] does.
pub fn decode_message(message: &[u8], limits: &Limits) -> Result<Span, Error> {
    let mut bytes = Vec::new();
    append_decoded(message, &mut bytes)?;
    span::decode(&bytes, limits)
}

/// How many annotations the span of a log entry holds; none if it is no span. The lists are walked over, not decoded:
/// for every message that [`decode_message`] reads, the number is the same. `scratch` is memory to be used again.
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
