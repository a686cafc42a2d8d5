//! Records with texts, put together on the stack before they have a place in a ring.
//!
//! Texts are copied in blocks of sixteen bytes, and each text overwrites what was copied beyond the end of the one before: where
//! a text ends need not be known before it is copied. Blocks are read up to 15 bytes past a text's end, though never in
//! another page; what came along is overwritten by what follows, and at the end by zeros.

use std::mem::MaybeUninit;

use blkin_record::{
    Draft, EndpointParts, Entry, GRAIN_BYTES, GRAIN_WORDS, MAX_IP_BYTES, Payload, TAIL_WORDS,
};

use crate::cstring::{self, BLOCK, Block, PAGE};

/// Bytes of the tail in a continuation grain.
const TAIL_GRAIN_BYTES: usize = TAIL_WORDS * size_of::<u64>();
/// The longest tail that is copied within a restartable sequence: a longer one would keep a thread inside for so long that
/// the sequence would seldom be completed.
const MOST_TAIL_BYTES: usize = (Image::MOST_GRAINS - 1) * TAIL_GRAIN_BYTES;
/// Room after the tail: for what a block may write beyond it, and for the rest of its last grain.
const BEHIND_BYTES: usize = GRAIN_BYTES;
const TAIL_ROOM_BYTES: usize = MOST_TAIL_BYTES + BEHIND_BYTES;

/// A record of a few grains. Aligned as every stack is, which so needs no realignment.
#[repr(C, align(16))]
pub(crate) struct Image {
    /// Word 0: the stamp without its position. Word 7: ordinal 0.
    head: [MaybeUninit<u64>; GRAIN_WORDS],
    /// The contents of the continuation grains after their stamps, without gaps.
    tail: [MaybeUninit<u8>; TAIL_ROOM_BYTES],
}

impl Image {
    /// Grains for which it has room.
    pub(crate) const MOST_GRAINS: usize = 8;

    #[inline(always)]
    pub(crate) fn new() -> Image {
        Image { head: [MaybeUninit::uninit(); GRAIN_WORDS], tail: [MaybeUninit::uninit(); TAIL_ROOM_BYTES] }
    }

    /// Puts in what a draft says, except for the head. `None` if its texts are too long.
    #[inline(always)]
    pub(crate) fn set_draft(&mut self, draft: &Draft<'_>) -> Option<Counts> {
        let value = if let Payload::Integer(value) = draft.payload { value as u64 } else { 0 };
        self.set_value(value);
        let mut tail = self.begin();
        if let Some(name) = draft.name.inline_text() {
            tail = tail.entry(Entry::Name, name)?;
        }
        if let Some(EndpointParts { ip, port, name }) = draft.endpoint.inline_text() {
            tail = tail.endpoint(port, ip, name)?;
        }
        if let Some(key) = draft.key.inline_text() {
            tail = tail.entry(Entry::Key, key)?;
        }
        if let Payload::Str(value) = draft.payload {
            tail = tail.entry(Entry::Value, value)?;
        }
        tail.end([draft.name.id(), draft.endpoint.id(), draft.key.id()])
    }

    /// Sets the word in which an event has its time.
    #[inline(always)]
    pub(crate) fn set_value(&mut self, value: u64) {
        self.head[1].write(value);
    }

    pub(crate) fn set_head(&mut self, words: [u64; GRAIN_WORDS]) {
        self.head = words.map(MaybeUninit::new);
    }

    /// The value.
    ///
    /// # Safety
    /// It was set.
    #[inline(always)]
    pub(crate) unsafe fn value(&self) -> u64 {
        // SAFETY: passed on from the caller (invariant 13).
        unsafe { self.head[1].assume_init() }
    }

    /// The contents of each continuation grain after its stamp.
    ///
    /// # Safety
    /// The tail that was written last has these counts.
    #[inline(always)]
    pub(crate) unsafe fn tail(&self, counts: Counts) -> &[[u64; TAIL_WORDS]] {
        debug_assert!(counts.grains() <= Image::MOST_GRAINS);
        // SAFETY: passed on from the caller: a tail is written to the end of its last grain. It begins a grain after the
        // beginning of the image, so that it is aligned (invariant 13).
        unsafe { std::slice::from_raw_parts(self.tail.as_ptr().cast(), counts.grains() - 1) }
    }

    /// Begins a new tail.
    #[inline(always)]
    pub(crate) fn begin(&mut self) -> Tail<'_> {
        Tail { bytes: &mut self.tail, at: 0 }
    }
}

/// How long a record is: bits 0..32 its continuation grains; 32..48 bytes of its tail; 48..64 its texts, not counting a value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counts(pub(crate) u64);

impl Counts {
    /// Word 7 of the head, without the ordinal.
    #[inline(always)]
    pub(crate) fn tail_bytes_word(self) -> u64 {
        self.0 & 0xffff << 32
    }

