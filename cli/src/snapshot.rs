//! `blkin snapshot`: what the rings of programs hold now, in a file for `blkin recover`.
//!
//! consumerd holds the rings, also those of flight recorders whose programs have crashed, and sends their contents through its
//! control socket. Without consumerd, root can read the rings of a live process through the descriptors in its /proc folder.

use std::io::{self, ErrorKind, IsTerminal, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};
use blkin_ringbuf::layout::{CONTROL_NAME, SEGMENT_NAME};
use blkin_ringbuf::saved::{self, END_BYTES, Identity};
use blkin_ringbuf::{Attachment, open_foreign_memfd};
use clap::{ArgGroup, Args};
use rustix::fs::{OFlags, fstat};
use serde::Serialize;
use serde_json::{Value, json};

use crate::private_file::PrivateFile;
use crate::process;
use crate::target::{ControlSocket, Target};
use crate::terminal::safe;
use crate::units;

/// What `blkin snapshot --help` ends with.
pub const NOTE: &str = "\
consumerd sends the rings of the programs that the asking user may read. If it does not know a process, root can still \
read its rings through /proc.";

const WITHOUT_CONSUMERD: &str = "without consumerd, root can take a snapshot of one process by --pid";
const PATIENCE: Duration = Duration::from_secs(10);
/// What every saved segment begins with.
const MAGIC: &[u8] = b"BLKSAVED";

/// Arguments of `blkin snapshot`.
#[derive(Args, Debug)]
#[command(group = ArgGroup::new("whose").args(["all", "label", "pid"]).required(true))]
pub struct SnapshotArguments {
    #[command(flatten)]
    target: Target,
    /// Only what was recorded this long before now (500ms, 5s, 1m), also if the program ended earlier
    #[arg(long, value_name = "DURATION", value_parser = units::parse_duration_us)]
    last: Option<u64>,
    /// Where to write it; an existing file is replaced once the new one is complete; - for standard output
    #[arg(short, long, value_name = "FILE", default_value = "blkin.saved")]
    output: PathBuf,
    #[command(flatten)]
    socket: ControlSocket,
}

/// The name that stands for standard output.
const STDOUT: &str = "-";

impl SnapshotArguments {
    /// Whether the saved data goes to standard output, where text would go too.
    pub fn goes_to_stdout(&self) -> bool {
        self.output == Path::new(STDOUT)
    }

    fn place(&self) -> &Path {
        if self.goes_to_stdout() { Path::new("/dev/stdout") } else { &self.output }
    }
}

/// A file that was written.
#[derive(Debug, Serialize)]
pub struct Written {
    /// Where it is.
    pub file: PathBuf,
    /// Its size.
    pub bytes: u64,
    /// Whether it replaced an older file.
    pub replaced: bool,
}

impl Written {
    /// A line to print: where the file is, and what to do with it.
    pub fn text(&self) -> String {
        if self.file == Path::new(STDOUT) {
            return format!("{} bytes; `blkin recover` prints what they hold\n", self.bytes);
        }
        let path = self.file.display();
        let replaced = if self.replaced { ", replaced" } else { "" };
        format!("{} bytes in {path}{replaced}; `blkin recover {path}` prints what they hold\n", self.bytes)
    }
}

/// Takes the snapshot.
///
/// # Errors
/// When neither consumerd nor /proc provides the rings, or the file cannot be written.
pub fn run(arguments: &SnapshotArguments) -> Result<Written> {
    let is_shown = arguments.goes_to_stdout() && io::stdout().is_terminal();
    ensure!(!is_shown, "a snapshot is binary and would garble the terminal: send it to a file or a program");
    let refused = match ask(arguments) {
        Ok(written) => return written,
        Err(refused) => refused,
    };
    let Some(pid) = arguments.target.pid else { return Err(refused) };
    let file = of_process(pid, arguments.last).with_context(|| {
        format!("consumerd does not provide it ({refused:#}), and the process cannot be read")
    })?;
    let (output, bytes) = write_to(arguments, &mut &file[..])?;
    written(arguments, bytes, output)
}

/// The outcome of writing rings that were received: if the file cannot be written, reading the rings in another way does not help.
type Given = Result<Written>;

