//! One look through /proc, at start, for live programs that offered themselves to nobody.
//!
//! What counts is what a process has *mapped* (a forked child inherits descriptors, but not the mappings). A mapped
//! memfd is opened through /proc/PID/map_files (CAP_CHECKPOINT_RESTORE), or through the descriptor of the same inode
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

/// How the maps of a process name the two memfds, and the access that a program has to them; a daemon that reads the
/// program has them mapped the other way round. Files of other devices may have the same names, and are left alone: their
/// file systems may be a program's own (FUSE) and never answer.
const SEGMENT: (&str, &str) = ("/memfd:blkin-segment (deleted)", "rw-s");
const CONTROL: (&str, &str) = ("/memfd:blkin-control (deleted)", "r--s");
/// Longest list of mappings that is read; a process with more is looked at only this far.
const MAX_MAPS_BYTES: u64 = 16 << 20;

#[derive(Debug, PartialEq, Eq)]
struct Mapped {
    range: String,
    inode: u64,
}

/// Every live program that can be opened; `memfd` is any, for they all have one device.
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
            "failed to look for programs in processes of others: what runs already there is read once it offers itself, when a \
             ring is full, at its first use of a CPU or at its end; give the daemon CAP_SYS_PTRACE, or set `scan = false` \
             if it is not to look"
        );
    }
    programs
}

/// Whatever such a daemon may not look at, no capability would change.
fn may_look_at_all() -> bool {
    capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_PTRACE))
}

/// As the maps of a process show it.
fn shown_device(device: u64) -> String {
    format!("{:02x}:{:02x}", major(device), minor(device))
}

fn programs_of(pid: u32, maps: &str, device: &str) -> Vec<Offer> {
    let (segments, controls) = (mapped(maps, device, SEGMENT), mapped(maps, device, CONTROL));
    let Some(uid) = user_of(pid) else { return Vec::new() };
    let mut out = Vec::new();
    // Each copy of the library makes its segment and then its control page: inodes tell which go together.
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

/// The effective user of a process. The owner of its folder is root's as soon as it is not dumpable.
fn user_of(pid: u32) -> Option<u32> {
    effective_uid(&fs::read_to_string(format!("/proc/{pid}/status")).ok()?)
}

/// In a `status` of /proc, which has the name of the process in its first line, escaped: real, effective and others.
fn effective_uid(status: &str) -> Option<u32> {
    let ids = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    ids.split_ascii_whitespace().nth(1)?.parse().ok()
}

fn read_maps(pid: u32) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(format!("/proc/{pid}/maps"))?.take(MAX_MAPS_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The first mapping of each memfd of that name and access, by inode.
fn mapped(maps: &str, device: &str, (name, access): (&str, &str)) -> Vec<Mapped> {
    let mut found: Vec<Mapped> = Vec::new();
    for line in maps.lines().filter(|line| line.ends_with(name)) {
        let mut fields = line.split_ascii_whitespace();
        let (Some(range), Some(of), Some(on)) = (fields.next(), fields.next(), fields.nth(1)) else {
            continue;
        };
        let Some(inode) = fields.next().and_then(|inode| inode.parse().ok()) else { continue };
        if of != access || on != device {
            continue;
        }
        found.push(Mapped { range: range.into(), inode });
    }
    // As many as the program likes: in order, of which the first of each stays.
    found.sort_by_key(|mapped| mapped.inode);
    found.dedup_by_key(|mapped| mapped.inode);
    found
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

/// Opens only what the maps named: the process may have changed meanwhile.
fn open_inode(path: &Path, inode: u64) -> io::Result<OwnedFd> {
    let file = open_foreign_memfd(path, OFlags::RDWR)?;
    let is_it = |file: &OwnedFd| fstat(file).is_ok_and(|stat| stat.st_ino == inode);
    file.filter(is_it).ok_or_else(|| io::Error::other("it has changed meanwhile"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_of_a_process_is_the_effective_one() {
        let status = "Name:\tUid:\\n\nUmask:\t0022\nUid:\t1000\t1001\t1002\t1003\nGid:\t5\t6\t7\t8\n";
        assert_eq!(effective_uid(status), Some(1001));
        assert_eq!(effective_uid("Name:\tx\nUid:\t1000\n"), None);
        assert_eq!(user_of(std::process::id()), Some(rustix::process::geteuid().as_raw()));
    }

    #[test]
    fn each_memfd_of_a_writer_is_found_once_in_the_order_of_inodes() {
        let maps = "\
7f00-7f10 rw-s 00000000 00:01 2077                       /memfd:blkin-segment (deleted)
7f10-7f20 rw-s 00001000 00:01 2077                       /memfd:blkin-segment (deleted)
7f20-7f30 r--s 00000000 00:01 2078                       /memfd:blkin-control (deleted)
7f30-7f40 rw-s 00000000 00:01 2070                       /memfd:blkin-segment (deleted)
7e40-7e50 r--s 00000000 00:01 2075                       /memfd:blkin-segment (deleted)
7e50-7e60 rw-s 00000000 00:01 2076                       /memfd:blkin-control (deleted)
7f40-7f50 r-xp 00000000 08:01 99                         /usr/lib/libc.so.6
7f60-7f70 rw-s 00000000 00:2f 2069                       /home/x/memfd:blkin-segment (deleted)
";
        let expected = [
            Mapped { range: "7f30-7f40".into(), inode: 2070 },
            Mapped { range: "7f00-7f10".into(), inode: 2077 },
        ];
        assert_eq!(mapped(maps, "00:01", SEGMENT), expected);
        assert_eq!(mapped(maps, "00:01", CONTROL).len(), 1);
    }
}
