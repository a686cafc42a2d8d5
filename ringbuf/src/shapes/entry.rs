//! One call that was met, and the comparison with another.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::__m128i;
#[cfg(target_arch = "x86_64")]
use std::mem::offset_of;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU64, fence};

use super::call::{ADDRESS, Call, CallMatch, Ids, Size, TEXTS};
use crate::cstring::BLOCK;
use crate::layout::NAMES_TEXT_WORDS;

/// Bits in the word with the port: which texts travel.
pub(super) const TRAVELS: u32 = 0xf << 20;
/// Bits there too: which texts are longer than a block.
pub(super) const LONGER: u32 = 0xf << 16;
/// A bit there too: all texts travel, and none was longer than [`crate::image::Brief`] can be, as far as is known.
pub(super) const BRIEF: u32 = 1 << 24;
/// A bit there too, never set without [`BRIEF`]: no text was longer than its cells.
pub(super) const CELLS: u32 = 1 << 25;

/// A call: one cache line for what is looked at first, and two for the beginnings of its texts. Entries are a power of two apart,
/// so that a shift finds them.
#[repr(C, align(256))]
pub(super) struct Entry {
    version: AtomicU64,
    texts: [AtomicU64; TEXTS],
    /// The port; from bit 16 on the texts that are longer than a block, from bit 20 on those that travel; [`BRIEF`]; from bit
    /// 32 on the key's id.
    pub(super) port_and_key: AtomicU64,
    names: AtomicU64,
    /// See [`Ids`].
    pub(super) ids: AtomicU64,
    blocks: Blocks,
}

/// The first bytes of each text, with the 0 at its end if it has one; `behind` has ones for the bytes after that.
#[repr(C, align(64))]
struct Blocks {
    bytes: [[AtomicU64; 2]; TEXTS],
    behind: [[AtomicU64; 2]; TEXTS],
}

const _: () = assert!(size_of::<Entry>() == 256 && NAMES_TEXT_WORDS as u64 <= Ids::LONG);

/// What is known of the texts of a call that is to be kept.
pub(super) struct Known<'a> {
    /// 0 for a text that is new each time.
    pub(super) ids: [u32; TEXTS],
    /// The texts of the table of names.
    pub(super) table: &'a [AtomicU64],
}

impl Known<'_> {
    /// A word of what the table has of a text with an id: its length, and then its bytes.
    fn word(&self, number: usize, at: usize) -> u64 {
        self.table.get(self.ids[number] as usize + at).map_or(0, |word| word.load(Relaxed))
    }

    fn length(&self, number: usize) -> usize {
        self.word(number, 0) as usize
    }

    /// Whether a text that has an id is longer than a block, with the 0 at its end.
    pub(super) fn is_long(&self, number: usize) -> bool {
        self.ids[number] != 0 && self.length(number) >= BLOCK
    }
}

impl Blocks {
    const fn new() -> Blocks {
        Blocks {
            bytes: [const { [const { AtomicU64::new(0) }; 2] }; TEXTS],
            behind: [const { [const { AtomicU64::new(0) }; 2] }; TEXTS],
        }
    }

    /// Makes any text match.
    fn set_any(&self, number: usize) {
        self.behind[number].iter().for_each(|word| word.store(u64::MAX, Relaxed));
    }

