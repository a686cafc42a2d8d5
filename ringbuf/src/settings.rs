//! What the environment says, read once at the start of a process (and of a forked child).

use std::ffi::{CStr, c_char};

use crate::cstring;
use crate::layout::{ProducerKind, RingMode, ring_bytes_are_valid};
use crate::say::Once;

/// Where consumerd listens unless BLKIN_SOCKET says otherwise.
pub(crate) const DEFAULT_SOCKET: &[u8] = b"/run/blkin/consumerd.sock";

unsafe extern "C" {
    fn secure_getenv(name: *const c_char) -> *const c_char;
}

/// Reads a variable without a lock or an allocation; programs that run with another's privileges see none. One that is empty
/// counts as not set.
///
/// The bytes stay as they are until the program changes that very variable.
pub(crate) fn variable(name: &CStr) -> Option<&'static [u8]> {
    // SAFETY: `name` is a C string; secure_getenv has no other precondition than that no thread changes the
    // environment at the same time, which holds for every reader of it in a C program (invariant 14).
    let value = unsafe { secure_getenv(name.as_ptr()) };
    if value.is_null() {
        return None;
    }
    // SAFETY: a value that getenv returned is a C string in the environment (see above) (invariant 17).
    let value = unsafe { CStr::from_ptr(value) };
    Some(value.to_bytes()).filter(|bytes| !bytes.is_empty())
}

/// BLKIN_OFF is set to anything but 0.
pub(crate) fn is_off() -> bool {
    variable(c"BLKIN_OFF").is_some_and(|value| value != b"0")
}

pub(crate) fn socket() -> &'static [u8] {
    variable(c"BLKIN_SOCKET").unwrap_or(DEFAULT_SOCKET)
}

/// BLKIN_RING_BYTES; `None` for the default, also (said once) if that is no possible size.
pub(crate) fn ring_bytes() -> Option<usize> {
    static BAD: Once = Once::new();
    let value = variable(c"BLKIN_RING_BYTES")?;
    let number = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
    let valid = number.filter(|bytes| ring_bytes_are_valid(*bytes));
    if valid.is_none() {
        BAD.say(format_args!(
            "BLKIN_RING_BYTES must be a power of two from 4096 to 67108864; using the default"
        ));
    }
    valid
}

/// BLKIN_PRODUCER: portable, or rseq where it can be; the default is the latter.
pub(crate) fn producer(can_rseq: bool) -> ProducerKind {
    static BAD: Once = Once::new();
    let best = if can_rseq { ProducerKind::Rseq } else { ProducerKind::Portable };
    match variable(c"BLKIN_PRODUCER") {
        None => best,
        Some(b"portable") => ProducerKind::Portable,
        Some(b"rseq") if can_rseq => best,
        Some(b"rseq") => {
            BAD.say(format_args!("BLKIN_PRODUCER=rseq cannot be here; using portable"));
            best
        }
        Some(_) => {
            BAD.say(format_args!("BLKIN_PRODUCER must be rseq or portable; choosing by itself"));
            best
        }
    }
}

/// BLKIN_STRINGS: bytes, or blocks where they can be read; `default` if it says neither. Whether blocks are.
pub(crate) fn reads_blocks(default: bool) -> bool {
    static BAD: Once = Once::new();
    match variable(c"BLKIN_STRINGS") {
        None => default,
        Some(b"bytes") => false,
        Some(b"blocks") if cstring::HAS_BLOCKS => true,
        Some(_) => {
            BAD.say(format_args!("BLKIN_STRINGS must be bytes, or on x86-64 blocks; choosing by itself"));
            default
        }
    }
}

/// BLKIN_WAKE=0 forbids the one system call that a record may make.
pub(crate) fn may_wake() -> bool {
    variable(c"BLKIN_WAKE") != Some(b"0")
}

/// BLKIN_MODE: discard, which is the default (said once if it is anything else), or overwrite.
pub(crate) fn mode() -> RingMode {
    static BAD: Once = Once::new();
    match variable(c"BLKIN_MODE") {
        Some(b"overwrite") => RingMode::Overwrite,
        None | Some(b"discard") => RingMode::Discard,
        Some(_) => {
            BAD.say(format_args!("BLKIN_MODE must be discard or overwrite; using discard"));
            RingMode::Discard
        }
    }
}

/// BLKIN_RATE, else RATE: one of how many roots is traced. 0, negative or not a number trace all and say so once.
pub(crate) fn rate() -> u64 {
    static BAD: Once = Once::new();
    let Some(value) = variable(c"BLKIN_RATE").or_else(|| variable(c"RATE")) else { return 1 };
    let number = std::str::from_utf8(value).ok().and_then(|text| text.trim().parse::<u64>().ok());
    number.filter(|rate| *rate > 0).unwrap_or_else(|| {
        BAD.say(format_args!("BLKIN_RATE or RATE must be a whole number from 1 on; tracing every request"));
        1
    })
}
