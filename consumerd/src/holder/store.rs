//! What systemd keeps of the daemon from one start to the next: the staging memory and the descriptors of programs.
//!
//! A unit with `FileDescriptorStoreMax=` has systemd hold descriptors for it (sd_pid_notify_with_fds(3), `FDSTORE=1`), and hand
//! them, with the names that they were given, to the daemon it starts after a restart, a failure or a kill (sd_listen_fds(3)). So
//! what was drained and not yet shipped, and what only the rings of an ended program have, outlives the whole daemon, not only the
//! worker. When the unit is stopped for good, systemd closes all of it.
//!
//! A name records what the kernel said of the program when it offered itself: `p7.1000.4711.6f7364` is the segment of the program
//! with the holder's number 7, followed by user id, process id and, in hexadecimal digits, its name; `c7` is its control page.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use super::held::HeldPrograms;
use crate::link::{Program, send};
use crate::staging::Memfd;

/// The name of the staging memory.
const STAGING: &str = "staging";
/// Changes that are told to systemd at once. systemd has other units to serve, and a program that ends soon need not be kept.
const AT_ONCE: usize = 4;
/// Pause between two such groups of changes.
const APART: Duration = Duration::from_millis(20);
/// Most bytes of names: all of them come back in one environment variable, for which the kernel allows 128 KiB.
const MAX_NAME_BYTES: usize = 64 << 10;

/// The socket on which systemd is told what to keep.
#[derive(Debug)]
pub(super) struct Store {
    manager: OwnedFd,
    /// Most descriptors that systemd keeps.
    most: usize,
    /// Programs of which systemd keeps one or both descriptors, with the descriptors' names.
    kept: BTreeMap<u64, [String; 2]>,
    /// Bytes of all names in `kept`.
    name_bytes: usize,
    /// The staging memory, until it has been handed to systemd.
    staging: Option<Memfd>,
    to_keep: BTreeSet<u64>,
    to_forget: VecDeque<String>,
    not_before: Instant,
    /// There is no room for the programs in `to_keep` until another one is released.
    is_full: bool,
    /// The log has said once that there was no room.
    was_full: bool,
}

impl Store {
    /// The store of the unit, if the daemon runs in one that keeps descriptors: `FDSTORE` in the environment says how many.
    pub(super) fn of_unit() -> Option<Self> {
        let most = std::env::var("FDSTORE").ok()?.parse().ok().filter(|most| *most > 0)?;
        let path = std::env::var("NOTIFY_SOCKET").ok()?;
        match manager(&path) {
            Ok(manager) => Some(Self::new(manager, most)),
            Err(error) => {
                tell_failure(&error);
                None
            }
        }
    }

    fn new(manager: OwnedFd, most: usize) -> Self {
        let (kept, to_keep, to_forget) = Default::default();
        Self {
            manager,
            most,
            kept,
            name_bytes: 0,
            staging: None,
            to_keep,
            to_forget,
            not_before: Instant::now(),
            is_full: false,
            was_full: false,
        }
    }

    /// Has systemd keep the staging memory, instead of an earlier one, before anything else.
    ///
    /// # Errors
    /// When no file descriptor is left for it.
    pub(super) fn keep_staging(&mut self, staging: &Memfd) -> io::Result<()> {
        self.staging = Some(staging.duplicate()?);
        Ok(())
    }

    /// A program was admitted, and is to be kept.
    pub(super) fn admitted(&mut self, number: u64) {
        self.to_keep.insert(number);
    }

    /// A program that systemd keeps already was restored.
    pub(super) fn restored(&mut self, program: &Program) {
        self.note(program.number, names(program));
    }

    /// A program was released, and is to be forgotten.
    pub(super) fn released(&mut self, number: u64) {
        self.to_keep.remove(&number);
        self.is_full = false;
        if let Some(names) = self.kept.remove(&number) {
            self.name_bytes -= bytes_of(&names);
            self.to_forget.extend(names);
        }
    }

