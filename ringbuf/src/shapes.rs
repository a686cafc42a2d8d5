//! Whole calls that were met before: the four texts of a legacy call, by where they lie and what they say.
//!
//! Programs record the same few annotations again and again, from the same places. One entry holds what four searches of
//! the table of names would find, so that such a call costs one look and one comparison of all its texts. Where a text
//! lies is only a guess at what it says: it is compared each time. A span is a call without a key; one of a Rust program has texts
//! that do not end with a 0, and their lengths in the key's place.
//!
//! An entry is guarded by a version, odd while it is written (Lameter, "Effective synchronization on Linux/NUMA systems",
//! 2005, seqlocks): who reads never waits, and who finds it being written goes the longer way. So do all machines but
//! x86-64, and programs under valgrind: the comparison reads up to 15 bytes behind a text's end, though never in another page.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::__m128i;
#[cfg(target_arch = "x86_64")]
use std::mem::offset_of;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64, fence};

use crate::cstring::{self, BLOCK, PAGE};
use crate::layout::NAMES_TEXT_WORDS;
use crate::names::MAX_INTERNED_BYTES;

/// Texts of a call.
pub(crate) const TEXTS: usize = 4;
/// Which of them is the endpoint's address.
const ADDRESS: usize = 1;
const COUNT: usize = 256;
/// In the word with the port.
const TRAVELS: u32 = 0xf << 20;
/// There too.
const LONGER: u32 = 0xf << 16;
/// There too: all texts travel, and none was longer than [`crate::image::Brief`] can be, as far as is known.
const BRIEF: u32 = 1 << 24;
/// There too, never without the other: none was longer than its cells.
const CELLS: u32 = 1 << 25;
/// A call that finds another one in its place takes it once in so many times: so that a flood of calls that never come
/// again leaves most of the others where they are.
const TAKEN_ONCE_IN: u32 = 8;

/// Where the texts of a call lie: the span's name, the endpoint's address and name, the key; and the endpoint's port.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// Never NULL: the address; the others may be.
    pub texts: [*const u8; TEXTS],
    /// The endpoint itself, which is not looked at: where a call is looked for shall not wait for what the endpoint says.
    pub endpoint: *const u8,
    /// Port of the endpoint.
    pub port: u16,
}

/// In place of the key of a span whose texts do not end with a 0: their lengths are to be the same too. No program has a text
/// that lies there, nor behind the end of a page.
const MEASURED: usize = 1 << (usize::BITS - 1);
const LENGTH_BITS: u32 = 9;
const _: () = assert!(MAX_INTERNED_BYTES < 1 << LENGTH_BITS);

impl Call {
    /// A span's, without a key: its name, and the endpoint's address and name. `None` if one of them is too long to have an id.
    #[inline(always)]
    pub(crate) fn of_span(texts: [&[u8]; TEXTS - 1], port: u16) -> Option<Call> {
        let [name, ip, service] = texts;
        if name.len().max(ip.len()).max(service.len()) > MAX_INTERNED_BYTES {
            return None;
        }
        let lengths = (name.len() << LENGTH_BITS | ip.len()) << LENGTH_BITS | service.len();
        let measure = std::ptr::without_provenance(MEASURED | (lengths * PAGE));
        let [name, ip, service] = [name, ip, service].map(start);
        Some(Call { texts: [name, ip, service, measure], endpoint: service, port })
    }

    /// Whether its texts have no 0 at their ends.
    fn is_measured(&self) -> bool {
        self.texts[TEXTS - 1].addr() & MEASURED != 0
    }
}

/// From where a block may be compared to find `text`, if it is not the last of its page.
#[inline(always)]
fn start(text: &[u8]) -> *const u8 {
    if text.is_empty() { EMPTY.0.as_ptr() } else { text.as_ptr() }
}

/// A text that says nothing. A block, so that it lies in one page.
#[repr(align(16))]
pub(crate) struct Empty(pub(crate) [u8; BLOCK]);

pub(crate) static EMPTY: Empty = Empty([0; BLOCK]);

