//! How often the log reports what happens again and again: nobody may fill the disk by causing it.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::Instant;

use blkin_thrift::scribe::{LogEntry, encode_log_call};

use crate::keys::sum;
use crate::process::{Relay, program};
use crate::upstream::{LIMIT, Sender};

/// Checks that there are lines with `words`, and at most one a second since `begun`.
fn assert_few(told: &[String], words: &str, begun: Instant) {
    let (lines, seconds) =
        (told.iter().filter(|line| line.contains(words)).count(), begun.elapsed().as_secs());
    assert!((1..=1 + seconds as usize).contains(&lines), "{lines} lines in {seconds} s");
}

fn connect(relay: &Relay) -> TcpStream {
    let stream = TcpStream::connect(&relay.scribe).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream
}

#[test]
fn malformed_calls_are_logged_once_a_second_with_the_peer() {
    let (folder, begun) = (tempfile::tempdir().unwrap(), Instant::now());
    let relay = Relay::start(program(), folder.path(), "127.0.0.1:1", "");
    let call = encode_log_call(1, &[LogEntry { category: "zipkin".into(), message: b"AA==".to_vec() }]);
    // A complete frame with a truncated call: it gets an exception, and the connection goes on.
    let mut broken = ((call.len() - 4 - 3) as u32).to_be_bytes().to_vec();
    broken.extend_from_slice(&call[4..call.len() - 3]);
    let mut stream = connect(&relay);
    for _ in 0..300 {
        stream.write_all(&broken).unwrap();
        let mut header = [0; 4];
        stream.read_exact(&mut header).unwrap();
        stream.read_exact(&mut vec![0; u32::from_be_bytes(header) as usize]).unwrap();
    }
    assert_eq!(sum(&relay, "blkin_relay_entries_lost_total{cause=\"malformed\"}"), 300);
    let peer = format!("peer={}", stream.local_addr().unwrap());
    let told = relay.end();
    let named = told
        .iter()
        .find(|line| line.contains("a Scribe call cannot be read: "))
        .expect("no malformed call is logged");
    assert!(named.contains(&peer), "{named} should name {peer}");
    assert_few(&told, "be read", begun);
}

#[test]
fn garbage_connections_are_logged_at_most_once_a_second() {
    let (folder, begun) = (tempfile::tempdir().unwrap(), Instant::now());
    let relay = Relay::start(program(), folder.path(), "127.0.0.1:1", "");
    for _ in 0..300 {
        let mut stream = connect(&relay);
        stream.write_all(b"\0\0\0\x08garbage!").unwrap();
        assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    }
    assert_few(&relay.end(), "closing a Scribe connection", begun);
}

#[test]
fn failed_copies_of_damage_are_logged_at_most_once_a_second() {
    const RECORDS: usize = 300;
    let (folder, address) = (tempfile::tempdir().unwrap(), "127.0.0.1:1");
    let relay = Relay::start(program(), folder.path(), address, "");
    let mut sender = Sender::of(&relay);
    (0..=RECORDS).for_each(|_| sender.send("zipkin", b"AA==".to_vec()));
    relay.end();
    let path = folder.path().join("0000000000000001.spool");
    let mut bytes = std::fs::read(&path).unwrap();
    let records: Vec<usize> = (0..bytes.len()).filter(|at| bytes[*at..].starts_with(b"REC1")).collect();
    assert_eq!(records.len(), RECORDS + 1);
    // Damage all records but the last.
    records[..RECORDS].iter().for_each(|record| bytes[record + 48] ^= 0xff);
    std::fs::write(&path, bytes).unwrap();
    // No file may grow, as on a full disk.
    let mut command = Command::new("prlimit");
    command.arg("--fsize=0").arg(program().get_program());
    let begun = Instant::now();
    let relay = Relay::start(command, folder.path(), address, "");
    assert_eq!(sum(&relay, "blkin_relay_damaged_regions_total"), RECORDS as u64);
    assert_few(&relay.start, "failed to keep ", begun);
}

#[test]
fn evicted_segments_are_logged_at_most_once_a_second() {
    let (folder, begun) = (tempfile::tempdir().unwrap(), Instant::now());
    let smallest = "max_message_mib = 1\nmax_reading_mib = 2\nspool_bytes = 4194304";
    let relay = Relay::start(program(), folder.path(), "127.0.0.1:1", smallest);
    let mut sender = Sender::of(&relay);
    // Each entry has a segment of its own.
    (0..60).for_each(|_| sender.send("zipkin", vec![b'A'; 900 << 10]));
    assert!(sum(&relay, "blkin_relay_entries_upstream_lost_total{") > 50);
    assert_few(&relay.end(), "dropping its oldest segments", begun);
}

#[test]
fn failed_position_writes_are_logged_at_most_once_a_second() {
    let (folder, begun) = (tempfile::tempdir().unwrap(), Instant::now());
    let smallest = "max_message_mib = 1\nmax_reading_mib = 2\nspool_bytes = 4194304";
    let relay = Relay::start(program(), folder.path(), "127.0.0.1:1", smallest);
    let positions = folder.path().join("positions");
    // The positions are written once at the start, and then after each new entry.
    while std::fs::read(&positions).unwrap().iter().all(|byte| *byte == 0) {
        std::thread::yield_now();
    }
    std::fs::remove_file(&positions).unwrap();
    std::fs::create_dir(&positions).unwrap();
    let mut sender = Sender::of(&relay);
    (0..60).for_each(|_| sender.send("zipkin", vec![b'A'; 900 << 10]));
    assert!(sum(&relay, "blkin_relay_entries_upstream_lost_total{") > 50);
    while sum(&relay, "blkin_relay_spool_trouble{what=\"positions\"") == 0 {
        std::thread::yield_now();
    }
    // When the relay ends, it logs this once more as the reason of its failure.
    assert_few(&relay.end(), "after a crash more would be sent twice", begun);
}
