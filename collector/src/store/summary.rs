//! What the store knows of a trace without reading its spans.

use super::keys::{ANY_SERVICE, read_u64, service_hash};
use super::pieces::Facts;

/// Bytes of a summary row before its services.
const BYTES: usize = 1 + 8 + 8 + 8 + 8;
const FLAG_ROOT: u8 = 1;

/// The summary row of a trace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Summary {
    /// The time of the trace in microseconds: that of the first span without parent that has one, else the least of
    /// all; 0 as long as no span has one.
    pub(super) time_us: u64,
    /// Whether that time is of a span without parent, and final.
    pub(super) from_root: bool,
    /// The minute of the last arrival, since 1970; plus one, so that 0 means: not in the index yet.
    pub(super) arrival: u64,
    /// Payload bytes of the pieces.
    pub(super) bytes: u64,
    /// Number of pieces.
    pub(super) pieces: u64,
    /// The services that take part, as the time index knows them, in order.
    pub(super) services: Vec<u64>,
}

impl Summary {
    /// Takes one more piece into account.
    pub(super) fn learn(&mut self, facts: &Facts) {
        for service in &facts.services {
            let service = service_hash(service);
            if let Err(at) = self.services.binary_search(&service) {
                self.services.insert(at, service);
            }
        }
        self.learn_time(facts);
    }

    /// The services under which the time index lists the trace.
    pub(super) fn services_and_any(&self) -> impl Iterator<Item = u64> {
        self.services.iter().copied().chain([ANY_SERVICE])
    }

    fn learn_time(&mut self, facts: &Facts) {
        if self.from_root {
            return;
        }
        if let Some(root) = facts.root_time_us {
            self.time_us = root;
            self.from_root = true;
        } else if let Some(least) = facts.least_time_us
            && (self.time_us == 0 || least < self.time_us)
        {
            self.time_us = least;
        }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let numbers = [self.time_us, self.arrival, self.bytes, self.pieces];
        let mut row = Vec::with_capacity(BYTES + 8 * self.services.len());
        row.push(if self.from_root { FLAG_ROOT } else { 0 });
        for number in numbers.iter().chain(&self.services) {
            row.extend_from_slice(&number.to_be_bytes());
        }
        row
    }

    pub(super) fn decode(row: &[u8]) -> Option<Summary> {
        let services = row.get(BYTES..)?.chunks(8).map(|service| read_u64(service, 0));
        Some(Summary {
            from_root: row[0] & FLAG_ROOT != 0,
            time_us: read_u64(row, 1)?,
            arrival: read_u64(row, 9)?,
            bytes: read_u64(row, 17)?,
            pieces: read_u64(row, 25)?,
            services: services.collect::<Option<_>>()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(root: Option<u64>, least: Option<u64>) -> Facts {
        Facts { root_time_us: root, least_time_us: least, ..Facts::default() }
    }

    #[test]
    fn a_summary_reads_back_as_it_was_written() {
        let summary =
            Summary { time_us: 1, from_root: true, arrival: 2, bytes: 3, pieces: 4, services: vec![5, 6] };
        let row = summary.encode();
        assert_eq!(row[..10], [1, 0, 0, 0, 0, 0, 0, 0, 1, 0]);
        assert_eq!(row.len(), 49);
        assert_eq!(Summary::decode(&row), Some(summary));
        assert_eq!((Summary::decode(&row[1..]), Summary::decode(&row[..32])), (None, None));
    }

    #[test]
    fn the_first_span_without_parent_gives_the_time_and_until_then_the_least_does() {
        let mut summary = Summary::default();
        summary.learn(&facts(None, None));
        assert_eq!(summary.time_us, 0);
        summary.learn(&facts(None, Some(30)));
        summary.learn(&facts(None, Some(20)));
        summary.learn(&facts(None, Some(25)));
        assert_eq!((summary.time_us, summary.from_root), (20, false));
        summary.learn(&facts(Some(40), Some(40)));
        summary.learn(&facts(Some(10), Some(10)));
        assert_eq!((summary.time_us, summary.from_root), (40, true));
    }
}
