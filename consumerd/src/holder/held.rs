//! The programs whose descriptors are held, within quotas.
//!
//! A program that has ended and is drained still counts until all its frames are retired and the worker releases it: the frames
//! hold raw records, and only the program's segment has the names that a new worker needs to read them. It really occupies its
//! memory until then, too: its seals forbid punching holes, so the rings cannot be freed without the names. Before such programs
//! fill a quota, the worker gives up the oldest frames that keep them.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{FileType, FsWord, SealFlags, fcntl_get_seals, fstat, fstatfs};

use super::released_programs::ReleasedPrograms;
use crate::config::Config;
use crate::link::Program;

/// The kernel's magic number for the file system of memory files. Memory files of huge pages have another one and are refused:
/// where no huge page is free they cannot be mapped, which a starting worker would take for a passing shortage.
const TMPFS: FsWord = 0x0102_1994;

/// Device and inode of a segment.
pub type Identity = (u64, u64);

/// One held program.
#[derive(Debug)]
pub struct Held {
    /// The program as the kernel describes it.
    pub program: Program,
    /// Its segment.
    pub segment: OwnedFd,
    /// Its control page.
    pub control: OwnedFd,
    /// The program has been named to the current worker.
    pub is_announced: bool,
    /// Device and inode of its segment.
    pub identity: Identity,
    bytes: u64,
}

/// Why an offer was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The message or its descriptors are not an offer.
    Malformed,
    /// The user or the machine has too many programs.
    Quota,
    /// It is held already; programs repeat their offers.
    AlreadyHeld,
    /// Another daemon reads it.
    Elsewhere,
}

#[derive(Debug, Default)]
struct Share {
    programs: usize,
    bytes: u64,
}

/// All held programs.
#[derive(Debug)]
pub struct HeldPrograms {
    programs: BTreeMap<u64, Held>,
    by_identity: HashMap<Identity, u64>,
    by_uid: HashMap<u32, Share>,
    released: ReleasedPrograms,
    /// Numbers of programs that the previous daemon held.
    reserved_numbers: HashMap<Identity, u64>,
    next_number: u64,
    max_programs: usize,
    max_per_uid: usize,
    max_bytes_per_uid: u64,
}

impl HeldPrograms {
    /// Starts without any program, with the quotas of `config`.
    pub fn new(config: &Config) -> Self {
        Self {
            programs: BTreeMap::new(),
            by_identity: HashMap::new(),
            by_uid: HashMap::new(),
            released: ReleasedPrograms::default(),
            reserved_numbers: HashMap::new(),
            next_number: 1,
            max_programs: config.max_programs,
            max_per_uid: config.max_programs_per_uid,
            max_bytes_per_uid: config.max_shared_bytes_per_uid,
        }
    }

    /// Checks whether a program would be admitted.
    ///
    /// # Errors
    /// The reason why it would not.
    pub fn check(&self, program: &Program, segment: &OwnedFd, control: &OwnedFd) -> Result<(), Refusal> {
        self.measure(program, segment, control).map(|_| ())
    }

    /// The segment's identity, and the bytes of segment and control page.
    fn measure(
        &self,
        program: &Program,
        segment: &OwnedFd,
        control: &OwnedFd,
    ) -> Result<(Identity, u64), Refusal> {
        let (identity, segment_bytes) = memfd_file(segment).map_err(|_| Refusal::Malformed)?;
        let (_, control_bytes) = memfd_file(control).map_err(|_| Refusal::Malformed)?;
        if self.by_identity.contains_key(&identity) || self.released.has(&identity) {
            return Err(Refusal::AlreadyHeld);
        }
        let bytes = segment_bytes.saturating_add(control_bytes);
        match self.without_room(program.uid, bytes) {
            None => Ok((identity, bytes)),
            Some(_) => Err(Refusal::Quota),
        }
    }

