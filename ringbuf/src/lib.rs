//! Per-CPU rings in shared memory through which traced programs hand annotations to the node's daemon.
//!
//! A program (the *producer* side, [`process`]) creates a segment, with one ring per slot and a table of names, and a
//! control page. The daemon (the *consumer* side, [`Attachment`]) maps the segment read-only: the kernel's seals
//! keep it from writing program memory. What either side reads from the other is input: masked, bounded, never
//! asserted on.
//!
//! # The ring
//!
//! ```text
//!  tail (consumer, control page)          head (producers, slot header)
//!   │                                      │
//!   ▼                                      ▼
//! ──┬────────┬────────┬╌╌╌╌╌╌╌╌┬──────────┬───────────────────────
//!   │ record │ record │  hole  │  record  │  free: stale bytes of the lap before
//! ──┴────────┴────────┴╌╌╌╌╌╌╌╌┴──────────┴───────────────────────
//! ```
//!
//! | state of a grain | word 0 | who may touch it | next |
//! |---|---|---|---|
//! | free | anything but the stamp of this position in this lap | producers, by moving head over it | reserved |
//! | reserved (a hole) | as before | only the writer that moved head | committed, or torn if that writer dies |
//! | committed | its true stamp | the consumer, reading | free, when tail has passed it |
//!
//! Head is one word, `[records: 28 bits | position: 36 bits]`. The portable producer moves head by compare-and-swap before it
//! writes, so that a reservation and its count are one event whatever signal or kill comes between. Where there are
//! restartable sequences ([`rseq`]) a ring has one writer at a time. It writes the record and its stamps first;
//! last, it moves head together with the count of attempts: there are no holes, and a record that is not committed never was.
//!
//! # Invariants
//!
//! 1. *Bounds.* Every index into a mapping is below its length: ring indices are masked with the producer's own
//!    capacity, all others are constants of [`layout`](mod@layout) or checked against the table they index.
//! 2. *Alive.* A mapping outlives every reference into it: the producer's is never unmapped once it is handed out, the
//!    consumer's is unmapped when the [`Attachment`] that lends it out is dropped.
//! 3. *Atomic words.* Shared memory is only ever seen as `AtomicU64`, aligned to 8 bytes: other processes may write
//!    to it at any time.
//! 4. *Exclusive writer.* Until tail passes it, a grain is written only by the thread whose compare-and-swap moved head
//!    over it. In a slot of the restartable sequences, only the thread that is inside a sequence of that slot writes, and
//!    only from head on. A ring is written in one of these two ways for its whole life.
//! 5. *Stamp last.* A record's head stamp is stored last, with release; a reader that sees it (acquire) sees the
//!    whole record. In a restartable sequence head is stored last; x86-64 keeps stores in order.
//! 6. *Tail after copy.* The consumer stores tail with release after its last load of what tail passes; a producer
//!    loads it with acquire before it writes there again.
//! 7. *Wiped on fork.* All process state lives in pages that the kernel wipes in a forked child, and segment
//!    mappings are not inherited: a child starts anew, and never writes where its parent does.
//! 8. *Permission.* A slot's ring is written only through the pointers of its [`HotSlot`](hot::HotSlot), which are null at
//!    first and are set (release) after the kernel has made the ring's pages writable. No sequence writes at or beyond the
//!    slot's `open`: there may be no memory from there on.
//! 9. *Oldest before reuse.* In an overwriting ring a grain is written again only after OLDEST has passed it, by a
//!    compare-and-swap of a thread that saw that the records there are committed. Each writer loads OLDEST (acquire), then
//!    fences (release), then writes; a reader copies, fences (acquire), loads OLDEST again and drops what lies before
//!    it: the rest of its copy is of this lap.
//! 10. *Own memory.* A system call that is made without a wrapper is passed only addresses of this frame's variables, with
//!     their true sizes.
//! 11. *Written before counted.* A place of [`Copies`](copies::Copies) counts as made only once all its bytes are written;
//!     places are written in order, one after the other.
//! 12. *No descriptor.* A thread that leaves its process's descriptor table uses no descriptor from then on; its own
//!     copies are closed when it ends.
//! 13. *Promised.* What an unsafe function requires (`# Safety`) holds inside it, also for arguments that it passes on unchanged.
//! 14. *Nothing asked.* Some instructions and calls have no preconditions: they touch no memory except what libc or the kernel
//!     keeps for them, and may be made at any time.
//! 15. *The thread's own.* errno and the rseq area are used by their own thread alone, at addresses that libc set before any
//!     code of the program ran.
//! 16. *Blocks.* Sixteen bytes are loaded only where the first byte may be read and the last lies in the same page, and stored
//!     only within an array whose end was checked.
//! 17. *Here.* Memory that is borrowed, lies in this frame or was just read is there, and stays as it is until the call returns.
//! 18. *Own descriptors.* A descriptor is closed by its sole owner. A descriptor number that was kept is closed only after a
//!     check that it still refers to the same file.
//!
//! # Memory orderings
//!
//! The SYNC POINTs: *commit* (stamp: release in `ring`, acquire in `drain`), *reuse* (tail: release in `attach`,
//! acquire in `ring`), *evict* and *overwrite* (OLDEST: invariant 9), *publish a name* (index: release and acquire in
//! `names`), *ready* (phase and slots in `process`), *look* (head: release in `ring`, acquire in `drain`, so that a reader of
//! several rings sees a thread's reservations in the order in which they were made). Everything else in `ring` and `drain` is
//! relaxed. Grains before head are judged by their stamps alone.
//!
//! ABA on head: a writer that sleeps between its load and its compare-and-swap is fooled only if both position
//! and count have returned to the loaded values: 2^36 grains (4 TiB) later at the earliest, to the grain.

mod attach;
mod clock;
mod control;
mod copies;
mod cpu;
mod cstring;
mod drain;
mod evict;
mod foreign;
mod hang_up;
mod hot;
mod image;
mod kept;
pub mod layout;
mod mapping;
mod names;
mod offer;
mod peer;
pub mod process;
#[cfg(test)]
mod protocol_tests;
mod recorder;
mod ring;
#[cfg(all(target_arch = "x86_64", target_os = "linux", not(blkin_portable)))]
mod rseq;
#[cfg(not(all(target_arch = "x86_64", target_os = "linux", not(blkin_portable))))]
#[path = "rseq/none.rs"]
mod rseq;
pub mod saved;
mod say;
mod segment;
mod settings;
mod shapes;
mod uncancelled;
mod unsignalled;
pub mod wake;
mod words;

pub use attach::{AttachError, Attachment, ProgramCounters, ProgramInfo, Writers};
pub use clock::{Anchor, ClockKind, ClockSeries, Counter, RingTime};
pub use control::{ControlPage, UnreadReason};
pub use drain::{Drained, Position, RingReader};
pub use foreign::open_foreign_memfd;
pub use hang_up::HangUp;
pub use layout::{ProducerKind, RingMode};
pub use names::{MAX_INTERNED_BYTES, Names, Texts};
pub use offer::{OFFER_BYTES, OFFER_MESSAGE};
pub use peer::{Peer, peer_of};
pub use recorder::RingCopy;
pub use ring::{Refused, Ring, RingShape};
pub use words::Words;
