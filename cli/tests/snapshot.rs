//! `blkin snapshot -o -`: what is saved goes to the standard output, and nothing else does.

#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;
use std::process::{Command, Output};

use blkin_ringbuf::saved::{self, Saved};

fn snapshot(socket: &str, more: &[&str]) -> Output {
    let mut blkin = Command::new(env!("CARGO_BIN_EXE_blkin"));
    blkin.args(["snapshot", "--all", "--socket", socket, "-o", "-"]).args(more).output().unwrap()
}

#[test]
fn what_is_saved_is_all_that_goes_to_the_standard_output() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("control.sock");
    let socket = path.to_str().unwrap();
    let listener = UnixListener::bind(&path).unwrap();
    let mut rings = Vec::new();
    saved::write(&Saved::default(), &mut rings);
    let output = std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut asker, _) = listener.accept().unwrap();
            BufReader::new(&asker).read_line(&mut String::new()).unwrap();
            asker.write_all(&rings).unwrap();
        });
        snapshot(socket, &[])
    });
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    assert_eq!(output.stdout, rings);
    assert_eq!(said, format!("{} bytes; `blkin recover` prints what they hold\n", rings.len()));
    let both = snapshot(socket, &["--json"]);
    assert_eq!((both.status.code(), both.stdout.len()), (Some(1), 0));
}
