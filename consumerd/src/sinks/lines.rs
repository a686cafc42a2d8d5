//! A file or named pipe that gets one line for each message.
//!
//! Nothing here blocks for good: if a pipe has no reader or its reader does not read, or a disk is full, the write is tried again.
//! Readers see whole lines: a line that was cut is continued, or ended before the next one begins. If the file was moved, removed
//! or emptied meanwhile, as when logs are rotated, writing continues at the beginning of a line.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use blkin_daemon::Cause;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::pump::{Outlet, Pump};
use super::queue::{Batch, Outcome};
use super::thread_progress::ThreadProgress;
use crate::config::Config;

/// One file or pipe.
#[derive(Debug)]
pub struct Lines {
    path: PathBuf,
    timeout: Duration,
    file: Option<File>,
    /// How many bytes of the current batch are written already.
    written: usize,
    /// The last write ended inside a line that will not be continued.
    cut: bool,
    /// Noted at each write: a batch for a slow reader of a pipe takes many, and one for a disk that does not answer completes none.
    progress: Arc<ThreadProgress>,
}

impl Lines {
    /// Starts without opening the file.
    pub fn new(path: &Path, config: &Config) -> Self {
        let timeout = Duration::from_millis(config.io_timeout_ms.min(1000));
        Self { path: path.into(), timeout, file: None, written: 0, cut: false, progress: Arc::default() }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.file.as_ref().is_some_and(|file| !is_at(&self.path, file) || self.was_emptied(file, bytes)) {
            self.reopen_at_line_start(bytes);
        }
        if self.file.is_none() {
            self.cut |= ends_inside_foreign_line(&self.path)?;
            self.file = Some(open(&self.path)?);
        }
        if self.cut {
            self.write_part(b"\n")?;
            self.cut = false;
        }
        while self.written < bytes.len() {
            self.written += self.write_part(&bytes[self.written..])?;
        }
        Ok(())
    }

    fn write_part(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(file) = &mut self.file else { return Err(ErrorKind::NotConnected.into()) };
        loop {
            self.progress.note_progress();
            match file.write(bytes) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(n) => return Ok(n),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => wait_writable(file, self.timeout)?,
                Err(e) => return Err(e),
            }
        }
    }

    /// Whether the file is shorter than what was written of the last line, because somebody has emptied it.
    fn was_emptied(&self, file: &File, bytes: &[u8]) -> bool {
        let half = self.written.saturating_sub(self.line_start(bytes)) as u64;
        file.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.len() < half)
    }

    /// Where the line begins that was written last.
    fn line_start(&self, bytes: &[u8]) -> usize {
        let done = &bytes[..self.written.min(bytes.len())];
        done.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1)
    }

    /// Begins the last line again, after the reader or the file has gone, and with it what was written of that line.
    fn reopen_at_line_start(&mut self, bytes: &[u8]) {
        self.file = None;
        self.written = self.line_start(bytes);
        self.cut = false;
    }
}

impl Lines {
    fn deliver(&mut self, bytes: &[u8]) -> io::Result<()> {
        let written = self.write(bytes);
        match &written {
            Ok(()) => self.written = 0,
            Err(e) if e.kind() == ErrorKind::BrokenPipe => self.reopen_at_line_start(bytes),
            Err(_) => {}
        }
        written
    }

    /// Gives up the batch that was begun.
    fn give_up(&mut self, bytes: &[u8]) {
        let last = bytes[..std::mem::take(&mut self.written)].last();
        // An earlier line may have been cut and not ended yet, so `cut` is not reset.
        self.cut |= last.is_some_and(|byte| *byte != b'\n');
    }

    fn ship(&mut self, batch: &Batch, pump: &mut Pump) -> io::Result<()> {
        let lines: Vec<&[u8]> = batch.entries.iter().map(|entry| &*entry.lines).collect();
        let bytes = lines.concat();
        while pump.queue.holds(batch) {
            match self.deliver(&bytes) {
                Ok(()) => {
                    pump.queue.settle(batch, Outcome::Acked);
                    pump.note_shipped();
                    return Ok(());
                }
                Err(error) => pump.report_failure_and_pause(cause(&error), &error)?,
            }
        }
        self.give_up(&bytes);
        Ok(())
    }
}