/// How a call was met before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Met {
    /// With all of its texts: word 5 of its records, and the key's id.
    Whole(u64, u32),
    /// With texts that begin so, one of which at least is longer than what was compared: word 5 of its records, and what
    /// [`crate::process::recognise_longer`] needs to tell.
    Longer(u64, Ids),
    /// With other texts at some of the places; these have no id here.
    InPart(u64, u32),
    /// With other texts at all of the places, none of which was long. Then none is NULL.
    New(Size),
    /// Not at all.
    Never,
}

/// Ids of the texts of a call, sixteen bits each, the first one lowest; the highest of these says that the text is longer than a
/// block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ids(pub u64);

impl Ids {
    const BITS: u32 = 16;
    const LONG: u64 = 1 << (Self::BITS - 1);

    const fn of(number: usize, id: u32, is_long: bool) -> u64 {
        (id as u64 | if is_long { Self::LONG } else { 0 }) << (Self::BITS * number as u32)
    }

    /// Of the text `number`.
    pub(crate) fn id(self, number: usize) -> usize {
        (self.0 >> (Self::BITS * number as u32) & (Self::LONG - 1)) as usize
    }

    /// Whether the text `number` is longer than a block, or as long.
    pub(crate) fn is_long(self, number: usize) -> bool {
        self.0 & Self::of(number, 0, true) != 0
    }

    /// Of the key.
    #[inline(always)]
    pub(crate) fn key(self) -> u32 {
        self.id(TEXTS - 1) as u32
    }

    /// Whether the texts that are longer than a block are these ones, all of which begin so.
    ///
    /// # Safety
    /// The texts that are long are C strings that do not change during the call.
    #[inline(always)]
    pub(crate) unsafe fn are_of(self, call: &Call, table: &[AtomicU64]) -> bool {
        (0..TEXTS).filter(|number| self.is_long(*number)).all(|number| {
            // SAFETY: passed on from the caller.
            unsafe { cstring::goes_on(call.texts[number], table, self.id(number)) }
        })
    }
}

/// How long texts that are new each time were, as far as is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// None longer than its cells in a record: [`crate::process::record_in_cells`] may record it.
    Cells,
    /// None longer than brief: [`crate::process::record_brief_call`] may record it.
    Brief,
}

/// A call; a line for what is looked at first, and two for the beginnings of its texts. A power of two apart, so that it is found
/// by a shift.
#[repr(C, align(256))]
struct Entry {
    version: AtomicU64,
    texts: [AtomicU64; TEXTS],
    /// The port; from bit 16 on the texts that are longer than a block, from bit 20 on those that travel; [`BRIEF`]; from bit
    /// 32 on the key's id.
    port_and_key: AtomicU64,
    names: AtomicU64,
    /// See [`Ids`].
    ids: AtomicU64,
    blocks: Blocks,
}

/// The first bytes of each text, the 0 at its end included if it has one, and ones in what lies behind.
#[repr(C, align(64))]
struct Blocks {
    bytes: [[AtomicU64; 2]; TEXTS],
    behind: [[AtomicU64; 2]; TEXTS],
}

const _: () = assert!(size_of::<Entry>() == 256 && NAMES_TEXT_WORDS as u64 <= Ids::LONG);

/// All entries. Survives a fork, as the table of names does.
pub(crate) struct Shapes {
    entries: [Entry; COUNT],
    turns: AtomicU32,
}

impl Blocks {
    const fn new() -> Blocks {
        Blocks {
            bytes: [const { [const { AtomicU64::new(0) }; 2] }; TEXTS],
            behind: [const { [const { AtomicU64::new(0) }; 2] }; TEXTS],
        }
    }

    /// Whatever stands there.
    fn set_any(&self, number: usize) {
        self.behind[number].iter().for_each(|word| word.store(u64::MAX, Relaxed));
    }

