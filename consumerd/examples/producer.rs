//! A traced program for the tests: `producer SPANS THREADS [PAUSE_US]` records spans of four annotations on each
//! thread, says how many calls it made, and ends when its standard input does.

#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::io::{Read, Write};
use std::time::Duration;

use blkin::{Endpoint, Span};

fn main() {
    let arguments: Vec<u64> = std::env::args().skip(1).map(|argument| argument.parse().unwrap()).collect();
    let (spans, threads) = (arguments[0], arguments[1]);
    let pause = arguments.get(2).copied().unwrap_or(0);
    // Threads that record while the segment is being made would lose annotations, counted as `starting`.
    blkin::init();
    let workers: Vec<_> = (0..threads).map(|_| std::thread::spawn(move || work(spans, pause))).collect();
    let calls: u64 = workers.into_iter().map(|worker| worker.join().unwrap()).sum();
    println!("{calls}");
    std::io::stdout().flush().unwrap();
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

fn work(spans: u64, pause_us: u64) -> u64 {
    let endpoint = Endpoint::new("osd.0").at("10.0.0.1", 6800);
    for number in 0..spans {
        let span = Span::root("write", &endpoint);
        span.event("start");
        span.tag("Object", "object-1");
        span.tag("size", i64::try_from(number).unwrap());
        span.end();
        if pause_us > 0 {
            std::thread::sleep(Duration::from_micros(pause_us));
        }
    }
    4 * spans
}
