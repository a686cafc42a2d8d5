//! Whole calls that were met before: the four texts of a legacy call, by their addresses and their content.
//!
//! Programs record the same few annotations again and again, from the same places. One entry holds what four searches of
//! the table of names would find, so that such a call costs one look and one comparison of all its texts. A text's address
//! is only a guess at its content, which is compared each time. A span is a call without a key; a span of a Rust program
//! has texts that do not end with a 0, and their lengths in the key's place.
//!
//! Each call has two places, the second for when another call has the first (Pagh and Rodler, "Cuckoo hashing", 2004). Every call
//! looks at its first place; only a call that would otherwise have to look up each of its texts looks at the second.
//!
//! An entry is guarded by a version, odd while it is written (Lameter, "Effective synchronization on Linux/NUMA systems",
//! 2005, seqlocks): readers never wait, and a reader that finds an entry being written takes the longer path. So do all machines
//! but x86-64, and programs under valgrind: comparing reads up to 15 bytes past a text's end, though never in another page.

mod call;
mod entry;
#[cfg(test)]
#[cfg(target_arch = "x86_64")]
mod tests;

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};

use crate::cstring::{BLOCK, PAGE};
pub use call::{Call, CallMatch, Ids, Size};
pub(crate) use call::{EMPTY, TEXTS};
use entry::{BRIEF, CELLS, Entry, Known};

/// Places that every call looks at first. Most programs need no others, and the more pages they are spread over, the more a
/// call costs whose memory was not touched for long.
const FIRST: usize = 1024;
const COUNT: usize = 4096;
const _: () =
    assert!(FIRST.is_power_of_two() && COUNT.is_power_of_two() && FIRST.ilog2() + COUNT.ilog2() <= u32::BITS);
/// A call that finds another one in its place takes it once in this many times, so that a flood of calls that never come
/// again leaves most of the others where they are.
const TAKEN_ONCE_IN: u32 = 8;

/// All entries. Survives a fork, as the table of names does.
pub(crate) struct Shapes {
    entries: [Entry; COUNT],
    turns: AtomicU32,
}

impl Shapes {
    pub(crate) const fn new() -> Shapes {
        Shapes { entries: [const { Entry::new() }; COUNT], turns: AtomicU32::new(0) }
    }

    #[inline(always)]
    fn entry(&self, call: &Call) -> &Entry {
        &self.entries[(hash_of(call) >> (u32::BITS - FIRST.ilog2())) as usize]
    }

    /// The second place of a call, among all places.
    fn other_entry(&self, call: &Call) -> &Entry {
        &self.entries[(hash_of(call) >> (u32::BITS - FIRST.ilog2() - COUNT.ilog2())) as usize % COUNT]
    }

    fn places(&self, call: &Call) -> [&Entry; 2] {
        [self.entry(call), self.other_entry(call)]
    }

    /// How a call was met before, if it still says the same, as far as one block of each text tells. Texts that are new each
    /// time have no id there: only their addresses are compared. Nothing in here calls another function, so that its caller
    /// need not save anything.
    ///
    /// # Safety
    /// The texts are C strings that do not change during the call, or NULL; the endpoint's address is never NULL.
    #[inline(always)]
    pub(crate) unsafe fn find(&self, call: Call) -> CallMatch {
        // SAFETY: passed on from the caller (invariant 13).
        unsafe { self.entry(&call).find(&call) }
    }

    /// As [`Shapes::find`], in the second place of the call.
    ///
    /// # Safety
    /// As [`Shapes::find`].
    pub(crate) unsafe fn find_elsewhere(&self, call: Call) -> CallMatch {
        // SAFETY: passed on from the caller (invariant 13).
        unsafe { self.other_entry(&call).find(&call) }
    }

    /// Word 5 of a call that was met before with all of its texts, none of which is longer than a block, as
    /// [`Shapes::find`] tells. For calls whose key always lies in the same place and never changes: it is not compared.
    ///
    /// # Safety
    /// As [`Shapes::find`], or the texts are those of [`Call::of_span`].
    #[inline(always)]
    pub(crate) unsafe fn find_short_span(&self, call: Call) -> Option<u64> {
        let entry = self.entry(&call);
        if !entry.lies_at(&call.texts) {
            return None;
        }
        // SAFETY: passed on from the caller; they lie there (invariant 13).
        let (names, port_and_key, _) = unsafe { entry.read_if_it_begins(&call, false) }?;
        (port_and_key as u32 == u32::from(call.port)).then_some(names)
    }

