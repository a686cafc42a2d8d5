//! The ledger as anybody can read it from /metrics, and the check that each of its equations holds.

use std::collections::{BTreeMap, BTreeSet};

/// Samples by name and labels.
#[derive(Clone, Debug, Default)]
pub struct Metrics(BTreeMap<(String, String), u64>);

impl Metrics {
    pub fn parse(text: &str) -> Self {
        let mut samples = BTreeMap::new();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let (name, value) = line.rsplit_once(' ').unwrap();
            let (name, labels) = name.split_once('{').unwrap_or((name, "}"));
            // Counts are integers; the start time is not.
            let value: f64 = value.parse().unwrap();
            samples.insert((name.into(), labels.trim_end_matches('}').into()), value as u64);
        }
        Self(samples)
    }

    /// Sum over all samples of this name.
    pub fn sum(&self, name: &str) -> u64 {
        self.sum_where(name, "")
    }

    /// Sum over the samples of this name whose labels contain `part`.
    pub fn sum_where(&self, name: &str, part: &str) -> u64 {
        let matching = self.0.iter().filter(|((n, labels), _)| n == name && labels.contains(part));
        matching.map(|(_, value)| value).sum()
    }

    /// Changes one sample, to see the check turn red.
    pub fn change(&mut self, name: &str, change: impl Fn(u64) -> u64) {
        let key = self.0.keys().find(|(n, _)| n == name).unwrap().clone();
        let value = self.0[&key];
        self.0.insert(key, change(value));
    }

    fn labels(&self, name: &str) -> BTreeSet<String> {
        self.0.keys().filter(|(n, _)| n == name).map(|(_, labels)| labels.clone()).collect()
    }

    /// Every equation that does not hold.
    pub fn broken_equations(&self) -> Vec<String> {
        let mut broken = Vec::new();
        for process in self.labels("blkin_drained_total") {
            let of = |name: &str| self.sum_where(name, &process);
            let lost = |cause| self.sum_where("blkin_lost_total", &format!("{process},cause=\"{cause}\""));
            let drained = of("blkin_drained_before_total") + of("blkin_drained_total");
            let committed = of("blkin_program_committed_total");
            let equations = [
                (
                    "attempted",
                    of("blkin_program_attempted_total"),
                    committed + of("blkin_program_lost_total"),
                ),
                ("committed", committed, drained + of("blkin_pending") + lost("torn") + lost("unsettled")),
                ("drained", of("blkin_drained_total"), of("blkin_valid_total") + lost("invalid")),
            ];
            for (name, left, right) in equations {
                if left != right {
                    broken.push(format!("{name} of {process}: {left} != {right}"));
                }
            }
        }
        let valid = self.sum("blkin_valid_total");
        for sink in self.labels("blkin_sink_acked_total") {
            let of = |name: &str| self.sum_where(name, &sink);
            let right =
                of("blkin_sink_acked_total") + of("blkin_sink_in_flight") + of("blkin_sink_lost_total");
            if valid != right {
                broken.push(format!("valid of {sink}: {valid} != {right}"));
            }
        }
        broken
    }

    pub fn assert_balanced(&self) {
        assert_eq!(self.broken_equations(), Vec::<String>::new());
    }
}
