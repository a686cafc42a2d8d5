//! A Scribe server as a sink: many messages in one `Log` call over framed TBinary, and several calls under way, for an
//! answer may have to wait for a disk.

use std::io;
use std::time::{Duration, Instant};

use blkin_daemon::Notices;
use blkin_scribe::{Client, Pipeline, Reply, Trouble, Window};
use blkin_thrift::writer::LogCallWriter;

use super::pump::{Outlet, Pump};
use super::queue::{Batch, Entry, Next, Outcome};
use crate::config::Config;

/// One upstream.
#[derive(Debug)]
pub struct Scribe {
    upstream: String,
    category: String,
    pipeline: Pipeline<Shipment>,
    /// Of messages that the upstream refuses.
    refused: Notices,
}

/// A batch under way.
#[derive(Debug)]
struct Shipment {
    batch: Batch,
    /// What became of its first entries, should the upstream have refused the whole.
    singly: Vec<Outcome>,
}

impl Scribe {
    /// Not connected yet.
    pub fn new(upstream: &str, category: &str, config: &Config) -> Self {
        let client = Client::new(upstream, Duration::from_millis(config.io_timeout_ms));
        let window = Window { calls: config.window_calls, bytes: config.window_bytes };
        Self {
            upstream: upstream.into(),
            category: category.into(),
            pipeline: Pipeline::new(client, window),
            refused: Notices::default(),
        }
    }

    /// Hands over what the window has room for and says until when there is nothing more to do; none once there never
    /// will be.
    fn fill(&mut self, pump: &Pump) -> Option<Option<Instant>> {
        self.pipeline.retain_waiting(|shipment| pump.queue.holds(&shipment.batch));
        while self.pipeline.has_room() {
            match pump.queue.next(Instant::now()) {
                Next::Batch(batch) => {
                    let bytes = batch.entries.iter().map(|entry| entry.lines.len()).sum();
                    self.pipeline.push(Shipment { batch, singly: Vec::new() }, bytes);
                }
                Next::Wait(due) => return Some(due),
                Next::Ended => return (!self.pipeline.is_empty()).then_some(None),
            }
        }
        Some(None)
    }

    /// Sends, waits and settles.
    fn turn(&mut self, due: Option<Instant>, pump: &mut Pump) -> io::Result<()> {
        let category = &self.category;
        let call = |shipment: &Shipment, sequence| encode(category, &shipment.batch.entries, sequence);
        let turned = self.pipeline.turn(call, pump.queue.bell(), due, &mut || Ok(()));
        let settled = self.settle_answered(pump);
        if self.pipeline.in_the_dark().next().is_some() {
            let shipments = self.pipeline.take_waiting().into_iter();
            pump.queue.give_back(shipments.map(|shipment| shipment.batch));
        }
        match settled.and(turned) {
            Err(trouble) => pump.later(trouble.cause(), &trouble),
            Ok(()) => Ok(()),
        }
    }

    /// Settles what was answered, until the rest of a batch is to be tried again.
    fn settle_answered(&mut self, pump: &mut Pump) -> Result<(), Trouble> {
        while let Some((mut shipment, reply)) = self.pipeline.pop() {
            if matches!(reply, Reply::Refused(_)) {
                if let Err(trouble) = self.ship_singly(&mut shipment) {
                    self.pipeline.put_back(shipment, reply);
                    return Err(trouble);
                }
            } else {
                shipment.singly = vec![Outcome::Acked; shipment.batch.entries.len()];
            }
            pump.queue.settle(&shipment.batch, &shipment.singly);
            pump.well();
        }
        Ok(())
    }

    /// The upstream refuses the whole batch: finds the entries that it takes, one by one.
    fn ship_singly(&mut self, shipment: &mut Shipment) -> Result<(), Trouble> {
        for entry in shipment.batch.entries.iter().skip(shipment.singly.len()) {
            let call = |sequence| encode(&self.category, std::slice::from_ref(entry), sequence);
            let outcome = match self.pipeline.call(call, &mut || Ok(()))? {
                Reply::Ok => Outcome::Acked,
                Reply::Refused(why) => {
                    if let Some(held_back) = self.refused.admit(Instant::now()) {
                        tracing::warn!(upstream = self.upstream, held_back, "a message was refused: {why}");
                    }
                    Outcome::Rejected
                }
                Reply::TryLater => return Err(Trouble::TryLater),
            };
            shipment.singly.push(outcome);
        }
        Ok(())
    }
}

impl Outlet for Scribe {
    fn run(mut self, mut pump: Pump) -> io::Result<()> {
        while let Some(due) = self.fill(&pump) {
            self.turn(due, &mut pump)?;
        }
        Ok(())
    }
}

/// What a call and each of its messages take on the wire beside texts; a guess that is too low costs a copy.
const CALL_BYTES: usize = 64;
const ENTRY_BYTES: usize = 16;

fn encode(category: &str, entries: &[Entry], sequence: i32) -> Vec<u8> {
    let of_entry = |entry: &Entry| entry.lines.len() + entry.messages * (category.len() + ENTRY_BYTES);
    let mut request = Vec::with_capacity(CALL_BYTES + entries.iter().map(of_entry).sum::<usize>());
    let mut writer = LogCallWriter::begin(&mut request, sequence);
    for entry in entries {
        match entry.lines.strip_suffix(b"\n") {
            Some(message) if entry.messages == 1 => writer.entry(category, message),
            _ => {
                let lines = entry.lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
                lines.for_each(|line| writer.entry(category, line));
            }
        }
    }
    writer.end();
    request
}

#[cfg(test)]
mod tests;
