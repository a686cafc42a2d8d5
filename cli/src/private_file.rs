//! A file that only its owner may read, and that gets its name only when it is complete: a full disk, or Ctrl-C, leaves an older
//! file as it was and nothing beside it.

use std::ffi::OsStr;
use std::fs::{File, Metadata, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Read};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, linkat, open};
use tempfile::{NamedTempFile, TempPath};

/// A file that is being written.
pub(crate) struct PrivateFile {
    to: To,
    /// Where it will be, with all links resolved.
    place: PathBuf,
}

enum To {
    /// Written directly: a pipe, a device or a descriptor, beside which no file can or should be made.
    Itself(File),
    /// A new file in the same folder, where an older one may have the name.
    Beside { part: Part, is_taken: bool },
}

/// A file that is not complete yet.
struct Part {
    file: File,
    /// On a file system without nameless files (`O_TMPFILE`). Such a file stays when the process is killed.
    name: Option<TempPath>,
}

impl Part {
    /// A new file in the folder of `place`.
    fn beside(place: &Path) -> Result<Part> {
        if let Ok(file) =
            open(folder_of(place), OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC, Mode::from(0o600))
        {
            return Ok(Part { file: file.into(), name: None });
        }
        Part::with_a_name(place)
    }

    fn with_a_name(place: &Path) -> Result<Part> {
        let make = |name: &Path| OpenOptions::new().write(true).create_new(true).mode(0o600).open(name);
        let (file, name) = beside(place, make)?.into_parts();
        Ok(Part { file, name: Some(name) })
    }

    /// Syncs the file to disk, and gives it an unguessable name beside `place`.
    fn named(self, place: &Path) -> Result<TempPath> {
        // Some file systems report only here that there was no room.
        self.file.sync_all()?;
        if let Some(name) = self.name {
            return Ok(name);
        }
        let nameless = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        let link = |name: &Path| Ok(linkat(CWD, &nameless, CWD, name, AtFlags::SYMLINK_FOLLOW)?);
        Ok(beside(place, link)?.into_temp_path())
    }
}

impl PrivateFile {
    /// Begins to write a file at `path`.
    pub(crate) fn at(path: &Path) -> Result<PrivateFile> {
        PrivateFile::begun(path).with_context(|| format!("failed to write {}", path.display()))
    }

    /// Standard output as it is: data is appended to what is already there. It may also be a socket, as of a command over ssh, or a
    /// file that the user opened before sudo.
    pub(crate) fn stdout() -> Result<PrivateFile> {
        let place = PathBuf::from("/dev/stdout");
        let open =
            io::stdout().as_fd().try_clone_to_owned().context("failed to write the standard output")?;
        Ok(PrivateFile { to: To::Itself(open.into()), place })
    }

    fn begun(path: &Path) -> Result<PrivateFile> {
        let is_link = is_trusted_link(path)?;
        // A link that appears in the meantime is somebody else's, and is not followed.
        let follow = if is_link { OFlags::empty() } else { OFlags::NOFOLLOW };
        let flags = follow.bits().cast_signed();
        let is_taken = match OpenOptions::new().write(true).custom_flags(flags).open(path) {
            Ok(there) => {
                let is_descriptor = is_descriptor(path);
                let is_file = check_owner(&there, is_descriptor)?;
                if !is_file || is_descriptor {
                    return PrivateFile::into(there, path, is_file);
                }
                true
            }
            Err(error) if error.kind() == ErrorKind::NotFound => false,
            Err(error) => return Err(error.into()),
        };
        let behind = if is_link { path.canonicalize().ok() } else { None };
        let place = behind.unwrap_or_else(|| path.to_owned());
        name_of(&place)?;
        let part = Part::beside(&place)?;
        Ok(PrivateFile { to: To::Beside { part, is_taken }, place })
    }

    fn into(there: File, path: &Path, is_file: bool) -> Result<PrivateFile> {
        if is_file {
            there.set_permissions(Permissions::from_mode(0o600))?;
            there.set_len(0)?;
        }
        Ok(PrivateFile { to: To::Itself(there), place: path.to_owned() })
    }