impl Outlet for Lines {
    fn run(mut self, mut pump: Pump) -> io::Result<()> {
        self.progress = pump.queue.progress().clone();
        while let Some(batch) = pump.queue.next_batch()? {
            self.ship(&batch, &mut pump)?;
        }
        Ok(())
    }
}

/// The beginnings of the daemon's own lines.
const BEGINNINGS: [&[u8]; 2] = [b"{\"event\":", b"{\"key\":"];
/// More bytes than the longest of the daemon's own lines has.
const MAX_LINE_BYTES: u64 = 256 << 10;

/// Cuts off half a line that a killed worker may have left: the next worker writes that annotation again. Returns whether the file
/// ends inside a line that the daemon did not write; that line is to be ended before the first of ours.
fn ends_inside_foreign_line(path: &Path) -> io::Result<bool> {
    if !std::fs::metadata(path).is_ok_and(|metadata| metadata.is_file()) {
        return Ok(false);
    }
    let mut file = OpenOptions::new().read(true).write(true).open(path)?;
    let length = file.metadata()?.len();
    let mut tail = Vec::new();
    file.seek(SeekFrom::Start(length.saturating_sub(MAX_LINE_BYTES)))?;
    (&file).take(MAX_LINE_BYTES).read_to_end(&mut tail)?;
    let half = tail.rsplit(|byte| *byte == b'\n').next().unwrap_or_default();
    if half.is_empty() {
        return Ok(false);
    }
    let is_ours = BEGINNINGS.iter().any(|ours| half.starts_with(ours) || ours.starts_with(half));
    if is_ours {
        file.set_len(length - half.len() as u64)?;
    }
    Ok(!is_ours)
}

/// Whether the path still leads to the open file.
fn is_at(path: &Path, file: &File) -> bool {
    let (there, here) = (std::fs::metadata(path), file.metadata());
    matches!((there, here), (Ok(there), Ok(here)) if (there.dev(), there.ino()) == (here.dev(), here.ino()))
}

fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::NONBLOCK | OFlags::CLOEXEC;
    let opened = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o640)
        .custom_flags(flags.bits().cast_signed())
        .open(path);
    opened.map_err(|e| match Errno::from_io_error(&e) {
        // The system's own message for a pipe without a reader would be "No such device or address".
        Some(Errno::NXIO) => io::Error::new(ErrorKind::BrokenPipe, NO_READER),
        _ => e,
    })
}

/// Error text for a pipe that nobody has opened for reading.
const NO_READER: &str = "nobody reads the pipe";

/// The cause of an error: the pipe has no reader, or its reader has taken nothing for too long; otherwise the file itself has a
/// problem.
fn cause(error: &io::Error) -> Cause {
    let is_ours = error.raw_os_error().is_none();
    match error.kind() {
        ErrorKind::BrokenPipe => Cause::NoReader,
        ErrorKind::TimedOut if is_ours => Cause::NoReader,
        _ => Cause::of_write(error),
    }
}