/// Asks consumerd, and writes what it sends to the file.
fn ask(arguments: &SnapshotArguments) -> Result<Given> {
    // A process given by --pid can be read without consumerd.
    let without = arguments.target.pid.is_none().then_some(WITHOUT_CONSUMERD);
    let mut stream = arguments.socket.ask(&request(arguments), PATIENCE, without)?;
    let silent = "consumerd does not answer; `blkin doctor` may say why";
    let mut start = Vec::new();
    (&mut stream).take(MAGIC.len() as u64).read_to_end(&mut start).context(silent)?;
    if start == MAGIC {
        return receive(arguments, start.chain(stream));
    }
    (&mut stream).take(64 << 10).read_to_end(&mut start).context(silent)?;
    bail!(refusal(&serde_json::from_slice(&start).unwrap_or_default(), &arguments.target))
}

/// Writes the rings to the file.
fn receive(arguments: &SnapshotArguments, from: impl Read) -> Result<Given> {
    let mut rings = Tail { from, last: Vec::new(), failed: None };
    let (output, bytes) = match write_to(arguments, &mut rings) {
        Ok(begun) => begun,
        Err(error) => return Ok(Err(error)),
    };
    // A daemon that ends, or is killed, while it sends them cannot say so.
    if !saved::ends_whole(&rings.last) {
        bail!(broken_off(arguments.place(), &rings.cause(), output.keep_part()?));
    }
    Ok(written(arguments, bytes, output))
}

fn write_to(arguments: &SnapshotArguments, rings: &mut impl Read) -> Result<(PrivateFile, u64)> {
    // Annotations may contain confidential data.
    let mut output =
        if arguments.goes_to_stdout() { PrivateFile::stdout()? } else { PrivateFile::at(&arguments.output)? };
    let bytes = output.write(rings)?;
    Ok((output, bytes))
}

fn written(arguments: &SnapshotArguments, bytes: u64, output: PrivateFile) -> Result<Written> {
    Ok(Written { replaced: output.finish()?, file: arguments.output.clone(), bytes })
}

/// The error of a snapshot that arrived only in part. The part lies at `beside` if an older file was kept.
fn broken_off(file: &Path, cause: &str, beside: Option<PathBuf>) -> String {
    let part = beside.as_deref().unwrap_or(file).display();
    let stays = if beside.is_some() { format!("; {} is unchanged", file.display()) } else { String::new() };
    format!("consumerd broke off{cause}: {part} has only part of it, which `blkin recover` can read{stays}")
}

/// Why there is no snapshot. consumerd's own sentence is the same for every target without a program, so another is used there.
fn refusal(answer: &Value, target: &Target) -> String {
    let refused = &answer["refused"];
    match (refused["cause"].as_str(), refused["why"].as_str()) {
        (Some("unknown_pid"), _) => {
            format!("no program that you may read is attached to consumerd{}", target.suffix())
        }
        (_, Some(why)) => safe(why),
        (_, None) => "the program has ended meanwhile".to_owned(),
    }
}

fn request(arguments: &SnapshotArguments) -> Value {
    let mut snapshot = json!({ "target": arguments.target.request() });
    if let Some(last) = arguments.last {
        snapshot["last_ms"] = json!(last.div_ceil(1000));
    }
    json!({ "snapshot": snapshot })
}

/// A reader that passes bytes on and keeps the last of them. A failed read counts as the end of the stream.
struct Tail<R> {
    from: R,
    last: Vec<u8>,
    failed: Option<io::Error>,
}

impl<R> Tail<R> {
    /// Why there is no more, if that is known.
    fn cause(&self) -> String {
        self.failed.as_ref().map(|error| format!(" ({error})")).unwrap_or_default()
    }
}

impl<R: Read> Read for Tail<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = match self.from.read(buffer) {
            Err(error) if error.kind() != ErrorKind::Interrupted => {
                self.failed = Some(error);
                return Ok(0);
            }
            other => other?,
        };
        self.last.extend_from_slice(&buffer[read.saturating_sub(END_BYTES)..read]);
        self.last.drain(..self.last.len().saturating_sub(END_BYTES));
        Ok(read)
    }
}

/// The saved segments of a process, through its own descriptors.
fn of_process(pid: u32, last_us: Option<u64>) -> Result<Vec<u8>> {
    let folder = PathBuf::from(format!("/proc/{pid}"));
    ensure!(folder.exists(), "no process has the id {pid}");
    let (segments, controls) = memfds(&folder)?;
    let mut file = Vec::new();
    for (segment, control) in segments.into_iter().zip(controls) {
        let Ok(attachment) = Attachment::open(segment, &control) else { continue };
        if attachment.info().pid != pid {
            continue;
        }
        let mut saved = attachment.save(identity(&folder, pid)?);
        if let Some(last_us) = last_us {
            saved.keep_since(since_ns(saved.identity.taken_ns, last_us));
        }
        saved::write(&saved, &mut file);
    }
    if file.is_empty() {
        bail!("process {pid} has no rings; it is not traced, or has closed its descriptors");
    }
    Ok(file)
}

