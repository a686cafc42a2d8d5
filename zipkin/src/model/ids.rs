//! Ids: numbers that are never zero, written in lower-case hexadecimal.

use std::fmt;
use std::num::{NonZeroU64, NonZeroU128};
use std::str::FromStr;

use serde::{Serialize, Serializer};

/// The id of a trace, 128 bits. Written with 16 digits if the upper half is zero, else with 32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TraceId(NonZeroU128);

/// The id of a span, 64 bits. Written with 16 digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpanId(NonZeroU64);

/// Why a text is not an id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadId {
    /// The text is empty.
    #[error("an id is empty")]
    Empty,
    /// The text has more digits than the id has room for.
    #[error("an id is longer than {0} digits")]
    TooLong(usize),
    /// The text has other characters than 0-9 and a-f.
    #[error("an id must be lower-case hexadecimal without prefix")]
    NotLowerHex,
    /// The number is zero, which is not an id.
    #[error("an id is all zeros")]
    Zero,
}

impl TraceId {
    /// An id from its two halves; `None` if both are zero.
    pub fn new(high: u64, low: u64) -> Option<TraceId> {
        NonZeroU128::new(u128::from(high) << 64 | u128::from(low)).map(TraceId)
    }

    /// The upper half; zero in a trace with 64-bit ids.
    pub fn high(self) -> u64 {
        (self.0.get() >> 64) as u64
    }

    /// The lower half. Collectors sample by it and, unless they are strict, group spans by it.
    pub fn low(self) -> u64 {
        self.0.get() as u64
    }

    /// Whether the id is longer than 64 bits.
    pub fn is_long(self) -> bool {
        self.high() != 0
    }
}

impl SpanId {
    /// An id from a number; `None` if it is zero.
    pub fn new(id: u64) -> Option<SpanId> {
        NonZeroU64::new(id).map(SpanId)
    }

    /// The id as a number.
    pub fn get(self) -> u64 {
        self.0.get()
    }
}

/// Reads up to `digits` lower-case hexadecimal digits.
///
/// # Errors
/// If there are no digits, too many, or other characters.
pub fn lower_hex(text: &str, digits: usize) -> Result<u128, BadId> {
    match text.len() {
        0 => Err(BadId::Empty),
        length if length > digits => Err(BadId::TooLong(digits)),
        length if length > 32 => Err(BadId::TooLong(32)),
        // In halves: 64 bits at a time are half the work.
        length => {
            let (high, low) = text.as_bytes().split_at(length.saturating_sub(16));
            Ok(u128::from(hex_of(high)?) << 64 | u128::from(hex_of(low)?))
        }
    }
}

/// Reads at most 16 digits.
#[inline]
fn hex_of(digits: &[u8]) -> Result<u64, BadId> {
    match digits.as_chunks::<8>() {
        ([high, low], []) => Ok(hex_of_eight(*high)? << 32 | hex_of_eight(*low)?),
        _ => hex_of_few(digits),
    }
}

/// Reads eight digits as one word: most ids have sixteen digits.
#[inline]
fn hex_of_eight(digits: [u8; 8]) -> Result<u64, BadId> {
    const EACH: u64 = u64::from_ne_bytes([1; 8]);
    let word = u64::from_be_bytes(digits);
    // Letters have bit 6. The value computed for a byte is at most 15 + 9, so no byte carries into the next.
    let worth = (word & (0x0f * EACH)) + ((word >> 6) & EACH) * 9;
    let above_nine = ((worth + 6 * EACH) >> 4) & EACH;
    // Only for valid digits does writing the value back give the same byte.
    if worth & (0xf0 * EACH) != 0 || worth + u64::from(b'0') * EACH + above_nine * 39 != word {
        return Err(BadId::NotLowerHex);
    }
    let twos = (worth | worth >> 4) & 0x00ff_00ff_00ff_00ff;
    let fours = (twos | twos >> 8) & 0x0000_ffff_0000_ffff;
    Ok((fours | fours >> 16) & 0xffff_ffff)
}

fn hex_of_few(digits: &[u8]) -> Result<u64, BadId> {
    digits.iter().try_fold(0, |number, digit| {
        let value = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return Err(BadId::NotLowerHex),
        };
        Ok(number << 4 | u64::from(value))
    })
}

impl FromStr for TraceId {
    type Err = BadId;

    fn from_str(text: &str) -> Result<Self, BadId> {
        NonZeroU128::new(lower_hex(text, 32)?).map(TraceId).ok_or(BadId::Zero)
    }
}

impl FromStr for SpanId {
    type Err = BadId;

    fn from_str(text: &str) -> Result<Self, BadId> {
        SpanId::new(lower_hex(text, 16)? as u64).ok_or(BadId::Zero)
    }
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = if self.is_long() { 32 } else { 16 };
        write!(f, "{:0digits$x}", self.0)
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl Serialize for TraceId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Serialize for SpanId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_trace_id_has_16_digits_until_it_needs_32() {
        assert_eq!("1".parse::<TraceId>().unwrap().to_string(), "0000000000000001");
        let long = "463ac35c9f6413ad48485a3953bb6124";
        assert_eq!(long.parse::<TraceId>().unwrap().to_string(), long);
        let zeros_above = "000000000000000048485a3953bb6124";
        assert_eq!(zeros_above.parse::<TraceId>().unwrap().to_string(), "48485a3953bb6124");
        assert_eq!("3ac35c9f6413ad48485a3953bb6124".parse::<TraceId>().unwrap().to_string().len(), 32);
    }

    #[test]
    fn sixteen_digits_are_parsed_as_by_the_general_parser() {
        for at in 0..16 {
            for byte in 0..=255 {
                let mut digits = *b"0123456789abcdef";
                digits[at] = byte;
                assert_eq!(hex_of(&digits), hex_of_few(&digits), "{byte} at {at}");
            }
        }
    }

    #[test]
    fn invalid_ids_are_refused_with_the_reason() {
        assert_eq!("".parse::<SpanId>(), Err(BadId::Empty));
        assert_eq!("0000".parse::<SpanId>(), Err(BadId::Zero));
        assert_eq!("0x1f".parse::<SpanId>(), Err(BadId::NotLowerHex));
        assert_eq!("1F".parse::<TraceId>(), Err(BadId::NotLowerHex));
        assert_eq!("+1".parse::<SpanId>(), Err(BadId::NotLowerHex));
        assert_eq!("0".repeat(17).parse::<SpanId>(), Err(BadId::TooLong(16)));
        assert_eq!("1".repeat(33).parse::<TraceId>(), Err(BadId::TooLong(32)));
        assert_eq!(lower_hex(&"1".repeat(33), 64), Err(BadId::TooLong(32)), "an id has at most 32 digits");
    }

    proptest! {
        #[test]
        fn ids_of_64_and_128_bits_round_trip(high: u64, low: u64) {
            for (high, low) in [(high, low), (0, low), (high, 0)] {
                let Some(id) = TraceId::new(high, low) else { continue };
                prop_assert_eq!(id.to_string().parse(), Ok(id));
                prop_assert_eq!((id.high(), id.low(), id.is_long()), (high, low, high != 0));
            }
            if let Some(id) = SpanId::new(low) {
                prop_assert_eq!(id.to_string(), format!("{low:016x}"));
                prop_assert_eq!(id.to_string().parse(), Ok(id));
                prop_assert_eq!(format!("{low:x}").parse(), Ok(id));
            }
        }
    }
}
