//! The table of names: append-only, fixed size, no lock. A text has one id for the life of its program, forked
//! children included.
//!
//! ```text
//! index  8192 words  0, or [hash: 32 bits | id: 32 bits]   probed linearly; private
//! text   word 0      words given out
//!        word id     length in bytes, then the bytes and at least one 0, padded to words
//! ```
//!
//! Both parts are the program's own memory, which a forked child inherits; a thread that adds a text copies it into the
//! segment too, where the consumer reads it. A text is written (and shared) before its index word is published, so
//! nobody sees half of one. Two writers of the same text may both write it; the one that loses the index word uses the
//! winner's. A full table answers `None`, and the text then travels in the record.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use blkin_record::word_of;

use crate::words::Words;

/// Longer texts are not worth a place in the table.
pub const MAX_INTERNED_BYTES: usize = 256;
const PROBES: usize = 32;
const HINTS: usize = 512;
const HINT_SHIFT: u32 = u64::BITS - HINTS.ilog2();
const FACTOR: u64 = 0x517c_c1b7_2722_0a95;
/// The word of the texts that says how many of them are given out.
pub(crate) const GIVEN_OUT: usize = 0;
const FIRST_TEXT: u64 = 1;
/// With less room than this, there is none for the longest text.
pub(crate) const LEAST_WORDS: u64 = 2 + MAX_INTERNED_BYTES as u64 / 8;

/// Which id the text at an address last had: private to a process, one word per entry,
/// `[part of the address: 32 bits | changes: 16 bits | id: 16 bits]`.
pub struct Hints {
    entries: [AtomicU64; HINTS],
}

/// What is known of the text at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hint {
    /// It had this id: a guess, to be checked.
    Id(u32),
    /// Nearly every time it is another one: not worth a search.
    Changing,
    /// Nothing.
    Nothing,
}

/// After this many changes of its text in a row, an address is taken for that of a buffer.
const MANY_CHANGES: u64 = 16;

impl Hints {
    /// No hints.
    pub const fn new() -> Hints {
        Hints { entries: [const { AtomicU64::new(0) }; HINTS] }
    }

    #[inline(always)]
    fn entry(&self, address: usize) -> (&AtomicU64, u64) {
        let mixed = (address as u64).wrapping_mul(FACTOR);
        (&self.entries[(mixed >> HINT_SHIFT) as usize], mixed << 32)
    }

    /// What was last kept for `address`.
    #[inline(always)]
    pub(crate) fn at(&self, address: usize) -> Hint {
        let (hint, tag) = self.entry(address);
        // Acquire, so that whoever sees our record sees the text too, though another thread wrote it.
        let hinted = hint.load(Acquire);
        match hinted as u16 {
            _ if hinted >> 32 != tag >> 32 => Hint::Nothing,
            0 if hinted as u32 == 0 => Hint::Nothing,
            0 => Hint::Changing,
            id => Hint::Id(u32::from(id)),
        }
    }

    fn keep(&self, address: usize, id: u32) {
        let (hint, tag) = self.entry(address);
        let old = hint.load(Relaxed);
        // Two threads that count the same change do no harm.
        let changes = if old >> 32 == tag >> 32 && old as u32 != 0 { (old >> 16 & 0xffff) + 1 } else { 0 };
        let id = if changes < MANY_CHANGES { u64::from(id) } else { 0 };
        hint.store(tag | changes << 16 | id, Release);
    }

    /// The text now at `address` is another one, and is in no table: texts there are not worth a search.
    fn give_up(&self, address: usize) {
        let (hint, tag) = self.entry(address);
        let old = hint.load(Relaxed);
        // What is known of another address stays.
        if old >> 32 == tag >> 32 && old as u32 != 0 {
            hint.store(tag | MANY_CHANGES << 16, Relaxed);
        }
    }

    /// Gives the text at `address` another chance.
    pub(crate) fn forget(&self, address: usize) {
        self.entry(address).0.store(0, Relaxed);
    }
}

// Ids are offsets into the texts.
const _: () = assert!(crate::layout::NAMES_TEXT_WORDS <= 1 << 16);

impl Default for Hints {
    fn default() -> Hints {
        Hints::new()
    }
}

