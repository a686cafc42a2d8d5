//! `blkin snapshot -o -` writes the snapshot, and nothing else, to standard output; `blkin recover -` reads it.

#![allow(clippy::unwrap_used)]

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Command, Output, Stdio};

use blkin_ringbuf::saved::{self, Saved};
use tempfile::TempDir;

fn snapshot(socket: &str, more: &[&str], stdout: Stdio) -> Output {
    let mut blkin = Command::new(env!("CARGO_BIN_EXE_blkin"));
    blkin
        .args(["snapshot", "--all", "--socket", socket, "-o", "-"])
        .args(more)
        .stdout(stdout)
        .stderr(Stdio::piped());
    blkin.spawn().unwrap().wait_with_output().unwrap()
}

fn rings() -> Vec<u8> {
    let mut rings = Vec::new();
    saved::write(&Saved::default(), &mut rings);
    rings
}

/// Runs `blkin snapshot` against a consumerd that hands out one saved set of rings.
fn taken(stdout: Stdio) -> Output {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("control.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let output = std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut asker, _) = listener.accept().unwrap();
            BufReader::new(&asker).read_line(&mut String::new()).unwrap();
            asker.write_all(&rings()).unwrap();
        });
        snapshot(path.to_str().unwrap(), &[], stdout)
    });
    let said = str::from_utf8(&output.stderr).unwrap();
    assert_eq!(said, format!("{} bytes; `blkin recover` prints what they hold\n", rings().len()));
    assert!(output.status.success());
    output
}

#[test]
fn standard_output_receives_nothing_but_the_snapshot() {
    assert_eq!(taken(Stdio::piped()).stdout, rings());
    let both = snapshot("/nonexistent", &["--json"], Stdio::piped());
    assert_eq!((both.status.code(), both.stdout.len()), (Some(1), 0));
}

#[test]
fn the_standard_output_may_be_a_socket() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    taken(OwnedFd::from(theirs).into());
    let mut came = Vec::new();
    (&ours).read_to_end(&mut came).unwrap();
    assert_eq!(came, rings());
}

#[test]
fn a_snapshot_is_appended_to_standard_output() {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(b"before").unwrap();
    // As when a user redirects the output of sudo, the file belongs to another user than root; only root can arrange that.
    let _ = std::os::unix::fs::fchown(&file, Some(1), None);
    taken(file.try_clone().unwrap().into());
    file.write_all(b"behind").unwrap();
    assert_eq!(whole(&mut file), [&b"before"[..], &rings(), b"behind"].concat());
}

fn whole(file: &mut File) -> Vec<u8> {
    let mut bytes = Vec::new();
    std::io::Seek::rewind(file).unwrap();
    file.read_to_end(&mut bytes).unwrap();
    bytes
}

#[test]
fn recover_reads_standard_input() {
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    ours.write_all(&rings()).unwrap();
    drop(ours);
    let mut blkin = Command::new(env!("CARGO_BIN_EXE_blkin"));
    let output = blkin.args(["recover", "-"]).stdin(OwnedFd::from(theirs)).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}
