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
        /// Spans of each case
        #[arg(long, default_value_t = 200_000)]
        spans: usize,
        /// Spans of each case before it is measured
        #[arg(long, default_value_t = 200_000)]
        warm_up: usize,
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
        What::Ingest { spans, warm_up, alone: false } => ingest::beside_zipkin(spans, warm_up),
        What::Ingest { spans, warm_up, alone: true } => ingest::alone(spans, warm_up),
        What::Queries { spans } => queries::run(&spans),
    }
}
