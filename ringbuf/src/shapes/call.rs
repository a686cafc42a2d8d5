//! A call that is looked for, and how it was met before.

use std::sync::atomic::AtomicU64;

use crate::cstring::{self, BLOCK, PAGE};
use crate::names::MAX_INTERNED_BYTES;

/// Texts of a call.
pub(crate) const TEXTS: usize = 4;
/// Which of them is the endpoint's address.
pub(super) const ADDRESS: usize = 1;

/// Where the texts of a call lie: the span's name, the endpoint's address and name, the key; and the endpoint's port.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// Never NULL: the address; the others may be.
    pub texts: [*const u8; TEXTS],
    /// The endpoint itself, which is not read: the search for a call shall not wait for the endpoint's content.
    pub endpoint: *const u8,
    /// Port of the endpoint.
    pub port: u16,
}

/// Stands for the key of a span whose texts do not end with a 0, together with their lengths, which must be the same too. No
/// program has a text at such an address, and none of these addresses is near the end of a page.
const MEASURED: usize = 1 << (usize::BITS - 1);
const LENGTH_BITS: u32 = 9;
const _: () = assert!(MAX_INTERNED_BYTES < 1 << LENGTH_BITS);

impl Call {
    /// A span, without a key: its name, and the endpoint's address and name. `None` if one of them is too long to have an id.
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
    pub(super) fn is_measured(&self) -> bool {
        self.texts[TEXTS - 1].addr() & MEASURED != 0
    }
}

/// From where a block may be compared to find `text`, unless the block would reach into the next page.
#[inline(always)]
fn start(text: &[u8]) -> *const u8 {
    if text.is_empty() { EMPTY.0.as_ptr() } else { text.as_ptr() }
}

/// An empty text. A block, so that it lies in one page.
#[repr(align(16))]
pub(crate) struct Empty(pub(crate) [u8; BLOCK]);

pub(crate) static EMPTY: Empty = Empty([0; BLOCK]);

/// How a call matches what was met before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallMatch {
    /// With all of its texts: word 5 of its records, and the key's id.
    Whole(u64, u32),
    /// With texts that begin as these do, at least one of which is longer than what was compared: word 5 of its records, and
    /// what [`crate::process::recognise_longer`] needs to decide.
    Longer(u64, Ids),
    /// With other texts at some of the addresses; these texts have no id here.
    InPart(u64, u32),
    /// With other texts at all of the addresses, none of which was long. None is NULL then.
    New(Size),
    /// Not at all.
    Never,
}

/// Ids of the texts of a call, sixteen bits each, the first one lowest; the highest of the sixteen says that the text is longer
/// than a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ids(pub u64);

impl Ids {
    const BITS: u32 = 16;
    pub(super) const LONG: u64 = 1 << (Self::BITS - 1);

    pub(super) const fn of(number: usize, id: u32, is_long: bool) -> u64 {
        (id as u64 | if is_long { Self::LONG } else { 0 }) << (Self::BITS * number as u32)
    }

    /// Id of the text `number`.
    pub(crate) fn id(self, number: usize) -> usize {
        (self.0 >> (Self::BITS * number as u32) & (Self::LONG - 1)) as usize
    }

    /// Whether the text `number` is longer than a block, or as long.
    pub(crate) fn is_long(self, number: usize) -> bool {
        self.0 & Self::of(number, 0, true) != 0
    }

    /// Id of the key.
    #[inline(always)]
    pub(crate) fn key(self) -> u32 {
        self.id(TEXTS - 1) as u32
    }

    /// Whether the texts that are longer than a block are these ones, given that all texts begin as these do.
    ///
    /// # Safety
    /// The texts that are long are C strings that do not change during the call.
    #[inline(always)]
    pub(crate) unsafe fn are_of(self, call: &Call, table: &[AtomicU64]) -> bool {
        (0..TEXTS).filter(|number| self.is_long(*number)).all(|number| {
            // SAFETY: passed on from the caller (invariant 13).
            unsafe { cstring::equals_interned_rest(call.texts[number], table, self.id(number)) }
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