/// Both parts of the table.
pub struct Names<'a, W: Words + ?Sized> {
    /// Index; `index_words` is a power of two.
    pub index: &'a W,
    /// Words of the index.
    pub index_words: usize,
    /// Texts.
    pub text: &'a W,
    /// Words of the texts that may be given out.
    pub text_words: usize,
}

/// The texts alone, for a reader that trusts nothing.
pub struct Texts<'a, W: Words + ?Sized> {
    /// Texts.
    pub text: &'a W,
    /// Words of the texts.
    pub text_words: usize,
}

impl<W: Words + ?Sized> Names<'_, W> {
    /// As [`Names::intern`], for a text that lies at `address`: the id that this address had last is tried first.
    #[inline]
    pub fn intern_from(
        &self,
        hints: &Hints,
        address: usize,
        text: &[u8],
        share: impl Fn(std::ops::Range<usize>),
    ) -> Option<u32> {
        if let Some(id) = self.hinted(hints, address, text) {
            return Some(id);
        }
        let Some(id) = self.intern(&[text], share) else {
            hints.give_up(address);
            return None;
        };
        // A C string that is found by its address alone is compared up to the first 0.
        if !text.contains(&0) {
            hints.keep(address, id);
        }
        Some(id)
    }

    /// The id that `text` had when it was last seen at `address`, if that is still what it says.
    #[inline]
    pub fn hinted(&self, hints: &Hints, address: usize, text: &[u8]) -> Option<u32> {
        let Hint::Id(id) = hints.at(address) else { return None };
        self.equals(id as usize, &[text], text.len()).then_some(id)
    }

    /// Whether `id` is that of `text`.
    #[inline(always)]
    pub(crate) fn is_text(&self, id: u32, text: &[u8]) -> bool {
        self.equals(id as usize, &[text], text.len())
    }

    /// Whether there is no room for further texts.
    pub fn is_full(&self) -> bool {
        self.text.load(GIVEN_OUT, Relaxed) + LEAST_WORDS > self.text_words as u64
    }

    /// The id of the text that `pieces` make up when joined; `None` when it is too long or the table is full. The words
    /// of a text that is new are passed to `share` before anybody else can know its id.
    pub fn intern(&self, pieces: &[&[u8]], share: impl Fn(std::ops::Range<usize>)) -> Option<u32> {
        let bytes = joined_bytes(pieces);
        if bytes > MAX_INTERNED_BYTES {
            return None;
        }
        let hash = hash(pieces, bytes);
        let mut written = None;
        for probe in 0..PROBES.min(self.index_words) {
            let place = (hash as usize + probe) & (self.index_words - 1);
            // SYNC POINT publish a name: pairs with the release below.
            let mut entry = self.index.load(place, Acquire);
            if entry == 0 {
                let id = match written {
                    Some(id) => id,
                    None => *written.insert(self.append(pieces, bytes, &share)?),
                };
                entry = self.publish(place, u64::from(hash) << 32 | u64::from(id));
            }
            if self.holds(entry, hash, pieces, bytes) {
                return Some(entry as u32);
            }
        }
        None
    }

    /// Puts `entry` into the empty index word at `place`; returns what stands there then.
    fn publish(&self, place: usize, entry: u64) -> u64 {
        loop {
            match self.index.swap_if(place, 0, entry, Release) {
                Ok(_) => return entry,
                // A weak compare-and-swap may fail though the word is still 0.
                Err(_) => match self.index.load(place, Acquire) {
                    0 => continue,
                    other => return other,
                },
            }
        }
    }

    fn append(&self, pieces: &[&[u8]], bytes: usize, share: impl Fn(std::ops::Range<usize>)) -> Option<u32> {
        let words = 2 + bytes as u64 / 8;
        let mut given = self.text.load(GIVEN_OUT, Relaxed);
        let id = loop {
            let id = given.max(FIRST_TEXT);
            if id + words > self.text_words as u64 {
                return None;
            }
            match self.text.swap_if(GIVEN_OUT, given, id + words, Relaxed) {
                Ok(_) => break id,
                Err(moved) => given = moved,
            }
        };
        self.text.store(id as usize, bytes as u64, Relaxed);
        let mut at = id as usize + 1;
        pack(pieces, |word| {
            self.text.store(at, word, Relaxed);
            at += 1;
            true
        });
        share(id as usize..(id + words) as usize);
        Some(id as u32)
    }

    fn holds(&self, entry: u64, hash: u32, pieces: &[&[u8]], bytes: usize) -> bool {
        (entry >> 32) as u32 == hash && self.equals(entry as u32 as usize, pieces, bytes)
    }

    #[inline(always)]
    fn equals(&self, id: usize, pieces: &[&[u8]], bytes: usize) -> bool {
        if self.text.load(id, Relaxed) != bytes as u64 {
            return false;
        }
        let mut at = id + 1;
        let mut is_next = |word: u64| {
            let same = self.text.load(at, Relaxed) == word;
            at += 1;
            same
        };
        match pieces {
            // Nearly all texts: whole words as they stand, no shifting.
            [text] => text.chunks(8).all(|chunk| is_next(word_of(chunk))),
            pieces => pack(pieces, is_next),
        }
    }
}

