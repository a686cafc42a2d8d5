//! Calls of the C interface: names, addresses and keys are strings of the program, whose content is looked at in each call.

use std::slice;
use std::sync::atomic::Ordering::Relaxed;

use blkin_record::{Draft, EndpointParts, MAX_TEXT_BYTES, Payload, Source, names_word};

use super::long::{record_string_at, record_texts};
use super::record::{Short, record_short_at};
use super::state::{NAMES, STATE};
use super::text::{
    endpoint_of, intern_unhinted, intern_unkept_endpoint, is_due, is_to_be_kept, keep_call,
    recognise_longer_call,
};
use crate::cstring;
use crate::names::Hint;
use crate::shapes::Call;

/// One byte more than a record keeps: enough to notice that a string is too long, and a bound on reading a string without
/// a terminator.
const STRING_SCAN_BYTES: usize = MAX_TEXT_BYTES + 1;

/// What a call carries besides its key.
#[derive(Clone, Copy, Debug)]
pub enum CallValue {
    /// No text: an event or an integer.
    Short(Short),
    /// A string, or NULL.
    String(*const u8),
}

/// The bytes of a C string, no more than a record needs to notice that it has to be cut.
///
/// # Safety
/// `text` points to bytes that may be read up to a 0, or as many as `STRING_SCAN_BYTES`, and that do not change during `'a`.
#[inline(always)]
pub unsafe fn string_bytes<'a>(text: *const u8) -> &'a [u8] {
    // SAFETY: passed on from the caller (invariant 13).
    unsafe { bytes(text, is_wide()) }
}

/// Whether strings may be read block by block.
#[inline(always)]
fn is_wide() -> bool {
    STATE.reads_blocks.load(Relaxed)
}

/// # Safety
/// As [`string_bytes`].
#[inline(always)]
unsafe fn bytes<'a>(text: *const u8, wide: bool) -> &'a [u8] {
    // SAFETY: passed on from the caller (invariant 13).
    let length = unsafe { cstring::length(text, STRING_SCAN_BYTES, wide) };
    // SAFETY: those bytes were just read, and stay as they are (invariant 17).
    unsafe { slice::from_raw_parts(text, length) }
}

/// Records a call whose texts have their ids. Always 0, which C functions that end with this call return; `None`, and nothing
/// recorded, if a string is NULL.
///
/// # Safety
/// `ids` points to three readable words, aligned, the first of which is not 0. A string ends with a 0 and does not change
/// during the call.
#[inline(always)]
pub unsafe fn record_known(
    ids: *const u64,
    names: u64,
    key: u32,
    value: CallValue,
    level: u8,
) -> Option<i32> {
    match value {
        // SAFETY: passed on from the caller (invariant 13).
        CallValue::Short(short) => Some(unsafe { record_short_at(ids, names, key, short, level) }),
        CallValue::String(value) if value.is_null() => None,
        CallValue::String(value) => {
            // SAFETY: passed on from the caller (invariant 13).
            unsafe { record_string_at(ids, names, key, value, level) };
            Some(0)
        }
    }
}

/// Records a call that [`super::record_new_call`] has not recorded. `None`, and nothing recorded, if a text is NULL.
///
/// # Safety
/// As [`record_known`], also for the texts of the call; all of them but the address may be NULL.
#[inline(always)]
pub unsafe fn record_call(ids: *const u64, call: Call, value: CallValue, level: u8) -> Option<i32> {
    // SAFETY: passed on from the caller (invariant 13).
    unsafe { record_call_if(ids, call, value, level, is_due) }
}

