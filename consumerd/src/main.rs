//! `blkin-consumerd`: drains every traced program of this machine and ships what they recorded.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use blkin_consumerd::config::{Config, DEFAULT_FILE, Overrides};
use blkin_consumerd::{holder, worker};
use blkin_daemon::config::{ConfigError, Layered, file_to_read, layered, path_of};
use blkin_daemon::exit::{Failure, report};
use blkin_daemon::logging;
use blkin_daemon::start::{after_help, say_configuration_is_good};
use clap::{Parser, Subcommand};

/// Prefix of the environment variables.
const VARIABLES: &str = "BLKIN_CONSUMERD_";
/// Variable that names the file to write once ready, unless the flag does.
const READY_FILE: &str = "BLKIN_CONSUMERD_READY_FILE";

/// Drains every traced program of this machine, joins annotations into spans and ships them
#[derive(Debug, Parser)]
#[command(name = "blkin-consumerd", version, after_help = after_help(VARIABLES))]
struct Arguments {
    /// Configuration file, also BLKIN_CONSUMERD_CONFIG [default: /etc/blkin/consumerd.toml, if it exists]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Check the configuration, say so, and end
    #[arg(long)]
    check_config: bool,
    /// Write {"http": "ADDRESS", "socket": "PATH", "control": "PATH"} to this file once ready, also BLKIN_CONSUMERD_READY_FILE
    #[arg(long, value_name = "FILE")]
    ready_file: Option<PathBuf>,
    #[command(flatten)]
    overrides: Overrides,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Drain rings and ship annotations; the daemon starts this process itself
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
    if arguments.check_config {
        configuration(arguments)?.check(Config::check_folders)?;
        return say_configuration_is_good();
    }
    daemon(arguments).map_err(|failure| match failure {
        Failure::Config(error) => holder::while_something_is_kept(error),
        other => other,
    })
}

fn configuration(arguments: &Arguments) -> Result<Layered<Config>, ConfigError> {
    let file = file_to_read(arguments.config.as_deref(), VARIABLES, Path::new(DEFAULT_FILE))?;
    let read = layered(file.as_deref(), VARIABLES, &arguments.overrides)?;
    read.check(Config::check)?;
    Ok(read)
}

fn daemon(arguments: &Arguments) -> Result<(), Failure> {
    let config = configuration(arguments)?.config;
    logging::init(&config.log, config.log_format)?;
    let ready_file =
        arguments.ready_file.clone().map_or_else(|| path_of(READY_FILE), |path| Ok(Some(path)))?;
    holder::run(&config, ready_file.as_deref())
}
