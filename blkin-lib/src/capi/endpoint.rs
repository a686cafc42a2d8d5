//! `blkin_init_endpoint`.

use std::ffi::{c_char, c_int};

use super::layout::Endpoint;
use super::{INVALID, OK, guard};

/// See `zipkin_c.h`. Takes the port as a full `int`: callers of the original branch pass an `int`. Of other callers, which pass
/// an `int16_t`, only the low 16 bits of the register are defined.
///
/// # Safety
/// Invariants 1 and 2.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn blkin_init_endpoint(
    endpoint: *mut Endpoint,
    ip: *const c_char,
    port: c_int,
    name: *const c_char,
) -> c_int {
    guard(|| {
        if endpoint.is_null() {
            return INVALID;
        }
        // SAFETY: a live struct that may be written (by Invariant 1), written whole (by Invariant 3).
        unsafe { endpoint.write(Endpoint { ip, port: port & 0xffff, name }) };
        OK
    })
}
