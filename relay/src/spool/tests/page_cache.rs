//! Which files a start reads from the disk, and not from the page cache.

use std::io::Write;

use rustix::fs::{FsWord, statfs};

use super::*;

/// Bytes that the system has read from disks for this thread.
fn bytes_from_disks() -> u64 {
    let told = fs::read_to_string("/proc/thread-self/io").unwrap();
    told.lines().find_map(|line| line.strip_prefix("read_bytes: ")).unwrap().parse().unwrap()
}

impl Fixture {
    /// A spool on a disk: the system's temporary folder may be in memory. None if the checkout is in memory too.
    fn on_disk(limits: Limits) -> Option<Self> {
        const TMPFS: FsWord = 0x0102_1994;
        let folder = TempDir::new_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        if statfs(folder.path()).unwrap().f_type == TMPFS {
            let _ = writeln!(io::stderr(), "not shown: the files of this checkout are on no disk");
            return None;
        }
        let mut fixture = Fixture::new(limits, &["a:1"]);
        fixture.folder = folder;
        fixture.open();
        Some(fixture)
    }

    /// Bytes that a start reads from the disk.
    fn bytes_of_start(&mut self) -> u64 {
        let before = bytes_from_disks();
        self.open();
        bytes_from_disks() - before
    }
}

#[test]
fn start_reads_unconfirmed_entries_from_disk_not_page_cache() {
    const ENTRIES: u64 = 4000;
    let Some(mut fixture) = Fixture::on_disk(Limits { segment_bytes: 16 << 20, ..roomy() }) else { return };
    fixture.append(ENTRIES).unwrap();
    let read = fixture.bytes_of_start();
    assert!(read > ENTRIES * ENTRY_BYTES as u64 / 2, "{read} bytes");
    fixture.spool().roll().unwrap();
    fixture.spool().sweep().unwrap();
    let read = fixture.bytes_of_start();
    assert!(
        read < ENTRIES * ENTRY_BYTES as u64 / 2,
        "{read} bytes, although they were known to be on the disk"
    );
    assert_eq!(fixture.drain(0), Vec::from_iter(0..ENTRIES));
}

#[test]
fn start_reads_positions_from_disk_not_page_cache() {
    let Some(mut fixture) = Fixture::on_disk(roomy()) else { return };
    fixture.spool().sweep().unwrap();
    let read = fixture.bytes_of_start();
    assert!(read >= checkpoint::SLOT_BYTES as u64, "{read} bytes");
}
