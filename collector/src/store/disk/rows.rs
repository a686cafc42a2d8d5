//! Reads and writes rows of the open file.

use std::cell::RefCell;
use std::ops::ControlFlow;
use std::rc::Rc;

use redb::{Database, ReadableTable, Table};

use super::{Disk, ROWS, StoreError, engine, is_of_disk, reading};
use crate::store::engine::{Snapshot, Transaction, Visit, Work};

/// Commits `work` as one transaction, and returns about how many bytes were written.
pub(super) fn commit(database: &Database, work: Work<'_>) -> Result<u64, StoreError> {
    let transaction = database.begin_write().map_err(engine)?;
    let (done, written) = {
        let mut rows = Writer { table: transaction.open_table(ROWS).map_err(engine)?, written: 0 };
        (work(&mut rows), rows.written)
    };
    match done {
        Ok(()) => transaction.commit().map_err(engine).map(|()| written),
        // After a disk error, aborting fails because of that error, and its own error would say less.
        Err(error) => match transaction.abort().map_err(engine) {
            Err(aborting) if !is_of_disk(&error) => Err(aborting),
            _ => Err(error),
        },
    }
}

/// A snapshot of the rows, which is valid as long as the file keeps this opening.
pub(super) struct Rows {
    pub(super) table: redb::ReadOnlyTable<&'static [u8], &'static [u8]>,
    pub(super) opening: u64,
}

/// A reader that goes on after the file was closed because a write failed: it opens the file again, which can still be read.
pub(super) struct Reader<'d> {
    rows: RefCell<Rc<Rows>>,
    disk: &'d Disk,
}

impl<'d> Reader<'d> {
    pub(super) fn of(disk: &'d Disk) -> Result<Reader<'d>, StoreError> {
        Ok(Reader { rows: RefCell::new(disk.rows()?), disk })
    }

    fn read<T>(&self, mut work: impl FnMut(&Rows) -> Result<T, StoreError>) -> Result<T, StoreError> {
        loop {
            let rows = self.rows.borrow().clone();
            match self.disk.guarded(|| work(&rows)) {
                Err(StoreError::Closed) => self.renew(&rows)?,
                done => return self.disk.close_after(rows.opening, done),
            }
        }
    }

    fn renew(&self, closed: &Rc<Rows>) -> Result<(), StoreError> {
        // The visitor of a scan may itself have read rows meanwhile, and renewed them.
        let is_renewed = !Rc::ptr_eq(&self.rows.borrow(), closed);
        if !is_renewed {
            self.disk.close_to_renew(closed.opening)?;
            let rows = self.disk.rows()?;
            self.rows.replace(rows);
        }
        Ok(())
    }
}

struct Writer<'t> {
    table: Table<'t, &'static [u8], &'static [u8]>,
    /// Bytes of all values that were put.
    written: u64,
}

fn look(
    table: &impl ReadableTable<&'static [u8], &'static [u8]>,
    key: &[u8],
    visit: &mut dyn FnMut(&[u8]),
) -> Result<bool, StoreError> {
    let value = table.get(key).map_err(reading)?;
    Ok(value.inspect(|value| visit(value.value())).is_some())
}

fn scan(
    table: &impl ReadableTable<&'static [u8], &'static [u8]>,
    prefix: &[u8],
    from: &[u8],
    visit: Visit<'_>,
) -> Result<(), StoreError> {
    for row in table.range(from.max(prefix)..).map_err(reading)? {
        let (key, value) = row.map_err(reading)?;
        let key = key.value();
        if !key.starts_with(prefix) || visit(key, value.value())? == ControlFlow::Break(()) {
            break;
        }
    }
    Ok(())
}

impl Snapshot for Reader<'_> {
    fn look(&self, key: &[u8], visit: &mut dyn FnMut(&[u8])) -> Result<bool, StoreError> {
        self.read(|rows| look(&rows.table, key, visit))
    }

    fn scan(&self, prefix: &[u8], from: &[u8], visit: Visit<'_>) -> Result<(), StoreError> {
        let mut from = from.to_vec();
        self.read(|rows| {
            let begin = from.clone();
            scan(&rows.table, prefix, &begin, &mut |key, value| {
                // A scan that is resumed begins at the first key behind this one.
                from.clear();
                from.extend_from_slice(key);
                from.push(0);
                visit(key, value)
            })
        })
    }
}

impl Snapshot for Writer<'_> {
    fn look(&self, key: &[u8], visit: &mut dyn FnMut(&[u8])) -> Result<bool, StoreError> {
        look(&self.table, key, visit)
    }

    fn scan(&self, prefix: &[u8], from: &[u8], visit: Visit<'_>) -> Result<(), StoreError> {
        scan(&self.table, prefix, from, visit)
    }
}

impl Transaction for Writer<'_> {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        self.table.insert(key, value).map_err(engine)?;
        self.written += value.len() as u64;
        Ok(())
    }

    fn delete(&mut self, key: &[u8]) -> Result<(), StoreError> {
        self.table.remove(key).map_err(engine)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::store::disk::opening::open_to_read;
    use crate::store::disk::{Open, Opened};
    use crate::store::engine::Engine;

    /// One row; 64 of them do not fit into the cache of [`filled`].
    static ROW: [u8; 60_000] = [7; 60_000];

    fn filled(folder: &Path) -> Disk {
        let disk = Disk::open(folder, 1 << 20).unwrap();
        disk.write(&mut |rows| (0..64).try_for_each(|number| rows.put(&[b'r', number], &ROW))).unwrap();
        disk
    }

    #[test]
    fn a_scan_sees_each_row_once_while_the_file_is_closed() {
        let folder = tempfile::tempdir().unwrap();
        let disk = filled(folder.path());
        let rows = disk.read().unwrap();
        let mut seen = Vec::new();
        let scanned = rows.scan(b"r", b"", &mut |key, _| {
            seen.push(key[1]);
            disk.close(disk.openings.load(Ordering::Relaxed));
            // Other rows are read during the scan.
            assert!(rows.look(&[b'r', 63 - key[1]], &mut |value| assert!(value == ROW))?);
            Ok(ControlFlow::Continue(()))
        });
        scanned.unwrap();
        assert_eq!(seen, (0..64).collect::<Vec<_>>());
    }

    #[test]
    fn reads_continue_after_a_failed_write_breaks_the_database() {
        let folder = tempfile::tempdir().unwrap();
        let disk = filled(folder.path());
        disk.close(0);
        // This database takes only a few pages of writes.
        let few_pages = open_to_read(&disk.path, 1 << 20).unwrap();
        *disk.opened_mut() = Some(Open { number: 100, opened: Opened::Whole(few_pages) });
        let rows = disk.read().unwrap();
        let large = vec![1; 80 << 20];
        let written = disk.with(|_, database| commit(database, &mut |rows| rows.put(b"large", &large)));
        assert!(matches!(written, Err(StoreError::Engine(_))), "{written:?}");
        let all_are_there =
            |rows: &dyn Snapshot| (0..64).all(|number| rows.look(&[b'r', number], &mut |_| {}).unwrap());
        assert!(all_are_there(&*rows) && all_are_there(&*disk.read().unwrap()));
    }
}
