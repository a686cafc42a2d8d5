//! Calls of the C interface with texts that are new: copied from the program's strings straight into a record.

use blkin_record::{CELLS_GRAINS, Entry, Payload, names_word, traits_word};

use super::call::{CallValue, record_call, record_known};
use super::long::{may_at_once, push_at_once, refuse_if_full, writes_by_sequence};
use super::record::Short;
use super::state::NAMES;
use super::text::{
    endpoint_of, is_not_due, is_to_be_kept, keep_call, recognise_call_elsewhere, recognise_longer,
    recognise_longer_call, set_longer,
};
use crate::cstring;
use crate::image::{Brief, Counts, Image, Tail, Terminated};
use crate::names::Hint;
use crate::rseq;
use crate::shapes::{Call, CallMatch, Size};

/// The level at which the C interface has always recorded: that of its LTTng tracepoints, TRACE_WARNING.
pub const LEGACY_LEVEL: u8 = 4;

/// An endpoint as the C interface has it.
#[repr(C)]
#[derive(Debug)]
pub struct Place {
    /// Its address, or NULL.
    pub ip: *const u8,
    /// The low 16 bits are its port.
    pub port: i32,
    /// Its name.
    pub service: *const u8,
}

/// Records an event at [`LEGACY_LEVEL`] that was met as [`Size::Cells`], with these `texts`: name, address and name of the
/// endpoint, and key. If it has no room in cells, it takes whatever path is available: nothing is left to the caller, which
/// can end with this call.
///
/// # Safety
/// As [`super::record_call`]; the call was just met as such, and `place` is its endpoint.
#[inline(always)]
pub unsafe fn record_in_cells(own: *const u64, place: *const Place, texts: [*const u8; 4]) {
    let [name, ip, service, key] = texts;
    // SAFETY: passed on from the caller (invariant 13).
    unsafe { rseq::push_cells(own, place, key, name, ip, service) }
}

/// Records it on whatever path is available; the arguments are those of the sequence.
///
/// # Safety
/// As [`record_in_cells`].
#[cold]
pub(crate) unsafe extern "C" fn push_cells_otherwise(
    own: *const u64,
    place: *const Place,
    key: *const u8,
    name: *const u8,
    ip: *const u8,
    service: *const u8,
) {
    if refuse_if_full(CELLS_GRAINS as u64) {
        return;
    }
    // SAFETY: passed on from the caller (invariant 13).
    let call = unsafe { call_at(place, [name, ip, service, key]) };
    if !writes_by_sequence() {
        // Cells are for the sequence alone.
        set_longer(&call, Size::Cells);
    }
    // SAFETY: as above (invariant 13).
    unsafe { record_call(own, call, CallValue::Short(Short::Event), LEGACY_LEVEL) };
}

/// The call with these texts.
///
/// # Safety
/// `place` points to an endpoint.
pub(crate) unsafe fn call_at(place: *const Place, texts: [*const u8; 4]) -> Call {
    // SAFETY: passed on from the caller (invariant 13).
    let port = unsafe { (*place).port };
    Call { texts, endpoint: place.cast(), port: (port & 0xffff) as u16 }
}

/// Records a call that [`super::recognise_call`] does not know, if each of its texts is known where it lies, or travels. False
/// if a text has to be looked up, or is NULL, or something else stands in the way: then nothing has happened. Nothing in here
/// panics.
///
/// # Safety
/// As [`super::record_call`].
#[inline(always)]
pub unsafe fn record_new_call(own: *const u64, call: Call, value: CallValue, level: u8) -> bool {
    if !may_at_once() {
        return false;
    }
    // SAFETY: passed on from the caller (invariant 13).
    if unsafe { record_met_elsewhere(own, call, value, level) } {
        return true;
    }
    // SAFETY: as above (invariant 13).
    let Some((names, key)) = (unsafe { recognise_parts_of(call) }) else { return false };
    if names as u32 != 0 && names >> 32 != 0 && key != 0 {
        // SAFETY: passed on from the caller (invariant 13).
        return unsafe { record_known(own, names, key, value, level) }.is_some();
    }
    // SAFETY: passed on from the caller; no text is NULL, for NULL is known nowhere (invariant 13).
    unsafe { record_travelling_call(own, call, names, key, value, level) }
}

