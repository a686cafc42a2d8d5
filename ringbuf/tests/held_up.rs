//! A program that holds the lock of its files for as long as it likes: it writes from memory of which one page never comes.

use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use blkin_ringbuf::UnreadReason;
use blkin_ringbuf::layout::CONTROL_BYTES;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::pwrite;
use rustix::mm::{MapFlags, ProtFlags, UserfaultfdFlags, mmap_anonymous, userfaultfd};

/// UFFDIO_API and UFFDIO_REGISTER with their arguments: the only version, without features; and the mode for missing pages.
const API: (libc::Ioctl, [u64; 3]) = (0xc018_aa3f_u32 as libc::Ioctl, [0xaa, 0, 0]);
const REGISTER: libc::Ioctl = 0xc020_aa00_u32 as libc::Ioctl;
const MISSING: u64 = 1;

/// A page that nobody supplies until the file is closed; the file reports everybody who waits for the page. `None` if this user
/// may not make the kernel wait.
fn page_that_never_comes() -> Option<(&'static [u8], std::fs::File)> {
    // SAFETY: no preconditions.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping of its own.
    let page = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, protection, MapFlags::PRIVATE) };
    let page = page.expect("a page");
    // SAFETY: only the page that is registered below waits for what is done with the descriptor, and nobody else knows that page.
    let faults = unsafe { userfaultfd(UserfaultfdFlags::CLOEXEC) }.ok()?;
    let (api, mut version) = API;
    // SAFETY: the kernel writes the three words.
    assert_eq!(unsafe { libc::ioctl(faults.as_raw_fd(), api, version.as_mut_ptr()) }, 0);
    let mut range = [page.addr() as u64, bytes as u64, MISSING, 0];
    // SAFETY: the kernel writes the four words.
    assert_eq!(unsafe { libc::ioctl(faults.as_raw_fd(), REGISTER, range.as_mut_ptr()) }, 0);
    // SAFETY: mapped, and never unmapped nor written.
    Some((unsafe { std::slice::from_raw_parts(page.cast(), bytes) }, faults.into()))
}

fn control_page() -> OwnedFd {
    let page = memfd_create("x", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("a memfd");
    ftruncate(&page, CONTROL_BYTES as u64).expect("it grows");
    fcntl_add_seals(&page, SealFlags::SHRINK | SealFlags::GROW).expect("it is sealed");
    page
}

#[test]
fn telling_a_program_does_not_wait_for_its_pending_write() {
    let Some((never, mut faults)) = page_that_never_comes() else {
        let _ = writeln!(std::io::stderr(), "not shown: this user may not handle page faults (userfaultfd)");
        return;
    };
    let control = control_page();
    let held = control.try_clone().expect("a descriptor");
    let writer = thread::spawn(move || pwrite(&held, &never[..8], 0));
    let mut fault = [0; 32];
    assert_eq!(faults.read(&mut fault).expect("the writer waits for the page"), fault.len());
    let (telling, told) = channel();
    thread::spawn(move || telling.send(UnreadReason::NoRoom.write_to(&control)));
    let told = told.recv_timeout(Duration::from_secs(30));
    assert!(matches!(told, Ok(Ok(()))), "{told:?}");
    drop(faults);
    assert_eq!(writer.join().expect("the writer does not panic"), Ok(8));
}
