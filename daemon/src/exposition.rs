//! The two formats of `/metrics`: OpenMetrics for clients that accept it, such as Prometheus, and Prometheus' older text format
//! for all others, such as `curl` and `promtool check metrics`. They differ in the name of a counter in `# HELP` and `# TYPE`:
//! OpenMetrics has `x` for the sample `x_total`, Prometheus has `x_total` for both.

use std::collections::HashSet;

use axum::http::{HeaderMap, header};

/// The format of metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exposition {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// Prometheus text 0.0.4.
    Prometheus,
}

impl Exposition {
    /// The format that the sender of these headers accepts.
    pub fn wanted_by(headers: &HeaderMap) -> Exposition {
        let mut accepted = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
        match accepted.any(|value| value.to_ascii_lowercase().contains("application/openmetrics-text")) {
            true => Exposition::OpenMetrics,
            false => Exposition::Prometheus,
        }
    }

    /// The content type of the format.
    pub fn content_type(self) -> &'static str {
        match self {
            Exposition::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Exposition::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }

    /// Converts `text`, which is OpenMetrics, to this format.
    pub fn write(self, text: String) -> String {
        match self {
            Exposition::OpenMetrics => text,
            Exposition::Prometheus => prometheus(&text),
        }
    }
}

fn prometheus(text: &str) -> String {
    let is_type = |line: &str| line.starts_with("# TYPE ");
    let name = |line: &str| line.strip_suffix(" counter")?.strip_prefix("# TYPE ").map(str::to_owned);
    let counters: HashSet<String> = text.lines().filter(|line| is_type(line)).filter_map(name).collect();
    let mut out = String::with_capacity(text.len() + text.len() / 16);
    for line in text.lines().filter(|line| *line != "# EOF" && !line.starts_with("# UNIT ")) {
        match described(line) {
            Some((what, name, rest)) if counters.contains(name) => {
                out.extend(["# ", what, " ", name, "_total ", rest]);
            }
            _ => out.push_str(line),
        }
        out.push('\n');
    }
    out
}

/// The parts of `# HELP name text` and `# TYPE name type`.
fn described(line: &str) -> Option<(&str, &str, &str)> {
    let mut parts = line.strip_prefix("# ")?.splitn(3, ' ');
    Some((parts.next()?, parts.next()?, parts.next().unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPEN: &str = "# HELP a Calls.\n# TYPE a counter\na_total{x=\"# TYPE b counter\"} 3\n\
                        # HELP b_bytes Size.\n# TYPE b_bytes gauge\n# UNIT b_bytes bytes\nb_bytes 7\n# EOF\n";

    #[test]
    fn prometheus_text_names_counters_with_total_and_has_no_eof() {
        let classic = "# HELP a_total Calls.\n# TYPE a_total counter\na_total{x=\"# TYPE b counter\"} 3\n\
                       # HELP b_bytes Size.\n# TYPE b_bytes gauge\nb_bytes 7\n";
        assert_eq!(Exposition::Prometheus.write(OPEN.to_owned()), classic);
        assert_eq!(Exposition::OpenMetrics.write(OPEN.to_owned()), OPEN);
    }

    #[test]
    fn openmetrics_is_served_only_when_accepted() {
        let wanted = |accept: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT, accept.parse().unwrap());
            Exposition::wanted_by(&headers)
        };
        let of_prometheus =
            "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        assert_eq!(wanted(of_prometheus), Exposition::OpenMetrics);
        for other in ["*/*", "text/plain;version=0.0.4"] {
            assert_eq!(wanted(other), Exposition::Prometheus);
        }
        assert_eq!(Exposition::wanted_by(&HeaderMap::new()), Exposition::Prometheus);
    }
}
