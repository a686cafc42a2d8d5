//! What a start believes of files that the system keeps in its memory.

use super::*;

/// What this thread had the system read of disks.
fn bytes_from_disks() -> u64 {
    let told = fs::read_to_string("/proc/thread-self/io").unwrap();
    told.lines().find_map(|line| line.strip_prefix("read_bytes: ")).unwrap().parse().unwrap()
}

impl Fixture {
    /// A spool where files are on a disk, unlike perhaps in the system's folder for such.
    fn on_disk(limits: Limits) -> Self {
        let mut fixture = Fixture::new(limits, &["a:1"]);
        fixture.folder = TempDir::new_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        fixture.open();
        fixture
    }

    /// What a start reads of the disk.
    fn bytes_of_start(&mut self) -> u64 {
        let before = bytes_from_disks();
        self.open();
        bytes_from_disks() - before
    }
}

#[test]
fn a_start_reads_the_disk_for_what_it_is_not_known_to_have() {
    const ENTRIES: u64 = 4000;
    let mut fixture = Fixture::on_disk(Limits { segment_bytes: 16 << 20, ..roomy() });
    fixture.append(ENTRIES).unwrap();
    let read = fixture.bytes_of_start();
    assert!(read > ENTRIES * ENTRY_BYTES as u64 / 2, "{read} bytes");
    fixture.spool().roll().unwrap();
    fixture.spool().sweep().unwrap();
    let read = fixture.bytes_of_start();
    assert!(read < ENTRIES * ENTRY_BYTES as u64 / 2, "{read} bytes, of which it was known");
    assert_eq!(fixture.drain(0), Vec::from_iter(0..ENTRIES));
}

#[test]
fn a_start_reads_the_disk_for_positions() {
    let mut fixture = Fixture::on_disk(roomy());
    fixture.spool().sweep().unwrap();
    let read = fixture.bytes_of_start();
    assert!(read >= checkpoint::SLOT_BYTES as u64, "{read} bytes");
}
