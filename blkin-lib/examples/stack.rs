//! Tests whether a stack of this size is enough for recording, the first record included: `stack KIB` exits with 0 if so.

#![allow(clippy::print_stdout, reason = "a command line program")]

use std::thread::Builder;

use blkin::{Endpoint, Span};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let kib: usize = std::env::args().nth(1).ok_or("stack KIB")?.parse()?;
    let long = "x".repeat(4000);
    let record = move || {
        let span = Span::root("op", &Endpoint::new("stack"));
        span.event("first");
        span.tag(&long, long.as_str());
        span.end();
    };
    Builder::new().stack_size(kib << 10).spawn(record)?.join().map_err(|_| "the thread panicked")?;
    println!("{kib} KiB are enough");
    Ok(())
}
