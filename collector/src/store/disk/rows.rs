//! Reads and writes rows of the open file.

use std::cell::RefCell;
use std::ops::ControlFlow;
use std::rc::Rc;

use redb::{Database, ReadableTable, Table};

use super::library::{self, OwnCode};
use super::{Disk, ROWS, StoreError, engine, is_of_disk, reading};
use crate::store::engine::{Snapshot, Transaction, Visit, Work};

/// Commits `work` as one transaction, and returns about how many bytes were written.
pub(super) fn commit(database: &Database, work: Work<'_>, own: &OwnCode) -> Result<u64, StoreError> {
    let transaction = database.begin_write().map_err(engine)?;
    let (done, written) = {
        let mut rows = Writer { table: transaction.open_table(ROWS).map_err(engine)?, written: 0 };
        (own.run(|| work(&mut rows)), rows.written)
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

    fn read<T>(
        &self,
        mut work: impl FnMut(&Rows, &OwnCode) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        loop {
            let rows = self.rows.borrow().clone();
            match self.disk.guarded(|own| work(&rows, own)) {
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
    own: &OwnCode,
) -> Result<bool, StoreError> {
    let Some(value) = table.get(key).map_err(reading)? else { return Ok(false) };
    own.run(|| {
        visit(value.value());
        Ok(true)
    })
}

fn scan(
    table: &impl ReadableTable<&'static [u8], &'static [u8]>,
    prefix: &[u8],
    from: &[u8],
    visit: Visit<'_>,
    own: &OwnCode,
) -> Result<(), StoreError> {
    for row in table.range(from.max(prefix)..).map_err(reading)? {
        let (key, value) = row.map_err(reading)?;
        let key = key.value();
        if !key.starts_with(prefix) || own.run(|| visit(key, value.value()))? == ControlFlow::Break(()) {
            break;
        }
    }
    Ok(())
}

impl Snapshot for Reader<'_> {
    fn look(&self, key: &[u8], visit: &mut dyn FnMut(&[u8])) -> Result<bool, StoreError> {
        self.read(|rows, own| look(&rows.table, key, visit, own))
    }

    fn scan(&self, prefix: &[u8], from: &[u8], visit: Visit<'_>) -> Result<(), StoreError> {
        let mut from = from.to_vec();
        self.read(|rows, own| {
            let begin = from.clone();
            let mut visit = |key: &[u8], value: &[u8]| {
                // A scan that is resumed begins at the first key behind this one.
                from.clear();
                from.extend_from_slice(key);
                from.push(0);
                visit(key, value)
            };
            scan(&rows.table, prefix, &begin, &mut visit, own)
        })
    }
}

/// Each call of the library by itself: a panic of the work between them is our own.
impl Snapshot for Writer<'_> {
    fn look(&self, key: &[u8], visit: &mut dyn FnMut(&[u8])) -> Result<bool, StoreError> {
        library::call(|own| look(&self.table, key, visit, own))
    }

    fn scan(&self, prefix: &[u8], from: &[u8], visit: Visit<'_>) -> Result<(), StoreError> {
        library::call(|own| scan(&self.table, prefix, from, visit, own))
    }
}

impl Transaction for Writer<'_> {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        library::call(|_| self.table.insert(key, value).map(drop).map_err(engine))?;
        self.written += value.len() as u64;
        Ok(())
    }

    fn delete(&mut self, key: &[u8]) -> Result<(), StoreError> {
        library::call(|_| self.table.remove(key).map(drop).map_err(engine))
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
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
        let written = disk.with(|_, database| {
            commit(database, &mut |rows| rows.put(b"large", &large), &OwnCode::default())
        });
        assert!(matches!(written, Err(StoreError::Engine(_))), "{written:?}");
        let all_are_there =
            |rows: &dyn Snapshot| (0..64).all(|number| rows.look(&[b'r', number], &mut |_| {}).unwrap());
        assert!(all_are_there(&*rows) && all_are_there(&*disk.read().unwrap()));
    }

    #[test]
    fn a_panic_of_our_own_code_is_not_taken_for_damage() {
        let folder = tempfile::tempdir().unwrap();
        let disk = filled(folder.path());
        let panics = |work: &dyn Fn() -> Result<(), StoreError>| {
            catch_unwind(AssertUnwindSafe(work)).expect_err("it must panic");
        };
        let rows = disk.read().unwrap();
        panics(&|| rows.look(b"r\0", &mut |_| panic!("in a look")).map(drop));
        panics(&|| rows.scan(b"r", b"", &mut |_, _| panic!("in a scan")));
        panics(&|| {
            disk.write(&mut |rows| {
                rows.put(b"half", b"done")?;
                panic!("in a transaction")
            })
        });
        panics(&|| disk.write(&mut |rows| rows.scan(b"r", b"", &mut |_, _| panic!("in its scan"))));
        panics(&|| disk.write(&mut |rows| rows.look(b"r\0", &mut |_| panic!("in its look")).map(drop)));
        drop(rows);
        disk.write(&mut |rows| rows.put(b"whole", b"done")).unwrap();
        let rows = disk.read().unwrap();
        assert_eq!((rows.get(b"half").unwrap(), rows.get(b"whole").unwrap()), (None, Some(b"done".to_vec())));
        drop(rows);
        drop(disk);
        assert!(!Disk::open(folder.path(), 1 << 20).unwrap().was_suspect());
    }
}