    /// `words`: those of the text, of which `length` bytes count, and an end of so many zeros.
    fn set(&self, number: usize, words: [u64; 2], length: usize, end: usize) {
        // All ones but for the text and its end.
        let behind = u128::MAX.checked_shl(8 * (length + end) as u32).unwrap_or(0);
        let text = u128::from(words[0]) | u128::from(words[1]) << 64;
        let text = text & u128::MAX.checked_shr(8 * (BLOCK - length.min(BLOCK)) as u32).unwrap_or(0);
        for (words, value) in [(&self.bytes[number], text), (&self.behind[number], behind)] {
            words[0].store(value as u64, Relaxed);
            words[1].store((value >> 64) as u64, Relaxed);
        }
    }
}

impl Entry {
    const fn new() -> Entry {
        Entry {
            version: AtomicU64::new(0),
            texts: [const { AtomicU64::new(0) }; TEXTS],
            port_and_key: AtomicU64::new(0),
            names: AtomicU64::new(0),
            ids: AtomicU64::new(0),
            blocks: Blocks::new(),
        }
    }

    /// Whether the texts lie where the entry says. Nothing but comparisons and the jumps that they decide, as below: both are most of
    /// what a legacy call costs. The endpoint's address comes first, for it is never NULL, and an entry has it last: where it is
    /// equal no other is NULL either. Whoever stored an address saw that a block that begins there ends in the same page.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn lies_at(&self, texts: &[*const u8; TEXTS]) -> bool {
        // SAFETY: the entry's own words, which are written only as atomics.
        unsafe {
            std::arch::asm!(
                "cmp {tb}, qword ptr [{entry} + {at} + 8]",
                "jne {other}",
                "cmp {ta}, qword ptr [{entry} + {at}]",
                "jne {other}",
                "cmp {tc}, qword ptr [{entry} + {at} + 16]",
                "jne {other}",
                "cmp {td}, qword ptr [{entry} + {at} + 24]",
                "jne {other}",
                ta = in(reg) texts[0], tb = in(reg) texts[1], tc = in(reg) texts[2], td = in(reg) texts[3],
                entry = in(reg) &raw const *self,
                at = const offset_of!(Entry, texts),
                other = label { return false },
                options(readonly, nostack)
            );
        }
        true
    }

    /// Never: see the module.
    #[cfg(not(target_arch = "x86_64"))]
    fn lies_at(&self, _: &[*const u8; TEXTS]) -> bool {
        false
    }

    /// Whether the texts begin as the entry says, all of them or all but the key.
    ///
    /// # Safety
    /// From each of these texts a block may be read.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn begins(&self, texts: &[*const u8; TEXTS], with_key: bool) -> bool {
        let [name, address, service, key] = *texts;
        // SAFETY: passed on from the caller.
        let mut equal = unsafe { self.begins_at::<0>(name) };
        // SAFETY: as above.
        equal = unsafe { self.and_begins_at::<1>(equal, address) };
        // SAFETY: as above.
        equal = unsafe { self.and_begins_at::<2>(equal, service) };
        if with_key {
            // SAFETY: as above.
            equal = unsafe { self.and_begins_at::<3>(equal, key) };
        }
        let all: u32;
        // SAFETY: registers alone.
        unsafe {
            std::arch::asm!("pmovmskb {all:e}, {equal}", all = out(reg) all, equal = in(xmm_reg) equal,
                options(pure, nomem, nostack, preserves_flags));
        }
        all == 0xffff
    }

    /// Ones where a text's block is as the entry says of the text `NUMBER`, and behind its end.
    ///
    /// # Safety
    /// From the text a block may be read.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn begins_at<const NUMBER: usize>(&self, text: *const u8) -> __m128i {
        let equal;
        // SAFETY: passed on from the caller; the entry's own words are aligned, and written only as atomics.
        unsafe {
            std::arch::asm!(
                "movdqu {equal}, xmmword ptr [{text}]",
                "pcmpeqb {equal}, xmmword ptr [{entry} + {bytes}]",
                "por {equal}, xmmword ptr [{entry} + {behind}]",
                equal = out(xmm_reg) equal,
                text = in(reg) text,
                entry = in(reg) &raw const *self,
                bytes = const offset_of!(Entry, blocks) + offset_of!(Blocks, bytes) + NUMBER * BLOCK,
                behind = const offset_of!(Entry, blocks) + offset_of!(Blocks, behind) + NUMBER * BLOCK,
                options(readonly, nostack, preserves_flags)
            );
        }
        equal
    }

    /// Those of `equal` where that is so.
    ///
    /// # Safety
    /// As [`Entry::begins_at`].
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn and_begins_at<const NUMBER: usize>(&self, mut equal: __m128i, text: *const u8) -> __m128i {
        // SAFETY: passed on from the caller.
        let also = unsafe { self.begins_at::<NUMBER>(text) };
        // SAFETY: registers alone.
        unsafe {
            std::arch::asm!("pand {equal}, {also}", equal = inout(xmm_reg) equal, also = in(xmm_reg) also,
                options(pure, nomem, nostack, preserves_flags));
        }
        equal
    }

    /// Never: see the module.
    ///
    /// # Safety
    /// None is needed.
    #[cfg(not(target_arch = "x86_64"))]
    unsafe fn begins(&self, _: &[*const u8; TEXTS], _: bool) -> bool {
        false
    }

    /// Word 5, what stands beside the port, and the version that has both.
    ///
    /// # Safety
    /// As [`Shapes::find`]; the texts lie where the entry says, or said a moment ago.
    #[inline(always)]
    unsafe fn read_if_it_begins(&self, call: &Call, with_key: bool) -> Option<(u64, u64, u64)> {
        let version = self.version.load(Acquire);
        // SAFETY: see `lies_at`.
        if version & 1 != 0 || !unsafe { self.begins(&call.texts, with_key) } {
            return None;
        }
        let found = (self.names.load(Relaxed), self.port_and_key.load(Relaxed), version);
        self.is_still(version).then_some(found)
    }

    /// Whether all that was loaded before is of this version.
    #[inline(always)]
    fn is_still(&self, version: u64) -> bool {
        fence(Acquire);
        self.version.load(Relaxed) == version
    }
}

