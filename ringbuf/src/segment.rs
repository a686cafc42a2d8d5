//! Making a segment: the memfds, their seals and the program's mappings of them.

use std::ffi::{CStr, c_char, c_void};
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use blkin_record::Stamp;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fstat, ftruncate, memfd_create};
use rustix::io::{Errno, fcntl_dupfd_cloexec, pwrite};
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap, mprotect, munmap};
use rustix::param::page_size;

use crate::clock::{Anchor, ClockKind};
use crate::kept::KeptErrno;
use crate::layout::{
    self, CONTROL_BYTES, CONTROL_MAGIC, LAYOUT_VERSION, ProducerKind, RINGS_OFFSET_BYTES, RingMode,
    SEGMENT_MAGIC, control, header,
};
use crate::uncancelled::Uncancelled;
use crate::unsignalled::Unsignalled;

/// What [`create`] made: descriptors, and mappings that live as long as the process image (invariant 2).
pub(crate) struct Created {
    pub(crate) segment: Uncancelled,
    pub(crate) control: Uncancelled,
    pub(crate) segment_identity: Identity,
    pub(crate) control_identity: Identity,
    /// The whole segment; its rings are not accessible until [`open_ring`] opens them.
    pub(crate) words: &'static [AtomicU64],
    /// The control page, read-only.
    pub(crate) control_words: &'static [AtomicU64],
    pub(crate) cookie: u32,
}

/// Makes, maps and seals both memfds. Async-signal-safe. A limit of file sizes (RLIMIT_FSIZE) holds for them too: if it is
/// too small, the error is EFBIG. Everything has memory except the rings, and the texts after the first `text_bytes`.
pub(crate) fn create(
    (ring_bytes, slots): (usize, usize),
    text_bytes: usize,
    mode: RingMode,
    producer: ProducerKind,
    clock: ClockKind,
    random: u64,
) -> Result<Created, Errno> {
    let _unsignalled = Unsignalled::new();
    let bytes = layout::segment_bytes(slots, ring_bytes);
    let segment = sized_memfd(c"blkin-segment", bytes)?;
    let control = sized_memfd(c"blkin-control", CONTROL_BYTES)?;
    write_control_header(&control, slots)?;
    // Mapped before the seal that forbids new writable mappings; without access to the rings, so that mlockall and
    // core dumps find nothing there.
    let words = Mapped::new(&segment, bytes, ProtFlags::empty())?;
    open_for_writing(words.words(), 0, RINGS_OFFSET_BYTES)?;
    populate(words.words(), 0..layout::text_at(0) + text_bytes)?;
    populate(words.words(), layout::slot_header(0) * 8..layout::slot_header(slots) * 8)?;
    let control_words = Mapped::new(&control, CONTROL_BYTES, ProtFlags::READ)?;
    fcntl_add_seals(&segment, SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE)?;
    fcntl_add_seals(&control, SealFlags::SHRINK | SealFlags::GROW)?;
    let created = Created {
        segment_identity: Identity::of(&segment)?,
        control_identity: Identity::of(&control)?,
        segment,
        control,
        words: words.keep(),
        control_words: control_words.keep(),
        cookie: Stamp::cookie_from(random),
    };
    write_header(&created, (ring_bytes, slots), mode, producer, clock);
    Ok(created)
}

pub(crate) fn sized_memfd(name: &CStr, bytes: usize) -> Result<Uncancelled, Errno> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = match memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
        // Kernels before 6.3 do not know the flag.
        Err(Errno::INVAL) => memfd_create(name, flags)?,
        other => other?,
    };
    let fd = Uncancelled::from(fd);
    // The standard descriptors belong to the program, even when it has closed them.
    let fd = if fd.as_raw_fd() <= libc::STDERR_FILENO {
        fcntl_dupfd_cloexec(&fd, libc::STDERR_FILENO + 1)?.into()
    } else {
        fd
    };
    ftruncate(&fd, bytes as u64)?;
    Ok(fd)
}

/// Writes the header and, if it lies in another page, the last slot's line, so that all the program reads there has memory.
fn write_control_header(fd: &Uncancelled, slots: usize) -> Result<(), Errno> {
    const _: () = assert!(control::MAGIC == 0 && control::VERSION == 1);
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&CONTROL_MAGIC.to_le_bytes());
    bytes[8..].copy_from_slice(&LAYOUT_VERSION.to_le_bytes());
    write_at(fd, &bytes, 0)?;
    let last_line = control::slot_line(slots - 1) * 8;
    if last_line < layout::PAGE_BYTES { Ok(()) } else { write_at(fd, &[0], last_line) }
}

fn write_at(fd: &Uncancelled, bytes: &[u8], offset: usize) -> Result<(), Errno> {
    if pwrite(fd, bytes, offset as u64)? == bytes.len() { Ok(()) } else { Err(Errno::IO) }
}

/// What `blkin set` has said about a process, which a forked child takes over: these words of its control page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InheritedSettings {
    blocked: u64,
    rate: u64,
}