    /// The setting to raise so that a program of this user with so much memory fits; `None` if it fits.
    fn without_room(&self, uid: u32, bytes: u64) -> Option<&'static str> {
        let share = self.by_uid.get(&uid);
        let (programs, held_bytes) = share.map_or((0, 0), |share| (share.programs, share.bytes));
        if programs >= self.max_per_uid {
            Some("max_programs_per_uid")
        } else if held_bytes.saturating_add(bytes) > self.max_bytes_per_uid {
            Some("max_shared_bytes_per_uid")
        } else if self.programs.len() >= self.max_programs {
            Some("max_programs, or the limit of open files")
        } else {
            None
        }
    }

    /// The setting to raise so that a program [refused for a quota](Refusal::Quota) fits; `None` if it fits by now.
    pub fn to_raise(&self, program: &Program, segment: &OwnedFd, control: &OwnedFd) -> Option<&'static str> {
        let [segment, control] = [segment, control].map(|fd| memfd_file(fd).map_or(0, |(_, bytes)| bytes));
        self.without_room(program.uid, segment.saturating_add(control))
    }

    /// Holds a program's descriptors, unless it is refused. It gets the number that is [reserved](Self::reserve_number) for it,
    /// if there is one.
    ///
    /// # Errors
    /// The reason for the refusal; the descriptors are closed then.
    pub fn admit(
        &mut self,
        mut program: Program,
        segment: OwnedFd,
        control: OwnedFd,
    ) -> Result<u64, Refusal> {
        let (identity, bytes) = self.measure(&program, &segment, &control)?;
        let number =
            self.reserved_numbers.get(&identity).filter(|number| !self.programs.contains_key(number));
        program.number = number.copied().unwrap_or(self.next_number);
        Ok(self.hold(Held { program, segment, control, is_announced: false, identity, bytes }))
    }

    /// Like [`admit`](Self::admit), under the number in `program`, which the previous daemon gave it.
    ///
    /// # Errors
    /// Those of [`admit`](Self::admit).
    pub fn restore(&mut self, program: Program, segment: OwnedFd, control: OwnedFd) -> Result<u64, Refusal> {
        let (identity, bytes) = self.measure(&program, &segment, &control)?;
        Ok(self.hold(Held { program, segment, control, is_announced: false, identity, bytes }))
    }

    fn hold(&mut self, held: Held) -> u64 {
        let share = self.by_uid.entry(held.program.uid).or_default();
        share.programs += 1;
        share.bytes += held.bytes;
        let number = held.program.number;
        self.count_from(number.saturating_add(1));
        self.by_identity.insert(held.identity, number);
        self.programs.insert(number, held);
        number
    }

    /// From now on the program that offers this segment gets this number again.
    pub fn reserve_number(&mut self, identity: Identity, number: u64) {
        self.reserved_numbers.insert(identity, number);
    }

    /// Whether the program that offers this segment would get its earlier number again.
    pub fn has_reserved_number(&self, segment: &OwnedFd) -> bool {
        memfd_file(segment).is_ok_and(|(identity, _)| self.reserved_numbers.contains_key(&identity))
    }

    /// From now on every admitted program gets a new number.
    pub fn drop_reserved_numbers(&mut self) {
        self.reserved_numbers.clear();
    }

    /// From now on no number below this one is given out.
    pub fn count_from(&mut self, number: u64) {
        self.next_number = self.next_number.max(number);
    }

    /// The number that the next program gets.
    pub fn next_number(&self) -> u64 {
        self.next_number
    }

    /// The program with this number.
    pub fn get(&self, number: u64) -> Option<&Held> {
        self.programs.get(&number)
    }

    /// Releases a program. Another offer of it may lie in a connection that is not handled yet: so many have been `handled`.
    pub fn release(&mut self, number: u64, handled: u64) -> Option<Held> {
        let held = self.programs.remove(&number)?;
        self.by_identity.remove(&held.identity);
        self.released.add(held.identity, handled);
        if let Some(share) = self.by_uid.get_mut(&held.program.uid) {
            share.programs -= 1;
            share.bytes -= held.bytes;
            if share.programs == 0 {
                self.by_uid.remove(&held.program.uid);
            }
        }
        Some(held)
    }

    /// Forgets released programs of which no further offer can come; so many connections have been `handled` by now.
    pub fn forget_released(&mut self, handled: u64, is_anyone_waiting: bool) {
        self.released.forget(handled, is_anyone_waiting);
    }

    /// Every program, with its number.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &Held)> {
        self.programs.iter().map(|(number, held)| (*number, held))
    }

    /// Every program that has not been named to the worker, oldest first.
    pub fn unannounced(&mut self) -> impl Iterator<Item = &mut Held> {
        self.programs.values_mut().filter(|held| !held.is_announced)
    }

    /// A new worker has started, to which no program has been named.
    pub fn reset_announced(&mut self) {
        self.programs.values_mut().for_each(|held| held.is_announced = false);
    }

    /// How many are held.
    pub fn len(&self) -> usize {
        self.programs.len()
    }

    /// Whether none is held.
    pub fn is_empty(&self) -> bool {
        self.programs.is_empty()
    }
}

/// Device and inode of a segment; `None` if the file cannot be one.
pub(super) fn identity_of(segment: &OwnedFd) -> Option<Identity> {
    memfd_file(segment).ok().map(|(identity, _)| identity)
}

/// Whether a descriptor belongs to a sealed memfd, which can be closed without waiting.
pub(super) fn is_memfd(fd: &OwnedFd) -> bool {
    memfd_file(fd).is_ok()
}

