//! What the kernel shows of this machine's programs: which have rings, and which process reads them.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use blkin_ringbuf::UnreadReason;

use crate::process;
use crate::target;
use crate::terminal::safe;

/// How the kernel shows a mapped segment in `/proc/PID/maps`.
const SEGMENT: &str = "/memfd:blkin-segment";
/// How the kernel shows a mapped control page.
const CONTROL: &str = "/memfd:blkin-control";
/// How the kernel shows the shared library, whatever its folder.
const LIBRARY: &str = "/libblkin.so";
/// The executable of consumerd, whose processes map the segments of other programs.
const CONSUMERD: &str = "blkin-consumerd";
/// At most this much of a process's environment is read.
const MAX_ENVIRONMENT_BYTES: u64 = 1 << 20;

/// A program with a segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Program {
    pub(super) pid: u32,
    pub(super) comm: String,
    pub(super) reader: Option<Reader>,
    pub(super) unread: Option<UnreadReason>,
    /// The variable of its environment by which it traces only one in so many requests.
    pub(super) rate: Option<String>,
}

/// The process that reads a program, whichever consumerd it belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Reader {
    pub(super) pid: u32,
    /// Whether it is a running consumerd, so that the program is traced.
    pub(super) is_well: bool,
}

impl Program {
    pub(super) fn is_read(&self) -> bool {
        self.reader.is_some_and(|reader| reader.is_well)
    }

    pub(super) fn has_no_room(&self) -> bool {
        self.reader.is_none() && self.unread == Some(UnreadReason::NoRoom)
    }

    pub(super) fn name(&self) -> String {
        format!("{} (pid {})", self.comm, self.pid)
    }
}

/// What could be seen of all processes.
#[derive(Debug, Default)]
pub(super) struct Scan {
    pub(super) programs: Vec<Program>,
    /// Names of the programs that have loaded the shared library, and have no segment.
    pub(super) without_rings: Vec<String>,
    pub(super) hidden: usize,
}

pub(super) fn scan() -> Scan {
    let mut scan = Scan::default();
    // A process that not even root may examine is not a traced program.
    let is_root = rustix::process::geteuid().is_root();
    let Ok(entries) = fs::read_dir("/proc") else { return scan };
    for pid in entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()) {
        match process::text(pid, "maps") {
            Ok(maps) if maps.contains(SEGMENT) && !is_consumerd(pid) => {
                let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
                let reader = reader(&maps, &locks).map(|pid| Reader { pid, is_well: runs_consumerd(pid) });
                let (unread, rate) = (refusal(pid), rate(pid));
                scan.programs.push(Program { pid, comm: comm(pid), reader, unread, rate });
            }
            Ok(maps) if maps.contains(LIBRARY) => scan.without_rings.push(without_rings(pid)),
            Err(error) if error.kind() == ErrorKind::PermissionDenied && !is_root => scan.hidden += 1,
            _ => {}
        }
    }
    scan
}

fn comm(pid: u32) -> String {
    safe(process::text(pid, "comm").unwrap_or_default().trim())
}

/// The name of a program without rings, and the reason if its environment tells.
fn without_rings(pid: u32) -> String {
    let is_off = environment(pid, "BLKIN_OFF").is_some_and(|value| !matches!(&value[..], b"" | b"0"));
    let off = if is_off { ", by BLKIN_OFF" } else { "" };
    format!("{} (pid {pid}{off})", comm(pid))
}

/// BLKIN_RATE, or else RATE, as the library reads them: a value that is no number traces every request.
fn rate(pid: u32) -> Option<String> {
    let set = |variable| {
        let value = environment(pid, variable).filter(|value| !value.is_empty())?;
        Some((variable, String::from_utf8(value).unwrap_or_default()))
    };
    let (variable, value) = set("BLKIN_RATE").or_else(|| set("RATE"))?;
    let number: u64 = value.trim().parse().ok()?;
    (number > 1).then(|| format!("{variable}={number}"))
}

/// The process that holds an exclusive lock on a program's control page: the consumerd that reads it. A program that ends takes a
/// shared lock for a moment, to see whether anybody holds it.
fn reader(maps: &str, locks: &str) -> Option<u32> {
    let page = maps.lines().find(|line| line.contains(CONTROL))?;
    // Inode numbers are unique per device only.
    let mut page = page.split_ascii_whitespace().skip(3);
    let page = format!("{}:{}", page.next()?, page.next()?);
    // 7: FLOCK  ADVISORY  WRITE 4711 00:01:2078 0 EOF
    let mut fields = locks.lines().map(|line| line.split_ascii_whitespace());
    fields.find_map(|mut lock| {
        let is_flock = lock.nth(1) == Some("FLOCK");
        let is_exclusive = lock.nth(1) == Some("WRITE");
        let (pid, file) = (lock.next()?, lock.next()?);
        (is_flock && is_exclusive && file == page).then(|| pid.parse().ok()).flatten()
    })
}