impl InheritedSettings {
    /// What this control page says. Async-signal-safe, and makes no other calls than a start makes anyway.
    pub(crate) fn of(control: impl AsFd) -> Result<InheritedSettings, Errno> {
        let mapped = Mapped::new(control, CONTROL_BYTES, ProtFlags::READ)?;
        let word = |index: usize| mapped.words()[index].load(Relaxed);
        Ok(InheritedSettings { blocked: word(control::BLOCKED), rate: word(control::RATE) })
    }

    /// Writes the same into the page of a new process, before a consumer has it.
    pub(crate) fn write_to(self, control: &Uncancelled) -> Result<(), Errno> {
        write_at(control, &self.blocked.to_le_bytes(), control::BLOCKED * 8)?;
        write_at(control, &self.rate.to_le_bytes(), control::RATE * 8)
    }
}

/// A mapping that is unmapped again unless it is kept: a program that tries to start again and again leaves none behind.
struct Mapped {
    start: *mut c_void,
    bytes: usize,
}

impl Mapped {
    fn new(fd: impl AsFd, bytes: usize, access: ProtFlags) -> Result<Mapped, Errno> {
        // SAFETY: a new mapping at a place of the kernel's choice touches nothing that exists (invariant 2).
        let start = unsafe { mmap(ptr::null_mut(), bytes, access, MapFlags::SHARED, fd, 0)? };
        let mapped = Mapped { start, bytes };
        // Neither a core dump nor a forked child needs it (invariant 7).
        for advice in [Advice::LinuxDontDump, Advice::LinuxDontFork] {
            // SAFETY: the range is the mapping that was just made, and nobody knows it yet (invariant 2).
            unsafe { madvise(start, bytes, advice)? };
        }
        Ok(mapped)
    }

    fn words(&self) -> &[AtomicU64] {
        // SAFETY: page-aligned, `bytes` long, mapped for as long as this is borrowed (invariant 2), only seen as atomic
        // words (invariant 3); its pages are touched only where access was given (invariant 8).
        unsafe { std::slice::from_raw_parts(self.start.cast::<AtomicU64>(), self.bytes / 8) }
    }

    /// Keeps it mapped for as long as the process image lives.
    fn keep(self) -> &'static [AtomicU64] {
        let kept = ManuallyDrop::new(self);
        // SAFETY: as in `words`; from here on it is never unmapped (invariant 2).
        unsafe { std::slice::from_raw_parts(kept.start.cast::<AtomicU64>(), kept.bytes / 8) }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: our own mapping, which was not kept, and to which no reference is left (invariant 2).
        let _ = unsafe { munmap(self.start, self.bytes) };
    }
}

/// Gives write access to `bytes` from `offset` of a segment's mapping.
fn open_for_writing(words: &[AtomicU64], offset: usize, bytes: usize) -> Result<(), Errno> {
    let part = part(words, offset..offset + bytes)?;
    let access = MprotectFlags::READ | MprotectFlags::WRITE;
    // SAFETY: the range lies within our own mapping (invariants 1 and 2); more access invalidates no reference.
    unsafe { mprotect(part.as_ptr() as *mut _, size_of_val(part), access) }
}

/// These bytes of a segment, from the beginning of the kernel's page in which they begin: the kernel's pages may be larger than
/// those of the layout. A child that was forked since the caller looked has no segment.
fn part(words: &[AtomicU64], bytes: Range<usize>) -> Result<&[AtomicU64], Errno> {
    let start = bytes.start / page_size() * page_size();
    words.get(start / 8..bytes.end / 8).ok_or(Errno::FAULT)
}

/// Makes a slot's ring writable. Idempotent. Async-signal-safe.
pub(crate) fn open_ring(words: &[AtomicU64], slot: usize, ring_bytes: usize) -> Result<(), Errno> {
    open_for_writing(words, layout::ring_words(slot, ring_bytes).start * 8, ring_bytes)
}

/// Has the kernel fill in the pages of these bytes of a segment, so that they cost no page faults, and so that a lack of memory
/// is an error here instead of a signal there. Idempotent. Async-signal-safe.
pub(crate) fn populate(words: &[AtomicU64], bytes: Range<usize>) -> Result<(), Errno> {
    let part = part(words, bytes)?;
    // SAFETY: the range lies within our own mapping (invariants 1 and 2); populating changes no content.
    match unsafe { madvise(part.as_ptr() as *mut _, size_of_val(part), Advice::LinuxPopulateWrite) } {
        // Kernels before 5.14 do not know the advice: pages then come one by one.
        Ok(()) | Err(Errno::INVAL) => Ok(()),
        // Touching these pages would be SIGBUS: no more memory may be promised (`vm.overcommit_memory` 2).
        Err(Errno::FAULT) => Err(Errno::NOMEM),
        Err(error) => Err(error),
    }
}

/// As [`populate`], for these bytes of a slot's ring.
pub(crate) fn populate_ring(
    words: &[AtomicU64],
    slot: usize,
    ring_bytes: usize,
    bytes: Range<usize>,
) -> Result<(), Errno> {
    let ring = layout::ring_words(slot, ring_bytes).start * 8;
    populate(words, ring + bytes.start..ring + bytes.end)
}