    /// As [`Shapes::find_short_span`], for texts of any length: word 5 of a call that begins so, and the ids by which the caller
    /// compares the rest of its long texts.
    ///
    /// # Safety
    /// As [`Shapes::find`], or the texts are those of [`Call::of_span`].
    pub(crate) unsafe fn find_span(&self, call: Call) -> Option<(u64, Ids)> {
        // SAFETY: passed on from the caller (invariant 13).
        self.places(&call).into_iter().find_map(|entry| unsafe { entry.find_span(&call) })
    }

    /// As [`Shapes::find`], for whole texts. `table`: the texts of the table of names.
    ///
    /// # Safety
    /// As [`Shapes::find`].
    pub(crate) unsafe fn find_whole(&self, call: Call, table: &[AtomicU64]) -> Option<(u64, u32)> {
        // SAFETY: passed on from the caller (invariant 13).
        let met_as = |met| match met {
            CallMatch::Whole(names, key) => Some((names, key)),
            // SAFETY: passed on from the caller; what was met so is not NULL (invariant 13).
            CallMatch::Longer(names, ids) if unsafe { ids.are_of(&call, table) } => Some((names, ids.key())),
            _ => None,
        };
        // SAFETY: as above (invariant 13).
        self.places(&call).into_iter().find_map(|entry| met_as(unsafe { entry.find(&call) }))
    }

    /// Keeps a call, unless it cannot be compared later (a text lies at the end of a page, or one is long and another new each
    /// time), or another call shall stay. `ids`: of its texts, in `table`, 0 for one that is new each time; `names`: its name
    /// and endpoint as a record has them, each with an id if its texts have.
    pub(crate) fn keep(&self, call: &Call, ids: [u32; TEXTS], names: u64, table: &[AtomicU64]) {
        let ends_in_page = |text: &*const u8| text.addr() % PAGE <= PAGE - BLOCK;
        let known = Known { ids, table };
        let is_mixed = ids.contains(&0) && (0..TEXTS).any(|number| known.is_long(number));
        if call.texts.iter().all(|text| !text.is_null() && ends_in_page(text))
            && !is_mixed
            && let Some(entry) = self.place_for(call)
        {
            entry.write(call, &known, names);
        }
    }

    /// Where a call is kept, or may be. A displaced call finds its second place the next time, unless another has that too.
    fn place_for(&self, call: &Call) -> Option<&Entry> {
        let places = self.places(call);
        let find = |fits: fn(&Entry, &Call) -> bool| places.into_iter().find(|place| fits(place, call));
        find(Entry::is_of)
            .or_else(|| find(|place, _| place.is_empty()))
            .or_else(|| self.is_taken().then_some(places[0]))
    }

    /// Notes that the texts of a call are longer than this, as they were thought to be.
    pub(crate) fn set_longer(&self, call: &Call, than: Size) {
        let marks = match than {
            Size::Cells => CELLS,
            Size::Brief => BRIEF | CELLS,
        };
        // If another call takes the place just now, this does it no harm: it is only recorded less quickly.
        for entry in self.places(call).into_iter().filter(|entry| entry.is_of(call)) {
            entry.port_and_key.fetch_and(!u64::from(marks), Relaxed);
        }
    }

    fn is_taken(&self) -> bool {
        // Two threads that count the same turn do no harm.
        let turn = self.turns.load(Relaxed).wrapping_add(1);
        self.turns.store(turn, Relaxed);
        turn.is_multiple_of(TAKEN_ONCE_IN)
    }
}

#[inline(always)]
fn hash_of(call: &Call) -> u32 {
    let [name, _, _, key] = call.texts;
    let [name, endpoint, key] = [name, call.endpoint, key].map(|text| text.addr() as u64);
    let mixed = key.wrapping_add(name.wrapping_mul(2)).wrapping_add(endpoint.wrapping_mul(4));
    (mixed as u32).wrapping_mul(0x9e37_79b1)
}
