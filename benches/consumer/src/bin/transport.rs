//! The rings alone: a program on CPU 0 records; this process drains and validates on CPU 1, and ships nothing.
//!
//! `transport [SECONDS [RING_BYTES [LAG_US]]]`. Both equations of the ledger are checked; a run whose figures do not
//! balance fails.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use blkin::{Endpoint, Span};
use blkin_bench_consumer::offers::Offers;
use blkin_bench_consumer::producer::PRODUCER;
use blkin_bench_consumer::{machine, report};
use blkin_record::records;
use blkin_ringbuf::{Attachment, ProgramCounters};

/// Microseconds between two rounds. A consumer that chases the head costs the producer more than one that lags.
const LAG_US: u64 = 50;
/// Most bytes copied at once, so that they are validated while they are still in the cache.
const BUDGET_BYTES: usize = 256 << 10;
/// A drain of at least this many records counts for the median of the drains.
const MANY: u64 = 200;
/// Calls between two readings of the clock.
const BURST: u64 = 512;
/// The offered rates. The first two are slightly above the targets of 20 and 50 million, because a paced program, which
/// starts and ends within the measured time, makes slightly fewer calls than asked for.
const RATES: [(u64, &str); 3] = [(21_000_000, "21 M/s"), (52_000_000, "52 M/s"), (0, "as many as possible")];

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|first| first == PRODUCER) {
        return produce(arguments[1].parse()?, arguments[2].parse()?);
    }
    let number = |at: usize, default: u64| arguments.get(at).map_or(Ok(default), |text| text.parse());
    let (seconds, ring_bytes) = (number(0, 5)?, number(1, 16 << 20)?);
    let lag = Duration::from_micros(number(2, LAG_US)?);
    machine::pin(1);
    RATES.iter().try_for_each(|(rate, case)| measure(*rate, case, seconds, ring_bytes, lag))
}

/// What the consumer has read.
#[derive(Default)]
struct Read {
    drained: u64,
    valid: u64,
    invalid: u64,
    torn: u64,
    busy: Duration,
    /// Nanoseconds per record, for each drain of at least [`MANY`] records.
    each: Vec<f64>,
    /// When the rings were last looked at, and the longest time between two looks. The ring must have room for
    /// everything that the program records in that time.
    looked: Option<Instant>,
    pause: Duration,
    /// The bytes copied last.
    raw: Vec<u8>,
}

fn measure(rate: u64, case: &str, seconds: u64, ring_bytes: u64, lag: Duration) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("socket");
    let offers = Offers::listen(&path)?;
    let mut program = start(&path, rate, seconds, ring_bytes)?;
    let mut attachment = offers.next()?;
    let begin = Instant::now();
    let mut read = Read { raw: Vec::with_capacity(BUDGET_BYTES + 4096), ..Read::default() };
    while program.try_wait()?.is_none() {
        round(&mut attachment, &mut read);
        let next = Instant::now() + lag;
        while Instant::now() < next {
            std::hint::spin_loop();
        }
    }
    let seconds = begin.elapsed().as_secs_f64();
    attachment.no_writer_left();
    while round(&mut attachment, &mut read) {}
    let counters = attachment.counters();
    check(&counters, &read)?;
    let per_second = |count: u64| count as f64 / seconds / 1e6;
    let name = |what: &str| format!("transport, {case} offered: {what}");
    report(&name("attempted"), "M/s", per_second(counters.attempted));
    report(&name("read and valid"), "M/s", per_second(read.valid));
    report(&name("lost, ring full"), "records", counters.full as f64);
    report(
        &name("lost, any other cause"),
        "records",
        (lost(&counters) - counters.full + read.invalid + read.torn) as f64,
    );
    report(&name("drain and validate"), "ns/record", read.busy.as_nanos() as f64 / read.drained as f64);
    report(&name("median of the drains"), "ns/record", median(&mut read.each));
    report(&name("longest time between two looks"), "ms", read.pause.as_secs_f64() * 1e3);
    Ok(())
}

fn median(figures: &mut [f64]) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}

fn start(socket: &Path, rate: u64, seconds: u64, ring_bytes: u64) -> Result<Child> {
    let mut command = Command::new("taskset");
    command.args(["-c", "0"]).arg(std::env::current_exe()?).arg(PRODUCER);
    command.args([rate.to_string(), seconds.to_string()]).env("BLKIN_SOCKET", socket);
    command.env("BLKIN_RING_BYTES", ring_bytes.to_string()).stdin(Stdio::null());
    command.spawn().context("failed to start the program")
}

/// Looks at every ring once. Returns whether there was anything to read.
fn round(attachment: &mut Attachment, read: &mut Read) -> bool {
    let start = Instant::now();
    let (mut raw, before) = (std::mem::take(&mut read.raw), read.drained);
    for slot in 0..attachment.slots() {
        loop {
            raw.clear();
            let look = Instant::now();
            read.pause = read.pause.max(look - read.looked.replace(look).unwrap_or(look));
            let drained = attachment.drain(slot, BUDGET_BYTES, &mut raw);
            if drained.from == drained.to {
                break;
            }
            attachment.publish(slot);
            read.drained += drained.records;
            read.torn += drained.torn;
            let mut valid = 0;
            records(&raw, attachment.info().cookie).each(|item| valid += u64::from(is_true(item.ok())));
            read.valid += valid;
            read.invalid += drained.records - valid;
            if drained.records >= MANY {
                read.each.push(look.elapsed().as_nanos() as f64 / drained.records as f64);
            }
            if !drained.more {
                break;
            }
        }
    }
    read.raw = raw;
    if read.drained != before {
        read.busy += start.elapsed();
    }
    read.drained != before
}

/// Checks the record against what the program below writes.
fn is_true(record: Option<&blkin_record::Record<'_>>) -> bool {
    record.is_some_and(|record| {
        record.value == blkin_record::Value::Integer(record.span_id.cast_signed()) && record.level == 4
    })
}

fn lost(counters: &ProgramCounters) -> u64 {
    let c = counters;
    c.full + c.no_segment + c.too_large + c.starting + c.stalled + c.overwritten
}

fn check(counters: &ProgramCounters, read: &Read) -> Result<()> {
    ensure!(
        counters.attempted == counters.committed + lost(counters),
        "a call is unaccounted for: {counters:?}"
    );
    let known = read.drained + read.torn;
    ensure!(counters.committed == known, "a record is unaccounted for: {counters:?}, {known} known");
    Ok(())
}

/// The traced program: integer keys, paced by the clock.
fn produce(rate: u64, seconds: u64) -> Result<()> {
    blkin::init();
    let endpoint = Endpoint::new("osd.0").at("10.0.0.1", 6800);
    let span = Span::root("write", &endpoint);
    let value = span.context().span_id().cast_signed();
    let (begin, limit) = (Instant::now(), Duration::from_secs(seconds));
    let mut done: u64 = 0;
    while begin.elapsed() < limit {
        (0..BURST).for_each(|_| span.tag("size", value));
        done += BURST;
        let due = if rate == 0 { 0 } else { u128::from(done) * 1_000_000_000 / u128::from(rate) };
        while begin.elapsed().as_nanos() < due {
            std::hint::spin_loop();
        }
    }
    Ok(())
}