fn write_header(
    created: &Created,
    (ring_bytes, slots): (usize, usize),
    mode: RingMode,
    producer: ProducerKind,
    clock: ClockKind,
) {
    let anchor = Anchor::now(clock);
    let [name, rest_of_name] = own_name();
    let fields = [
        (header::VERSION, LAYOUT_VERSION),
        (header::RECORD_VERSION, u64::from(blkin_record::VERSION)),
        (header::RING_BYTES, ring_bytes as u64),
        (header::SLOTS, slots as u64),
        (header::PID, u64::from(std::process::id())),
        (header::COOKIE, u64::from(created.cookie)),
        (header::CLOCK_KIND, clock.to_word()),
        (header::ANCHOR_RAW, anchor.raw),
        (header::ANCHOR_MONOTONIC, anchor.monotonic_ns as u64),
        (header::ANCHOR_REALTIME, anchor.realtime_ns as u64),
        (header::MODE, mode.to_word()),
        (header::PRODUCER, producer.to_word()),
        (header::UNOPENED, layout::all_slots(slots)),
        (header::NAME, name),
        (header::NAME + 1, rest_of_name),
        (header::MAGIC, SEGMENT_MAGIC),
    ];
    for (index, value) in fields {
        created.words[index].store(value, Relaxed);
    }
}

/// The name of the file that this process was started from, as much of it as the kernel takes for the process's own name;
/// zeros if nobody knows. Without a system call, which a program with a filter would not survive. Async-signal-safe.
fn own_name() -> [u64; 2] {
    let _errno = KeptErrno::new();
    // SAFETY: no preconditions (invariant 14).
    let path = unsafe { libc::getauxval(libc::AT_EXECFN) } as *const c_char;
    let mut bytes = [0; 16];
    if !path.is_null() {
        // SAFETY: a C string that the kernel put after the environment before any code of the program ran, and that stays
        // (invariant 17).
        let path = unsafe { CStr::from_ptr(path) }.to_bytes();
        let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        let length = name.len().min(bytes.len() - 1);
        bytes[..length].copy_from_slice(&name[..length]);
    }
    let (words, _) = bytes.as_chunks();
    [words[0], words[1]].map(u64::from_le_bytes)
}

/// Which file a descriptor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) device: u64,
    pub(crate) inode: u64,
}

impl Identity {
    fn of(fd: impl AsFd) -> Result<Identity, Errno> {
        let stat = fstat(fd)?;
        Ok(Identity { device: stat.st_dev, inode: stat.st_ino })
    }
}

/// Whether `fd` is still that file: a daemon that closed every descriptor may have another file there.
pub(crate) fn is_still(fd: impl AsFd, identity: Identity) -> bool {
    Identity::of(fd) == Ok(identity)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_dropped_mapping_is_unmapped() {
        let fd = sized_memfd(c"blkin-test-gone", 4096).expect("a memfd");
        let is_there = || {
            std::fs::read_to_string("/proc/self/maps").expect("/proc is there").contains("blkin-test-gone")
        };
        let mapped = Mapped::new(&fd, 4096, ProtFlags::READ).expect("it is mapped");
        assert!(is_there());
        drop(mapped);
        assert!(!is_there());
    }

    /// Whether a page that was to be populated is there afterwards.
    fn populates(is_there: impl Fn(&Uncancelled) -> bool) -> bool {
        let fd = sized_memfd(c"blkin-test-populate", layout::PAGE_BYTES).expect("a memfd");
        let mapped =
            Mapped::new(&fd, layout::PAGE_BYTES, ProtFlags::READ | ProtFlags::WRITE).expect("it is mapped");
        populate(mapped.words(), 0..layout::PAGE_BYTES).is_ok() && is_there(&fd)
    }

    #[test]
    fn memory_outside_the_rings_is_populated_from_the_start() {
        let text_bytes = 5000;
        let created = create(
            (4096, layout::MAX_SLOTS),
            text_bytes,
            RingMode::Discard,
            ProducerKind::Portable,
            ClockKind::Monotonic,
            1,
        )
        .expect("a segment");
        // Where a file has no page there is a hole.
        let first_hole = |fd: &Uncancelled, from: usize| {
            rustix::fs::seek(fd, rustix::fs::SeekFrom::Hole(from as u64))
                .expect("the file has a hole or an end") as usize
        };
        // The same holds under qemu-user, which does not pass on advice that it does not know.
        if !populates(|fd| first_hole(fd, 0) > 0) {
            let _ =
                writeln!(std::io::stderr(), "not shown: this kernel populates nothing when it is asked to");
            return;
        }
        let lines = layout::slot_header(0) * 8..layout::slot_header(layout::MAX_SLOTS) * 8;
        let control_lines = control::slot_line(layout::MAX_SLOTS) * 8;
        assert!(first_hole(&created.segment, 0) >= layout::text_at(0) + text_bytes);
        assert!(first_hole(&created.segment, lines.start) >= lines.end);
        assert!(first_hole(&created.control, 0) >= control_lines);
    }
}
