//! Sections: written one by one, and found one by one, whatever lies between them.

/// What every section begins with.
pub(super) const MAGIC: [u8; 8] = *b"BLKSAVED";
const HEADER_BYTES: usize = 24;
/// No section is longer: at most this much is looked at before a section is judged.
const MAX_CONTENT_BYTES: usize = 128 << 10;

/// What a section holds.
pub(super) mod kind {
    pub(in crate::saved) const PROGRAM: u32 = 1;
    pub(in crate::saved) const CLOCK: u32 = 2;
    pub(in crate::saved) const HEADER: u32 = 3;
    pub(in crate::saved) const NAMES: u32 = 4;
    pub(in crate::saved) const SLOT: u32 = 5;
    pub(in crate::saved) const GRAINS: u32 = 6;
    pub(in crate::saved) const END: u32 = 7;
}

/// A section whose checksum holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Section<'a> {
    pub(super) kind: u32,
    pub(super) content: &'a [u8],
}

/// Appends one section.
pub(super) fn append(out: &mut Vec<u8>, kind: u32, content: &[u8]) {
    debug_assert!(content.len() <= MAX_CONTENT_BYTES);
    let traits = u64::from(kind) | (content.len() as u64) << 32;
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&traits.to_le_bytes());
    out.extend_from_slice(&checksum(&[&traits.to_le_bytes(), content]).to_le_bytes());
    out.extend_from_slice(content);
    out.resize(out.len().next_multiple_of(8), 0);
}

/// Length of the section that ends the rings of a program.
pub const END_BYTES: usize = HEADER_BYTES + 8;

/// Whether a file that ends with these bytes, [`END_BYTES`] of them, ends with all of a program's rings, and was not cut in
/// the middle of them.
pub fn ends_whole(tail: &[u8]) -> bool {
    first(tail).is_some_and(|(section, bytes)| section.kind == kind::END && bytes == tail.len())
}

/// The sections of a file, and how many of its bytes belong to none.
pub(super) struct Sections<'a> {
    rest: &'a [u8],
    pub(super) damaged_bytes: u64,
    /// Nothing that can be read follows the damage that was met last.
    pub(super) ends_damaged: bool,
    /// Bytes of the section in the middle of which the file ends.
    pub(super) cut_bytes: u64,
    /// Bytes that may still be looked at in vain: in a file of nothing but beginnings of sections, each of them must not cost
    /// a look at all that follows.
    budget: u64,
}

impl<'a> Sections<'a> {
    pub(super) fn of(file: &'a [u8]) -> Self {
        let budget = 4 * file.len() as u64 + (1 << 20);
        Self { rest: file, damaged_bytes: 0, ends_damaged: false, cut_bytes: 0, budget }
    }
}

impl<'a> Iterator for Sections<'a> {
    type Item = Section<'a>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.rest.is_empty() {
            if let Some((section, bytes)) = first(self.rest) {
                self.rest = &self.rest[bytes..];
                self.ends_damaged = false;
                return Some(section);
            }
            self.budget = self.budget.saturating_sub(MAX_CONTENT_BYTES.min(self.rest.len()) as u64);
            let next = self.rest[1..].windows(MAGIC.len()).position(|window| window == MAGIC);
            if next.is_none() && is_cut(self.rest) {
                self.cut_bytes = self.rest.len() as u64;
                self.rest = &[];
                return None;
            }
            let skipped = next.filter(|_| self.budget > 0).map_or(self.rest.len(), |at| at + 1);
            self.damaged_bytes += skipped as u64;
            self.ends_damaged = true;
            self.rest = &self.rest[skipped..];
        }
        None
    }
}

/// The section that `bytes` begin with, and its length with the padding.
pub(super) fn first(bytes: &[u8]) -> Option<(Section<'_>, usize)> {
    let (header, rest) = bytes.split_at_checked(HEADER_BYTES)?;
    if header[..8] != MAGIC {
        return None;
    }
    let traits = word(header, 1)?;
    let length = (traits >> 32) as usize;
    if length > MAX_CONTENT_BYTES {
        return None;
    }
    let content = rest.get(..length)?;
    let whole = checksum(&[&header[8..16], content]) == word(header, 2)?;
    let bytes_with_padding = (HEADER_BYTES + length.next_multiple_of(8)).min(bytes.len());
    whole.then_some((Section { kind: traits as u32, content }, bytes_with_padding))
}

/// Whether `bytes` begin like a section that is longer than they are.
fn is_cut(bytes: &[u8]) -> bool {
    let magic = bytes.len().min(MAGIC.len());
    let length = word(bytes, 1).map(|traits| (traits >> 32) as usize);
    let is_longer = |length| length <= MAX_CONTENT_BYTES && bytes.len() < HEADER_BYTES + length;
    bytes[..magic] == MAGIC[..magic] && length.is_none_or(is_longer)
}

/// A word of `bytes`, if they are long enough.
pub(super) fn word(bytes: &[u8], index: usize) -> Option<u64> {
    let (word, _) = bytes.get(index.checked_mul(8)?..)?.split_first_chunk::<8>()?;
    Some(u64::from_le_bytes(*word))
}

/// All words of `bytes`.
pub(super) fn words(bytes: &[u8]) -> Vec<u64> {
    bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect()
}

/// 64-bit FNV-1a: finds damage, but is no defence against an attacker.
fn checksum(parts: &[&[u8]]) -> u64 {
    parts.iter().flat_map(|part| part.iter()).fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
