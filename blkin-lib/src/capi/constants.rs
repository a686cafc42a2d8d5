//! The core annotations, as the `const char *const` objects that `zipkin_c.h` declares.

use std::ffi::{CStr, c_char};

/// `const char *const`: a pointer to a literal.
#[repr(transparent)]
pub(super) struct Text(*const c_char);

// SAFETY: it points to a string literal, which nothing ever writes (Invariant 6).
unsafe impl Sync for Text {}

const fn text(literal: &'static CStr) -> Text {
    Text(literal.as_ptr())
}

/// "cs".
#[unsafe(no_mangle)]
pub(super) static CLIENT_SEND: Text = text(c"cs");
/// "cr".
#[unsafe(no_mangle)]
pub(super) static CLIENT_RECV: Text = text(c"cr");
/// "ss".
#[unsafe(no_mangle)]
pub(super) static SERVER_SEND: Text = text(c"ss");
/// "sr".
#[unsafe(no_mangle)]
pub(super) static SERVER_RECV: Text = text(c"sr");
/// "ws".
#[unsafe(no_mangle)]
pub(super) static WIRE_SEND: Text = text(c"ws");
/// "wr".
#[unsafe(no_mangle)]
pub(super) static WIRE_RECV: Text = text(c"wr");
/// "csf".
#[unsafe(no_mangle)]
pub(super) static CLIENT_SEND_FRAGMENT: Text = text(c"csf");
/// "crf".
#[unsafe(no_mangle)]
pub(super) static CLIENT_RECV_FRAGMENT: Text = text(c"crf");
/// "ssf".
#[unsafe(no_mangle)]
pub(super) static SERVER_SEND_FRAGMENT: Text = text(c"ssf");
/// "srf".
#[unsafe(no_mangle)]
pub(super) static SERVER_RECV_FRAGMENT: Text = text(c"srf");
