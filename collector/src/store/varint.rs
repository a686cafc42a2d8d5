//! Numbers of the index in as few bytes as they need: seven bits to a byte, the lowest first (LEB128).

/// Appends a number.
pub(super) fn put(mut number: u64, bytes: &mut Vec<u8>) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// Takes a number off the front; none if it is not whole.
pub(super) fn take(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

/// Takes a fixed number off the front, its highest byte first.
pub(super) fn take_u64(bytes: &mut &[u8]) -> Option<u64> {
    let (number, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(u64::from_be_bytes(*number))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn numbers_round_trip_in_sequence(numbers in prop::collection::vec(any::<u64>(), 0..20)) {
            let mut bytes = Vec::new();
            numbers.iter().for_each(|&number| put(number >> (number % 64), &mut bytes));
            let mut rest = bytes.as_slice();
            for number in numbers {
                prop_assert_eq!(take(&mut rest), Some(number >> (number % 64)));
            }
            prop_assert_eq!(take(&mut rest), None);
        }

        #[test]
        fn reading_arbitrary_bytes_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..20)) {
            let mut rest = bytes.as_slice();
            while take(&mut rest).is_some() {}
            prop_assert!(rest.len() <= bytes.len());
        }
    }
}
