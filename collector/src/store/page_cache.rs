//! Keeps the system's page cache of the store's file from growing without end.
//!
//! Written pages stay in the page cache until the system needs the memory. There they only duplicate the store's own
//! cache, and displace pages of the machine's other programs. Besides, a fresh page of memory costs more than a reused
//! one: in a virtual machine whose host provides memory page by page, that was a third of the whole cost of a span.

use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{Advice, fadvise};

use super::StoreError;

/// Counts how much was written to a file, and drops its pages now and then.
#[derive(Debug)]
pub(super) struct PageCache {
    file: File,
    most: u64,
    written: AtomicU64,
}

impl PageCache {
    /// For an existing file, of which about `most` bytes may stay in the page cache.
    pub(super) fn of(path: &Path, most: u64) -> Result<Self, StoreError> {
        let file = File::open(path)
            .map_err(|error| StoreError::Open { path: path.to_path_buf(), reason: error.to_string() })?;
        Ok(PageCache { file, most, written: AtomicU64::new(0) })
    }

    /// Notes that so many bytes were written and are on the disk: only pages that are on the disk can be dropped.
    pub(super) fn wrote(&self, bytes: u64) {
        if self.written.fetch_add(bytes, Ordering::Relaxed) + bytes < self.most {
            return;
        }
        self.written.store(0, Ordering::Relaxed);
        if let Err(error) = fadvise(&self.file, 0, None, Advice::DontNeed) {
            tracing::debug!("failed to drop the store's file from the page cache: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::Command;

    use rustix::fs::{FsWord, statfs};
    use tempfile::TempDir;

    use super::*;
    use crate::store::disk::{Disk, FILE_NAME};
    use crate::store::engine::Engine;

    const CACHE_BYTES: usize = 4 << 20;

    fn resident_bytes(path: &Path) -> usize {
        let told =
            Command::new("fincore").args(["--bytes", "--noheadings", "--output", "RES"]).arg(path).output();
        String::from_utf8(told.unwrap().stdout).unwrap().trim().parse().unwrap()
    }

    /// A folder on a disk, which the system's temporary folder may not be; none if the checkout is not on a disk either.
    fn on_disk() -> Option<TempDir> {
        const TMPFS: FsWord = 0x0102_1994;
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let is_on_disk = statfs(folder.path()).unwrap().f_type != TMPFS;
        if !is_on_disk {
            let _ = writeln!(std::io::stderr(), "skipped: the files of this checkout are not on a disk");
        }
        is_on_disk.then_some(folder)
    }

    #[test]
    fn old_writes_are_dropped_from_the_page_cache() {
        let Some(folder) = on_disk() else { return };
        let disk = Disk::open(folder.path(), CACHE_BYTES).unwrap();
        let path = folder.path().join(FILE_NAME);
        for number in 0..320_u32 {
            disk.write(&mut |rows| rows.put(&number.to_be_bytes(), &[7; 60_000])).unwrap();
            let resident = resident_bytes(&path);
            assert!(resident < 2 * CACHE_BYTES, "{resident} bytes after {number} rows");
        }
        assert!(path.metadata().unwrap().len() > 4 * CACHE_BYTES as u64);
    }

    /// How many bytes the system has read from disks for this thread.
    fn bytes_from_disks() -> u64 {
        let told = std::fs::read_to_string("/proc/thread-self/io").unwrap();
        told.lines().find_map(|line| line.strip_prefix("read_bytes: ")).unwrap().parse().unwrap()
    }

    #[test]
    fn opening_reads_from_the_disk_not_the_page_cache() {
        let Some(folder) = on_disk() else { return };
        let disk = Disk::open(folder.path(), CACHE_BYTES).unwrap();
        disk.write(&mut |rows| (0..64).try_for_each(|number| rows.put(&[number], &[7; 60_000]))).unwrap();
        drop(disk);
        let resident = resident_bytes(&folder.path().join(FILE_NAME)) as u64;
        let before = bytes_from_disks();
        Disk::open(folder.path(), CACHE_BYTES).unwrap();
        let read = bytes_from_disks() - before;
        assert!(read > resident / 2, "{read} bytes of {resident} that the page cache had");
    }
}
