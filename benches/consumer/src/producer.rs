//! Traced programs for the measurements: this executable, started again with other arguments.

use std::io::{BufRead, BufReader, Read, Write};
use std::ops::Range;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use blkin::{Endpoint, Span};
use rustix::time::{ClockId, clock_gettime};

/// The first argument, which makes this executable a producer.
pub const PRODUCER: &str = "producer";
/// The name of the first span of [`request`].
pub const REQUEST: &str = "writev";
/// Annotations that [`span`] records.
pub const ANNOTATIONS_OF_SPAN: u64 = 10;
/// Spans of a burst.
const BURST: u64 = 32;
/// How many calls of [`span`] record as many annotations as one [`request`].
pub const SPANS_OF_REQUEST: u64 = 2;
/// Annotations that a program makes before it is measured. Its first record creates its ring, whose cost is a separate
/// figure (`first-start`).
pub const WARM_UP: u64 = BURST * ANNOTATIONS_OF_SPAN;
/// The same number of annotations, in requests.
pub const WARM_UP_REQUESTS: u64 = BURST / SPANS_OF_REQUEST;

/// What one program records.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Spans of ten annotations, for all threads together; two of them count as one request.
    pub spans: u64,
    /// Annotations a second, for all threads together; 0 for as many as possible.
    pub rate: u64,
    /// Threads.
    pub threads: u64,
    /// How the calls are spread over time.
    pub pattern: Pattern,
}

/// How calls are spread over time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Many spans at once, then a pause: shows the cost of a call without the cost of waking and sleeping.
    Bursts,
    /// One request after the other, evenly spread: each has four spans with several texts, some of them new each time.
    Requests,
}

impl Pattern {
    /// Spans between two readings of the clock.
    fn burst(self) -> u64 {
        match self {
            Self::Bursts => BURST,
            Self::Requests => SPANS_OF_REQUEST,
        }
    }

    /// Records the spans with these numbers. Returns the CPU time of a burst, but zero for a request: reading the CPU
    /// clock would take a good part of a request's own time.
    fn spans(self, endpoint: &Endpoint<'_>, numbers: Range<u64>) -> Duration {
        if self == Self::Requests {
            request(endpoint, numbers.start);
            return Duration::ZERO;
        }
        let start = cpu_time();
        numbers.for_each(|number| span(endpoint, number));
        cpu_time().saturating_sub(start)
    }
}

/// A program that records when told to and then waits.
#[derive(Debug)]
pub struct Producer {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Producer {
    /// Starts one: on the given CPU if it records bursts, on any CPU if it records requests. It has made [`WARM_UP`]
    /// annotations and waits for [`Producer::go`].
    ///
    /// # Errors
    /// When it does not start.
    pub fn start(socket: &Path, cpu: usize, load: Load) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        let is_requests = u64::from(load.pattern == Pattern::Requests);
        let numbers = [cpu as u64, load.spans, load.rate, load.threads, is_requests];
        command.arg(PRODUCER).args(numbers.map(|number| number.to_string()));
        command.env("BLKIN_SOCKET", socket).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().context("failed to start a producer")?;
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().context("no output")?);
        let mut producer = Self { child, input, output };
        producer.line()?;
        Ok(producer)
    }

    /// Makes it start recording.
    ///
    /// # Errors
    /// When it has ended.
    pub fn go(&mut self) -> Result<()> {
        Ok(self.input.as_mut().context("no input")?.write_all(b"go\n")?)
    }

    /// Waits until it has recorded everything. Returns the CPU time per call of its threads, in nanoseconds; bursts
    /// exclude the pauses.
    ///
    /// # Errors
    /// When it has ended.
    pub fn finish(&mut self) -> Result<f64> {
        Ok(self.line()?.trim().parse()?)
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        Ok(line)
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.child.wait();
    }
}