/// The moment that long before another, but not before the epoch.
fn since_ns(taken_ns: u64, last_us: u64) -> i64 {
    taken_ns.saturating_sub(last_us.saturating_mul(1000)).cast_signed()
}

/// The segments of a process, and the control pages that belong to them. A process with several copies of the library has several
/// of both, made in pairs. Inode numbers tell which belong together; descriptor numbers do not, as each is the lowest that was
/// free.
fn memfds(process: &Path) -> Result<(Vec<OwnedFd>, Vec<OwnedFd>)> {
    let folder = process.join("fd");
    let context = || format!("failed to read {}", folder.display());
    let entries = std::fs::read_dir(&folder).with_context(context)?;
    let paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    let (mut segments, mut controls) = (Vec::new(), Vec::new());
    for path in paths {
        let Ok(target) = std::fs::read_link(&path) else { continue };
        let name = target.to_string_lossy();
        let is = |wanted: &str| name.strip_prefix("/memfd:").is_some_and(|rest| rest.starts_with(wanted));
        if is(SEGMENT_NAME) {
            segments.extend(open_foreign_memfd(&path, OFlags::RDONLY).with_context(context)?);
        } else if is(CONTROL_NAME) {
            controls.extend(open_foreign_memfd(&path, OFlags::RDWR).with_context(context)?);
        }
    }
    for files in [&mut segments, &mut controls] {
        files.sort_by_key(inode);
    }
    Ok((segments, controls))
}

fn inode(file: &OwnedFd) -> u64 {
    fstat(file).map_or(0, |stat| stat.st_ino)
}