/// Records a call that is kept in its second place. As [`record_new_call`].
///
/// # Safety
/// As [`record_new_call`].
#[inline(never)]
unsafe fn record_met_elsewhere(own: *const u64, call: Call, value: CallValue, level: u8) -> bool {
    // SAFETY: passed on from the caller; what was met is not NULL, here and below (invariant 13).
    match (unsafe { recognise_call_elsewhere(call) }, value) {
        // SAFETY: as above (invariant 13).
        (CallMatch::Whole(names, key), _) => unsafe { record_known(own, names, key, value, level) }.is_some(),
        (CallMatch::Longer(names, ids), _) => {
            // SAFETY: as above (invariant 13).
            let key = unsafe { recognise_longer(&call, ids) };
            // SAFETY: as above (invariant 13).
            key.is_some_and(|key| unsafe { record_known(own, names, key, value, level) }.is_some())
        }
        // SAFETY: as above (invariant 13).
        (CallMatch::New(_), CallValue::Short(what)) => unsafe { record_brief_call(own, call, what, level) },
        // SAFETY: as above (invariant 13).
        (CallMatch::New(_), _) => unsafe { record_travelling_call(own, call, 0, 0, value, level) },
        // SAFETY: as above (invariant 13).
        (CallMatch::InPart(names, key), _) => unsafe {
            record_travelling_call(own, call, names, key, value, level)
        },
        (CallMatch::Never, _) => false,
    }
}

/// Records a call whose texts are all new each time, and brief. False if one is not, or something else stands in the way:
/// then nothing has happened. Nothing in here panics, and no function is called but the sequence, so that hardly any
/// register has to be saved.
///
/// # Safety
/// As [`super::record_call`]; no text is NULL, and `own` points to the ids of a sampled span.
#[inline(always)]
pub unsafe fn record_brief_call(own: *const u64, call: Call, what: Short, level: u8) -> bool {
    if !is_not_due() {
        return false;
    }
    let mut image = Image::new();
    // SAFETY: passed on from the caller; four of them (invariant 13).
    let Some(counts) = (unsafe { brief_texts(&mut image, &call) }) else {
        set_longer(&call, Size::Brief);
        return false;
    };
    if let Short::Integer(value) = what {
        image.set_value(value as u64);
    }
    let traits = traits_word(0, &what.into(), level, false);
    // SAFETY: passed on from the caller; what was put into the image. An event needs no value there (invariant 13).
    unsafe { push_at_once(own, names_word(0, 0), traits, &image, counts) }
}

/// # Safety
/// As [`record_brief_call`].
#[inline(always)]
unsafe fn brief_texts(image: &mut Image, call: &Call) -> Option<Counts> {
    // SAFETY: passed on from the caller; these four are all (invariant 13).
    let [name, ip, service, key] = call.texts.map(|text| unsafe { Brief::new(text) });
    let tail = image.begin().entry(Entry::Name, name)?.endpoint(call.port, ip, service)?;
    tail.entry(Entry::Key, key)?.end([0; 3])
}