fn wait_writable(file: &File, timeout: Duration) -> io::Result<()> {
    let mut fds = [PollFd::from_borrowed_fd(file.as_fd(), PollFlags::OUT)];
    let timeout = Timespec::try_from(timeout).map_err(io::Error::other)?;
    match poll(&mut fds, Some(&timeout)) {
        Ok(0) => Err(io::Error::new(ErrorKind::TimedOut, "the pipe's reader does not read")),
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written_after(before: &str) -> String {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), before).unwrap();
        let mut lines = Lines::new(file.path(), &Config::default());
        lines.write(b"{}\n").unwrap();
        std::fs::read_to_string(file.path()).unwrap()
    }

    #[test]
    fn a_partial_line_of_a_killed_worker_is_removed() {
        for half in ["{\"ev", "{\"event\":\"start\",\"na", "{\"key\":"] {
            assert_eq!(written_after(&format!("{{\"key\":1}}\n{half}")), "{\"key\":1}\n{}\n");
        }
    }

    #[test]
    fn a_moved_or_removed_file_is_recreated_with_whole_lines() {
        let folder = tempfile::tempdir().unwrap();
        let (path, moved) = (folder.path().join("lines"), folder.path().join("lines.1"));
        let read = |path: &Path| std::fs::read_to_string(path).unwrap();
        let mut lines = Lines::new(&path, &Config::default());
        lines.write(b"{1}\n").unwrap();
        lines.written = 0;
        std::fs::rename(&path, &moved).unwrap();
        lines.write(b"{2}\n").unwrap();
        assert_eq!((read(&moved).as_str(), read(&path).as_str()), ("{1}\n", "{2}\n"));
        // The removed file has the first line of the current batch, and half of the second.
        lines.written = 6;
        std::fs::remove_file(&path).unwrap();
        lines.write(b"{3}\n{4}\n{5}\n").unwrap();
        assert_eq!(read(&path), "{4}\n{5}\n");
    }

    #[test]
    fn a_file_truncated_mid_line_restarts_with_that_line() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let read = || std::fs::read_to_string(file.path()).unwrap();
        let mut lines = Lines::new(file.path(), &Config::default());
        let batch = b"{1}\n{2}\n{3}\n";
        lines.write(&batch[..6]).unwrap();
        file.as_file().set_len(0).unwrap();
        lines.write(batch).unwrap();
        assert_eq!(read(), "{2}\n{3}\n");
        lines.written = 0;
        lines.write(b"{4}\n").unwrap();
        file.as_file().set_len(0).unwrap();
        lines.written = 0;
        lines.write(b"{5}\n").unwrap();
        assert_eq!(read(), "{5}\n", "between two batches nothing is begun");
    }

    #[test]
    fn a_cut_line_is_terminated_before_the_next_line() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        let mut reader = File::options().read(true).write(true).open(&pipe).unwrap();
        let mut lines = Lines::new(&pipe, &Config { io_timeout_ms: 1, ..Config::default() });
        let long = [vec![b'x'; 1 << 20], vec![b'\n']].concat();
        for batch in [&long[..], b"{2}\n"] {
            let stalled = lines.deliver(batch).unwrap_err();
            assert_eq!(cause(&stalled), Cause::NoReader);
            lines.give_up(batch);
        }
        let mut read = vec![0; 1 << 20];
        let half = reader.read(&mut read).unwrap();
        lines.deliver(b"{3}\n").unwrap();
        lines.written = 4;
        lines.give_up(b"{4}\n{5}\n");
        lines.deliver(b"{6}\n").unwrap();
        let more = reader.read(&mut read[half..]).unwrap();
        let shown = std::str::from_utf8(&read[..half + more]).unwrap();
        assert_eq!(shown.trim_start_matches('x'), "\n{3}\n{6}\n");
    }

    #[test]
    fn a_pipe_without_a_reader_and_a_full_disk_are_told_apart() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        let trouble = |path: &Path| {
            let error = Lines::new(path, &Config::default()).write(b"{}\n").unwrap_err();
            (cause(&error), error.to_string())
        };
        assert_eq!(trouble(&pipe), (Cause::NoReader, NO_READER.to_owned()));
        assert_eq!(trouble(Path::new("/dev/full")).0, Cause::DiskFull);
        assert_eq!(trouble(&folder.path().join("no/such/folder")).0, Cause::Failed);
    }

    #[test]
    fn text_of_other_writers_is_kept() {
        assert_eq!(written_after(""), "{}\n");
        assert_eq!(written_after("a\n"), "a\n{}\n");
        assert_eq!(written_after("a\nb"), "a\nb\n{}\n");
    }
}
