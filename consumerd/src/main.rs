//! `blkin-consumerd`: drains every traced program of this machine and ships what they recorded.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use blkin_consumerd::config::{Config, DEFAULT_FILE, Overrides};
use blkin_consumerd::{holder, worker};
use blkin_daemon::config::{file_to_read, layered};
use blkin_daemon::exit::{Failure, report};
use blkin_daemon::logging;
use blkin_daemon::start::say_configuration_is_good;
use clap::{Parser, Subcommand};

/// Drains every traced program of this machine, joins annotations into spans and ships them
///
/// Exit codes: 0 ended as asked, 1 failed while running, 2 wrong usage, 78 bad configuration.
#[derive(Debug, Parser)]
#[command(name = "blkin-consumerd", version)]
struct Arguments {
    /// Configuration file [default: /etc/blkin/consumerd.toml, if it exists]
    #[arg(long, env = "BLKIN_CONSUMERD_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Check the configuration, say so, and end
    #[arg(long)]
    check_config: bool,
    /// Write {"http": "ADDRESS", "socket": "PATH", "control": "PATH"} to this file once ready
    #[arg(long, env = "BLKIN_CONSUMERD_READY_FILE", value_name = "FILE")]
    ready_file: Option<PathBuf>,
    #[command(flatten)]
    overrides: Overrides,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Drains and ships; the daemon starts it by itself
    #[command(hide = true)]
    Worker,
}

fn main() -> ExitCode {
    report("blkin-consumerd", run(&Arguments::parse()))
}

fn run(arguments: &Arguments) -> Result<(), Failure> {
    if let Some(Command::Worker) = arguments.command {
        return worker::run();
    }
    let file = file_to_read(arguments.config.as_deref(), Path::new(DEFAULT_FILE));
    let config: Config = layered(file.as_deref(), "BLKIN_CONSUMERD_", &arguments.overrides)?;
    config.check()?;
    if arguments.check_config {
        config.check_folders()?;
        return say_configuration_is_good();
    }
    logging::init(&config.log, config.log_format)?;
    holder::run(&config, arguments.ready_file.as_deref())
}
