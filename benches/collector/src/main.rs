//! Measures our collector beside the real Zipkin server, in one run, by one client and with the same spans.
//!
//! `cargo build --release -p blkin-collector && cargo run --release -p blkin-bench-collector -- ingest`. The other
//! commands measure our collector alone: `queries` asks it at several numbers of stored spans, `long` sends very long
//! traces, `paced` sends few spans, and `restart` starts it again in the middle of a very long trace. The tables are
//! Markdown.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod data;
mod ingest;
mod long;
mod paced;
mod queries;
mod restart;
mod send;
mod server;

use std::time::Duration;

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::ingest::Plan;

/// Measure the collector.
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Spans per second of the server's CPU, its memory, and bytes per stored span
    Ingest {
        /// Spans measured in each case; with the default, the collector merges its index once
        #[arg(long, default_value_t = 1_600_000)]
        spans: usize,
        /// Spans sent in each case before those that are measured
        #[arg(long, default_value_t = 200_000)]
        warm_up: usize,
        /// How often each case is measured, on a new server each time
        #[arg(long, default_value_t = 3)]
        rounds: usize,
        /// Connections, each of which waits for its answer before it sends again
        #[arg(long, default_value_t = 8)]
        connections: usize,
        /// Measure our collector alone
        #[arg(long)]
        alone: bool,
    },
    /// The cost of spans of very long traces in our collector, as the traces grow
    Long {
        /// Spans of each case
        #[arg(long, default_value_t = 600_000)]
        spans: u64,
    },
    /// The cost of spans in our collector when few arrive: CPU at a given number of messages a second
    Paced {
        /// Messages a second, over all connections together
        #[arg(long, value_delimiter = ',', default_value = "200,400")]
        messages: Vec<u32>,
        /// Spans of each message
        #[arg(long, value_delimiter = ',', default_value = "20,50,100")]
        message_spans: Vec<u64>,
        /// Connections that take turns, so that a message need not wait for earlier answers
        #[arg(long, default_value_t = 8)]
        connections: usize,
        /// Seconds of each case
        #[arg(long, default_value_t = 4)]
        seconds: u64,
    },
    /// The time our collector takes to start, and to continue a very long trace afterwards
    Restart {
        /// Spans of the trace, in each case
        #[arg(long, value_delimiter = ',', default_value = "1000000,2000000,4000000")]
        spans: Vec<u64>,
    },
    /// How long our collector's queries take
    Queries {
        /// Numbers of stored spans at which to ask, in ascending order
        #[arg(long, value_delimiter = ',', default_value = "100000,1000000,5000000")]
        spans: Vec<usize>,
    },
}

fn main() -> Result<()> {
    match Arguments::parse().what {
        What::Ingest { spans, warm_up, rounds, connections, alone } => {
            let plan = Plan { spans, warm_up, rounds, connections };
            if alone { ingest::alone(&plan) } else { ingest::beside_zipkin(&plan) }
        }
        What::Long { spans } => long::run(spans),
        What::Paced { messages, message_spans, connections, seconds } => {
            paced::run(&messages, &message_spans, connections, Duration::from_secs(seconds))
        }
        What::Restart { spans } => restart::run(&spans),
        What::Queries { spans } => queries::run(&spans),
    }
}
