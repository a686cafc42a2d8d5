//! The cost of one call in Rust: `peers [-b BURSTS] [-p PAUSE_US] CASE`, one case per process.
//!
//! As in benches/c/hot.c, calls are made in bursts with pauses, and the figure is the time per call of the median
//! burst. The time is the vDSO's clock, which reads the time stamp counter behind a fence; its cost is spread over
//! thousands of calls. Background threads of the libraries stay on CPU 0, where LTTng's daemons and consumerd run too;
//! the calls are made on CPU 1.

#![forbid(unsafe_code)]

mod blkin_calls;
mod fastrace_calls;
mod otel_calls;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_setaffinity};

/// How a case is measured.
pub struct Pace {
    bursts: usize,
    pause: Duration,
}

impl Pace {
    /// The median burst, in nanoseconds per call. `burst` makes the calls and returns the time they took, without the
    /// time of its preparations and of what follows.
    pub fn measure(&self, calls: u32, mut burst: impl FnMut() -> Duration) -> f64 {
        pin(1);
        let mut bursts: Vec<Duration> = (0..self.bursts)
            .map(|_| {
                let took = burst();
                std::thread::sleep(self.pause);
                took
            })
            .collect();
        bursts.sort_unstable();
        bursts[bursts.len() / 2].as_nanos() as f64 / f64::from(calls)
    }
}

/// How long `calls` of `call` take.
pub fn timed(calls: u32, mut call: impl FnMut(u32)) -> Duration {
    let start = Instant::now();
    for n in 0..calls {
        call(n);
    }
    start.elapsed()
}

/// Binds this thread, and all threads that it will start.
pub fn pin(cpu: usize) {
    let mut only = CpuSet::new();
    only.set(cpu);
    if let Err(error) = sched_setaffinity(None, &only) {
        eprintln!("failed to pin to CPU {cpu}: {error}");
    }
}

type Case = (&'static str, fn(&Pace) -> f64);

const CASES: &[&[Case]] = &[blkin_calls::CASES, fastrace_calls::CASES, otel_calls::CASES];

fn main() -> ExitCode {
    let mut pace = Pace { bursts: 150, pause: Duration::from_millis(4) };
    let mut arguments = std::env::args().skip(1);
    let mut chosen = None;
    while let Some(argument) = arguments.next() {
        let mut number = || arguments.next().and_then(|text| text.parse::<u32>().ok()).unwrap_or(1);
        match argument.as_str() {
            "-b" => pace.bursts = number().max(1) as usize,
            "-p" => pace.pause = Duration::from_micros(number().into()),
            _ => chosen = Some(argument),
        }
    }
    let mut cases = CASES.iter().copied().flatten();
    let Some((name, case)) = cases.find(|(name, _)| Some(*name) == chosen.as_deref()) else {
        let names: Vec<&str> = CASES.iter().copied().flatten().map(|(name, _)| *name).collect();
        eprintln!("usage: peers [-b BURSTS] [-p PAUSE_US] CASE, one of: {}", names.join(" "));
        return ExitCode::from(2);
    };
    pin(0);
    println!("{name}\tns\t{:.3}", case(&pace));
    ExitCode::SUCCESS
}
