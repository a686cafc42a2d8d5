//! The store's file while its disk takes no writes. The database library writes to a file that was not closed cleanly before it
//! reads it. Here such writes stay in memory, so that stored traces can be answered all the same.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ops::{Bound, Range};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use redb::backends::FileBackend;
use redb::{BackendError, DatabaseError, StorageBackend};

/// Bytes of a page, the unit that is kept in memory.
const PAGE: usize = 4096;
/// Most pages in memory. Repairing a file takes one or two pages for each GiB of it.
const MOST_PAGES: usize = 16 << 10;

/// A file that is never written to.
#[derive(Debug)]
pub(super) struct Overlay {
    file: File,
    /// The same file, for its locks.
    locks: FileBackend,
    over: RwLock<Over>,
}

/// The writes to it, which are kept in memory.
#[derive(Debug)]
struct Over {
    length: u64,
    /// How much of the real file still counts: if the file was shortened and lengthened again, the part behind this is zeros.
    below: u64,
    pages: BTreeMap<u64, Box<[u8; PAGE]>>,
}

impl Overlay {
    /// An overlay over an existing file.
    pub(super) fn open(path: &Path) -> Result<Overlay, DatabaseError> {
        let file = File::open(path)?;
        let length = file.metadata()?.len();
        let locks = FileBackend::new(file.try_clone()?)?;
        Ok(Overlay { file, locks, over: RwLock::new(Over { length, below: length, pages: BTreeMap::new() }) })
    }

    fn over(&self) -> RwLockReadGuard<'_, Over> {
        self.over.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn over_mut(&self) -> RwLockWriteGuard<'_, Over> {
        self.over.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the real file; zeros behind the part that counts.
    fn read_below(&self, over: &Over, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let counts = usize::try_from(over.below.saturating_sub(offset)).unwrap_or(usize::MAX);
        let (from_file, zeros) = out.split_at_mut(counts.min(out.len()));
        zeros.fill(0);
        self.file.read_exact_at(from_file, offset)
    }

    fn page_below(&self, over: &Over, number: u64) -> io::Result<Box<[u8; PAGE]>> {
        let mut page = Box::new([0; PAGE]);
        self.read_below(over, number * PAGE as u64, &mut page[..])?;
        Ok(page)
    }
}

/// The pages that a range touches: the number of each, its part of the range, and where that begins in the page.
fn pages(offset: u64, length: usize) -> impl Iterator<Item = (u64, Range<usize>, usize)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = offset + done as u64;
        let within = (at % PAGE as u64) as usize;
        let part = done..length.min(done + PAGE - within);
        done = part.end;
        (!part.is_empty()).then(|| (at / PAGE as u64, part, within))
    })
}

impl StorageBackend for Overlay {
    fn len(&self) -> io::Result<u64> {
        Ok(self.over().length)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let over = self.over();
        if offset.checked_add(out.len() as u64).is_none_or(|end| end > over.length) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.read_below(&over, offset, out)?;
        for (number, part, within) in pages(offset, out.len()) {
            if let Some(page) = over.pages.get(&number) {
                let length = part.len();
                out[part].copy_from_slice(&page[within..within + length]);
            }
        }
        Ok(())
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        let mut over = self.over_mut();
        if length < over.length {
            let first_gone = length.div_ceil(PAGE as u64);
            over.pages.split_off(&first_gone);
            let within = (length % PAGE as u64) as usize;
            if let Some(page) = over.pages.get_mut(&(length / PAGE as u64)) {
                page[within..].fill(0);
            }
        }
        over.below = over.below.min(length);
        over.length = length;
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut over = self.over_mut();
        let over = &mut *over;
        for (number, part, within) in pages(offset, data.len()) {
            if !over.pages.contains_key(&number) {
                if over.pages.len() >= MOST_PAGES {
                    return Err(io::ErrorKind::ReadOnlyFilesystem.into());
                }
                let page = self.page_below(over, number)?;
                over.pages.insert(number, page);
            }
            let page = over.pages.get_mut(&number).ok_or(io::ErrorKind::NotFound)?;
            page[within..within + part.len()].copy_from_slice(&data[part]);
        }
        Ok(())
    }

    /// Takes a shared lock, the only kind for a file that is open for reading only. It is enough to keep others from writing.
    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.locks.try_lock_shared_range(start, end)
    }

    fn try_lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.locks.try_lock_shared_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.locks.unlock_range(start, end)
    }

    fn query_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.locks.query_lock_range(start, end)
    }

    fn close(&self) -> io::Result<()> {
        self.locks.close()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone)]
    enum Step {
        Write(u64, Vec<u8>),
        SetLength(u64),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let end = 3 * PAGE as u64;
        let write = (0..end, proptest::collection::vec(any::<u8>(), 0..2 * PAGE));
        let step = prop_oneof![3 => write.prop_map(|(at, bytes)| Step::Write(at, bytes)), 1 => (0..2 * end).prop_map(Step::SetLength)];
        proptest::collection::vec(step, 0..12)
    }

    proptest! {
        #[test]
        fn an_overlay_reads_as_written_and_leaves_the_file_unchanged(steps in steps()) {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("file");
            let before: Vec<u8> = (0..2 * PAGE + 100).map(|at| at as u8).collect();
            std::fs::write(&path, &before).unwrap();
            let overlay = Overlay::open(&path).unwrap();
            let mut expected = before.clone();
            for step in steps {
                match step {
                    Step::Write(at, bytes) => {
                        let (at, end) = (at as usize, at as usize + bytes.len());
                        if end > expected.len() {
                            overlay.set_len(end as u64).unwrap();
                            expected.resize(end, 0);
                        }
                        overlay.write(at as u64, &bytes).unwrap();
                        expected[at..end].copy_from_slice(&bytes);
                    }
                    Step::SetLength(length) => {
                        overlay.set_len(length).unwrap();
                        expected.resize(length as usize, 0);
                    }
                }
            }
            let mut found = vec![1; overlay.len().unwrap() as usize];
            overlay.read(0, &mut found).unwrap();
            prop_assert!(found == expected);
            prop_assert!(overlay.read(expected.len() as u64, &mut [0]).is_err());
            prop_assert!(std::fs::read(&path).unwrap() == before);
        }
    }
}
