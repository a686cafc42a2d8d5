//! Recovers a damaged file at the start: it is set aside, and the pieces that are whole in its bytes are stored again.
//!
//! Each piece carries its own checksum and trace id ([`super::frame`]), so it can be found without a page of the tree.
//! Expired pieces that were not overwritten yet come back with the rest, and expire again in their time.
//!
//! A head may be forged: a sender chooses the bytes of an annotation, and if the piece around it is damaged, these bytes are
//! searched like any others. So no memory is taken for what a head announces before its checksum holds, and at most a few times
//! the size of the file is read in vain for bodies longer than a block ([`Bodies`]).

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::block::BLOCK_BYTES;
use super::disk::{DAMAGED, Disk, FILE_NAME, SALVAGED, is_lost};
use super::frame::{Checksum, HEAD_BYTES, Head, MAGIC};
use super::writer::now_ms;
use super::{Batch, Store, StoreError, TO_THE_END, TraceStore, commit, pieces, read};
use crate::config::MOST_MESSAGE_BYTES;
use crate::ledger::Figure;

/// Bytes that are searched at a time.
const WINDOW_BYTES: usize = 1 << 20;
/// Most pieces of one transaction.
const BATCH_PIECES: usize = 10_000;
/// Most bytes of pieces of one transaction, apart from its last piece.
const BATCH_BYTES: usize = 8 << 20;
/// How many times the size of the file may be read for long bodies that turn out to be false.
const MOST_IN_VAIN: u64 = 4;

/// Opens the store in a folder. A file that cannot be used is set aside, and the pieces that are whole in it are stored
/// again; if that is interrupted, the next start goes on with it.
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
        let failed = |e: io::Error| StoreError::Open { path: path.clone(), reason: e.to_string() };
        store.damage().note_file();
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
        tracing::error!(file = %done, pieces, "recovered what is whole in a damaged file; the file may now be removed");
    }
    store.engine.trust()?;
    Ok(store)
}

