//! Traced programs for the measurements: this executable again, with other arguments.

use std::io::{BufRead, BufReader, Read, Write};
use std::ops::Range;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use blkin::{Endpoint, Span};
use rustix::time::{ClockId, clock_gettime};

/// First argument of a producer.
pub const PRODUCER: &str = "producer";
/// What [`request`] calls its first span.
pub const REQUEST: &str = "writev";
/// Annotations of a span of [`span`].
pub const ANNOTATIONS_OF_SPAN: u64 = 10;
/// Spans of a burst.
const BURST: u64 = 32;
/// Spans of [`span`] of as many annotations as one [`request`].
pub const SPANS_OF_REQUEST: u64 = 2;
/// Annotations that a program makes before it is measured: its first record has its ring made, which is a figure of its
/// own (`first-start`).
pub const WARM_UP: u64 = BURST * ANNOTATIONS_OF_SPAN;
/// The same in requests.
pub const WARM_UP_REQUESTS: u64 = BURST / SPANS_OF_REQUEST;

/// What one program records.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Spans of ten annotations, of all threads together; two are a request.
    pub spans: u64,
    /// Annotations a second, of all threads together; 0 for as many as it can.
    pub rate: u64,
    /// Threads.
    pub threads: u64,
    /// How the calls come.
    pub pattern: Pattern,
}

/// How calls come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Many spans at once, and a pause: what a call costs is to be seen, and not what surrounds it.
    Bursts,
    /// One request after the other, evenly: four spans of several texts, a part of which is new each time.
    Requests,
}

impl Pattern {
    /// Spans between two looks at the clock.
    fn burst(self) -> u64 {
        match self {
            Self::Bursts => BURST,
            Self::Requests => SPANS_OF_REQUEST,
        }
    }

    /// Records so many spans. CPU time that it took, of a burst: to ask for it would take a good part of a request's.
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
    /// Starts one, of bursts on that CPU, of requests on whatever CPU the kernel chooses; it has made [`WARM_UP`]
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

    /// Lets it record.
    ///
    /// # Errors
    /// When it has ended.
    pub fn go(&mut self) -> Result<()> {
        Ok(self.input.as_mut().context("no input")?.write_all(b"go\n")?)
    }

    /// Waits until it has recorded everything; CPU time in nanoseconds that its threads spent on each call, of bursts
    /// without the pauses.
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

/// The body of a producer, with the arguments behind [`PRODUCER`].
///
/// # Errors
/// When the arguments are no numbers.
#[allow(clippy::print_stdout, reason = "its parent listens")]
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

/// Records, paced by the clock. Nanoseconds of CPU a call; of bursts the pauses are left out.
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

/// A part of the time between two bursts, another one for each thread of each program: what begins at once would else
/// come in one burst for ever.
fn phase(load: Load, thread: u64) -> Duration {
    let rate = load.rate;
    let period_ns = load.pattern.burst() * ANNOTATIONS_OF_SPAN * 1_000_000_000 / rate.max(1);
    let number = (u64::from(std::process::id()) + thread).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    Duration::from_nanos(if rate > 0 { number % period_ns.max(1) } else { 0 })
}

/// CPU time of the calling thread: what others do meanwhile is not in it.
fn cpu_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec as u32)
}

/// Sleeps as long as `done` calls are more than `rate` allows since `begin`.
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

/// A request that is copied to two places, 20 annotations of four spans: six texts of the table of names in each at most,
/// and one that is new each time.
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
