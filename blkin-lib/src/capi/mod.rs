//! The C interface: the functions and objects that `include/blkin/zipkin_c.h` declares.
//!
//! A thin layer: it checks the arguments, copies them out of the caller's structs and passes them to [`crate::raw`], or to
//! [`blkin_ringbuf::process`] on the fast paths. The header documents each function; the rules that all of them follow are below.
//!
//! # What the caller promises (the header's conventions), and what this module does
//!
//! 1. **Structs**: a struct pointer that is not NULL points to a live, aligned struct of its type, which the call
//!    may write if the parameter is not `const`, and which no other thread writes meanwhile (but for 7).
//! 2. **Strings**: a `char` pointer that is not NULL, as an argument or inside a struct, points to bytes that stay
//!    readable and unchanged up to their NUL until the call returns.
//! 3. **Copies, no references**: fields and structs of the caller are copied in and out through the raw pointer, and
//!    only those that the call needs (a C program may leave the others unset); no Rust reference to them is ever
//!    made, so arguments may alias (`child == parent`, `info == &child->info`).
//! 4. **Packed ids** have no alignment: they are only read and written unaligned.
//! 5. **Unions and enums**: `type` is read as a plain integer, of which every bit pattern is valid. Only its lowest byte
//!    counts: a program compiled with -fshort-enums sets no other. Both members of an annotation's value are eight bytes
//!    without invalid patterns, and the one that `type` names is used. A string in it falls under 2.
//! 6. **Passed on**: what the caller promised for an argument holds when the argument is passed on unchanged, and what a function
//!    itself made or checked is still so.
//! 7. **Names are shared**: the `id` of a `struct blkin_name` is ours, and all threads write it. Once it is initialised it is
//!    only ever accessed as an atomic word.
//! 8. **Refused calls**: NULL is checked before any write. A call that returns `-EINVAL` sets the struct that it should have
//!    filled in to zeros, of which each of these structs may consist ([`refuse::Zeroable`]). Bytes of it that also belong to
//!    the struct that it was to be made from, which shows from the two addresses alone, are kept. Nothing else is changed.
//!
//! A panic never crosses into C: [`guard`] turns it into the function's error value wherever a panic is possible.
//!
//! # Where the code lies
//!
//! When a daemon reaches an annotation, this code is seldom in the caches: each call and each cache line then costs a nanosecond or
//! two (docs/adr/0007-reading-the-clock.md). The functions that a request calls therefore lie together, in calling order, in
//! sections `.text.sorted.blkin_N`, which GNU ld sorts by name. Other linkers do not sort them, which does no harm.
//!
//! | N | functions |
//! |---|---|
//! | 1, 2, 3 | new spans: roots, children of spans of other processes, children |
//! | 4 | events of the older interface |
//! | 5 | restartable sequences, to which the event functions jump |
//! | 6, 7 | spans that are looked up once, and their events |
//! | 8, 9 | all other functions that record |

use std::ffi::{c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

use blkin_ringbuf::process;

mod aliases;
mod annotation;
mod begin;
mod constants;
mod direct;
mod endpoint;
mod layout;
mod record;
mod refuse;
mod span;
mod trace;
mod wire;

const OK: c_int = 0;
const INVALID: c_int = -libc::EINVAL;

/// Runs `body`, and returns `-EINVAL` if it panics. Inlined: otherwise the arguments would be passed through memory.
#[inline(always)]
fn guard(body: impl FnOnce() -> c_int) -> c_int {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(INVALID)
}

/// The bytes of a C string, at most one more than a record keeps; `None` for NULL.
///
/// # Safety
/// `text` is NULL or keeps Invariant 2 for as long as `'a`.
#[inline(always)]
unsafe fn bytes<'a>(text: *const c_char) -> Option<&'a [u8]> {
    // SAFETY: readable up to its NUL (by Invariant 2).
    (!text.is_null()).then(|| unsafe { process::string_bytes(text.cast()) })
}
