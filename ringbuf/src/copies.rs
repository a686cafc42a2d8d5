//! Room for grains at the end of a vector, written only once: zeroing it first took a sixth of the time of a drain.

use std::mem::MaybeUninit;

use blkin_record::{GRAIN_BYTES, GRAIN_WORDS};

/// Room for copies, the first of which (`made`) are made.
pub(crate) struct Copies<'a> {
    room: &'a mut [[MaybeUninit<u8>; GRAIN_BYTES]],
    made: usize,
}

impl Copies<'_> {
    /// Writes a grain into the next place, little-endian. The maker of the room ensures that there is one.
    #[inline(always)]
    pub(crate) fn push(&mut self, grain: &[u64; GRAIN_WORDS]) {
        let (words, _) = self.room[self.made].as_chunks_mut::<{ size_of::<u64>() }>();
        for (bytes, word) in words.iter_mut().zip(grain) {
            *bytes = word.to_le_bytes().map(MaybeUninit::new);
        }
        self.made += 1;
    }
}

/// Appends what `copy` makes, at most `grains` of them.
#[inline(always)]
pub(crate) fn append_grains(out: &mut Vec<u8>, grains: usize, copy: impl FnOnce(&mut Copies<'_>)) {
    out.reserve(grains * GRAIN_BYTES);
    let (room, _) = out.spare_capacity_mut().as_chunks_mut();
    let mut copies = Copies { room: &mut room[..grains], made: 0 };
    copy(&mut copies);
    let bytes = copies.made * GRAIN_BYTES;
    // SAFETY: this many bytes past the vector's end are within its capacity and written (invariant 11).
    unsafe { out.set_len(out.len() + bytes) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn append_grains_adds_only_the_grains_that_were_pushed() {
        let mut out = vec![7; 3];
        append_grains(&mut out, 3, |copies| (1..=2).for_each(|word| copies.push(&[word; GRAIN_WORDS])));
        let words = [1_u64, 2].map(|word| word.to_le_bytes().repeat(GRAIN_WORDS)).concat();
        assert_eq!(out, [vec![7; 3], words].concat());
    }
}