/// Why the consumerd to which a program last offered itself does not read it.
fn refusal(pid: u32) -> Option<UnreadReason> {
    let is_page =
        |fd: &PathBuf| fs::read_link(fd).is_ok_and(|file| file.to_string_lossy().starts_with(CONTROL));
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).ok()?.flatten();
    let pages = descriptors.map(|entry| entry.path()).filter(is_page);
    pages.filter_map(|page| File::open(page).ok()).find_map(|page| UnreadReason::read_from(&page))
}

fn runs_consumerd(pid: u32) -> bool {
    is_running_consumerd(&process::text(pid, "stat").unwrap_or_default())
}

/// Judged by what every user may read about a process: `4711 (blkin-consumerd) S 1 …`. A stopped or dead one reads nothing.
fn is_running_consumerd(stat: &str) -> bool {
    let state = stat.split_once(" (").and_then(|(_, rest)| rest.strip_prefix(CONSUMERD)?.strip_prefix(") "));
    state.is_some_and(|state| !state.starts_with(['T', 't', 'Z', 'X']))
}

fn is_consumerd(pid: u32) -> bool {
    let file = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
    // After an upgrade the link of the running file ends with " (deleted)".
    file.file_name()
        .and_then(|name| name.to_str())
        .is_some_and(|name| name.split(' ').next() == Some(CONSUMERD))
}

/// The socket at which a process offers itself, by the environment with which it was started, if that can be read.
pub(super) fn socket_of(pid: u32) -> Option<PathBuf> {
    environment(pid, "BLKIN_SOCKET").map(|named| target::offers(Some(OsString::from_vec(named))))
}

/// The value of a variable in the environment with which a process was started, empty if it is not set; `None` if the environment
/// cannot be read.
fn environment(pid: u32, variable: &str) -> Option<Vec<u8>> {
    let mut environment = Vec::new();
    let file = File::open(format!("/proc/{pid}/environ")).ok()?;
    file.take(MAX_ENVIRONMENT_BYTES).read_to_end(&mut environment).ok()?;
    let value = |set: &[u8]| set.strip_prefix(variable.as_bytes())?.strip_prefix(b"=").map(<[u8]>::to_vec);
    Some(environment.split(|byte| *byte == 0).find_map(value).unwrap_or_default())
}

/// Whether the path `named`, as a process sees it (perhaps in a container), is `socket` here.
pub(super) fn is_same(pid: u32, named: &Path, socket: &Path) -> bool {
    let inside = match named.strip_prefix("/") {
        Ok(below) => PathBuf::from(format!("/proc/{pid}/root")).join(below),
        Err(_) => PathBuf::from(format!("/proc/{pid}/cwd")).join(named),
    };
    let file = |path: &Path| fs::metadata(path).ok().map(|metadata| (metadata.dev(), metadata.ino()));
    named == socket || file(&inside).is_some_and(|inside| file(socket) == Some(inside))
}

/// Whether a process is not dumpable, so that only CAP_SYS_PTRACE lets others examine it: the files in its /proc folder then belong
/// to root, though not the folder itself (proc(5)).
pub(super) fn is_hidden(pid: u32, uid: u32) -> bool {
    let owner = fs::metadata(format!("/proc/{pid}/status")).map(|metadata| metadata.uid());
    uid != 0 && owner.is_ok_and(|owner| owner == 0)
}

/// Whether a process may see other files than this one: it has another mount namespace, as in a container, or another root.
pub(super) fn is_apart(pid: u32) -> bool {
    let differs = |what: &str| {
        let link = |of: &str| fs::read_link(format!("/proc/{of}/{what}")).ok();
        matches!((link("self"), link(&pid.to_string())), (Some(own), Some(its)) if own != its)
    };
    differs("ns/mnt") || differs("root")
}

