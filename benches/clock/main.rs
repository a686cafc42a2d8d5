//! How far converted times are from the clock, measured over the whole path:
//!
//! ```text
//! cargo run -p blkin-tests --example clock-accuracy [SAMPLES [SECONDS [STEP_MS]]]      1000000 over 150 s by default
//! ```
//!
//! With STEP_MS the machine's clock (CLOCK_REALTIME, for every program on it) is set forward by this amount after a
//! third of the time, and back after another third. This needs root and a machine where it does no harm. If a step
//! falls between two of consumerd's looks, the annotations recorded between them get the time before that step.
//!
//! Prints one line for each figure, `case<TAB>unit<TAB>value`. Fails if fewer than 99.9 % of all times lie within a
//! microsecond of the two readings of CLOCK_REALTIME around the call, or if a time lies before its predecessor in the
//! ring. With STEP_MS, this may happen once for each ring.
#![allow(clippy::print_stdout, reason = "a command line program")]

use std::env;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use blkin_tests::clock::{measure, measure_with_steps};

fn main() -> Result<()> {
    let mut numbers = env::args().skip(1).map(|number| number.parse().context("failed to read a number"));
    let samples = numbers.next().transpose()?.unwrap_or(1_000_000);
    let seconds = numbers.next().transpose()?.unwrap_or(150);
    let step = numbers.next().transpose()?.map(|milliseconds| Duration::from_millis(milliseconds as u64));
    let accuracy = match step {
        Some(step) => measure_with_steps(samples, seconds, step)?,
        None => measure(samples, seconds)?,
    };
    println!("clock: times outside of [before - 1 us, after + 1 us]\tcount\t{}", accuracy.outside());
    println!("clock: times within [before - 1 us, after + 1 us]\t%\t{:.4}", accuracy.percent_within());
    println!("clock: outside of the brackets, 99.99 %\tns\t{}", accuracy.percentile_ns(99.99));
    println!("clock: outside of the brackets, maximum\tns\t{}", accuracy.percentile_ns(100.0));
    println!("clock: times before their predecessor in the ring\tcount\t{}", accuracy.backwards);
    ensure!(accuracy.percent_within() >= 99.9, "fewer than 99.9 % of all times lie within their brackets");
    let allowed = if step.is_some() { accuracy.rings } else { 0 };
    ensure!(accuracy.backwards <= allowed, "a ring runs backwards");
    Ok(())
}
