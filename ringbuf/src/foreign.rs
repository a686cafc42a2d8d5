//! Memory files that another process has open or mapped, through its folder in /proc.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, StatxFlags, fstat, major, minor, open, statx};

use crate::segment::sized_memfd;

/// Opens the memory file to which a link in another process's folder leads; `None` if it is something else, which a process can
/// have there under the name of a memory file. Opening a device or a pipe would do something to it, or wait.
///
/// # Errors
/// When the file is gone, or may not be opened.
pub fn open_foreign_memfd(link: &Path, access: OFlags) -> io::Result<Option<OwnedFd>> {
    // This holds the file, and asks neither it nor its file system for anything.
    let found = open(link, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let what = statx(&found, "", AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE)?;
    let own = fstat(sized_memfd(c"blkin-device", 0)?)?.st_dev;
    let is_memory = (what.stx_dev_major, what.stx_dev_minor) == (major(own), minor(own))
        && FileType::from_raw_mode(what.stx_mode.into()) == FileType::RegularFile;
    if !is_memory {
        return Ok(None);
    }
    let itself = format!("/proc/self/fd/{}", found.as_raw_fd());
    Ok(Some(open(itself, access | OFlags::CLOEXEC, Mode::empty())?))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::time::Duration;

    use super::*;

    fn opened(file: impl AsFd, access: OFlags) -> io::Result<Option<OwnedFd>> {
        let link = format!("/proc/{}/fd/{}", std::process::id(), file.as_fd().as_raw_fd());
        open_foreign_memfd(Path::new(&link), access)
    }

    #[test]
    fn a_memfd_is_reopened_with_the_requested_access() {
        let memfd = sized_memfd(c"x", 0).unwrap();
        let again = opened(&memfd, OFlags::RDWR).unwrap().unwrap();
        rustix::io::write(&again, b"mark").unwrap();
        assert_eq!(fstat(&memfd).unwrap().st_size, 4);
        let only_read = opened(&memfd, OFlags::RDONLY).unwrap().unwrap();
        assert!(rustix::io::write(only_read, b"mark").is_err());
    }

    #[test]
    fn files_other_than_memfds_are_not_opened() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        // Opened by path only, as everybody may: opening the pipe for reading waits for a writer.
        let pipe = open(&pipe, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let (told, done) = std::sync::mpsc::channel();
        std::thread::spawn(move || told.send(opened(&pipe, OFlags::RDONLY).unwrap().is_none()));
        assert_eq!(done.recv_timeout(Duration::from_secs(10)), Ok(true));
        assert!(opened(File::open("/dev/null").unwrap(), OFlags::RDWR).unwrap().is_none());
        assert!(opened(tempfile::tempfile().unwrap(), OFlags::RDWR).unwrap().is_none());
    }
}