    /// `words`: those of the text, of which `length` bytes count; `end`: how many zeros end it.
    fn set(&self, number: usize, words: [u64; 2], length: usize, end: usize) {
        // All ones except for the text and its end.
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
    pub(super) const fn new() -> Entry {
        Entry {
            version: AtomicU64::new(0),
            texts: [const { AtomicU64::new(0) }; TEXTS],
            port_and_key: AtomicU64::new(0),
            names: AtomicU64::new(0),
            ids: AtomicU64::new(0),
            blocks: Blocks::new(),
        }
    }

    /// Whether the texts lie where the entry says. Nothing but comparisons and the jumps that they decide, as below: both
    /// are most of what a legacy call costs. The endpoint's address comes first, because it is never NULL, and an entry gets
    /// it last: where it is equal, no other one is NULL either. Whoever stored an address had seen that a block that begins
    /// there ends in the same page.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub(super) fn lies_at(&self, texts: &[*const u8; TEXTS]) -> bool {
        // SAFETY: the entry's own words, which are written only as atomics (invariant 3).
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

    /// Never here: see the module's comment.
    #[cfg(not(target_arch = "x86_64"))]
    pub(super) fn lies_at(&self, _: &[*const u8; TEXTS]) -> bool {
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
        // SAFETY: passed on from the caller (invariant 13).
        let mut equal = unsafe { self.begins_at::<0>(name) };
        // SAFETY: as above (invariant 13).
        equal = unsafe { self.and_begins_at::<1>(equal, address) };
        // SAFETY: as above (invariant 13).
        equal = unsafe { self.and_begins_at::<2>(equal, service) };
        if with_key {
            // SAFETY: as above (invariant 13).
            equal = unsafe { self.and_begins_at::<3>(equal, key) };
        }
        let all: u32;
        // SAFETY: registers alone (invariant 14).
        unsafe {
            std::arch::asm!("pmovmskb {all:e}, {equal}", all = out(reg) all, equal = in(xmm_reg) equal,
                options(pure, nomem, nostack, preserves_flags));
        }
        all == 0xffff
    }

    /// Ones where a text's block equals that of the entry's text `NUMBER`, and past that text's end.
    ///
    /// # Safety
    /// From the text a block may be read.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn begins_at<const NUMBER: usize>(&self, text: *const u8) -> __m128i {
        let equal;
        // SAFETY: passed on from the caller; the entry's own words are aligned, and written only as atomics (invariant 13).
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

    /// The ones of `equal`, where the text `NUMBER` has ones too.
    ///
    /// # Safety
    /// As [`Entry::begins_at`].
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn and_begins_at<const NUMBER: usize>(&self, mut equal: __m128i, text: *const u8) -> __m128i {
        // SAFETY: passed on from the caller (invariant 13).
        let also = unsafe { self.begins_at::<NUMBER>(text) };
        // SAFETY: registers alone (invariant 14).
        unsafe {
            std::arch::asm!("pand {equal}, {also}", equal = inout(xmm_reg) equal, also = in(xmm_reg) also,
                options(pure, nomem, nostack, preserves_flags));
        }
        equal
    }

    /// Never here: see the module's comment.
    ///
    /// # Safety
    /// None is needed.
    #[cfg(not(target_arch = "x86_64"))]
    unsafe fn begins(&self, _: &[*const u8; TEXTS], _: bool) -> bool {
        false
    }

    /// Word 5, the word with the port, and the version to which both belong.
    ///
    /// # Safety
    /// As [`Shapes::find`](super::Shapes::find); the texts lie where the entry says, or said a moment ago.
    #[inline(always)]
    pub(super) unsafe fn read_if_it_begins(&self, call: &Call, with_key: bool) -> Option<(u64, u64, u64)> {
        let version = self.version.load(Acquire);
        // SAFETY: see `lies_at` (invariant 13).
        if version & 1 != 0 || !unsafe { self.begins(&call.texts, with_key) } {
            return None;
        }
        let found = (self.names.load(Relaxed), self.port_and_key.load(Relaxed), version);
        self.is_still(version).then_some(found)
    }

    /// Whether all that was loaded before belongs to this version.
    #[inline(always)]
    pub(super) fn is_still(&self, version: u64) -> bool {
        fence(Acquire);
        self.version.load(Relaxed) == version
    }

    /// How a call was met before, if it is this one: see [`Shapes::find`](super::Shapes::find).
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    pub(super) unsafe fn find(&self, call: &Call) -> CallMatch {
        if !self.lies_at(&call.texts) {
            return CallMatch::Never;
        }
        // Before the version: these marks need not agree with the rest, they only say how the call is best recorded.
        let marks = self.port_and_key.load(Acquire) as u32;
        if marks & BRIEF != 0 {
            return CallMatch::New(if marks & CELLS != 0 { Size::Cells } else { Size::Brief });
        }
        // SAFETY: passed on from the caller; they lie there (invariant 13).
        let Some((names, port_and_key, version)) = (unsafe { self.read_if_it_begins(call, true) }) else {
            return CallMatch::Never;
        };
        let (port_and_others, port) = (port_and_key as u32, u32::from(call.port));
        let key = (port_and_key >> 32) as u32;
        if port_and_others == port {
            CallMatch::Whole(names, key)
        } else if port_and_others & !TRAVELS == port {
            CallMatch::InPart(names, key)
        } else if port_and_others & !LONGER == port {
            let ids = Ids(self.ids.load(Relaxed));
            if self.is_still(version) { CallMatch::Longer(names, ids) } else { CallMatch::Never }
        } else {
            CallMatch::Never
        }
    }

    /// See [`Shapes::find_span`](super::Shapes::find_span).
    ///
    /// # Safety
    /// As there.
    pub(super) unsafe fn find_span(&self, call: &Call) -> Option<(u64, Ids)> {
        if !self.lies_at(&call.texts) {
            return None;
        }
        // SAFETY: passed on from the caller; they lie there (invariant 13).
        let (names, port_and_key, version) = unsafe { self.read_if_it_begins(call, false) }?;
        let ids = Ids(self.ids.load(Relaxed));
        let is_same = port_and_key as u32 & !LONGER == u32::from(call.port) && self.is_still(version);
        is_same.then_some((names, ids))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.texts[ADDRESS].load(Relaxed) == 0
    }

    /// Whether the call's texts lie where those of the entry do.
    pub(super) fn is_of(&self, call: &Call) -> bool {
        self.texts.iter().zip(call.texts).all(|(kept, text)| kept.load(Relaxed) == text.addr() as u64)
    }

    /// Puts a call here, unless another one is being written: by another thread, or by this thread, in the call that a signal
    /// interrupted.
    pub(super) fn write(&self, call: &Call, known: &Known<'_>, names: u64) {
        let version = self.version.load(Relaxed);
        if version & 1 != 0 || self.version.compare_exchange(version, version + 1, Acquire, Relaxed).is_err()
        {
            return;
        }
        fence(Release);
        let end = usize::from(!call.is_measured());
        let (mut longer, mut travels, mut lanes) = (0, 0, 0);
        for (number, id) in known.ids.into_iter().enumerate() {
            let is_long = known.is_long(number);
            if number != ADDRESS {
                self.texts[number].store(call.texts[number].addr() as u64, Relaxed);
            }
            lanes |= Ids::of(number, id, is_long);
            if id == 0 {
                self.blocks.set_any(number);
                travels |= 1 << number;
                continue;
            }
            let words = [1, 2].map(|word| known.word(number, word));
            self.blocks.set(number, words, known.length(number), end);
            longer |= u64::from(is_long) << number;
        }
        self.ids.store(lanes, Relaxed);
        // Release: who finds this address finds no NULL among the others.
        self.texts[ADDRESS].store(call.texts[ADDRESS].addr() as u64, Release);
        let key = u64::from(known.ids[TEXTS - 1]);
        // Whether they are brief shows when they are copied.
        let brief = if travels == 0xf { u64::from(BRIEF | CELLS) } else { 0 };
        self.port_and_key.store(
            u64::from(call.port)
                | longer << LONGER.trailing_zeros()
                | travels << TRAVELS.trailing_zeros()
                | brief
                | key << 32,
            Release,
        );
        self.names.store(names, Relaxed);
        self.version.store(version + 2, Release);
    }
}
