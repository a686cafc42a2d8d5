//! Instead of `rseq` where there are no restartable sequences: no thread has an area, so nobody asks for more.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use crate::hot::Hot;
use crate::image::{Counts, Image};
use crate::process::record::{push_event_otherwise, push_value_otherwise};
use crate::process::strings::{Place, push_cells_otherwise};

pub(crate) const NO_SLOT: u32 = 2;
pub(crate) const TRIES: usize = 1;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Area {
    pub(crate) offset: i32,
    pub(crate) index_offset: i32,
}

impl Area {
    pub(crate) fn is_by_cpu(self) -> bool {
        false
    }
}

#[expect(dead_code, reason = "the callers ask for what only sequences answer")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Done,
    Passed,
    NoSlot,
    Refused,
    Aborted,
}

impl Outcome {
    pub(crate) fn from_code(_: u32) -> Outcome {
        Outcome::NoSlot
    }
}

pub(crate) fn area() -> Option<Area> {
    None
}

pub(crate) fn index(_: &Hot) -> Option<usize> {
    None
}

pub(crate) unsafe fn push_event(ids: *const u64, names: u64, traits: u64) -> i32 {
    // SAFETY: passed on from the caller (invariant 13).
    unsafe { push_event_otherwise(ids, names, traits, 0) }
}

pub(crate) unsafe fn push_value(ids: *const u64, names: u64, traits: u64, value: u64) -> i32 {
    // SAFETY: passed on from the caller (invariant 13).
    unsafe { push_value_otherwise(ids, names, traits, value) }
}

pub(crate) unsafe fn push_texts(_: *const u64, _: u64, _: u64, _: &Image, _: Counts) -> Outcome {
    Outcome::NoSlot
}

pub(crate) unsafe fn push_cells(
    ids: *const u64,
    place: *const Place,
    key: *const u8,
    name: *const u8,
    ip: *const u8,
    service: *const u8,
) {
    // SAFETY: passed on from the caller (invariant 13).
    unsafe { push_cells_otherwise(ids, place, key, name, ip, service) }
}

pub(crate) unsafe fn push_long(_: &Hot, _: &mut Image, _: usize, _: bool) -> Outcome {
    Outcome::NoSlot
}

pub(crate) unsafe fn find_room(_: &Hot, _: u64) -> bool {
    true
}

pub(crate) unsafe fn refuse(_: &Hot) -> Outcome {
    Outcome::NoSlot
}

pub(crate) unsafe fn evict(_: &Hot, _: *const AtomicU64, _: u64, _: u64, _: u64) -> Outcome {
    Outcome::NoSlot
}

pub(crate) fn add(word: &AtomicU64, number: u64) -> u64 {
    word.fetch_add(number, Relaxed)
}

pub(crate) unsafe fn next_number(_: &Hot, _: i32) -> Result<u64, Outcome> {
    Err(Outcome::NoSlot)
}
