//! From texts to ids of the table of names: declared, met while recording, or recognised at a C string's address.

use std::ops::Range;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicU32, AtomicU64, fence};

use blkin_record::EndpointParts;

use super::state::{NAMES, STATE};
use crate::cstring;

/// Id of a name that the program declares: for as long as the process and its forked children live. 0: no room in the
/// table, or too long; the text then travels in the record. Lock-free, async-signal-safe.
pub fn declare(text: &[u8]) -> u32 {
    NAMES.declared().intern(&[text], share).unwrap_or(0)
}

/// As [`declare`], for an endpoint.
pub fn declare_endpoint(endpoint: &EndpointParts<'_>) -> u32 {
    NAMES.declared().intern(&[&endpoint.fixed(), endpoint.ip, endpoint.name], share).unwrap_or(0)
}

/// Id of a text that may be another one at the same address the next time; 0 if it is not in the table and there is no
/// room.
#[inline]
pub fn recognise(text: &[u8]) -> u32 {
    let names = NAMES.recognised();
    if let Some(id) = names.hinted(&NAMES.hints, text.as_ptr() as usize, text) {
        return id;
    }
    if names.is_full() && is_not_looked_up() {
        return 0;
    }
    names.intern_from(&NAMES.hints, text.as_ptr() as usize, text, share).unwrap_or(0)
}

/// As [`recognise`], for an endpoint.
pub fn recognise_endpoint(endpoint: &EndpointParts<'_>) -> u32 {
    let (ip, name) = (recognise(endpoint.ip), recognise(endpoint.name));
    if ip == 0 || name == 0 {
        return 0;
    }
    match endpoint_of(ip, name, endpoint.port) {
        0 => {
            let pieces: [&[u8]; 3] = [&endpoint.fixed(), endpoint.ip, endpoint.name];
            let id = NAMES.recognised().intern(&pieces, share).unwrap_or(0);
            ENDPOINTS.keep(ip, name, endpoint.port, id);
            id
        }
        id => id,
    }
}

/// Id of the C string at `text`, if that address had it before: compared by content, no further than its end. 0 if it
/// is not known there; then [`recognise`] tells more.
///
/// # Safety
/// `text` points to a string that ends with a 0 and does not change during the call.
#[inline(always)]
pub unsafe fn recognise_c(text: *const u8) -> u32 {
    let Some(id) = NAMES.hints.at(text.addr()) else { return 0 };
    let wide = STATE.hot.rseq_offset.load(Relaxed) != 0;
    // SAFETY: passed on from the caller.
    if unsafe { cstring::is(text, NAMES.text(), id as usize, wide) } { id } else { 0 }
}

/// Id of the endpoint that these texts, by their ids, and this port make up; 0 if that is not known.
#[inline(always)]
pub fn endpoint_of(ip: u32, name: u32, port: u16) -> u32 {
    ENDPOINTS.get(ip, name, port)
}

/// Once the table is full a flood of new texts would be hashed and looked up in vain. One in sixteen is: a text that is
/// known, but not at its address, is found again soon.
fn is_not_looked_up() -> bool {
    static MISSES: AtomicU32 = AtomicU32::new(0);
    let misses = MISSES.load(Relaxed).wrapping_add(1);
    // Two threads that count the same miss do no harm.
    MISSES.store(misses, Relaxed);
    !misses.is_multiple_of(16)
}

/// Copies words of a new text into the segment, if there is one; see `start::share_names`.
fn share(range: Range<usize>) {
    fence(SeqCst);
    let shared = STATE.shared_text.load(Relaxed);
    if shared.is_null() {
        return;
    }
    // SAFETY: set once from a segment that stays mapped, to as many words as there are texts (invariants 1 to 3).
    let shared = unsafe { std::slice::from_raw_parts(shared, NAMES.text().len()) };
    for (to, from) in shared[range.clone()].iter().zip(&NAMES.text()[range]) {
        to.store(from.load(Relaxed), Relaxed);
    }
}

/// Endpoints by the ids of their parts, one word each: ids are offsets into the table of names, of 13 bits.
///
/// ```text
/// bits 0..13 id of the endpoint · 13..26 of the address · 26..39 of the name · 39..55 port
/// ```
struct Endpoints {
    entries: [AtomicU64; Endpoints::COUNT],
}

const ID_BITS: u32 = crate::layout::NAMES_TEXT_WORDS.ilog2();
const _: () = assert!(ID_BITS * 3 + 16 <= u64::BITS && crate::layout::NAMES_TEXT_WORDS == 1 << ID_BITS);

impl Endpoints {
    const COUNT: usize = 256;

    #[inline(always)]
    fn entry(&self, ip: u32, name: u32, port: u16) -> (&AtomicU64, u64) {
        let key = (u64::from(ip) | u64::from(name) << ID_BITS | u64::from(port) << (2 * ID_BITS)) << ID_BITS;
        let hash = key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - Self::COUNT.ilog2());
        (&self.entries[hash as usize], key)
    }

    #[inline(always)]
    fn get(&self, ip: u32, name: u32, port: u16) -> u32 {
        let (entry, key) = self.entry(ip, name, port);
        // Acquire, as for hints: whoever sees our record sees the text too.
        let found = entry.load(std::sync::atomic::Ordering::Acquire);
        if found >> ID_BITS == key >> ID_BITS { (found & ((1 << ID_BITS) - 1)) as u32 } else { 0 }
    }

    fn keep(&self, ip: u32, name: u32, port: u16, id: u32) {
        let (entry, key) = self.entry(ip, name, port);
        entry.store(key | u64::from(id), std::sync::atomic::Ordering::Release);
    }
}

static ENDPOINTS: Endpoints = Endpoints { entries: [const { AtomicU64::new(0) }; Endpoints::COUNT] };
