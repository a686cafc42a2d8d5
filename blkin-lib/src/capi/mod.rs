//! The C interface: what `include/blkin/zipkin_c.h` declares, one folder that speaks C.
//!
//! A thin layer: arguments are checked, copied out of the caller's structs and handed to [`crate::raw`], which is
//! safe. Each function is documented in the header; what differs here is only said once, below.
//!
//! # What the caller promises (the header's conventions), and what we do ourselves
//!
//! 1. **Structs**: a struct pointer that is not NULL points to a live, aligned struct of its type, which the call
//!    may write if the parameter is not `const`, and which no other thread writes meanwhile (but for 7).
//! 2. **Strings**: a `char` pointer that is not NULL, as an argument or inside a struct, points to bytes that stay
//!    readable and unchanged up to their NUL until the call returns.
//! 3. **Copies, no references**: fields and structs of the caller are copied in and out through the raw pointer, and
//!    only those that the call needs (a C program may leave the others unset); no Rust reference to them is ever
//!    made, so arguments may alias (`child == parent`, `info == &child->info`).
//! 4. **Packed ids** have no alignment: they are only read and written unaligned.
//! 5. **Unions and enums**: `type` is read as a plain integer, every bit pattern of which is valid, and of which the lowest byte
//!    counts: it is all that a program sets which is compiled with -fshort-enums; both members of an annotation's value are
//!    eight bytes without invalid patterns, and the one that `type` names is used. The string in it falls under 2.
//! 6. **Passed on**: what the caller promised holds for what is handed on as it came, and what a function made or looked at
//!    itself is as it left it.
//! 7. **Names are shared**: the `id` of a `struct blkin_name` is ours, and all threads write it. Once it is initialised it is
//!    only ever seen as an atomic word.
//!
//! A panic never crosses into C: [`guard`] turns it into the function's error value, where there could be one. NULL is
//! checked before any write, so a call that returns `-EINVAL` has changed nothing.
//!
//! # Where the code lies
//!
//! A daemon's code is seldom in the caches when it comes to an annotation: each call in it, and each line, then costs a nanosecond or two
//! (docs/adr/0007-reading-the-clock.md). So what a request calls stands together, in the order in which it is called, in sections
//! `.text.sorted.blkin_N`, which GNU ld sorts by name; other linkers leave them where they are, which harms nothing.
//!
//! | N | |
//! |---|---|
//! | 1, 2, 3 | new spans: roots, children of other processes, children |
//! | 4 | an event of the older interface |
//! | 5 | restartable sequences, which the events jump to |
//! | 6, 7 | spans that are looked up once, and their events |
//! | 8, 9 | everything else that records |

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
mod span;
mod trace;
mod wire;

const OK: c_int = 0;
const INVALID: c_int = -libc::EINVAL;

/// Runs `body`, and answers `-EINVAL` should it panic. Inline: a function of its own would get the arguments by way of memory.
#[inline(always)]
fn guard(body: impl FnOnce() -> c_int) -> c_int {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(INVALID)
}

/// The bytes of a C string, no more than a record needs to know that it has to be cut; `None` for NULL.
///
/// # Safety
/// `text` is NULL or keeps Invariant 2 for as long as `'a`.
#[inline(always)]
unsafe fn bytes<'a>(text: *const c_char) -> Option<&'a [u8]> {
    // SAFETY: readable up to its NUL (by Invariant 2).
    (!text.is_null()).then(|| unsafe { process::string_bytes(text.cast()) })
}