fn files_set_aside(folder: &Path) -> Result<Vec<PathBuf>, StoreError> {
    let failed = |e: io::Error| StoreError::Open { path: folder.to_path_buf(), reason: e.to_string() };
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
    fn file(mut self, path: &Path, failed: &dyn Fn(io::Error) -> StoreError) -> Result<u64, StoreError> {
        let file = File::open(path).map_err(failed)?;
        let mut bodies = Bodies::of(&file).map_err(failed)?;
        let mut window = vec![0; WINDOW_BYTES + HEAD_BYTES];
        let (mut at, mut lost) = (0, 0);
        while at < bodies.end {
            let filled = window_at(|part, at| file.read_at(part, at), &mut window, at, &mut lost);
            let filled = filled.map_err(failed)?;
            let (mut from, looked_at) = (0, filled.min(WINDOW_BYTES));
            while let Some(found) =
                find(&window[from..filled], &MAGIC).filter(|found| from + found < looked_at)
            {
                let start = from + found;
                let body = Head::read(&window[start..filled])
                    .and_then(|head| bodies.read(head, at + start as u64 + HEAD_BYTES as u64));
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
        if lost > 0 {
            let (bytes, file) = (lost, path.display());
            tracing::error!(bytes, %file, "skipped bytes that the disk cannot read");
        }
        if bodies.unread > 0 {
            let (heads, file) = (bodies.unread, path.display());
            tracing::error!(heads, %file, "skipped possible heads of long pieces: too many others had proved to be false");
        }
        self.store_batches()?;
        Ok(self.found)
    }

    fn take(&mut self, body: &[u8]) -> Result<(), StoreError> {
        let batch = if pieces::is_v1(body) { &mut self.v1 } else { &mut self.v2 };
        if batch.is_empty() {
            *batch = Batch::new(self.autocomplete_keys.clone());
        }
        // The checksum holds, so a body that cannot be read must come from another version.
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

/// Recovered pieces count as received. A second copy in the file is not counted as a duplicate, because nobody sent it.
fn store_as_received(store: &TraceStore<Disk>, received: Figure, batch: &Batch) -> Result<u64, StoreError> {
    let before = store.ledger()?;
    let mut spans = 0;
    store.commit_and(std::slice::from_ref(batch), now_ms(), TO_THE_END, &mut |rows| {
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

/// The bodies of a file, as heads announce them.
struct Bodies<'f> {
    file: &'f File,
    /// Where the file ends.
    end: u64,
    part: Vec<u8>,
    /// Bytes that were read for bodies longer than a block that turned out to be false.
    in_vain: u64,
    /// Heads of such long bodies that were not checked because too much had been read in vain.
    unread: u64,
}

impl<'f> Bodies<'f> {
    fn of(file: &'f File) -> io::Result<Self> {
        let end = file.metadata()?.len();
        Ok(Bodies { file, end, part: vec![0; WINDOW_BYTES], in_vain: 0, unread: 0 })
    }

    /// The body that a head announces, if it is there and undamaged.
    fn read(&mut self, head: Head, at: u64) -> Option<Vec<u8>> {
        let length = u64::from(head.length);
        // A stored piece is shorter than the message in which it came.
        if length > MOST_MESSAGE_BYTES || at.checked_add(length)? > self.end {
            return None;
        }
        let is_long = length > BLOCK_BYTES as u64;
        if is_long && self.in_vain + length > self.end.saturating_mul(MOST_IN_VAIN) {
            self.unread += 1;
            return None;
        }
        if !self.fits(head, at).ok()? {
            self.in_vain += if is_long { length } else { 0 };
            return None;
        }
        let mut body = vec![0; head.length as usize];
        self.file.read_exact_at(&mut body, at).ok()?;
        head.fits(&body).then_some(body)
    }

    /// Whether the bytes behind a head have its checksum; they are read part by part.
    fn fits(&mut self, head: Head, at: u64) -> io::Result<bool> {
        let (mut checksum, mut read) = (Checksum::default(), 0);
        while read < head.length as usize {
            let part = &mut self.part[..WINDOW_BYTES.min(head.length as usize - read)];
            self.file.read_exact_at(part, at + read as u64)?;
            checksum.add(part);
            read += part.len();
        }
        Ok(head.has(&checksum))
    }
}

/// Fills a window with the bytes of a file from a place on, up to the end of the file. Bytes that the disk has lost become zeros,
/// and are counted in `lost`.
fn window_at(
    read: impl Fn(&mut [u8], u64) -> io::Result<usize>,
    window: &mut [u8],
    at: u64,
    lost: &mut u64,
) -> io::Result<usize> {
    /// The system reads whole pages, so no byte of a page with a bad sector can be read.
    const PAGE_BYTES: usize = 4096;
    let mut filled = 0;
    while filled < window.len() {
        let place = at + filled as u64;
        match read(&mut window[filled..], place) {
            Ok(0) => break,
            Ok(more) => filled += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if is_lost(&error) => {
                let to_page = PAGE_BYTES - (place % PAGE_BYTES as u64) as usize;
                let end = window.len().min(filled + to_page);
                window[filled..end].fill(0);
                *lost += (end - filled) as u64;
                filled = end;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes.windows(wanted.len()).position(|window| window == wanted)
}

#[cfg(test)]
mod tests {
    use super::super::frame;
    use super::*;

    /// A file with these bytes at these places, and holes between.
    fn file_of(parts: &[(u64, &[u8])], length: u64) -> File {
        let file = tempfile::tempfile().unwrap();
        file.set_len(length).unwrap();
        parts.iter().for_each(|(at, bytes)| file.write_all_at(bytes, *at).unwrap());
        file
    }

    fn head(length: u64) -> Head {
        let bytes = [&MAGIC[..], &(length as u32).to_be_bytes(), &[0; 8]].concat();
        Head::read(&bytes).unwrap()
    }

    #[test]
    fn a_body_of_any_length_is_read_if_its_seal_matches() {
        for length in [1, BLOCK_BYTES, WINDOW_BYTES - 1, WINDOW_BYTES, 2 * WINDOW_BYTES + 3] {
            let mut sealed = vec![7; HEAD_BYTES + length];
            sealed[HEAD_BYTES] = 8;
            frame::seal(&mut sealed);
            let head = Head::read(&sealed).unwrap();
            let file = file_of(&[(5, &sealed)], 5 + sealed.len() as u64);
            let mut bodies = Bodies::of(&file).unwrap();
            let at = 5 + HEAD_BYTES as u64;
            assert_eq!(bodies.read(head, at).as_deref(), Some(&sealed[HEAD_BYTES..]));
            assert_eq!(bodies.read(head, at - 1), None);
            assert_eq!(bodies.read(head, at + 1), None, "beyond the end");
        }
    }

    #[test]
    fn unreadable_pages_are_skipped_without_hiding_others() {
        let bytes: Vec<u8> = (0..20_000).map(|at| at as u8 | 1).collect();
        let lost = [4096..8192, 12_288..16_384];
        let read = |part: &mut [u8], at: u64| {
            let at = at as usize;
            if lost.iter().any(|lost| lost.contains(&at)) {
                return Err(rustix::io::Errno::IO.into());
            }
            let end = lost.iter().map(|lost| lost.start).find(|&start| start > at).unwrap_or(bytes.len());
            let more = part.len().min(end - at);
            part[..more].copy_from_slice(&bytes[at..at + more]);
            Ok(more)
        };
        let (mut window, mut unread) = (vec![7; 15_000], 0);
        assert_eq!(window_at(read, &mut window, 5000, &mut unread).unwrap(), 15_000);
        assert_eq!(unread, 3192 + 4096);
        for (at, &byte) in (5000..).zip(&window) {
            let is_lost = lost.iter().any(|lost| lost.contains(&at));
            assert_eq!(byte, if is_lost { 0 } else { bytes[at] }, "{at}");
        }
        let fails = |_: &mut [u8], _| Err(rustix::io::Errno::ACCESS.into());
        assert!(window_at(fails, &mut window, 0, &mut unread).is_err());
    }

    #[test]
    fn forged_heads_cause_bounded_reading_and_hide_no_short_piece() {
        const LENGTH: u64 = 1_000_000;
        let mut sealed = vec![7; HEAD_BYTES + BLOCK_BYTES];
        frame::seal(&mut sealed);
        let file = file_of(&[(LENGTH - sealed.len() as u64, &sealed)], LENGTH);
        let mut bodies = Bodies::of(&file).unwrap();
        for at in (0..LENGTH / 2).step_by(100) {
            assert_eq!(bodies.read(head(LENGTH - at), at), None);
        }
        assert!(bodies.in_vain > LENGTH && bodies.in_vain <= MOST_IN_VAIN * LENGTH, "{}", bodies.in_vain);
        assert!(bodies.unread > 4900, "{}", bodies.unread);
        let piece = bodies.read(Head::read(&sealed).unwrap(), LENGTH - BLOCK_BYTES as u64);
        assert_eq!(piece.as_deref(), Some(&sealed[HEAD_BYTES..]));
    }

    #[test]
    fn a_piece_longer_than_any_message_is_not_read() {
        let file = file_of(&[], 2 * MOST_MESSAGE_BYTES);
        let mut bodies = Bodies::of(&file).unwrap();
        assert_eq!(bodies.read(head(MOST_MESSAGE_BYTES + 1), 0), None);
        assert_eq!((bodies.in_vain, bodies.unread), (0, 0));
    }
}
