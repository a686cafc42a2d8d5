//! Reads TBinary in place: finds where a value ends and how long a list is, and returns values without a copy.
//!
//! Bytes that cannot be read give `None`; decoding them by [`binary`](crate::binary) tells the reason. Every step takes at
//! least one byte of the slice, so there are never more steps than bytes.

/// The deepest nesting of a value that is skipped, as in Apache's decoder.
const MAX_SKIPPED_DEPTH: u32 = 64;

/// A read position in a slice.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Skim<'a> {
    bytes: &'a [u8],
    at: usize,
    /// How many more structs may be nested in those that have begun.
    structs_left: usize,
}

/// Type and length of a list.
#[derive(Debug, Clone, Copy)]
pub(crate) struct List {
    /// Type of the elements.
    pub(crate) element: u8,
    /// Number of elements, as announced.
    pub(crate) count: usize,
}

/// The types' numbers on the wire.
pub(crate) mod wire {
    pub(crate) const STOP: u8 = 0;
    pub(crate) const BOOL: u8 = 2;
    pub(crate) const I16: u8 = 6;
    pub(crate) const I32: u8 = 8;
    pub(crate) const I64: u8 = 10;
    pub(crate) const STRING: u8 = 11;
    pub(crate) const STRUCT: u8 = 12;
    pub(crate) const MAP: u8 = 13;
    pub(crate) const SET: u8 = 14;
    pub(crate) const LIST: u8 = 15;
}

impl<'a> Skim<'a> {
    /// Starts at the beginning of `bytes`. Structs may be nested `max_depth` deep.
    pub(crate) fn new(bytes: &'a [u8], max_depth: usize) -> Self {
        Skim { bytes, at: 0, structs_left: max_depth }
    }

    /// The number of bytes read so far.
    pub(crate) fn position(&self) -> usize {
        self.at
    }

    /// All bytes read since the position `start`.
    pub(crate) fn since(&self, start: usize) -> &'a [u8] {
        &self.bytes[start..self.at]
    }

    #[inline]
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let end = self.at.checked_add(length)?;
        let taken = self.bytes.get(self.at..end)?;
        self.at = end;
        Some(taken)
    }

    #[inline]
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    #[inline]
    pub(crate) fn byte(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    #[inline]
    pub(crate) fn i16(&mut self) -> Option<i16> {
        self.array().map(i16::from_be_bytes)
    }

    #[inline]
    pub(crate) fn i32(&mut self) -> Option<i32> {
        self.array().map(i32::from_be_bytes)
    }

    #[inline]
    pub(crate) fn i64(&mut self) -> Option<i64> {
        self.array().map(i64::from_be_bytes)
    }

    #[inline]
    fn length(&mut self) -> Option<usize> {
        usize::try_from(self.i32()?).ok()
    }

    /// Reads a string or binary.
    #[inline]
    pub(crate) fn string(&mut self) -> Option<&'a [u8]> {
        let length = self.length()?;
        self.take(length)
    }

    /// Reads a string whose length has been read already.
    pub(crate) fn bytes(&mut self, length: i32) -> Option<&'a [u8]> {
        self.take(usize::try_from(length).ok()?)
    }

    /// Reads the header of a list.
    #[inline]
    pub(crate) fn list(&mut self) -> Option<List> {
        let element = known_type(self.byte()?)?;
        Some(List { element, count: self.length()? })
    }

    /// Reads one struct. `field` returns whether it read the field's value; other fields are skipped.
    #[inline]
    pub(crate) fn fields(&mut self, mut field: impl FnMut(&mut Self, u8, i16) -> Option<bool>) -> Option<()> {
        self.structs_left = self.structs_left.checked_sub(1)?;
        loop {
            let kind = known_type(self.byte()?)?;
            if kind == wire::STOP {
                self.structs_left += 1;
                return Some(());
            }
            let id = self.i16()?;
            if !field(self, kind, id)? {
                self.skip(kind)?;
            }
        }
    }

    /// Skips one value of this type.
    pub(crate) fn skip(&mut self, kind: u8) -> Option<()> {
        self.skip_nested(kind, MAX_SKIPPED_DEPTH)
    }

    fn skip_nested(&mut self, kind: u8, depth: u32) -> Option<()> {
        let inner = depth.checked_sub(1)?;
        if let Some(size) = fixed_size(kind) {
            return self.take(size).map(drop);
        }
        match kind {
            wire::STRING => self.string().map(drop),
            wire::STRUCT => self.fields(|skim, kind, _| skim.skip_nested(kind, inner).map(|()| true)),
            wire::LIST | wire::SET => {
                let list = self.list()?;
                self.skip_many(list.element, list.count, inner)
            }
            wire::MAP => {
                let (key, value) = (known_type(self.byte()?)?, known_type(self.byte()?)?);
                for _ in 0..self.length()? {
                    self.skip_nested(key, inner)?;
                    self.skip_nested(value, inner)?;
                }
                Some(())
            }
            _ => None,
        }
    }

    /// Skips the elements of a list whose header has been read.
    pub(crate) fn skip_elements(&mut self, list: List) -> Option<()> {
        self.skip_many(list.element, list.count, MAX_SKIPPED_DEPTH)
    }

    fn skip_many(&mut self, kind: u8, count: usize, depth: u32) -> Option<()> {
        match fixed_size(kind) {
            Some(size) => self.take(count.checked_mul(size)?).map(drop),
            None => (0..count).try_for_each(|_| self.skip_nested(kind, depth)),
        }
    }
}

