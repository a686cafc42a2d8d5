//! Events of one microsecond are shown in the order in which they were recorded, wherever they are shown.

use std::io::Read;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use blkin_cli::live::{Event, LiveArguments, Stream, watch};
use blkin_cli::span::Span;
use blkin_tests::artifacts::{binary, output};
use blkin_tests::daemons::{Node, Setup};
use blkin_tests::program::Program;
use blkin_tests::relays::Relay;

use crate::ledger::ROOMY;

/// The events that `order.c` records in each trace, in an order that differs from the alphabet's.
const RECORDED: [&str; 4] = ["Handling op", "Enqueuing op", "Enqueued op", "Dequeued op"];

/// Checks that these events stand in the order in which they were recorded.
fn check_order<'a>(events: impl Iterator<Item = &'a str>) -> Result<usize> {
    let places: Option<Vec<usize>> =
        events.map(|event| RECORDED.iter().position(|recorded| *recorded == event)).collect();
    let places = places.context("an event that nobody recorded")?;
    ensure!(places.is_sorted(), "out of order: {places:?} of {RECORDED:?}");
    Ok(places.len())
}

fn check_span(span: &Span) -> Result<usize> {
    check_order(span.annotations.iter().map(|annotation| annotation.value.as_str()))
}

/// Reads a stream until it has shown `events` events.
fn check_live(mut view: Stream<impl Read>, events: usize) -> Result<()> {
    let mut seen = 0;
    while seen < events {
        match view.next_event()?.context("the stream ended")? {
            Event::Span(json) => seen += check_span(&serde_json::from_str(&json)?)?,
            Event::Missed(missed) => anyhow::bail!("the viewer was too slow: {missed:?}"),
        }
    }
    Ok(())
}

/// Whether two events in a row of a trace, of one service or of two, share a microsecond.
fn shares_a_microsecond(trace: &[Span], of_one_service: bool) -> bool {
    let time = |place: usize| {
        let mut all = trace.iter().flat_map(|span| &span.annotations);
        all.find(|annotation| annotation.value == RECORDED[place]).map(|annotation| annotation.timestamp)
    };
    let shared = |place: usize| time(place).is_some() && time(place) == time(place + 1);
    if of_one_service { shared(1) } else { shared(0) && shared(2) }
}

/// A trace's events, sorted by microsecond and value.
fn by_value(trace: &[Span]) -> Vec<&str> {
    let mut events: Vec<_> = trace.iter().flat_map(|span| &span.annotations).collect();
    events.sort_by_key(|event| (event.timestamp, &event.value));
    events.iter().map(|event| event.value.as_str()).collect()
}

/// The lines with events in the output of `blkin trace`.
fn drawn(node: &Node, id: &str) -> Result<Vec<String>> {
    let mut blkin = Command::new(binary("blkin")?);
    let text = output(blkin.args(["trace", id, "--collector", node.collector.http.base()]))?;
    let event = |line: &str| Some(line.split_once("· +")?.1.split_once("  ")?.1.to_owned());
    Ok(text.lines().filter_map(event).collect())
}

#[test]
fn events_of_one_microsecond_are_shown_in_recorded_order() -> Result<()> {
    let mut node = Node::without_consumerd(Setup::default())?;
    let collector = node.collector.address("scribe")?;
    let relay = Relay::start(node.folder(), "relay", &[&collector], &[])?;
    node.ship_to(&relay.scribe);
    node.start_consumerd()?;
    let all = LiveArguments::default();
    let views = [watch(relay.daemon.http.base(), &all)?, watch(node.collector.http.base(), &all)?];
    let mut program = Program::start("order", &[], &node.socket(), &ROOMY)?;
    let calls = program.round()?;
    node.settled(calls)?;
    relay.drained(0, &[&collector])?;
    for view in views {
        check_live(view, calls as usize)?;
    }

    let search = [("serviceName", "osd.0"), ("limit", "1000")];
    let found = node.collector.http.get_ok("/api/v2/traces", &search)?;
    let traces: Vec<Vec<Span>> = serde_json::from_str(&found)?;
    ensure!(traces.len() * RECORDED.len() == calls as usize, "{} traces", traces.len());
    for span in traces.iter().flatten() {
        check_span(span)?;
    }
    for of_one_service in [true, false] {
        let trace = traces.iter().find(|trace| shares_a_microsecond(trace, of_one_service));
        let trace = trace.context("no two events of a microsecond")?;
        ensure!(
            check_order(by_value(trace).into_iter()).is_err(),
            "alphabetical order would pass this check, too"
        );
        let drawn = drawn(&node, &trace[0].trace_id)?;
        ensure!(check_order(drawn.iter().map(String::as_str))? == RECORDED.len(), "{drawn:?}");
    }
    Ok(())
}
