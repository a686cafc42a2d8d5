//! What the system keeps of files in its memory, and the disk may not have.

use std::fs::File;
use std::path::Path;

use rustix::fs::{Advice, fadvise};

/// Has the next who reads a file read its disk. What the disk did not take when it was told to, the system keeps as if it had:
/// who found it there and built on it would lose it once it leaves.
pub fn forget(path: &Path) {
    let Ok(file) = File::open(path) else { return };
    // What can still be written is, for nothing else leaves. What cannot is what is to be forgotten.
    let _some_is_not = file.sync_all();
    if let Err(error) = fadvise(&file, 0, None, Advice::DontNeed) {
        tracing::debug!("failed to drop {} from the page cache: {error}", path.display());
    }
}
