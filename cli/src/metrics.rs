//! Prometheus text, as far as the daemons write it.

use std::collections::BTreeMap;

/// One sample: a name, its labels and a whole number (the ledger has no others).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sample {
    /// Metric name.
    pub name: String,
    /// Label names and values.
    pub labels: BTreeMap<String, String>,
    /// The value.
    pub value: i64,
}

/// All samples of one reading.
#[derive(Debug, Clone, Default)]
pub struct Metrics {
    samples: Vec<Sample>,
}

impl Metrics {
    /// Parses the text. Lines that are not samples with whole numbers are skipped, and so are those with which the sum of all
    /// values would overflow.
    pub fn parse(text: &str) -> Metrics {
        let mut left = MOST_TOGETHER;
        let fits = |sample: &Sample| {
            let less = left.checked_sub(sample.value.unsigned_abs());
            less.map(|less| left = less).is_some()
        };
        Metrics { samples: text.lines().filter_map(sample).filter(fits).collect() }
    }

    /// Whether there is a metric of that name.
    pub fn has(&self, name: &str) -> bool {
        self.samples.iter().any(|sample| sample.name == name)
    }

    /// The samples of `name` that have all of `labels`.
    pub fn select<'a>(
        &'a self,
        name: &'a str,
        labels: &'a [(&str, &str)],
    ) -> impl Iterator<Item = &'a Sample> {
        let carries = |sample: &Sample| {
            labels.iter().all(|(key, value)| sample.labels.get(*key).is_some_and(|v| v == value))
        };
        self.samples.iter().filter(move |sample| sample.name == name && carries(sample))
    }

    /// The sum of those samples, 0 if there are none.
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> i64 {
        self.select(name, labels).map(|sample| sample.value).sum()
    }

    /// The samples that have a label, grouped by its value: a caller that asks about each value in turn then searches only the
    /// samples of that value.
    pub fn by(&self, label: &str) -> BTreeMap<&str, Metrics> {
        let mut by: BTreeMap<&str, Metrics> = BTreeMap::new();
        for sample in &self.samples {
            if let Some(value) = sample.labels.get(label) {
                by.entry(value).or_default().samples.push(sample.clone());
            }
        }
        by
    }

    /// All values of a label of a metric, sorted, each once.
    pub fn values(&self, name: &str, label: &str) -> Vec<String> {
        let mut values: Vec<String> =
            self.select(name, &[]).filter_map(|sample| sample.labels.get(label).cloned()).collect();
        values.sort_unstable();
        values.dedup();
        values
    }
}

fn sample(line: &str) -> Option<Sample> {
    if line.starts_with('#') {
        return None;
    }
    let name_end = line.find(['{', ' '])?;
    let (name, rest) = line.split_at(name_end);
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(rest) => labels(rest)?,
        None => (BTreeMap::new(), rest),
    };
    let value = rest.split_whitespace().next()?;
    Some(Sample { name: name.to_owned(), labels, value: whole(value)? })
}

/// Values above this are not counts.
const MOST: u64 = 1 << f64::MANTISSA_DIGITS;
/// Largest sum of all values of one answer, however many it has, so that a hundred answers can be added without overflow.
const MOST_TOGETHER: u64 = MOST << 3;

fn whole(text: &str) -> Option<i64> {
    let value: Option<i64> = text.parse().ok().or_else(|| {
        let value: f64 = text.parse().ok()?;
        (value.fract() == 0.0).then_some(value as i64)
    });
    value.filter(|value| value.unsigned_abs() < MOST)
}

/// Parses `key="value",…}`: returns the labels and the text after the brace.
fn labels(mut rest: &str) -> Option<(BTreeMap<String, String>, &str)> {
    let mut labels = BTreeMap::new();
    loop {
        rest = rest.trim_start_matches([',', ' ']);
        if let Some(after) = rest.strip_prefix('}') {
            return Some((labels, after));
        }
        let (key, after) = rest.split_once("=\"")?;
        let (value, after) = quoted(after)?;
        labels.insert(key.to_owned(), value);
        rest = after;
    }
}

fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut characters = text.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => match characters.next()?.1 {
                'n' => value.push('\n'),
                other => value.push(other),
            },
            other => value.push(other),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_metrics_of_a_daemon_are_parsed() {
        let text = "# HELP a b\n# TYPE a counter\na_total{process=\"osd:12\",cause=\"full\"} 3\na_total{process=\"o\\\"s,d}:1\",cause=\"torn\"} 4\nup 1\nload 0.5\nbig 1.0\n# EOF\n";
        let metrics = Metrics::parse(text);
        assert_eq!(metrics.sum("a_total", &[]), 7);
        assert_eq!(metrics.sum("a_total", &[("cause", "full")]), 3);
        assert_eq!(metrics.values("a_total", "process"), ["o\"s,d}:1", "osd:12"]);
        assert_eq!((metrics.sum("up", &[]), metrics.sum("big", &[]), metrics.has("load")), (1, 1, false));
    }

    #[test]
    fn figures_beyond_exact_integers_are_ignored() {
        let figures =
            ["9223372036854775807", "-9223372036854775808", "1e300", "9007199254740992", "nan", "inf"];
        let text: String = figures.iter().map(|figure| format!("a {figure}\n")).collect();
        let metrics = Metrics::parse(&(text.clone() + "a 9007199254740991\na -1\n" + &text));
        assert_eq!(metrics.sum("a", &[]), 9_007_199_254_740_990);
    }

    #[test]
    fn sums_of_many_large_figures_are_exact() {
        let large = "a 9007199254740991\na -9007199254740991\na 9007199254740991\n".repeat(2000);
        let metrics = Metrics::parse(&large);
        assert_eq!(metrics.sum("a", &[]), 2 * 9_007_199_254_740_991);
    }

    #[test]
    fn malformed_metric_lines_do_not_hide_their_neighbours() {
        let metrics = Metrics::parse("a{x=\"1\na{x} 2\na{x=\"1\"}\n\n{ 3\na 5\n");
        assert_eq!(metrics.sum("a", &[]), 5);
    }
}