    /// Texts in the tail, not counting a value.
    #[inline(always)]
    pub(crate) fn texts(self) -> u64 {
        self.0 >> 48
    }

    pub(crate) fn grains(self) -> usize {
        1 + self.0 as u32 as usize
    }
}

/// A tail that is being written. Passed on by value: if other functions had its address, it would be kept in memory, in pieces
/// that would have to wait for each other.
pub(crate) struct Tail<'a> {
    bytes: &'a mut [MaybeUninit<u8>; TAIL_ROOM_BYTES],
    /// Where the next byte goes: at most `MOST_TAIL_BYTES` and a block.
    at: usize,
}

/// A text that can be copied into a tail.
pub(crate) trait Text {
    /// The most bytes that it can have.
    const MOST_BYTES: usize = usize::MAX;

    /// Copies it to the present end. `None` if there is not enough room.
    fn put(self, tail: Tail<'_>) -> Option<Tail<'_>>;
}

/// All of these answer `None` if there is not enough room, or a text is too long for a record.
impl<'a> Tail<'a> {
    #[inline(always)]
    pub(crate) fn entry(self, entry: Entry, text: impl Text) -> Option<Tail<'a>> {
        let start = self.at;
        let tail = text.put(self.after(Entry::HEADER_BYTES))?;
        let bytes = tail.at - start - Entry::HEADER_BYTES;
        Some(tail.with(start, entry.header(bytes)))
    }

    #[inline(always)]
    pub(crate) fn endpoint<Ip: Text>(self, port: u16, ip: Ip, name: impl Text) -> Option<Tail<'a>> {
        let start = self.at;
        let tail = ip.put(self.after(EndpointParts::HEADER_BYTES))?;
        let ip_bytes = tail.at - start - EndpointParts::HEADER_BYTES;
        if Ip::MOST_BYTES > MAX_IP_BYTES && ip_bytes > MAX_IP_BYTES {
            return None;
        }
        let tail = name.put(tail)?;
        let name_bytes = tail.at - start - EndpointParts::HEADER_BYTES - ip_bytes;
        let header = EndpointParts::header(port, ip_bytes, name_bytes);
        // In pieces: it is a byte shorter than a word.
        let tail = tail.with(start, header as u32).with(start + 4, (header >> 32) as u16);
        Some(tail.with(start + 6, (header >> 48) as u8))
    }

    /// Ends the tail. `ids`: of name, endpoint and key, 0 for those that are in the tail.
    #[inline(always)]
    pub(crate) fn end(self, ids: [u32; 3]) -> Option<Counts> {
        let at = self.at;
        if at > MOST_TAIL_BYTES {
            return None;
        }
        let zeros = [0u64; BEHIND_BYTES / size_of::<u64>()];
        // SAFETY: after `at` there is room for this many bytes (invariant 16).
        unsafe { self.bytes.as_mut_ptr().wrapping_add(at).cast::<[u64; 8]>().write_unaligned(zeros) };
        let texts = ids.map(|id| u64::from(id == 0)).iter().sum::<u64>();
        Some(Counts((grains_of(at) as u64) | (at as u64) << 32 | texts << 48))
    }

    #[inline(always)]
    fn after(self, bytes: usize) -> Tail<'a> {
        Tail { at: self.at + bytes, ..self }
    }

    /// Writes an integer at `at`, all of which lies before the present end.
    #[inline(always)]
    fn with<Integer>(self, at: usize, integer: Integer) -> Tail<'a> {
        debug_assert!(at + size_of::<Integer>() <= self.at);
        // SAFETY: before the present end, which is at most a block past `MOST_TAIL_BYTES`, so within the array (invariant 16).
        unsafe { self.bytes.as_mut_ptr().wrapping_add(at).cast::<Integer>().write_unaligned(integer) };
        self
    }

    /// Writes a block `distance` past the present end.
    ///
    /// # Safety
    /// The block begins at `MOST_TAIL_BYTES` at most.
    #[inline(always)]
    unsafe fn with_block(self, distance: usize, block: Block) -> Tail<'a> {
        debug_assert!(self.at + distance <= MOST_TAIL_BYTES);
        let place = self.bytes.as_mut_ptr().wrapping_add(self.at + distance);
        // SAFETY: passed on from the caller; there is room for a block past `MOST_TAIL_BYTES` (invariant 13).
        unsafe { place.cast::<Block>().write_unaligned(block) };
        self
    }
}

