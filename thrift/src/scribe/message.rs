//! The message of a log entry: one span, base64.

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig, general_purpose::STANDARD};

use crate::{Error, Limits, Span, span};

/// Reads with or without padding: senders differ.
const TOLERANT: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

/// With vector instructions where the CPU has them.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
static FAST: std::sync::LazyLock<base64::engine::Simd> =
    std::sync::LazyLock::new(|| base64::engine::Simd::standard(GeneralPurposeConfig::new()));
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
static FAST: GeneralPurpose = STANDARD;

/// The message of a log entry that carries this span.
pub fn span_message(span: &Span) -> Vec<u8> {
    STANDARD.encode(span::encode(span)).into_bytes()
}

/// Appends the message of a log entry that carries an encoded span.
pub fn append_message(span: &[u8], message: &mut Vec<u8>) {
    let start = message.len();
    message.resize(start + span.len().div_ceil(3) * 4, b'=');
    let written = FAST.encode_slice(span, &mut message[start..]);
    debug_assert_eq!(written.ok(), Some(message.len() - start));
}

/// Reads the span of one log entry. Line breaks and other bytes outside of the alphabet are ignored (MIME), and so is
/// what follows the padding.
pub fn decode_message(message: &[u8], limits: &Limits) -> Result<Span, Error> {
    let bytes = match TOLERANT.decode(message) {
        Ok(bytes) => bytes,
        Err(_) => TOLERANT.decode(alphabet_only(message)).map_err(|e| Error::Base64(e.to_string()))?,
    };
    span::decode(&bytes, limits)
}

/// How many annotations the span of a log entry holds; none if it is no span. The lists are walked over, not decoded:
/// for every message that [`decode_message`] reads, the number is the same. `scratch` is memory to be used again.
pub fn annotation_count(message: &[u8], scratch: &mut Vec<u8>, limits: &Limits) -> Option<usize> {
    scratch.clear();
    if TOLERANT.decode_vec(message, scratch).is_err() {
        scratch.clear();
        TOLERANT.decode_vec(alphabet_only(message), scratch).ok()?;
    }
    span::annotation_count(scratch, limits)
}

fn alphabet_only(message: &[u8]) -> Vec<u8> {
    let in_alphabet = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/');
    let end = message.iter().position(|&byte| byte == b'=').unwrap_or(message.len());
    message[..end].iter().copied().filter(in_alphabet).collect()
}
