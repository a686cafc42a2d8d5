//! Texts past which no memory may be read.

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect};

const PAGE: usize = 4096;

/// A page, and after it one that nobody may read.
pub(crate) struct GuardedPage(*mut u8);

impl GuardedPage {
    pub(crate) fn new() -> GuardedPage {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping of its own.
        let page = unsafe {
            mmap_anonymous(std::ptr::null_mut(), 2 * PAGE, protection, MapFlags::PRIVATE).expect("two pages")
        };
        // SAFETY: the second page of that.
        unsafe { mprotect(page.wrapping_byte_add(PAGE), PAGE, MprotectFlags::empty()).expect("a guard") };
        GuardedPage(page.cast())
    }

    /// Puts these bytes, among others, `after` bytes before the page's end. Returns their address, valid until the next call.
    pub(crate) fn put(&self, text: &[u8], after: usize) -> *const u8 {
        // SAFETY: this page; nobody else refers to it.
        let bytes = unsafe { std::slice::from_raw_parts_mut(self.0, PAGE) };
        bytes.fill(b'#');
        let start = PAGE - after - text.len();
        bytes[start..start + text.len()].copy_from_slice(text);
        bytes[start..].as_ptr()
    }
}
