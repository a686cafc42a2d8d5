//! A traced program for the tests: `producer SPANS THREADS [PAUSE_US [OBJECT_BYTES]]` records spans of four annotations on
//! each thread, and prints how many calls it has made so far. It does so once more for each line of its standard input, and ends
//! when that ends. With NOT_DUMPABLE in its environment, only root can read its files in /proc, as for programs that keep secrets.

#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::io::Write;
use std::time::Duration;

use blkin::{Endpoint, Span};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};

fn main() {
    let arguments: Vec<u64> = std::env::args().skip(1).map(|argument| argument.parse().unwrap()).collect();
    let (spans, threads) = (arguments[0], arguments[1]);
    let pause = arguments.get(2).copied().unwrap_or(0);
    let object =
        arguments.get(3).map_or("object-1".to_owned(), |bytes| "o".repeat(usize::try_from(*bytes).unwrap()));
    if std::env::var_os("NOT_DUMPABLE").is_some() {
        set_dumpable_behavior(DumpableBehavior::NotDumpable).unwrap();
    }
    // Threads that record while the segment is being made would lose annotations, counted as `starting`.
    blkin::init();
    let start = |_| {
        let object = object.clone();
        std::thread::spawn(move || work(spans, pause, &object))
    };
    let mut calls: u64 = 0;
    loop {
        let workers: Vec<_> = (0..threads).map(start).collect();
        calls += workers.into_iter().map(|worker| worker.join().unwrap()).sum::<u64>();
        println!("{calls}");
        std::io::stdout().flush().unwrap();
        if std::io::stdin().read_line(&mut String::new()).unwrap() == 0 {
            return;
        }
    }
}

fn work(spans: u64, pause_us: u64, object: &str) -> u64 {
    let endpoint = Endpoint::new("osd.0").at("10.0.0.1", 6800);
    for number in 0..spans {
        let span = Span::root("write", &endpoint);
        span.event("start");
        span.tag("Object", object);
        span.tag("size", i64::try_from(number).unwrap());
        span.end();
        if pause_us > 0 {
            std::thread::sleep(Duration::from_micros(pause_us));
        }
    }
    4 * spans
}
