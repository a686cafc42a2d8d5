//! Runs a program and writes every annotation that it and its descendants record to a file. The smallest consumer: for
//! tests, and to see without any daemon what a program records.
//!
//! ```text
//! tap RECORDS COUNTERS -- PROGRAM [ARGUMENT]...
//! ```
//!
//! RECORDS gets one line for each annotation, `trace span parent|name|ip|port|service|key|value`, where ids are 16
//! hex digits and the value is `!` for an event, `#7` for an integer, `=text` for a string. COUNTERS gets one line:
//! `programs=N attempted=N committed=N read=N torn=N invalid=N lost=N truncated=N overwritten=N`. If a program's rings
//! overwrite their oldest records, tap reads what is left in them when the program has ended. The exit status is the
//! program's, or 125 if tap itself failed.

#![allow(clippy::print_stderr, reason = "a command line program")]

use std::collections::HashSet;
use std::env;
use std::ffi::OsString;
use std::fs::{File, Permissions};
use std::io::{BufWriter, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, ExitCode, exit};

use blkin_record::{Endpoint, EndpointRef, Record, Text, Value, records};
use blkin_ringbuf::{Attachment, RingMode};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketAddrUnix, SocketFlags,
    SocketType, acceptfrom, bind, listen, recvmsg, socket_with,
};
use rustix::process::{WaitOptions, getpid, set_child_subreaper, wait};

type Failure = Box<dyn std::error::Error>;

/// How long tap sleeps before it looks at the rings again.
const PERIOD: Timespec = Timespec { tv_sec: 0, tv_nsec: 2_000_000 };
/// As much as a ring may hold: one call of drain takes all of it.
const DRAIN_BYTES: usize = 64 << 20;

#[derive(Default)]
struct Totals {
    programs: u64,
    attempted: u64,
    committed: u64,
    read: u64,
    torn: u64,
    invalid: u64,
    lost: u64,
    truncated: u64,
    overwritten: u64,
}

fn main() -> ExitCode {
    let arguments: Vec<OsString> = env::args_os().skip(1).collect();
    let [records_path, counters_path, dashes, program @ ..] = arguments.as_slice() else { usage() };
    if dashes != "--" || program.is_empty() {
        usage();
    }
    match tap(records_path, counters_path, program) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("tap: {error}");
            ExitCode::from(125)
        }
    }
}

fn usage() -> ! {
    eprintln!("usage: tap RECORDS COUNTERS -- PROGRAM [ARGUMENT]...");
    exit(2)
}

fn tap(records_path: &OsString, counters_path: &OsString, program: &[OsString]) -> Result<u8, Failure> {
    let mut out = BufWriter::new(File::create(records_path)?);
    // A program that gives up root must still reach the socket in it.
    let open_to_all = Permissions::from_mode(0o755);
    let folder = tempfile::Builder::new().prefix("blkin-tap-").permissions(open_to_all).tempdir()?;
    let (totals, code) = run(&folder.path().join("socket"), program, &mut out)?;
    folder.close()?;
    out.flush()?;
    let Totals { programs, attempted, committed, read, torn, invalid, lost, truncated, overwritten } = totals;
    let counters = format!(
        "programs={programs} attempted={attempted} committed={committed} read={read} torn={torn} \
         invalid={invalid} lost={lost} truncated={truncated} overwritten={overwritten}\n"
    );
    std::fs::write(counters_path, counters)?;
    Ok(code)
}

/// Runs the program until all its descendants have ended and every ring is read.
fn run(path: &std::path::Path, program: &[OsString], out: &mut impl Write) -> Result<(Totals, u8), Failure> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    listen(&socket, 4096)?;
    std::fs::set_permissions(path, Permissions::from_mode(0o666))?;
    set_child_subreaper(Some(getpid()))?;
    let child = Command::new(&program[0]).args(&program[1..]).env("BLKIN_SOCKET", path).spawn()?;
    let mut totals = Totals::default();
    let mut attachments = Vec::new();
    let mut seen = HashSet::new();
    let mut code = 125;
    loop {
        let everybody_gone = reap(child.id(), &mut code)?;
        accept_all(&socket, &mut seen, &mut attachments)?;
        totals.programs = seen.len() as u64;
        for attachment in &mut attachments {
            drain(attachment, &mut totals, out)?;
        }
        retire(&mut attachments, &mut totals, out)?;
        if everybody_gone && attachments.is_empty() {
            return Ok((totals, code));
        }
        poll(&mut [PollFd::new(&socket, PollFlags::IN)], Some(&PERIOD))?;
    }
}

/// Reaps the processes that have ended; true once no descendant is left.
fn reap(child: u32, code: &mut u8) -> Result<bool, Failure> {
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(None) => return Ok(false),
            Err(Errno::CHILD) => return Ok(true),
            Err(error) => return Err(error.into()),
            Ok(Some((pid, status))) if pid.as_raw_nonzero().get().cast_unsigned() == child => {
                let signal = status.terminating_signal().map(|signal| 128 + signal);
                *code = status.exit_status().or(signal).and_then(|n| u8::try_from(n).ok()).unwrap_or(125);
            }
            Ok(Some(_)) => {}
        }
    }
}

