//! How a piece lies in the store: behind a head by which damage shows, and by which the piece is found in the bytes of a
//! file whose tree is lost.
//!
//! ```text
//! ff 'B' 'k' 'p'   length:u32   xxh3 of the body:u64   body
//! ```

use xxhash_rust::xxh3::xxh3_64;

/// How a head begins. Its first byte is in no text.
pub(super) const MAGIC: [u8; 4] = *b"\xffBkp";
/// Bytes of a head.
pub(super) const HEAD_BYTES: usize = 16;

/// A head, read and not believed yet.
#[derive(Debug, Clone, Copy)]
pub(super) struct Head {
    /// Bytes of the body.
    pub(super) length: u32,
    checksum: u64,
}

impl Head {
    /// The head that these bytes begin with.
    pub(super) fn read(bytes: &[u8]) -> Option<Head> {
        let rest = bytes.strip_prefix(&MAGIC)?;
        let length = u32::from_be_bytes(rest.get(..4)?.try_into().ok()?);
        let checksum = u64::from_be_bytes(rest.get(4..12)?.try_into().ok()?);
        Some(Head { length, checksum })
    }

    /// Whether this is the head of this body.
    pub(super) fn fits(self, body: &[u8]) -> bool {
        self.length == length(body) && self.checksum == xxh3_64(body)
    }
}

/// The low 32 bits of a length: no piece is longer, and one that were would still be whole.
fn length(body: &[u8]) -> u32 {
    body.len() as u32
}

/// Appends a body with its head to a row.
pub(super) fn seal_into(body: &[u8], row: &mut Vec<u8>) {
    row.extend_from_slice(&MAGIC);
    row.extend_from_slice(&length(body).to_be_bytes());
    row.extend_from_slice(&xxh3_64(body).to_be_bytes());
    row.extend_from_slice(body);
}

/// What was sealed into a row, one after the other, heads included. What follows a head that cannot be read is one
/// part, which cannot be opened.
pub(super) fn each(row: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = row;
    std::iter::from_fn(move || {
        let length =
            Head::read(rest).map_or(usize::MAX, |head| HEAD_BYTES.saturating_add(head.length as usize));
        let (part, after) = rest.split_at(length.min(rest.len()));
        rest = after;
        (!part.is_empty()).then_some(part)
    })
}

/// The body, if it is what was sealed.
pub(super) fn open(value: &[u8]) -> Option<&[u8]> {
    let body = value.get(HEAD_BYTES..)?;
    Head::read(value)?.fits(body).then_some(body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_comes_back_and_no_flipped_bit_goes_unnoticed() {
        let mut sealed = Vec::new();
        seal_into(b"some piece", &mut sealed);
        assert_eq!(open(&sealed), Some(&b"some piece"[..]));
        for bit in 0..sealed.len() * 8 {
            let mut flipped = sealed.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(open(&flipped), None, "bit {bit}");
        }
        assert!((0..sealed.len()).all(|length| open(&sealed[..length]).is_none()));
    }

    #[test]
    fn a_damaged_part_of_a_row_hides_no_other() {
        let mut row = Vec::new();
        [b"one", b"two"].iter().for_each(|body| seal_into(*body, &mut row));
        let opened = |row: &[u8]| each(row).map(|part| open(part).map(<[u8]>::to_vec)).collect::<Vec<_>>();
        assert_eq!(opened(&row), [Some(b"one".to_vec()), Some(b"two".to_vec())]);
        row[HEAD_BYTES] ^= 1;
        assert_eq!(opened(&row), [None, Some(b"two".to_vec())]);
        row[0] ^= 1;
        assert_eq!(opened(&row), [None]);
        assert!(opened(&[]).is_empty());
    }
}
