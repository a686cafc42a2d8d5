//! A relay with a low limit on open files.

use std::io::Read;
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use blkin_scribe::{Client, Reply};
use blkin_thrift::scribe::{LogEntry, encode_log_call};

use crate::process::{Relay, program};
use crate::upstream::LIMIT as PATIENCE;

/// Most files that the relay may have open.
const LIMIT: usize = 256;

/// Whether the relay has closed a connection.
fn is_closed(stream: &mut TcpStream) -> bool {
    stream.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    matches!(stream.read(&mut [0]), Ok(0))
}

#[test]
fn many_clients_leave_enough_descriptors_for_the_relay() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new("prlimit");
    command.arg(format!("--nofile=128:{LIMIT}")).arg(env!("CARGO_BIN_EXE_blkin-relay"));
    let relay = Relay::start(command, folder.path(), "127.0.0.1:1", "");
    let mut clients: Vec<TcpStream> =
        (0..2 * LIMIT).map(|_| TcpStream::connect(&relay.scribe).unwrap()).collect();
    // This client is accepted after all the others, which are silent and make room for each other.
    let mut sender = Client::new(&relay.scribe, PATIENCE);
    let entry = LogEntry { category: "zipkin".into(), message: vec![b'x'; 1000] };
    let mut send =
        || sender.log(|seq| encode_log_call(seq, std::slice::from_ref(&entry)), &mut || Ok(())).unwrap();
    assert_eq!(send(), Reply::Ok);
    // The relay's files are removed, so that it has to open new ones for the next entry.
    std::fs::remove_dir_all(folder.path()).unwrap();
    assert_eq!(send(), Reply::Ok);
    assert!(relay.get("/healthz").starts_with("HTTP/1.1 200"));
    let closed = clients.iter_mut().filter_map(|client| is_closed(client).then_some(())).count();
    assert!((LIMIT..2 * LIMIT - 64).contains(&closed), "{closed} of {} were closed", 2 * LIMIT);
    // One line a second with the count of the others, so that clients that keep trying do not fill the disk.
    let told = relay.end().iter().filter(|line| line.contains("Scribe connection")).count();
    assert!((1..closed / 4).contains(&told), "{closed} were closed, of which {told} lines tell");
}

#[test]
fn http_request_is_answered_once_descriptors_are_free_again() {
    let folder = tempfile::tempdir().unwrap();
    let relay = Relay::start(program(), folder.path(), "127.0.0.1:1", "");
    relay.limit_files(0);
    let mut asking = relay.ask("/healthz");
    asking.set_read_timeout(Some(PATIENCE)).unwrap();
    relay.tells("failed to accept an HTTP connection");
    relay.limit_files(LIMIT);
    let mut answer = String::new();
    asking.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[test]
fn with_too_few_descriptors_a_relay_says_how_many_it_needs() {
    let folder = tempfile::tempdir().unwrap();
    for most in [6, 7, 20, 63] {
        let mut command = Command::new("prlimit");
        command.arg(format!("--nofile={most}:{most}")).arg(env!("CARGO_BIN_EXE_blkin-relay"));
        command.args(["--upstreams", "127.0.0.1:1", "--spool-dir"]).arg(folder.path());
        let ended = command.output().unwrap();
        let told = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(1), "{told}");
        let wanted = format!("the limit of open files is {most}, and the daemon needs 64 or more");
        assert!(told.contains(&wanted), "{told}");
    }
}
