//! The cost of a call in the program, and of an annotation in consumerd, as the number of programs and threads grows.
//!
//! `scale [ANNOTATIONS [RATE]]`: both numbers apply to all programs together, so only the number of programs changes. One
//! further case is a single program that makes as few calls as each of a hundred, and so sleeps as long between them.
//! consumerd runs on CPU 1, the programs and the Scribe server on CPU 0. A program's cost is the CPU time of its threads,
//! so a program that has to wait for its turn does not count the time of others. Each program has made its first records,
//! and consumerd has shipped them, before anything is counted.

use anyhow::{Context, Result};
use blkin_bench_consumer::consumerd::Consumerd;
use blkin_bench_consumer::producer::{self, ANNOTATIONS_OF_SPAN, Load, PRODUCER, Pattern, Producer, WARM_UP};
use blkin_bench_consumer::scribe::Scribe;
use blkin_bench_consumer::{machine, report};

/// Programs and threads that run at the same time.
#[derive(Clone, Copy, Debug)]
struct Shape {
    programs: u64,
    /// Threads of each program.
    threads: u64,
    /// The divisor of the number of calls and of the rate: 100 makes a hundredth of all calls.
    part: u64,
    name: &'static str,
}

/// The case with which the others are compared.
const ALONE: Shape = Shape { programs: 1, threads: 1, part: 1, name: "1 program" };
/// One program that makes as many calls as each of a hundred.
const SELDOM: Shape = Shape { part: 100, name: "1 program that makes a hundredth of the calls", ..ALONE };
const TEN: Shape = Shape { programs: 10, name: "10 programs", ..ALONE };
const HUNDRED: Shape = Shape { programs: 100, name: "100 programs", ..ALONE };
const THREADS: Shape = Shape { threads: 1000, name: "1 program of 1,000 threads", ..ALONE };

/// Nanoseconds of CPU per call and per shipped annotation.
#[derive(Clone, Copy, Debug)]
struct Cost {
    call: f64,
    shipped: f64,
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|first| first == PRODUCER) {
        return producer::run(&arguments[1..]);
    }
    let number = |at: usize, default: u64| arguments.get(at).map_or(Ok(default), |text| text.parse());
    let (annotations, rate) = (number(0, 4_000_000)?, number(1, 1_000_000)?);
    machine::pin(0);
    let scribe = Scribe::start()?;
    let of_shape = |shape: Shape| measure(&scribe, annotations, rate, shape);
    let (alone, seldom) = (of_shape(ALONE)?, of_shape(SELDOM)?);
    for shape in [TEN, HUNDRED, THREADS] {
        let (cost, name) = (of_shape(shape)?, shape.name);
        let compare =
            |what: &str, one: f64, other: f64| report(&format!("scale, {name}, {what}"), "×", one / other);
        compare("a call ÷ that of 1 program", cost.call, alone.call);
        compare("an annotation in consumerd ÷ that of 1 program", cost.shipped, alone.shipped);
        if shape.programs == SELDOM.part {
            compare("a call ÷ that of 1 of them alone", cost.call, seldom.call);
        }
    }
    Ok(())
}

fn measure(scribe: &Scribe, annotations: u64, rate: u64, shape: Shape) -> Result<Cost> {
    let Shape { programs, threads, name, .. } = shape;
    let share = programs * shape.part;
    let load = Load {
        spans: annotations / ANNOTATIONS_OF_SPAN / share,
        rate: rate / share,
        threads,
        pattern: Pattern::Bursts,
    };
    let consumerd = Consumerd::start(&scribe.address, 1)?;
    let socket = consumerd.socket();
    let mut all: Vec<Producer> =
        (0..programs).map(|_| Producer::start(&socket, 0, load)).collect::<Result<_>>()?;
    let warm = consumerd.settled((programs * WARM_UP) as f64)?.acked;
    let before = seconds(&consumerd);
    all.iter_mut().try_for_each(Producer::go)?;
    let calls: Vec<f64> = all.iter_mut().map(Producer::finish).collect::<Result<_>>()?;
    let figures = consumerd.settled((programs * (WARM_UP + load.spans * ANNOTATIONS_OF_SPAN)) as f64)?;
    let spent = seconds(&consumerd) - before;
    let cost = Cost {
        call: calls.iter().sum::<f64>() / calls.len() as f64,
        shipped: spent * 1e9
            / Some(figures.acked - warm).filter(|acked| *acked > 0.0).context("nothing was shipped")?,
    };
    report(&format!("scale, {name}, a call"), "ns of CPU", cost.call);
    report(&format!("scale, {name}, an annotation in consumerd"), "ns of CPU", cost.shipped);
    report(&format!("scale, {name}, memory of consumerd"), "KiB", consumerd.resident_kib());
    report(&format!("scale, {name}, of which rings of programs"), "KiB", consumerd.shared_kib());
    report(&format!("scale, {name}, lost"), "annotations", figures.lost_in_programs + figures.lost_in_sink);
    Ok(cost)
}

/// CPU time of all threads of the daemon.
fn seconds(consumerd: &Consumerd) -> f64 {
    consumerd.threads_cpu().values().sum()
}
