//! The durable engine: one redb file. Why redb: docs/adr/0001-store.md.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock};

use redb::{Database, ReadableDatabase, ReadableTable, Table, TableDefinition};

use super::StoreError;
use super::engine::{Engine, Snapshot, Transaction, Visit, Work};

const ROWS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("rows");

/// Name of the store's file in the data folder.
pub const FILE_NAME: &str = "traces.redb";

/// Rows in a redb file.
pub struct Disk {
    path: PathBuf,
    cache_bytes: usize,
    /// None after a failure, until the next transaction opens the file again: redb refuses everything after an error
    /// of the disk, also when there is space again.
    database: RwLock<Option<Database>>,
}

impl Disk {
    /// Opens the store in `folder`, which is created if it is missing. Only one process can have it open.
    ///
    /// # Errors
    /// When the folder or the file cannot be used, or another process has it open.
    pub fn open(folder: &Path, cache_bytes: usize) -> Result<Self, StoreError> {
        let path = folder.join(FILE_NAME);
        std::fs::create_dir_all(folder)
            .map_err(|e| StoreError::Open { path: folder.to_path_buf(), reason: e.to_string() })?;
        let database = open_file(&path, cache_bytes)?;
        let disk = Disk { path, cache_bytes, database: RwLock::new(Some(database)) };
        // The table exists from now on, so that reading never fails for its absence.
        disk.write(&mut |_| Ok(()))?;
        Ok(disk)
    }

    fn reopened(&self) -> Result<(), StoreError> {
        let mut database = self.database.write().unwrap_or_else(PoisonError::into_inner);
        if database.is_none() {
            *database = Some(open_file(&self.path, self.cache_bytes)?);
            tracing::info!("opened the store again");
        }
        Ok(())
    }

    fn with<T>(&self, work: impl FnOnce(&Database) -> Result<T, StoreError>) -> Result<T, StoreError> {
        let database = self.database.read().unwrap_or_else(PoisonError::into_inner);
        match &*database {
            Some(database) => work(database),
            None => Err(StoreError::Engine("it is closed since the disk failed".to_owned())),
        }
    }
}

fn open_file(path: &Path, cache_bytes: usize) -> Result<Database, StoreError> {
    Database::builder()
        .set_cache_size(cache_bytes)
        .create(path)
        .map_err(|e| StoreError::Open { path: path.to_path_buf(), reason: e.to_string() })
}

fn engine(error: impl Into<redb::Error>) -> StoreError {
    StoreError::Engine(error.into().to_string())
}

fn commit(database: &Database, work: Work<'_>) -> Result<(), StoreError> {
    let transaction = database.begin_write().map_err(engine)?;
    let done = work(&mut Writer(transaction.open_table(ROWS).map_err(engine)?));
    match done {
        Ok(()) => transaction.commit().map_err(engine),
        Err(error) => {
            transaction.abort().map_err(engine)?;
            Err(error)
        }
    }
}

impl Engine for Disk {
    fn read(&self) -> Result<Box<dyn Snapshot + '_>, StoreError> {
        self.with(|database| {
            let transaction = database.begin_read().map_err(engine)?;
            Ok(Box::new(Reader(transaction.open_table(ROWS).map_err(engine)?)) as Box<dyn Snapshot>)
        })
    }

    fn write(&self, work: Work<'_>) -> Result<(), StoreError> {
        self.reopened()?;
        let done = self.with(|database| commit(database, work));
        if let Err(StoreError::Engine(_)) = done {
            *self.database.write().unwrap_or_else(PoisonError::into_inner) = None;
        }
        done
    }
}

struct Reader(redb::ReadOnlyTable<&'static [u8], &'static [u8]>);
struct Writer<'t>(Table<'t, &'static [u8], &'static [u8]>);

fn get(
    table: &impl ReadableTable<&'static [u8], &'static [u8]>,
    key: &[u8],
) -> Result<Option<Vec<u8>>, StoreError> {
    Ok(table.get(key).map_err(engine)?.map(|value| value.value().to_vec()))
}

fn scan(
    table: &impl ReadableTable<&'static [u8], &'static [u8]>,
    prefix: &[u8],
    from: &[u8],
    visit: Visit<'_>,
) -> Result<(), StoreError> {
    for row in table.range(from.max(prefix)..).map_err(engine)? {
        let (key, value) = row.map_err(engine)?;
        let key = key.value();
        if !key.starts_with(prefix) || visit(key, value.value())? == ControlFlow::Break(()) {
            break;
        }
    }
    Ok(())
}

impl Snapshot for Reader {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        get(&self.0, key)
    }

    fn scan(&self, prefix: &[u8], from: &[u8], visit: Visit<'_>) -> Result<(), StoreError> {
        scan(&self.0, prefix, from, visit)
    }
}

impl Snapshot for Writer<'_> {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        get(&self.0, key)
    }

    fn scan(&self, prefix: &[u8], from: &[u8], visit: Visit<'_>) -> Result<(), StoreError> {
        scan(&self.0, prefix, from, visit)
    }
}

impl Transaction for Writer<'_> {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        self.0.insert(key, value).map_err(engine)?;
        Ok(())
    }

    fn delete(&mut self, key: &[u8]) -> Result<(), StoreError> {
        self.0.remove(key).map_err(engine)?;
        Ok(())
    }
}