impl Text for &[u8] {
    #[inline(always)]
    fn put(self, mut tail: Tail<'_>) -> Option<Tail<'_>> {
        if self.len() > MOST_TAIL_BYTES || tail.at + self.len() > MOST_TAIL_BYTES {
            return None;
        }
        if self.len() > BLOCK {
            let last = self.len() - BLOCK;
            for at in (0..last).step_by(BLOCK).chain([last]) {
                // SAFETY: the block lies within the text (invariant 16).
                let block = unsafe { self.as_ptr().wrapping_add(at).cast::<Block>().read_unaligned() };
                // SAFETY: within the room for the text, which was checked above (invariant 16).
                tail = unsafe { tail.with_block(at, block) };
            }
        } else if self.is_empty() || !ends_in_page(self.as_ptr()) {
            for (to, from) in tail.bytes[tail.at..].iter_mut().zip(self) {
                to.write(*from);
            }
        } else {
            // SAFETY: the block's first byte belongs to the text, and the block ends in the same page (invariant 16).
            let (block, _) = unsafe { cstring::block(self.as_ptr()) };
            // SAFETY: the present end is at most `MOST_TAIL_BYTES`, as was checked above (invariant 16).
            tail = unsafe { tail.with_block(0, block) };
        }
        Some(tail.after(self.len()))
    }
}

/// A C string.
#[derive(Clone, Copy)]
pub(crate) struct Terminated(*const u8);

impl Terminated {
    /// # Safety
    /// `text` points to bytes that may be read up to a 0, and do not change while this is in use.
    #[inline(always)]
    pub(crate) unsafe fn new(text: *const u8) -> Terminated {
        Terminated(text)
    }
}

impl Text for Terminated {
    #[inline(always)]
    fn put(self, mut tail: Tail<'_>) -> Option<Tail<'_>> {
        let Terminated(mut from) = self;
        if !ends_in_page(from) {
            let Tail { bytes, at } = tail;
            let end = put_at_end_of_page(self, bytes, at)?;
            return Some(Tail { bytes, at: end });
        }
        while tail.at <= MOST_TAIL_BYTES {
            // SAFETY: its first byte may be read, since no byte before it was the end, and it ends in the same page: the first
            // was looked at above, the others are aligned (invariant 16).
            let (block, zeros) = unsafe { cstring::block(from) };
            // SAFETY: the present end is at most `MOST_TAIL_BYTES` (invariant 16).
            tail = unsafe { tail.with_block(0, block) };
            if zeros != 0 {
                return Some(tail.after(zeros.trailing_zeros() as usize));
            }
            // The next block is the aligned one that begins in this one, or right after it.
            let step = BLOCK - from.addr() % BLOCK;
            tail = tail.after(step);
            from = from.wrapping_add(step);
        }
        None
    }
}

/// A C string of a few bytes, as most are. A longer one, or one near the end of a page, is not copied.
#[derive(Clone, Copy)]
pub(crate) struct Brief(*const u8);

impl Brief {
    /// Including the 0 at the end.
    const MOST_BYTES: usize = 2 * BLOCK;

    /// # Safety
    /// As [`Terminated::new`]; and no more than five are put into one tail, which has nothing else in it.
    #[inline(always)]
    pub(crate) unsafe fn new(text: *const u8) -> Brief {
        Brief(text)
    }
}

impl Text for Brief {
    const MOST_BYTES: usize = Brief::MOST_BYTES;

    #[inline(always)]
    fn put(self, mut tail: Tail<'_>) -> Option<Tail<'_>> {
        let Brief(from) = self;
        if from.addr() % PAGE > PAGE - Brief::MOST_BYTES {
            return None;
        }
        // SAFETY: its first byte may be read, and it ends in the same page, as was checked above (invariant 16).
        let (block, zeros) = unsafe { cstring::block(from) };
        // SAFETY: there is room for five (see `new`, and below) (invariant 16).
        tail = unsafe { tail.with_block(0, block) };
        if zeros != 0 {
            return Some(tail.after(zeros.trailing_zeros() as usize));
        }
        // SAFETY: as the first, since no byte there was the end (invariant 16).
        let (block, zeros) = unsafe { cstring::block(from.wrapping_add(BLOCK)) };
        // SAFETY: as above (invariant 16).
        tail = unsafe { tail.after(BLOCK).with_block(0, block) };
        if zeros == 0 { None } else { Some(tail.after(zeros.trailing_zeros() as usize)) }
    }
}

/// Copies a string to `at` and returns where it ends.
#[cold]
#[inline(never)]
fn put_at_end_of_page(
    text: Terminated,
    bytes: &mut [MaybeUninit<u8>; TAIL_ROOM_BYTES],
    at: usize,
) -> Option<usize> {
    let Terminated(text) = text;
    // SAFETY: the string may be read up to a 0, as was promised to [`Terminated::new`] (invariant 13).
    let length = unsafe { cstring::length(text, MOST_TAIL_BYTES + 1, true) };
    // SAFETY: those bytes were just read (invariant 17).
    let text = unsafe { std::slice::from_raw_parts(text, length) };
    text.put(Tail { bytes, at }).map(|tail| tail.at)
}

/// Continuation grains of a tail. As `div_ceil`, which divides and then checks whether something was left.
#[inline(always)]
const fn grains_of(tail_bytes: usize) -> usize {
    const LAST: usize = TAIL_GRAIN_BYTES - 1;
    (tail_bytes + LAST) / TAIL_GRAIN_BYTES
}

#[inline(always)]
fn ends_in_page(block: *const u8) -> bool {
    block.addr() % PAGE <= PAGE - BLOCK
}

const _: () = assert!(BEHIND_BYTES >= TAIL_GRAIN_BYTES && BEHIND_BYTES >= 2 * BLOCK);
const _: () = assert!(MOST_TAIL_BYTES < 1 << 16);
const _: () = assert!(5 * (Brief::MOST_BYTES + EndpointParts::HEADER_BYTES) <= MOST_TAIL_BYTES);
const _: () = assert!(std::mem::offset_of!(Image, tail) == GRAIN_BYTES);
const _: () = assert!(EndpointParts::HEADER_BYTES == 7);

#[cfg(test)]
#[cfg(target_arch = "x86_64")]
mod tests {
    use blkin_record::Source;
    use proptest::prelude::*;

