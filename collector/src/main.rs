//! `blkin-collector`: parses its arguments and runs the collector.

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let arguments = blkin_collector::config::Arguments::parse();
    blkin_daemon::exit::report("blkin-collector", blkin_collector::server::main(&arguments))
}
