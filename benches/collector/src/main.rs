//! Measures our collector beside the real Zipkin server, in one run, by one client and with the same spans.
//!
//! `cargo build --release -p blkin-collector && cargo run --release -p blkin-bench-collector -- ingest`; `queries` asks
//! our collector alone, at several numbers of stored spans. The tables are Markdown.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod data;
mod ingest;
mod queries;
mod send;
mod server;

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
    /// Spans for each second of the server's CPU, its memory, and bytes for each stored span
    Ingest {
        /// Spans of each case: as many as make the collector merge its index once
        #[arg(long, default_value_t = 1_600_000)]
        spans: usize,
        /// Spans of each case before it is measured
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
    /// How long our collector's queries take
    Queries {
        /// Numbers of stored spans at which to ask, growing
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
        What::Queries { spans } => queries::run(&spans),
    }
}