/// Attaches to each program once, although a program may repeat its offer until it sees that it is attached. `seen`: the inodes
/// of all segments so far, also those of programs that have ended.
fn accept_all(
    socket: &OwnedFd,
    seen: &mut HashSet<u64>,
    attachments: &mut Vec<Attachment>,
) -> Result<(), Failure> {
    loop {
        let connection = match acceptfrom(socket) {
            Ok((connection, _)) => connection,
            Err(Errno::AGAIN) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let Some((segment, control)) = receive(&connection)? else { continue };
        let attachment = Attachment::open(segment, &control)?;
        if seen.insert(attachment.info().inode) {
            attachment.mark_attached(true);
            attachments.push(attachment);
        }
    }
}

/// The two descriptors of an offer; nothing if the program died before it sent them.
fn receive(connection: &OwnedFd) -> Result<Option<(OwnedFd, OwnedFd)>, Failure> {
    let mut payload = [0; 16];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    recvmsg(connection, &mut [IoSliceMut::new(&mut payload)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let mut descriptors = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    let mut descriptors = descriptors.by_ref().flatten();
    Ok(descriptors.next().zip(descriptors.next()))
}

fn drain(attachment: &mut Attachment, totals: &mut Totals, out: &mut impl Write) -> Result<(), Failure> {
    if overwrites(attachment) {
        return Ok(());
    }
    let mut raw = Vec::new();
    for slot in 0..attachment.slots() {
        raw.clear();
        let drained = attachment.drain(slot, DRAIN_BYTES, &mut raw);
        attachment.publish(slot);
        totals.read += drained.records;
        totals.torn += drained.torn;
        write_all(attachment, &raw, totals, out)?;
    }
    Ok(())
}

fn overwrites(attachment: &Attachment) -> bool {
    attachment.info().mode == RingMode::Overwrite
}

/// Reads what is left in the rings of an overwriting program that has ended. There are no holes in them.
fn read_what_is_left(
    attachment: &Attachment,
    totals: &mut Totals,
    out: &mut impl Write,
) -> Result<(), Failure> {
    for slot in 0..attachment.slots() {
        let raw = attachment.copy_ring(slot).raw;
        totals.read += records(&raw, attachment.info().cookie).count() as u64;
        write_all(attachment, &raw, totals, out)?;
    }
    Ok(())
}

fn write_all(
    attachment: &Attachment,
    raw: &[u8],
    totals: &mut Totals,
    out: &mut impl Write,
) -> Result<(), Failure> {
    for record in records(raw, attachment.info().cookie) {
        match record {
            Ok(record) => write(attachment, &record, out)?,
            Err(_) => totals.invalid += 1,
        }
    }
    Ok(())
}

/// Drops the programs that can write nothing more, and whose rings have been read to the end.
fn retire(
    attachments: &mut Vec<Attachment>,
    totals: &mut Totals,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let is_done = |attachment: &mut Attachment| {
        attachment.no_writer_left() && (overwrites(attachment) || attachment.pending() == 0)
    };
    for attachment in attachments.extract_if(.., is_done) {
        if overwrites(&attachment) {
            read_what_is_left(&attachment, totals, out)?;
        }
        let counters = attachment.counters();
        totals.attempted += counters.attempted;
        totals.committed += counters.committed;
        totals.truncated += counters.truncated;
        totals.overwritten += counters.overwritten;
        totals.lost +=
            counters.full + counters.no_segment + counters.too_large + counters.starting + counters.stalled;
    }
    Ok(())
}

fn write(attachment: &Attachment, record: &Record<'_>, out: &mut impl Write) -> Result<(), Failure> {
    let text = |text: &Text<'_>| match text {
        Text::Id(id) => attachment.text(*id).unwrap_or_else(|| b"?".to_vec()),
        Text::Inline(bytes) => bytes.to_vec(),
    };
    let endpoint = match &record.endpoint {
        EndpointRef::Id(id) => attachment.text(*id).and_then(|bytes| Endpoint::decode(&bytes)),
        EndpointRef::Inline(bytes) => Endpoint::decode(bytes),
    };
    let Endpoint { ip, port, name: service } = endpoint.unwrap_or_default();
    write!(out, "{:016x} {:016x} {:016x}|", record.trace_id, record.span_id, record.parent_span_id)?;
    out.write_all(&text(&record.name))?;
    write!(out, "|{ip}|{port}|{service}|")?;
    out.write_all(&text(&record.key))?;
    match &record.value {
        Value::None => writeln!(out, "|!")?,
        Value::Integer(number) => writeln!(out, "|#{number}")?,
        Value::Str(bytes) => {
            out.write_all(b"|=")?;
            out.write_all(bytes)?;
            out.write_all(b"\n")?;
        }
    }
    Ok(())
}