    /// Writes all data from the reader, and returns the number of bytes.
    pub(crate) fn write(&mut self, from: &mut impl Read) -> Result<u64> {
        let file = match &mut self.to {
            To::Itself(file) => file,
            To::Beside { part, .. } => &mut part.file,
        };
        io::copy(from, file).with_context(|| format!("failed to write {}", self.place.display()))
    }

    /// The file is complete: moves it to its place, and returns whether it replaced an older file.
    pub(crate) fn finish(self) -> Result<bool> {
        let To::Beside { part, is_taken } = self.to else { return Ok(false) };
        let context = || format!("failed to write {}", self.place.display());
        match part.named(&self.place).with_context(context)?.persist(&self.place) {
            Ok(()) => Ok(is_taken),
            // It may be the only copy of what a crashed program recorded.
            Err(failed) => {
                let part = failed.path.keep()?;
                Err(failed.error).with_context(|| format!("{}, but {}", context(), part.display()))
            }
        }
    }

    /// The file is incomplete: moves it to its place, or, if an older file is there, keeps that and returns where the new one is.
    pub(crate) fn keep_part(self) -> Result<Option<PathBuf>> {
        match self.to {
            To::Beside { part, is_taken: true } => Ok(Some(part.named(&self.place)?.keep()?)),
            _ => self.finish().map(|_| None),
        }
    }
}

/// Makes a file beside `place`, under an unguessable name.
fn beside<R>(place: &Path, make: impl FnMut(&Path) -> io::Result<R>) -> Result<NamedTempFile<R>> {
    let (mut prefix, folder) = (name_of(place)?.to_owned(), folder_of(place));
    prefix.push(".");
    let made = tempfile::Builder::new().prefix(&prefix).suffix(".part").make_in(folder, make);
    made.with_context(|| format!("failed to make a file in {}", folder.display()))
}

fn name_of(place: &Path) -> Result<&OsStr> {
    place.file_name().context("it names no file")
}

