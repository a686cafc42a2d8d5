//! The frame of a piece in the store. A head in front of the piece reveals damage, and makes it possible to find the piece in the
//! bytes of a file whose tree is lost.
//!
//! ```text
//! ff 'B' 'k' 'p'   length:u32   xxh3 of the body:u64   body
//! ```

use xxhash_rust::xxh3::{Xxh3Default, xxh3_64};

use super::block::BLOCK_BYTES;

/// The first bytes of a head. The very first cannot occur in UTF-8 text.
pub(super) const MAGIC: [u8; 4] = *b"\xffBkp";
/// Bytes of a head.
pub(super) const HEAD_BYTES: usize = 16;

/// A head that was read, and whose checksum has not been compared with a body yet.
#[derive(Debug, Clone, Copy)]
pub(super) struct Head {
    /// Bytes of the body.
    pub(super) length: u32,
    checksum: u64,
}

impl Head {
    /// The head at the beginning of these bytes.
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

    /// Whether it announces this checksum.
    pub(super) fn has(self, checksum: &Checksum) -> bool {
        self.checksum == checksum.0.digest()
    }
}

/// The checksum of a body that is read part by part.
#[derive(Default)]
pub(super) struct Checksum(Xxh3Default);

impl Checksum {
    /// Adds the next part.
    pub(super) fn add(&mut self, part: &[u8]) {
        self.0.update(part);
    }
}

/// The low 32 bits of a length. No piece is longer than they can hold; a longer one would still pass as whole.
fn length(body: &[u8]) -> u32 {
    body.len() as u32
}

/// Fills in the head in front of a body, for which the bytes have room.
pub(super) fn seal(sealed: &mut [u8]) {
    let (head, body) = sealed.split_at_mut(HEAD_BYTES);
    head[..4].copy_from_slice(&MAGIC);
    head[4..8].copy_from_slice(&length(body).to_be_bytes());
    head[8..].copy_from_slice(&xxh3_64(body).to_be_bytes());
}

/// A part of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Part<'r> {
    /// Where it begins in the row.
    pub(super) offset: usize,
    /// All its bytes, with the head.
    pub(super) sealed: &'r [u8],
    /// The body; none if it is damaged.
    pub(super) body: Option<&'r [u8]>,
}

/// The pieces in a row from an offset on, one after the other. Everything from damage up to the next whole piece is one damaged
/// part.
pub(super) fn each(row: &[u8], from: usize) -> impl Iterator<Item = Part<'_>> {
    let mut offset = from;
    std::iter::from_fn(move || {
        let rest = row.get(offset..).filter(|rest| !rest.is_empty())?;
        let body = open(rest);
        let length = body.map_or_else(|| damaged_length(rest), |body| HEAD_BYTES + body.len());
        let part = Part { offset, sealed: &rest[..length], body };
        offset += length;
        Some(part)
    })
}

/// The body of the piece at the beginning of these bytes, if it is undamaged.
pub(super) fn open(bytes: &[u8]) -> Option<&[u8]> {
    let head = Head::read(bytes)?;
    let end = HEAD_BYTES.checked_add(head.length as usize)?;
    bytes.get(HEAD_BYTES..end).filter(|body| head.fits(body))
}

/// How many bytes there are before the next head whose body is whole. A row that is longer than a block holds a single piece:
/// bytes in it that look like heads are part of what was sent, and the time to check each would grow with the square of its length.
fn damaged_length(bytes: &[u8]) -> usize {
    if bytes.len() > BLOCK_BYTES {
        return bytes.len();
    }
    let heads = (1..bytes.len()).filter(|&at| bytes[at] == MAGIC[0]);
    heads.into_iter().find(|&at| open(&bytes[at..]).is_some()).unwrap_or(bytes.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sealed(body: &[u8]) -> Vec<u8> {
        let mut bytes = [&[0; HEAD_BYTES], body].concat();
        seal(&mut bytes);
        bytes
    }

    #[test]
    fn a_sealed_body_round_trips_and_any_flipped_bit_is_noticed() {
        let sealed = sealed(b"some piece");
        let opened = |bytes: &[u8]| open(bytes).map(<[u8]>::to_vec);
        assert_eq!(opened(&sealed), Some(b"some piece".to_vec()));
        for bit in 0..sealed.len() * 8 {
            let mut flipped = sealed.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(opened(&flipped), None, "bit {bit}");
        }
        assert!((0..sealed.len()).all(|length| opened(&sealed[..length]).is_none()));
    }

    #[test]
    fn a_damaged_part_of_a_row_hides_no_other_part() {
        let bodies: [&[u8]; 3] = [b"one", b"two", b"three"];
        let row: Vec<u8> = bodies.iter().flat_map(|body| sealed(body)).collect();
        let opened = |row: &[u8]| each(row, 0).map(|part| part.body.map(<[u8]>::to_vec)).collect::<Vec<_>>();
        assert_eq!(opened(&row), bodies.map(|body| Some(body.to_vec())));
        let second = HEAD_BYTES + 3..2 * (HEAD_BYTES + 3);
        for at in second.clone() {
            let mut damaged = row.clone();
            damaged[at] ^= 0x5a;
            assert_eq!(opened(&damaged), [Some(b"one".to_vec()), None, Some(b"three".to_vec())], "byte {at}");
        }
        assert!(opened(&[]).is_empty());
        let parts: Vec<_> = each(&row, second.start).collect();
        assert_eq!(parts.iter().map(|part| part.offset).collect::<Vec<_>>(), [second.start, second.end]);
        assert_eq!(parts[0].sealed, &row[second]);
    }

    #[test]
    fn a_damaged_piece_filling_a_row_is_not_searched_for_others() {
        let inner = sealed(b"forged");
        for (length, parts) in [(BLOCK_BYTES - 2 * HEAD_BYTES, 3), (BLOCK_BYTES, 1)] {
            let mut row = sealed(&[inner.as_slice(), &vec![7; length - inner.len()]].concat());
            row[HEAD_BYTES - 1] ^= 1;
            assert_eq!(each(&row, 0).count(), parts, "{length}");
        }
    }
}