fn identity(folder: &Path, pid: u32) -> Result<Identity> {
    let line = |path: &str| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    Ok(Identity {
        pid,
        uid: folder.metadata().context("the process has ended")?.uid(),
        ended: false,
        taken_ns: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64),
        since_ns: 0,
        label: process::text(pid, "comm").unwrap_or_default().trim().to_owned(),
        host: line("/proc/sys/kernel/hostname"),
        boot: line("/proc/sys/kernel/random/boot_id"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use blkin_ringbuf::saved::Saved;
    use clap::Parser;
    use rustix::io::fcntl_dupfd_cloexec;
    use std::io::{BufRead, BufReader, Write};
    use std::os::fd::RawFd;
    use std::os::unix::net::UnixListener;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        snapshot: SnapshotArguments,
    }

    fn target(words: &[&str]) -> Target {
        Command::parse_from(["snapshot"].iter().chain(words)).snapshot.target
    }

    #[test]
    fn a_missing_process_is_distinguished_from_one_without_rings() {
        let error = |pid| format!("{:#}", of_process(pid, None).unwrap_err());
        assert_eq!(error(u32::MAX), "no process has the id 4294967295");
        assert!(error(std::process::id()).contains("has no rings"), "{}", error(std::process::id()));
    }

    #[test]
    fn segments_and_control_pages_are_paired_in_any_fd_order() {
        use rustix::fs::{MemfdFlags, memfd_create};

        // As where the first copy found one number taken that was free when the second came.
        let numbered = |name: &str, numbers: [RawFd; 2]| {
            let mut made = [0; 2].map(|_| memfd_create(name, MemfdFlags::CLOEXEC).unwrap());
            made.sort_by_key(inode);
            let [first, second] = &made;
            [(first, numbers[0]), (second, numbers[1])]
                .map(|(file, from)| fcntl_dupfd_cloexec(file, from).unwrap())
        };
        let (segments, controls) = (numbered(SEGMENT_NAME, [110, 100]), numbered(CONTROL_NAME, [120, 130]));
        let (own_segments, own_controls) = (segments.each_ref().map(inode), controls.each_ref().map(inode));
        let found = memfds(Path::new("/proc/self")).unwrap();
        // Other tests of this process may have some, too.
        let only = |own: [u64; 2], all: &[OwnedFd]| -> Vec<u64> {
            all.iter().map(inode).filter(|inode| own.contains(inode)).collect()
        };
        assert_eq!(only(own_segments, &found.0), own_segments);
        assert_eq!(only(own_controls, &found.1), own_controls);
    }

    #[test]
    fn a_refused_snapshot_names_what_was_asked_for() {
        let unknown = json!({ "refused": { "cause": "unknown_pid", "why": "nobody has that name" } });
        let of_all = refusal(&unknown, &target(&["--all"]));
        assert_eq!(of_all, "no program that you may read is attached to consumerd");
        assert!(refusal(&unknown, &target(&["--label", "osd"])).ends_with(" under the name osd"));
        assert!(refusal(&unknown, &target(&["--pid", "7"])).ends_with(" under process id 7"));
        let other = json!({ "refused": { "cause": "denied", "why": "not yours" } });
        assert_eq!(refusal(&other, &target(&["--all"])), "not yours");
    }

    #[test]
    fn a_snapshot_that_breaks_off_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("control.sock");
        let output = folder.path().join("o");
        let listener = UnixListener::bind(&socket).unwrap();
        let mut rings = Vec::new();
        saved::write(&Saved::default(), &mut rings);
        let whole = rings.len();
        let words =
            ["snapshot", "--all", "--socket", socket.to_str().unwrap(), "-o", output.to_str().unwrap()];
        let arguments = Command::parse_from(words).snapshot;
        let asked = |sent: usize| {
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let (mut asker, _) = listener.accept().unwrap();
                    BufReader::new(&asker).read_line(&mut String::new()).unwrap();
                    asker.write_all(&rings[..sent]).unwrap();
                });
                ask(&arguments).and_then(|given| given).map_err(|error| error.to_string())
            })
        };
        for sent in [whole - 1, whole - END_BYTES, MAGIC.len()] {
            let said = asked(sent).unwrap_err();
            assert!(said.starts_with("consumerd broke off: ") && !said.contains("as it was"), "{said}");
            assert_eq!(std::fs::read(&output).unwrap().len(), sent);
            std::fs::remove_file(&output).unwrap();
        }
        for replaced in [false, true] {
            let written = asked(whole).unwrap();
            assert_eq!((written.bytes, written.replaced), (whole as u64, replaced));
            assert_eq!(written.text().contains(", replaced; "), replaced, "{}", written.text());
        }
        let said = asked(MAGIC.len()).unwrap_err();
        assert!(said.ends_with(&format!("; {} is unchanged", output.display())), "{said}");
        assert_eq!(std::fs::read(&output).unwrap().len(), whole);
    }

    #[test]
    fn a_snapshot_that_cannot_be_written_is_not_taken_again() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("control.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let mut rings = Vec::new();
        saved::write(&Saved::default(), &mut rings);
        let pid = std::process::id().to_string();
        let words = ["snapshot", "--pid", &pid, "--socket", socket.to_str().unwrap(), "-o", "/dev/full"];
        let arguments = Command::parse_from(words).snapshot;
        let said = std::thread::scope(|scope| {
            scope.spawn(|| {
                let (mut asker, _) = listener.accept().unwrap();
                BufReader::new(&asker).read_line(&mut String::new()).unwrap();
                asker.write_all(&rings).unwrap();
            });
            format!("{:#}", run(&arguments).unwrap_err())
        });
        assert!(said.starts_with("failed to write /dev/full: "), "{said}");
    }

    #[test]
    fn without_consumerd_the_error_suggests_a_snapshot_by_pid() {
        let said = |whose: &[&str]| {
            let words = [&["snapshot", "--socket", "/nonexistent/control.sock"], whose].concat();
            format!("{:#}", ask(&Command::parse_from(words).snapshot).unwrap_err())
        };
        for whose in [&["--all"][..], &["--label", "osd"]] {
            assert!(said(whose).contains(
                "names another; without consumerd, root can take a snapshot of one process by --pid)"
            ));
        }
        assert!(!said(&["--pid", "7"]).contains("by --pid"));
    }

    #[test]
    fn a_read_error_amid_the_rings_ends_them_with_its_cause() {
        struct Reset;
        impl Read for Reset {
            fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
                Err(ErrorKind::ConnectionReset.into())
            }
        }
        let mut rings = Tail { from: (&b"rings"[..]).chain(Reset), last: Vec::new(), failed: None };
        let mut read = Vec::new();
        assert_eq!(rings.read_to_end(&mut read).unwrap(), 5);
        assert_eq!(rings.cause(), " (connection reset)");
    }

    #[test]
    fn a_huge_time_limit_keeps_everything() {
        assert_eq!(since_ns(7_000, 2), 5_000);
        assert_eq!([7_000, 20_000_000_000_000_000, u64::MAX].map(|last_us| since_ns(7_000, last_us)), [0; 3]);
    }

    #[test]
    fn the_result_of_a_snapshot_is_a_json_object() {
        let written = Written { file: "a.saved".into(), bytes: 7, replaced: false };
        let object = json!({ "file": "a.saved", "bytes": 7, "replaced": false });
        assert_eq!(serde_json::to_value(written).unwrap(), object);
    }
}
