//! From texts to ids of the table of names: declared, met while recording, or recognised at a C string's address.

use std::ops::Range;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicU32, AtomicU64, fence};

use blkin_record::{EndpointParts, MAX_IP_BYTES, names_word};

use super::call::string_bytes;
use super::start::text_words_with_memory;
use super::state::{NAMES, STATE};
use crate::cstring;
use crate::names::{Hint, Names};
use crate::shapes::{Call, CallMatch, EMPTY, Ids, Shapes, Size, TEXTS};

/// Id of a name that the program declares, valid as long as the process and its forked children live. 0: no room in the
/// table, or too long; the text then travels in the record. Lock-free, async-signal-safe.
pub fn declare(text: &[u8]) -> u32 {
    with_memory(NAMES.declared()).intern(&[text], share).unwrap_or(0)
}

/// The table, limited to what the segment has memory for.
fn with_memory(names: Names<'_, [AtomicU64]>) -> Names<'_, [AtomicU64]> {
    Names { text_words: text_words_with_memory(names.text_words), ..names }
}

/// As [`declare`], for an endpoint. 0 also if its address is longer than any can be: it travels, and is cut on the way.
pub fn declare_endpoint(endpoint: &EndpointParts<'_>) -> u32 {
    intern_endpoint(&with_memory(NAMES.declared()), endpoint)
}

/// Adds an endpoint to the table of names, unless decoders would refuse it.
fn intern_endpoint(names: &Names<'_, [AtomicU64]>, endpoint: &EndpointParts<'_>) -> u32 {
    if endpoint.ip.len() > MAX_IP_BYTES {
        return 0;
    }
    names.intern(&[&endpoint.fixed(), endpoint.ip, endpoint.name], share).unwrap_or(0)
}

/// Id of a text whose address may hold another text the next time; 0 if it is not in the table and there is no room, or
/// if it comes from a buffer whose text always changes.
#[inline]
pub fn recognise(text: &[u8]) -> u32 {
    recognise_if(text, is_due)
}

/// As [`recognise`]. `is_due`: whether to look the text up although that is most likely in vain.
#[inline(always)]
pub(super) fn recognise_if(text: &[u8], is_due: impl Fn() -> bool) -> u32 {
    let names = NAMES.recognised();
    match NAMES.hints.at(text.as_ptr().addr()) {
        Hint::Id(id) if names.is_text(id, text) => id,
        Hint::Changing if !is_due() => 0,
        Hint::Nothing if names.is_full() && !is_due() => 0,
        _ => intern_unhinted(text),
    }
}

/// Looks up a text that is not known at its address, and adds it if it is new.
#[inline(never)]
pub(super) fn intern_unhinted(text: &[u8]) -> u32 {
    let address = text.as_ptr().addr();
    if NAMES.hints.at(address) == Hint::Changing {
        NAMES.hints.forget(address);
    }
    with_memory(NAMES.recognised()).intern_from(&NAMES.hints, address, text, share).unwrap_or(0)
}

/// As [`recognise`], for an endpoint.
pub fn recognise_endpoint(endpoint: &EndpointParts<'_>) -> u32 {
    recognise_endpoint_if(endpoint, is_due)
}

/// As [`recognise_if`], for an endpoint.
#[inline(always)]
pub(super) fn recognise_endpoint_if(endpoint: &EndpointParts<'_>, is_due: impl Fn() -> bool) -> u32 {
    // The part that changes more often comes first: without its id the other is not needed.
    let name = recognise_if(endpoint.name, &is_due);
    let ip = if name == 0 { 0 } else { recognise_if(endpoint.ip, &is_due) };
    if ip == 0 {
        return 0;
    }
    match endpoint_of(ip, name, endpoint.port) {
        0 => intern_unkept_endpoint(ip, name, *endpoint),
        id => id,
    }
}

/// Id of the endpoint whose texts have these ids; 0 if it was not met, or not lately.
#[inline(always)]
pub(super) fn endpoint_of(ip: u32, name: u32, port: u16) -> u32 {
    ENDPOINTS.get(ip, name, port)
}

/// Adds an endpoint to the table of names. `ip` and `name`: the ids of its texts.
#[inline(never)]
pub(super) fn intern_unkept_endpoint(ip: u32, name: u32, endpoint: EndpointParts<'_>) -> u32 {
    let id = intern_endpoint(&with_memory(NAMES.recognised()), &endpoint);
    ENDPOINTS.keep(ip, name, endpoint.port, id);
    id
}

/// How a call whose texts lie where they do now was met before: name, address (never NULL) and name of the endpoint, and key,
/// compared by content, no further than their ends. For [`CallMatch::Longer`] ask [`recognise_longer`], for
/// [`CallMatch::Never`] [`super::record_new_call`]. Texts that are new each time are for [`super::record_travelling_call`], or
/// for what [`CallMatch::New`] names.
///
/// # Safety
/// The texts end with a 0 and do not change during the call, or are NULL.
#[inline(always)]
pub unsafe fn recognise_call(call: Call) -> CallMatch {
    // SAFETY: passed on from the caller (invariant 13).
    unsafe { SHAPES.find(call) }
}

/// As [`recognise_call`], after that has said [`CallMatch::Never`]: looks where calls are kept whose first place is taken.
///
/// # Safety
/// As [`recognise_call`].
pub(super) unsafe fn recognise_call_elsewhere(call: Call) -> CallMatch {
    // SAFETY: passed on from the caller (invariant 13).
    unsafe { SHAPES.find_elsewhere(call) }
}

/// For a call that was met as [`CallMatch::Longer`]: the key's id, if all of its texts go on as they did.
///
/// # Safety
/// As [`recognise_call`]; no text is NULL.
#[inline(always)]
pub unsafe fn recognise_longer(call: &Call, ids: Ids) -> Option<u32> {
    // SAFETY: passed on from the caller (invariant 13).
    unsafe { ids.are_of(call, NAMES.text()) }.then(|| ids.key())
}

/// Name and endpoint of a span as a record has them; 0 if one of them finds no room in the table of names, `None` if
/// [`intern_span`] has to find out. `call`: where its texts lie; the key is not looked at.
///
/// # Safety
/// As [`recognise_call`]; no text but the key is NULL.
#[inline(always)]
pub unsafe fn recognise_span(call: Call) -> Option<u64> {
    // SAFETY: passed on from the caller; [`EMPTY`] is the key of no other call (invariant 13).
    unsafe { SHAPES.find_short_span(without_key(call)) }
}

/// Spans are recognised as calls are: by all of their texts at once.
#[inline(always)]
fn without_key(call: Call) -> Call {
    let [name, ip, service, _] = call.texts;
    Call { texts: [name, ip, service, EMPTY.0.as_ptr()], ..call }
}

/// As [`recognise_span`], for a span that was never met.
///
/// # Safety
/// As [`recognise_span`].
#[inline(never)]
pub unsafe fn intern_span(call: Call) -> u64 {
    let call = without_key(call);
    // SAFETY: passed on from the caller (invariant 13).
    if let Some((names, _)) = unsafe { recognise_longer_call(call) } {
        return names;
    }
    // SAFETY: passed on from the caller (invariant 13).
    let [name, ip, service, key] = call.texts.map(|text| unsafe { string_bytes(text) });
    let endpoint = recognise_endpoint(&EndpointParts { ip, port: call.port, name: service });
    let name_id = recognise(name);
    if name_id == 0 || endpoint == 0 {
        return 0;
    }
    let names = names_word(name_id, endpoint);
    keep_span(&call, name_id, [ip, service, key], names);
    names
}

/// Keeps a span, so that it is known as a whole the next time. `others`: address and name of its endpoint, and what stands for
/// its key.
fn keep_span(call: &Call, name: u32, others: [&[u8]; TEXTS - 1], names: u64) {
    if STATE.reads_blocks.load(Relaxed) {
        let [ip, service, key] = others.map(recognise);
        SHAPES.keep(call, [name, ip, service, key], names, NAMES.text());
    }
}

/// As [`recognise_span`], for texts that come with their lengths; `None` if [`intern_span_texts`] has to find out.
#[inline(always)]
pub fn recognise_texts(name: &[u8], endpoint: EndpointParts<'_>) -> Option<u64> {
    let call = Call::of_span([name, endpoint.ip, endpoint.name], endpoint.port)?;
    // SAFETY: borrowed, so they are there and stay as they are (invariant 17).
    unsafe { SHAPES.find_short_span(call) }
}

/// As [`recognise_texts`], for texts that were never met together, lie elsewhere now, or are long.
#[inline(never)]
pub fn intern_span_texts(name: &[u8], endpoint: &EndpointParts<'_>) -> u64 {
    let texts = [name, endpoint.ip, endpoint.name];
    let call = Call::of_span(texts, endpoint.port);
    if let Some(names) = call.and_then(|call| recognise_long_texts(call, texts)) {
        return names;
    }
    let endpoint_id = recognise_endpoint(endpoint);
    let name_id = recognise(name);
    if name_id == 0 || endpoint_id == 0 {
        return 0;
    }
    let names = names_word(name_id, endpoint_id);
    if let Some(call) = call {
        keep_span(&call, name_id, [endpoint.ip, endpoint.name, &[]], names);
    }
    names
}

/// As [`recognise_texts`], for texts of any length, which are those of `call`.
fn recognise_long_texts(call: Call, texts: [&[u8]; TEXTS - 1]) -> Option<u64> {
    // SAFETY: borrowed, so they are there and stay as they are (invariant 17).
    let (names, ids) = unsafe { SHAPES.find_span(call) }?;
    let table = NAMES.recognised();
    let is_same = |(number, text)| !ids.is_long(number) || table.is_text(ids.id(number) as u32, text);
    texts.into_iter().enumerate().all(is_same).then_some(names)
}

/// As [`recognise_call`], for texts of any length. `None` if one is not known where it lies.
///
/// # Safety
/// As [`recognise_call`].
pub(super) unsafe fn recognise_longer_call(call: Call) -> Option<(u64, u32)> {
    // SAFETY: passed on from the caller (invariant 13).
    unsafe { SHAPES.find_whole(call, NAMES.text()) }
        // SAFETY: as above (invariant 13).
        .or_else(|| unsafe { recognise_parts(call) })
}

/// Recognises the texts one by one, by the ids that texts at these addresses last had.
///
/// # Safety
/// As [`recognise_call`].
unsafe fn recognise_parts(call: Call) -> Option<(u64, u32)> {
    let mut ids = [0; TEXTS];
    for (id, text) in ids.iter_mut().zip(call.texts) {
        let Hint::Id(hinted) = NAMES.hints.at(text.addr()) else { return None };
        *id = hinted;
    }
    let wide = STATE.reads_blocks.load(Relaxed);
    // SAFETY: passed on from the caller (invariant 13).
    let is_same = |(text, id)| unsafe { cstring::equals_interned(text, NAMES.text(), id as usize, wide) };
    if !call.texts.into_iter().zip(ids).all(is_same) {
        return None;
    }
    let [name, ip, service, key] = ids;
    let endpoint = ENDPOINTS.get(ip, service, call.port);
    if endpoint == 0 {
        return None;
    }
    let names = names_word(name, endpoint);
    if wide {
        SHAPES.keep(&call, ids, names, NAMES.text());
    }
    Some((names, key))
}

/// Texts that are most likely looked up in vain, because the table is full or they come from a buffer, are looked up
/// once in this many times: a text that is known, but lies elsewhere now, is soon found again. A prime, so that this does
/// not keep step with what the program does again and again.
const LOOKED_UP_ONCE_IN: u32 = 1021;
/// Calls that are not known as a whole, because their texts change, lie elsewhere or found no room, are kept once in this many
/// times: most of those whose texts lie elsewhere each time never come again.
const KEPT_ONCE_IN: u32 = 7;

/// Counts to a bound and begins again. Two threads that share a count do no harm, but each would wait for the other's
/// cache line: so most threads have a count of their own.
struct EveryNth {
    counts: [Count; EveryNth::COUNT],
}

/// In a cache line by itself.
#[repr(align(64))]
struct Count(AtomicU32);

impl EveryNth {
    const COUNT: usize = 64;

    const fn new() -> Self {
        Self { counts: [const { Count(AtomicU32::new(0)) }; Self::COUNT] }
    }

    /// The count of the calling thread. This library has no thread-locals, and in many places the CPU's number costs a call; but
    /// threads have stacks, mostly at distances of a power of two and a little more.
    #[inline(always)]
    fn own(&self) -> &AtomicU32 {
        const STACK_PART_SHIFT: u32 = 16;
        let here = 0_u8;
        let part = ((&raw const here).addr() >> STACK_PART_SHIFT) as u32;
        let hash = part.wrapping_mul(0x9e37_79b9) >> (u32::BITS - Self::COUNT.ilog2());
        &self.counts[hash as usize].0
    }

    /// Counts once more, unless that reaches `bound`.
    #[inline(always)]
    fn pass(&self, bound: u32) -> bool {
        let count = self.own();
        let next = count.load(Relaxed) + 1;
        let passes = next < bound;
        if passes {
            count.store(next, Relaxed);
        }
        passes
    }

    /// Counts once more. True, and begins again, if that reaches `bound`.
    #[inline(always)]
    fn end(&self, bound: u32) -> bool {
        let ends = !self.pass(bound);
        if ends {
            self.own().store(0, Relaxed);
        }
        ends
    }
}

/// Counts look-ups that are most likely in vain.
static LOOKS: EveryNth = EveryNth::new();
/// Counts calls that might be kept.
static KEPT: EveryNth = EveryNth::new();

/// Counts a call, unless a look-up that is most likely in vain is due: then [`is_due`] will say so.
#[inline(always)]
pub(super) fn is_not_due() -> bool {
    LOOKS.pass(LOOKED_UP_ONCE_IN)
}

/// Whether it is this call's turn to be kept, though its texts, or where they lie, may be new each time.
pub(super) fn is_to_be_kept() -> bool {
    KEPT.end(KEPT_ONCE_IN)
}

/// Keeps a call, so that it is known as a whole the next time. `ids`: of its texts, 0 for those that are new each time.
pub(super) fn keep_call(call: &Call, ids: [u32; TEXTS], names: u64) {
    SHAPES.keep(call, ids, names, NAMES.text());
}

/// Notes that the texts of a call are longer than was thought: it takes another path the next time.
pub(crate) fn set_longer(call: &Call, than: Size) {
    SHAPES.set_longer(call, than);
}

/// Whether a look-up that is most likely in vain is due.
#[inline(always)]
pub(super) fn is_due() -> bool {
    LOOKS.end(LOOKED_UP_ONCE_IN)
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

static SHAPES: Shapes = Shapes::new();

static ENDPOINTS: Endpoints = Endpoints { entries: [const { AtomicU64::new(0) }; Endpoints::COUNT] };

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_pass_below_the_bound_and_end_once_in_bound_times() {
        let counter = EveryNth::new();
        let passed: Vec<bool> = (0..7).map(|_| counter.pass(3)).collect();
        assert_eq!(
            passed,
            [true, true, false, false, false, false, false],
            "no more pass until the count is ended"
        );
        let ended: Vec<bool> = (0..7).map(|_| counter.end(3)).collect();
        assert_eq!(ended, [true, false, false, true, false, false, true]);
    }

    #[test]
    fn threads_mostly_have_counts_of_their_own() {
        static COUNTER: EveryNth = EveryNth::new();
        let together = std::sync::Barrier::new(16);
        std::thread::scope(|scope| {
            for _ in 0..16 {
                scope.spawn(|| {
                    COUNTER.pass(10);
                    together.wait();
                });
            }
        });
        let used = COUNTER.counts.iter().filter(|count| count.0.load(Relaxed) > 0).count();
        assert!(used >= 8, "{used} of 16");
    }
}