    use super::*;

    /// The tail as the portable producer writes it, up to the end of its last grain.
    fn written(draft: &Draft<'_>) -> Vec<u8> {
        let mut words = vec![0; draft.grains() * GRAIN_WORDS];
        draft.write(0, 0, 1, 0, |index, word| words[index] = word);
        let grains = words.chunks(GRAIN_WORDS).skip(1);
        grains.flat_map(|grain| grain[1..].iter().flat_map(|word| word.to_le_bytes())).collect()
    }

    fn tail(image: &Image, counts: Counts) -> Vec<u8> {
        // SAFETY: it was just written (invariant 17).
        let words = unsafe { image.tail(counts) }.as_flattened();
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    /// Two pages, and in them a text, with a 0 after it, that begins `before` bytes before the end of the first.
    fn place(text: &[u8], before: usize) -> (Vec<u8>, usize) {
        let mut place = vec![b'x'; 4 * PAGE];
        let start = place.as_ptr().align_offset(PAGE) + PAGE - before;
        place[start..start + text.len()].copy_from_slice(text);
        place[start + text.len()] = 0;
        (place, start)
    }

    proptest! {
        #[test]
        fn a_tail_equals_what_the_portable_producer_writes(
            texts in proptest::array::uniform5("[ -~]{0,150}"),
            known in proptest::array::uniform3(any::<bool>()),
            has_value: bool,
            port: u16,
            before in 1usize..200,
        ) {
            let places = texts.each_ref().map(|text| place(text.as_bytes(), before));
            let [name, ip, service, key, value] = std::array::from_fn(|number| {
                let (place, start) = &places[number];
                &place[*start..*start + texts[number].len()]
            });
            let source = |is_known, text| if is_known { Source::known(7) } else { Source::inline(text) };
            let endpoint = EndpointParts { ip, port, name: service };
            let draft = Draft {
                trace_id: 1,
                span_id: 2,
                parent_span_id: 3,
                name: source(known[0], name),
                endpoint: if known[1] { Source::known(7) } else { Source::inline(endpoint) },
                key: source(known[2], key),
                payload: if has_value { Payload::Str(value) } else { Payload::Event },
                level: 4,
                truncated: false,
            };
            let fits = draft.grains() <= Image::MOST_GRAINS && (known[1] || ip.len() <= MAX_IP_BYTES);
            let mut image = Image::new();
            let counts = image.set_draft(&draft);
            prop_assert_eq!(counts.is_some(), fits);
            let Some(counts) = counts else { return Ok(()) };
            prop_assert_eq!(counts.grains(), draft.grains());
            prop_assert_eq!(counts.tail_bytes_word(), draft.head_words()[7]);
            prop_assert_eq!(tail(&image, counts), written(&draft));

            // SAFETY: strings with an end (invariant 17).
            let string = |text: &[u8]| unsafe { Terminated::new(text.as_ptr()) };
            let mut image = Image::new();
            let mut strings = image.begin();
            if !known[0] {
                strings = strings.entry(Entry::Name, string(name)).unwrap();
            }
            if !known[1] {
                strings = strings.endpoint(port, string(ip), string(service)).unwrap();
            }
            if !known[2] {
                strings = strings.entry(Entry::Key, string(key)).unwrap();
            }
            if has_value {
                strings = strings.entry(Entry::Value, string(value)).unwrap();
            }
            let counts = strings.end(known.map(u32::from)).unwrap();
            prop_assert_eq!(counts.texts(), known.iter().filter(|known| !**known).count() as u64);
            prop_assert_eq!(tail(&image, counts), written(&draft));
        }
    }
}