fn folder_of(place: &Path) -> &Path {
    place.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Whether it is a regular file. A file or named pipe that another user owns is refused: in a folder like /tmp it may have been put
/// there as a trap.
fn check_owner(there: &File, is_descriptor: bool) -> Result<bool> {
    let before = there.metadata()?;
    let is_named_pipe = before.file_type().is_fifo() && !is_descriptor;
    if before.is_file() || is_named_pipe {
        refuse_of_another(&before)?;
    }
    Ok(before.is_file())
}

/// Whether `path` is a link. One that another user made is refused, for it may lead to a file that only root may write.
fn is_trusted_link(path: &Path) -> Result<bool> {
    let Ok(link) = path.symlink_metadata() else { return Ok(false) };
    if link.is_symlink() && link.uid() != 0 {
        refuse_of_another(&link)?;
    }
    Ok(link.is_symlink())
}

fn refuse_of_another(there: &Metadata) -> Result<()> {
    if there.uid() != rustix::process::geteuid().as_raw() {
        bail!("it already exists and belongs to user {}: name another file with --output", there.uid());
    }
    Ok(())
}

/// Whether the path is one of this process's descriptors, like /dev/stdout: its reader has the open file, not one that would take
/// its name.
fn is_descriptor(path: &Path) -> bool {
    let link = path.read_link().unwrap_or_default();
    [path, &link].iter().any(|path| {
        path.parent().and_then(|folder| folder.canonicalize().ok()).is_some_and(|at| at.starts_with("/proc"))
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    const OLDER: &[u8] = b"what was there before";

    fn written(path: &Path, bytes: &[u8]) -> Result<bool> {
        let mut file = PrivateFile::at(path)?;
        file.write(&mut &bytes[..])?;
        file.finish()
    }

    fn files_in(folder: &Path) -> usize {
        folder.read_dir().unwrap().count()
    }

    /// Gives some bytes, and fails then.
    struct Failing(&'static [u8]);

    impl Read for Failing {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            match self.0.read(buffer)? {
                0 => Err(rustix::io::Errno::NOSPC.into()),
                some => Ok(some),
            }
        }
    }

    #[test]
    fn a_failed_write_keeps_the_older_file_and_adds_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("blkin.saved");
        std::fs::write(&path, OLDER).unwrap();
        let mut file = PrivateFile::at(&path).unwrap();
        file.write(&mut Failing(b"half")).unwrap_err();
        drop(file);
        assert_eq!(std::fs::read(&path).unwrap(), OLDER);
        assert_eq!(files_in(folder.path()), 1);
    }

    #[test]
    fn an_unfinished_file_has_no_name() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = PrivateFile::at(&folder.path().join("blkin.saved")).unwrap();
        file.write(&mut &b"half"[..]).unwrap();
        // The system takes away what no name leads to.
        assert_eq!(files_in(folder.path()), 0);
        file.finish().unwrap();
        assert_eq!(files_in(folder.path()), 1);
    }

    #[test]
    fn without_unnamed_files_a_named_part_is_renamed() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("blkin.saved");
        let mut part = Part::with_a_name(&place).unwrap();
        part.file.write_all(b"rings").unwrap();
        part.named(&place).unwrap().persist(&place).unwrap();
        assert_eq!(std::fs::read(&place).unwrap(), b"rings");
        assert_eq!((place.metadata().unwrap().mode() & 0o777, files_in(folder.path())), (0o600, 1));
    }

    #[test]
    fn a_partial_file_does_not_replace_an_older_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("blkin.saved");
        let part = |bytes: &[u8]| {
            let mut file = PrivateFile::at(&path).unwrap();
            file.write(&mut &bytes[..]).unwrap();
            file.keep_part().unwrap()
        };
        assert_eq!(part(b"one"), None);
        let beside = part(b"two").unwrap();
        assert!(beside.to_str().unwrap().ends_with(".part"), "{}", beside.display());
        assert_eq!(std::fs::read(&path).unwrap(), b"one");
        assert_eq!(std::fs::read(beside).unwrap(), b"two");
    }

    #[test]
    fn an_existing_file_is_made_private_or_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("blkin.saved");
        assert!(!written(&path, OLDER).unwrap());
        std::fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        assert!(written(&path, b"rings").unwrap());
        assert_eq!(std::fs::read(&path).unwrap(), b"rings");
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o600);
        // Only root can give a file away.
        if std::os::unix::fs::chown(&path, Some(1), None).is_ok() {
            let error = format!("{:#}", written(&path, b"more").unwrap_err());
            assert!(error.contains("belongs to user 1: "), "{error}");
            assert_eq!(std::fs::read(&path).unwrap(), b"rings");
        }
        assert_eq!(files_in(folder.path()), 1);
    }

    #[test]
    fn links_and_pipes_of_other_users_are_not_written_to() {
        // Only root can give something away.
        if !rustix::process::geteuid().is_root() {
            let _ = writeln!(io::stderr(), "not shown: this needs root");
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let [precious, link, pipe] = ["precious", "link", "pipe"].map(|name| folder.path().join(name));
        std::fs::write(&precious, OLDER).unwrap();
        std::os::unix::fs::symlink(&precious, &link).unwrap();
        rustix::fs::mknodat(CWD, &pipe, rustix::fs::FileType::Fifo, Mode::RWXU, 0).unwrap();
        let unblocked = OFlags::NONBLOCK.bits().cast_signed();
        let mut reader = File::options().read(true).custom_flags(unblocked).open(&pipe).unwrap();
        for there in [&link, &pipe] {
            std::os::unix::fs::lchown(there, Some(1), None).unwrap();
            let error = format!("{:#}", written(there, b"rings").unwrap_err());
            assert!(error.contains("belongs to user 1: "), "{error}");
        }
        assert_eq!(std::fs::read(&precious).unwrap(), OLDER);
        assert_eq!(reader.read(&mut [0]).unwrap(), 0, "rings were written to the pipe");
    }

    #[test]
    fn links_are_followed_and_devices_and_descriptors_written_to() {
        let folder = tempfile::tempdir().unwrap();
        let (path, link) = (folder.path().join("file"), folder.path().join("link"));
        std::fs::write(&path, OLDER).unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        written(&link, b"rings").unwrap();
        assert!(link.is_symlink());
        assert_eq!(std::fs::read(&path).unwrap(), b"rings");

        let mut open = File::open(&path).unwrap();
        written(Path::new(&format!("/dev/fd/{}", open.as_raw_fd())), b"more").unwrap();
        let mut read = String::new();
        open.read_to_string(&mut read).unwrap();
        assert_eq!(read, "more");

        assert!(!written(Path::new("/dev/null"), b"rings").unwrap());
    }
}
