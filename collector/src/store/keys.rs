//! The layout of the store's rows. Numbers are big-endian, so that keys sort as their numbers do.
//!
//! ```text
//! key                                    value
//! 'V'                                    format version, 1 byte
//! 'C'                                    block:u64                      retention has passed the blocks before this
//! 'D' block:u64                          arrival:u64 (head Piece)*      in order of arrival; see block.rs
//! 'E' 'B'                                bytes:u64                      payload bytes of all pieces
//! 'E' 'L'                                (annotations:u64 spans:u64)*   the ledger, in order of its figures' numbers
//! 'E' 'Q'                                next:u64                       number of the next block
//! 'K' block:u64                          arrival:u64 (head Piece)*      what retention kept of a block it has passed
//! 'M'                                    Manifest                       which segments make up the index
//! 'X' segment:u64 column:u8 chunk:u32    checksum:u64 body              a part of the index; see segment.rs
//! 'N' kind:u8 length:u16 service value   hour:u64                       names, and when last seen
//! 'T'                                    anything                       written to test the disk; has no meaning
//! ```
//!
//! 'D', 'K' and 'N' are the data. 'M' and 'X' can be rebuilt from 'D' and 'K', and are rebuilt when they are damaged. Every
//! commit changes the 'E' rows; they sort right behind the newest block, so they all lie in one page of the tree.

/// The format version that this program writes and reads.
pub const FORMAT_VERSION: u8 = 6;

pub(super) const VERSION: &[u8] = b"V";
pub(super) const LEDGER: &[u8] = b"EL";
pub(super) const PAYLOAD_BYTES: &[u8] = b"EB";
pub(super) const NEXT_BLOCK: &[u8] = b"EQ";
pub(super) const CURSOR: &[u8] = b"C";
pub(super) const MANIFEST: &[u8] = b"M";
pub(super) const TRIAL: &[u8] = b"T";
pub(super) const BLOCKS: u8 = b'D';
pub(super) const KEPT: u8 = b'K';
pub(super) const CHUNKS: u8 = b'X';
pub(super) const NAMES: u8 = b'N';

pub(super) fn read_u64(bytes: &[u8], at: usize) -> Option<u64> {
    let part = bytes.get(at..at.checked_add(8)?)?;
    Some(u64::from_be_bytes(part.try_into().ok()?))
}

fn numbered(kind: u8, number: u64) -> Vec<u8> {
    let mut key = vec![kind];
    key.extend_from_slice(&number.to_be_bytes());
    key
}

/// A block as it was written.
pub(super) fn block(number: u64) -> Vec<u8> {
    numbered(BLOCKS, number)
}

/// The rest that retention kept of a block.
pub(super) fn kept(number: u64) -> Vec<u8> {
    numbered(KEPT, number)
}

/// All rows of a segment of the index.
pub(super) fn segment(number: u64) -> Vec<u8> {
    numbered(CHUNKS, number)
}

/// All rows of a column of a segment.
pub(super) fn column(segment: u64, column: u8) -> Vec<u8> {
    let mut key = self::segment(segment);
    key.push(column);
    key
}

/// One chunk of a column.
pub(super) fn chunk(segment: u64, column: u8, chunk: u32) -> Vec<u8> {
    let mut key = self::column(segment, column);
    key.extend_from_slice(&chunk.to_be_bytes());
    key
}

/// All names of one kind that belong to a service.
pub(super) fn names_prefix(kind: u8, service: &str) -> Vec<u8> {
    let mut key = vec![NAMES, kind];
    key.extend_from_slice(&(service.len() as u16).to_be_bytes());
    key.extend_from_slice(service.as_bytes());
    key
}

/// The part of a name's row that is the same for all names of its kind that belong to one service.
pub(super) fn prefix_of_name(key: &[u8]) -> Option<&[u8]> {
    let length = u16::from_be_bytes(key.get(2..4)?.try_into().ok()?);
    key.get(..4 + usize::from(length))
}

/// The row of one name.
pub(super) fn name(kind: u8, service: &str, value: &str) -> Vec<u8> {
    let mut key = names_prefix(kind, service);
    key.extend_from_slice(value.as_bytes());
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|b| format!("{b:02x}")).collect()
    }

    #[test]
    fn keys_have_their_documented_bytes() {
        assert_eq!(hex(&block(0x0102)), "440000000000000102");
        assert_eq!(hex(&kept(3)), "4b0000000000000003");
        assert_eq!(hex(&chunk(1, 2, 3)), "5800000000000000010200000003");
        assert_eq!(hex(&name(1, "ab", "c")), "4e010002616263");
        assert_eq!(prefix_of_name(&name(1, "ab", "c")), Some(&*names_prefix(1, "ab")));
        assert_eq!(prefix_of_name(b"N\x01\x00\x02a"), None);
    }
}