#[inline]
fn known_type(number: u8) -> Option<u8> {
    matches!(number, 0..=4 | 6 | 8 | 10..=16).then_some(number)
}

/// The size in bytes of a type whose values all have the same size.
fn fixed_size(kind: u8) -> Option<usize> {
    match kind {
        wire::BOOL | 3 => Some(1),
        wire::I16 => Some(2),
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
        let mut skim = Skim::new(bytes, 16);
        skim.skip(kind).map(|()| skim.position())
    }

    #[test]
    fn values_of_each_type_are_skipped_whole() {
        assert_eq!(skip(2, &[1, 9]), Some(1));
        assert_eq!(skip(wire::I64, &[0; 9]), Some(8));
        assert_eq!(skip(16, &[0; 17]), Some(16));
        assert_eq!(skip(wire::STRING, b"\0\0\0\x02ab!"), Some(6));
        assert_eq!(skip(wire::LIST, b"\x06\0\0\0\x02abcd!"), Some(9));
        assert_eq!(skip(wire::MAP, b"\x0b\x02\0\0\0\x01\0\0\0\x01k\x01!"), Some(12));
        assert_eq!(skip(wire::STRUCT, b"\x08\0\x01\0\0\0\x05\0!"), Some(8));
    }

    #[test]
    fn truncated_mismeasured_and_overly_nested_values_are_refused() {
        assert_eq!(skip(wire::STRING, b"\x7f\xff\xff\xffab"), None);
        assert_eq!(skip(wire::STRING, b"\xff\xff\xff\xffab"), None);
        assert_eq!(skip(wire::LIST, b"\x0a\x7f\xff\xff\xff"), None);
        assert_eq!(skip(wire::LIST, b"\x07\0\0\0\x01\0"), None);
        assert_eq!(skip(wire::MAP, b"\x07\x02\0\0\0\0"), None);
        let nested = |depth: usize| [[12, 0, 1].repeat(depth - 1), vec![0; depth]].concat();
        assert_eq!(skip(wire::STRUCT, &nested(16)), Some(61));
        assert_eq!(skip(wire::STRUCT, &nested(17)), None);
        assert_eq!(skip(wire::LIST, &[15, 0, 0, 0, 1].repeat(100_000)), None);
    }
}