impl<W: Words + ?Sized> Texts<'_, W> {
    /// A private copy of the text of `id`, for a reader that trusts nothing; `None` if there can be no such text.
    pub fn text(&self, id: u32) -> Option<Vec<u8>> {
        let id = id as usize;
        if id == 0 || id >= self.text_words {
            return None;
        }
        let bytes = usize::try_from(self.text.load(id, Acquire)).ok()?;
        let words = bytes.checked_add(7)? / 8;
        if bytes > MAX_INTERNED_BYTES || id + words >= self.text_words {
            return None;
        }
        let mut text = Vec::with_capacity(words * 8);
        for at in id + 1..=id + words {
            text.extend_from_slice(&self.text.load(at, Relaxed).to_le_bytes());
        }
        text.truncate(bytes);
        Some(text)
    }
}

#[inline(always)]
fn joined_bytes(pieces: &[&[u8]]) -> usize {
    pieces.iter().map(|piece| piece.len()).sum()
}

/// Joins `pieces`, cuts them into words (the last one padded with zeros) and passes these on until told to stop.
/// Returns false if it was told so.
#[inline(always)]
fn pack(pieces: &[&[u8]], mut each: impl FnMut(u64) -> bool) -> bool {
    let (mut word, mut bits) = (0u64, 0u32);
    for piece in pieces {
        for chunk in piece.chunks(8) {
            let (value, value_bits) = (word_of(chunk), chunk.len() as u32 * 8);
            word |= value << bits;
            if bits + value_bits >= 64 {
                if !each(word) {
                    return false;
                }
                word = if bits == 0 { 0 } else { value >> (64 - bits) };
                bits = bits + value_bits - 64;
            } else {
                bits += value_bits;
            }
        }
    }
    bits == 0 || each(word)
}