/// Records a call; its texts without an id in `names` and `key` are new each time. As [`record_new_call`].
///
/// # Safety
/// As [`super::record_call`]; no text is NULL.
#[inline(always)]
pub unsafe fn record_travelling_call(
    own: *const u64,
    call: Call,
    names: u64,
    key: u32,
    value: CallValue,
    level: u8,
) -> bool {
    if !may_at_once() || !is_not_due() {
        return false;
    }
    let mut image = Image::new();
    // SAFETY: passed on from the caller (invariant 13).
    let Some(tail) = (unsafe { texts(image.begin(), &call, names, key) }) else { return false };
    let (tail, payload, scalar) = match value {
        CallValue::Short(Short::Event) => (tail, Payload::Event, 0),
        CallValue::Short(Short::Integer(value)) => (tail, Payload::Integer(value), value as u64),
        CallValue::String(value) if value.is_null() => return false,
        // SAFETY: passed on from the caller (invariant 13).
        CallValue::String(value) => match tail.entry(Entry::Value, unsafe { Terminated::new(value) }) {
            Some(tail) => (tail, Payload::Str(&[]), 0),
            None => return false,
        },
    };
    let Some(counts) = tail.end([names as u32, (names >> 32) as u32, key]) else { return false };
    image.set_value(scalar);
    let traits = traits_word(key, &payload, level, false);
    // SAFETY: passed on from the caller; what was put into the image (invariant 13).
    unsafe { push_at_once(own, names, traits, &image, counts) }
}

/// Puts the texts of a call that have no id into a tail.
///
/// # Safety
/// As [`record_new_call`]; no text is NULL.
#[inline(always)]
unsafe fn texts<'a>(mut tail: Tail<'a>, call: &Call, names: u64, key_id: u32) -> Option<Tail<'a>> {
    // SAFETY: passed on from the caller (invariant 13).
    let [name, ip, service, key] = call.texts.map(|text| unsafe { Terminated::new(text) });
    if names as u32 == 0 {
        tail = tail.entry(Entry::Name, name)?;
    }
    if names >> 32 == 0 {
        tail = tail.endpoint(call.port, ip, service)?;
    }
    if key_id == 0 {
        tail = tail.entry(Entry::Key, key)?;
    }
    Some(tail)
}

/// Word 5 and the key's id, 0 for what travels, found for each text by its address. `None` if a text has to be looked up,
/// or is NULL.
///
/// # Safety
/// As [`record_new_call`].
#[inline(never)]
unsafe fn recognise_parts_of(call: Call) -> Option<(u64, u32)> {
    let [name, ip, service, key] = call.texts;
    let [name_hint, service_hint, key_hint] = [name, service, key].map(|text| NAMES.hints.at(text.addr()));
    let is_known = |hint| matches!(hint, Hint::Id(_));
    if is_known(name_hint) && is_known(service_hint) && is_known(key_hint) {
        // SAFETY: passed on from the caller (invariant 13).
        return unsafe { recognise_longer_call(call) };
    }
    if name.is_null() || service.is_null() || key.is_null() {
        return None;
    }
    // SAFETY: passed on from the caller; not NULL (invariant 13).
    let id = |text, hint| unsafe { id_of(text, hint) };
    let (name, key) = (id(name, name_hint)?, id(key, key_hint)?);
    let service = id(service, service_hint)?;
    let ip = if service == 0 { 0 } else { id(ip, NAMES.hints.at(ip.addr())).filter(|id| *id != 0)? };
    let endpoint = if service == 0 { 0 } else { endpoint_of(ip, service, call.port) };
    if endpoint == 0 && service != 0 {
        return None;
    }
    let names = names_word(name, endpoint);
    if is_to_be_kept() {
        keep_call(&call, [name, ip, service, key], names);
    }
    Some((names, key))
}

/// The id of a text that is known where it lies, or 0 for one that travels.
///
/// # Safety
/// `text` points to a string that ends with a 0.
unsafe fn id_of(text: *const u8, hint: Hint) -> Option<u32> {
    let travels = match hint {
        Hint::Id(id) => {
            // SAFETY: passed on from the caller (invariant 13).
            return unsafe { cstring::equals_interned(text, NAMES.text(), id as usize, true) }.then_some(id);
        }
        Hint::Changing => true,
        Hint::Nothing => NAMES.recognised().is_full(),
    };
    travels.then_some(0)
}
