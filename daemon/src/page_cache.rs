//! The page cache: what the system keeps of files in memory, and the disk may not have.

use std::fs::File;
use std::path::Path;

use rustix::fs::{Advice, fadvise};

/// Drops a file from the page cache, so that the next read comes from the disk. After a failed write to the disk the system keeps
/// the data in the cache as if it had been written: code that relied on it would lose it once it leaves the cache.
pub fn forget(path: &Path) {
    let Ok(file) = File::open(path) else { return };
    // Writes what can still be written, since only clean pages are dropped. What cannot be written is what has to go.
    let _some_is_not = file.sync_all();
    if let Err(error) = fadvise(&file, 0, None, Advice::DontNeed) {
        tracing::debug!("failed to drop {} from the page cache: {error}", path.display());
    }
}
