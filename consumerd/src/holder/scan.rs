//! Searches /proc once, at start, for live programs that no daemon has.
//!
//! A process counts as a program if it has *mapped* a segment (a forked child inherits descriptors, but not the mappings).
//! A mapped memfd is opened through /proc/PID/map_files (CAP_CHECKPOINT_RESTORE), or through a descriptor of the same inode
//! (CAP_SYS_PTRACE, or the same user).

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use blkin_ringbuf::open_foreign_memfd;
use rustix::fs::{OFlags, fstat, major, minor};
use rustix::thread::{CapabilitySet, capabilities};

use super::offers::{Offer, comm};
use crate::link::Program;
use crate::process::{Mapped, Wanted, effective_user, mapped};

/// The two memfds' names in the maps of a process, and the access that a program has to each; a daemon that reads the
/// program has the accesses swapped. Files of other devices may have the same names, and are left alone: their file
/// systems may be a program's own (FUSE) and never answer.
const SEGMENT: (&str, &str) = ("/memfd:blkin-segment (deleted)", "rw-s");
const CONTROL: (&str, &str) = ("/memfd:blkin-control (deleted)", "r--s");
/// Most bytes that are read of a process's list of mappings; the rest of a longer list is ignored.
const MAX_MAPS_BYTES: u64 = 16 << 20;

/// Every live program whose memory can be opened. `memfd` may be any memory file, because all have the same device.
pub(super) fn live_programs(memfd: impl AsFd) -> Vec<Offer> {
    let Ok(device) = fstat(memfd).map(|stat| shown_device(stat.st_dev)) else { return Vec::new() };
    let own = std::process::id();
    let Ok(folder) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = folder.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let (mut programs, mut hidden) = (Vec::new(), 0);
    for pid in pids.filter(|pid| *pid != own) {
        match read_maps(pid) {
            Ok(maps) => programs.extend(programs_of(pid, &maps, &device)),
            Err(error) if error.kind() == ErrorKind::PermissionDenied => hidden += 1,
            Err(_) => {}
        }
    }
    if hidden > 0 && !may_look_at_all() {
        tracing::warn!(
            processes = hidden,
            "failed to search other users' processes for programs: those already running are read once they offer themselves \
             (when a ring is full, at their first use of a CPU, or at their end); give the daemon CAP_SYS_PTRACE, or set \
             `scan = false` to switch the search off"
        );
    }
    programs
}

/// Whether the daemon has CAP_SYS_PTRACE: then no further capability would show it the remaining processes.
fn may_look_at_all() -> bool {
    capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_PTRACE))
}

/// A device number as /proc/PID/maps shows it.
fn shown_device(device: u64) -> String {
    format!("{:02x}:{:02x}", major(device), minor(device))
}

fn programs_of(pid: u32, maps: &[u8], device: &str) -> Vec<Offer> {
    let of = |(name, access)| mapped(maps, Wanted { device, name, access });
    let (segments, controls) = (of(SEGMENT), of(CONTROL));
    let Some(uid) = user_of(pid) else { return Vec::new() };
    let mut out = Vec::new();
    // Each copy of the library creates its segment and then its control page, so both lists are in the same order of inodes.
    for (segment, control) in segments.iter().zip(&controls) {
        match (open(pid, segment), open(pid, control)) {
            (Ok(segment), Ok(control)) => {
                let program = Program { number: 0, uid, pid, comm: comm(pid) };
                out.push(Offer { program, segment, control });
            }
            (Err(e), _) | (_, Err(e)) => {
                tracing::warn!(
                    pid,
                    "failed to open the segment of a live program: {e}; give the daemon CAP_SYS_PTRACE"
                );
            }
        }
    }
    out
}

/// The effective user of a process. The owner of its folder in /proc does not tell: it is root for a process that is not dumpable.
fn user_of(pid: u32) -> Option<u32> {
    effective_user(&fs::read(format!("/proc/{pid}/status")).ok()?)
}

fn read_maps(pid: u32) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(format!("/proc/{pid}/maps"))?.take(MAX_MAPS_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn open(pid: u32, mapped: &Mapped) -> io::Result<OwnedFd> {
    open_inode(Path::new(&format!("/proc/{pid}/map_files/{}", mapped.range)), mapped.inode)
        .or_else(|first| open_descriptor(pid, mapped.inode).ok_or(first))
}

fn open_descriptor(pid: u32, inode: u64) -> Option<OwnedFd> {
    let fds = fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
    let mut named = fds.flatten().map(|entry| entry.path()).filter(|path| {
        fs::read_link(path).is_ok_and(|link| link.to_string_lossy().starts_with("/memfd:blkin-"))
    });
    named.find_map(|path| open_inode(&path, inode).ok())
}

/// Opens the file only if it still has the inode from the maps: the process may have changed meanwhile.
fn open_inode(path: &Path, inode: u64) -> io::Result<OwnedFd> {
    let file = open_foreign_memfd(path, OFlags::RDWR)?;
    let is_it = |file: &OwnedFd| fstat(file).is_ok_and(|stat| stat.st_ino == inode);
    file.filter(is_it).ok_or_else(|| io::Error::other("it has changed meanwhile"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::geteuid;
    use rustix::thread::{gettid, set_name};

    #[test]
    fn the_user_of_a_process_is_read_despite_a_non_utf8_name() {
        let named = || {
            // The kernel cuts a long name, possibly in the middle of a character.
            set_name(c"process-of-gr\xc3").unwrap();
            user_of(gettid().as_raw_nonzero().get().cast_unsigned())
        };
        assert_eq!(std::thread::spawn(named).join().unwrap(), Some(geteuid().as_raw()));
    }
}
