//! The Rust twin of tests/c/loop.c: begins a request every half millisecond, and records its number at several levels with
//! the macros. It prints "ready", begins at the first line on stdin, and ends at the end of stdin.

#![allow(clippy::print_stdout, reason = "it says that it is ready")]

use std::io::{Read, Write};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::Duration;

use blkin::{Endpoint, Level, Span};

static HAS_ENDED: AtomicBool = AtomicBool::new(false);

fn one_request(number: i64) {
    let endpoint = Endpoint::new("requests").at("127.0.0.1", 6800);
    let span = Span::root("request", &endpoint);
    let emergency = span.at_level(Level::Emergency);
    blkin::tag!(emergency, "number", number);
    blkin::event!(emergency, "emerg");
    blkin::event!(span.at_level(Level::Error), "err");
    blkin::event!(span, "legacy");
    blkin::event!(span.at_level(Level::Info), "info");
    blkin::event!(span.at_level(Level::Debug), "debug");
}

fn main() -> std::io::Result<()> {
    // Creates the rings before there is another thread.
    blkin::init();
    println!("ready");
    std::io::stdout().flush()?;
    std::io::stdin().read_exact(&mut [0; 3])?;
    thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        HAS_ENDED.store(true, Relaxed);
    });
    let mut number = 0;
    while !HAS_ENDED.load(Relaxed) {
        one_request(number);
        number += 1;
        thread::sleep(Duration::from_micros(500));
    }
    Ok(())
}
