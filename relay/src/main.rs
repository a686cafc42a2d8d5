//! `blkin-relay`: parses its arguments and runs the relay.

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let arguments = blkin_relay::config::Arguments::parse();
    blkin_daemon::exit::report("blkin-relay", blkin_relay::server::main(&arguments))
}
