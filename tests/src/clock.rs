//! Measures how far converted times are from the clock: `tests/c/clock.c` through consumerd into a pipe of JSON lines.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::time::{ClockId, clock_gettime, clock_settime};
use serde::Deserialize;

use crate::daemons::{Node, Setup};
use crate::program::Program;

/// How far a time may lie outside the two clock readings that bracket it.
pub const SLACK_NS: i64 = 1_000;
/// A clock that moved this far against CLOCK_MONOTONIC was set.
const STEP_NS: i64 = 10_000;
/// Rings large enough for everything recorded while a busy machine delays consumerd for seconds.
const ROOMY: [(&str, &str); 1] = [("BLKIN_RING_BYTES", "16777216")];
/// Bits of a position that count grains within a ring; the bits above are the ring's number.
const GRAIN_BITS: u32 = 40;

/// The result of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Accuracy {
    /// For each sample, how many nanoseconds its time lies outside its brackets (0: inside), sorted.
    pub outside_ns: Vec<i64>,
    /// Number of times that are before their predecessor's in the ring.
    pub backwards: usize,
    /// Number of rings that records came from.
    pub rings: usize,
}

impl Accuracy {
    /// Percentage of times within the slack.
    pub fn percent_within(&self) -> f64 {
        let within = self.outside_ns.partition_point(|outside| *outside <= SLACK_NS);
        within as f64 * 100.0 / self.outside_ns.len().max(1) as f64
    }

    /// Number of times that lie outside their brackets by more than the slack.
    pub fn outside(&self) -> usize {
        self.outside_ns.len() - self.outside_ns.partition_point(|outside| *outside <= SLACK_NS)
    }

    /// The distance in nanoseconds that `percent` of all times do not exceed.
    pub fn percentile_ns(&self, percent: f64) -> i64 {
        let index = (self.outside_ns.len() as f64 * percent / 100.0).ceil() as usize;
        self.outside_ns.get(index.saturating_sub(1)).copied().unwrap_or_default()
    }
}

/// Records `samples` events over `seconds` and judges the times that consumerd gives them.
///
/// # Errors
/// When something does not run, an annotation is lost, or the clock was set meanwhile.
pub fn measure(samples: usize, seconds: usize) -> Result<Accuracy> {
    let offset = offset_ns();
    let accuracy = judge(samples, seconds)?;
    ensure!((offset_ns() - offset).abs() < STEP_NS, "the clock was set during the run: run it again");
    Ok(accuracy)
}

/// Like [`measure`], but sets the machine's clock meanwhile: forward by `step` after a third of the time, back after
/// another third.
///
/// # Errors
/// When something does not run, an annotation is lost, or the clock cannot be set.
pub fn measure_with_steps(samples: usize, seconds: usize, step: Duration) -> Result<Accuracy> {
    let third = Duration::from_secs(seconds as u64) / 3;
    let step_ns = i64::try_from(step.as_nanos()).context("such a step is too large")?;
    let steps = thread::spawn(move || {
        thread::sleep(third);
        set_clock_by(step_ns)?;
        thread::sleep(third);
        set_clock_by(-step_ns)
    });
    let accuracy = judge(samples, seconds);
    steps.join().map_err(|_| anyhow::anyhow!("the thread that sets the clock failed"))??;
    accuracy
}

fn set_clock_by(step_ns: i64) -> Result<()> {
    let mut time = clock_gettime(ClockId::Realtime);
    let nanoseconds = time.tv_nsec + step_ns;
    time.tv_sec += nanoseconds.div_euclid(1_000_000_000);
    time.tv_nsec = nanoseconds.rem_euclid(1_000_000_000);
    clock_settime(ClockId::Realtime, time).context("failed to set the clock: this needs CAP_SYS_TIME")
}

fn judge(samples: usize, seconds: usize) -> Result<Accuracy> {
    let folder = tempfile::TempDir::new()?;
    let pipe = folder.path().join("lines");
    mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).context("failed to make a pipe")?;
    let flags = vec!["--json-lines".to_owned(), pipe.display().to_string()];
    let node = Node::start(Setup { consumerd: flags, upstream: Some(String::new()), ..Setup::default() })?;
    let reader = thread::spawn(move || read(&pipe, samples / 2 * 2));
    let arguments = [samples.to_string(), seconds.to_string()];
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut program = Program::start("clock", &arguments, &node.socket(), &ROOMY)?;
    let calls = program.round()?;
    let metrics = node.settled(calls)?;
    // Checked before joining the reader, which would wait for ever for a lost annotation.
    let lost = metrics.sum("blkin_program_lost_total", &[]);
    ensure!(lost == 0, "{lost} of {calls} annotations found no room: the machine stood still for long");
    reader.join().map_err(|_| anyhow::anyhow!("the reader of the pipe failed"))?
}

/// CLOCK_REALTIME minus CLOCK_MONOTONIC.
fn offset_ns() -> i64 {
    let now = |clock| {
        let time = clock_gettime(clock);
        time.tv_sec * 1_000_000_000 + time.tv_nsec
    };
    let one = || {
        let before = now(ClockId::Monotonic);
        let realtime = now(ClockId::Realtime);
        let width = now(ClockId::Monotonic) - before;
        (width, realtime - before - width / 2)
    };
    std::iter::repeat_with(one).take(100).min().map_or(0, |(_, offset)| offset)
}

/// The fields of an annotation's JSON line that matter here.
#[derive(Deserialize)]
struct Line {
    span_id: u64,
    position: i64,
    timestamp: Option<i64>,
    key: Option<String>,
    value: Option<i64>,
}

/// A sample that has been read in part.
#[derive(Clone, Copy, Default)]
struct Sample {
    time: Option<i64>,
    before: Option<i64>,
    after: Option<i64>,
}

/// Reads until every sample is complete.
fn read(pipe: &Path, samples: usize) -> Result<Accuracy> {
    let mut open: HashMap<u64, Sample> = HashMap::new();
    let mut last_of_ring: HashMap<i64, i64> = HashMap::new();
    let mut accuracy = Accuracy::default();
    let mut lines = BufReader::new(File::open(pipe)?).lines();
    while accuracy.outside_ns.len() < samples {
        let Some(line) = lines.next() else {
            bail!("the lines ended after {} samples", accuracy.outside_ns.len())
        };
        let line: Line = serde_json::from_str(&line?)?;
        let sample = open.entry(line.span_id).or_default();
        match (line.timestamp, line.key.as_deref()) {
            (Some(time), _) => {
                sample.time = Some(time);
                let last = last_of_ring.insert(line.position >> GRAIN_BITS, time);
                accuracy.backwards += usize::from(last.is_some_and(|last| last > time));
            }
            (None, Some("before")) => sample.before = line.value,
            (None, _) => sample.after = line.value,
        }
        if let Sample { time: Some(time), before: Some(before), after: Some(after) } = *sample {
            accuracy.outside_ns.push((before - time).max(time - after).max(0));
            open.remove(&line.span_id);
        }
    }
    accuracy.outside_ns.sort_unstable();
    accuracy.rings = last_of_ring.len();
    Ok(accuracy)
}
