//! Walking over TBinary without keeping anything: where a value ends, how long a list is.
//!
//! A relay passes entries on as they came, so it needs their extent, not their content. Every step takes at least one
//! byte of the slice, so a walk is over after as many steps as there are bytes.

use crate::Error;

/// Deepest nesting of what is skipped: no less than where Apache's decoder ends.
const MAX_DEPTH: u32 = 64;

/// A place in a slice.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Skim<'a> {
    bytes: &'a [u8],
    at: usize,
}

/// Type and length of a list.
#[derive(Debug, Clone, Copy)]
pub(crate) struct List {
    /// Type of its elements.
    pub(crate) element: u8,
    /// Their number, as announced.
    pub(crate) count: usize,
}

/// Wire numbers of the types.
pub(crate) mod wire {
    pub(crate) const STOP: u8 = 0;
    pub(crate) const I32: u8 = 8;
    pub(crate) const I64: u8 = 10;
    pub(crate) const STRING: u8 = 11;
    pub(crate) const STRUCT: u8 = 12;
    pub(crate) const MAP: u8 = 13;
    pub(crate) const SET: u8 = 14;
    pub(crate) const LIST: u8 = 15;
}

impl<'a> Skim<'a> {
    /// At the beginning of `bytes`.
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Skim { bytes, at: 0 }
    }

    /// Bytes passed so far.
    pub(crate) fn position(&self) -> usize {
        self.at
    }

    /// Everything passed since `start`.
    pub(crate) fn since(&self, start: usize) -> &'a [u8] {
        &self.bytes[start..self.at]
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], Error> {
        let end = self.at.checked_add(length).filter(|end| *end <= self.bytes.len());
        let end = end.ok_or_else(|| Error::Malformed("it ends too early".to_owned()))?;
        let taken = &self.bytes[self.at..end];
        self.at = end;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    pub(crate) fn byte(&mut self) -> Result<u8, Error> {
        Ok(self.array::<1>()?[0])
    }

    pub(crate) fn i32(&mut self) -> Result<i32, Error> {
        self.array().map(i32::from_be_bytes)
    }

    pub(crate) fn i64(&mut self) -> Result<i64, Error> {
        self.array().map(i64::from_be_bytes)
    }

    fn length(&mut self) -> Result<usize, Error> {
        let length = self.i32()?;
        usize::try_from(length).map_err(|_| Error::Malformed(format!("a length of {length}")))
    }

    /// A string or binary.
    pub(crate) fn string(&mut self) -> Result<&'a [u8], Error> {
        let length = self.length()?;
        self.take(length)
    }

    /// So many bytes as a string whose length was read already.
    pub(crate) fn bytes(&mut self, length: i32) -> Result<&'a [u8], Error> {
        let length =
            usize::try_from(length).map_err(|_| Error::Malformed(format!("a length of {length}")))?;
        self.take(length)
    }

    /// The header of a list.
    pub(crate) fn list(&mut self) -> Result<List, Error> {
        let element = known_type(self.byte()?)?;
        Ok(List { element, count: self.length()? })
    }

    /// Walks over one struct. `field` answers whether it took the value of the field; what it did not take is skipped.
    pub(crate) fn fields(
        &mut self,
        mut field: impl FnMut(&mut Self, u8, i16) -> Result<bool, Error>,
    ) -> Result<(), Error> {
        loop {
            let kind = known_type(self.byte()?)?;
            if kind == wire::STOP {
                return Ok(());
            }
            let id = self.array().map(i16::from_be_bytes)?;
            if !field(self, kind, id)? {
                self.skip(kind)?;
            }
        }
    }

    /// Passes one value of a type.
    pub(crate) fn skip(&mut self, kind: u8) -> Result<(), Error> {
        self.skip_nested(kind, MAX_DEPTH)
    }

    fn skip_nested(&mut self, kind: u8, depth: u32) -> Result<(), Error> {
        if depth == 0 {
            return Err(Error::Malformed("it is nested too deeply".to_owned()));
        }
        if let Some(size) = fixed_size(kind) {
            return self.take(size).map(drop);
        }
        match kind {
            wire::STRING => self.string().map(drop),
            wire::STRUCT => self.fields(|skim, kind, _| skim.skip_nested(kind, depth - 1).map(|()| true)),
            wire::LIST | wire::SET => {
                let list = self.list()?;
                self.skip_many(list.element, list.count, depth - 1)
            }
            wire::MAP => {
                let (key, value) = (self.byte()?, self.byte()?);
                let count = self.length()?;
                for _ in 0..count {
                    self.skip_nested(known_type(key)?, depth - 1)?;
                    self.skip_nested(known_type(value)?, depth - 1)?;
                }
                Ok(())
            }
            other => Err(Error::Malformed(format!("no type {other}"))),
        }
    }

    /// Passes so many values of one type.
    pub(crate) fn skip_elements(&mut self, list: List) -> Result<(), Error> {
        self.skip_many(list.element, list.count, MAX_DEPTH)
    }

    fn skip_many(&mut self, kind: u8, count: usize, depth: u32) -> Result<(), Error> {
        match fixed_size(kind) {
            Some(size) => self.take(count.saturating_mul(size)).map(drop),
            None => (0..count).try_for_each(|_| self.skip_nested(kind, depth)),
        }
    }
}

fn known_type(number: u8) -> Result<u8, Error> {
    match number {
        0..=4 | 6 | 8 | 10..=16 => Ok(number),
        other => Err(Error::Malformed(format!("no type {other}"))),
    }
}

/// Bytes of a value whose type says it all.
fn fixed_size(kind: u8) -> Option<usize> {
    match kind {
        2 | 3 => Some(1),
        6 => Some(2),
        wire::I32 => Some(4),
        4 | wire::I64 => Some(8),
        16 => Some(16),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn skip(kind: u8, bytes: &[u8]) -> Option<usize> {
        let mut skim = Skim::new(bytes);
        skim.skip(kind).ok().map(|()| skim.position())
    }

    #[test]
    fn values_of_each_type_are_passed_whole() {
        assert_eq!(skip(2, &[1, 9]), Some(1));
        assert_eq!(skip(wire::I64, &[0; 9]), Some(8));
        assert_eq!(skip(wire::STRING, b"\0\0\0\x02ab!"), Some(6));
        assert_eq!(skip(wire::LIST, b"\x06\0\0\0\x02abcd!"), Some(9));
        assert_eq!(skip(wire::MAP, b"\x0b\x02\0\0\0\x01\0\0\0\x01k\x01!"), Some(12));
        assert_eq!(skip(wire::STRUCT, b"\x08\0\x01\0\0\0\x05\0!"), Some(8));
    }

    #[test]
    fn what_ends_early_lies_about_a_length_or_nests_too_deeply_is_refused() {
        assert_eq!(skip(wire::STRING, b"\x7f\xff\xff\xffab"), None);
        assert_eq!(skip(wire::STRING, b"\xff\xff\xff\xffab"), None);
        assert_eq!(skip(wire::LIST, b"\x0a\x7f\xff\xff\xff"), None);
        assert_eq!(skip(wire::LIST, b"\x07\0\0\0\x01\0"), None);
        let nested: Vec<u8> = [12, 0, 1].repeat(100_000);
        assert_eq!(skip(wire::STRUCT, &nested), None);
    }
}