impl Shapes {
    pub(crate) const fn new() -> Shapes {
        Shapes { entries: [const { Entry::new() }; COUNT], turns: AtomicU32::new(0) }
    }

    #[inline(always)]
    fn entry(&self, call: &Call) -> &Entry {
        let [name, _, _, key] = call.texts;
        let [name, endpoint, key] = [name, call.endpoint, key].map(|text| text.addr() as u64);
        let mixed = key.wrapping_add(name.wrapping_mul(2)).wrapping_add(endpoint.wrapping_mul(4));
        let hash = (mixed as u32).wrapping_mul(0x9e37_79b1) >> (u32::BITS - COUNT.ilog2());
        &self.entries[hash as usize]
    }

    /// How a call was met before, if it still says the same, as far as a block of each text tells. Texts that
    /// are new each time have no id there: of these the places alone are compared. Nothing in here calls another function, so
    /// that its caller has nothing to keep.
    ///
    /// # Safety
    /// The texts are C strings that do not change during the call, or NULL, but for the address, which is never that.
    #[inline(always)]
    pub(crate) unsafe fn find(&self, call: Call) -> Met {
        let entry = self.entry(&call);
        if !entry.lies_at(&call.texts) {
            return Met::Never;
        }
        // Before the version: it says nothing that must agree with the rest, but how the call is best recorded.
        let marks = entry.port_and_key.load(Acquire) as u32;
        if marks & BRIEF != 0 {
            return Met::New(if marks & CELLS != 0 { Size::Cells } else { Size::Brief });
        }
        // SAFETY: passed on from the caller; they lie there.
        let Some((names, port_and_key, version)) = (unsafe { entry.read_if_it_begins(&call, true) }) else {
            return Met::Never;
        };
        let (port_and_others, port) = (port_and_key as u32, u32::from(call.port));
        let key = (port_and_key >> 32) as u32;
        if port_and_others == port {
            Met::Whole(names, key)
        } else if port_and_others & !TRAVELS == port {
            Met::InPart(names, key)
        } else if port_and_others & !LONGER == port {
            let ids = Ids(entry.ids.load(Relaxed));
            if entry.is_still(version) { Met::Longer(names, ids) } else { Met::Never }
        } else {
            Met::Never
        }
    }