/// As [`record_call`]. `is_due`: whether to look up texts that will most likely not be found.
///
/// # Safety
/// As [`record_call`].
#[inline(always)]
pub(crate) unsafe fn record_call_if(
    ids: *const u64,
    call: Call,
    value: CallValue,
    level: u8,
    is_due: impl FnOnce() -> bool,
) -> Option<i32> {
    let [name, ip, service, key] = call.texts;
    let hint = |text: *const u8| NAMES.hints.at(text.addr());
    let (name_hint, service_hint, key_hint) = (hint(name), hint(service), hint(key));
    let is_id = |hint: Hint| matches!(hint, Hint::Id(_));
    if is_id(name_hint) && is_id(service_hint) && is_id(key_hint) {
        // SAFETY: passed on from the caller (invariant 13).
        if let Some((names, key)) = unsafe { recognise_longer_call(call) } {
            // SAFETY: passed on from the caller (invariant 13).
            return unsafe { record_known(ids, names, key, value, level) };
        }
    }
    let has_no_value = matches!(value, CallValue::String(value) if value.is_null());
    if name.is_null() || service.is_null() || key.is_null() || has_no_value {
        return None;
    }
    let (wide, is_due) = (is_wide(), is_due());
    // SAFETY: passed on from the caller; none is NULL (invariant 13).
    let known = |text: *const u8, hint: Hint| unsafe { known(text, hint, wide, is_due) };
    let name = known(name, name_hint);
    let key = known(key, key_hint);
    let service = known(service, service_hint);
    // SAFETY: passed on from the caller (invariant 13).
    let (ip, endpoint) = unsafe { endpoint(&call, service, || known(ip, hint(ip)), wide) };
    let text_ids = [name.id(), ip, service.id(), key.id()];
    if wide && endpoint.id() != 0 && !text_ids.contains(&0) && is_to_be_kept() {
        // Not all of these addresses had a hint: other texts have their places, or these texts lie elsewhere each time.
        keep_call(&call, text_ids, names_word(name.id(), endpoint.id()));
    }
    let payload = match value {
        CallValue::Short(Short::Event) => Payload::Event,
        CallValue::Short(Short::Integer(value)) => Payload::Integer(value),
        // SAFETY: passed on from the caller; not NULL (invariant 13).
        CallValue::String(value) => Payload::Str(unsafe { bytes(value, wide) }),
    };
    // SAFETY: passed on from the caller (invariant 13).
    let id = |index: usize| unsafe { ids.wrapping_add(index).read() };
    record_texts(&Draft {
        trace_id: id(0),
        span_id: id(1),
        parent_span_id: id(2),
        name,
        endpoint,
        key,
        payload,
        level,
        truncated: false,
    });
    Some(0)
}

/// A text's id, if it can be had cheaply, or else the text itself.
///
/// # Safety
/// As [`string_bytes`].
#[inline(always)]
unsafe fn known<'a>(text: *const u8, hint: Hint, wide: bool, is_due: bool) -> Source<&'a [u8]> {
    if let Hint::Id(id) = hint {
        // SAFETY: passed on from the caller (invariant 13).
        if unsafe { cstring::equals_interned(text, NAMES.text(), id as usize, wide) } {
            return Source::known(id);
        }
    }
    // SAFETY: passed on from the caller (invariant 13).
    let text = unsafe { bytes(text, wide) };
    match hint {
        Hint::Changing if !is_due => Source::inline(text),
        Hint::Nothing if !is_due && NAMES.recognised().is_full() => Source::inline(text),
        _ => Source::new(intern_unhinted(text), text),
    }
}

/// The id of the address of a call's endpoint, or 0, and the endpoint. `ip` is called only if the name of the service has an
/// id: without that, the address's id is of no use.
///
/// # Safety
/// As [`string_bytes`], for the texts of the call.
#[inline(always)]
unsafe fn endpoint<'a>(
    call: &Call,
    service: Source<&'a [u8]>,
    ip: impl FnOnce() -> Source<&'a [u8]>,
    wide: bool,
) -> (u32, Source<EndpointParts<'a>>) {
    let ip = if service.id() == 0 { 0 } else { ip().id() };
    if ip != 0 {
        let id = endpoint_of(ip, service.id(), call.port);
        if id != 0 {
            return (ip, Source::known(id));
        }
    }
    // SAFETY: passed on from the caller (invariant 13).
    let text = |number: usize| unsafe { bytes(call.texts[number], wide) };
    let name = service.inline_text().unwrap_or_else(|| text(2));
    let parts = EndpointParts { ip: text(1), port: call.port, name };
    (ip, Source::new(if ip == 0 { 0 } else { intern_unkept_endpoint(ip, service.id(), parts) }, parts))
}
