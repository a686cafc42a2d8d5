//! What becomes of the struct that a call should have filled in, when the call returns `-EINVAL`.
//!
//! Many programs ignore what the calls return, and go on with a struct on their stack. Therefore nothing is left in it that could
//! be taken for the ids of a sampled span, or for an address. These functions are cold, and take the first arguments of their
//! callers unchanged; the result is hidden from the compiler, because the callers would otherwise save a register in order to
//! return it themselves. So the callers' other paths do not become longer.

use std::ffi::c_int;
use std::hint::black_box;
use std::ptr;

use super::INVALID;

/// The C structs that calls fill in.
///
/// # Safety
/// All zeros are a valid value of the type.
pub(super) unsafe trait Zeroable {}

/// Sets `out` to zeros, unless it is NULL. Returns `-EINVAL`. Nothing in here panics.
///
/// # Safety
/// Invariants 1 and 4 for `out`.
#[cold]
#[inline(never)]
pub(super) unsafe extern "C" fn refuse<T: Zeroable>(out: *mut T) -> c_int {
    // SAFETY: passed on from the caller (Invariant 6).
    unsafe { refuse_keeping(out, ptr::null::<T>()) }
}

/// As [`refuse`], but keeps those bytes of `out` that belong to `source`, which the caller may still need.
///
/// # Safety
/// As [`refuse`]; `source` is not read.
#[cold]
#[inline(never)]
pub(super) unsafe extern "C" fn refuse_keeping<T: Zeroable, S>(out: *mut T, source: *const S) -> c_int {
    if !out.is_null() {
        let first = out.cast::<u8>();
        for byte in (0..size_of::<T>()).map(|at| first.wrapping_add(at)) {
            // No struct lies at address 0, so no byte is kept for a source that is NULL.
            if byte.addr().wrapping_sub(source.addr()) >= size_of::<S>() {
                // SAFETY: a byte of a live struct that may be written (by Invariant 1), set to a valid value (by Invariant 8).
                unsafe { byte.write(0) };
            }
        }
    }
    black_box(INVALID)
}

#[cfg(test)]
mod tests {
    use super::*;

    // SAFETY: bytes, of which any value is valid.
    unsafe impl Zeroable for [u8; 4] {}

    #[test]
    fn exactly_those_bytes_are_kept_that_belong_to_the_source() {
        // The source has three bytes; `kept` are the bytes 4 to 7 afterwards.
        for (source, kept) in [
            (0, [0, 0, 0, 0]),
            (1, [0, 0, 0, 0]),
            (2, [9, 0, 0, 0]),
            (4, [9, 9, 9, 0]),
            (6, [0, 0, 9, 9]),
            (8, [0, 0, 0, 0]),
        ] {
            let mut memory = [9u8; 12];
            let first = memory.as_mut_ptr();
            let source = first.wrapping_add(source).cast::<[u8; 3]>();
            // SAFETY: four bytes of an array that nothing else uses now (Invariant 1).
            let answer = unsafe { refuse_keeping(first.wrapping_add(4).cast::<[u8; 4]>(), source) };
            assert_eq!(answer, INVALID);
            assert_eq!((&memory[..4], &memory[4..8], &memory[8..]), (&[9; 4][..], &kept[..], &[9; 4][..]));
        }
    }

    #[test]
    fn without_a_source_the_whole_struct_becomes_zeros() {
        let mut memory = [9u8; 4];
        // SAFETY: an array that nothing else uses now (Invariant 1).
        assert_eq!(unsafe { refuse(&raw mut memory) }, INVALID);
        assert_eq!(memory, [0; 4]);
        // SAFETY: NULL is allowed (Invariant 1).
        assert_eq!(unsafe { refuse(ptr::null_mut::<[u8; 4]>()) }, INVALID);
    }
}