    /// Word 5 of a call that was met before with all of its texts, none of which is longer than a block, as [`Shapes::find`] tells;
    /// of one whose key always lies in the same place and never changes. So that is not compared.
    ///
    /// # Safety
    /// As [`Shapes::find`], or the texts are those of [`Call::of_span`].
    #[inline(always)]
    pub(crate) unsafe fn find_short_span(&self, call: Call) -> Option<u64> {
        let entry = self.entry(&call);
        if !entry.lies_at(&call.texts) {
            return None;
        }
        // SAFETY: passed on from the caller; they lie there.
        let (names, port_and_key, _) = unsafe { entry.read_if_it_begins(&call, false) }?;
        (port_and_key as u32 == u32::from(call.port)).then_some(names)
    }

    /// As [`Shapes::find_short_span`], of texts of any length: what begins so, and its ids, for the rest of those that are long.
    ///
    /// # Safety
    /// As [`Shapes::find`], or the texts are those of [`Call::of_span`].
    pub(crate) unsafe fn find_span(&self, call: Call) -> Option<(u64, Ids)> {
        let entry = self.entry(&call);
        if !entry.lies_at(&call.texts) {
            return None;
        }
        // SAFETY: passed on from the caller; they lie there.
        let (names, port_and_key, version) = unsafe { entry.read_if_it_begins(&call, false) }?;
        let ids = Ids(entry.ids.load(Relaxed));
        let is_same = port_and_key as u32 & !LONGER == u32::from(call.port) && entry.is_still(version);
        is_same.then_some((names, ids))
    }

    /// As [`Shapes::find`], of all texts whole. `table`: the texts of the table of names.
    ///
    /// # Safety
    /// As [`Shapes::find`].
    pub(crate) unsafe fn find_whole(&self, call: Call, table: &[AtomicU64]) -> Option<(u64, u32)> {
        // SAFETY: passed on from the caller.
        match unsafe { self.find(call) } {
            Met::Whole(names, key) => Some((names, key)),
            // SAFETY: passed on from the caller; what was met so is not NULL.
            Met::Longer(names, ids) if unsafe { ids.are_of(&call, table) } => Some((names, ids.key())),
            _ => None,
        }
    }

    /// Keeps a call, unless it cannot be compared later (a text lies at the end of a page, or one is long and another new each
    /// time), or another one shall stay. `ids`: of its texts, in `table`, 0 for one
    /// that is new each time; `names`: its name and endpoint as a record has them, each with an id if its texts have.
    pub(crate) fn keep(&self, call: &Call, ids: [u32; TEXTS], names: u64, table: &[AtomicU64]) {
        let ends_in_page = |text: &*const u8| text.addr() % PAGE <= PAGE - BLOCK;
        let word = |at: usize| table.get(at).map_or(0, |word| word.load(Relaxed));
        let is_long = |id: &u32| *id != 0 && word(*id as usize) as usize >= BLOCK;
        let entry = self.entry(call);
        let lies_at = |number: usize| entry.texts[number].load(Relaxed) as usize;
        let is_empty = lies_at(ADDRESS) == 0;
        let is_same = call.texts.iter().enumerate().all(|(number, text)| lies_at(number) == text.addr());
        if call.texts.iter().any(|text| text.is_null() || !ends_in_page(text))
            || ids.contains(&0) && ids.iter().any(is_long)
            || !(is_empty || is_same || self.is_taken())
        {
            return;
        }
        let version = entry.version.load(Relaxed);
        // Another thread writes it, or this one in the call that a signal interrupted.
        if version & 1 != 0 || entry.version.compare_exchange(version, version + 1, Acquire, Relaxed).is_err()
        {
            return;
        }
        fence(Release);
        let end = usize::from(!call.is_measured());
        let (mut longer, mut travels, mut lanes) = (0, 0, 0);
        for (number, id) in ids.into_iter().enumerate() {
            let at = id as usize;
            if number != ADDRESS {
                entry.texts[number].store(call.texts[number].addr() as u64, Relaxed);
            }
            lanes |= Ids::of(number, id, is_long(&id));
            if id == 0 {
                entry.blocks.set_any(number);
                travels |= 1 << number;
                continue;
            }
            entry.blocks.set(number, [word(at + 1), word(at + 2)], word(at) as usize, end);
            longer |= u64::from(is_long(&id)) << number;
        }
        entry.ids.store(lanes, Relaxed);
        // Release: who finds this address finds no NULL among the others.
        entry.texts[ADDRESS].store(call.texts[ADDRESS].addr() as u64, Release);
        let key = u64::from(ids[TEXTS - 1]);
        // Whether they are brief is found out when they are copied.
        let brief = if travels == 0xf { u64::from(BRIEF | CELLS) } else { 0 };
        entry.port_and_key.store(
            u64::from(call.port)
                | longer << LONGER.trailing_zeros()
                | travels << TRAVELS.trailing_zeros()
                | brief
                | key << 32,
            Release,
        );
        entry.names.store(names, Relaxed);
        entry.version.store(version + 2, Release);
    }