    /// The descriptor of this name is useless, and is to be forgotten.
    pub(super) fn forget(&mut self, name: String) {
        self.to_forget.push_back(name);
    }

    /// Whether there is more to tell systemd.
    pub(super) fn is_behind(&self) -> bool {
        self.staging.is_some() || !self.to_forget.is_empty() || !self.is_full && !self.to_keep.is_empty()
    }

    /// Tells systemd a few of the changes, unless that was done a moment ago.
    ///
    /// # Errors
    /// When systemd cannot be told, and trying again would not help.
    pub(super) fn tell(&mut self, held: &HeldPrograms, now: Instant) -> io::Result<()> {
        if !self.is_behind() || now < self.not_before {
            return Ok(());
        }
        self.not_before = now + APART;
        self.tell_some(held, AT_ONCE)
    }

    /// Tells systemd as many of the changes as it accepts now.
    ///
    /// # Errors
    /// Those of [`tell`](Self::tell).
    pub(super) fn tell_all(&mut self, held: &HeldPrograms) -> io::Result<()> {
        self.tell_some(held, usize::MAX)
    }

    fn tell_some(&mut self, held: &HeldPrograms, most: usize) -> io::Result<()> {
        for _ in 0..most {
            match self.tell_one(held) {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Tells the next change, and returns whether there was one. A change that could not be told stays the next.
    fn tell_one(&mut self, held: &HeldPrograms) -> io::Result<bool> {
        if let Some(staging) = &self.staging {
            self.forget_now(STAGING)?;
            self.keep_now(STAGING, staging.as_fd())?;
            self.staging = None;
        } else if let Some(name) = self.to_forget.front() {
            self.forget_now(name)?;
            self.to_forget.pop_front();
        } else if let Some(number) = self.to_keep.first().copied().filter(|_| !self.is_full) {
            self.keep_program(number, held)?;
            if !self.is_full {
                self.to_keep.pop_first();
            }
        } else {
            return Ok(false);
        }
        Ok(true)
    }

    /// Has systemd keep a program. If one descriptor was sent before, both may be sent again: systemd recognises the same file.
    fn keep_program(&mut self, number: u64, held: &HeldPrograms) -> io::Result<()> {
        let Some(held) = held.get(number) else { return Ok(()) };
        let names = names(&held.program);
        // Noted before it is sent, so that a program of which only one descriptor was sent will be forgotten, too.
        if !self.kept.contains_key(&number) {
            // One further descriptor is for the staging memory.
            if 2 * self.kept.len() + 3 > self.most || self.name_bytes + bytes_of(&names) > MAX_NAME_BYTES {
                self.tell_full();
                return Ok(());
            }
            self.note(number, names.clone());
        }
        self.keep_now(&names[0], held.segment.as_fd())?;
        self.keep_now(&names[1], held.control.as_fd())
    }

    fn note(&mut self, number: u64, names: [String; 2]) {
        self.name_bytes += bytes_of(&names);
        self.kept.insert(number, names);
    }

    fn tell_full(&mut self) {
        self.is_full = true;
        if !std::mem::replace(&mut self.was_full, true) {
            tracing::warn!(
                programs = self.kept.len(),
                descriptors = self.most,
                "systemd can keep no more programs over a restart until one is released (FileDescriptorStoreMax= and FDSTORE= \
                 of the unit)"
            );
        }
    }

    fn keep_now(&self, name: &str, fd: BorrowedFd<'_>) -> io::Result<()> {
        send(&self.manager, format!("FDSTORE=1\nFDNAME={name}").as_bytes(), &[fd])
    }

    fn forget_now(&self, name: &str) -> io::Result<()> {
        send(&self.manager, format!("FDSTOREREMOVE=1\nFDNAME={name}").as_bytes(), &[])
    }
}

/// Logs why nothing is kept.
pub(super) fn tell_failure(error: &io::Error) {
    tracing::warn!(
        "failed to store descriptors with systemd ($NOTIFY_SOCKET): {error}; a restart gives up what is not shipped"
    );
}

fn manager(path: &str) -> io::Result<OwnedFd> {
    let address = match path.strip_prefix('@') {
        Some(name) => SocketAddrUnix::new_abstract_name(name.as_bytes())?,
        None => SocketAddrUnix::new(path)?,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
    connect(&socket, &address)?;
    Ok(socket)
}

/// What systemd kept of the previous daemon.
#[derive(Debug, Default)]
pub(super) struct Kept {
    /// Its staging memory.
    pub(super) staging: Option<Memfd>,
    /// The programs that it held, each with its segment and its control page.
    pub(super) programs: Vec<(Program, OwnedFd, OwnedFd)>,
    /// Names of useless descriptors: only one of a program's two, or an unknown name.
    pub(super) useless: Vec<String>,
}

impl Kept {
    /// Takes what systemd handed over. To be called before the process opens any file, so that every descriptor open by then is
    /// one that was handed over.
    pub(super) fn receive() -> Self {
        // `listen_fds` checks that all of them are open, and keeps them from children; `get` takes them.
        let received = sd_notify::listen_fds().and_then(|_| {
            sd_listen_fds::get()
                .map_err(|error| io::Error::new(ErrorKind::InvalidInput, format!("{error:?}")))
        });
        match received {
            Ok(received) => Self::sorted(
                received.into_iter().map(|(name, fd)| (name.unwrap_or_default(), fd.into_std())).collect(),
            ),
            Err(error) => {
                tracing::warn!("failed to take what systemd kept ($LISTEN_FDS): {error}");
                Self::default()
            }
        }
    }

    /// Whether there is nothing that a daemon could go on with.
    pub(super) fn is_empty(&self) -> bool {
        self.staging.is_none() && self.programs.is_empty()
    }

    fn sorted(received: Vec<(String, OwnedFd)>) -> Self {
        let mut kept = Self::default();
        let mut controls = BTreeMap::new();
        let mut segments = Vec::new();
        for (name, fd) in received {
            if name == STAGING {
                kept.staging = Some(Memfd::from_fd(fd));
            } else if let Some(program) = named(&name) {
                segments.push((name, program, fd));
            } else if let Some(number) = name.strip_prefix('c').and_then(|number| number.parse::<u64>().ok())
            {
                controls.insert(number, fd);
            } else {
                kept.useless.push(name);
            }
        }
        for (name, program, segment) in segments {
            match controls.remove(&program.number) {
                Some(control) => kept.programs.push((program, segment, control)),
                None => kept.useless.push(name),
            }
        }
        kept.useless.extend(controls.into_keys().map(control_name));
        kept.programs.sort_by_key(|(program, ..)| program.number);
        kept
    }
}

/// The names of a program's segment and control page.
fn names(program: &Program) -> [String; 2] {
    let comm: String = program.comm.bytes().map(|byte| format!("{byte:02x}")).collect();
    let segment = format!("p{}.{}.{}.{comm}", program.number, program.uid, program.pid);
    [segment, control_name(program.number)]
}

fn control_name(number: u64) -> String {
    format!("c{number}")
}

/// Bytes of both names, each with the separator behind it in the environment variable.
fn bytes_of(names: &[String; 2]) -> usize {
    names.iter().map(|name| name.len() + 1).sum()
}

/// The program whose segment has this name.
fn named(segment: &str) -> Option<Program> {
    let mut parts = segment.strip_prefix('p')?.split('.');
    let (number, uid, pid) = (parts.next()?, parts.next()?, parts.next()?);
    let digits = parts.next().filter(|_| parts.next().is_none())?;
    let bytes =
        digits.as_bytes().chunks(2).map(|two| u8::from_str_radix(std::str::from_utf8(two).ok()?, 16).ok());
    let comm = String::from_utf8(bytes.collect::<Option<Vec<u8>>>()?).ok()?;
    Some(Program { number: number.parse().ok()?, uid: uid.parse().ok()?, pid: pid.parse().ok()?, comm })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::holder::held::tests::memfd;
    use crate::link::receive;
    use proptest::prelude::*;
    use rustix::net::{bind, socket};

    fn program(number: u64) -> Program {
        Program { number, uid: 1000, pid: 42, comm: "osd".into() }
    }

    fn held(programs: u64) -> HeldPrograms {
        let mut held = HeldPrograms::new(&Config::default());
        for _ in 0..programs {
            held.admit(program(0), memfd(), memfd()).unwrap();
        }
        held
    }

    /// The manager's socket, and the store of a unit that keeps so many descriptors.
    fn store(most: usize) -> (tempfile::TempDir, OwnedFd, Store) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let theirs = socket(AddressFamily::UNIX, SocketType::DGRAM, None).unwrap();
        bind(&theirs, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        rustix::io::ioctl_fionbio(&theirs, true).unwrap();
        let ours = manager(path.to_str().unwrap()).unwrap();
        (folder, theirs, Store::new(ours, most))
    }

    /// What the manager was told, with the number of descriptors sent along.
    fn told(manager: &OwnedFd) -> Vec<(String, usize)> {
        let mut told = Vec::new();
        while let Ok(received) = receive(manager, 1000) {
            told.push((String::from_utf8(received.bytes).unwrap().replace('\n', " "), received.fds.len()));
        }
        told
    }

    fn kept(name: &str) -> (String, usize) {
        (format!("FDSTORE=1 FDNAME={name}"), 1)
    }

    fn forgotten(name: &str) -> (String, usize) {
        (format!("FDSTOREREMOVE=1 FDNAME={name}"), 0)
    }

    #[test]
    fn programs_are_kept_while_held_and_skipped_if_released_first() {
        let (_folder, manager, mut store) = store(100);
        let mut held = held(2);
        (1..=2).for_each(|number| store.admitted(number));
        held.release(2, 0);
        store.released(2);
        store.tell(&held, Instant::now()).unwrap();
        assert_eq!(told(&manager), [kept("p1.1000.42.6f7364"), kept("c1")]);
        assert!(!store.is_behind());
        store.released(1);
        store.tell_all(&held).unwrap();
        assert_eq!(told(&manager), [forgotten("p1.1000.42.6f7364"), forgotten("c1")]);
        assert_eq!((store.kept.len(), store.name_bytes), (0, 0));
    }

    #[test]
    fn the_manager_is_sent_few_programs_per_interval() {
        let (_folder, manager, mut store) = store(1000);
        let held = held(30);
        (1..=30).for_each(|number| store.admitted(number));
        let now = Instant::now();
        store.tell(&held, now).unwrap();
        store.tell(&held, now).unwrap();
        assert_eq!(told(&manager).len(), 2 * AT_ONCE);
        store.tell(&held, now + APART).unwrap();
        assert_eq!(told(&manager).len(), 2 * AT_ONCE);
    }

    #[test]
    fn messages_to_a_busy_manager_are_sent_later() {
        let (_folder, manager, mut store) = store(1000);
        let held = held(200);
        (1..=200).for_each(|number| store.admitted(number));
        let mut all = Vec::new();
        while store.is_behind() {
            store.tell_all(&held).unwrap();
            all.extend(told(&manager));
        }
        all.dedup();
        assert_eq!(all.len(), 2 * 200, "each message once, apart from repeats of a half-sent program");
    }

    #[test]
    fn no_more_descriptors_are_kept_than_the_unit_allows() {
        let (_folder, manager, mut store) = store(5);
        let held = held(3);
        (1..=3).for_each(|number| store.admitted(number));
        store.tell_all(&held).unwrap();
        assert_eq!((told(&manager).len(), store.is_behind()), (4, false));
    }

    #[test]
    fn a_program_without_room_is_kept_once_another_is_released() {
        let (_folder, manager, mut store) = store(5);
        let mut held = held(4);
        (1..=4).for_each(|number| store.admitted(number));
        let mut told_of = |gone: Option<u64>| {
            gone.into_iter().for_each(|number| {
                held.release(number, 0);
                store.released(number);
            });
            store.tell_all(&held).unwrap();
            assert!(!store.is_behind());
            told(&manager).into_iter().map(|(text, _)| text).collect::<Vec<_>>()
        };
        assert_eq!(told_of(None).len(), 4);
        assert_eq!(told_of(Some(3)), Vec::<String>::new());
        let expected =
            [forgotten("p1.1000.42.6f7364"), forgotten("c1"), kept("p4.1000.42.6f7364"), kept("c4")];
        assert_eq!(told_of(Some(1)), expected.map(|(text, _)| text));
        assert_eq!(told_of(None), Vec::<String>::new());
    }

    #[test]
    fn new_staging_memory_replaces_the_old_one_first() {
        let (_folder, manager, mut store) = store(5);
        store.forget("c9".into());
        store.keep_staging(&Memfd::create(4096).unwrap()).unwrap();
        store.tell(&held(0), Instant::now()).unwrap();
        assert_eq!(told(&manager), [forgotten(STAGING), kept(STAGING), forgotten("c9")]);
        assert!(!store.is_behind());
    }

    /// Sends until the manager takes no more.
    fn fill(store: &Store) {
        while store.forget_now("x").is_ok() {}
    }

    #[test]
    fn staging_memory_is_stored_later_if_the_manager_is_busy() {
        let (_folder, manager, mut store) = store(5);
        fill(&store);
        store.keep_staging(&Memfd::create(4096).unwrap()).unwrap();
        store.tell_all(&held(0)).unwrap();
        assert!(store.is_behind());
        told(&manager);
        store.tell_all(&held(0)).unwrap();
        assert_eq!(told(&manager), [forgotten(STAGING), kept(STAGING)]);
    }

    #[test]
    fn a_half_stored_program_is_removed_when_released() {
        let (_folder, manager, mut store) = store(5);
        let mut held = held(1);
        fill(&store);
        // Room for one message.
        receive(&manager, 1000).unwrap();
        store.admitted(1);
        store.tell_all(&held).unwrap();
        assert_eq!(told(&manager).pop(), Some(kept("p1.1000.42.6f7364")));
        held.release(1, 0);
        store.released(1);
        store.tell_all(&held).unwrap();
        assert_eq!(told(&manager), [forgotten("p1.1000.42.6f7364"), forgotten("c1")]);
        assert_eq!((store.kept.len(), store.name_bytes), (0, 0));
    }

    #[test]
    fn returned_descriptors_are_paired_by_name_or_useless() {
        let names = ["c2", "x", "p2.1.3.61", "staging", "p1.1.2.", "c1", "p7.1.1.61", "c9", "p2.1.x.61"];
        let kept = Kept::sorted(names.map(|name| (name.to_owned(), memfd())).into());
        let programs: Vec<_> =
            kept.programs.iter().map(|(program, ..)| (program.number, &*program.comm)).collect();
        assert_eq!(programs, [(1, ""), (2, "a")]);
        assert!(kept.staging.is_some());
        assert_eq!(kept.useless, ["x", "p2.1.x.61", "p7.1.1.61", "c9"]);
    }

    proptest! {
        #[test]
        fn a_descriptor_name_round_trips_its_program(number: u64, uid: u32, pid: u32, comm in ".{0,16}") {
            let program = Program { number, uid, pid, comm };
            let [segment, control] = names(&program);
            prop_assert!(segment.len() <= 255 && segment.bytes().all(|byte| byte.is_ascii_graphic() && byte != b':'));
            prop_assert_eq!(named(&control), None);
            prop_assert_eq!(named(&segment), Some(program));
        }

        #[test]
        fn parsing_any_name_does_not_panic(name in "p?[0-9.a-fx]{0,40}") {
            let _ = named(&name);
        }
    }
}
