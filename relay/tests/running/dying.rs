//! An upstream process that ends whenever a certain entry arrives.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command, Stdio};

use blkin_scribe::trial::TIMES;
use blkin_thrift::Limits;
use blkin_thrift::frame::FrameReader;
use blkin_thrift::scribe::{Method, ResultCode, encode_log_reply, parse_call};

use crate::keys::sum;
use crate::process::{Relay, program};
use crate::upstream::{Sender, upstream};

/// Tells a process that it is the upstream, listening on its standard input, and which entry it dies of.
const DIES_OF: &str = "BLKIN_TEST_UPSTREAM_DIES_OF";

#[test]
fn upstream_that_crashes_on_an_entry_gets_all_others() {
    let (folder, (listener, address)) = (tempfile::tempdir().unwrap(), upstream());
    let relay = Relay::start(program(), folder.path(), &address, "backoff_min_ms = 1\nbackoff_max_ms = 2");
    let mut sender = Sender::of(&relay);
    (0..40_u32).for_each(|number| sender.send("zipkin", format!("entry {number}").into()));
    let (mut taken, mut deaths) = (Vec::new(), 0);
    while taken.len() < 39 {
        deaths += 1;
        run_upstream(&listener, "entry 3", &mut taken);
        taken.sort_unstable();
        taken.dedup();
    }
    assert!(!taken.contains(&"entry 3".to_owned()) && deaths > TIMES, "{deaths}: {taken:?}");
    while sum(&relay, "blkin_relay_entries_upstream_in_flight{") > 0 {
        std::thread::yield_now();
    }
    assert_eq!(sum(&relay, "blkin_relay_entries_upstream_lost_total{"), 1);
}

/// Runs the upstream process until it dies or everything has arrived, and adds the accepted entries to `taken`.
fn run_upstream(listener: &TcpListener, dies_of: &str, taken: &mut Vec<String>) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "dying::upstream_child_process", "--nocapture"]).env(DIES_OF, dies_of);
    let listening = OwnedFd::from(listener.try_clone().unwrap());
    let mut process = command.stdin(listening).stdout(Stdio::piped()).spawn().unwrap();
    for line in BufReader::new(process.stdout.take().unwrap()).lines() {
        taken.extend(line.unwrap().strip_prefix("took ").map(str::to_owned));
        if taken.len() >= 39 {
            process.kill().unwrap();
        }
    }
    process.wait().unwrap();
}

/// Tests nothing by itself: it is the process that the other test starts.
#[test]
fn upstream_child_process() {
    let Ok(dies_of) = std::env::var(DIES_OF) else { return };
    let listener = TcpListener::from(std::io::stdin().as_fd().try_clone_to_owned().unwrap());
    // Otherwise the first line would continue one that the test harness has begun.
    writeln!(std::io::stdout()).unwrap();
    for stream in listener.incoming() {
        serve(stream.unwrap(), &dies_of);
    }
}

fn serve(mut stream: TcpStream, dies_of: &str) {
    let mut told = std::io::stdout();
    let (mut frames, mut bytes) = (FrameReader::new(&Limits::default()), [0; 4096]);
    loop {
        while let Some(frame) = frames.next_frame().unwrap() {
            let call = parse_call(frame, &Limits::default()).unwrap();
            let Method::Log(entries) = call.method else { panic!("{:?}", call.method) };
            let messages = || entries.iter().map(|entry| String::from_utf8_lossy(&entry.message));
            if messages().any(|message| message == dies_of) {
                std::process::abort();
            }
            if stream.write_all(&encode_log_reply(call.seq, ResultCode::Ok)).is_err() {
                return;
            }
            messages().for_each(|message| writeln!(told, "took {message}").unwrap());
        }
        match stream.read(&mut bytes) {
            Ok(read) if read > 0 => frames.extend(&bytes[..read]),
            _ => return,
        }
    }
}