/// Multiply and rotate over words (as in FxHash), folded to 32 bits. Multiplied once more, because what stands last in a word
/// reaches only the highest bits of a product, and the lowest bits choose the place in the index.
fn hash(pieces: &[&[u8]], bytes: usize) -> u32 {
    let mut hash = bytes as u64;
    pack(pieces, |word| {
        hash = (hash.rotate_left(5) ^ word).wrapping_mul(FACTOR);
        true
    });
    ((hash ^ hash >> 32).wrapping_mul(FACTOR) >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::atomic::AtomicU64;

    fn words(count: usize) -> Vec<AtomicU64> {
        (0..count).map(|_| AtomicU64::new(0)).collect()
    }

    fn table<'a>(index: &'a [AtomicU64], text: &'a [AtomicU64]) -> Names<'a, [AtomicU64]> {
        Names { index, index_words: index.len(), text, text_words: text.len() }
    }

    fn read(text: &[AtomicU64], id: u32) -> Option<Vec<u8>> {
        Texts { text, text_words: text.len() }.text(id)
    }

    fn nobody(_: std::ops::Range<usize>) {}

    proptest! {
        #[test]
        fn a_text_reads_back_and_keeps_its_id(texts in proptest::collection::vec(
                proptest::collection::vec(any::<u8>(), 0..40), 1..60), cut in 0usize..40) {
            let (index, text) = (words(64), words(1024));
            let names = table(&index, &text);
            let mut seen = std::collections::HashMap::new();
            for bytes in &texts {
                let (left, right) = bytes.split_at(cut.min(bytes.len()));
                if let Some(id) = names.intern(&[left, right], nobody) {
                    prop_assert_eq!(&read(&text, id).unwrap(), bytes);
                    prop_assert_eq!(*seen.entry(bytes.clone()).or_insert(id), id);
                    prop_assert_eq!(names.intern(&[bytes], nobody), Some(id));
                }
            }
        }

        #[test]
        fn a_hostile_table_is_read_without_a_panic(raw in proptest::collection::vec(any::<u64>(), 32), id: u32) {
            let text: Vec<AtomicU64> = raw.into_iter().map(AtomicU64::new).collect();
            for id in [id, id % 40] {
                prop_assert!(read(&text, id).is_none_or(|text| text.len() <= MAX_INTERNED_BYTES));
            }
        }
    }

    #[test]
    fn a_buffer_with_another_text_never_gets_the_old_id() {
        let (index, text) = (words(64), words(1024));
        let (names, hints) = (table(&index, &text), Hints::new());
        let mut buffer = *b"first text";
        for round in 0..50u8 {
            buffer[9] = b'a' + round % 3;
            let id = names.intern_from(&hints, buffer.as_ptr() as usize, &buffer, nobody).unwrap();
            assert_eq!(read(&text, id).as_deref(), Some(&buffer[..]));
            let shorter = names.intern_from(&hints, buffer.as_ptr() as usize, &buffer[..4], nobody).unwrap();
            assert_eq!(read(&text, shorter).as_deref(), Some(&buffer[..4]));
        }
    }

    #[test]
    fn an_address_whose_text_keeps_changing_is_hinted_as_changing() {
        let (index, text) = (words(256), words(4096));
        let (names, hints) = (table(&index, &text), Hints::new());
        let stable = b"stable";
        let known = names.intern_from(&hints, stable.as_ptr() as usize, stable, nobody).unwrap();
        // Two addresses that share a hint would take turns in it.
        let hint = |text: &[u8]| std::ptr::from_ref(hints.entry(text.as_ptr() as usize).0);
        let mut buffers = [*b"text 00"; 2];
        let buffer = buffers.iter_mut().find(|buffer| hint(*buffer) != hint(stable)).unwrap();
        let address = buffer.as_ptr() as usize;
        for round in 0..=MANY_CHANGES as u8 {
            assert_ne!(hints.at(address), Hint::Changing);
            buffer[5..].copy_from_slice(&[b'a' + round, b'a' + round % 7]);
            names.intern_from(&hints, address, buffer, nobody).unwrap();
        }
        assert_eq!(hints.at(address), Hint::Changing);
        assert_eq!(hints.at(stable.as_ptr() as usize), Hint::Id(known));
        hints.forget(address);
        assert_eq!(hints.at(address), Hint::Nothing);
    }

    #[test]
    fn texts_that_differ_in_one_byte_all_get_an_id() {
        for place in 0..24 {
            let (index, text) = (words(8192), words(2048));
            let names = table(&index, &text);
            let without = (0..=u8::MAX).find(|byte| {
                let mut bytes = [b'x'; 24];
                bytes[place] = *byte;
                names.intern(&[&bytes[..=place]], nobody).is_none()
            });
            assert_eq!(without, None, "at {place}");
        }
    }

    #[test]
    fn a_full_table_refuses_new_texts_and_keeps_the_old_ones() {
        let (index, text) = (words(16), words(64));
        let names = table(&index, &text);
        let first = names.intern(&[b"first"], nobody).unwrap();
        let refused =
            (0..100).filter(|n| names.intern(&[format!("text {n}").as_bytes()], nobody).is_none()).count();
        assert!(refused > 80);
        assert_eq!(names.intern(&[b"first"], nobody), Some(first));
        assert!(names.intern(&[&[b'x'; MAX_INTERNED_BYTES + 1]], nobody).is_none());
    }
}