/// Identity and size of a memfd. Anything else is refused without a call into its file system, which may be a
/// program's own (FUSE) and never answer: only memory files have seals, and the kernel itself says so.
fn memfd_file(fd: impl AsFd) -> io::Result<(Identity, u64)> {
    if !fcntl_get_seals(&fd)?.contains(SealFlags::SHRINK | SealFlags::GROW) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let stat = fstat(&fd)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || fstatfs(fd)?.f_type != TMPFS {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    Ok(((stat.st_dev, stat.st_ino), u64::try_from(stat.st_size).unwrap_or(u64::MAX)))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, fcntl_add_seals, memfd_create};

    /// A memory file like those that programs offer.
    pub(in crate::holder) fn memfd() -> OwnedFd {
        let fd = memfd_create("x", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW).unwrap();
        fd
    }

    fn program(uid: u32) -> Program {
        Program { number: 0, uid, pid: 1, comm: "x".into() }
    }

    #[test]
    fn a_repeated_offer_is_held_once() {
        let mut held = HeldPrograms::new(&Config::default());
        let (segment, control) = (memfd(), memfd());
        let again = (segment.try_clone().unwrap(), control.try_clone().unwrap());
        assert_eq!(held.admit(program(1), segment, control), Ok(1));
        assert_eq!(held.admit(program(1), again.0, again.1), Err(Refusal::AlreadyHeld));
        held.release(1, 0);
        assert!(held.is_empty());
    }

    #[test]
    fn a_restored_program_keeps_its_number_exclusively() {
        let mut held = HeldPrograms::new(&Config::default());
        held.count_from(5);
        let before = Program { number: 7, ..program(1) };
        assert_eq!(held.restore(before.clone(), memfd(), memfd()), Ok(7));
        assert_eq!(held.admit(program(1), memfd(), memfd()), Ok(8));
        assert_eq!(held.get(7).map(|held| &held.program), Some(&before));
        held.count_from(3);
        assert_eq!(held.next_number(), 9);
    }

    #[test]
    fn a_program_gets_its_reserved_number_unless_that_is_taken() {
        let mut held = HeldPrograms::new(&Config::default());
        held.count_from(5);
        let [kept, found, late] = [memfd(), memfd(), memfd()];
        held.reserve_number(memfd_file(&found).unwrap().0, 3);
        held.reserve_number(memfd_file(&late).unwrap().0, 2);
        held.restore(Program { number: 2, ..program(1) }, kept, memfd()).unwrap();
        assert_eq!(held.admit(program(1), found, memfd()), Ok(3));
        assert_eq!(held.admit(program(1), late.try_clone().unwrap(), memfd()), Ok(5));
        held.release(5, 0);
        held.release(2, 0);
        held.drop_reserved_numbers();
        held.forget_released(0, false);
        assert_eq!(held.admit(program(1), late, memfd()), Ok(6));
    }

    #[test]
    fn quotas_apply_per_user_and_in_total() {
        let config = Config { max_programs_per_uid: 2, max_programs: 3, ..Config::default() };
        let mut held = HeldPrograms::new(&config);
        assert_eq!(held.admit(program(1), memfd(), memfd()), Ok(1));
        assert_eq!(held.admit(program(1), memfd(), memfd()), Ok(2));
        assert_eq!(held.admit(program(1), memfd(), memfd()), Err(Refusal::Quota));
        assert_eq!(held.admit(program(2), memfd(), memfd()), Ok(3));
        assert_eq!(held.admit(program(2), memfd(), memfd()), Err(Refusal::Quota));
        held.release(1, 0);
        assert_eq!(held.admit(program(1), memfd(), memfd()), Ok(4));
    }

    #[test]
    fn only_sealed_memory_is_a_segment() {
        let mut held = HeldPrograms::new(&Config::default());
        let unsealed = memfd_create("x", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        assert_eq!(held.admit(program(1), unsealed, memfd()), Err(Refusal::Malformed));
        let file = OwnedFd::from(tempfile::tempfile().unwrap());
        assert_eq!(held.admit(program(1), memfd(), file), Err(Refusal::Malformed));
        let huge = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
        let huge = memfd_create("x", huge).unwrap();
        fcntl_add_seals(&huge, SealFlags::SHRINK | SealFlags::GROW).unwrap();
        assert_eq!(held.admit(program(1), huge, memfd()), Err(Refusal::Malformed));
        let (pipe, _) = rustix::pipe::pipe().unwrap();
        assert_eq!(held.admit(program(1), pipe, memfd()), Err(Refusal::Malformed));
    }
}