pub(super) fn real_uid(pid: u32) -> Option<u32> {
    let status = process::text(pid, "status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
pub(super) mod tests {
    use std::ffi::OsStr;
    use std::io::Write;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    use std::process::{Child, Command, Stdio};

    use blkin_ringbuf::layout::CONTROL_BYTES;
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

    use super::*;

    /// A process with a variable in its environment, which can be read once it runs; it ends when its input does.
    pub(in crate::doctor) fn running(variable: &str, value: impl AsRef<OsStr>) -> Child {
        let mut shell = Command::new("sh");
        let shell = shell.args(["-c", "echo; read end"]).env(variable, value);
        let mut child = shell.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        child.stdout.take().unwrap().read_exact(&mut [0]).unwrap();
        child
    }

    #[test]
    fn the_holder_of_the_control_page_lock_is_the_reader() {
        let maps =
            "7f20-7f30 r--s 00000000 00:01 2078                       /memfd:blkin-control (deleted)\n";
        let locks = "1: POSIX  ADVISORY  WRITE 1 00:01:2078 0 EOF\n2: FLOCK  ADVISORY  WRITE 2 00:01:12078 0 EOF\n\
                     3: FLOCK  ADVISORY  WRITE 4711 00:01:2078 0 EOF\n";
        assert_eq!(reader(maps, locks), Some(4711));
        // The program itself, as it ends.
        assert_eq!(reader(maps, &locks.replace("WRITE 4711", "READ  815")), None);
        assert_eq!(reader(maps, ""), None);
        assert_eq!(reader("", locks), None);
        // Who locks a file of the same number elsewhere has nothing to do with it.
        let others =
            "1: FLOCK  ADVISORY  WRITE 3 00:19:2078 0 EOF\n2: FLOCK  ADVISORY  WRITE 3 a00:01:2078 0 EOF\n";
        assert_eq!(reader(maps, others), None);
        assert_eq!(reader(maps, &[others, locks].concat()), Some(4711));
    }

    #[test]
    fn refusals_are_read_from_the_control_page() {
        let page = memfd_create("blkin-control", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&page, CONTROL_BYTES as u64).unwrap();
        fcntl_add_seals(&page, SealFlags::SHRINK | SealFlags::GROW).unwrap();
        assert_eq!(refusal(std::process::id()), None);
        for unread in [UnreadReason::NoRoom, UnreadReason::Version] {
            unread.write_to(&page).unwrap();
            assert_eq!(refusal(std::process::id()), Some(unread));
        }
    }

    #[test]
    fn a_program_disabled_by_blkin_off_is_reported_as_such() {
        let named = |off: &str| {
            let mut child = running("BLKIN_OFF", off);
            let named = without_rings(child.id()).replace(&child.id().to_string(), "PID");
            child.wait().unwrap();
            named
        };
        assert_eq!(named("1"), "sh (pid PID, by BLKIN_OFF)");
        assert_eq!(named("0"), "sh (pid PID)");
    }

    #[test]
    fn a_sampling_rate_of_the_environment_is_reported_with_its_variable() {
        let rate_by = |variable: &str, value: &str| {
            let mut child = running(variable, value);
            let found = rate(child.id());
            child.wait().unwrap();
            found
        };
        assert_eq!(rate_by("RATE", "44100").as_deref(), Some("RATE=44100"));
        assert_eq!(rate_by("BLKIN_RATE", " 2 ").as_deref(), Some("BLKIN_RATE=2"));
        for all in ["1", "0", "-5", "fast", ""] {
            assert_eq!(rate_by("RATE", all), None, "{all:?}");
        }
    }

    #[test]
    fn a_stopped_or_dead_consumerd_does_not_count_as_running() {
        assert!(is_running_consumerd("4711 (blkin-consumerd) S 1 4711"));
        for stat in ["4711 (blkin-consumerd) T 1", "4711 (blkin-consumerd) Z 1", "4711 (vim) S 1", ""] {
            assert!(!is_running_consumerd(stat), "{stat}");
        }
    }

    /// A program that its user may not read is not dumpable.
    #[test]
    fn undumpable_processes_are_recognised() {
        if !rustix::process::geteuid().is_root() {
            let _ = writeln!(std::io::stderr(), "not shown: this needs root");
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let hidden = |mode| {
            let sleep = folder.path().join("sleep");
            // By a process of its own: a child of another test, which is just being made, could hold a file open that was written
            // here, and then it cannot be run.
            let copied = Command::new("install").args(["-m", mode, "/bin/sleep"]).arg(&sleep).status();
            assert!(copied.unwrap().success());
            let mut child = Command::new(&sleep).arg("100").uid(65534).spawn().unwrap();
            let hidden = is_hidden(child.id(), 65534);
            child.kill().unwrap();
            child.wait().unwrap();
            hidden
        };
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o711)).unwrap();
        assert!(!hidden("755"));
        assert!(hidden("711"));
        assert!(!is_hidden(std::process::id(), 0), "processes of root do not count as hidden");
    }

    #[test]
    fn own_process_has_own_uid_and_is_not_apart() {
        assert_eq!(real_uid(std::process::id()), Some(rustix::process::getuid().as_raw()));
        assert!(!is_apart(std::process::id()));
    }
}
