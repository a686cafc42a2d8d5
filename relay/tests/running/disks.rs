//! A file system that refuses operations, has lost data, or is slow. Needs root, to give the spool a disk of its own.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::keys::sum;
use crate::process::{Relay, program};
use crate::upstream::{Calls, Sender, upstream};

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// A small ext4 file system.
struct Disk {
    folder: TempDir,
    image: PathBuf,
}

impl Disk {
    fn new() -> Disk {
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("image");
        File::create(&image).unwrap().set_len(32 << 20).unwrap();
        run(Command::new("mkfs.ext4").args(["-q", "-b", "1024", "-O", "metadata_csum"]).arg(&image));
        let disk = Disk { folder, image };
        fs::create_dir(disk.mounted()).unwrap();
        disk.mount();
        disk
    }

    fn mounted(&self) -> PathBuf {
        self.folder.path().join("mounted")
    }

    fn mount(&self) {
        run(Command::new("mount").args(["-o", "loop"]).arg(&self.image).arg(self.mounted()));
    }

    fn unmount(&self) {
        run(Command::new("umount").arg(self.mounted()));
    }

    /// Overwrites the inode of a file, so that its checksum is wrong.
    fn lose_inode_of(&self, path: &Path) {
        let inode = fs::metadata(path).unwrap().ino();
        self.unmount();
        let told = run(Command::new("debugfs").args(["-R", &format!("imap <{inode}>")]).arg(&self.image));
        let (_, place) = told.split_once("located at block ").unwrap();
        let (block, offset) = place.trim().split_once(", offset 0x").unwrap();
        let place = block.parse::<u64>().unwrap() * 1024 + u64::from_str_radix(offset, 16).unwrap();
        File::options().write(true).open(&self.image).unwrap().write_all_at(b"\xa5\x5a", place + 4).unwrap();
        self.mount();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _unmounted = Command::new("umount").arg("--lazy").arg(self.mounted()).output();
    }
}

fn set_immutable(path: &Path, flag: &str) {
    run(Command::new("chattr").arg(flag).arg(path));
}

#[test]
fn stop_while_reading_a_large_spool_leaves_it_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    let relay = Relay::start(program(), folder.path(), "127.0.0.1:1", "");
    Sender::of(&relay).send("zipkin", vec![b'x'; 1000]);
    relay.end();
    let path = folder.path().join("0000000000000001.spool");
    let (written, length) = (fs::read(&path).unwrap(), 1 << 42);
    let file = File::options().read(true).write(true).open(&path).unwrap();
    // Reading all of that would take too long.
    file.set_len(length).unwrap();
    let relay = Relay::starting(program(), folder.path(), "127.0.0.1:1", "");
    relay.tells("reading the spool");
    let (status, log) = relay.end_with_status();
    assert!(status.success(), "{status}: {log:?}");
    assert!(log.iter().any(|line| line.contains("stopped before the spool was read")), "{log:?}");
    let mut left = vec![0; written.len()];
    file.read_exact_at(&mut left, 0).unwrap();
    assert!(left == written && file.metadata().unwrap().len() == length);
}

#[test]
fn start_with_unusable_spool_files_delivers_the_readable_ones() {
    let disk = Disk::new();
    let folder = disk.mounted().join("spool");
    // A segment has room for two or three entries.
    let smallest = "max_message_mib = 1\nmax_reading_mib = 2\nspool_bytes = 4194304";
    let relay = Relay::start(program(), &folder, "127.0.0.1:1", smallest);
    let mut sender = Sender::of(&relay);
    (0..6_u8).for_each(|number| sender.send("zipkin", vec![b'a' + number; 100 << 10]));
    relay.end();
    let segment = |number: u64| folder.join(format!("{number:016x}.spool"));
    let (first, empty) = (segment(1), segment(9));
    File::create(&empty).unwrap();
    [&first, &empty].into_iter().for_each(|path| set_immutable(path, "+i"));
    disk.lose_inode_of(&segment(2));
    let (listener, address) = upstream();
    let relay = Relay::start(program(), &folder, &address, smallest);
    let told =
        |words: &str| assert!(relay.start.iter().any(|line| line.contains(words)), "{:?}", relay.start);
    told("segments of the spool are read-only");
    told("a segment of the spool cannot be opened");
    told("failed to remove an empty segment of the spool");
    Sender::of(&relay).send("zipkin", b"what comes".to_vec());
    let (mut calls, mut got) = (Calls::accept(&listener), Vec::new());
    while got.last().is_none_or(|message| message != b"what comes") {
        let (seq, messages) = calls.next();
        got.extend(messages);
        calls.answer(seq);
    }
    while sum(&relay, "blkin_relay_entries_upstream_in_flight{") > 0 {
        std::thread::yield_now();
    }
    let lost = sum(&relay, "blkin_relay_entries_upstream_lost_total{");
    assert!(lost > 0 && got[0] == vec![b'a'; 100 << 10] && segment(10).exists(), "{lost}");
    assert_eq!(got.len() as u64 + lost, 7);
    relay.tells("failed to remove segments that have left the spool");
    let health = relay.get("/healthz");
    assert!(health.contains(" 200 ") && health.contains("\"name\":\"removal\""), "{health}");
    while sum(&relay, "blkin_relay_spool_segments") > 1 {
        std::thread::yield_now();
    }
    let length = first.metadata().unwrap().len();
    assert!(
        sum(&relay, "blkin_relay_spool_bytes") > length,
        "the segment that cannot be removed still counts"
    );
    set_immutable(&first, "-i");
    while sum(&relay, "blkin_relay_spool_bytes") > length {
        std::thread::yield_now();
    }
    assert!(!first.exists());
}