/// The main function of a producer, with the arguments that follow [`PRODUCER`].
///
/// # Errors
/// When the arguments are not numbers.
#[allow(clippy::print_stdout, reason = "its parent reads the output")]
pub fn run(arguments: &[String]) -> Result<()> {
    let numbers: Vec<u64> = arguments.iter().map(|text| text.parse()).collect::<Result<_, _>>()?;
    let [cpu, spans, rate, threads, is_requests] = numbers[..] else {
        anyhow::bail!("five numbers are needed")
    };
    let pattern = if is_requests == 0 { Pattern::Bursts } else { Pattern::Requests };
    if pattern == Pattern::Bursts {
        crate::machine::pin(cpu as usize);
    }
    blkin::init();
    record(Load { spans: BURST, rate: 0, threads: 1, pattern }, 0);
    println!("ready");
    std::io::stdin().read_line(&mut String::new())?;
    let of_thread = Load { spans: spans / threads, rate: rate / threads, threads: 1, pattern };
    let threads: Vec<_> =
        (0..threads).map(|number| std::thread::spawn(move || record(of_thread, number))).collect();
    let busy: Vec<f64> = threads.into_iter().filter_map(|thread| thread.join().ok()).collect();
    println!("{:.2}", busy.iter().sum::<f64>() / busy.len() as f64);
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// Records, paced by the clock. Returns nanoseconds of CPU per call; bursts exclude the pauses.
fn record(load: Load, thread: u64) -> f64 {
    let endpoint = Endpoint::new("osd.0").at("10.0.0.1", 6800);
    let (mut of_bursts, begin, mut done) = (Duration::ZERO, Instant::now() + phase(load, thread), 0);
    std::thread::sleep(begin.saturating_duration_since(Instant::now()));
    let start = cpu_time();
    while done < load.spans {
        let burst = load.pattern.burst().min(load.spans - done);
        of_bursts += load.pattern.spans(&endpoint, done..done + burst);
        done += burst;
        pace(begin, done * ANNOTATIONS_OF_SPAN, load.rate);
    }
    let busy = match load.pattern {
        Pattern::Bursts => of_bursts,
        Pattern::Requests => cpu_time().saturating_sub(start),
    };
    busy.as_nanos() as f64 / (done * ANNOTATIONS_OF_SPAN) as f64
}

/// A delay of up to the time between two bursts, different for each thread of each program. Without it, threads that
/// begin at the same moment would record in one common burst for ever.
fn phase(load: Load, thread: u64) -> Duration {
    let rate = load.rate;
    let period_ns = load.pattern.burst() * ANNOTATIONS_OF_SPAN * 1_000_000_000 / rate.max(1);
    let number = (u64::from(std::process::id()) + thread).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    Duration::from_nanos(if rate > 0 { number % period_ns.max(1) } else { 0 })
}

/// CPU time of the calling thread; the time of other threads is not included.
fn cpu_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec as u32)
}

/// Sleeps until `rate` allows `done` calls since `begin`.
fn pace(begin: Instant, done: u64, rate: u64) {
    if rate > 0 {
        let due = begin + Duration::from_nanos((done as u128 * 1_000_000_000 / u128::from(rate)) as u64);
        let ahead = due.saturating_duration_since(Instant::now());
        if ahead > Duration::from_micros(100) {
            std::thread::sleep(ahead);
        }
    }
}

/// A span as a storage daemon writes it: six events, two strings, two integers.
fn span(endpoint: &Endpoint<'_>, number: u64) {
    let span = Span::root("write", endpoint);
    span.event("start");
    span.tag("Object", "rbd_data.10226b8b4567.0000000000000a3f");
    span.tag("size", number as i64);
    span.event("queued");
    span.event("dequeued");
    span.event("journal");
    span.tag("offset", 4096 * number as i64);
    span.tag("pool", "volumes");
    span.event("commit");
    span.end();
}

/// A request that is copied to two replicas: 20 annotations in four spans. Each span has at most six texts of the table
/// of names; one text of the request is new each time.
fn request(endpoint: &Endpoint<'_>, number: u64) {
    let object = format!("rbd_data.10226b8b4567.{number:016x}");
    let root = Span::root(REQUEST, endpoint);
    root.client_send();
    root.tag("object", &*object);
    root.tag("offset", 4096 * number as i64);
    root.tag("size", 4096);
    for name in ["replica-0", "replica-1"] {
        let replica = root.child(name, endpoint);
        replica.client_send();
        replica.tag("pool", "volumes");
        replica.event("queued");
        replica.event("sent");
        replica.client_receive();
    }
    let disk = root.child("journal", endpoint);
    disk.event("start");
    disk.tag("fd", 7);
    disk.event("written");
    disk.end();
    root.event("acknowledged");
    root.client_receive();
}