    /// The texts of a call are longer than this, which was thought of them.
    pub(crate) fn set_longer(&self, call: &Call, than: Size) {
        let marks = match than {
            Size::Cells => CELLS,
            Size::Brief => BRIEF | CELLS,
        };
        // Of another call, which took the place just now, it would be as true: it is only less quick.
        self.entry(call).port_and_key.fetch_and(!u64::from(marks), Relaxed);
    }

    fn is_taken(&self) -> bool {
        // Two threads that count the same turn do no harm.
        let turn = self.turns.load(Relaxed).wrapping_add(1);
        self.turns.store(turn, Relaxed);
        turn.is_multiple_of(TAKEN_ONCE_IN)
    }
}

#[cfg(test)]
#[cfg(target_arch = "x86_64")]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Texts one behind the other as the table of names has them, and their ids.
    fn table(texts: [&[u8]; TEXTS]) -> (Vec<AtomicU64>, [u32; TEXTS]) {
        let mut words = vec![0];
        let ids = texts.map(|text| {
            let id = words.len() as u32;
            words.push(text.len() as u64);
            let mut bytes = text.to_vec();
            bytes.resize(text.len() / 8 * 8 + 8, 0);
            words.extend(bytes.chunks(8).map(|chunk| u64::from_le_bytes(chunk.try_into().unwrap())));
            id
        });
        words.extend([0; 4]);
        (words.into_iter().map(AtomicU64::new).collect(), ids)
    }

    /// A page that begins with the text and a 0.
    fn place(text: &[u8]) -> Box<[u8]> {
        let mut place = vec![b'x'; 2 * PAGE].into_boxed_slice();
        place[..text.len()].copy_from_slice(text);
        place[text.len()] = 0;
        place
    }

    proptest! {
        #[test]
        fn a_call_is_found_as_long_as_all_its_texts_say_the_same(
            texts in proptest::array::uniform4("[ab]{0,40}"),
            changed in 0usize..TEXTS,
            other in "[ab]{0,40}",
        ) {
            let bytes = texts.each_ref().map(|text| text.as_bytes());
            let (table, ids) = table(bytes);
            let mut places = bytes.map(place);
            let at = |places: &[Box<[u8]>; TEXTS]| {
                let starts = places.each_ref().map(|place| {
                    // Not at the end of a page, wherever the allocator put it.
                    if place.as_ptr().addr() % PAGE > PAGE - BLOCK { None } else { Some(place.as_ptr()) }
                });
                starts.iter().all(Option::is_some).then(|| Call { texts: starts.map(Option::unwrap), endpoint: &raw const *places as *const u8, port: 6800 })
            };
            let Some(call) = at(&places) else { return Ok(()) };
            let shapes = Box::new(Shapes::new());
            // SAFETY: strings with an end.
            let find = |call: Call| unsafe { shapes.find_whole(call, &table) };
            prop_assert_eq!(find(call), None);
            shapes.keep(&call, ids, 77, &table);
            prop_assert_eq!(find(call), Some((77, ids[3])));
            prop_assert_eq!(find(Call { port: 1, ..call }), None);
            let are_short = texts.iter().all(|text| text.len() < BLOCK);
            // SAFETY: as above.
            let met = unsafe { shapes.find(call) };
            prop_assert_eq!(are_short, met == Met::Whole(77, ids[3]));
            prop_assert_eq!(!are_short, matches!(met, Met::Longer(77, _)));
            places[changed][..other.len()].copy_from_slice(other.as_bytes());
            places[changed][other.len()] = 0;
            let expected = (other == texts[changed]).then_some((77, ids[3]));
            prop_assert_eq!(find(call), expected);
        }
    }

    proptest! {
        #[test]
        fn a_span_is_found_as_long_as_its_texts_say_the_same_whatever_lies_behind_them(
            texts in proptest::array::uniform3("[ab]{0,40}"),
            changed in 0usize..TEXTS - 1,
            other in "[ab]{0,40}",
        ) {
            let [name, ip, service] = texts.each_ref().map(|text| text.as_bytes());
            let (table, ids) = table([name, ip, service, b""]);
            let mut places = [name, ip, service].map(place);
            let starts_late = |place: &[u8]| place.as_ptr().addr() % PAGE > PAGE - BLOCK;
            if places.iter().any(|place| starts_late(place)) {
                return Ok(());
            }
            let of = |places: &[Box<[u8]>; TEXTS - 1], texts: &[String; TEXTS - 1], port| {
                let [name, ip, service] = std::array::from_fn(|at| &places[at][..texts[at].len()]);
                Call::of_span([name, ip, service], port).unwrap()
            };
            let shapes = Box::new(Shapes::new());
            // SAFETY: the places are there.
            let find = |call: Call| unsafe { shapes.find_span(call) };
            prop_assert_eq!(find(of(&places, &texts, 6800)), None);
            shapes.keep(&of(&places, &texts, 6800), ids, 77, &table);
            places.iter_mut().zip(&texts).for_each(|(place, text)| place[text.len()] = b'c');
            let found = find(of(&places, &texts, 6800));
            prop_assert_eq!(found.map(|(names, _)| names), Some(77));
            let are_long = texts.each_ref().map(|text| text.len() >= BLOCK);
            let said = found.map(|(_, ids)| std::array::from_fn(|at| ids.is_long(at)));
            prop_assert_eq!(said, Some(are_long));
            // SAFETY: as above.
            let short = unsafe { shapes.find_short_span(of(&places, &texts, 6800)) };
            prop_assert_eq!(short, (!are_long.contains(&true)).then_some(77));
            prop_assert_eq!(find(of(&places, &texts, 1)), None);
            places[changed][..other.len()].copy_from_slice(other.as_bytes());
            let mut changed_texts = texts.clone();
            changed_texts[changed] = other.clone();
            let begins_as_it_did = other.len() == texts[changed].len()
                && other.bytes().take(BLOCK).eq(texts[changed].bytes().take(BLOCK));
            prop_assert_eq!(find(of(&places, &changed_texts, 6800)).is_some(), begins_as_it_did);
        }
    }

    #[test]
    fn a_text_without_an_id_may_say_anything_and_the_others_may_not() {
        let (table, ids) = table([b"name", b"ip", b"service", b"key"]);
        let mut places = [&b"name"[..], b"ip", b"service", b"key"].map(place);
        let starts = places.each_ref().map(|place| place.as_ptr());
        let call = Call { texts: starts, endpoint: starts[1], port: 6800 };
        if starts.iter().any(|start| start.addr() % PAGE > PAGE - BLOCK) {
            return;
        }
        let shapes = Box::new(Shapes::new());
        shapes.keep(&call, [ids[0], ids[1], ids[2], 0], 77, &table);
        // SAFETY: strings with an end.
        let find = || unsafe { shapes.find(call) };
        assert_eq!(find(), Met::InPart(77, 0));
        places[3][..20].copy_from_slice(b"another key, and a l");
        assert_eq!(find(), Met::InPart(77, 0));
        // SAFETY: as above.
        assert_eq!(unsafe { shapes.find_whole(call, &table) }, None);
        // What is known better of a call replaces what was known of it.
        shapes.keep(&call, ids, 78, &table);
        assert_eq!(find(), Met::Never);
        places[3][..4].copy_from_slice(b"key\0");
        assert_eq!(find(), Met::Whole(78, ids[3]));
        places[0][0] = b'N';
        assert_eq!(find(), Met::Never);
    }

    #[test]
    fn a_call_that_is_all_new_is_known_by_its_places_until_a_text_is_long() {
        let (table, _) = table([b"text"; TEXTS]);
        let text = place(b"text");
        let at = |distance: usize| text.as_ptr().wrapping_add(distance);
        let call = Call { texts: [at(0), at(1), at(2), at(3)], endpoint: at(4), port: 6800 };
        if call.texts.iter().any(|text| text.addr() % PAGE > PAGE - BLOCK) {
            return;
        }
        let shapes = Box::new(Shapes::new());
        shapes.keep(&call, [0; TEXTS], 0, &table);
        // SAFETY: strings with an end, or NULL.
        let find = |call: Call| unsafe { shapes.find(call) };
        let elsewhere = |number: usize, text: *const u8| {
            let mut texts = call.texts;
            texts[number] = text;
            find(Call { texts, ..call })
        };
        assert_eq!(find(call), Met::New(Size::Cells));
        for number in 0..TEXTS {
            assert_eq!(elsewhere(number, at(5)), Met::Never);
            assert_eq!(elsewhere(number, std::ptr::null()), Met::Never);
        }
        shapes.set_longer(&call, Size::Cells);
        assert_eq!(find(call), Met::New(Size::Brief));
        shapes.set_longer(&call, Size::Brief);
        assert_eq!(find(call), Met::InPart(0, 0));
        // SAFETY: strings with an end.
        assert_eq!(unsafe { shapes.find_whole(call, &table) }, None);
    }

    #[test]
    fn what_lies_at_the_end_of_a_page_is_not_kept() {
        let (table, ids) = table([b"a"; TEXTS]);
        let text = place(b"");
        let at_end = text.as_ptr().map_addr(|address| address.next_multiple_of(PAGE) + PAGE - 2);
        let call = Call {
            texts: [text.as_ptr(), text.as_ptr(), text.as_ptr(), at_end],
            endpoint: text.as_ptr(),
            port: 0,
        };
        let shapes = Box::new(Shapes::new());
        shapes.keep(&call, ids, 77, &table);
        // SAFETY: nothing was kept, so nothing is read.
        assert_eq!(unsafe { shapes.find_whole(call, &table) }, None);
    }

    #[test]
    fn a_call_stays_in_its_place_for_most_of_those_that_want_it() {
        let (table, ids) = table([b"text"; TEXTS]);
        let text = place(b"text");
        let shapes = Box::new(Shapes::new());
        let of_port = |name: *const u8| Call {
            texts: [name, text.as_ptr(), text.as_ptr(), text.as_ptr()],
            endpoint: text.as_ptr(),
            port: 0,
        };
        let first = of_port(text.as_ptr());
        shapes.keep(&first, ids, 77, &table);
        let rivals = (1..1 << 16).map(|distance| of_port(text.as_ptr().wrapping_add(distance * PAGE)));
        let rivals = rivals.filter(|rival| std::ptr::eq(shapes.entry(rival), shapes.entry(&first)));
        for rival in rivals.take(TAKEN_ONCE_IN as usize - 1) {
            shapes.keep(&rival, ids, 78, &table);
        }
        // SAFETY: strings with an end.
        assert_eq!(unsafe { shapes.find_whole(first, &table) }, Some((77, ids[3])));
    }
}
