//! What a consumer tells one program: a handle on its control page that any thread may hold.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use rustix::fs::{SealFlags, fcntl_get_seals, fstat};
use rustix::mm::ProtFlags;
use rustix::time::{ClockId, clock_gettime};

use crate::attach::AttachError;
use crate::layout::{CONTROL_BYTES, control};
use crate::mapping::Mapping;

/// Why a consumer does not read a program that offered itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnreadReason {
    /// Its library writes what this consumer cannot read.
    Version,
    /// There are too many programs already.
    NoRoom,
}

impl UnreadReason {
    fn to_word(self) -> u64 {
        match self {
            UnreadReason::Version => 1,
            UnreadReason::NoRoom => 2,
        }
    }

    pub(crate) fn from_word(word: u64) -> Option<UnreadReason> {
        match word {
            1 => Some(UnreadReason::Version),
            2 => Some(UnreadReason::NoRoom),
            _ => None,
        }
    }

    /// What a consumer has told a program, read from its control page; `None` if nothing, or if the page cannot be read.
    pub fn read_from(page: &File) -> Option<UnreadReason> {
        let mut word = [0; size_of::<u64>()];
        let at = size_of_val(&word) * control::UNREAD;
        page.read_exact_at(&mut word, at as u64).ok()?;
        UnreadReason::from_word(u64::from_ne_bytes(word))
    }

    /// Tells the program, through its control page, which need not be mapped. The program says so on its standard error, and
    /// offers itself less often.
    ///
    /// # Errors
    /// When the page cannot be mapped. Only the program itself, or lack of memory, can cause that.
    pub fn write_to(self, control: &OwnedFd) -> Result<(), AttachError> {
        // A write to the file would wait for whoever else is writing it: a program could make it wait for ever.
        ControlPage::open(control)?.word(control::UNREAD).store(self.to_word(), Relaxed);
        Ok(())
    }
}

/// A program's control page. It stays mapped as long as one handle on it, or its [`Attachment`], lives.
///
/// The program can write the page too: what is read from it is no evidence about the program.
///
/// [`Attachment`]: crate::Attachment
#[derive(Clone)]
pub struct ControlPage(Arc<Mapping>);

impl ControlPage {
    pub(crate) fn new(page: Arc<Mapping>) -> Self {
        Self(page)
    }

    /// Maps a control page by itself, without its segment.
    ///
    /// # Errors
    /// When the descriptor is not sealed memory of the right size, or cannot be mapped.
    pub fn open(fd: &OwnedFd) -> Result<ControlPage, AttachError> {
        const NEEDED: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);
        if !fcntl_get_seals(fd).is_ok_and(|seals| seals.contains(NEEDED)) {
            return Err(AttachError::NotSealed("control page"));
        }
        let stat = fstat(fd).map_err(|error| AttachError::System("stat the control page", error))?;
        if stat.st_size != CONTROL_BYTES as i64 {
            return Err(AttachError::Size("control page", stat.st_size));
        }
        let page = Mapping::of(fd, CONTROL_BYTES, ProtFlags::READ | ProtFlags::WRITE)?;
        Ok(ControlPage(Arc::new(page)))
    }

    /// Levels that the program is not to record, bit n for level n; 0xff turns recording off. Takes effect with its next call.
    pub fn block_levels(&self, levels: u8) {
        self.word(control::BLOCKED).store(u64::from(levels), Relaxed);
    }

    /// N: the program is to trace one in N roots; 0: as its environment says.
    pub fn set_rate(&self, rate: u64) {
        self.word(control::RATE).store(rate, Relaxed);
    }

    /// Shows a program whose rings are not drained that a consumer holds it all the same.
    pub fn beat(&self) {
        let beat = self.word(control::BEAT);
        // No atomic addition: only one consumer has the program.
        beat.store(beat.load(Relaxed).wrapping_add(1), Relaxed);
    }

    /// Asks the program to wake its consumer when one of its heads passes an eighth of a ring of which three eighths or more
    /// are unread; or asks no longer. A program that has ended one sleep calls again only for another: each call of this begins
    /// a new sleep, told from others by the monotonic clock's nanoseconds within a second.
    ///
    /// Ordered before later reads of the rings, so that a caller that then looks at the heads misses only records whose writers
    /// had not seen this request yet.
    pub fn set_sleeping(&self, is_sleeping: bool) {
        let sleep = clock_gettime(ClockId::Monotonic).tv_nsec as u64;
        let word = if is_sleeping { sleep << 32 | u64::from(control::ASLEEP) } else { 0 };
        self.word(control::SLEEPING).store(word, SeqCst);
        std::sync::atomic::fence(SeqCst);
    }

    /// Whether the page asks the program to wake its consumer.
    pub fn is_sleeping(&self) -> bool {
        self.sleeping().load(Relaxed) as u32 == control::ASLEEP
    }

    /// The word on which [`wake`](crate::wake) waits.
    pub(crate) fn sleeping(&self) -> &AtomicU64 {
        self.word(control::SLEEPING)
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        &self.0.words()[index]
    }
}

impl std::fmt::Debug for ControlPage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("ControlPage").field(&self.0.words().as_ptr()).finish()
    }
}
