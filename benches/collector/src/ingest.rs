//! The cost of a span in the servers: CPU, memory, disk.

use std::time::Instant;

use anyhow::Result;

use crate::data::now_us;
use crate::send::{Load, Messages, Road};
use crate::server::Server;

/// How spans are sent.
#[derive(Debug, Clone, Copy)]
struct Case {
    road: Road,
    trace_spans: u64,
    message_spans: u64,
}

/// First messages of the size that nodes with little load send, then messages of a node that had to wait.
const CASES: [Case; 6] = [
    Case { road: Road::Scribe, trace_spans: 10, message_spans: 100 },
    Case { road: Road::Scribe, trace_spans: 100, message_spans: 100 },
    Case { road: Road::Json, trace_spans: 10, message_spans: 100 },
    Case { road: Road::Json, trace_spans: 100, message_spans: 100 },
    Case { road: Road::Scribe, trace_spans: 10, message_spans: 1000 },
    Case { road: Road::Json, trace_spans: 10, message_spans: 1000 },
];

/// How much is measured, and how often.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    /// Spans measured in each case; `warm_up` more are sent before them.
    pub(crate) spans: usize,
    pub(crate) warm_up: usize,
    /// How often each case is measured, on a new server each time.
    pub(crate) rounds: usize,
    pub(crate) connections: usize,
}

/// The figures of one round of one case.
struct Figures {
    spans_per_cpu_second: f64,
    spans_per_second: f64,
    resident_mib: f64,
    disk_bytes_a_span: f64,
}

/// Measures both servers in turns, each new for each case, and prints the table.
pub(crate) fn beside_zipkin(plan: &Plan) -> Result<()> {
    println!(
        "| spans of | Zipkin, spans per CPU second | blkin-collector | ratio | spans/s, Zipkin | ours, durable | Zipkin, \
         MiB resident | ours | disk, bytes a span |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for case in CASES {
        let (mut theirs, mut ours) = (Vec::new(), Vec::new());
        for _ in 0..plan.rounds {
            theirs.push(measure(&Server::zipkin(2 * (plan.spans + plan.warm_up))?, case, plan)?);
            ours.push(measure(&Server::collector()?, case, plan)?);
        }
        let ratios = theirs
            .iter()
            .zip(&ours)
            .map(|(their, our)| our.spans_per_cpu_second / their.spans_per_cpu_second);
        println!(
            "| {} | {} | {} | {} | {} | {} | {} | {} | {} |",
            title(case),
            middle(&theirs, |of| of.spans_per_cpu_second),
            middle(&ours, |of| of.spans_per_cpu_second),
            with_spread(ratios.collect()),
            middle(&theirs, |of| of.spans_per_second),
            middle(&ours, |of| of.spans_per_second),
            middle(&theirs, |of| of.resident_mib),
            middle(&ours, |of| of.resident_mib),
            middle(&ours, |of| of.disk_bytes_a_span),
        );
    }
    Ok(())
}

/// Measures only our collector, and prints its part of the table.
pub(crate) fn alone(plan: &Plan) -> Result<()> {
    println!(
        "| spans of | blkin-collector, spans per CPU second | spans/s, durable | MiB resident | disk, bytes a span |"
    );
    println!("|---|---|---|---|---|");
    for case in CASES {
        let round = |_| measure(&Server::collector()?, case, plan);
        let ours = (0..plan.rounds).map(round).collect::<Result<Vec<_>>>()?;
        println!(
            "| {} | {} | {} | {} | {} |",
            title(case),
            middle(&ours, |of| of.spans_per_cpu_second),
            middle(&ours, |of| of.spans_per_second),
            middle(&ours, |of| of.resident_mib),
            middle(&ours, |of| of.disk_bytes_a_span),
        );
    }
    Ok(())
}

fn title(case: Case) -> String {
    let Case { road, trace_spans, message_spans } = case;
    format!("{}, traces of {trace_spans}, messages of {message_spans}", road.title())
}

/// Sends the spans that warm up a new server, then the spans that are measured.
fn measure(server: &Server, case: Case, plan: &Plan) -> Result<Figures> {
    let Case { road, trace_spans, message_spans } = case;
    let first_us = now_us() - 3_600_000_000;
    let mut next_trace = 0;
    let mut load = |spans: usize| {
        let traces = next_trace..next_trace + spans as u64 / trace_spans;
        next_trace = traces.end;
        Messages::of(road, message_spans, &Load { traces, trace_spans, first_us })
    };
    load(plan.warm_up)?.send(server, plan.connections)?;
    let messages = load(plan.spans)?;
    let (before, begun) = (server.settled_cpu(), Instant::now());
    messages.send(server, plan.connections)?;
    let seconds = begun.elapsed().as_secs_f64();
    let cpu = server.settled_cpu() - before;
    eprintln!("{}: {}: {cpu:.2} s of CPU in {seconds:.2} s", server.title, title(case));
    Ok(Figures {
        spans_per_cpu_second: plan.spans as f64 / cpu.max(0.01),
        spans_per_second: plan.spans as f64 / seconds,
        resident_mib: server.resident_mib(),
        disk_bytes_a_span: server.disk_bytes() as f64 / (plan.spans + plan.warm_up) as f64,
    })
}

/// The median of a figure of all rounds.
fn middle(rounds: &[Figures], figure: impl Fn(&Figures) -> f64) -> String {
    format!("{:.0}", median(&mut rounds.iter().map(figure).collect::<Vec<_>>()))
}

/// The median, followed by all ratios in brackets.
fn with_spread(mut ratios: Vec<f64>) -> String {
    let each: Vec<String> = ratios.iter().map(|ratio| format!("{ratio:.1}")).collect();
    format!("{:.1} ({})", median(&mut ratios), each.join(", "))
}

/// The middle figure, or the mean of the two middle figures.
fn median(figures: &mut [f64]) -> f64 {
    figures.sort_unstable_by(f64::total_cmp);
    let at = |place: usize| figures.get(place).copied().unwrap_or(f64::NAN);
    (at((figures.len().max(1) - 1) / 2) + at(figures.len() / 2)) / 2.0
}

#[cfg(test)]
mod tests {
    use super::median;

    #[test]
    fn median_is_the_middle_or_the_mean_of_the_middle_two() {
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&mut [4.0, 1.0]), 2.5);
        assert!(median(&mut []).is_nan());
    }
}
