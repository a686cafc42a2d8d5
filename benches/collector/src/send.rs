//! The client: several connections, each of which waits for its answer before it sends again.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Mutex;

use anyhow::{Context, Result, ensure};
use blkin_thrift::scribe::{LogEntry, Outcome, ResultCode, decode_reply, encode_log_call, span_message};
use blkin_thrift::{Limits, Span};

use crate::data;
use crate::server::Server;

/// How spans travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Road {
    Scribe,
    Json,
}

impl Road {
    pub(crate) fn title(self) -> &'static str {
        match self {
            Road::Scribe => "Scribe",
            Road::Json => "v2 JSON",
        }
    }
}

/// Traces by their numbers, all of one size.
#[derive(Debug, Clone)]
pub(crate) struct Load {
    pub(crate) traces: std::ops::Range<u64>,
    pub(crate) trace_spans: u64,
    /// The time at which trace 0 begins.
    pub(crate) first_us: i64,
}

/// Messages, made before anything is measured.
pub(crate) struct Messages {
    road: Road,
    bodies: Vec<Vec<u8>>,
}

impl Messages {
    /// Messages of `message_spans` spans, or of one whole trace if that has more.
    pub(crate) fn of(road: Road, message_spans: u64, load: &Load) -> Result<Messages> {
        let traces: Vec<u64> = load.traces.clone().collect();
        let each = (message_spans / load.trace_spans).max(1) as usize;
        let body = |traces: &[u64]| match road {
            Road::Scribe => Ok(scribe_call(traces, load)),
            Road::Json => json_list(traces, load),
        };
        Ok(Messages { road, bodies: traces.chunks(each).map(body).collect::<Result<_>>()? })
    }

    /// Sends all messages over `connections` connections; returns once each was answered as accepted.
    pub(crate) fn send(self, server: &Server, connections: usize) -> Result<()> {
        let (road, left) = (self.road, Mutex::new(self.bodies.into_iter()));
        let next = || left.lock().ok()?.next();
        std::thread::scope(|scope| {
            let connection = || match road {
                Road::Scribe => over_scribe(&server.scribe, &next),
                Road::Json => over_http(&server.http, &next),
            };
            let threads: Vec<_> = (0..connections).map(|_| scope.spawn(connection)).collect();
            threads
                .into_iter()
                .try_for_each(|thread| thread.join().map_err(|_| anyhow::anyhow!("a thread"))?)
        })
    }
}

fn scribe_call(traces: &[u64], load: &Load) -> Vec<u8> {
    let spans = traces.iter().flat_map(|&trace| data::thrift(trace, 0..load.trace_spans, load.first_us));
    call_of(spans)
}

/// A call of Scribe with these spans.
pub(crate) fn call_of(spans: impl Iterator<Item = Span>) -> Vec<u8> {
    let entry = |span| LogEntry { category: "zipkin".to_owned(), message: span_message(&span) };
    encode_log_call(1, &spans.map(entry).collect::<Vec<_>>())
}

fn json_list(traces: &[u64], load: &Load) -> Result<Vec<u8>> {
    let spans = traces.iter().flat_map(|&trace| data::v2(trace, load.trace_spans, load.first_us));
    Ok(serde_json::to_vec(&spans.collect::<Vec<_>>())?)
}

/// Sends calls one after the other; each waits until the one before was answered as accepted.
pub(crate) fn over_scribe(address: &str, next: &dyn Fn() -> Option<Vec<u8>>) -> Result<()> {
    let mut stream = TcpStream::connect(address).context("failed to connect to Scribe")?;
    stream.set_nodelay(true)?;
    while let Some(call) = next() {
        loop {
            stream.write_all(&call)?;
            let mut head = [0; 4];
            stream.read_exact(&mut head)?;
            let mut frame = vec![0; u32::from_be_bytes(head) as usize];
            stream.read_exact(&mut frame)?;
            match decode_reply(&frame, &Limits::default())?.outcome {
                Outcome::Result(ResultCode::Ok) => break,
                Outcome::Result(ResultCode::TryLater) => {}
                Outcome::Exception(exception) => anyhow::bail!("{exception}"),
            }
        }
    }
    Ok(())
}

fn over_http(base: &str, next: &dyn Fn() -> Option<Vec<u8>>) -> Result<()> {
    let agent = ureq::Agent::config_builder().http_status_as_error(false).build().new_agent();
    while let Some(body) = next() {
        let request =
            agent.post(format!("http://{base}/api/v2/spans")).header("Content-Type", "application/json");
        let mut response = request.send(&body[..])?;
        let said = response.body_mut().read_to_string()?;
        ensure!(response.status().as_u16() == 202, "{}: {said}", response.status());
    }
    Ok(())
}
