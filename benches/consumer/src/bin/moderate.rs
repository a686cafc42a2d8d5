//! The cost of tracing at the rates of a storage node: for consumerd, for the receiver of its spans, and for the
//! programs.
//!
//! `moderate [scribe|collector [SECONDS [PROGRAMS [RATE...]]]]`: five programs each serve one request after the other,
//! with 10,000, 60,000 and 200,000 annotations a second together, for 5 s each. Before that, consumerd is measured
//! without a program, and with programs that do nothing. Nothing is bound to a CPU. CPU time is the scheduler's count.
//!
//! System calls are counted separately, because counting slows them down: run `strace -c -f -p $(pgrep -n
//! blkin-consumerd)` for a few seconds of a longer run at one rate.

use std::thread::sleep;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use blkin_bench_consumer::collector::Collector;
use blkin_bench_consumer::consumerd::Consumerd;
use blkin_bench_consumer::machine::Usage;
use blkin_bench_consumer::producer::{self, ANNOTATIONS_OF_SPAN, Load, PRODUCER, Pattern, Producer, WARM_UP};
use blkin_bench_consumer::report;
use blkin_bench_consumer::scribe::Scribe;

const RATES: [u64; 3] = [10_000, 60_000, 200_000];
/// After this time the daemons' pauses have reached their full length.
const CALM: Duration = Duration::from_secs(1);

/// The receiver of the spans.
enum Taker {
    /// Answers OK at once. It runs in this process, so its CPU time is not reported.
    Scribe(Scribe),
    Collector(Collector),
}

impl Taker {
    fn start(name: &str) -> Result<Self> {
        Ok(match name {
            "scribe" => Self::Scribe(Scribe::start()?),
            "collector" => Self::Collector(Collector::start()?),
            _ => bail!("spans go to `scribe` or to `collector`, not to `{name}`"),
        })
    }

    fn address(&self) -> &str {
        match self {
            Self::Scribe(scribe) => &scribe.address,
            Self::Collector(collector) => &collector.scribe,
        }
    }

    fn calls(&self) -> Option<f64> {
        match self {
            Self::Scribe(scribe) => Some(scribe.calls() as f64),
            Self::Collector(_) => None,
        }
    }

    fn usage(&self) -> Option<Usage> {
        match self {
            Self::Scribe(_) => None,
            Self::Collector(collector) => Some(collector.usage()),
        }
    }
}

/// The parameters of one measurement.
#[derive(Clone, Copy)]
struct Plan {
    programs: u64,
    rate: u64,
    seconds: u64,
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|first| first == PRODUCER) {
        return producer::run(&arguments[1..]);
    }
    let taker = Taker::start(arguments.first().map_or("scribe", String::as_str))?;
    let mut numbers = arguments.iter().skip(1).map(|text| text.parse::<u64>());
    let seconds = numbers.next().unwrap_or(Ok(5))?;
    let programs = numbers.next().unwrap_or(Ok(5))?;
    let asked = numbers.collect::<Result<Vec<_>, _>>()?;
    let rates = if asked.is_empty() { RATES.to_vec() } else { asked };
    let plan = |rate| Plan { programs, rate, seconds };
    idle(&taker, plan(0))?;
    rates.into_iter().try_for_each(|rate| measure(&taker, plan(rate)))
}

/// Measures consumerd without a program, and with programs that do nothing.
fn idle(taker: &Taker, plan: Plan) -> Result<()> {
    let consumerd = Consumerd::start_anywhere(taker.address())?;
    calm(&consumerd, plan, "no program");
    let programs = start(&consumerd, plan)?;
    consumerd.settled((plan.programs * WARM_UP) as f64)?;
    calm(&consumerd, plan, &format!("{} programs that do nothing", programs.len()));
    Ok(())
}

fn calm(consumerd: &Consumerd, plan: Plan, name: &str) {
    sleep(CALM);
    let before = consumerd.usage();
    sleep(Duration::from_secs(plan.seconds));
    let spent = consumerd.usage() - before;
    let seconds = plan.seconds as f64;
    report(&format!("moderate, {name}, consumerd"), "% of a CPU", spent.seconds / seconds * 100.0);
    report(&format!("moderate, {name}, consumerd, switches"), "1/s", spent.switches / seconds);
}

fn start(consumerd: &Consumerd, plan: Plan) -> Result<Vec<Producer>> {
    let Plan { programs, rate, seconds } = plan;
    let spans = rate * seconds / ANNOTATIONS_OF_SPAN / programs;
    let load = Load { spans, rate: rate / programs, threads: 1, pattern: Pattern::Requests };
    (0..programs).map(|_| Producer::start(&consumerd.socket(), 0, load)).collect()
}

/// The CPU time and calls of all parts up to one moment.
struct Taken {
    consumerd: Usage,
    taker: Option<Usage>,
    calls: Option<f64>,
}

impl Taken {
    fn now(consumerd: &Consumerd, taker: &Taker) -> Self {
        Self { consumerd: consumerd.usage(), taker: taker.usage(), calls: taker.calls() }
    }
}

fn measure(taker: &Taker, plan: Plan) -> Result<()> {
    let consumerd = Consumerd::start_anywhere(taker.address())?;
    let mut programs = start(&consumerd, plan)?;
    let warm = consumerd.settled((plan.programs * WARM_UP) as f64)?;
    let threads = consumerd.threads_cpu();
    let before = Taken::now(&consumerd, taker);
    programs.iter_mut().try_for_each(Producer::go)?;
    let calls: Vec<f64> = programs.iter_mut().map(Producer::finish).collect::<Result<_>>()?;
    let after = Taken::now(&consumerd, taker);
    let busy = consumerd.threads_cpu();
    let figures = consumerd.settled(warm.attempted + 1.0)?;
    let annotations = figures.attempted - warm.attempted;
    ensure!(annotations > 0.0, "nothing was recorded");
    let name = |what: &str| format!("moderate, {}/s, {what}", plan.rate);
    let cost = |what: &str, spent: Usage| {
        report(&name(what), "us/annotation", spent.seconds * 1e6 / annotations);
        report(&name(&format!("{what}, switches")), "1/s", spent.switches / plan.seconds as f64);
    };
    cost("consumerd", after.consumerd - before.consumerd);
    for (thread, seconds) in &busy {
        let spent = seconds - threads.get(thread).unwrap_or(&0.0);
        report(&name(&format!("consumerd, thread {thread}")), "us/annotation", spent * 1e6 / annotations);
    }
    if let (Some(after), Some(before)) = (after.taker, before.taker) {
        cost("collector", after - before);
    }
    if let (Some(after), Some(before)) = (after.calls, before.calls) {
        report(&name("calls to the sink"), "1/s", (after - before) / plan.seconds as f64);
    }
    let of_call = calls.iter().sum::<f64>() / calls.len() as f64;
    report(&name("programs, a call, waking and sleeping included"), "ns of CPU", of_call);
    report(&name("lost"), "annotations", figures.lost_in_programs + figures.lost_in_sink);
    Ok(())
}
