//! Start-up over a damaged file: it is set aside, and the pieces that are whole in its bytes are stored anew.
//!
//! Each piece carries its own checksum and trace id ([`super::frame`]), so that no page of the tree is needed to find it.
//! What had expired, but was not overwritten yet, comes back with the rest and leaves again in its time.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::disk::{DAMAGED, Disk, FILE_NAME, SALVAGED};
use super::frame::{HEAD_BYTES, Head, MAGIC};
use super::writer::now_ms;
use super::{Batch, Store, StoreError, TraceStore, commit, pieces, read};
use crate::ledger::Figure;

/// Bytes that are looked through at a time.
const WINDOW_BYTES: usize = 1 << 20;
/// Pieces of one transaction.
const BATCH_PIECES: usize = 10_000;
/// Bytes of pieces of one transaction, apart from its last piece.
const BATCH_BYTES: usize = 8 << 20;

/// Opens the store in a folder. A file that cannot be used is set aside, and what is whole in it is stored anew; should
/// that be interrupted, the next start goes on.
///
/// # Errors
/// When the folder cannot be used, another process uses it, or the store is of another version.
pub fn open(
    folder: &Path,
    cache_bytes: usize,
    autocomplete_keys: &Arc<[String]>,
) -> Result<TraceStore<Disk>, StoreError> {
    let store = TraceStore::new(Disk::open(folder, cache_bytes)?)?;
    for path in files_set_aside(folder)? {
        let failed = |e: std::io::Error| StoreError::Open { path: path.clone(), reason: e.to_string() };
        let pieces = Salvage {
            store: &store,
            autocomplete_keys,
            v1: Batch::default(),
            v2: Batch::default(),
            found: 0,
        }
        .file(&path, &failed)?;
        let done = path.to_string_lossy().replace(DAMAGED, SALVAGED);
        fs::rename(&path, &done).map_err(failed)?;
        store.damage().note_salvaged(pieces);
        tracing::error!(file = %done, pieces, "stored anew what is whole in a damaged file; remove it when nobody wants it");
    }
    store.engine.trust()?;
    Ok(store)
}

fn files_set_aside(folder: &Path) -> Result<Vec<PathBuf>, StoreError> {
    let failed = |e: std::io::Error| StoreError::Open { path: folder.to_path_buf(), reason: e.to_string() };
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        if name.starts_with(&format!("{FILE_NAME}{DAMAGED}")) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

struct Salvage<'s> {
    store: &'s TraceStore<Disk>,
    autocomplete_keys: &'s Arc<[String]>,
    v1: Batch,
    v2: Batch,
    found: u64,
}

impl Salvage<'_> {
    /// Stores every whole piece of a file; returns how many were not in the store yet.
    fn file(mut self, path: &Path, failed: &dyn Fn(std::io::Error) -> StoreError) -> Result<u64, StoreError> {
        let file = File::open(path).map_err(failed)?;
        let end = file.metadata().map_err(failed)?.len();
        let mut window = vec![0; WINDOW_BYTES + HEAD_BYTES];
        let mut at = 0;
        while at < end {
            let filled = read_at_most(&file, &mut window, at).map_err(failed)?;
            let (mut from, looked_at) = (0, filled.min(WINDOW_BYTES));
            while let Some(found) =
                find(&window[from..filled], &MAGIC).filter(|found| from + found < looked_at)
            {
                let start = from + found;
                let body = Head::read(&window[start..filled])
                    .and_then(|head| body(&file, head, at + start as u64 + HEAD_BYTES as u64, end));
                let Some(body) = body else {
                    from = start + 1;
                    continue;
                };
                from = start + HEAD_BYTES + body.len();
                self.take(&body)?;
                if from >= looked_at {
                    break;
                }
            }
            at += from.max(looked_at) as u64;
        }
        self.store_batches()?;
        Ok(self.found)
    }

    fn take(&mut self, body: &[u8]) -> Result<(), StoreError> {
        let batch = if pieces::is_v1(body) { &mut self.v1 } else { &mut self.v2 };
        if batch.is_empty() {
            *batch = Batch::new(self.autocomplete_keys.clone());
        }
        // Its checksum holds, so only another version could have written what cannot be read.
        let _can_be_read = batch.push_stored(body);
        if self.v1.memory() + self.v2.memory() >= BATCH_BYTES || self.v1.len() + self.v2.len() >= BATCH_PIECES
        {
            self.store_batches()?;
        }
        Ok(())
    }

    fn store_batches(&mut self) -> Result<(), StoreError> {
        for (received, batch) in [
            (Figure::ReceivedScribe, std::mem::take(&mut self.v1)),
            (Figure::ReceivedHttpV2, std::mem::take(&mut self.v2)),
        ] {
            if !batch.is_empty() {
                self.found += store_as_received(self.store, received, &batch)?;
            }
        }
        Ok(())
    }
}

/// What is stored counts as received; a second copy of it in the file is no duplicate that anybody sent.
fn store_as_received(store: &TraceStore<Disk>, received: Figure, batch: &Batch) -> Result<u64, StoreError> {
    let before = store.ledger()?;
    let mut spans = 0;
    store.commit_and(std::slice::from_ref(batch), now_ms(), &mut |rows| {
        let mut ledger = read::ledger(rows)?;
        let mut new = ledger.get(Figure::Stored);
        new -= before.get(Figure::Stored);
        *ledger.get_mut(received) += new;
        *ledger.get_mut(Figure::Duplicate) = before.get(Figure::Duplicate);
        spans = new.spans;
        commit::write_ledger(rows, &ledger)
    })?;
    Ok(spans)
}

/// The body that a head announces, if it is there and is what was sealed.
fn body(file: &File, head: Head, at: u64, end: u64) -> Option<Vec<u8>> {
    if at.checked_add(u64::from(head.length))? > end {
        return None;
    }
    let mut body = vec![0; head.length as usize];
    file.read_exact_at(&mut body, at).ok()?;
    head.fits(&body).then_some(body)
}

fn read_at_most(file: &File, window: &mut [u8], at: u64) -> std::io::Result<usize> {
    let mut filled = 0;
    while filled < window.len() {
        match file.read_at(&mut window[filled..], at + filled as u64)? {
            0 => break,
            more => filled += more,
        }
    }
    Ok(filled)
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes.windows(wanted.len()).position(|window| window == wanted)
}
